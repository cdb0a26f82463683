"""Proving: what a model's program needs is noted when it is proven warm, and compared with what is there later."""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from xpucached import deadlines
from xpucached.catalog.coverage import model_coverage
from xpucached.catalog.dependencies import noted_runs, refresh_dependencies, run_dependencies
from xpucached.catalog.models import all_models
from xpucached.catalog.stores import all_stores
from xpucached.domain.dependencies import Role
from xpucached.domain.models import Workload
from xpucached.errors import CatalogError
from xpucached.host import proofs
from xpucached.host.dependency_changes import DependencyChecker
from xpucached.host.digests import filled
from xpucached.host.proofs import DependencySnapshot
from xpucached.host.python_packages import site_of
from xpucached.kinds.table import KINDS
from xpucached.planning.prewarm import applicable
from xpucached.service.recordings import programs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from xpucached.domain.dependencies import Dependency
    from xpucached.domain.host import Host
    from xpucached.domain.models import Coverage, Model, Run
    from xpucached.domain.names import ModelName
    from xpucached.processes.results import RunResult
    from xpucached.service.context import Context
    from xpucached.service.store_finder import StoreFinder

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_FRESH: Final = 1.0
"""Seconds for which a look at the files of all models holds."""
_PATIENCE: Final = 5.0
"""Seconds that a look may take at the files of one model before they count as not answering."""
_NOTING: Final = 120.0
"""Seconds that it may take to note what a run needed: some gigabytes are read."""
_MOST_STUCK: Final = 4
"""Looks that may wait for a file system which does not answer."""

_KEPT: Final = 50_000
"""Dependencies of models that stay in memory, at half a kilobyte each; those of further models are read each time."""
_SHARE: Final = 10.0
"""So many times as long as it took, a look holds …"""
_LONGEST: Final = 30.0
"""… but no longer than so many seconds."""

_UNREADABLE: Final = "what it needed cannot be read any more: whether that changed is unknown"
_SILENT: Final = "its files do not answer: whether they changed is unknown"


