"""How far it is, told to whoever started us, a few times a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from xpucached.domain.imports import EntriesCame

Progress = Callable[[int, int, str], None]
"""Is told how much is done, of how much (0: not known), and of what."""

Came = Callable[[EntriesCame], None]
"""Is told of entries before they are put into their stores, which waits for it, and of each as soon as it is there."""

_BEAT: Final = 0.2


class Paced:
    """Passes on what changed, but not more often than somebody can read it."""

    def __init__(self, tell: Progress) -> None:
        self._tell = tell
        self._last = ("", 0.0)

    def __call__(self, done: int, total: int, words: str) -> None:
        """Tell it, if it is time."""
        now = time.monotonic()
        if words != self._last[0] or now - self._last[1] >= _BEAT:
            self._last = (words, now)
            self._tell(done, total, words)
