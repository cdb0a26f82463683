"""Replay: after a driver change, entries are rebuilt from themselves, without the models."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import logging
import os
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import host, planning
from xpucached.dispatch.building import BuildFailed, BuildHung, CompilerKilled, NoCompiler
from xpucached.domain import Built, EntryId, NoRecipe, Origin, OtherDriver, ReplayPlan, ReplayReport, Store
from xpucached.errors import NotFound, RequestError, Unconfirmed, XpucachedError
from xpucached.kinds import KINDS
from xpucached.processes import scratch
from xpucached.service.confirming import confirm

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from xpucached.dispatch import Dispatch
    from xpucached.dispatch.building import Builder
    from xpucached.domain import Environment, Host, Model, ModelName, Rebuild, Recipe
    from xpucached.service.jobs import Handle
    from xpucached.service.observing import Observing

log = logging.getLogger(__name__)

_MOST_WORKERS: Final = 8
"""Each compiler holds some hundred megabytes; beyond so many the disk and the memory are what is short."""

_ROOM: Final = 1 << 30
"""Bytes of memory that must be left before another compiler starts to work beside the first."""

_MOST_WORDS: Final = 5

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

_MOST_WAITING: Final = 16
"""So many compiled programs may wait for the disk before the compilers do."""

_FIRST: Final = 5
"""What takes longer than this part of the time limit waits until the others are done: one that hangs holds up none."""
_HASTY: Final = 30
"""The part of the limit that is left where so many hung already …"""
_MOST_HUNG: Final = 5
_MOST_LATE: Final = 3
"""… and so many take the whole limit in vain before the rest of their store is given up."""
_MOST_ABSENT: Final = 3
"""So often a compiler is started in vain before an environment is given up, until the next replay."""
_MOST_KILLED: Final = 10
"""So many are killed one after the other, before it is given up as well: some large programs do not stop the rest."""

_CACHES: Final = ("HOME", "XDG_CACHE_HOME", "NEO_CACHE_DIR", "NEO_CACHE_MAX_SIZE", "NEO_CACHE_PERSISTENT")
"""Where the GPU driver keeps its own compiler cache: a rebuild fills the one that the model's programs use."""


@dataclass(frozen=True, slots=True)
class Wish:
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


@dataclass(slots=True)
class _Tally:
    """What the workers of one replay have done so far."""

    rebuilt: int = 0
    present: int = 0
    compile_seconds: float = 0.0
    skipped: Counter[NoRecipe] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    compiling: int = 0
    published: list[Future[None]] = field(default_factory=list)
    late: list[Rebuild] = field(default_factory=list)  #: what took too long while others waited
    hung: Counter[Path] = field(default_factory=Counter)  #: by store: how many did
    lost: Counter[Path] = field(default_factory=Counter)  #: by store: how many took too long even at the end
    absent: Counter[Environment] = field(default_factory=Counter)  #: how often no compiler for it could be started
    killed: Counter[Environment] = field(default_factory=Counter)  #: how many of its compilers were, since one was not
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True)
class _Bench:
    """What one replay works with."""

    wish: Wish
    drivers: tuple[OtherDriver, ...]  #: those in use, or the one that was asked for
    models: Mapping[ModelName, Model]
    todo: Iterator[Rebuild]
    tally: _Tally
    cancel: threading.Event
    publisher: ThreadPoolExecutor  #: writes what is compiled: a compiler need not wait for the disk
    waiting: threading.BoundedSemaphore  #: how much may wait for the disk

    def driver(self, one: Rebuild) -> OtherDriver:
        """Give the driver to compile an entry with."""
        return _driver(one, self.drivers)


