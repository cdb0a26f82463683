"""Accounts: who uses which bytes, what was saved, and how models stood over time.

What reads every entry is reckoned in a thread, and remembered until something was written; of a large catalog for
twenty times as long as it took, so that looking often costs little.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from msgspec.structs import replace

from xpucached import __version__
from xpucached.catalog import days, usage
from xpucached.catalog.figures import catalog_summary
from xpucached.domain.models import Warmth
from xpucached.domain.overview import Overview, OverviewModel, UnderWay
from xpucached.domain.status import Verdict
from xpucached.domain.usage import Usage
from xpucached.errors import CatalogError
from xpucached.incidents import unexpected
from xpucached.planning import usage as planning
from xpucached.planning.ranking import RATE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from xpucached.api import looking
    from xpucached.domain.models import ModelStatus
    from xpucached.domain.names import ModelName
    from xpucached.domain.status import Status
    from xpucached.domain.usage import Day, Evictable, Saved, WarmthChange
    from xpucached.service.context import Context
    from xpucached.service.evict import Evictor
    from xpucached.service.prewarm import Prewarmer

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_COSTLY: Final = 100
"""Entries that are remembered as the dearest."""
_DEAR: Final = 20
"""Of these, those in an overview."""
_FACTOR: Final = 20.0
"""An answer is as good as new for so many times as long as it took."""
_QUICK: Final = 0.25
"""Seconds: what takes longer is not waited for, if there is an older answer."""
_GATHER: Final = 0.5
_RETRY: Final = 10.0
_MONTH: Final = 30
_MODELS: Final = 200
_CHANGES: Final = 500
_UPGRADES: Final = 5


class Remembered(Generic[T]):
    """An answer from the catalog that is reckoned again only when it may be another."""

    def __init__(self, context: Context, reckon: Callable[[], Awaitable[T]]) -> None:
        self._context = context
        self._reckon = reckon
        self._value: T | None = None
        self._writes = -1
        self._fresh_until = 0.0
        self._took = 0.0
        self._task: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return the answer, or an older one while another that takes long is reckoned.  Raises as reckoning does."""
        if self._value is not None:
            if self._writes == self._context.catalog.writes or time.monotonic() < self._fresh_until:
                return self._value
            if self._took > _QUICK:
                self._begin()
                return self._value
        return await asyncio.shield(self._begin())

    def _begin(self) -> asyncio.Task[T]:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="accounts")
            # Who does not wait for it does not hear how it failed either.
            self._task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._task

    async def _work(self) -> T:
        began, writes = time.monotonic(), self._context.catalog.writes
        value = self._value = await self._reckon()
        self._took, self._writes = time.monotonic() - began, writes
        self._fresh_until = time.monotonic() + _FACTOR * self._took
        return value

    async def stop(self) -> None:
        """Wait for nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


class Accountant:
    """Tells what is there, what it costs and what it saved; and writes down how models stand."""

    def __init__(self, context: Context, prewarmer: Prewarmer, evictor: Evictor) -> None:
        self._context = context
        self._prewarmer = prewarmer
        self._evictor = evictor
        self._usage = Remembered(context, lambda: asyncio.to_thread(self._look))
        self._evictable = Remembered(context, self._plan)
        self._saved = Remembered(context, lambda: context.read(usage.saved, context.clock()))
        self._upgrades = Remembered(context, lambda: context.read(usage.upgrade_costs, _UPGRADES))
        self._news = asyncio.Event()
        self.watches = (False, False)
        """Whether it is seen what programs load, and what they write."""
        context.on_settled = self._news.set
        context.jobs.on_end = self._news.set

    # -- what is there ------------------------------------------------------------------------------------------------

    async def usage(self, top: int = _DEAR) -> Usage:
        """Return who uses which bytes, with so many of the dearest entries."""
        found = await self._usage.get()
        return replace(found, dearest=found.dearest[:top])

    def _look(self) -> Usage:
        context = self._context
        with context.catalog.moment():
            read = context.catalog.read
            now, rate = context.clock(), read(usage.rate, RATE)
            total, kinds, drivers, devices, here = read(usage.totals, rate)
            models, own, shared = read(usage.model_usage, rate)
            nobody = usage.less(here, usage.together((own, shared)))
            dearest = tuple(planning.costly(one, rate) for one in read(usage.dearest, MOST_COSTLY))
        context.compile_rate = rate
        return Usage(now, rate, total, kinds, drivers, devices, models, shared, nobody, dearest)

    async def evictable(self) -> Evictable:
        """Return what eviction would take now."""
        return await self._evictable.get()

    async def _plan(self) -> Evictable:
        plan, rate = await self._evictor.plan(), await self.rate()
        return await asyncio.to_thread(planning.evictable, plan, rate, self._context.clock())

    async def rate(self) -> float:
        """Return the seconds that a byte is estimated to take."""
        return (await self._usage.get()).rate

    # -- what was -----------------------------------------------------------------------------------------------------

    async def saved(self) -> Saved:
        """Return what programs did not have to wait for."""
        return await self._saved.get()

    async def days(self, asked: looking.ListDays) -> tuple[Day, ...]:
        """Return what happened each day."""
        return await self._context.read(days.days_between, asked.since, asked.until)

    async def warmth(self, asked: looking.ListWarmth) -> tuple[WarmthChange, ...]:
        """Return how models came to stand otherwise."""
        return await self._context.read(days.warmth_changes, asked.since, asked.model, asked.limit)

    # -- written down -------------------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Write down, for ever, how models stand and what the stores hold."""
        while True:
            await self._news.wait()
            await asyncio.sleep(_GATHER)
            self._news.clear()
            try:
                await self._note()
            except CatalogError as error:
                log.info("how models stand could not be written down: %s", error.message)
                await asyncio.sleep(_RETRY)
                self._news.set()
            except Exception as error:  # noqa: BLE001 - what is only told must not stop what is done
                unexpected(log, "while it was written down how models stand", error)

    async def _note(self) -> None:
        context = self._context
        if not context.ready:
            return
        models = await self._prewarmer.statuses()

        def note() -> None:
            now = context.clock()
            summary = context.catalog.read(catalog_summary)
            context.catalog.write(days.note_state, now, summary.entries, summary.allocated)
            # Nothing seen and not watched are two things.
            loads, files = self.watches
            seen = {"loads": 0, "avoided_seconds": 0.0, "estimated_seconds": 0.0} if loads else {}
            seen |= {"compiled": 0} if files else {}
            if seen:
                context.catalog.write(days.add, now, **seen)
            context.catalog.write(days.note_warmth, models, now)

        await asyncio.to_thread(note)

    async def stop(self) -> None:
        """Reckon nothing any more."""
        for one in (self._usage, self._evictable, self._saved, self._upgrades):
            await one.stop()

    # -- all of it ----------------------------------------------------------------------------------------------------

    async def overview(self, status: Status) -> Overview:
        """Return all that there is to look at, as the host stands."""
        context = self._context
        found, going = await self.usage(), await self.evictable()
        saved, upgrades = await self._saved.get(), await self._upgrades.get()

        def read() -> tuple[tuple[Day, ...], tuple[WarmthChange, ...], dict[ModelName, datetime]]:
            with context.catalog.moment():
                return (
                    context.catalog.read(days.days_back, context.clock(), _MONTH),
                    context.catalog.read(days.warmth_changes, None, None, _CHANGES),
                    context.catalog.read(days.standing_since),
                )

        month, warmth, since = await asyncio.to_thread(read)
        models = tuple(_model(one, since.get(one.model.name)) for one in status.models[:_MODELS])
        known = [since[one.model.name] for one in status.models if one.model.name in since]
        codes = [one.code for one in status.problems]
        return Overview(
            context.clock(),
            __version__,
            socket.gethostname(),
            status.verdict,
            status.sentence,
            max(known) if status.verdict is Verdict.WARM and len(known) == len(status.models) and known else None,
            status.started,
            status.watching.loads,
            saved,
            found,
            going,
            models,
            warmth,
            month,
            upgrades,
            _under_way(status),
            status.defective,
            {code: codes.count(code) for code in sorted(set(codes))},
        )


def _model(one: ModelStatus, since: datetime | None) -> OverviewModel:
    now = None if one.warmth is Warmth.WARMING else since
    return OverviewModel(one.model.name, one.warmth, one.why, one.entries, one.allocated, now)


def _under_way(status: Status) -> tuple[UnderWay, ...]:
    jobs = [
        UnderWay(one.id, one.progress.detail, one.progress.done, one.progress.total, one.started) for one in status.jobs
    ]
    programs = [
        UnderWay(f"{one.program.label} (pid {one.program.pid})", "compiles, unasked", one.entries, 0, one.since)
        for one in status.watching.compiling
    ]
    return (*jobs, *programs)
