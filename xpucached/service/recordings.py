"""What the programs of a run tell of their entries: in lines, and in files that they leave in the stores."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached import deadlines
from xpucached.catalog.builds import count_built
from xpucached.catalog.coverage import proven_kinds
from xpucached.catalog.entries import entries_by_id
from xpucached.catalog.recipes import note_never_again
from xpucached.catalog.runs import begin_run, find_run, finish_run, newest_runs
from xpucached.domain.host import Process
from xpucached.domain.libraries import Libraries
from xpucached.domain.models import Attribution, Model, Outcome
from xpucached.domain.recipes import Recording
from xpucached.domain.stores import EntryId, EntryState
from xpucached.errors import CatalogError, NotFound
from xpucached.host.drivers import mapped_drivers
from xpucached.kinds.table import KINDS, MODELS
from xpucached.planning.attribution import attribute
from xpucached.processes.cancellation import ended
from xpucached.processes.output import Trace
from xpucached.service.owners import answers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from xpucached.catalog import Catalog
    from xpucached.domain.host import Host
    from xpucached.domain.libraries import SyclRuntime
    from xpucached.domain.models import Run, WarmReason, Workload
    from xpucached.domain.names import KindName, ModelName
    from xpucached.domain.plans import Deferred
    from xpucached.domain.stores import FoundStore, Store
    from xpucached.processes.results import RunResult
    from xpucached.service.context import Context

log = logging.getLogger(__name__)

_NAMED: Final = 3
"""Kernels that one sentence names."""

_READING: Final = 30.0
"""Seconds that it may take to tell runtimes by their content: some hundred megabytes are read."""


def trace(stores: Sequence[FoundStore]) -> Trace:
    """Return what reads what programs tell of their entries in these stores."""
    told = [(one.store, recorder) for one in stores if (recorder := KINDS[one.store.kind].recorder) is not None]

    def read(lines: Iterable[str]) -> tuple[frozenset[EntryId], frozenset[EntryId]]:
        every = tuple(lines)
        created: set[EntryId] = set()
        used: set[EntryId] = set()
        for store, recorder in told:
            told_here = recorder.read(store, every)
            created.update(EntryId(store, key) for key in told_here.created)
            used.update(EntryId(store, key) for key in told_here.used)
        return frozenset(created), frozenset(used)

    def unkept(lines: Iterable[str]) -> str:
        every = tuple(lines)
        of_kinds = {store.kind: recorder for store, recorder in told}
        said = (one.unkept([store for store, _ in told if store.kind == kind], every) for kind, one in of_kinds.items())
        return next(filter(None, said), "")

    return Trace(tuple(mark for _, recorder in told for mark in recorder.MARKS), read, unkept)


async def answering(context: Context, model: Model, stands: Model | Deferred | None) -> Run | None:
    """Return a model's newest run, if it ended by itself and the model ``stands`` as it says: to be run, or not."""
    run = next(iter(await context.read(newest_runs, model.name, 1)), None)
    if run is None or run.finished is None or run.outcome in {Outcome.CANCELLED, Outcome.LOST}:
        return None
    return run if isinstance(stands, Model) is (run.outcome not in {Outcome.WARMED, Outcome.UNCACHED}) else None


async def begun(
    context: Context, model: Model, reason: WarmReason, host: str, now: datetime, kernel: str, changes: Sequence[str]
) -> Run:
    """Note that a run begins; who is cancelled meanwhile leaves none behind that seems to go on."""
    # Of a run that takes the whole host down nothing else is left: without it each start would run the model again.
    noting = asyncio.ensure_future(context.write_durably(begin_run, model, reason, host, now, kernel, changes))
    try:
        return await ended(noting)
    except asyncio.CancelledError:
        if noting.exception() is None:
            over = noting.result().id, Outcome.CANCELLED, (), Attribution(), (), "cancelled as it began", ""
            await ended(asyncio.ensure_future(context.write(finish_run, *over, context.clock())))
        raise