class ProofKeeper:
    """Notes and compares.  Its methods block, and are for threads; none waits for a file system without end."""

    def __init__(self, context: Context, finder: StoreFinder) -> None:
        self._context = context
        self._catalog = context.catalog
        self._finder = finder
        self._comparer = DependencyChecker()
        self._needs: dict[int, tuple[Dependency, ...]] = {}
        self._unnoted: frozenset[int] = frozenset()
        self._found: dict[int, tuple[str, ...]] = {}
        self._stuck: dict[int, threading.Thread] = {}
        self._fresh_until = 0.0
        self._asked = 0  #: so often was it said that what is known holds no longer …
        self._heard = 0  #: … and so often had it been when the last look began
        self._looking = threading.Lock()

    # -- when a model is proven ---------------------------------------------------------------------------------------

    def named(self, name: ModelName, workload: Workload, passes: Sequence[RunResult] = ()) -> DependencySnapshot | None:
        """Look, before a pass, at what the words name and earlier passes loaded; None if that takes too long."""
        if not passes:
            last = self._last(name)
            return _within(_NOTING, lambda: proofs.named(workload, os.environ, None, last))
        mapped = [path for one in passes for path in one.mapped]
        digested = (*self._others(), *self._last(name))

        def look() -> DependencySnapshot:
            told = [path for one in passes for path in _told(workload, one) if site_of(path) is None]
            places = [place for one in passes for place in one.places]
            return proofs.named(workload, os.environ, dict.fromkeys((*mapped, *told)), digested, places)

        return _within(_NOTING, look)

    def needed(
        self,
        model: Model,
        looks: Sequence[DependencySnapshot | None],
        passes: Sequence[RunResult],
        caches: Sequence[Path] = (),
    ) -> tuple[Dependency, ...] | None:
        """Return what the last of a variant's passes needed, which proved its model; None if that cannot be said.

        ``looks`` are those before each of them, ``caches`` the directories of compilers that are no kind of ours.
        """
        done = passes[-1]
        mapped_before = frozenset(path for one in passes[:-1] for path in one.mapped)
        before, earlier = looks[-1], looks[0] if len(looks) > 1 else None
        if before is None:
            return None
        settings = self._context.settings
        stores = (*(one.store for one in self._catalog.read(all_stores)), *model.workload.exercise.caches)
        # Where a program lies or works is more than a cache: somebody may have named his home for one.
        directory = model.workload.directory
        real = self._finder.real_root  # of any store the file system may not answer
        lies = tuple(map(real, (directory, (directory / model.workload.program).parent)))
        bare = (one for one in map(real, stores) if not any(it.is_relative_to(one) for it in lies))
        ours = tuple(map(os.fspath, (real(settings.paths.cache), *bare)))
        last, good = self._last(model.name), self._good(model.name)
        same = good is not None and good.workload == model.workload.digest
        others = self._others()
        found = _within(
            _NOTING,
            lambda: proofs.needed(
                model.workload,
                before,
                done.mapped,
                done.mapped_data,
                _told(model.workload, done).items(),
                ours,
                last,
                others,
                earlier,
                mapped_before,
                done.places,
                same_workload=same,
            ),
        )
        if found is None or proofs.clock_was_set(before):
            return None
        kept = _within(_NOTING, lambda: filled(map(os.fspath, caches)))
        return (*found, *kept) if kept is not None else None

    def unsettled(self, name: ModelName) -> bool:
        """Return whether something changed while the last proof's run went on: two passes tell who wrote it."""
        return any(one.unsettled for one in self._last(name))

    def _others(self) -> tuple[Dependency, ...]:
        return tuple(one for needs in tuple(self._needs.values()) for one in needs)

    def _last(self, name: ModelName) -> tuple[Dependency, ...]:
        good = self._good(name)
        return self._catalog.read(run_dependencies, [good.id]).get(good.id, ()) if good is not None else ()

    def _good(self, name: ModelName) -> Run | None:
        return next((one.good for one in self._catalog.read(model_coverage) if one.model == name), None)

    # -- and later ----------------------------------------------------------------------------------------------------

    def coverage(self, present: Host) -> tuple[Coverage, ...]:
        """Tell of every model how its last runs went, what is left of its entries, and what changed since.

        It is for the host as it is ``present`` only: for another one another proof may count, whose files were not
        looked at.
        """
        # An earlier driver that came back has a proof of its own, which needs other files.
        places = self._finder.places_of(self._catalog.read(all_models))
        found = [applicable(one, present.seen_by(one.model)) for one in self._catalog.read(model_coverage, places)]
        with self._looking:
            began, asked = time.monotonic(), self._asked
            stale = asked != self._heard or began >= self._fresh_until
            if stale or any(one.good is not None and one.good.id not in self._found for one in found):
                self._look(found)
                ended, self._heard = time.monotonic(), asked
                self._fresh_until = ended + max(_FRESH, min(_SHARE * (ended - began), _LONGEST))
            return tuple(self._told(one) for one in found)

    def look_again(self) -> None:
        """Compare anew when somebody asks next, also if a look goes on now: what was proven may be gone."""
        self._asked += 1

    def _told(self, coverage: Coverage) -> Coverage:
        good = coverage.good
        if good is None:
            return coverage
        return replace(coverage, changes=self._found.get(good.id, ()), noted=good.id not in self._unnoted)

    def _look(self, found: Sequence[Coverage]) -> None:
        wanted = {one.good.id: one.model for one in found if one.good is not None}
        self._needs = {run: needs for run, needs in self._needs.items() if run in wanted}
        self._stuck = {run: thread for run, thread in self._stuck.items() if thread.is_alive() and run in wanted}
        places = {model.name: os.fspath(model.workload.directory) for model in self._catalog.read(all_models)}
        noted = self._catalog.read(noted_runs, wanted)
        self._unnoted = frozenset(wanted) - noted
        # Nothing is known of them, so nothing that changed is: their proofs hold as far as they go.
        self._found = dict.fromkeys(self._unnoted, ())
        self._found |= dict.fromkeys(self._stuck, (_SILENT,))
        todo = [run for run in wanted if run not in self._found]
        while todo:
            results: dict[int, _Compared] = {}
            try:
                thread = self._compare([(run, places.get(wanted[run], "/")) for run in todo], results)
            except TimeoutError as error:
                self._found |= dict.fromkeys(todo, (f"{error.strerror}: whether its files changed is unknown",))
                return
            # A thread that takes too long may tell of one more at any moment: that one is looked at again.
            seen = results.copy()
            for run, compared in seen.items():
                self._take(run, compared)
            todo = [run for run in todo if run not in seen]
            if todo and thread.is_alive() and len(self._stuck) < _MOST_STUCK:
                # They are looked at in their order: it is the first of the others that waits.
                log.warning("the files of a model do not answer: %s", wanted[todo[0]])
                self._stuck[todo[0]] = thread
                self._found[todo.pop(0)] = (_SILENT,)
            elif todo:
                self._found |= dict.fromkeys(todo, (_SILENT,))
                return

    def _take(self, run: int, compared: _Compared) -> None:
        self._found[run] = compared.changes
        self._needs.pop(run, None)
        if compared.kept is not None:
            self._needs[run] = compared.kept
        if compared.moved is not None:
            try:
                self._catalog.write(refresh_dependencies, run, compared.moved)
            except CatalogError as error:
                # The next start reads once more what was read now.
                log.warning("times of files could not be written down: %s", error.message)

    def _compare(self, todo: Sequence[tuple[int, str]], results: dict[int, _Compared]) -> threading.Thread:
        """Look at one model after the other, until one takes too long."""
        stop = threading.Event()
        # What a thread that is stuck would still change is no other look's.
        needs = dict(self._needs)
        failed: list[CatalogError] = []

        def work() -> None:
            try:
                look()
            except CatalogError as error:
                failed.append(error)

        def look() -> None:
            kept = sum(map(len, needs.values()))
            for run, directory in todo:
                if stop.is_set():
                    return
                before = needs.get(run)
                if before is None:
                    before = self._catalog.read(run_dependencies, [run]).get(run)
                    if before is None:
                        # One that another run has followed meanwhile is gone: of that nothing has changed yet.
                        noted = self._catalog.read(noted_runs, [run])
                        results[run] = _Compared((_UNREADABLE,) if run in noted else (), None, None)
                        continue
                    kept += len(before)
                compared = self._comparer.compare(before, directory)
                moved = compared.needs if compared.needs != before else None
                small = run in needs or kept <= _KEPT
                kept -= 0 if small else len(before)
                results[run] = _Compared(compared.changes, compared.needs if small else None, moved)

        thread = deadlines.started(work, "proofs", time.monotonic() + _PATIENCE)
        done = -1
        while thread.is_alive() and len(results) > done:
            done = len(results)
            thread.join(_PATIENCE)
        stop.set()
        if failed:
            raise failed[0]
        return thread


