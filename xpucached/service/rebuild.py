"""Rebuild: compilers at work on what entries hold themselves, in threads; what comes of it is for the caller."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from msgspec.structs import replace

from xpucached import deadlines, mounts
from xpucached.catalog.builds import record_build, withdraw_build
from xpucached.catalog.models import models_by_name
from xpucached.catalog.recipes import recipe_lineages
from xpucached.domain.host import OtherDriver
from xpucached.domain.plans import Built, NoRecipe
from xpucached.domain.stores import EntryId, Store, program_digest
from xpucached.errors import CatalogError
from xpucached.host import capacity
from xpucached.kinds import driver_cache, table
from xpucached.kinds.table import KINDS
from xpucached.processes import scratch
from xpucached.processes.cancellation import ended
from xpucached.processes.compiler import BuildFailed, BuildHung, CompilerKilled, NoCompiler
from xpucached.service.owners import answers, there

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from xpucached.domain.models import Model
    from xpucached.domain.names import EntryKey, ModelName
    from xpucached.domain.plans import CompilerSpec, Rebuild, Recipe
    from xpucached.domain.targets import Origin, Target
    from xpucached.host.core_slots import CoreSlot
    from xpucached.processes.compiler import CompilerProcess
    from xpucached.processes.supervised import ProcessStarter
    from xpucached.service.context import Context
    from xpucached.service.jobs import Handle

log = logging.getLogger(__name__)

_MOST_WORKERS: Final = 8
"""Each compiler holds some hundred megabytes; beyond so many the disk and the memory are what is short."""

_ROOM: Final = 1 << 30
"""Bytes of memory that must be left before another compiler starts to work beside the first."""

_FIRST: Final = 5
"""What takes longer than this part of the time limit waits until the others are done: one that hangs holds up none."""
_HASTY: Final = 30
"""The part of the limit that is left where so many hung already …"""
_MOST_HUNG: Final = 5
_MOST_LATE: Final = 3
"""… and so many take the whole limit in vain before the rest of their store is given up."""
_MOST_ABSENT: Final = 3
"""So often a compiler is started in vain before an environment is given up, until the next time."""
_MOST_KILLED: Final = 10
"""So many are killed one after the other, before it is given up as well: some large programs do not stop the rest."""

_BEAT: Final = 0.2
"""Seconds between two reports of how far it is."""


class Results(Protocol):
    """Hears what became of each rebuild, in the thread that did it."""

    @property
    def answered(self) -> int:
        """How many came to their end."""

    def built(self, one: Rebuild, recipe: Recipe, binary: bytes, seconds: float) -> None:
        """Take what was compiled; the compiler waits meanwhile."""

    def skipped(self, one: Rebuild, why: NoRecipe) -> None:
        """Hear that reading the entry showed that it cannot be compiled again."""

    def failed(self, one: Rebuild, words: str, *, blamed: bool) -> None:
        """Hear that it was not compiled; ``blamed`` where the compiler refused it, and would again."""


class RebuildJob:
    """Compiles entries again, with a compiler for each environment and driver's cache in each of some threads."""

    def __init__(
        self,
        context: Context,
        starter: ProcessStarter,
        todo: Iterable[Rebuild],
        drivers: Sequence[OtherDriver],
        results: Results,
        driver_cache: Path | None = None,
        recipes: Mapping[EntryId, Recipe] | None = None,
    ) -> None:
        """``driver_cache`` stands in place of the models' own; what has one of the ``recipes`` is not read any more."""
        self._context = context
        self._starter = starter
        self._todo = iter(todo)
        self._drivers = drivers
        self._models: Mapping[ModelName, Model] = {}
        self._limit = context.settings.driver.compile_timeout
        self._results = results
        self._driver_cache = driver_cache
        self._recipes = recipes or {}
        self._managed = table.variables(context.settings.managed)
        self._lock = threading.Lock()
        self._compiling = 0
        self._late: list[Rebuild] = []  # what took too long while others waited
        self._hung: Counter[Path] = Counter()  # by store: how many did
        self._lost: Counter[Path] = Counter()  # by store: how many took too long even at the end
        self._absent: Counter[Target] = Counter()  # how often no compiler for it could be started
        self._killed: Counter[Target] = Counter()  # how many of its compilers were, since one was not
        self._closed: set[Store] = set()  # into these nothing can be put
        self._telling: OtherDriver | None = None  # which driver tells what it is asked for for caches above its own
        self.cancel = threading.Event()
        """Whoever sets it ends the work."""
        self.tells = False
        """Whether the driver shall tell what it puts into its own cache: for who calls `keep_told` or `forget_told`."""

    async def run(self, handle: Handle, total: int) -> None:
        """Compile, in some threads, and tell how far it is of so many.  Cancelled, it ends cleanly."""
        self._models = await self._context.read(models_by_name)
        began = time.monotonic()
        threads = [asyncio.create_task(asyncio.to_thread(self.work_off)) for _ in range(min(workers(), total))]
        try:
            while threads and not all(thread.done() for thread in threads):
                handle.progress(self._results.answered, total, _pace(self._results.answered, total, began))
                await asyncio.wait(threads, timeout=_BEAT, return_when=asyncio.ALL_COMPLETED)
        finally:
            self.cancel.set()
            if threads:
                await ended(asyncio.ensure_future(asyncio.wait(threads)))
        for thread in threads:
            thread.result()

    def work_off(self) -> None:
        """Take one rebuild after the other, in this thread."""
        with scratch.workplace() as place:
            self._work_in(mounts.real(place))

    def _work_in(self, place: str) -> None:
        compilers: dict[tuple[str, CompilerSpec, tuple[tuple[str, str], ...]], CompilerProcess] = {}
        core = self._context.cores.slot()
        try:
            while self._admitted(core):
                try:
                    if not core.hold(self.cancel):
                        return
                    with self._lock:
                        one, last = next(self._todo, None), False
                        if one is None and self._late:
                            one, last = self._late.pop(0), True
                    if one is None:
                        return
                    driver = driver_for(one, self._drivers)
                    spec = table.rebuilder(one.entry.entry).compiler(one.to, Path(place))
                    caches = () if spec.variables else self._caches(one)
                    compiler = compilers.get((driver.stamp, spec, caches))
                    if compiler is None:
                        variables = {**driver.variables, **dict(caches), **self._traces(caches, driver)}
                        compiler = self._starter.compiler(spec, variables, driver.command, place)
                        compilers[driver.stamp, spec, caches] = compiler
                    self._rebuild(one, compiler, driver, place, last=last)
                finally:
                    with self._lock:
                        self._compiling -= 1
        finally:
            core.give_back()
            for compiler in compilers.values():
                compiler.close()

    def _why_in_vain(self, one: Rebuild) -> str:
        """Return why compiling would be in vain, whatever there is to compile; empty if it may not be."""
        if one.entry.entry.id.store in self._closed:
            return "nothing can be put into its store now"
        if self._absent[one.to] >= _MOST_ABSENT:
            return "no compiler could be started"
        return "one compiler after the other was killed" if self._killed[one.to] >= _MOST_KILLED else ""

    def leave_out(self, store: Store) -> None:
        """Compile nothing more of a store's entries: none could be put there."""
        self._closed.add(store)

    def _rebuild(self, one: Rebuild, compiler: CompilerProcess, driver: OtherDriver, place: str, *, last: bool) -> None:
        entry = one.entry.entry
        root = entry.id.store.root
        limit = self._limit if last else self._limit / (_FIRST if self._hung[root] < _MOST_HUNG else _HASTY)
        if last and self._lost[root] >= _MOST_LATE:
            self._results.failed(one, "other programs of its store took too long to compile", blamed=True)
            return
        if words := self._why_in_vain(one):
            self._results.failed(one, words, blamed=False)
            return
        recipe = self._recipes.get(entry.id) or self._context.recipe(entry)
        if isinstance(recipe, NoRecipe):
            self._results.skipped(one, recipe)
            return
        try:
            scratch.clear(place)
            answer, seconds = compiler.build(recipe, self.cancel, limit)
            made = self._made(one, recipe, driver, answer, place)
        except OSError as error:
            # Of our own place, or of the driver in it.
            self._results.failed(one, error.strerror or str(error), blamed=False)
            return
        except BuildHung as error:
            with self._lock:
                self._hung[root] += 1
                self._lost[root] += last
                if not last:
                    self._late.append(one)
            if last:
                self._results.failed(one, str(error), blamed=True)
            return
        except NoCompiler as error:
            # Not the entry's fault: the next time tries again.
            if not self.cancel.is_set():
                log.warning("an entry could not be rebuilt: %s: %s", entry.id.key, error)
                with self._lock:
                    (self._killed if isinstance(error, CompilerKilled) else self._absent)[one.to] += 1
                self._results.failed(one, str(error), blamed=False)
            return
        except BuildFailed as error:
            if not self.cancel.is_set():
                self._results.failed(one, str(error), blamed=True)
            return
        with self._lock:
            self._killed[one.to] = 0
        if isinstance(made, str):
            self._results.failed(one, made, blamed=True)
            return
        self._results.built(one, *made, seconds)

    def _made(
        self, one: Rebuild, recipe: Recipe, driver: OtherDriver, answer: bytes, place: str
    ) -> tuple[Recipe, bytes] | str:
        """Return what came of a recipe, or why no program may get it.  Raises OSError if nothing can be said."""
        rebuilder = table.rebuilder(one.entry.entry)
        host = replace(self._context.present, devices=driver.devices, driver=driver.driver, drivers=())
        made = rebuilder.made(recipe, one.to, host, answer, Path(place))
        if isinstance(made, str):
            return made
        wrong = rebuilder.unusable(one.to, made[1])
        # Programs would fail with it at every start, or until the next look.
        return f"the driver's compiler gave what no program can load: {wrong}" if wrong else made

    def _admitted(self, core: CoreSlot) -> bool:
        """Wait until another compiler may work: one always may, more if there is memory and nothing waits for it."""
        while not self.cancel.is_set():
            with self._lock:
                if self._compiling == 0 or (capacity.memory_left() > _ROOM and not capacity.strained()):
                    self._compiling += 1
                    return True
            core.give_back()
            self.cancel.wait(0.5)
        return False

    def filled(self) -> frozenset[Path]:
        """Return the root of the driver's own cache, if compilers told what they put there, and it is there.  Blocks.

        It may have been removed, and no compiler makes it again.
        """
        root = None if self._telling is None else self._own_store().root
        return frozenset() if root is None or not there(root) else frozenset({root})

    def keep_told(self) -> None:
        """Note how what the driver put into its own cache meanwhile is compiled: it is not compiled once more.

        What is there now is for what is told.  Raises OSError and `CatalogError`.
        """
        driver, recorder = self._telling, KINDS[driver_cache.KIND].recorder
        store, context = self._own_store(), self._context
        if driver is None or recorder is None or not answers(store.root):
            return
        host = replace(context.present, devices=driver.devices, driver=driver.driver, drivers=())
        told = recorder.collect(store, frozenset(), host).recipes
        proven = set(context.catalog.read(recipe_lineages).values())
        # What programs were not seen to ask for twice is none the more for our having asked for it.
        context.recipes.keep(store.kind, [one for one in told if one.lineage in proven], context.clock(), proven=True)

    def forget_told(self) -> None:
        """Take away what the driver told, unread."""
        recorder = KINDS[driver_cache.KIND].recorder
        store = self._own_store()
        if self._telling is not None and recorder is not None and answers(store.root):
            recorder.forget(store)

    def _own_store(self) -> Store:
        """Return the driver's own managed cache where it lies: none is looked at, or changed, by a link.  Blocks."""
        named = self._context.settings.managed(driver_cache.KIND)
        try:
            return Store(driver_cache.KIND, deadlines.ask(named, lambda: Path(mounts.real(named))))
        except TimeoutError:
            return Store(driver_cache.KIND, named)

    def _traces(self, caches: tuple[tuple[str, str], ...], driver: OtherDriver) -> Mapping[str, str]:
        """Return what makes the driver tell what goes into its own managed cache; of one driver only."""
        recorder, named = KINDS[driver_cache.KIND].recorder, self._context.settings.managed(driver_cache.KIND)
        if not self.tells or recorder is None or driver_cache.root(caches) != named:
            return {}
        with self._lock:
            self._telling = self._telling or driver
            return recorder.variables(Store(driver_cache.KIND, named)) if self._telling == driver else {}

    def _caches(self, one: Rebuild) -> tuple[tuple[str, str], ...]:
        """Return what leads the GPU driver to its own cache: as asked for, or as the entry's model has it."""
        if self._driver_cache is not None:
            return driver_cache.at(self._driver_cache)
        model = next((self._models[name] for name in one.entry.models if name in self._models), None)
        if model is None:
            return ()
        return driver_cache.of({**model.workload.variables, **self._managed})


