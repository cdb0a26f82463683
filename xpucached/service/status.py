"""Status: how this host stands, put together from what the flows know."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from xpucached import __version__
from xpucached.catalog.figures import catalog_summary
from xpucached.catalog.shifts import unseen_shifts
from xpucached.catalog.stores import all_stores
from xpucached.catalog.surveys import driver_changes
from xpucached.domain.activity import Watching, WatchMode
from xpucached.domain.pushes import trouble as push_trouble
from xpucached.domain.status import Status
from xpucached.errors import CatalogError
from xpucached.host import pushes
from xpucached.planning import verdict as verdicts
from xpucached.service.problems import catalog_failing, not_watched

if TYPE_CHECKING:
    from datetime import datetime

    from xpucached.catalog.figures import Summary
    from xpucached.domain.host import DriverChange
    from xpucached.domain.models import ModelStatus
    from xpucached.domain.pushes import PushOutcome
    from xpucached.domain.shifts import Shift
    from xpucached.domain.stores import StoreStatus
    from xpucached.service.accounting import Accountant
    from xpucached.service.activity import ActivityTracker
    from xpucached.service.ahead import AheadPreparer
    from xpucached.service.context import Context
    from xpucached.service.explain import Explainer
    from xpucached.service.models import ModelKeeper
    from xpucached.service.prewarm import Prewarmer
    from xpucached.service.store_finder import StoreFinder

    _Known = tuple[
        tuple[ModelStatus, ...],
        Summary,
        tuple[StoreStatus, ...],
        tuple[DriverChange, ...],
        tuple[Shift, ...],
        PushOutcome | None,
        datetime | None,
    ]


class StatusKeeper:
    """Tells how this host stands."""

    def __init__(
        self,
        context: Context,
        finder: StoreFinder,
        models: ModelKeeper,
        prewarmer: Prewarmer,
        explainer: Explainer,
        tracker: ActivityTracker,
        accountant: Accountant,
        ahead: AheadPreparer,
    ) -> None:
        self._context = context
        self._finder = finder
        self._models = models
        self._prewarmer = prewarmer
        self._explainer = explainer
        self._tracker = tracker
        self._accountant = accountant
        self._ahead = ahead
        self._started = context.clock()
        self._watching = Watching()
        self._last: Status | None = None

    def take_watch(self, mode: WatchMode, reason: str, *, loads: bool, unwatched: str) -> None:
        """Hear how changes are noticed, why not better, and why not everything is watched; empty if all is."""
        self._watching = Watching(mode, reason, loads)
        self._accountant.watches = (loads, mode in {WatchMode.FANOTIFY, WatchMode.CLASSIC})
        if unwatched:
            self._context.problems.note(not_watched(unwatched))
        else:
            self._context.problems.clear("not-watched")

    async def get(self) -> Status:
        """Return how this host stands; by what was known before, if the catalog fails."""
        try:
            status = self._last = await self._get()
        except CatalogError as error:
            if self._last is None:
                raise
            problem = catalog_failing(error.message, error.hint)
            others = tuple(one for one in self._last.problems if one.code != problem.code)
            status = replace(self._last, problems=(*others, problem))
        return status

    async def _get(self) -> Status:
        context, catalog = self._context, self._context.catalog
        # What is said of the driver and of the models is of one host, whatever a survey finds meanwhile.
        host, present, running = context.host, context.present, self._prewarmer.running
        due = context.notices != context.noticed

        def look() -> _Known:
            # One way into a thread and back: while a scan has the processor, each way costs milliseconds.
            with catalog.moment():
                return (
                    self._prewarmer.statuses_now(present, running),
                    catalog.read(catalog_summary),
                    catalog.read(all_stores),
                    catalog.read(driver_changes, 5),
                    catalog.read(unseen_shifts),
                    pushes.last(context.settings.paths.state),
                    pushes.set_up(context.settings.bundles.push, context.settings.file),
                )

        models, summary, stores, changes, shifts, pushed, set_up = await asyncio.to_thread(look)
        saved = await self._accountant.saved()
        trouble = catalog.trouble
        push = push_trouble(pushed, set_up, self._started, context.clock())
        problems = (
            *((*verdicts.of_system(host, models), *verdicts.of_drivers(host)) if host else ()),
            *self._models.problems,
            *self._finder.problems,
            *self._explainer.problems(models),
            *context.settings_problems,
            *context.problems.all(),
            *([push] if push else []),
            *([catalog_failing(trouble.message, trouble.hint)] if trouble else []),
        )
        verdict, sentence = verdicts.verdict(host, models, problems, starting=not context.ready)
        return Status(
            __version__,
            verdict,
            sentence,
            os.getpid(),
            self._started,
            host,
            problems,
            summary.entries,
            summary.defective,
            summary.allocated,
            summary.stale,
            stores,
            models,
            context.jobs.running(),
            changes,
            replace(self._watching, compiled=self._tracker.compiled, compiling=self._tracker.compiling),
            context.looked,
            context.settings.schedule.scan_interval,
            due,
            context.is_busy(),
            saved,
            self._ahead.shown,
            self._ahead.refused,
            shifts,
            pushed,
        )
