"""Replay: after a driver change, entries are rebuilt from themselves, without the models."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from xpucached import host
from xpucached.domain.host import OtherDriver
from xpucached.domain.plans import Built, NoRecipe, ReplayPlan, ReplayReport
from xpucached.domain.stores import EntryId, Store, program_digest
from xpucached.domain.targets import Origin
from xpucached.errors import NotFound, RequestError, Unconfirmed, XpucachedError
from xpucached.kinds import table
from xpucached.planning.replay import Pace, ReplayScope, Tail, plan_replay, replayable
from xpucached.processes import scratch
from xpucached.service.confirm import confirm
from xpucached.service.rebuild import RebuildJob, driver_for, drivers_in_use, pace, workers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from xpucached.domain.host import Host
    from xpucached.domain.names import ModelName
    from xpucached.domain.plans import Rebuild, Recipe
    from xpucached.domain.targets import Target
    from xpucached.processes.supervised import ProcessStarter
    from xpucached.service.inventory import Inventory
    from xpucached.service.jobs import Handle

log = logging.getLogger(__name__)

_MOST_WORDS: Final = 5

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

_MOST_WAITING: Final = 16
"""So many compiled programs may wait for the disk before the compilers do."""


class ReplayRequest(Struct, frozen=True):
    """Which part of a replay somebody wants; nothing given is all of it, with the installed driver."""

    stores: frozenset[Path] = frozenset()
    models: frozenset[ModelName] = frozenset()
    to: str | None = None
    driver_root: Path | None = None  #: a folder with a driver that is not installed
    device: str | None = None  #: a GPU that the driver shall pretend
    into: Path | None = None  #: a store of its own for what is rebuilt
    driver_cache: Path | None = None  #: a cache of its own for the GPU driver

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is for a driver that programs on this host do not use."""
        return self.driver_root is not None or self.device is not None

    @property
    def origin(self) -> Origin:
        """What entries made so are."""
        if self.device is not None:
            return Origin.SIMULATED
        return Origin.AHEAD if self.driver_root is not None else Origin.REBUILT


class _Publishing:
    """What comes of one replay: each compiled program goes to its place, by a thread of its own."""

    def __init__(
        self,
        inventory: Inventory,
        wish: ReplayRequest,
        drivers: Sequence[OtherDriver],
        skipped: Counter[NoRecipe] | None = None,
        failures: Iterable[str] = (),
    ) -> None:
        """``skipped`` are those that the plan left out, ``failures`` what went wrong so far."""
        self._inventory = inventory
        self._wish = wish
        self._drivers = drivers
        # A compiler need not wait for the disk, unless too much waits for it already.
        self._publisher = ThreadPoolExecutor(1, "publisher")
        self._waiting = threading.BoundedSemaphore(_MOST_WAITING)
        self._lock = threading.Lock()
        self._published: list[Future[None]] = []
        self.rebuilt = 0
        self.present = 0
        self.compile_seconds = 0.0
        self.skips: Counter[NoRecipe] = skipped if skipped is not None else Counter()
        self.failures = list(failures)
        self.on_full: Callable[[], None] = lambda: None
        """Called when nothing more can be kept."""

    def built(self, one: Rebuild, recipe: Recipe, binary: bytes, seconds: float) -> None:
        """Take what was compiled."""
        self._waiting.acquire()
        with self._lock:
            self._published.append(self._publisher.submit(self._publish, one, recipe, binary, seconds))

    def skipped(self, one: Rebuild, why: NoRecipe) -> None:  # noqa: ARG002 - others want to know which
        """Count what cannot be compiled again."""
        with self._lock:
            self.skips[why] += 1

    def failed(self, one: Rebuild, words: str, *, blamed: bool) -> None:
        """Note what was not compiled, and what never will be."""
        with self._lock:
            self.failures.append(f"{one.entry.entry.id.ref}: {words}")
        if blamed:
            self._refused(one, words)

    def close(self) -> None:
        """Wait until all is written."""
        self._publisher.shutdown()

    def check(self) -> None:
        """Raise what writing raised."""
        for published in self._published:
            published.result()

    def _publish(self, one: Rebuild, recipe: Recipe, binary: bytes, seconds: float) -> None:
        entry, into = one.entry.entry, self._wish.into
        try:
            key = table.rebuilder(entry).publish(recipe, one.to, binary, into)
            if key is not None:
                store = Store(entry.id.store.kind, into or entry.id.store.root)
                self._note(EntryId(store, key), one, recipe, binary, seconds)
        except (OSError, XpucachedError) as error:
            # The disk's fault, not the entry's: the next replay tries again.
            log.warning("a rebuilt entry could not be published: %s: %s", entry.id.key, error)
            if isinstance(error, OSError) and into is None:
                # Of a place that is no store of ours nobody would ever find out that it is well again.
                self._inventory.problem_list.failed(entry.id.store.root, error)
            with self._lock:
                self.failures.append(f"{entry.id.ref}: {error}")
            if isinstance(error, OSError) and error.errno in _FULL:
                # What else is compiled could not be kept either.
                self.on_full()
            return
        finally:
            self._waiting.release()
        if into is None:
            self._inventory.problem_list.worked(entry.id.store.root)
        with self._lock:
            self.compile_seconds += seconds
            self.rebuilt += key is not None
            self.present += key is None

    def _note(self, made: EntryId, one: Rebuild, recipe: Recipe, binary: bytes, seconds: float) -> None:
        built = Built(
            made,
            one.to,
            self._wish.origin,
            driver_for(one, self._drivers).stamp,
            len(recipe.image),
            seconds,
            program_digest(binary).hexdigest(),
            self._heirs(one),
        )
        self._inventory.catalog.record_build(built, self._inventory.clock())

    def _heirs(self, one: Rebuild) -> tuple[ModelName, ...]:
        """Give the models for whose programs an entry was rebuilt: of its own, those that meet what it is for."""
        if self._wish.is_elsewhere:
            return one.entry.models
        present = self._inventory.present
        return tuple(name for name in one.entry.models if one.to in present.seen_by(name).environments)

    def _refused(self, one: Rebuild, words: str) -> None:
        entry = one.entry.entry
        lineage = table.rebuilder(entry).lineage_key(entry.id.key)
        log.warning("an entry could not be rebuilt: %s: %s", entry.id.key, words)
        if lineage is not None:
            inventory, into = self._inventory, self._wish.into
            store = Store(entry.id.store.kind, into) if into is not None else entry.id.store
            inventory.catalog.record_refusal(
                store, lineage, one.to.fingerprint, driver_for(one, self._drivers).stamp, words, inventory.clock()
            )


