"""Where stores are: ours, those of the configuration and of models, and those that programs use."""

from __future__ import annotations

import errno
import functools
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached import deadlines, mounts
from xpucached.catalog.models import all_models
from xpucached.catalog.stores import all_stores
from xpucached.domain.host import Problem, Process, digest_of_variables
from xpucached.domain.names import KindName, ModelName
from xpucached.domain.stores import FoundStore, Store, StoreOrigin, StoreState
from xpucached.errors import Conflict
from xpucached.host import process_table
from xpucached.host.gpu_devices import is_gpu
from xpucached.host.process_table import EVER
from xpucached.kinds.table import KINDS, MODELS, libraries, variables
from xpucached.printing import encodable
from xpucached.service import program_variables
from xpucached.service.owners import (
    STORES,
    answers,
    foreign,
    foreign_store,
    named_by,
    too_many,
    unreadable,
)
from xpucached.service.survey import runtimes_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from datetime import datetime

    from xpucached.domain.models import Model
    from xpucached.kinds.interface import Kind
    from xpucached.service.context import Context

log = logging.getLogger(__name__)

_ROOTS: Final = 10_000
"""Paths of which it is remembered where they lead, besides those of the stores that there are."""

_SHUT: Final = frozenset({errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})

WritersSince = Mapping[KindName, "datetime | None"]
"""When the oldest process began that could be writing to a store of each kind; None where there is none."""


def writers_since(processes: Iterable[Process] | None = None) -> WritersSince:
    """Return when the oldest of these began that could be writing to a store of each kind; of all of ours, if none."""
    found = tuple(process_table.processes(os.getuid(), libraries()) if processes is None else processes)
    kinds = ((name, kind.discovery) for name, kind in KINDS.items())
    return {name: process_table.writer_since(found, one.LIBRARIES, one.writes) for name, one in kinds}


def writer_since(found: FoundStore, writers: WritersSince) -> datetime | None:
    """Return when the oldest process began that could be writing to a store; None if there is none.

    Where other hosts may write, too, anybody may.
    """
    root = found.store.root
    try:
        shared = deadlines.ask(root, lambda: mounts.network(root))
    except TimeoutError:
        shared = "unknown"
    return EVER if shared else writers[found.store.kind]


def make(stores: Iterable[FoundStore]) -> None:
    """Make those of these stores that are ours to make.  Raises OSError."""
    for one in stores:
        if one.origin is StoreOrigin.MANAGED:
            root = one.store.root
            deadlines.ask(root, functools.partial(root.mkdir, 0o700, parents=True, exist_ok=True))


def _unclear(path: Path, names: Collection[KindName]) -> Problem:
    """Say that a configured store is of no kind that we know, or of several."""
    what = f"looks like a store of {' and of '.join(sorted(names))}" if names else "is said to be of a kind that is not"
    hint = f"write its kind in front: KIND:{path}; kinds are: {', '.join(sorted(KINDS))}"
    return Problem("unclear-store", f"{path} (configuration) {what}: it is left alone", hint, str(path))


def _no_directory(path: Path) -> Problem:
    hint = "correct stores.paths, or move away what is there"
    return Problem("unclear-store", f"{path} (configuration) is no directory: nothing is kept there", hint, str(path))


def _there(path: Path) -> bool:
    try:
        deadlines.ask(path, path.lstat)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        # What cannot be looked at now is not gone.
        return True
    return True


def _is_shut(path: Path) -> bool:
    """Return whether there is no way to a place for this user: neither do programs keep anything there."""
    try:
        deadlines.ask(path, path.lstat)
    except OSError as error:
        return error.errno in _SHUT
    except ValueError:
        pass
    return False


def _is_something_else(path: Path) -> bool:
    try:
        return deadlines.ask(path, lambda: os.path.lexists(path) and not os.path.isdir(path))  # noqa: PTH112 - never raises
    except TimeoutError:
        return False


