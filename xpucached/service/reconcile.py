"""Reconcile: the way from a wake to a changed host, and looks that somebody asks for."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from xpucached.catalog.stores import all_stores
from xpucached.domain.triggers import DriverChanged, KeysChanged, ModelsChanged, Periodic, Started, StoreChanged
from xpucached.errors import CatalogError
from xpucached.service import automatic, deriving, predicting
from xpucached.service.paths import real_paths
from xpucached.service.problems import catalog_rebuilt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xpucached.api import requests
    from xpucached.domain.jobs import Job
    from xpucached.domain.reports import ScanReport
    from xpucached.domain.triggers import Trigger
    from xpucached.service.ahead import AheadPreparer
    from xpucached.service.context import Context
    from xpucached.service.explain import Explainer
    from xpucached.service.jobs import Handle
    from xpucached.service.models import ModelKeeper
    from xpucached.service.replay import Replayer
    from xpucached.service.scan import StoreScanner
    from xpucached.service.survey import Surveyor
    from xpucached.service.upkeep import Upkeep

_RETRY: Final = 5.0
_LONGEST_RETRY: Final = 600.0
"""Seconds after which to look again when a part of a look has failed: each time twice as many, up to this."""
_MOST_DOUBLED: Final = 10
"""So often they are doubled: what fails for weeks comes to no number that is too large."""

log = logging.getLogger(__name__)


class Reconciler:
    """Looks, and then lets be done what follows from it."""

    def __init__(
        self,
        context: Context,
        models: ModelKeeper,
        surveyor: Surveyor,
        scanner: StoreScanner,
        explainer: Explainer,
        replayer: Replayer,
        upkeep: Upkeep,
        ahead: AheadPreparer,
    ) -> None:
        self._context = context
        self._models = models
        self._surveyor = surveyor
        self._scanner = scanner
        self._explainer = explainer
        self._replayer = replayer
        self._upkeep = upkeep
        self._ahead = ahead
        self._examining: asyncio.Task[None] | None = None
        self._missed = 0
        self._say_if_rebuilt()

    def _say_if_rebuilt(self) -> None:
        context, message = self._context, self._context.catalog.rebuilt
        if message:
            log.warning("%s", message)
            context.events.post("catalog-rebuilt", message)
            context.problems.note(catalog_rebuilt(message))
        elif missing := context.catalog.incomplete:
            context.problems.note(catalog_rebuilt(missing))

    def _see_whether_complete(self) -> None:
        """Show that the catalog is a new one only while models may be missing, once all is looked at anew."""
        context = self._context
        if missing := context.catalog.incomplete:
            context.problems.note(catalog_rebuilt(missing))
        else:
            context.problems.clear("catalog-rebuilt")

    async def reconcile(self, triggers: Iterable[Trigger]) -> float | None:
        """Look at what may have changed, then see that models are warm, and then that the stale goes.

        Each part for itself: what fails is shown, and stops no other.  Gives the seconds after which to look again, if
        something is not settled yet.
        """
        context, parts, renewed = self._context, self._context.automatic, False
        async with parts.part(automatic.CATALOG):
            if renewed := await asyncio.to_thread(context.catalog.mend):
                self._say_if_rebuilt()
        if not context.catalog.examined and (self._examining is None or self._examining.done()):
            self._examining = asyncio.create_task(self._examine(), name="examine")
        began, notices = context.clock(), context.notices
        triggers = frozenset(triggers)
        kinds = {type(trigger) for trigger in triggers}
        if KeysChanged in kinds:
            # No look is needed for that, nor is the end of what is under way waited for.
            self._upkeep.revoke()
        whole = renewed or bool(kinds & {Started, DriverChanged, Periodic})  # a new catalog knows no store yet
        async with context.locks.looking:
            if whole or ModelsChanged in kinds:
                async with parts.part(automatic.MODELS):
                    await self._models.load()
                async with parts.part(automatic.SURVEY):
                    # Models' own variables say which drivers there are to be asked; a new catalog knows no answer yet.
                    await self._surveyor.survey(force=renewed or Started in kinds)
                    await asyncio.to_thread(self._scanner.finder.make_offered)
                async with parts.part(automatic.RUNTIMES):
                    await self._explainer.look()
            async with parts.part(automatic.SCAN):
                await self._look_at_stores(triggers, booted=Started in kinds, whole=whole)
            async with parts.part(automatic.FORETELL):
                await deriving.look(context)
                await predicting.look(context)
            if whole:
                async with parts.part(automatic.AHEAD):
                    await self._ahead.look()
        context.ready = True
        context.on_settled()
        self._upkeep.begin(whole=whole, booting=Started in kinds)
        self._missed = self._missed + 1 if parts.failing & automatic.LOOKS else 0
        if whole and not self._missed:
            if not renewed and Started not in kinds:
                await asyncio.to_thread(self._see_whether_complete)
            context.looked = began
            if self._surveyor.unsettled is None:
                context.noticed = notices
        again = min(_RETRY * 2.0 ** min(self._missed - 1, _MOST_DOUBLED), _LONGEST_RETRY) if self._missed else None
        return min((one for one in (again, self._surveyor.unsettled) if one is not None), default=None)

    async def _look_at_stores(self, triggers: frozenset[Trigger], *, booted: bool, whole: bool) -> None:
        if booted:
            # With a million entries this takes a while, and people want to see how far it is.
            await self._context.jobs.attend("scan", lambda job: self._scanner.scan_stores(progress=job.progress))
        elif whole:
            await self._scanner.scan_stores()
        elif not self._replayer.busy:
            # A replay looks at its stores when it is done; looking after each entry takes the compilers' time.
            known = {status.store for status in await self._context.read(all_stores)}
            touched = frozenset(trigger.root for trigger in triggers if isinstance(trigger, StoreChanged)) & known
            if touched:
                await self._scanner.scan_stores(touched)

    async def _examine(self) -> None:
        """Read a large catalog to its end beside the work; what is corrupt is set aside by the look that follows."""
        async with self._context.automatic.part(automatic.CATALOG):
            try:
                await asyncio.to_thread(self._context.catalog.examine)
            except CatalogError as error:
                log.warning("%s", error.message)
                if self._context.catalog.corrupt:
                    self._context.on_look()

    async def stop(self) -> None:
        """Begin nothing more."""
        await self._upkeep.stop()
        if self._examining is not None:
            self._examining.cancel()
            await asyncio.wait([self._examining])

    # -- when somebody asks -------------------------------------------------------------------------------------------

    async def look_first(self) -> None:
        """Look, if nobody has yet, and see which driver there is now.

        A service that waits for its model may ask in the first second of our life; what the catalog says of the stores
        is from before the host was off.
        """
        if not self._context.ready:
            async with self._context.locks.looking:
                await self._models.load()
                await self._surveyor.survey()
                await self._scanner.scan_stores()
        elif self._context.host is None:
            await self._surveyor.survey()
        else:
            # What is run now may meet a driver of which no look has told yet.
            async with self._context.automatic.part(automatic.SURVEY):
                await self._surveyor.survey(retry=False)

    async def start_scan(self, request: requests.ScanStores) -> Job:
        """Look at stores now; see `requests.ScanStores`."""

        async def work(handle: Handle) -> ScanReport:
            roots = await real_paths(request.stores)
            if not roots:
                await self._models.load()
                await self._surveyor.survey()
            report = await self._scanner.scan_stores(
                roots, named=True, full=request.full, thorough=True, progress=handle.progress
            )
            await self._context.on_scan()
            await self._upkeep.heed()
            return report

        return self._context.jobs.start("scan", work)
