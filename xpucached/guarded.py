"""Sockets over which nobody hands us a descriptor.  Touches sockets.

The kernel closes what was sent with bytes and is not taken, in the thread that reads the bytes or closes the
connection; and to close a TCP socket may take as long as who sent it likes (``SO_LINGER``, up to centuries).  Linux can
refuse descriptors since 6.16 (`sockets.refuse_descriptors`), from who connects after that was said.  So what waits is
looked at before it is read, and a connection where some wait is closed by a thread that ends: there the kernel does not
wait.  A byte that was sent as urgent (``MSG_OOB``) is one like the others: a look would pass it over otherwise, with
the descriptors that it brings, and it would lie there and wake us for ever.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections import deque
from typing import Final

_AT_ONCE: Final = 1 << 16
_CLONE_FILES: Final = 0x400
_left: Final[deque[int]] = deque()
"""Descriptors for whose closing there was no thread."""


class GuardedListener(socket.socket):
    """A unix socket that listens, and whose connections are guarded."""

    ours: bool = False
    """Whether nobody else has it open: one of systemd's goes on when we close it."""

    def accept(self) -> tuple[GuardedConnection, object]:
        """Return the next connection, and its address."""
        close_left()
        one, address = super().accept()
        return GuardedConnection(self.family, self.type, self.proto, one.detach()), address

    def _real_close(self) -> None:
        """Close, and with it whom nobody has let in yet, whatever they have sent."""
        if self.ours and self.fileno() >= 0:
            # Nobody else comes meanwhile.
            self.shutdown(socket.SHUT_RDWR)
            let_go(self.detach())
        else:
            super()._real_close()  # type: ignore[misc] # as below


class GuardedConnection(socket.socket):
    """A connection of a unix socket's, which ends where somebody sends a descriptor."""

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
            let_go(self.detach())
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


def let_go(number: int) -> None:
    """Close a descriptor without waiting for that, however long it may take; later, where no thread can be had now."""
    _left.append(number)
    close_left()


def close_left() -> None:
    """Close what waits for a thread, if one can be had."""
    for _ in range(len(_left)):
        try:
            number = _left.popleft()
        except IndexError:
            return
        try:
            _close_apart(number)
        except (RuntimeError, MemoryError):
            _left.append(number)
            return


def _close_apart(number: int) -> None:
    """Close a descriptor by a thread that ends.  Raises `RuntimeError` where none can be had."""
    begun, closed = threading.Event(), threading.Event()
    alone = False

    def end() -> None:
        nonlocal alone
        alone = _with_own_table()
        begun.set()
        if alone:
            # It is open in this thread's table alone then, and closed with that.
            closed.wait()
        else:
            os.close(number)

    threading.Thread(target=end, name="closing", daemon=True).start()
    begun.wait()
    if alone:
        os.close(number)
        closed.set()


def _with_own_table() -> bool:
    """Give this thread a table of descriptors of its own, with all that are open now; tell whether it has one."""
    try:
        import ctypes  # noqa: PLC0415 - nobody needs it whom nobody attacks

        return bool(ctypes.CDLL(None).unshare(_CLONE_FILES) == 0)
    except (ImportError, MemoryError, OSError, AttributeError):
        return False
