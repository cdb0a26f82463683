"""Recipes of a bundle at the compiler, without daemon and catalog: what lacks is made, what is there stays."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import queue
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from xpucached import mounts
from xpucached.bundling.inspecting import recipe_of
from xpucached.domain.bundles import MadeEntry, RecipeFailure
from xpucached.domain.stores import program_digest
from xpucached.errors import HostError
from xpucached.host import capacity
from xpucached.host.core_slots import CoreBudget
from xpucached.kinds import build_options, driver_cache
from xpucached.kinds.table import KINDS
from xpucached.processes import child, scratch
from xpucached.processes.compiler import BuildFailed, CompilerKilled, CompilerProcess, NoCompiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from xpucached.bundle.members import Bundle, MemberManifest
    from xpucached.bundling.drivers import UsedDriver
    from xpucached.bundling.progress import Progress
    from xpucached.domain.bundles import RecipeLine
    from xpucached.domain.names import EntryKey, KindName
    from xpucached.domain.plans import CompilerSpec, Recipe
    from xpucached.domain.targets import Target
    from xpucached.host.core_slots import CoreSlot
    from xpucached.kinds.interface import Rebuilder

log = logging.getLogger(__name__)

_MOST_WORKERS: Final = 8
_MOST_ABSENT: Final = 3
"""So often a compiler is started in vain before the rest is given up."""
_MOST_KILLED: Final = 10
"""So many are killed one after the other before that: a few programs that take all memory do not stop the rest."""
_LONGEST_WORDS: Final = 200


def is_held(leaf: Path) -> bool:
    """Return whether anything lies at the place of an entry: what was evicted may leave an empty directory there."""
    try:
        with os.scandir(leaf) as files:
            return next(files, None) is not None
    except FileNotFoundError:
        return False
    except OSError:
        return True


class TakenPlaces:
    """Which places of a store are taken: the directories of a device are listed once.

    Who fills one of them meanwhile is met when a program is put there.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._below: dict[str, frozenset[str]] = {}

    def has(self, leaf: str) -> bool:
        """Return whether anything lies at the place of an entry."""
        top, below, *_ = leaf.split("/")
        if top not in self._below:
            try:
                self._below[top] = frozenset(os.listdir(self._root / top))
            except FileNotFoundError:
                self._below[top] = frozenset()
            except OSError:
                return is_held(self._root / leaf)
        return below in self._below[top] and is_held(self._root / leaf)


class Shard(Struct, frozen=True):
    """Which part of the recipes is compiled: it follows from each one's content, so hosts need no common order."""

    index: int = 0
    count: int = 1

    def has(self, line: RecipeLine) -> bool:
        """Return whether a recipe is in this part."""
        digest = hashlib.sha256(line.at.encode()).hexdigest()
        return int(digest[:8], 16) % self.count == self.index


class Wanted(Struct, frozen=True):
    """A recipe, and for what it is to be compiled."""

    recipe: Recipe
    target: Target


