"""When the host's daemon looks again, and whether at everybody."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

_SETTLING: Final = 10
"""So many times what somebody says meanwhile is waited for."""


class Rounds:
    """Rounds: one for everybody in each period, and one for each word that something may have changed.

    Whoever changes his line of the password file makes somebody say such a word.  So none of them moves the next round
    for everybody.  Used from one event loop.
    """

    def __init__(self) -> None:
        self._word = asyncio.Event()
        self._words = 0
        self._everybody = False
        self._last: float | None = None
        """When the last round for everybody was, on the loop's clock."""

    def ask(self, *, everybody: bool = False) -> None:
        """Hear that something may have changed; ``everybody`` is to be looked at for it."""
        self._words += 1
        self._everybody = self._everybody or everybody
        self._word.set()

    async def next(self, every: float, quiet: float) -> bool:
        """Wait until it is time for a round; whether it is one for everybody.

        ``every`` is their period, and ``quiet`` for how long nobody may say anything more: in the middle of a
        transaction half of a driver is there.
        """
        loop = asyncio.get_running_loop()
        if self._last is None:
            self._last = loop.time()
        due = self._last + every
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(due):
                await self._word.wait()
        unasked = not self._word.is_set()
        for _ in range(_SETTLING):
            before = self._words
            self._word.clear()
            await asyncio.sleep(quiet)
            if self._words == before:
                break
        if not (unasked or self._everybody or loop.time() >= due):
            return False
        self._everybody, self._last = False, loop.time()
        return True