class RunEnds:
    """Writes down how runs ended: what the catalog does not take, as on a full disk, it is given again.  Blocks."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._waiting: dict[ModelName, Callable[[], Run]] = {}

    def note(self, run: Run, finish: Callable[[], Run]) -> Run:
        """Do what finishes a run.  Raises `CatalogError` where that has to wait, and what else it raises."""

        def write() -> Run:
            # Another catalog may be in its place by now, in which another run has that number.
            # But the look at the host that finds a device lets what began meanwhile begin before it.
            there = self._catalog.read(find_run, run.id)
            if there.model != run.model or there.started > run.started:
                raise NotFound(f"no such run under way: {run.id}")
            return finish()

        try:
            return write()
        except CatalogError:
            self._waiting[run.model] = write
            raise

    def catch_up(self) -> None:
        """Finish those that had to wait, the last one of each model, unless they have to still."""
        for model, write in list(self._waiting.items()):
            # What could never be written must not stop others.
            with contextlib.suppress(CatalogError):
                with contextlib.suppress(NotFound):
                    write()
                # One that had to wait meanwhile stays.
                if self._waiting.get(model) is write:
                    self._waiting.pop(model, None)


def why_untold(stores: Sequence[FoundStore], directory: Path) -> str:
    """Return why programs that work in this directory do not tell of their entries in one of these stores, if so."""
    told = (KINDS[one.store.kind].recorder for one in stores)
    every = (why for recorder in told if recorder is not None and (why := recorder.why_untold(directory)))
    try:
        return deadlines.ask(directory, lambda: next(every, ""))
    except TimeoutError:
        return ""


def why_not_kept(stores: Sequence[FoundStore], host: Host) -> str:
    """Return why programs on this host keep nothing in one of these stores, if so."""
    told = (KINDS[one.store.kind].recorder for one in stores)
    return next((why for recorder in told if recorder is not None and (why := recorder.why_not_kept(host))), "")


def _doubles(context: Context, entries: frozenset[EntryId]) -> frozenset[EntryId]:
    """Return those that no program reads, as another holds the same: who compile at once compile each for itself."""
    rows = context.catalog.read(entries_by_id, entries)
    return frozenset(one.entry.id for one in rows if one.entry.defect is not None and one.entry.defect.uncovered)


async def attributed(
    context: Context, before: frozenset[EntryId], after: frozenset[EntryId], executions: Iterable[RunResult]
) -> Attribution:
    """Return which entries all passes of a run made and used; its stores held these before and after."""
    every = tuple(executions)
    after -= await asyncio.to_thread(_doubles, context, after - before)
    created = frozenset(entry for one in every for entry in one.created)
    used = frozenset(entry for one in every for entry in one.used)
    return attribute(before, after, created, used, traced=any(one.traced for one in every))


def never_twice(context: Context, executions: Sequence[RunResult]) -> str:
    """Name what a variant's passes compiled under another key each time, as the rest of a sentence; empty if nothing.

    That is what the second pass compiled of the same kernels as something of the first, for which it did not ask, for
    the same driver.  It is noted of both: no program will look for them.  Said before it is what was compiled again
    because a damaged entry is tried first: that has the same key each time.
    """
    first, last = executions[0], executions[-1]
    if first is last or not last.created:
        return ""
    rows = context.catalog.read(entries_by_id, first.created | last.created)
    wrong = (one.entry.defect for one in rows if one.entry.id in last.created)
    damaged = sum(one is not None and one.uncovered is None for one in wrong)
    behind = f"; {damaged} of them for want of a sound entry: xpucachectl verify --fix mends that" if damaged else ""
    # Under a driver that came in between, each program has another key, once.
    names = {
        one.entry.id: (one.entry.environment, tuple(kernel.display for kernel in one.entry.kernels))
        for one in rows
        if one.entry.kernels and one.entry.defect is None
    }
    before = {one: names[one] for one in first.created - last.created - last.used if one in names}
    earlier = frozenset(before.values())
    after = {one: names[one] for one in last.created if names.get(one) in earlier}
    if not after:
        return behind
    again = frozenset(after.values())
    gone = (one for one, its in before.items() if its in again)
    try:
        context.catalog.write(note_never_again, [*after, *gone])
    except CatalogError as error:
        # A replay compiles them once more, for nobody.
        log.warning("what no program will ask for again could not be noted: %s", error.message)
    some = sorted({name for _, kernels in again for name in kernels})
    more = f" and {len(some) - _NAMED} more" if len(some) > _NAMED else ""
    what = f"{', '.join(some[:_NAMED])}{more}"
    return f"{behind}; {len(after)} of them have another key at each start, so that no cache can keep them: {what}"


def clear(stores: Iterable[FoundStore], *, begins: bool = False) -> None:
    """Take away what programs left in files before a pass, or where one ``begins``; not from stores that are away."""
    for store in (one.store for one in stores):
        recorder = KINDS[store.kind].recorder
        if recorder is not None and answers(store.root):
            recorder.forget(store, begins=begins)


def with_left(
    context: Context, model: Model, done: RunResult, stores: Sequence[FoundStore], before: frozenset[EntryId]
) -> tuple[RunResult, str]:
    """Add to what a pass told what it left in files, and keep the recipes; say where it may have told nothing."""
    found: list[tuple[Store, Recording]] = []
    for store in (one.store for one in stores):
        recorder = KINDS[store.kind].recorder
        if recorder is not None and not answers(store.root):
            found.append((store, Recording(why_incomplete="its file system does not answer")))
        elif recorder is not None:
            mine = frozenset(one.key for one in before if one.store == store)
            found.append((store, recorder.collect(store, mine, context.present.seen_by(model.name))))
    created = done.created.union(EntryId(store, key) for store, one in found for key in one.created)
    used = done.used.union(EntryId(store, key) for store, one in found for key in one.used) - created
    for store, one in found:
        try:
            refused = context.recipes.keep(store.kind, one.recipes, context.clock(), one.created | one.used)
        except (OSError, CatalogError) as error:
            # The run is proven without them: only what follows the next driver has to be run again.
            log.warning("recipes of a run could not be kept: %s", error)
            continue
        if refused:
            log.warning("recipes that are too large are not kept: %d, of %s", refused, store.root)
    told = any(one.created or one.used for _, one in found)
    why_incomplete = next((f"{store.root}: {one.why_incomplete}" for store, one in found if one.why_incomplete), "")
    return replace(done, created=created, used=used, traced=done.traced or told), why_incomplete


def unusable(context: Context, variants: Sequence[Sequence[RunResult]], after: frozenset[EntryId]) -> str:
    """Return why variants' passes that asked for entries prove nothing: what is in their places may serve no program.

    What only a first pass asked for and could not be kept (``after`` is what the stores hold) is none of the proof; nor
    is what it kept twice.
    """
    last = frozenset().union(*(passes[-1].created | passes[-1].used for passes in variants))
    first = after & frozenset().union(*(one.created | one.used for passes in variants for one in passes))
    asked = last | (first - _doubles(context, first))
    rows = context.catalog.read(entries_by_id, asked)
    lost = asked - {one.entry.id for one in rows if one.entry.state is EntryState.OK}
    if not lost:
        return ""
    why = sorted({one.entry.defect.code for one in rows if one.entry.id in lost and one.entry.defect is not None})
    how = f" ({', '.join(why)})" if why else ""
    return f"{len(lost)} of the {len(asked)} entries that it asked for cannot be used now{how}: xpucachectl verify"


def untold(context: Context, model: Model, executions: Sequence[RunResult]) -> str:
    """Return why passes that compiled nothing prove nothing: what is told in lines may be kept back; empty if not.

    What is told in files says nothing of the lines.  And a program may not ask the driver for what the runtime has.
    One that was seen to load what uses the caches that it told of, and nothing for another, has come to do without it.
    """
    *_, last = executions
    told = {entry.store.kind for one in executions for entry in one.created | one.used}
    of_last = {entry.store.kind for entry in last.created | last.used} or told
    # Where another kind's cache tells of some as well, that one is asked for all that this one does without.
    if len(of_last) == 1 and (why := _left_out(next(iter(of_last)), model, last)):
        return why
    names = {Path(path).name for one in executions for path in one.mapped}
    seen = {kind for kind in KINDS if any(name.startswith(KINDS[kind].discovery.LIBRARIES) for name in names)}
    before = context.catalog.read(proven_kinds, model)
    kinds = sorted(
        name
        for name in before - told
        if (recorder := KINDS[name].recorder) is not None
        and recorder.MARKS
        and (name in seen or not (told and told <= seen))
    )
    why = (
        f"it told nothing of entries of {', '.join(kinds)}, which its last proof used: does it let its stderr through?"
    )
    return why if kinds else ""


def programs_of(kind: KindName, workload: Workload, done: RunResult) -> tuple[Process, ...]:
    """Return what may have been programs of a pass that use a kind's stores, with what may leave out some of it."""
    libraries = KINDS[kind].discovery.LIBRARIES
    seen = tuple(Path(path) for path in done.mapped if Path(path).name.startswith(libraries))
    variables: tuple[Mapping[str, str], ...] = ({}, *({name: value} for name, value in done.bounds))
    began = datetime.min.replace(tzinfo=UTC)
    return tuple(Process(1, os.getuid(), began, "", workload.directory, one, seen) for one in variables)


