"""What is made of what the programs of a run tell."""

from __future__ import annotations

import asyncio
from contextlib import closing, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, NoReturn, cast

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from tests.support import catalogs
from tests.support.builders import sycl_target
from xpucached.catalog.models import add_model
from xpucached.catalog.runs import begin_run, find_run, finish_run
from xpucached.catalog.surveys import record_survey
from xpucached.catalog.tables import RUNS
from xpucached.domain.diagnosis import RuntimeCheck, Safety
from xpucached.domain.host import Host
from xpucached.domain.libraries import Libraries, SyclRuntime
from xpucached.domain.models import Attribution, Model, Outcome, WarmReason, Workload
from xpucached.domain.names import EntryKey, KindName, ModelName
from xpucached.domain.plans import IndexedEntry
from xpucached.domain.recipes import Recording
from xpucached.domain.stores import Entry, EntryId, FoundStore, Kernel, Store, StoreOrigin
from xpucached.errors import CatalogError, NotFound
from xpucached.kinds import table
from xpucached.kinds.sycl import defects
from xpucached.processes.results import RunResult
from xpucached.service import compare, explain, recordings
from xpucached.service.recordings import never_twice, with_left

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from xpucached.domain.models import Run
    from xpucached.domain.targets import Target
    from xpucached.service.context import Context
    from xpucached.service.prewarm import Prewarmer
    from xpucached.service.store_finder import StoreFinder

NOW: Final = datetime(2026, 5, 4, 12, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)
STORE: Final = Store(KindName("full"), Path("/store"))


class Name(str):
    """A kernel's name that counts how often it is compared."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)


def entry(key: str, kernel: str) -> IndexedEntry:
    name = Name(kernel)
    made = Entry(EntryId(STORE, EntryKey(key)), "s", 1, 1, NOW, None, None, kernels=(Kernel(name, name),))
    return IndexedEntry(made, None, None, (), NOW, NOW, "run")


def test_what_many_entries_have_in_common_is_found_without_comparing_each_with_each() -> None:
    count = 300
    first = [entry(f"a{number}", f"kernel {number}") for number in range(count)]
    last = [entry(f"b{number}", f"kernel {number}") for number in range(count - 1, -1, -1)]
    noted: list[EntryId] = []
    catalog = SimpleNamespace(read=lambda *_: (*first, *last), write=lambda _, entries: noted.extend(entries))
    passes = [
        RunResult(None, 1.0, 1.0, 1, 0, "", "", created=frozenset(one.entry.id for one in some))
        for some in (first, last)
    ]
    Name.compared = 0
    told = never_twice(cast("Context", SimpleNamespace(catalog=catalog)), passes)
    assert told.startswith(f"; {count} of them have another key at each start")
    assert told.endswith(f": kernel 0, kernel 1, kernel 10 and {count - 3} more")
    assert sorted(noted) == sorted(one.entry.id for one in (*first, *last))
    assert Name.compared < 20 * count


def of_two_passes(before: Sequence[IndexedEntry], after: Sequence[IndexedEntry]) -> tuple[str, list[EntryId]]:
    """Return what is told, and of which entries it is noted, if a run's two passes compiled these."""
    noted: list[EntryId] = []
    catalog = SimpleNamespace(read=lambda *_: (*before, *after), write=lambda _, entries: noted.extend(entries))
    passes = [
        RunResult(None, 1.0, 1.0, 1, 0, "", "", created=frozenset(one.entry.id for one in some))
        for some in (before, after)
    ]
    return never_twice(cast("Context", SimpleNamespace(catalog=catalog)), passes), noted


def test_what_a_driver_compiles_that_came_between_two_passes_has_no_other_key_at_each_start() -> None:
    old, new = (sycl_target("Intel(R) OpenCL", "CPU", "OpenCL 3.0", driver) for driver in "12")

    def under(target: Target, one: IndexedEntry) -> IndexedEntry:
        return replace(one, entry=replace(one.entry, environment=target))

    before = [under(old, entry("a", "kernel")), under(old, entry("b", "twice"))]
    after = [under(new, entry("c", "kernel")), under(old, entry("d", "twice"))]
    told, noted = of_two_passes(before, after)
    assert told == "; 1 of them have another key at each start, so that no cache can keep them: twice"
    assert sorted(noted) == [before[1].entry.id, after[1].entry.id]


