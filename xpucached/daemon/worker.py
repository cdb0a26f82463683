"""Checks that only a worker makes: whether its user may have one, and whether that user already runs a daemon."""

from __future__ import annotations

import contextlib
import os
import pwd
from pathlib import Path
from typing import Final

from xpucached import settings, sockets
from xpucached.api import host_requests
from xpucached.api.client import Client
from xpucached.errors import RunningError, SettingsError, XpucachedError
from xpucached.settings import reader_process

_PATIENCE: Final = 5.0
"""Seconds that another daemon may take to answer."""


def account() -> str | None:
    """Return our user's name; None if nobody can say it now."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return None


def step_aside() -> None:
    """See that our user runs no daemon.  If one answers, tell the host's daemon, and raise `RunningError`."""
    path = Path(f"/run/user/{os.getuid()}/xpucached/xpucached.sock")
    try:
        sockets.connect(path, owner=os.getuid(), timeout=int(_PATIENCE)).close()
    except OSError:
        return
    # Where there is no daemon of the host, nobody waits for us either.
    with contextlib.suppress(XpucachedError), Client(Path(sockets.PUBLIC), patience=_PATIENCE) as client:
        client.call(host_requests.StepAside())
    raise RunningError(f"this user runs a daemon of their own, on {path}", hint="xpucachectl status asks that one")


def require_permitted(state: Path) -> None:
    """Check that our user may have a worker, whoever started it; ``state`` is its own.  Raises `SettingsError`."""
    from xpucached.hostd import users  # noqa: PLC0415 - users' own daemons need none of it

    if os.getuid() == 0:
        raise SettingsError("root has no worker", hint="start xpucached-worker@UID.service, with a user's number")
    try:
        host_settings: settings.Settings | None = reader_process.load(None, user=False, environ={})
    except SettingsError:
        # Who may not read the host's configuration is not named in it, as far as we know.
        host_settings = None
    had = (state / "catalog.sqlite").exists()
    if not users.may_have_worker(os.getuid(), host_settings, had=had):
        raise SettingsError(
            f"user {os.getuid()} has no worker: it is nobody who logs in, and not named in the host's configuration",
            hint="an administrator can add it: include in [workers] of /etc/xpucached/xpucached.toml",
        )