def _left_out(kind: KindName, model: Model, done: RunResult) -> str:
    """Return what leaves programs of a pass out of a kind's store, as lines say or though none does; empty if nothing.

    Who tells in files says in no line what it left out: such a line is another kind's, which had nothing.
    """
    recorder = KINDS[kind].recorder
    if done.unkept and recorder is not None and recorder.MARKS:
        return done.unkept
    why = next(filter(None, map(KINDS[kind].discovery.bounds, programs_of(kind, model.workload, done))), "")
    return why and f"{why} keeps programs out of the cache: which of them are compiled at each start is not known"


def libraries(run: Run, executions: Sequence[RunResult], reached: frozenset[Path]) -> Libraries | None:
    """Return which runtimes and drivers a run's processes had mapped; None if they are not ours to see, or away."""
    seen = frozenset(Path(path) for one in executions for path in one.mapped)
    preflight = KINDS[MODELS].preflight

    def look() -> tuple[tuple[Path, ...], tuple[SyclRuntime, ...]]:
        runtimes = preflight.mapped(seen, run.started) if preflight is not None else ()
        return mapped_drivers(seen, run.started), runtimes

    try:
        drivers, runtimes = deadlines.ask(("libraries", run.model), look, _READING)
    except TimeoutError:
        return None
    further = tuple(path for path in drivers if path not in reached)
    libraries = Libraries(runtimes, drivers, further)
    # Who tells of entries has a runtime or a driver: if none was seen, it ran elsewhere (in a container, say).
    elsewhere = not (runtimes or drivers) and any(one.traced for one in executions)
    return None if elsewhere or not seen else libraries


def met_another_driver(context: Context, run: Run) -> bool:
    """Return whether a run's processes loaded a driver of which no variable of its model says so."""
    known = {file.target for file in context.present.seen_by(run.model).driver}
    return run.libraries is not None and not known.issuperset(run.libraries.further)


def covered(context: Context, executions: Sequence[RunResult]) -> str:
    """Return how much of what a run needed after a driver change replay had made."""
    used = frozenset().union(*(one.used for one in executions))
    created = frozenset().union(*(one.created for one in executions))
    made = context.catalog.read(count_built, used - created)
    return f"; replay had made {made} of the {len(used | created)}" if made else ""
