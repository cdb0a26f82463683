"""Who may ask a user's daemon for what."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import threading
from typing import TYPE_CHECKING

from xpucached import deadlines, sockets
from xpucached.api.endpoints import Right

if TYPE_CHECKING:
    from collections.abc import Callable


def allowed(uid: int, right: Right) -> bool:
    """Everybody who may open the socket may read; the daemon's own user and root may change."""
    return right is Right.READ or uid in (0, os.getuid())


def owners_only(uid: int, _right: Right) -> bool:
    """Of a worker, whose socket everybody can open: its user and root may do all, others nothing."""
    return uid in (0, os.getuid())


async def host_daemon() -> Callable[[int], bool]:
    """Return what tells whether somebody is the host's daemon."""
    account = HostDaemonAccount()
    await asyncio.to_thread(account.ask, deadlines.SECONDS)
    return account.is_


class HostDaemonAccount:
    """The account of the host's daemon, which may tend a worker.

    A user database that does not answer holds a thread, and nobody who connects.
    """

    def __init__(self) -> None:
        self._uid: int | None = None
        self._asking: threading.Thread | None = None

    def is_(self, uid: int) -> bool:
        """Return whether it is this one, as far as is known; who is not known yet is asked for."""
        if self._uid is None:
            self.ask(0.0)
        return uid == self._uid

    def ask(self, seconds: float) -> None:
        """Ask who it is, and wait for the answer for so long."""
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self._find, name="account", daemon=True)
            # Where no thread can be had now, one can be for the next who connects.
            try:
                self._asking.start()
            except RuntimeError:
                self._asking = None
                return
        self._asking.join(seconds)

    def _find(self) -> None:
        with contextlib.suppress(KeyError):
            self._uid = pwd.getpwnam(sockets.ACCOUNT).pw_uid