def test_what_is_compiled_again_behind_a_damaged_entry_has_no_other_key_at_each_start() -> None:
    def behind(one: IndexedEntry) -> IndexedEntry:
        return replace(one, entry=replace(one.entry, defect=defects.SHADOWED))

    before = [behind(entry("a/1", "kernel")), entry("b/0", "twice")]
    after = [behind(entry("a/2", "kernel")), entry("c/0", "twice")]
    told, noted = of_two_passes(before, after)
    mends = "; 1 of them for want of a sound entry: xpucachectl verify --fix mends that"
    assert told == f"{mends}; 1 of them have another key at each start, so that no cache can keep them: twice"
    assert sorted(noted) == [before[1].entry.id, after[1].entry.id]


@pytest.mark.parametrize("another", [False, True])
def test_a_run_is_finished_that_began_while_a_device_was_asked_for(home: Path, *, another: bool) -> None:
    """By the look that found the device it began before that: so its time of beginning is another one by its end."""
    device, other = (sycl_target("Intel(R) OpenCL", name, "OpenCL 3.0", "1") for name in ("CPU", "GPU"))
    model = Model(ModelName("net"), Workload(("/bin/true",), home, {}, 60.0), home / "store")
    with closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        catalog.write(add_model, model)
        catalog.write(record_survey, Host(NOW - HOUR, "boot", "6", "stamp", environments=(device,)))
        run = catalog.write(begin_run, model, WarmReason.NEVER, "host", NOW)
        catalog.write(record_survey, Host(NOW - HOUR / 2, "boot", "6", "stamp", environments=(device, other)))
        assert catalog.read(find_run, run.id).started < run.started
        told = run.id, Outcome.WARMED, (), Attribution(), (), "", "", NOW + HOUR
        if another:
            # As in a new catalog, where the number is that of a later run.
            catalog.write(lambda connection: connection.execute(sa.update(RUNS).values(started=NOW + HOUR)))
        ends = recordings.RunEnds(catalog)
        with pytest.raises(NotFound) if another else nullcontext():
            ends.note(run, lambda: catalog.write(finish_run, *told))
        assert catalog.read(find_run, run.id).outcome is (None if another else Outcome.WARMED)


def test_an_end_that_has_to_wait_while_an_earlier_one_is_written_is_written_later(home: Path) -> None:
    model = Model(ModelName("net"), Workload(("/bin/true",), home, {}, 60.0), home / "store")
    with closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        catalog.write(add_model, model)
        first, second = (catalog.write(begin_run, model, WarmReason.NEVER, "host", NOW) for _ in range(2))
        ends = recordings.RunEnds(catalog)

        def finish(run: Run, before: Iterator[Callable[[], object]]) -> Run:
            next(before)()
            return catalog.write(finish_run, run.id, Outcome.WARMED, (), Attribution(), (), "", "", NOW)

        def wait() -> None:
            turns: Iterator[Callable[[], object]] = iter((full, lambda: None))
            with pytest.raises(CatalogError):
                ends.note(second, lambda: finish(second, turns))

        turns: Iterator[Callable[[], object]] = iter((full, wait))
        with pytest.raises(CatalogError):
            ends.note(first, lambda: finish(first, turns))
        for outcome in (None, Outcome.WARMED):
            ends.catch_up()
            found = [catalog.read(find_run, one.id).outcome for one in (first, second)]
            assert found == [Outcome.WARMED, outcome]


def full(*_: object) -> NoReturn:
    raise CatalogError("the disk is full")


