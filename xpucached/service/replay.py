"""Replay: after a driver change, entries are rebuilt from themselves, without the models."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from xpucached.catalog.builds import build_rates
from xpucached.catalog.entries import all_entries
from xpucached.catalog.models import all_models, checked_models, models_by_name
from xpucached.catalog.preselect import store_subtotals
from xpucached.catalog.recipes import recipe_lineages
from xpucached.catalog.refusals import refused_by
from xpucached.catalog.stores import all_stores
from xpucached.domain.host import OtherDriver
from xpucached.domain.plans import NoRecipe, Rebuild, ReplayPlan
from xpucached.domain.reports import ReplayReport
from xpucached.domain.targets import Origin
from xpucached.errors import HostError, NotFound, RequestError, Unconfirmed, XpucachedError
from xpucached.host import other_driver, simulated_gpu
from xpucached.kinds import driver_cache, table
from xpucached.planning.replay import Pace, ReplayScope, Tail, coming, plan_replay, replayable
from xpucached.processes import scratch
from xpucached.processes.cancellation import to_its_end
from xpucached.service import automatic
from xpucached.service.confirm import confirm
from xpucached.service.paths import real_path_if_any, real_paths
from xpucached.service.publish import Publisher, forget_old
from xpucached.service.rebuild import RebuildJob, driver_for, drivers_in_use, workers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from xpucached.api import requests
    from xpucached.domain.host import Host
    from xpucached.domain.jobs import Job
    from xpucached.domain.names import ModelName
    from xpucached.domain.targets import Target
    from xpucached.processes.supervised import ProcessStarter
    from xpucached.service.context import Context
    from xpucached.service.jobs import Handle
    from xpucached.service.scan import StoreScanner
    from xpucached.service.trash import TrashKeeper

log = logging.getLogger(__name__)

_MOST_WORDS: Final = 5

_PAUSE: Final = 3600.0
_LONGEST_PAUSE: Final = 86400.0
"""Seconds, at first and at most, before what came to nothing is tried again as it stands."""


class ReplayRequest(Struct, frozen=True):
    """Which part of a replay somebody wants; nothing given is all of it, with the installed driver."""

    stores: frozenset[Path] = frozenset()
    models: frozenset[ModelName] = frozenset()
    to: str | None = None
    driver_root: Path | None = None  #: a folder with a driver that is not installed
    device: str | None = None  #: a GPU that the driver shall pretend
    into: Path | None = None  #: a store of its own for what is rebuilt
    driver_cache: Path | None = None  #: a cache of its own for the GPU driver
    replaced: frozenset[str] | None = (
        None  #: only these packages are there, all else of the driver is the installed one
    )

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is for a driver that programs on this host do not use."""
        return self.driver_root is not None or self.device is not None

    @property
    def scope(self) -> ReplayScope:
        """The part of a plan that it is."""
        return ReplayScope(
            self.stores,
            self.models,
            self.to,
            self.into,
            other_devices=self.device is not None,
            apart={driver_cache.KIND: self.driver_cache} if self.driver_cache is not None else {},
            # What fills a store apart leaves those alone in which programs look now.
            without=(driver_cache.KIND,) if self.into is not None and self.driver_cache is None else (),
        )

    @property
    def origin(self) -> Origin:
        """What entries made so are."""
        if self.device is not None:
            return Origin.SIMULATED
        return Origin.AHEAD if self.driver_root is not None else Origin.REBUILT