def needed_by_all(variants: Sequence[tuple[Dependency, ...] | None]) -> tuple[Dependency, ...] | None:
    """Add what the variants of a run needed; None if of one of them it is not known."""
    found: dict[str, Dependency] = {}
    for needs in variants:
        if needs is None:
            return None
        for one in needs:
            # What one variant saw change while it ran is not settled by another; nor is what changed between two.
            before = found.get(one.path, one)
            changed = bool(before.digest and one.digest and before.digest != one.digest)
            if before is one or one.unsettled or changed:
                found[one.path] = replace(one, unsettled=one.unsettled or before.unsettled or changed)
    # Their arguments are the same: what one of them wrote there, others met as it was before that, or after it.
    noted = [{one.path for one in needs or ()} for needs in variants]
    return tuple(
        one
        for one in found.values()
        if one.unsettled or one.role not in proofs.NAMED or all(one.path in paths for paths in noted)
    )


def _told(workload: Workload, done: RunResult) -> Mapping[str, Role]:
    """Return what processes of a pass told, or were seen to interpret: scripts, modules, directories of packages.

    A file that says how they cache is one of these.
    """
    seen = [Workload(one.words, Path(one.directory), one.variables) for one in done.interpreters]
    files = (KINDS[kind].discovery.configuration(one) for kind in KINDS for one in programs_of(kind, workload, done))
    told = (*done.modules, *filter(None, files))
    return {**dict.fromkeys(told, Role.MODULE), **proofs.interpreted(workload, seen)}


@dataclass(frozen=True, slots=True)
class _Compared:
    """What a look at one model's files showed."""

    changes: tuple[str, ...]
    kept: tuple[Dependency, ...] | None  #: what it needs, if that is to stay in memory
    moved: tuple[Dependency, ...] | None  #: the same, if its files have other times now


def _within(seconds: float, ask: Callable[[], _T]) -> _T | None:
    """Return the answer, or None after so long: a file system that does not answer holds up nobody else."""
    answers: list[_T] = []

    def work() -> None:
        try:
            answers.append(ask())
        except Exception:
            log.exception("what a model needs could not be noted")

    try:
        deadlines.started(work, "proofs", time.monotonic() + _PATIENCE).join(seconds)
    except TimeoutError as error:
        log.warning("what a model needs could not be noted: %s", error.strerror)
    return answers[0] if answers else None