def test_a_run_is_proven_where_no_recipe_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Recording(created=frozenset({EntryKey("a")}), used=frozenset({EntryKey("b")}))
    recorder = SimpleNamespace(collect=lambda *_: told)
    monkeypatch.setattr(recordings, "KINDS", {STORE.kind: SimpleNamespace(recorder=recorder)})
    present = SimpleNamespace(seen_by=lambda _: None)
    context = SimpleNamespace(present=present, recipes=SimpleNamespace(keep=full), clock=lambda: NOW)
    model = Model(ModelName("net"), Workload(("/bin/true",), Path("/")))
    done = RunResult(None, 1.0, 1.0, 1, 0, "", "")
    found, deaf = with_left(
        cast("Context", context), model, done, [FoundStore(STORE, StoreOrigin.FOUND, "test")], frozenset()
    )
    assert (deaf, sorted(one.key for one in found.created), sorted(one.key for one in found.used)) == ("", ["a"], ["b"])


def test_a_run_is_proven_where_it_cannot_be_noted_what_nobody_asks_for_again() -> None:
    before, after = entry("a", "kernel"), entry("b", "kernel")
    passes = [RunResult(None, 1.0, 1.0, 1, 0, "", "", created=frozenset({one.entry.id})) for one in (before, after)]
    catalog = SimpleNamespace(read=lambda *_: (before, after), write=full)
    told = never_twice(cast("Context", SimpleNamespace(catalog=catalog)), passes)
    assert told.startswith("; 1 of them have another key at each start")


def test_what_was_taken_out_is_told_where_it_cannot_be_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    one = entry("a", "kernel").entry
    monkeypatch.setattr(table, "remove", lambda some, *_: {each.id: True for each in some})
    catalog = SimpleNamespace(write=full, write_durably=full)
    wrote: list[Path] = []
    problems = SimpleNamespace(failed=None, worked=wrote.append)
    context = SimpleNamespace(catalog=catalog, clock=lambda: NOW, problems=problems)
    assert (compare.quarantine(cast("Context", context), [one]), wrote) == ({one.id: True}, [STORE.root])


def test_a_runtime_that_was_checked_is_known_where_it_cannot_be_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    done = RuntimeCheck("build", Path("/lib/libsycl.so.8"), Safety.SAFE, "it was built", NOW)
    checked: list[SyclRuntime] = []

    def check(asked: SyclRuntime, *_: object) -> RuntimeCheck:
        checked.append(asked)
        return done

    preflight = SimpleNamespace(check=check)
    monkeypatch.setattr(explain, "KINDS", {table.MODELS: SimpleNamespace(preflight=preflight)})

    async def write(*_: object) -> NoReturn:
        full()

    events = SimpleNamespace(post=lambda *_: None)
    context = SimpleNamespace(clock=lambda: NOW, write=write, events=events)
    runtime = SyclRuntime(done.library, done.build, 1)

    async def twice() -> list[RuntimeCheck]:
        explainer = explain.Explainer(cast("Context", context), cast("StoreFinder", None), cast("Prewarmer", None))
        return [await explainer._runtime_check(runtime, {}, "host") for _ in range(2)]

    assert asyncio.run(twice()) == [done, done]
    assert checked == [runtime]


def test_what_is_known_of_a_runtime_is_told_of_where_the_model_s_own_lies() -> None:
    known = RuntimeCheck("build", Path("/first/libsycl.so.8"), Safety.UNSAFE, "it crashed", NOW)
    own = SyclRuntime(Path("/second/libsycl.so.8"), known.build, 1)

    async def read(*_: object) -> dict[str, RuntimeCheck]:
        return {known.build: known}

    driver, met = SimpleNamespace(variables={}), SimpleNamespace(signature="host")
    settings, present = SimpleNamespace(driver=driver), SimpleNamespace(seen_by=lambda _name: met)
    context = SimpleNamespace(read=read, settings=settings, present=present)
    model = Model(ModelName("net"), Workload(("/bin/true",), Path("/"), {}, 60.0))

    async def told() -> tuple[RuntimeCheck, ...]:
        explainer = explain.Explainer(cast("Context", context), cast("StoreFinder", None), cast("Prewarmer", None))
        return await explainer._checked(model, Libraries((own,)))

    assert asyncio.run(told()) == (replace(known, library=own.library),)