class Replayer:
    """Rebuilds what a driver lacks: the present one, or one that is named."""

    def __init__(self, context: Context, scanner: StoreScanner, trash: TrashKeeper, starter: ProcessStarter) -> None:
        self._context = context
        self._scanner = scanner
        self._trash = trash
        self._starter = starter
        self._busy = False
        self._nothing: tuple[object, ...] | None = None
        """What there was when a plan was last made and came out empty."""
        self._brought_nothing: tuple[object, ...] | None = None
        """What there was after a replay that brought nothing, …"""
        self._again, self._pause = 0.0, _PAUSE
        """… until when (monotonic) it is not tried again unasked, and the seconds to wait the next time."""

    @property
    def busy(self) -> bool:
        """Whether entries are being rebuilt now: what changes in the stores meanwhile is mostly our own doing."""
        return self._busy

    async def start(self, request: requests.ReplayEntries) -> Job:
        """Rebuild entries for the present driver; see `requests.ReplayEntries`."""
        await self._context.read(checked_models, request.models)
        present = self._context.present.offered
        if request.device is not None:
            simulated_gpu.pretend(request.device)
        if request.driver_root is None and request.device is None:
            if not present:
                raise HostError("this host has no driver to rebuild entries with", hint="see: xpucachectl devices")
            if request.to is not None and not any(one.fingerprint.startswith(request.to) for one in present):
                raise NotFound(f"no environment {request.to} on this host", hint="see: xpucachectl devices")
        await real_path_if_any(request.driver_root)
        wish = ReplayRequest(
            await real_paths(request.stores),
            frozenset(request.models),
            request.to,
            request.driver_root,
            request.device,
            await real_path_if_any(request.into),
            await real_path_if_any(request.driver_cache),
        )
        return self._context.jobs.start("replay", self.work(wish, dry_run=request.dry_run))

    async def plan(self, wish: ReplayRequest) -> ReplayPlan:
        """Decide what to rebuild for the installed driver."""
        context = self._context
        return await asyncio.to_thread(self._plan, wish, drivers_in_use(context), context.present)

    async def wanted(self) -> bool:
        """Return whether the installed driver lacks anything that nobody asked about.

        A plan reads every entry, so none is made where the totals say that it would be empty, or the last one was.
        """
        if not replayable(await self._context.read(store_subtotals), self._context.present):
            return False
        basis = await self._basis()
        if basis == self._nothing or (basis == self._brought_nothing and time.monotonic() < self._again):
            return False
        wanted = bool((await self.plan(ReplayRequest())).rebuild)
        self._nothing = None if wanted else basis
        return wanted

    async def before_models(self, handle: Handle, models: frozenset[ModelName]) -> None:
        """Rebuild what these models' entries lack, before they are run; what cannot be rebuilt their runs compile."""
        if not self._context.settings.schedule.replay:
            return
        wish = ReplayRequest(models=models)

        async def replay() -> None:
            if await self.wanted() and (await self.plan(wish)).rebuild:
                await self.work(wish)(handle)

        await self._context.automatic.insist(automatic.REPLAY, replay, lambda: self._context.present.drivers_met)

    async def _basis(self) -> tuple[object, ...]:
        """Return what a plan rests on, as far as it is had without reading every entry."""
        present = self._context.present
        stores = await self._context.read(all_stores)
        sums = tuple((one.id, one.entries, one.defective, one.unfinished, one.size) for one in stores)
        models = await self._context.read(all_models)
        return (await self._context.read(store_subtotals), sums, present.drivers_met, models)

    async def _note_outcome(self, *, brought_nothing: bool) -> None:
        """Wait longer and longer where each replay compiles everything, and nothing can be kept."""
        if not brought_nothing:
            self._brought_nothing, self._pause = None, _PAUSE
            return
        self._brought_nothing = await self._basis()
        self._again = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _plan(self, wish: ReplayRequest, drivers: Sequence[OtherDriver], present: Host) -> ReplayPlan:
        """Plan for these drivers, and the host that was ``present`` with them: by now there may be another one."""
        context, target = self._context, present
        if wish.is_elsewhere:
            target = structs.replace(target, environments=drivers[0].environments, stamp=drivers[0].stamp, drivers=())
        if wish.to is not None and not any(one.fingerprint.startswith(wish.to) for one in target.offered):
            offered = ", ".join(f"{one.fingerprint} ({one.device}, {one.toolchain})" for one in target.offered)
            raise NotFound(f"no environment {wish.to} here", hint=f"there is: {offered}")
        failed: set[tuple[Tail, Target]] = set()
        for driver in drivers:
            known = {environment.fingerprint: environment for environment in driver.environments}
            refused = context.catalog.read(refused_by, driver.stamp)
            failed |= {
                ((store, tail), known[fingerprint]) for store, tail, fingerprint in refused if fingerprint in known
            }
        return plan_replay(
            context.catalog.read(all_entries),
            target,
            context.catalog.read(models_by_name),
            failed,
            context.clock(),
            wish.scope,
            Pace(context.catalog.read(build_rates), workers()),
            lineages=table.lineages(context.catalog.read(recipe_lineages)),
            shared=(driver_cache.KIND,),
            filled=[] if (standard := self._scanner.finder.standard(driver_cache.KIND)) is None else [standard],
        )

    async def lacking(self, driver: OtherDriver) -> ReplayPlan:
        """Decide what to rebuild for a driver that is not in use."""
        wish = ReplayRequest(driver_root=Path("/"))
        return await asyncio.to_thread(self._plan, wish, (driver,), self._context.present)

    def work(
        self, wish: ReplayRequest, *, dry_run: bool = False, told: Callable[[OtherDriver], None] = lambda _driver: None
    ) -> Callable[[Handle], Awaitable[ReplayReport]]:
        """Return the work of a job: plan, and unless it is a dry run rebuild; ``told`` hears of a driver not in use."""

        async def work(handle: Handle) -> ReplayReport:
            with contextlib.ExitStack() as stack:
                drivers = await self._drivers(wish, handle, stack)
                if wish.is_elsewhere:
                    told(drivers[0])
                if dry_run:
                    plan = await asyncio.to_thread(self._plan, wish, drivers, self._context.present)
                    share = _share(plan.covered + len(plan.rebuild), _left_out(plan))
                    return ReplayReport(plan, dry_run=True, skipped=plan.skipped, share=share, into=wish.into)
                async with self._context.turn(handle):
                    # What a replay that was killed had published is found by looking, so the plan goes on there.
                    await self._scanner.scan_stores(wish.stores, named=True)
                    if not wish.is_elsewhere:
                        # While it waited for its turn there may have come another.
                        drivers = drivers_in_use(self._context)
                    plan = await asyncio.to_thread(self._plan, wish, drivers, self._context.present)
                    if plan.rebuild:
                        # A disk that fills up meanwhile would end it, and keep programs from writing, too.
                        await self._trash.tidy(coming(plan, wish.scope))
                    return await self._carry_out(plan, wish, drivers, handle)

        return work

    async def _drivers(
        self, wish: ReplayRequest, handle: Handle, stack: contextlib.ExitStack
    ) -> tuple[OtherDriver, ...]:
        if not wish.is_elsewhere:
            return drivers_in_use(self._context)
        # What makes a driver load from a folder must last until its last compiler has ended.
        place = Path(stack.enter_context(scratch.workplace()))
        handle.progress(0, 0, "asking the driver who it is")
        settings = self._context.settings
        other = await asyncio.to_thread(
            other_driver.unpacked,
            wish.driver_root,
            wish.device,
            settings.driver.variables,
            settings.driver.probe_timeout,
            place,
            replaced=wish.replaced,
        )
        host = structs.replace(self._context.present, devices=other.devices, driver=other.driver, drivers=())
        return (structs.replace(other, environments=table.targets(host)),)

    async def _carry_out(
        self, plan: ReplayPlan, wish: ReplayRequest, drivers: tuple[OtherDriver, ...], handle: Handle
    ) -> ReplayReport:
        self._busy = True
        try:
            return await self._rebuild(plan, wish, drivers, handle)
        finally:
            self._busy = False

    # -- the work -----------------------------------------------------------------------------------------------------

    async def _rebuild(
        self, plan: ReplayPlan, wish: ReplayRequest, drivers: tuple[OtherDriver, ...], handle: Handle
    ) -> ReplayReport:
        began = time.monotonic()
        handle.progress(0, len(plan.rebuild), "asking the runtimes for the devices' names")
        todo, confirmed, unconfirmed = await self._confirmed(plan, drivers)
        if plan.rebuild:
            await asyncio.to_thread(_make_places, wish)
        results = Publisher(self._context, wish, drivers, Counter(plan.skipped), unconfirmed)
        work = RebuildJob(self._context, self._starter, todo, drivers, results, wish.driver_cache)
        results.on_full = work.cancel.set
        results.on_closed = work.leave_out
        work.tells = True
        try:
            await work.run(handle, len(plan.rebuild))
        except asyncio.CancelledError:
            await to_its_end(work.forget_told)
            raise
        finally:
            await to_its_end(results.close)
        results.check()
        if plan.rebuild:
            await forget_old(self._context)
            filled = await asyncio.to_thread(work.filled)
            await self._scanner.scan_stores(filled.union(one.entry.entry.id.store.root for one in plan.rebuild))
            try:
                await asyncio.to_thread(work.keep_told)
            except (OSError, XpucachedError) as error:
                # The next replay compiles it once more.
                log.warning("what the driver kept of a replay could not be noted: %s", error)
        if wish == ReplayRequest():
            await self._note_outcome(brought_nothing=bool(plan.rebuild) and not results.rebuilt)
        handle.progress(len(plan.rebuild), len(plan.rebuild))
        there = plan.covered + results.answered
        report = ReplayReport(
            plan,
            dry_run=False,
            rebuilt=results.rebuilt,
            present=results.present,
            failed=len(results.failures),
            skipped=dict(results.skips),
            seconds=time.monotonic() - began,
            compile_seconds=results.compile_seconds,
            # What was not even tried, because the disk was full, is missing as well.
            share=_share(there, plan.covered + len(plan.rebuild) + _left_out(plan) - there),
            confirmed=confirmed,
            into=wish.into,
            failures=tuple(results.failures[:_MOST_WORDS]),
        )
        if plan.rebuild:
            self._context.events.post(
                "replayed",
                f"{report.rebuilt} entries rebuilt in {report.seconds:.1f} s, {report.failed} failed",
                {
                    "rebuilt": str(report.rebuilt),
                    "failed": str(report.failed),
                    "seconds": f"{report.seconds:.1f}",
                    "saved": f"{report.compile_seconds:.1f}",
                    "origin": wish.origin,
                },
            )
        return report

    async def _confirmed(
        self, plan: ReplayPlan, drivers: Sequence[OtherDriver]
    ) -> tuple[list[Rebuild], str, list[str]]:
        """Ask each driver's runtimes how they name the devices; give what to rebuild, how that is known, and what not.

        Raises `Unconfirmed` if nothing is left.
        """
        led = frozenset().union(*(one.models for one in drivers))
        words: list[str] = []
        refused: list[tuple[OtherDriver, Unconfirmed]] = []
        for driver in drivers:
            wanted = {one.to for one in plan.rebuild if driver_for(one, drivers) is driver}
            models = [
                model
                for model in await self._context.read(all_models)
                if (model.name in driver.models if driver.models else model.name not in led)
            ]
            try:
                words += await asyncio.to_thread(confirm, plan, wanted, driver, models, self._context)
            except Unconfirmed as error:
                refused.append((driver, error))
        todo = [one for one in plan.rebuild if all(driver_for(one, drivers) is not driver for driver, _ in refused)]
        if refused and not todo:
            raise refused[0][1]
        return todo, "; ".join(filter(None, dict.fromkeys(words))), [error.message for _, error in refused]


def _make_places(wish: ReplayRequest) -> None:
    """Make the directories that were named, if they are not there."""
    for path in (wish.into, wish.driver_cache):
        if path is not None:
            try:
                path.mkdir(exist_ok=True)
                owner = path.stat().st_uid
            except OSError as error:
                raise RequestError(
                    f"{path} cannot be made: {error.strerror}", hint="name a directory whose parent is there"
                ) from error
            if owner != os.geteuid():
                raise RequestError(f"{path} belongs to somebody else", hint="name a directory of your own")


def _left_out(plan: ReplayPlan) -> int:
    """Return how many entries nothing is compiled for; not those that the same program's entry brings."""
    return sum(count for why, count in plan.skipped.items() if why is not NoRecipe.SHARED)


def _share(there: int, missing: int) -> float | None:
    return there / (there + missing) if there + missing else None
