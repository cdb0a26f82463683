"""A user's daemon: one module for each flow, each a walk down the spine *observe → decide → act → record*.

What all of them share is in `context`.  Looks: `reconcile`, `survey` (the host), `scan` (the stores, which
`store_finder` finds), `models` (their files), `activity` (what programs do).  What follows from them, or is asked for:
`verify` with `compare`, `taking` (of bundles), `replay` with `rebuild` and `publish`, `ahead` (a replay for a driver
that is to come), `prewarm` with `turns`, `trial`, `proofs` and `throttle`, `evict` and `trash`; `removals` finishes
those of a dead daemon; `upkeep` does these unasked, and `automatic` shows what fails.  Answers: `status`, `explain`,
`accounting`; which function answers which request says `handlers`.  Everything that blocks runs in threads.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from xpucached import systemd
from xpucached.catalog.defects import note_defects
from xpucached.catalog.intents import open_intents
from xpucached.catalog.models import all_models
from xpucached.catalog.runs import close_lost_runs, note_ending, open_runs
from xpucached.errors import CatalogError
from xpucached.kinds import table
from xpucached.service import automatic, cache_files, recordings, removals
from xpucached.service.accounting import Accountant
from xpucached.service.activity import ActivityTracker
from xpucached.service.ahead import AheadPreparer
from xpucached.service.compare import EntryComparer
from xpucached.service.disk import DiskReporter
from xpucached.service.evict import Evictor
from xpucached.service.explain import Explainer
from xpucached.service.jobs import ENDING, SAVING
from xpucached.service.model_caches import ModelCaches
from xpucached.service.models import ModelKeeper
from xpucached.service.owners import answers
from xpucached.service.prewarm import Prewarmer
from xpucached.service.reconcile import Reconciler
from xpucached.service.replay import Replayer
from xpucached.service.scan import StoreScanner
from xpucached.service.shifts import ShiftKeeper
from xpucached.service.status import StatusKeeper
from xpucached.service.store_finder import StoreFinder
from xpucached.service.survey import Surveyor
from xpucached.service.taking import BundleTaker
from xpucached.service.trash import TrashKeeper
from xpucached.service.upkeep import Upkeep
from xpucached.service.verify import Verifier
from xpucached.threads import STOP

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from xpucached.processes.supervised import ProcessStarter
    from xpucached.service.context import Context


class Service:
    """The flows of one daemon, and how they begin and end.  Used from one event loop."""

    def __init__(self, context: Context, starter: ProcessStarter) -> None:
        self.context = context
        self._starter = starter
        self._log = logging.getLogger(__name__)
        self.surveyor = Surveyor(context)
        self.finder = StoreFinder(context)
        self.scanner = StoreScanner(context, self.finder)
        self.caches = ModelCaches(context)
        self.models = ModelKeeper(context, self.finder, self.surveyor, self.caches)
        self.tracker = ActivityTracker(context, self.scanner)
        self.shifts = ShiftKeeper(context)
        self.prewarmer = Prewarmer(context, self.scanner, self.surveyor, starter, self.shifts)
        self.explainer = Explainer(context, self.finder, self.prewarmer)
        self.trash = TrashKeeper(context, self.scanner, self.caches)
        self.replayer = Replayer(context, self.scanner, self.trash, starter)
        self.ahead = AheadPreparer(context, self.replayer, self.prewarmer.throttle)
        self.verifier = Verifier(context, self.scanner, EntryComparer(context, self.scanner, starter))
        self.evictor = Evictor(context, self.scanner, self.prewarmer, self.verifier, self.trash, self.caches)
        self.accountant = Accountant(context, self.prewarmer, self.evictor)
        parts = self.finder, self.models, self.prewarmer, self.explainer, self.tracker
        self.status = StatusKeeper(context, *parts, self.accountant, self.ahead)
        does = self.verifier, self.replayer, self.prewarmer, self.evictor, self.trash, self.ahead
        self.taker = BundleTaker(context, self.scanner)
        self.upkeep = Upkeep(context, self.surveyor, *does, self.taker)
        looks = self.models, self.surveyor, self.scanner, self.explainer, self.replayer
        self.reconciler = Reconciler(context, *looks, self.upkeep, self.ahead)
        self.disk = DiskReporter(context, self.prewarmer, self.evictor, self.trash, self.caches)
        context.is_busy = lambda: self.busy

    async def recover(self) -> None:
        """Finish what a predecessor that was killed had begun, and say anew what the kinds know of defects."""
        context = self.context
        async with systemd.starting():
            await context.write(note_defects, table.defects())
            orphans = await self._starter.end_orphans()
            # What its runs told in files, nobody else takes away.
            managed = [self.finder.managed(name) for name in table.KINDS]
            await asyncio.to_thread(lambda: recordings.clear([one for one in managed if answers(one.store.root)]))
            began = await context.read(open_runs)
            for model in await context.read(all_models) if began else ():
                if (at := began.get(model.name)) is not None:
                    await asyncio.to_thread(cache_files.drop_begun, context.settings, model, int(at.timestamp() * 1e9))
            lost = await context.write(close_lost_runs, context.clock())
            intents = await context.read(open_intents)
            await removals.finish(context, intents)
            if orphans or lost or intents:
                self._log.info(
                    "recovered: %d processes ended, %d runs lost, %d removals looked at", orphans, lost, len(intents)
                )

    @property
    def busy(self) -> bool:
        """Whether something goes on, or has yet to begin."""
        return not self.context.ready or self.upkeep.busy or bool(self.context.jobs.running())

    async def keep(self) -> None:
        """Write down, for ever, what happens and how models stand."""
        await asyncio.gather(self.context.events.keep(), self.accountant.keep())

    async def stop(self, seconds: float = STOP) -> None:
        """No new work; what runs is ended and recorded as cancelled, also if we are killed before that is done.

        What does not end is left as it is so early that the rest can be saved in so many ``seconds``.
        """
        context, loop = self.context, asyncio.get_running_loop()
        until = loop.time() + seconds - 2 * SAVING
        await self._save("runs that go on", context.write(note_ending))
        ends = [asyncio.create_task(one.stop()) for one in (self.reconciler, context.jobs, self.accountant)]
        # What waits in a store that does not answer is left as it is, as it would be if we were killed.
        _, late = await asyncio.wait(ends, timeout=max(0.0, min(ENDING, until - loop.time())))
        await self._save("what programs did", self._digest())
        # What goes on all the same may still say something, under a number that nobody is given again.
        await self._save("events", context.events.flush(last=not late and not context.jobs.running()))

    async def _digest(self) -> None:
        async with self.context.automatic.part(automatic.ACTIVITY):
            await self.tracker.digest(last=True)

    async def _save(self, what: str, saving: Awaitable[object]) -> None:
        """Write something down before the end, unless that takes too long."""
        try:
            async with asyncio.timeout(SAVING):
                await saving
        except (CatalogError, TimeoutError) as error:
            self._log.warning("not written down before the end: %s: %s", what, error)
