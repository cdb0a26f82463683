"""What is there: the host, the stores and the model files, looked at and recorded."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import pwd
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached import settings
from xpucached.catalog.models import all_models, sync_file_models
from xpucached.catalog.scans import known_entries, record_scan
from xpucached.catalog.stores import all_stores, forget_store, known_keys, last_thorough_scan
from xpucached.domain.activity import FileAct
from xpucached.domain.host import Host, Problem
from xpucached.domain.names import EntryKey
from xpucached.domain.plans import ScanReport
from xpucached.domain.secrecy import of_problem
from xpucached.domain.stores import Delta, EntryId, FoundStore, KnownEntry, Scan, Store, StoreOrigin, StoreState
from xpucached.errors import CatalogError, Conflict, NotFound
from xpucached.host import process_table
from xpucached.kinds.table import KINDS, MODELS, libraries
from xpucached.service.owners import answers, foreign, foreign_store
from xpucached.service.problems import ProblemList
from xpucached.service.store_finder import StoreFinder, writers_since
from xpucached.service.survey import Surveyor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from xpucached.catalog import Catalog
    from xpucached.domain.activity import FileEvent
    from xpucached.domain.models import Model
    from xpucached.domain.names import EntryKey, KindName
    from xpucached.service.events import Clock, Events
    from xpucached.service.store_finder import WritersSince
    from xpucached.settings import Settings

log = logging.getLogger(__name__)

_THOROUGH: Final = timedelta(days=1)
"""So long a look goes by the directories.  What is written into a file in its place, no runtime does."""

_TOUCHED: Final = 10_000
"""Leaves of a store of which it is remembered that somebody wrote there; where it is more, all are looked at."""


def _sum(a: Delta, b: Delta) -> Delta:
    return replace(b, added=a.added + b.added, changed=a.changed + b.changed, vanished=a.vanished + b.vanished)


class Inventory:
    """Looks at the host and its stores, and keeps the catalog equal to them."""

    def __init__(
        self, config: Settings, catalog: Catalog, base: Mapping[str, str], clock: Clock, events: Events
    ) -> None:
        """``base`` is the environment of this process, for finding the stores of its user."""
        self.settings = config
        self.catalog = catalog
        self.clock = clock
        self.events = events
        self.storing = asyncio.Lock()
        """Held while a store is scanned or entries are removed: the two never overlap."""
        self.model_problems: tuple[Problem, ...] = ()
        self.foreign_stores: tuple[Problem, ...] = ()
        """The stores of other users that were named to a daemon of root's; they are left alone."""
        self.problem_list = ProblemList()
        self._base = base
        self._started = clock()
        self._surveyor = Surveyor(catalog, base, clock, events)
        self._stores: frozenset[Store] = frozenset()
        self._finder = StoreFinder(catalog, base, clock())
        self._touched: dict[Path, set[str]] = {}
        self._touching = threading.Lock()

    @property
    def unsettled(self) -> float | None:
        """The seconds after which the host should be looked at again, if a driver that was there does not answer."""
        return self._surveyor.unsettled

    @property
    def host(self) -> Host | None:
        """What the last survey found; None before the first one ever."""
        return self._surveyor.host

    @property
    def present(self) -> Host:
        """What the last survey found; an empty host before the first one."""
        return self.host or Host(self.clock(), "", "", "")

    @property
    def driver_variables(self) -> tuple[Mapping[str, str], ...]:
        """The variables that lead to each driver in use; those of no model first."""
        return self._surveyor.variables(self.settings)

    # -- the host -----------------------------------------------------------------------------------------------------

    async def survey(self, *, force: bool = False) -> None:
        """Look at the host; ask a driver only if its files changed since it last answered."""
        await self._surveyor.survey(self.settings, force=force)

    def reached(self, model: Model) -> frozenset[Path]:
        """Give the files of the driver to which a model's variables lead, in this thread."""
        return self._surveyor.reached(self.settings, model)

    def ask_driver(self) -> None:
        """Ask the drivers at the next survey even if nothing seems to have changed."""
        self._surveyor.ask_again()

    # -- stores -------------------------------------------------------------------------------------------------------

    def managed(self) -> FoundStore:
        """Give our own store of the kind that models are proven by.  Blocks."""
        root = self._finder.real_root(self.settings.managed(MODELS))
        return FoundStore(Store(MODELS, root), StoreOrigin.MANAGED, "managed")

    def store_of(self, model: Model) -> FoundStore:
        """Give the store that a model caches in.  Blocks."""
        if model.store is None:
            return self.managed()
        root = self._finder.real_root(model.store)
        return FoundStore(Store(MODELS, root), StoreOrigin.CONFIGURED, f"model {model.name}")

    def silence(self, model: Model) -> str:
        """Say why a model cannot be run, if the file system that it caches on does not answer.  Blocks."""
        root = self.store_of(model).store.root
        return "" if answers(root) else f"the file system of its cache does not answer: {root}"

    def refuse_foreign(self, model: Model) -> None:
        """Raise `Conflict` if a model would cache in a store that we do not work in.  Blocks."""
        found = self.store_of(model)
        owner = foreign(found.store)
        if owner is not None:
            problem = foreign_store(found, owner)
            raise Conflict(problem.message, hint=problem.hint)

    def variables(self, found: FoundStore) -> Mapping[str, str]:
        """Give what makes a program use a store, and of other kinds their managed ones."""
        variables: dict[str, str] = {}
        for name, kind in KINDS.items():
            root = found.store.root if name == found.store.kind else self.settings.managed(name)
            variables |= kind.discovery.enable(root)
        return variables

    def _find(self) -> tuple[tuple[FoundStore, ...], WritersSince]:
        found, self.foreign_stores, writers = self._finder.find(self.settings)
        self._stores = frozenset(one.store for one in found)
        return found, writers

    def kinds_at(self, root: Path) -> frozenset[KindName]:
        """Give the kinds of the stores that were found at a path; of a path that is not known, all."""
        return frozenset(store.kind for store in self._stores if store.root == root) or frozenset(KINDS)

    def places(self) -> tuple[Path, ...]:
        """Give the roots of all stores that can be found."""
        return tuple(one.store.root for one in self._find()[0])

    async def scan_stores(
        self,
        roots: frozenset[Path] = frozenset(),
        *,
        full: bool = False,
        thorough: bool = False,
        again: Callable[[EntryKey], bool] | None = None,
        progress: Callable[[int, int, str], None] | None = None,
    ) -> ScanReport:
        """Look at these stores, or at all that can be found, and record what they hold.

        What seems unchanged is not read again, unless ``full`` or ``again`` says so.  ``thorough`` looks at every file
        even where no directory changed, which else is done once a day.
        """
        began = time.monotonic()
        found, writers = await asyncio.to_thread(self._find)
        wanted = [one for one in found if not roots or one.store.root in roots]
        missing = roots - {one.store.root for one in wanted}
        if missing:
            for problem in self.foreign_stores:
                if Path(problem.subject) in missing:
                    raise Conflict(problem.message, hint=problem.hint)
            raise NotFound(
                f"no store at {', '.join(sorted(map(str, missing)))}",
                hint="see: xpucachectl stores; further ones can be listed as stores.paths in the configuration",
            )
        total = Delta()
        loop = asyncio.get_running_loop()

        def far(number: int, root: Path, entries: int) -> None:
            if progress:
                seen = f"{root}: {entries} entries" if entries else str(root)
                loop.call_soon_threadsafe(progress, number, len(wanted), seen)

        failed: Exception | None = None
        for number, one in enumerate(wanted):
            seen = functools.partial(far, number, one.store.root)
            seen(0)
            try:
                async with self.storing:
                    delta = await asyncio.to_thread(
                        self.scan, one, writers[one.store.kind], full=full, thorough=thorough, again=again, seen=seen
                    )
            except CatalogError:
                raise
            except Exception as error:  # noqa: BLE001 - raised below: one store must not hide the others
                log.warning("%s could not be looked at: %r", one.store.root, error)
                failed = failed or error
            else:
                total = replace(_sum(total, delta), entries=total.entries + delta.entries)
        if failed is not None:
            raise failed
        if progress:
            progress(len(wanted), len(wanted), "")
        if not roots:
            await asyncio.to_thread(self._forget_stores, {one.store for one in found})
        if total.added or total.changed or total.vanished:
            self.events.post(
                "scanned",
                f"{total.added} new, {total.changed} changed, {total.vanished} vanished entries",
                {"added": str(total.added), "changed": str(total.changed), "vanished": str(total.vanished)},
            )
        seconds = time.monotonic() - began
        return ScanReport(len(wanted), total.added, total.changed, total.vanished, total.entries, seconds)

    def writers(self) -> WritersSince:
        """Tell since when a live process of ours could be writing to a store, by the kind of the store."""
        return writers_since(process_table.processes(os.getuid(), libraries()))

    def scan(
        self,
        found: FoundStore,
        writer_since: datetime | None,
        *,
        full: bool = False,
        thorough: bool = False,
        again: Callable[[EntryKey], bool] | None = None,
        seen: Callable[[int], None] = lambda _entries: None,
    ) -> Delta:
        """Look at one store, in this thread; `storing` must be held.  ``seen`` hears how many entries that were."""
        now = self.clock()
        looked = self.catalog.read(last_thorough_scan, found.store)
        with self._touching:
            touched = self._touched.pop(found.store.root, set())
        recent = looked is not None and timedelta() <= now - looked < _THOROUGH
        quick = recent and len(touched) < _TOUCHED and not (full or thorough)

        def known() -> Iterator[KnownEntry]:
            for row in known_entries(self.catalog, found.store):
                if full or (again is not None and again(row.key)):
                    yield KnownEntry(row.key)
                elif row.key.rpartition("/")[0] in touched:
                    yield KnownEntry(row.key, row.stamp)
                else:
                    yield row

        whole = False
        try:
            delta, ours, whole = self._look(found, now, known(), writer_since, seen, quick=quick)
        finally:
            if touched and not whole:
                with self._touching:
                    self._touched.setdefault(found.store.root, set()).update(touched)
        if ours:
            # A predecessor was killed while it removed these: finish, and look again.
            for key in ours:
                KINDS[found.store.kind].remover.sweep(EntryId(found.store, key))
            log.info("finished removals of a predecessor: %d", len(ours))
            delta = _sum(delta, self._look(found, now, known(), writer_since, seen, quick=quick)[0])
        return delta

    def _look(
        self,
        found: FoundStore,
        now: datetime,
        known: Iterable[KnownEntry],
        writer_since: datetime | None,
        seen: Callable[[int], None],
        *,
        quick: bool,
    ) -> tuple[Delta, tuple[EntryKey, ...], bool]:
        """Look and record; give what changed, what is ours to finish, and whether the look came to its end."""
        total = Delta()
        looked = 0
        ours: tuple[EntryKey, ...] = ()
        silent = Scan(found, now, StoreState.UNREADABLE, None, notes=("its file system does not answer",), vanished=())
        parts: Iterable[Scan] = (silent,)
        scanner = KINDS[found.store.kind].scanner
        if answers(found.store.root):
            parts = scanner.parts(found, now, known, writer_since, quick=quick)
        for part in parts:
            total = _sum(total, self.catalog.write(record_scan, part, scanner.architecture))
            ours = part.ours
            looked += len(part.entries) + len(part.unchanged)
            seen(looked)
            if part.state is StoreState.UNREADABLE:
                self.problem_list.unreadable(found.store.root, "; ".join(part.notes))
            else:
                self.problem_list.look(found.store.root)
        if part.state is StoreState.OK:
            self.problem_list.faults(found.store.root, part.faults)
        return total, ours, part.state is StoreState.OK

    def take_touch(self, file_event: FileEvent) -> None:
        """Hear what a process did in a store; from any thread.  What it wrote is looked at, however quick the look."""
        if file_event.act is FileAct.WRITTEN:
            with self._touching:
                some = self._touched.setdefault(file_event.store, set())
                if len(some) < _TOUCHED:
                    some.add(file_event.path.rpartition("/")[0])

    def run_stores(self, found: FoundStore) -> tuple[FoundStore, ...]:
        """Give the stores that a run writes to which caches in this one: this, and of other kinds our own.  Blocks."""
        others = [
            FoundStore(Store(name, self._finder.real_root(self.settings.managed(name))), StoreOrigin.MANAGED, "managed")
            for name, kind in KINDS.items()
            if name != found.store.kind and kind.discovery.enable(self.settings.managed(name))
        ]
        return (found, *others)

    async def entries_now(self, stores: Sequence[FoundStore]) -> frozenset[EntryId]:
        """Look at stores, and give what is in them."""

        def look() -> frozenset[EntryId]:
            writers = self.writers()
            for one in stores:
                self.scan(one, writers[one.store.kind])
            return frozenset(
                EntryId(one.store, key) for one in stores for key in self.catalog.read(known_keys, one.store)
            )

        async with self.storing:
            return await asyncio.to_thread(look)

    def _forget_stores(self, found: set[Store]) -> None:
        for status in self.catalog.read(all_stores):
            if status.id not in found and answers(status.store):
                self.catalog.write(forget_store, status.id)
                self.problem_list.forget(str(status.store))

    # -- model files --------------------------------------------------------------------------------------------------

    async def load_models(self) -> None:
        """Read the model files again; what a damaged one said before stays, and the damage is shown."""
        await asyncio.to_thread(self._load_models)

    def _load_models(self) -> None:
        declared, problems = settings.models(self.settings.models_directory)
        if self.settings.host_models is not None:
            theirs, more = settings.models(self.settings.host_models, user=pwd.getpwuid(os.getuid()).pw_name)
            # What is wrong with others' files is theirs to hear; the host's daemon says it.
            names = {model.name for model in theirs}
            declared = (*theirs, *(model for model in declared if model.name not in names))
            log.debug("the host's model files have mistakes: %d", len(more))
        wanted = {model.name: model for model in declared}
        damaged = {problem.subject for problem in problems}
        for model in self.catalog.read(all_models):
            if model.source in damaged:
                wanted.setdefault(model.name, model)
        taken = self.catalog.write(sync_file_models, tuple(wanted.values()))
        clashes = [
            Problem(
                "conflict",
                f"{model.source}: the name {model.name} is registered already",
                f"change the file, or run: xpucachectl model remove {model.name}",
                model.source,
            )
            for model in declared
            if model.name in taken
        ]
        fresh = (*problems, *clashes)
        for problem in fresh:
            if problem not in self.model_problems:
                shown = of_problem(problem)
                log.warning("%s: %s: %s; status says more", shown.code, shown.subject, shown.message)
        self.model_problems = fresh
        if any(foreign(self.store_of(model).store) is not None for model in declared if model.store is not None):
            self._find()
