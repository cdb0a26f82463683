"""Where the daemon's socket is.  Pure, and quick to load, because the client's start time depends on it."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing takes long to load
if TYPE_CHECKING:
    from collections.abc import Mapping


PUBLIC = "/run/xpucached/xpucached.sock"
"""Where the host's daemon answers everybody."""

ADMIN = "/run/xpucached/admin.sock"
"""Where it answers administrators: its mode says who they are."""


ASIDE = "aside"
"""The file beside a worker's socket by which it says that its user runs a daemon himself."""


def worker_path(uid: int) -> str:
    """Tell where a user's worker answers."""
    return f"/run/xpucached-worker/{uid}/xpucached.sock"


def socket_path(*, user: bool, environ: Mapping[str, str]) -> str:
    """Tell where the daemon's socket is, the system's or this user's.  Daemon and client must agree, so both ask here.

    Below /tmp the directory may have been made by anybody: who binds there checks its owner.
    """
    if not user:
        return PUBLIC
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        return f"{runtime.rstrip('/') or '/'}/xpucached/xpucached.sock"
    return f"/tmp/xpucached-{os.getuid()}/xpucached.sock"  # noqa: S108 - the owner is checked, see above
