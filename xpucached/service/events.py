"""What happened, said to the log, to whoever follows, and written down some moments later."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final

from xpucached.catalog.events import events_after, newest_events, record_events
from xpucached.domain.jobs import Event
from xpucached.domain.secrecy import of_event
from xpucached.errors import CatalogError
from xpucached.incidents import unexpected
from xpucached.printing import encodable

if TYPE_CHECKING:
    from xpucached.catalog import Catalog

log = logging.getLogger(__name__)
journal = logging.getLogger("xpucached.events")

Clock = Callable[[], datetime]

LOST: Final = "events-lost"
"""The topic of what a reader is told who missed something."""

_AT_HAND: Final = 1000
"""Events in memory: most readers need no others."""
_UNWRITTEN: Final = 5000
"""Events that wait for a catalog that cannot be written; of more, the oldest are lost."""
_RESERVED: Final = 1000
"""After a death so many numbers are left out: they may have been given to what was not written down any more."""
_LONGEST: Final = 4000
"""Characters of a message, and of each field."""
_GATHER: Final = 0.5
"""Seconds in which events are gathered before they are written."""
_RETRY: Final = 5.0
"""Seconds between attempts to write."""


class Events:
    """The newest events; a reader that is too slow misses the oldest, never holds anybody up."""

    def __init__(self, clock: Clock, catalog: Catalog | None = None) -> None:
        """Without a catalog they are in memory only."""
        self._clock = clock
        self._catalog = catalog
        reserved, kept = (0, ()) if catalog is None else catalog.read(newest_events, _AT_HAND)
        self._kept: deque[Event] = deque(kept, maxlen=_AT_HAND)
        self._unwritten: deque[Event] = deque()
        self._lost = 0
        self._last = self._reserved = reserved
        self.began = reserved
        """The number of the last event that an earlier daemon may have posted."""
        self._news = asyncio.Event()

    def post(self, topic: str, message: str, fields: Mapping[str, str] | None = None) -> Event:
        """Say something: to the log, and to whoever follows."""
        self._last += 1
        event = Event(
            self._last,
            self._clock(),
            topic,
            _bounded(message),
            {name: _bounded(text) for name, text in (fields or {}).items()},
        )
        self._kept.append(event)
        if self._catalog is not None:
            self._unwritten.append(event)
            if len(self._unwritten) > _UNWRITTEN:
                self._unwritten.popleft()
                self._lost += 1
        # The journal has other readers than our user.
        journal.info("%s: %s", topic, of_event(event).message)
        journal.debug("%s: %s", topic, event.message)
        self._news.set()
        self._news = asyncio.Event()
        return event

    # -- for readers ----------------------------------------------------------------------------------------------

    async def since(self, last: int, wait: float = 0.0) -> tuple[Event, ...]:
        """Return the events after one that was seen, 0 for all; first of them one that says so if some were missed.

        Where there is none yet, wait for one, so many seconds at most.
        """
        if last == self._last and wait > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._news.wait()
        if last > self._last:
            words = f"there was no event {last}: the catalog is another one, and its events begin anew"
            return (self._notice(0, words), *await self.since(0))
        at_hand = self._kept[0].id if self._kept else self._last + 1
        oldest, older = at_hand, tuple[Event, ...]()
        if self._catalog is not None and last + 1 < at_hand:
            # What fails the catalog is shown as a problem; what is in memory is told all the same.
            with contextlib.suppress(CatalogError, RuntimeError):
                first, older = await asyncio.to_thread(self._catalog.read, events_after, last)
                oldest = at_hand if first is None else min(first, at_hand)
        seen = older[-1].id if older else last
        newer = {event.id: event for event in (*self._unwritten, *self._kept) if event.id > seen}
        missed = (self._notice(oldest - 1, f"events up to {oldest - 1} are no longer kept"),)
        return (*(missed if 0 < last < oldest - 1 else ()), *older, *(newer[number] for number in sorted(newer)))

    def _notice(self, number: int, words: str) -> Event:
        return Event(number, self._clock(), LOST, words, {"until": str(number)})

    async def subscribe(self, last: int) -> AsyncIterator[Event]:
        """Yield the events after one that was seen, and then each as it comes, without end."""
        while True:
            news = self._news
            for event in await self.since(last):
                last = event.id
                yield event
            await news.wait()

    # -- for the catalog ------------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Write down, for ever, what is posted."""
        while True:
            news = self._news
            if not self._unwritten:
                await news.wait()
            await asyncio.sleep(_GATHER if await self.flush() else _RETRY)

    async def flush(self, *, last: bool = False) -> bool:
        """Write down what is not yet; with ``last`` no more will come.  Tells whether all is written; never raises."""
        if self._catalog is None or not (self._unwritten or last or self._reserved == self._last):
            return True
        batch, reserved = tuple(self._unwritten), self._last + (0 if last else _RESERVED)
        try:
            await asyncio.to_thread(self._catalog.write, record_events, batch, reserved)
            self._reserved = reserved
        except CatalogError as error:
            log.info("%d events wait until the catalog can be written: %s", len(batch), error.message)
            return False
        except Exception as error:  # noqa: BLE001 - what is only told must not stop what is done
            unexpected(log, f"while {len(batch)} events were written down", error)
            self._lost += len(batch)
        while self._unwritten and batch and self._unwritten[0].id <= batch[-1].id:
            self._unwritten.popleft()
        if self._lost and not last:
            lost, self._lost = self._lost, 0
            self.post(LOST, f"{lost} events could not be kept, because the catalog could not be written")
        return True


def _bounded(text: str) -> str:
    """Return what can be stored and sent: as long as it may be, and what is no Unicode written out."""
    return encodable(text[:_LONGEST])