class Recompiler:
    """Compiles recipes in some threads, each with compilers of its own, and puts what comes of it into stores."""

    def __init__(
        self,
        used: UsedDriver,
        stores: Mapping[KindName, Path],
        limit: float,
        progress: Progress,
        total: int,
        cache: Path | None = None,
        threads: int = 0,
        *,
        trusted: bool,
        until: float | None = None,
        came: Callable[[MadeEntry, bool], None] = lambda *_: None,
    ) -> None:
        """``limit`` are the seconds for one; ``cache`` is where the GPU driver keeps its own meanwhile.

        ``threads`` is how many compile at a time; 0: as many as there are processors for us.  What nobody who is
        ``trusted`` signed is compiled only with build options that are known.  But for the first recipe none is begun
        when ``until`` (of the monotonic clock) is over.  ``came`` is told of each entry before it is put into its store
        (true), and when it is there (false).
        """
        self._used = used
        self._stores = stores
        self._limit = limit
        self._progress = progress
        self._total = total
        self._cache = cache
        self._trusted = trusted
        self._threads = threads or min(_MOST_WORKERS, capacity.cores())
        self._until = until
        self._came = came
        self._queue: queue.Queue[tuple[int, Wanted] | None] = queue.Queue(2 * _MOST_WORKERS)
        self._lock = threading.Lock()
        self._cores = CoreBudget()
        self._absent = 0
        self._killed = 0  #: compilers since one was not
        self._without = ""  #: why there is no compiler for the rest
        self._cancel = threading.Event()
        self._broken: list[BaseException] = []
        self.made: list[MadeEntry] = []
        self.found: list[Path] = []  #: directories of entries that were there before
        self.failures: list[RecipeFailure] = []
        self.next: int | None = None  #: the first one that was not begun, as the time was up

    @property
    def present(self) -> int:
        """How many were there before."""
        return len(self.found)

    def run(self, wanted: Iterator[Wanted], first: int = 0) -> None:
        """Compile what is wanted, from the ``first`` on.

        Raises OSError of the stores, and `HostError` where no compiler starts.
        """
        workers: list[threading.Thread] = []
        try:
            for _ in range(self._threads):
                worker = threading.Thread(target=self._work, args=(first,))
                worker.start()
                workers.append(worker)
            for number, item in enumerate(wanted):
                if self._cancel.is_set() or self._is_late(number, first):
                    break
                if number >= first:
                    self._queue.put((number, item))
        except BaseException:
            self._cancel.set()
            raise
        finally:
            for _ in workers:
                self._queue.put(None)
            for one in workers:
                one.join()
        if self._broken:
            raise self._broken[0]
        if self._without:
            raise HostError(self._without, hint="see: xpucachectl devices")

    def _is_late(self, number: int, first: int) -> bool:
        """Return whether the time is up for a recipe, and remember where to go on; the first one always has time."""
        if self._until is None or number <= first or time.monotonic() < self._until:
            return False
        with self._lock:
            self.next = number if self.next is None else min(self.next, number)
        return True

    def _work(self, first: int) -> None:
        compilers: dict[CompilerSpec, CompilerProcess] = {}
        core = self._cores.slot()
        try:
            with scratch.directory() as place:
                while (item := self._next(core)) is not None:
                    if not self._is_late(item[0], first) and core.hold(self._cancel):
                        self._one(item[1], compilers, mounts.real(place))
        except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that waits
            self._broken.append(error)
            self._cancel.set()
            while self._queue.get() is not None:
                pass
        finally:
            core.give_back()
            for one in compilers.values():
                one.close()

    def _next(self, core: CoreSlot) -> tuple[int, Wanted] | None:
        """Wait for what is wanted next; None is the end.  Others have the core while there is nothing to do."""
        with contextlib.suppress(queue.Empty):
            return self._queue.get_nowait()
        core.give_back()
        return self._queue.get()

    def _one(self, item: Wanted, compilers: dict[CompilerSpec, CompilerProcess], place: str) -> None:
        kind = KINDS[item.target.kind]
        rebuilder, into = kind.rebuilder, self._stores[item.target.kind]
        if rebuilder is None:
            return
        key = rebuilder.expected_key(item.recipe, item.target)
        leaf = None if key is None else into / key.rpartition("/")[0]
        if leaf is not None and is_held(leaf):
            self._count(present=leaf)
            return
        odd = "" if self._trusted else build_options.unknown(item.recipe.options)
        if odd:
            self._fail(item, f"build option {odd} is taken only from who is trusted, and no trusted key signed it")
            return
        spec = rebuilder.compiler(item.target, Path(place))
        compiler = compilers.get(spec)
        if compiler is None:
            driver = self._used.driver
            caches = driver_cache.at(self._cache or Path(place, "driver")) if not spec.variables else ()
            variables = {**driver.variables, **dict(caches)}
            compiler = CompilerProcess(child.environment(variables), spec, "bundle", driver.command, place)
            compilers[spec] = compiler
        try:
            scratch.clear(place)
            answer, seconds = compiler.build(item.recipe, self._cancel, self._limit)
            made = rebuilder.made(item.recipe, item.target, self._used.host, answer, Path(place))
        except NoCompiler as error:
            self._miss(error, self._fail(item, str(error)))
            return
        except (BuildFailed, OSError) as error:
            self._fail(item, str(error))
            return
        with self._lock:
            self._killed = 0
        if isinstance(made, str):
            self._fail(item, made)
            return
        self._publish(item.target, made, seconds, into, rebuilder)

    def _publish(
        self, target: Target, made: tuple[Recipe, bytes], seconds: float, into: Path, rebuilder: Rebuilder
    ) -> None:
        recipe, binary = made
        if wrong := rebuilder.unusable(target, binary):
            self._fail(Wanted(recipe, target), f"the compiler gave what no program can load: {wrong}")
            return
        digest = program_digest(binary).hexdigest()

        def made_entry(key: EntryKey) -> MadeEntry:
            return MadeEntry(target.kind, into, key, digest, target.family, seconds, len(recipe.input))

        if (expected := rebuilder.expected_key(recipe, target)) is not None:
            with self._lock:
                self._came(made_entry(expected), True)  # noqa: FBT003 - it is coming
        key = rebuilder.publish(recipe, target, binary, into)
        if key is None:
            self._count(present=into)
            return
        with self._lock:
            self.made.append(made_entry(key))
            self._came(self.made[-1], False)  # noqa: FBT003 - it came
        self._count()

    def _count(self, *, present: Path | None = None) -> None:
        with self._lock:
            if present is not None:
                self.found.append(present)
            done = len(self.made) + self.present + len(self.failures)
            self._progress(done, self._total, "compiling")

    def _miss(self, error: NoCompiler, why: str) -> None:
        """Give up where there is no compiler again and again; what was cancelled says nothing of that."""
        with self._lock:
            if self._cancel.is_set():
                return
            if isinstance(error, CompilerKilled):
                self._killed += 1
            else:
                self._absent += 1
            if self._absent >= _MOST_ABSENT:
                self._without = f"no compiler can be started: {why}"
            elif self._killed >= _MOST_KILLED:
                self._without = f"one compiler after the other was killed: {why}"
            if self._without:
                self._cancel.set()

    def _fail(self, item: Wanted, words: str) -> str:
        """Note that nothing came of a recipe, and give why, in one line."""
        line = next(filter(None, map(str.strip, words.splitlines())), "the compiler refused it")
        with self._lock:
            self.failures.append(RecipeFailure(item.target.kind, item.recipe.entry.key, line[:_LONGEST_WORDS]))
        self._count()
        return line[:_LONGEST_WORDS]


def wanted(
    bundle: Bundle, member: MemberManifest, used: UsedDriver, stores: Mapping[KindName, Path], shard: Shard
) -> Iterator[Wanted]:
    """Yield the recipes of a bundle for each target of a driver that they fit, as far as there is a store for them."""
    targets = [one for one in used.driver.environments if one.kind in stores]
    for lines, given in bundle.recipes(member):
        for line in lines:
            fitting = [one for one in targets if (one.kind, one.family) == (line.kind, line.family)]
            if fitting and shard.has(line):
                recipe = recipe_of(line, given, stores[line.kind])
                for target in fitting:
                    yield Wanted(recipe, target)
