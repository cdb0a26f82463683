"""Act: how a child behaves towards others, and how it is made to stand still; speaks with its supervisor."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from xpucached.domain.throttling import RunPriority

_PACE: Final = 1.0
"""Seconds between questions whether a child must stand still."""


@dataclass(frozen=True, slots=True)
class RunLimits:
    """How a child behaves towards others on the host."""

    run_priority: RunPriority
    pause: Callable[[int], bool] | None = None  #: asked with the number of the child's supervisor, about once a second
    max_wait: float = 3600.0  #: seconds that it may stand still in all
    isolate: bool = True  #: in a control group of its own
    tasks: int = 4096


class PauseControl:
    """Lets a child stand still while somebody says so, and counts how long it did."""

    def __init__(self, run_limits: RunLimits | None, pid: int, orders: int) -> None:
        """``pid`` is the supervisor, ``orders`` the descriptor on which it takes them."""
        self._pause = run_limits.pause if run_limits is not None else None
        self._patience = run_limits.max_wait if run_limits is not None else 0.0
        self._pid = pid
        self._orders = orders
        self._next = 0.0
        self._since: float | None = None
        self._before = 0.0
        self._now = 0.0

    @property
    def paused(self) -> float:
        """Seconds that it stood still, until the last step."""
        return self._before + (self._now - self._since if self._since is not None else 0.0)

    def step(self, now: float) -> None:
        """Ask, if it is time to, and see that the child stands still or goes on; ``now`` is monotonic."""
        self._now = now
        if self._pause is None or now < self._next:
            return
        self._next = now + _PACE
        # Asked in any case: whoever answers measures from one question to the next.
        must = self._pause(self._pid) and self.paused < self._patience
        if must and self._since is None:
            self._since = now
            self.say(b"p")
        elif not must and self._since is not None:
            self._before, self._since = self.paused, None
            self.say(b"c")

    def say(self, orders: bytes) -> None:
        """Give the supervisor orders, if it is still there."""
        with contextlib.suppress(OSError):
            os.write(self._orders, orders)
