"""Sockets over which nobody hands us a descriptor.  Touches sockets, and starts processes.

The kernel closes what was sent with bytes and is not taken, in the thread that reads the bytes or closes the
connection; and to close a TCP socket may take as long as who sent it likes (``SO_LINGER``, up to centuries), or a file
of a file system that its sender serves: there even a thread that ends, and with it its process, waits for ever.  Linux
can refuse descriptors since 6.16 (`sockets.refuse_descriptors`), from who connects after that was said.  So what waits
is looked at before it is read, and a connection where some wait is handed to a child, which ends: it is the last that
has it open, and nobody waits for its end.  There are few such children.  What else waits stays open until one of them
is gone; where that becomes too much, nobody new is let in at the socket of everybody.

A byte that was sent as urgent (``MSG_OOB``) is one like the others: a look would pass it over otherwise, with the
descriptors that it brings, and it would lie there and wake us for ever.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import socket
import sys
import threading
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xpucached.processes.child import Process

_AT_ONCE: Final = 1 << 16
_MOST: Final = 16
"""Children that may be about to close something."""
_MOST_OPEN: Final = 1024
"""So many descriptors may wait for one, of those that we may have a quarter at most, until a public socket rests."""
_MOST_OF_ONE: Final = 64
_NAMED: Final = 3
_UCRED: Final = 12

_left: Final[deque[tuple[int, int]]] = deque()
"""Descriptors for whose closing there was no child, and the users to whom they lead."""
_closers: Final[list[Process]] = []
_turn: Final = threading.RLock()
_told: Final = threading.Event()
"""Whether the log says that there are no more children."""


class Resting(OSError):
    """Nobody is let in for now: it would be one more who may leave something that cannot be closed."""


class GuardedListener(socket.socket):
    """A unix socket that listens, and whose connections are guarded."""

    ours: bool = False
    """Whether nobody else has it open: one of systemd's goes on when we close it."""
    public: bool = False
    """Whether everybody may connect: then it rests while too much of theirs waits to be closed."""
    _rests: int = 0

    def accept(self) -> tuple[GuardedConnection, object]:
        """Return the next connection, and its address.  Raises `Resting`, and every other time `BlockingIOError`."""
        close_left()
        if self.public and len(_left) >= _most_open():
            self._rests += 1
            if self._rests == 1:
                _log("nobody is let in: what was sent by %s cannot be closed, and too much of it is open", _whose())
            if self._rests % 2:
                raise Resting(errno.EMFILE, "too many descriptors wait to be closed")
            # asyncio tries again in a second, and yet goes on to ask until it hears that nobody is there.
            raise BlockingIOError
        self._rests = 0
        return self._next()

    def _next(self) -> tuple[GuardedConnection, object]:
        accepted, address = super().accept()
        one = GuardedConnection(self.family, self.type, self.proto, accepted.detach())
        with contextlib.suppress(OSError):
            said = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED)
            one.uid = int.from_bytes(said[4:8], sys.byteorder)
        return one, address

    def _real_close(self) -> None:
        """Close, and with it whom nobody has let in yet, whatever they have sent."""
        if self.ours and self.fileno() >= 0:
            # Nobody else comes meanwhile.
            self.shutdown(socket.SHUT_RDWR)
            try:
                while True:
                    self._next()[0].close()
            except OSError as error:
                if error.errno not in {errno.EINVAL, errno.EAGAIN}:
                    let_go(self.detach())
        super()._real_close()  # type: ignore[misc] # as below


