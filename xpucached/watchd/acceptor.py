"""Lets clients in, unless there is no room for one more: then they wait outside, and who is in is served."""

from __future__ import annotations

import selectors
import socket
import time
from typing import TYPE_CHECKING, Final

from xpucached import shortage

if TYPE_CHECKING:
    from collections.abc import Callable

REST: Final = 1.0
"""Seconds for which nobody is let in, once there is no room."""


class Acceptor:
    """The sockets at which clients connect; who it is cannot be seen before somebody is in."""

    def __init__(
        self, selector: selectors.BaseSelector, take: Callable[[socket.socket], None], full: Callable[[], bool]
    ) -> None:
        """``take`` gets who is let in; ``full`` tells whether nobody can be."""
        self._selector = selector
        self._take = take
        self._full = full
        self._until = 0.0
        self.resting: list[socket.socket] = []

    def open(self, listener: socket.socket) -> None:
        """Let in whoever connects."""
        self._selector.register(listener, selectors.EVENT_READ, lambda: self.accept(listener))

    def accept(self, listener: socket.socket) -> None:
        """Let one in."""
        try:
            self._take(listener.accept()[0])
        except BlockingIOError:
            return
        except OSError as error:
            if not shortage.is_ours(error):
                return
        else:
            if not self._full():
                return
        # Whoever waits there would wake us again and again.
        self._selector.unregister(listener)
        self.resting.append(listener)
        self._until = time.monotonic() + REST

    def resume(self) -> None:
        """Go on, if there is room again."""
        if self.resting and time.monotonic() >= self._until and not self._full():
            while self.resting:
                self.open(self.resting.pop())