class StoreFinder:
    """Finds stores, and remembers where they lay.  Its methods block."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._started = context.clock()
        self._roots: dict[Path, Path] = {}
        self._found: tuple[FoundStore, ...] = ()
        self.problems: tuple[Problem, ...] = ()
        """The stores that are left alone: of other users, and of the configuration if their kind is not clear."""

    def real_root(self, path: Path) -> Path:
        """Return where a store lies, links resolved; as it was known, where its file system does not answer."""
        try:
            self._roots[path] = deadlines.ask(path, lambda: Path(mounts.real(path)))
        except TimeoutError:
            return self._roots.get(path, Path(os.path.abspath(path)))  # noqa: PTH100 - a text, and nothing is asked
        return self._roots[path]

    # -- ours, and those of models ------------------------------------------------------------------------------------

    def managed(self, kind: KindName = MODELS) -> FoundStore:
        """Return our own store of a kind; that which models are proven by, if none is named."""
        root = self.real_root(self._context.settings.managed(kind))
        return FoundStore(Store(kind, root), StoreOrigin.MANAGED, "managed")

    def store_of(self, model: Model) -> FoundStore:
        """Return the store that a model caches in."""
        if model.store is None:
            return self.managed()
        root = self.real_root(model.store)
        return FoundStore(Store(MODELS, root), StoreOrigin.CONFIGURED, f"model {model.name}")

    def hindrance(self, model: Model) -> str:
        """Return why a run of a model would prove nothing; empty if nothing says so.

        Where it caches cannot be read or does not answer, or no driver was asked with what programs are given now.
        """
        if self._context.present.variables != digest_of_variables(self._context.steering):
            return "the variables for all programs were changed, and the drivers have not been looked at with them yet"
        own, *others = (one.store.root for one in self.run_stores(self.store_of(model)))
        named = (path for _, path in program_variables.caches(self._context.settings, model))
        requests = model.workload.exercise.requests
        asked = {Path(requests): "requests"} if requests else {}
        asked |= dict.fromkeys((own, *others, *named), "cache")
        mute = next((path for path in asked if not answers(path)), None)
        if mute is not None:
            return f"the file system of its {asked[mute]} does not answer: {mute}"
        why = unreadable(own)
        return f"its cache cannot be read: {own}: {why}" if why else ""

    def refuse_foreign(self, model: Model) -> None:
        """Raise `Conflict` if a model would cache in a store that we do not work in."""
        found = self.store_of(model)
        owner = foreign(found.store)
        if owner is not None:
            problem = foreign_store(found, owner)
            raise Conflict(problem.message, hint=problem.hint)

    def run_stores(self, found: FoundStore) -> tuple[FoundStore, ...]:
        """Return the stores that a run writes to which caches in this one: this, and of other kinds our own."""
        managed = self._context.settings.managed
        others = (name for name, kind in KINDS.items() if kind.discovery.enable(managed(name)))
        return (found, *(self.managed(name) for name in others if name != found.store.kind))

    def make_offered(self) -> None:
        """Make our stores of further kinds where there is a GPU: programs may be led there, and drivers make none.

        While a home is away none is made: it would lie where the home is to be mounted, and may keep it from that.
        """
        if self._context.away:
            return
        present = self._context.present
        views = (present, *(present.seen_with(one) for one in present.drivers))
        if not any(map(is_gpu, (answer for one in views for answer in one.answers))):
            return
        try:
            make(self.run_stores(self.managed())[1:])
        except OSError as error:
            log.warning("a store cannot be made, and programs keep nothing there: %s", error)

    def places_of(self, models: Iterable[Model]) -> Mapping[ModelName, tuple[Store, ...]]:
        """Return the stores that each model caches in, its own first, where they lay when they were last looked for.

        Asks no file system: one that does not answer would keep whoever reads the catalog waiting, once for each model.
        """

        def lay(kind: KindName, path: Path) -> Store:
            return Store(kind, self._roots.get(path) or Path(os.path.abspath(path)))  # noqa: PTH100 - a text

        ours = {name: lay(name, self._context.settings.managed(name)) for name in (MODELS, *KINDS)}
        named = {
            model.name: ours if model.store is None else {**ours, MODELS: lay(MODELS, model.store)} for model in models
        }
        return {name: tuple(stores.values()) for name, stores in named.items()}

    def variables(self, found: FoundStore) -> Mapping[str, str]:
        """Return what makes a program use a store, and of other kinds their managed ones, and leave eviction to us."""
        managed = self._context.settings.managed
        return variables(lambda name: found.store.root if name == found.store.kind else managed(name))

    # -- all ----------------------------------------------------------------------------------------------------------

    def kinds_at(self, root: Path) -> frozenset[KindName]:
        """Return the kinds of the stores that were found at a path; of a path that is not known, all."""
        return frozenset(one.store.kind for one in self._found if one.store.root == root) or frozenset(KINDS)

    def places(self) -> tuple[Path, ...]:
        """Return the roots of all stores that can be found."""
        return tuple(one.store.root for one in self.find()[0])

    def _standard(self) -> Process:
        """Return what stands for any program of this user."""
        variables = {**self._context.base, **self._context.settings.driver.variables}
        return Process(0, os.getuid(), self._started, "the standard place", None, variables)

    def standard(self, kind: KindName) -> Store | None:
        """Return the store of programs that say nothing of where they cache; None if there is none.  Blocks."""
        located = KINDS[kind].discovery.locate(self._standard())
        return None if located is None else Store(kind, self.real_root(located[0]))

    def find(self, roots: frozenset[Path] = frozenset()) -> tuple[tuple[FoundStore, ...], WritersSince]:
        """Collect every store that we know of, each once, and when the oldest programs that may write there began.

        Those at certain ``roots`` are not searched for if they were found before, and are ours still.
        """
        settings = self._context.settings
        processes = process_table.processes(os.getuid(), libraries())
        models = self._context.catalog.read(all_models)
        readers = self._readers(models, processes)
        wanted = tuple(replace(one, readers=readers) for one in self._found if one.store.root in roots)
        if roots and roots == {one.store.root for one in wanted} and not any(foreign(one.store) for one in wanted):
            return wanted, writers_since(processes)
        standard = self._standard()
        found: dict[Store, FoundStore] = {}
        asked: set[Path] = set()

        def add(store: Store, origin: StoreOrigin, via: str) -> None:
            asked.add(store.root)
            try:
                root = self.real_root(store.root)
                os.fspath(root).encode("utf-8")
            except (OSError, ValueError):
                log.warning("a store whose path is no UTF-8 is left alone: %r", os.fspath(store.root))
                return
            real = replace(store, root=root)
            found.setdefault(real, FoundStore(real, origin, encodable(via), readers))

        whole = True
        kinds = {path: self._kinds(path, said) for path, said in settings.stores.places.items()}
        for name, kind in KINDS.items():
            for root, origin, via in self._ours(kind, kinds, models):
                add(Store(name, root), origin, via)
            named, all_named = named_by(kind, (standard, *processes)) if settings.stores.found else ((), True)
            whole = whole and all_named
            for place, via in named:
                # As with the HOME of root that a container's programs have, or somebody else's.
                if via == standard.name or not _is_shut(place):
                    add(Store(name, place), StoreOrigin.FOUND, via)
        if settings.stores.found:
            # A program that ended leaves its store behind, and that is when the store needs us.
            for known in self._context.catalog.read(all_stores):
                # Of one that could not be read, and of which nothing was known before, nothing is left behind.
                empty = known.state is not StoreState.OK and not known.entries
                if known.origin is not StoreOrigin.FOUND or empty or known.id in found:
                    continue
                if len(found) < STORES:
                    add(known.id, known.origin, known.via)
                else:
                    whole = False
        owners = {store: foreign(store) for store in found}
        problems = tuple(foreign_store(found[store], uid) for store, uid in owners.items() if uid is not None)
        problems += tuple(_unclear(path, names) for path, names in kinds.items() if len(names) != 1)
        problems += tuple(map(_no_directory, filter(_is_something_else, kinds)))
        self.problems = problems if whole else (*problems, too_many())
        if len(self._roots) > _ROOTS:
            # Programs name others all the time.
            self._roots = {path: root for path, root in self._roots.copy().items() if path in asked}
        self._found = tuple(one for store, one in found.items() if owners[store] is None)
        return self._found, writers_since(processes)

    def _ours(
        self, kind: Kind, kinds: Mapping[Path, frozenset[KindName]], models: Iterable[Model]
    ) -> Iterator[tuple[Path, StoreOrigin, str]]:
        """Yield the stores of a kind that we manage, or that the configuration or a model names."""
        managed = self._context.settings.managed(kind.name)
        # Of other kinds ours is there if anything uses it: see `make_offered`.
        if kind.discovery.enable(managed) and (kind.name == MODELS or _there(managed)):
            yield managed, StoreOrigin.MANAGED, "managed"
        for path, names in kinds.items():
            if names == {kind.name}:
                yield path, StoreOrigin.CONFIGURED, "configuration"
        for model in models:
            if model.store is not None and kind.name == MODELS:
                yield model.store, StoreOrigin.CONFIGURED, f"model {model.name}"

    def _kinds(self, path: Path, said: KindName | None) -> frozenset[KindName]:
        """Return the kind of a configured store: as it is said there, as its files say, or as it was known.

        A directory that holds nothing yet is one of models.
        """
        if said is not None:
            return frozenset({said} & KINDS.keys())
        known = {
            status.kind for status in self._context.catalog.read(all_stores) if status.store == self.real_root(path)
        }
        try:
            seen = deadlines.ask(path, lambda: {one.name for one in KINDS.values() if one.discovery.recognise(path)})
        except TimeoutError:
            seen = set()
        return frozenset(seen or known or {MODELS})

    def _readers(self, models: Iterable[Model], processes: Collection[Process]) -> frozenset[str]:
        """Return which runtimes read stores here: the models' and the live programs'; empty if any may."""
        preflight = KINDS[MODELS].preflight
        if preflight is None or not all(one.known for one in processes):
            return frozenset()
        found = {path for one in processes for path in one.libraries}
        # Thousands of models may be of one program: it is looked at once.
        alike: dict[object, tuple[Model, dict[str, str]]] = {}
        for model in models:
            variables = {**self._context.settings.driver.variables, **model.workload.variables}
            alike.setdefault((model.workload.program, *sorted(variables.items())), (model, variables))
        for model, variables in alike.values():
            try:
                found |= {one.library for one in runtimes_of(model, variables)}
            except TimeoutError:
                return frozenset()
        try:
            return deadlines.ask("runtimes", lambda: preflight.readers(found))
        except TimeoutError:
            return frozenset()
