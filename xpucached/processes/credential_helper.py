"""Programs that keep passwords for registries (``docker-credential-NAME``): asked for one, with a deadline."""

from __future__ import annotations

import os
import re
import shutil
from typing import TYPE_CHECKING, Final

from xpucached.processes import child

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_SECONDS: Final = 60.0
"""Some of them ask a person for a password."""
_LARGEST: Final = 64 << 10

_VARIABLES: Final = re.compile(
    # Where accounts and certificates are …
    r"DOCKER_CONFIG|REGISTRY_AUTH_FILE|SSL_CERT_(?:FILE|DIR)"
    # … and what helpers need to reach what they keep.
    r"|DBUS_SESSION_BUS_ADDRESS|DISPLAY|WAYLAND_DISPLAY|GPG_TTY|GNUPGHOME|PASSWORD_STORE_\w+"
    r"|(?:AWS|AZURE|CLOUDSDK|GOOGLE)_\w+"
)
_PLACES: Final = re.compile(r"DOCKER_CONFIG|GOOGLE_APPLICATION_CREDENTIALS|\w+_FILE")
"""Those that hold a path."""


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that say where accounts are, and that helpers need; paths are from where we are."""
    found = {name: text for name, text in environ.items() if _VARIABLES.fullmatch(name)}
    paths = {name for name, text in found.items() if text and _PLACES.fullmatch(name)}
    return found | {name: os.path.abspath(found[name]) for name in paths}  # noqa: PTH100 - not resolved


def ask(name: str, server: str) -> child.Ended | None:
    """Ask a helper for the account of a server; None if there is no such helper.  Raises OSError."""
    if _NAME.fullmatch(name) is None:
        return None
    path = shutil.which(f"docker-credential-{name}", path=child.search_path(os.environ))
    if path is None:
        return None
    environ = child.environment(variables(os.environ))
    return child.run([path, "get"], variables=environ, seconds=_SECONDS, largest=_LARGEST, stdin=server.encode())
