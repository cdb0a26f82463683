"""What a test leaves must keep neither the next one nor the end of the run waiting."""

from __future__ import annotations

import threading
from concurrent.futures import thread as pools
from typing import TYPE_CHECKING, Final

from xpucached import deadlines, threads
from xpucached.processes import child

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

SOCKETS: Final[list[socket.socket]] = []
"""What is to be closed when the test has ended, and not sooner."""


def close() -> None:
    """Close the sockets of a test that has ended."""
    while SOCKETS:
        SOCKETS.pop().close()


def let_go(left: Iterable[threading.Thread]) -> None:
    """Wait for these threads no more: neither the interpreter at its end, nor the product where it counts them.

    A thread cannot be ended, and one that a failed test left waiting for something waits for ever.
    """
    for thread in left:
        if locks := getattr(threading, "_shutdown_locks", None):
            locks.discard(getattr(thread, "_tstate_lock", None))
        elif handle := getattr(thread, "_handle", None):  # since Python 3.13
            handle._set_done()
        pools._threads_queues.pop(thread, None)  # type: ignore[attr-defined] # there is no other way
    deadlines._stuck.clear()
    threads._DEFAULTS.clear()
    child._left.clear()
