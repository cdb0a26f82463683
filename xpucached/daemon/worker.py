"""What only a worker sees to: that its user may have one, and runs no daemon; and until when it is needed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import pwd
import socket
from pathlib import Path
from typing import Final

from xpucached import deadlines, settings, sockets, systemd
from xpucached.api import host_requests
from xpucached.api.client import Client
from xpucached.errors import CatalogError, RunningError, SettingsError, Unavailable, XpucachedError
from xpucached.server import unix_sockets
from xpucached.settings import loading

log = logging.getLogger(__name__)

_PATIENCE: Final = 5.0
"""Seconds that another daemon may take to answer."""

_HEARD: Final = 3.0
"""Seconds that a worker stays after its work: the host's daemon asks each second how it stands."""

_ECHO: Final = 1.0
"""Seconds after its work in which what happens in the stores is its own doing."""

_NEXT: Final = 30.0
"""Seconds in which an administrator who looks at all users may ask again."""

_ACCOUNTS: Final = Path("/etc/passwd")
_WORKERS: Final = Path("/var/lib/xpucached-worker")

_GONE: Final = 10.0
"""Seconds after which an account that is not in that file any more is gone."""


STATUS: Final = "looking after the caches of its user"
"""What systemd is told of a worker: to everybody it says what it was told of a unit of the host's."""


class WorkerNeed:
    """Until when a worker is needed, by one clock.

    Who was started only to look leaves when that is done, and what it had to do is done: all users of a host are looked
    at one after the other, and together their workers would take its memory.
    """

    def __init__(self, now: float) -> None:
        self._worked = now
        self._stirred = -math.inf
        self._local = False
        self._gone: float | None = None

    def know(self, now: float, *, local: bool | None) -> None:
        """Note whether our user's account is one of this host's own; null if that cannot be told.

        One of a directory service is never taken for deleted: that may be away for a while.
        """
        if local:
            self._local, self._gone = True, None
        elif local is False and self._local and self._gone is None:
            self._gone = now
            log.warning("user %d is not in %s any more: the account was deleted", os.getuid(), _ACCOUNTS)

    def work(self, now: float) -> None:
        """Note that the worker has something to do now, or awaits it."""
        self._worked = now

    def note_activity(self, now: float) -> None:
        """Note that something happened in its user's stores, or to the models."""
        if now > self._worked + _ECHO:
            self._stirred = now

    def end(self, idle: float | None, asked: float, passed_on: float) -> float:
        """Return when it is needed no more; those who come back, its user and programs, find it for ``idle`` seconds.

        ``asked`` is when its user or root asked last, ``passed_on`` when an administrator looked through the host's
        daemon; minus infinity for never.  ``idle`` null is without end.  Nobody needs it whose user is gone.
        """
        if self._gone is not None:
            return self._gone + _GONE
        if idle is None:
            return math.inf
        return max(self._worked + _HEARD, passed_on + _NEXT, self._stirred + idle, asked + idle)


def account() -> str | None:
    """Return our user's name; None if nobody can say it now."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return None


def activated() -> list[socket.socket]:
    """Take the sockets that systemd opened for us; none if it did not start us.

    Raises `Unavailable` if it did and gave none: its socket unit does not start while the worker before us ends.  That
    is no fault of the configuration, and at our next start there is one (Restart=on-failure).
    """
    given = unix_sockets.activated()
    if not given and "NOTIFY_SOCKET" in os.environ:
        hint = f"it gives one when it starts this again; see: systemctl status xpucached-worker@{os.getuid()}.socket"
        raise Unavailable("systemd gave no socket to this worker", hint=hint)
    return given


async def named() -> str:
    """Return our user's name; the number, while nobody can say it."""
    name = None
    with contextlib.suppress(OSError, RuntimeError):
        name = await asyncio.to_thread(deadlines.ask, "names", account)
    return name or str(os.getuid())


def is_local() -> bool | None:
    """Return whether our user's account is one of this host's own, as its file says; None if that cannot be read."""
    try:
        lines = _ACCOUNTS.read_bytes().splitlines()
    except OSError:
        return None
    return any(line.split(b":")[2:3] == [b"%d" % os.getuid()] for line in lines)


def other_catalog(config: settings.Settings, *, is_worker: bool) -> Path | None:
    """Return where our user's other daemon has its catalog: a worker's is the own one, and the other way round."""
    from xpucached.catalog import opening  # noqa: PLC0415 - the host's daemon needs none of it

    if is_worker:
        return Path(os.path.expanduser("~/.local/state/xpucached/catalog.sqlite"))  # noqa: PTH111 - it raises nothing
    if config.paths.socket != Path(sockets.own_path(os.getuid())):
        # For this one no worker steps aside.
        return None
    place = _WORKERS / str(os.getuid())
    with contextlib.suppress(OSError, CatalogError):
        # Who had our number before left nothing for us.
        if (name := account()) is not None and opening.owner(place) == name:
            return place / "catalog.sqlite"
    return None


def step_aside() -> bool | None:
    """See that our user runs no daemon; give what `is_local` does.

    If one answers, tell the host's daemon, and raise `RunningError`.
    """
    path = Path(sockets.own_path(os.getuid()))
    try:
        sockets.connect(path, owner=os.getuid(), timeout=int(_PATIENCE)).close()
    except OSError:
        return is_local()
    # Where there is no daemon of the host, nobody waits for us either.
    with contextlib.suppress(XpucachedError), Client(Path(sockets.PUBLIC), patience=_PATIENCE) as client:
        client.call(host_requests.StepAside())
    # Of one that ends before it is ready systemd says that it failed, whatever its exit status; this is no failure.
    systemd.notify("READY=1")
    raise RunningError(f"this user runs a daemon of their own, on {path}", hint="xpucachectl status asks that one")


async def seen() -> bool | None:
    """Do `step_aside` in a thread; give null where the host has no thread or descriptor for it now."""
    try:
        return await asyncio.to_thread(step_aside)
    except (OSError, RuntimeError) as error:
        # It is asked again in a moment; to end for that would end what goes on.
        log.debug("whether this user runs a daemon of their own cannot be told now: %s", error)
        return None


def require_permitted(state: Path) -> None:
    """Check that our user may have a worker, whoever started it; ``state`` is its own.  Raises `SettingsError`."""
    from xpucached.hostd import users  # noqa: PLC0415 - users' own daemons need none of it

    if os.getuid() == 0:
        raise SettingsError("root has no worker", hint="start xpucached-worker@UID.service, with a user's number")
    try:
        host_settings: settings.Settings | None = loading.load(None, user=False, environ={})
    except SettingsError:
        # What it says is not known; who had a worker keeps it.
        host_settings = None
    had = (state / "catalog.sqlite").exists()
    if not users.may_have_worker(os.getuid(), host_settings, had=had):
        raise SettingsError(
            f"user {os.getuid()} has no worker: it is nobody who logs in, and not named in the host's configuration",
            hint="an administrator can add it: include in [workers] of /etc/xpucached/xpucached.toml",
        )
