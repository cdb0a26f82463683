"""Which workers that nobody waits for do their first work now: few at a time, and none keeps the others waiting."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_AT_ONCE: Final = 2
"""So many at the same time: a host whose driver changed has others to serve."""

_LONG: Final = 120.0
"""Seconds after which one that has not finished goes on, and the next one begins beside it."""

_MOST: Final = 16
"""So many at most, of whom all but the few go on for long."""


class WorkTurns:
    """Turns, in the order in which they are asked for.  Used from one event loop."""

    def __init__(self) -> None:
        self._few = asyncio.Semaphore(_AT_ONCE)
        self._all = asyncio.Semaphore(_MOST)

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for one's turn, and have it."""
        async with self._all:
            await self._few.acquire()
            given = False

            def give() -> None:
                nonlocal given
                if not given:
                    given = True
                    self._few.release()

            late = asyncio.get_running_loop().call_later(_LONG, give)
            try:
                yield
            finally:
                late.cancel()
                give()