class GuardedConnection(socket.socket):
    """A connection of a unix socket's, which ends where somebody sends a descriptor."""

    uid: int = -1
    """Who is at the other end, where that is known."""

    def __init__(self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None) -> None:  # noqa: A002 - the library's
        """Make it as every socket is made."""
        super().__init__(family, type, proto, fileno)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Read, as every socket does.  Raises `ConnectionAbortedError` where a descriptor waits."""
        some = self._waiting(size, flags)
        return super().recv(some, flags) if some else b""

    def recv_into(self, buffer: bytearray, nbytes: int = 0, flags: int = 0) -> int:  # type: ignore[override] # more
        """Read, as every socket does.  Raises `ConnectionAbortedError` where a descriptor waits."""
        some = self._waiting(nbytes or len(buffer), flags)
        return super().recv_into(buffer, some, flags) if some else 0

    def _waiting(self, size: int, flags: int) -> int:
        """Return how many bytes can be read at once, without what comes after them."""
        data, _, found, _ = self.recvmsg(min(size, _AT_ONCE), 0, flags | socket.MSG_PEEK)
        # What was sent with these bytes has no room in this look, and stays where it is.
        if found & socket.MSG_CTRUNC:
            raise ConnectionAbortedError(errno.ECONNABORTED, "a descriptor was sent, and none is taken")
        return len(data)

    def _real_close(self) -> None:
        """Close: `close` comes here when nobody reads any more."""
        if self._holds_some():
            # It ends also where it stays open for a while.
            with contextlib.suppress(OSError):
                self.shutdown(socket.SHUT_RDWR)
            let_go(self.detach(), self.uid)
        else:
            super()._real_close()  # type: ignore[misc] # the standard library's own, which typeshed does not know

    def _holds_some(self) -> bool:
        """Return whether a descriptor waits; nobody can send more afterwards."""
        try:
            self.shutdown(socket.SHUT_RD)
            while some := self._waiting(_AT_ONCE, socket.MSG_DONTWAIT):
                super().recv(some, socket.MSG_DONTWAIT)
        except ConnectionAbortedError:
            return True
        except OSError:
            pass  # nothing waits, or it is no connection yet
        return False


def let_go(number: int, uid: int = -1) -> None:
    """Close a descriptor without waiting for that, however long it may take; later, where no child can be had now.

    ``uid`` is whom it leads to.
    """
    _left.append((number, uid))
    close_left()


def owes(uid: int) -> bool:
    """Return whether of a user too much waits already to be closed."""
    return sum(1 for _, one in _left.copy() if one == uid) >= _MOST_OF_ONE


def close_left(*, last: bool = False) -> None:
    """Hand all that waits to one child, if there are few; ``last``: however many there are, as our end would wait."""
    if not _left and not _closers:
        return
    with _turn:
        _closers[:] = [one for one in _closers if one.poll() is None]
        if len(_closers) < _MOST:
            _told.clear()
        elif not last:
            if _left and not _told.is_set():
                _told.set()
                _log(
                    "%d processes wait for descriptors of %s to be closed, and more stay open", len(_closers), _whose()
                )
            return
        waiting = [_left.popleft() for _ in range(len(_left))]
        try:
            if waiting:
                _closers.append(_child([number for number, _ in waiting]))
        except (OSError, RuntimeError, MemoryError):
            _left.extendleft(reversed(waiting))


def _child(numbers: Sequence[int]) -> Process:
    """Start a child that has these descriptors open when they are closed here, and ends.  Raises as that may fail."""
    from xpucached.processes import child  # noqa: PLC0415 - nobody needs it whom nobody attacks

    with child.Pipes() as pipes:
        _, until = pipes.to_child()
        one = child.start(("cat",), variables={"PATH": child.search_path({})}, stdin=until, pipes=pipes, shared=numbers)
        for number in numbers:
            # Whatever it says, it is closed, and its number soon another's.
            with contextlib.suppress(OSError):
                os.close(number)
        # With the pipe, at whose end it ends.
    return one


def _most_open() -> int:
    import resource  # noqa: PLC0415 - only daemons ask

    return min(_MOST_OPEN, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)


def _whose() -> str:
    """Name whom most of what waits leads to."""
    most = Counter(uid for _, uid in _left.copy()).most_common(_NAMED)
    return ", ".join(f"user {uid}" if uid >= 0 else "an unknown user" for uid, _ in most)


def _log(message: str, *words: object) -> None:
    import logging  # noqa: PLC0415 - as above

    logging.getLogger(__name__).warning(message, *words)


atexit.register(close_left, last=True)