class Replayer:
    """Rebuilds what a driver lacks: the present one, or one that is named."""

    def __init__(self, inventory: Inventory, starter: ProcessStarter, changing: asyncio.Lock) -> None:
        """``changing`` is held while entries are rebuilt, so that no model compiles the same meanwhile."""
        self._inventory = inventory
        self._starter = starter
        self._changing = changing
        self._busy = False
        self._nothing: tuple[object, ...] | None = None
        """What there was when a plan was last made and came out empty."""

    @property
    def busy(self) -> bool:
        """Whether entries are being rebuilt now: what changes in the stores meanwhile is mostly our own doing."""
        return self._busy

    async def plan(self, wish: ReplayRequest) -> ReplayPlan:
        """Decide what to rebuild for the installed driver."""
        return await asyncio.to_thread(self._plan, wish, drivers_in_use(self._inventory))

    async def wanted(self) -> bool:
        """Tell whether the installed driver lacks anything that nobody asked about.

        A plan reads every entry, so none is made where the sums say that it would be empty, or the last one was.
        """
        catalog, present = self._inventory.catalog, self._inventory.present
        subtotals = await asyncio.to_thread(catalog.subtotals)
        if not replayable(subtotals, present):
            return False
        stores = await asyncio.to_thread(catalog.stores)
        sums = tuple((one.id, one.entries, one.defective, one.unfinished, one.size) for one in stores)
        models = await asyncio.to_thread(catalog.models)
        stamps = (present.stamp, *(one.stamp for one in present.drivers))
        basis = (subtotals, sums, present.offered, stamps, models)
        if basis == self._nothing:
            return False
        wanted = bool((await self.plan(ReplayRequest())).rebuild)
        self._nothing = None if wanted else basis
        return wanted

    def _plan(self, wish: ReplayRequest, drivers: Sequence[OtherDriver]) -> ReplayPlan:
        inventory = self._inventory
        target: Host = inventory.present
        if wish.is_elsewhere:
            target = structs.replace(target, environments=drivers[0].environments, stamp=drivers[0].stamp, drivers=())
        if wish.to is not None and not any(one.fingerprint.startswith(wish.to) for one in target.offered):
            offered = ", ".join(f"{one.fingerprint} ({one.device}, {one.driver})" for one in target.offered)
            raise NotFound(f"no environment {wish.to} here", hint=f"there is: {offered}")
        failed: set[tuple[Tail, Target]] = set()
        for driver in drivers:
            known = {environment.fingerprint: environment for environment in driver.environments}
            refused = inventory.catalog.refusals(driver.stamp)
            failed |= {
                ((store, tail), known[fingerprint]) for store, tail, fingerprint in refused if fingerprint in known
            }
        scope = ReplayScope(wish.stores, wish.models, wish.to, wish.into, other_devices=wish.device is not None)
        return plan_replay(
            inventory.catalog.all_entries(),
            target,
            {model.name: model for model in inventory.catalog.models()},
            failed,
            inventory.clock(),
            scope,
            Pace(inventory.catalog.build_rates(), workers()),
            lineages=table.lineages(),
        )

    def work(self, wish: ReplayRequest, *, dry_run: bool = False) -> Callable[[Handle], Awaitable[ReplayReport]]:
        """Give the work of a job: plan, and unless it is a dry run rebuild."""

        async def work(handle: Handle) -> ReplayReport:
            with contextlib.ExitStack() as stack:
                drivers = await self._drivers(wish, handle, stack)
                if dry_run:
                    plan = await asyncio.to_thread(self._plan, wish, drivers)
                    share = _share(plan.covered + len(plan.rebuild), sum(plan.skipped.values()))
                    return ReplayReport(plan, dry_run=True, skipped=plan.skipped, share=share, into=wish.into)
                handle.progress(0, 0, "waiting for its turn")
                async with self._changing:
                    # What a replay that was killed had published is found by looking, so the plan goes on there.
                    await self._inventory.scan_stores(wish.stores)
                    if not wish.is_elsewhere:
                        # While it waited for its turn there may have come another.
                        drivers = drivers_in_use(self._inventory)
                    plan = await asyncio.to_thread(self._plan, wish, drivers)
                    return await self._carry_out(plan, wish, drivers, handle)

        return work

    async def _drivers(
        self, wish: ReplayRequest, handle: Handle, stack: contextlib.ExitStack
    ) -> tuple[OtherDriver, ...]:
        if not wish.is_elsewhere:
            return drivers_in_use(self._inventory)
        # What makes a driver load from a folder must last until its last compiler has ended.
        place = Path(stack.enter_context(scratch.directory()))
        handle.progress(0, 0, "asking the driver who it is")
        settings = self._inventory.settings
        other = await asyncio.to_thread(
            host.unpacked, wish.driver_root, wish.device, settings.variables, settings.probe_timeout, place
        )
        return (other,)

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
        known = {model.name: model for model in await asyncio.to_thread(self._inventory.catalog.models)}
        results = _Publishing(self._inventory, wish, drivers, Counter(plan.skipped), unconfirmed)
        limit = self._inventory.settings.compile_timeout
        work = RebuildJob(self._starter, todo, drivers, known, limit, results, wish.driver_cache)
        results.on_full = work.cancel.set

        def beat() -> None:
            done = results.rebuilt + results.present
            handle.progress(done, len(plan.rebuild), pace(done, len(plan.rebuild), began))

        try:
            await work.run(len(plan.rebuild), beat)
        finally:
            await asyncio.shield(asyncio.to_thread(results.close))
        results.check()
        if plan.rebuild:
            await asyncio.to_thread(self._inventory.catalog.forget_builds, self._inventory.clock())
            await self._inventory.scan_stores(frozenset(one.entry.entry.id.store.root for one in plan.rebuild))
        handle.progress(len(plan.rebuild), len(plan.rebuild))
        there = plan.covered + results.rebuilt + results.present
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
            share=_share(there, plan.covered + len(plan.rebuild) + sum(plan.skipped.values()) - there),
            confirmed=confirmed,
            into=wish.into,
            failures=tuple(results.failures[:_MOST_WORDS]),
        )
        if plan.rebuild:
            self._inventory.events.post(
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
                for model in await asyncio.to_thread(self._inventory.catalog.models)
                if (model.name in driver.models if driver.models else model.name not in led)
            ]
            try:
                words += await asyncio.to_thread(confirm, plan, wanted, driver, models, self._inventory)
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


def _share(there: int, missing: int) -> float | None:
    return there / (there + missing) if there + missing else None