def workers() -> int:
    """Return how many compilers work at once, at most."""
    return min(_MOST_WORKERS, capacity.cores())


def drivers_in_use(context: Context) -> tuple[OtherDriver, ...]:
    """Return the drivers that programs on this host use, the host's own first."""
    present, variables = context.present, context.settings.driver.variables
    return (
        OtherDriver(present.environments, present.stamp, variables, devices=present.devices, driver=present.driver),
        *(
            OtherDriver(
                one.environments,
                one.stamp,
                {**variables, **one.variables},
                models=frozenset(one.models),
                devices=one.devices,
                driver=one.driver,
            )
            for one in present.drivers
        ),
    )


def driver_for(one: Rebuild, drivers: Sequence[OtherDriver]) -> OtherDriver:
    """Return the driver that an entry is rebuilt with: of those that offer what it is for, its model's own first."""
    offering = [driver for driver in drivers if one.to in driver.environments]
    return next((driver for driver in offering if driver.models.intersection(one.entry.models)), offering[0])


def publish(
    context: Context,
    one: Rebuild,
    made: tuple[Recipe, bytes],
    seconds: float,
    origin: Origin,
    drivers: Sequence[OtherDriver],
    models: tuple[ModelName, ...],
    into: Path | None = None,
) -> EntryKey | None:
    """Put a compiled program in its place, and note that it is our work, and for which models; see `Rebuilder.publish`.

    It is noted before: were we killed in between, nobody would ever know.  Raises OSError, and `CatalogError` where it
    cannot be noted; then it is not put there.
    """
    entry, (recipe, binary) = one.entry.entry, made
    rebuilder, store = table.rebuilder(entry), Store(entry.id.store.kind, into or entry.id.store.root)
    if not answers(store.root):
        raise TimeoutError(errno.ETIMEDOUT, "its file system does not answer", os.fspath(store.root))
    stamp, digest = driver_for(one, drivers).stamp, program_digest(binary).hexdigest()
    expected, now, size = rebuilder.expected_key(recipe, one.to), context.clock(), entry.image_size

    def built(key: EntryKey) -> Built:
        return Built(EntryId(store, key), one.to, origin, stamp, size, seconds, digest, models, entry)

    if expected is not None:
        context.catalog.write(record_build, built(expected), now, coming=True)
    key = rebuilder.publish(recipe, one.to, binary, into)
    try:
        if key is not None:
            context.catalog.write(record_build, built(key), now)
        elif expected is not None:
            context.catalog.write(withdraw_build, EntryId(store, expected), now)
    except CatalogError as error:
        # It is in its place, and noted where it was expected.
        log.warning("what a rebuild took could not be noted: %s: %s", entry.id.key, error.message)
    return key


def _pace(done: int, total: int, since: float) -> str:
    """Return how fast it goes since a moment of the monotonic clock, and how long it will last."""
    seconds = time.monotonic() - since
    if not done or seconds <= 0:
        return "rebuilding"
    rate = done / seconds
    return f"rebuilding, {rate:.1f} a second, {(total - done) / rate:.0f} s left"