class Replaying:
    """Rebuilds what a driver lacks: the present one, or one that is named."""

    def __init__(self, observing: Observing, dispatch: Dispatch, changing: asyncio.Lock) -> None:
        """``changing`` is held while entries are rebuilt, so that no model compiles the same meanwhile."""
        self._observing = observing
        self._dispatch = dispatch
        self._changing = changing
        self._busy = False
        self._nothing: tuple[object, ...] | None = None
        """What there was when a plan was last made and came out empty."""

    @property
    def busy(self) -> bool:
        """Whether entries are being rebuilt now: what changes in the stores meanwhile is mostly our own doing."""
        return self._busy

    async def plan(self, wish: Wish) -> ReplayPlan:
        """Decide what to rebuild for the installed driver."""
        return await asyncio.to_thread(self._plan, wish, self._in_use())

    async def wanted(self) -> bool:
        """Tell whether the installed driver lacks anything that nobody asked about.

        A plan reads every entry, so none is made where the sums say that it would be empty, or the last one was.
        """
        catalog, present = self._observing.catalog, self._observing.present
        holdings = await asyncio.to_thread(catalog.holdings)
        if not planning.replayable(holdings, present):
            return False
        stores = await asyncio.to_thread(catalog.stores)
        sums = tuple((one.store, one.entries, one.flawed, one.unfinished, one.size) for one in stores)
        models = await asyncio.to_thread(catalog.models)
        stamps = (present.stamp, *(one.stamp for one in present.drivers))
        basis = (holdings, sums, present.offered, stamps, models)
        if basis == self._nothing:
            return False
        wanted = bool((await self.plan(Wish())).rebuild)
        self._nothing = None if wanted else basis
        return wanted

    def _in_use(self) -> tuple[OtherDriver, ...]:
        """Give the drivers that programs on this host use, the host's own first."""
        present, variables = self._observing.present, self._observing.settings.variables
        return (
            OtherDriver(present.environments, present.stamp, variables),
            *(
                OtherDriver(one.environments, one.stamp, {**variables, **one.variables}, models=frozenset(one.models))
                for one in present.drivers
            ),
        )

    def _plan(self, wish: Wish, drivers: Sequence[OtherDriver]) -> ReplayPlan:
        observing = self._observing
        target: Host = observing.present
        if wish.is_elsewhere:
            target = replace(target, environments=drivers[0].environments, stamp=drivers[0].stamp, drivers=())
        if wish.to is not None and not any(one.fingerprint.startswith(wish.to) for one in target.offered):
            offered = ", ".join(f"{one.fingerprint} ({one.device}, {one.driver})" for one in target.offered)
            raise NotFound(f"no environment {wish.to} here", hint=f"there is: {offered}")
        failed: set[tuple[planning.Tail, Environment]] = set()
        for driver in drivers:
            known = {environment.fingerprint: environment for environment in driver.environments}
            refused = observing.catalog.refusals(driver.stamp)
            failed |= {
                ((store, tail), known[fingerprint]) for store, tail, fingerprint in refused if fingerprint in known
            }
        scope = planning.ReplayScope(
            wish.stores, wish.models, wish.to, wish.into, other_devices=wish.device is not None
        )
        return planning.plan_replay(
            observing.catalog.all_entries(),
            target,
            {model.name: model for model in observing.catalog.models()},
            failed,
            observing.clock(),
            scope,
            planning.Pace(observing.catalog.build_rates(), _workers()),
        )

    def work(self, wish: Wish, *, dry_run: bool = False) -> Callable[[Handle], Awaitable[ReplayReport]]:
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
                    await self._observing.scan_stores(wish.stores)
                    plan = await asyncio.to_thread(self._plan, wish, drivers)
                    return await self._carry_out(plan, wish, drivers, handle)

        return work

    async def _drivers(self, wish: Wish, handle: Handle, stack: contextlib.ExitStack) -> tuple[OtherDriver, ...]:
        if not wish.is_elsewhere:
            return self._in_use()
        # What makes a driver load from a folder must last until its last compiler has ended.
        place = Path(stack.enter_context(scratch.directory()))
        handle.progress(0, 0, "asking the driver who it is")
        settings = self._observing.settings
        other = await asyncio.to_thread(
            host.unpacked, wish.driver_root, wish.device, settings.variables, settings.probe_timeout, place
        )
        return (other,)

    async def _carry_out(
        self, plan: ReplayPlan, wish: Wish, drivers: tuple[OtherDriver, ...], handle: Handle
    ) -> ReplayReport:
        self._busy = True
        try:
            return await self._rebuild(plan, wish, drivers, handle)
        finally:
            self._busy = False

    # -- the work -----------------------------------------------------------------------------------------------------

    async def _rebuild(
        self, plan: ReplayPlan, wish: Wish, drivers: tuple[OtherDriver, ...], handle: Handle
    ) -> ReplayReport:
        began = time.monotonic()
        handle.progress(0, len(plan.rebuild), "asking the SYCL runtimes for the devices' names")
        todo, confirmed, unconfirmed = await self._confirmed(plan, drivers)
        if plan.rebuild:
            await asyncio.to_thread(_make_places, wish)
        known = {model.name: model for model in await asyncio.to_thread(self._observing.catalog.models)}
        tally = _Tally(skipped=Counter(plan.skipped), failures=unconfirmed)
        cancel = threading.Event()
        publisher = ThreadPoolExecutor(1, "publisher")
        waiting = threading.BoundedSemaphore(_MOST_WAITING)
        bench = _Bench(wish, drivers, known, iter(todo), tally, cancel, publisher, waiting)
        workers = [
            asyncio.create_task(asyncio.to_thread(self._work_off, bench))
            for _ in range(min(_workers(), len(plan.rebuild)))
        ]
        try:
            while workers and not all(worker.done() for worker in workers):
                done = tally.rebuilt + tally.present
                handle.progress(done, len(plan.rebuild), _pace(done, len(plan.rebuild), time.monotonic() - began))
                await asyncio.wait(workers, timeout=0.2, return_when=asyncio.ALL_COMPLETED)
        finally:
            cancel.set()
            if workers:
                await asyncio.shield(asyncio.wait(workers))
            await asyncio.shield(asyncio.to_thread(publisher.shutdown))
        for worker in workers:
            worker.result()
        for published in tally.published:
            published.result()
        if plan.rebuild:
            await asyncio.to_thread(self._observing.catalog.forget_builds, self._observing.clock())
            await self._observing.scan_stores(frozenset(one.entry.entry.id.store.root for one in plan.rebuild))
        handle.progress(len(plan.rebuild), len(plan.rebuild))
        there = plan.covered + tally.rebuilt + tally.present
        report = ReplayReport(
            plan,
            dry_run=False,
            rebuilt=tally.rebuilt,
            present=tally.present,
            failed=len(tally.failures),
            skipped=dict(tally.skipped),
            seconds=time.monotonic() - began,
            compile_seconds=tally.compile_seconds,
            # What was not even tried, because the disk was full, is missing as well.
            share=_share(there, plan.covered + len(plan.rebuild) + sum(plan.skipped.values()) - there),
            confirmed=confirmed,
            into=wish.into,
            failures=tuple(tally.failures[:_MOST_WORDS]),
        )
        if plan.rebuild:
            self._observing.events.post(
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
            wanted = {one.to for one in plan.rebuild if _driver(one, drivers) is driver}
            models = [
                model
                for model in await asyncio.to_thread(self._observing.catalog.models)
                if (model.name in driver.models if driver.models else model.name not in led)
            ]
            try:
                words.append(await confirm(wanted, driver, self._observing, [one.workload for one in models]))
            except Unconfirmed as error:
                refused.append((driver, error))
        todo = [one for one in plan.rebuild if all(_driver(one, drivers) is not driver for driver, _ in refused)]
        if refused and not todo:
            raise refused[0][1]
        return todo, "; ".join(filter(None, dict.fromkeys(words))), [error.message for _, error in refused]

    def _work_off(self, bench: _Bench) -> None:
        """Take one rebuild after the other, in this thread; a compiler for each environment and driver's cache."""
        builders: dict[tuple[str, Environment, tuple[tuple[str, str], ...]], Builder] = {}
        tally = bench.tally
        try:
            while _admitted(bench):
                try:
                    with tally.lock:
                        one, last = next(bench.todo, None), False
                        if one is None and tally.late:
                            one, last = tally.late.pop(0), True
                    if one is None:
                        return
                    caches, driver = _caches(one, bench), bench.driver(one)
                    builder = builders.get((driver.stamp, one.to, caches))
                    if builder is None:
                        variables = {**driver.variables, **dict(caches)}
                        builder = self._dispatch.builder(one.to, variables, driver.command)
                        builders[driver.stamp, one.to, caches] = builder
                    self._rebuild_one(one, builder, bench, last=last)
                finally:
                    with tally.lock:
                        tally.compiling -= 1
        finally:
            for builder in builders.values():
                builder.close()

    def _rebuild_one(self, one: Rebuild, builder: Builder, bench: _Bench, *, last: bool) -> None:
        tally, entry = bench.tally, one.entry.entry
        root = entry.id.store.root
        whole = self._observing.settings.compile_timeout
        limit = whole if last else whole / (_FIRST if tally.hung[root] < _MOST_HUNG else _HASTY)
        if last and tally.lost[root] >= _MOST_LATE:
            self._refused(one, "other programs of its store took too long to compile", bench)
            return
        if tally.absent[one.to] >= _MOST_ABSENT or tally.killed[one.to] >= _MOST_KILLED:
            killed = tally.absent[one.to] < _MOST_ABSENT
            words = "one compiler after the other was killed" if killed else "no compiler could be started"
            with tally.lock:
                tally.failures.append(f"{entry.id.ref}: {words}")
            return
        kind = KINDS[entry.id.store.kind]
        recipe = kind.recipe(entry)
        if isinstance(recipe, NoRecipe):
            with tally.lock:
                tally.skipped[recipe] += 1
            return
        try:
            binary, seconds = builder.build(recipe, bench.cancel, limit)
        except BuildHung as error:
            with tally.lock:
                tally.hung[root] += 1
                tally.lost[root] += last
                if not last:
                    tally.late.append(one)
            if last:
                self._refused(one, str(error), bench)
            return
        except NoCompiler as error:
            # Not the entry's fault: the next replay tries again.
            if not bench.cancel.is_set():
                log.warning("an entry could not be rebuilt: %s: %s", entry.id.key, error)
                with tally.lock:
                    (tally.killed if isinstance(error, CompilerKilled) else tally.absent)[one.to] += 1
                    tally.failures.append(f"{entry.id.ref}: {error}")
            return
        except BuildFailed as error:
            if not bench.cancel.is_set():
                self._refused(one, str(error), bench)
            return
        bench.waiting.acquire()
        with tally.lock:
            tally.killed[one.to] = 0
            tally.published.append(bench.publisher.submit(self._publish, one, recipe, binary, seconds, bench))

    def _publish(self, one: Rebuild, recipe: Recipe, binary: bytes, seconds: float, bench: _Bench) -> None:
        tally, entry = bench.tally, one.entry.entry
        try:
            key = KINDS[entry.id.store.kind].publish(recipe, one.to, binary, bench.wish.into)
            if key is not None:
                store = Store(entry.id.store.kind, bench.wish.into or entry.id.store.root)
                self._note(EntryId(store, key), one, recipe, binary, seconds, bench)
        except (OSError, XpucachedError) as error:
            # The disk's fault, not the entry's: the next replay tries again.
            log.warning("a rebuilt entry could not be published: %s: %s", entry.id.key, error)
            if isinstance(error, OSError) and bench.wish.into is None:
                # Of a place that is no store of ours nobody would ever find out that it is well again.
                self._observing.troubles.failed(entry.id.store.root, error)
            with tally.lock:
                tally.failures.append(f"{entry.id.ref}: {error}")
            if isinstance(error, OSError) and error.errno in _FULL:
                # What else is compiled could not be kept either.
                bench.cancel.set()
            return
        finally:
            bench.waiting.release()
        if bench.wish.into is None:
            self._observing.troubles.worked(entry.id.store.root)
        with tally.lock:
            tally.compile_seconds += seconds
            tally.rebuilt += key is not None
            tally.present += key is None

    def _note(self, made: EntryId, one: Rebuild, recipe: Recipe, binary: bytes, seconds: float, bench: _Bench) -> None:
        digest = hashlib.blake2b(binary, digest_size=16).hexdigest()
        built = Built(
            made,
            one.to,
            bench.wish.origin,
            bench.driver(one).stamp,
            len(recipe.image),
            seconds,
            digest,
            self._heirs(one, bench.wish),
        )
        self._observing.catalog.record_build(built, self._observing.clock())

    def _heirs(self, one: Rebuild, wish: Wish) -> tuple[ModelName, ...]:
        """Give the models for whose programs an entry was rebuilt: of its own, those that meet what it is for."""
        if wish.is_elsewhere:
            return one.entry.models
        present = self._observing.present
        return tuple(name for name in one.entry.models if one.to in present.seen_by(name).environments)

    def _refused(self, one: Rebuild, words: str, bench: _Bench) -> None:
        entry = one.entry.entry
        place = planning.tail(one.entry)
        log.warning("an entry could not be rebuilt: %s: %s", entry.id.key, words)
        with bench.tally.lock:
            bench.tally.failures.append(f"{entry.id.ref}: {words}")
        if place is not None:
            observing = self._observing
            into = bench.wish.into
            store = Store(entry.id.store.kind, into) if into is not None else entry.id.store
            observing.catalog.record_refusal(
                store, place[1], one.to.fingerprint, bench.driver(one).stamp, words, observing.clock()
            )


def _driver(one: Rebuild, drivers: Sequence[OtherDriver]) -> OtherDriver:
    """Give the driver that an entry is rebuilt with: of those that offer what it is for, its model's own first."""
    offering = [driver for driver in drivers if one.to in driver.environments]
    return next((driver for driver in offering if driver.models.intersection(one.entry.models)), offering[0])


def _workers() -> int:
    return min(_MOST_WORKERS, host.cores())


def _admitted(bench: _Bench) -> bool:
    """Wait until another compiler may work: one always may, more if there is memory and nothing waits for it."""
    tally = bench.tally
    while not bench.cancel.is_set():
        with tally.lock:
            if tally.compiling == 0 or (host.memory_left() > _ROOM and not host.strained()):
                tally.compiling += 1
                return True
        bench.cancel.wait(0.5)
    return False


def _caches(one: Rebuild, bench: _Bench) -> tuple[tuple[str, str], ...]:
    """Give the variables that lead the GPU driver to its own cache: as asked for, or as the entry's model has them."""
    if bench.wish.driver_cache is not None:
        return (("NEO_CACHE_DIR", str(bench.wish.driver_cache)), ("NEO_CACHE_PERSISTENT", "1"))
    model = next((bench.models[name] for name in one.entry.models if name in bench.models), None)
    if model is None:
        return ()
    theirs = model.workload.variables
    return tuple((name, theirs[name]) for name in _CACHES if name in theirs)


def _make_places(wish: Wish) -> None:
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


def _pace(done: int, total: int, seconds: float) -> str:
    """Say how fast it goes and how long it will last."""
    if not done or seconds <= 0:
        return "rebuilding"
    rate = done / seconds
    return f"rebuilding, {rate:.1f} a second, {(total - done) / rate:.0f} s left"
