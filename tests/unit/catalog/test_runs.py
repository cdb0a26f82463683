"""What the end of a run notes: what compiling took, what was used, the day's figures, and which runs are kept."""

from __future__ import annotations

import asyncio
import tracemalloc
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.flow.test_upkeep import alone
from tests.support import catalogs
from tests.unit.catalog.test_catalog import HOUR, NEW, NOW, OTHER, architecture, entry, model, scan
from xpucached.catalog import runs
from xpucached.catalog.coverage import model_coverage
from xpucached.catalog.days import days_between
from xpucached.catalog.entries import all_entries
from xpucached.catalog.models import add_model
from xpucached.catalog.runs import (
    begin_run,
    close_lost_runs,
    find_run,
    finish_run,
    newest_libraries,
    newest_runs,
    note_ending,
    with_newest_runs,
)
from xpucached.catalog.scans import record_scan
from xpucached.domain.libraries import Libraries, SyclRuntime
from xpucached.domain.models import Attribution, Model, Outcome, Pass, Run, Trial, WarmReason
from xpucached.domain.workloads import Variant
from xpucached.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    import sqlalchemy as sa

    from xpucached.catalog import Catalog
    from xpucached.service import Service

NET: Final = model()
FIRST, SECOND, THIRD = (entry(name) for name in ("first", "second", "third"))


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as opened:
        opened.write(add_model, NET)
        opened.write(record_scan, scan(FIRST, SECOND, THIRD), architecture)
        yield opened


def ran(
    catalog: Catalog,
    outcome: Outcome = Outcome.WARMED,
    passes: Sequence[Pass] = (),
    seen: Attribution | None = None,
    of: Model = NET,
    **facts: object,
) -> Run:
    begun = catalog.write(begin_run, of, WarmReason.NEVER, str(facts.pop("host", "host")), NOW)
    at = facts.pop("at", NOW)
    return catalog.write(finish_run, begun.id, outcome, passes, seen or Attribution(), (), "", "", at, **facts)  # type: ignore[arg-type] # those of `finish_run`


def took(seconds: float, created: int) -> Pass:
    return Pass(seconds, 0.0, 1, 0, created, 0)


MADE: Final = Attribution(frozenset({FIRST.id, SECOND.id}), frozenset({THIRD.id}))
COLD, WARM = took(11.0, 2), took(1.0, 0)


@pytest.mark.parametrize(
    ("outcome", "passes", "compiling"),
    [
        (Outcome.WARMED, (COLD, WARM), 10.0),
        (Outcome.WARMED, (COLD, took(5.0, 1), WARM), 10.0),
        (Outcome.WARMED, (took(7.0, 0), COLD, WARM), 10.0),
        # The second pass took longer than the one that compiled.
        (Outcome.WARMED, (COLD, took(12.0, 0)), 0.0),
        # Nothing tells what a warm pass takes, or nothing was compiled, or nobody knows what it is worth.
        (Outcome.WARMED, (COLD,), None),
        (Outcome.WARMED, (WARM, WARM), None),
        (Outcome.UNPROVEN, (COLD, WARM), None),
    ],
)
def test_what_compiling_took_is_what_a_warm_pass_does_not_take(
    catalog: Catalog, outcome: Outcome, passes: Sequence[Pass], compiling: float | None
) -> None:
    ran(catalog, outcome, passes, MADE)
    share = None if compiling is None else compiling / 2
    assert [one.cost for one in catalog.read(all_entries)] == [share, share, None]
    (day,) = catalog.read(days_between)
    assert (day.prewarmed, day.prewarm_seconds) == (2, compiling or 0.0)


def test_each_outcome_is_counted_as_warm_as_failed_or_as_neither(catalog: Catalog) -> None:
    for day, outcome in enumerate(Outcome):
        ran(catalog, outcome, at=NOW + timedelta(days=day))
    found = dict(zip(Outcome, catalog.read(days_between), strict=True))
    assert [outcome for outcome, one in found.items() if one.warmed] == [Outcome.WARMED]
    assert {outcome for outcome, one in found.items() if not (one.warmed or one.failed)} == {
        *(Outcome.UNCACHED, Outcome.CANCELLED, Outcome.LOST)
    }
    assert {one.warmed + one.failed for one in found.values()} == {0, 1}


def test_what_programs_printed_is_read_where_it_is_shown(tmp_path: Path) -> None:
    """Of hundreds of models with variants it is a gigabyte."""
    text, many = "x" * 2**15, 50
    libraries = Libraries((SyclRuntime(Path("/lib/libsycl.so.8"), "8.0", 1),), ())

    def noted(connection: sa.Connection) -> None:
        add_model(connection, NET)
        trials = [Trial(Variant(f"cpu:{number}"), Outcome.WARMED, output=text) for number in range(4)]
        for number in range(many):
            begun = begin_run(connection, NET, WarmReason.NEVER, f"host {number % 16}", NOW)
            seen = libraries if number == many - 8 else None
            rest = ((), Attribution(), (), "", text, NOW, trials, None, seen)
            finish_run(connection, begun.id, Outcome.WARMED, *rest)

    async def took(service: Service) -> dict[str, int]:
        read, name, peaks = service.context.read, NET.name, dict[str, int]()
        questions: dict[str, Callable[[], Awaitable[object]]] = {
            "libraries": lambda: read(newest_libraries, (NET,), many),
            "coverage": lambda: read(model_coverage),
            "statuses": lambda: read(lambda connection: list(with_newest_runs(connection, (NET,), many))),
            "shifts": lambda: service.shifts.look(name),
            "history": lambda: service.explainer.history(name),
            "entries": lambda: service.prewarmer._trials._has_entries(NET, Variant("none")),
        }
        for what, ask in questions.items():
            await ask()
            tracemalloc.start()
            try:
                await ask()
                peaks[what] = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
        return peaks

    with closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        catalog.write(noted)
        peaks = asyncio.run(took(alone(catalog)))
        assert {what: peak for what, peak in peaks.items() if peak > many * len(text) // 2} == {}
        assert catalog.read(newest_libraries, (NET,), many) == {NET.name: libraries}
        assert catalog.read(newest_libraries, (NET,), 7) == {NET.name: None}
        (full,) = catalog.read(newest_runs, NET.name, 1)
        assert {full.output, *(one.output for one in full.trials)} == {text}


def test_what_a_run_used_is_noted_with_when_and_never_earlier(catalog: Catalog) -> None:
    unknown = entry("unknown", OTHER)
    seen = replace(MADE, used=MADE.used | {unknown.id})
    ran(catalog, seen=seen, at=NOW + HOUR)
    ran(catalog, seen=Attribution(frozenset(), frozenset({FIRST.id})), at=NOW)
    assert [one.last_used for one in catalog.read(all_entries)] == [NOW + HOUR] * 3
    ran(catalog, seen=Attribution(frozenset(), frozenset({FIRST.id})), at=NOW + 2 * HOUR)
    assert [one.last_used for one in catalog.read(all_entries)] == [NOW + 2 * HOUR, NOW + HOUR, NOW + HOUR]


def test_what_runs_made_goes_with_them_and_a_run_ends_once(catalog: Catalog) -> None:
    done = ran(catalog)
    with pytest.raises(NotFound, match="no such run under way"):
        catalog.write(finish_run, done.id, Outcome.FAILED, (), Attribution(), (), "", "", NOW)
    with pytest.raises(NotFound, match="no such run"):
        catalog.read(find_run, done.id + 1)
    with pytest.raises(NotFound, match="no model other"):
        catalog.write(begin_run, model("other"), WarmReason.NEVER, "host", NOW)
    assert catalog.read(find_run, done.id) == done


def test_targets_come_back_once_each_in_their_order(catalog: Catalog) -> None:
    begun = catalog.write(begin_run, NET, WarmReason.NEVER, "host", NOW, "6.12", ["a changed"])
    assert (begun.kernel, begun.changes, begun.outcome, begun.finished) == ("6.12", ("a changed",), None, None)
    some = [replace(NEW, device=name) for name in "bacab"]
    done = catalog.write(finish_run, begun.id, Outcome.WARMED, (), Attribution(), some, "so", "said", NOW + HOUR)
    assert [one.device for one in done.environments] == ["b", "a", "c"]
    assert (done.detail, done.output, done.finished) == ("so", "said", NOW + HOUR)


def test_what_ends_with_the_daemon_is_lost_unless_it_meant_to_end_it(catalog: Catalog) -> None:
    done = ran(catalog)
    meant = catalog.write(begin_run, NET, WarmReason.NEVER, "host", NOW)
    catalog.write(note_ending)
    lost = catalog.write(begin_run, NET, WarmReason.NEVER, "host", NOW)
    assert catalog.write(close_lost_runs, NOW + HOUR) == 2
    assert catalog.write(close_lost_runs, NOW + 2 * HOUR) == 0
    found = {one.id: (one.outcome, one.detail, one.finished) for one in catalog.read(newest_runs)}
    assert found == {
        done.id: (Outcome.WARMED, "", NOW),
        meant.id: (Outcome.CANCELLED, "the daemon was told to end while it ran", NOW + HOUR),
        lost.id: (Outcome.LOST, "the daemon ended while it ran", NOW + HOUR),
    }


def mapped(build: str) -> Libraries:
    return Libraries((SyclRuntime(Path("/a/libsycl.so.8"), build, 3),), (Path("/d"),), (Path("/f"),))


def test_the_libraries_of_a_model_are_those_of_its_newest_run_that_was_seen_as_it_is_now(catalog: Catalog) -> None:
    other = replace(NET, workload=replace(NET.workload, command=("/bin/other",)))

    def found(of: Model = NET, limit: int = 9) -> Libraries | None:
        return catalog.read(newest_libraries, [of], limit)[of.name]

    assert found() is None
    done = ran(catalog, libraries=mapped("b1"))
    assert done.libraries == found() == mapped("b1")
    ran(catalog, libraries=mapped("b2"))
    ran(catalog)
    assert found() == mapped("b2")
    assert found(limit=1) is None
    catalog.write(add_model, other)
    ran(catalog, of=other)
    assert (found(), found(other)) == (mapped("b2"), None)


@pytest.mark.parametrize(("proofs", "left"), [(1, 1), (2, 2), (5, 3)])
def test_beyond_the_newest_the_good_run_of_each_host_is_kept(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, proofs: int, left: int
) -> None:
    monkeypatch.setattr(runs, "KEPT", 2)
    monkeypatch.setattr(runs, "PROOFS", proofs)
    catalog.write(add_model, model("another"))
    untouched = ran(catalog, of=model("another"))
    good = [ran(catalog, host=host) for host in ("a", "b", "c", "a")]
    bad = [ran(catalog, Outcome.FAILED) for _ in range(3)]
    # The older one of the host "a" is not the newest of it.
    kept = [bad[2].id, bad[1].id, *[good[3].id, good[2].id, good[1].id][:left]]
    assert [one.id for one in catalog.read(newest_runs, NET.name)] == kept
    assert [one.id for one in catalog.read(newest_runs, untouched.model)] == [untouched.id]


def test_beyond_the_newest_what_denies_a_proof_is_kept(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "KEPT", 2)
    telling = [ran(catalog, outcome, host="a") for outcome in (Outcome.UNPROVEN, Outcome.WARMED, Outcome.CRASHED)]
    failed = [ran(catalog, Outcome.FAILED, host="a") for _ in range(3)]
    kept = [failed[2].id, failed[1].id, telling[2].id, telling[1].id]
    assert [one.id for one in catalog.read(newest_runs, NET.name)] == kept


def test_a_day_later_is_another_day(catalog: Catalog) -> None:
    for days in (0, 1, 1):
        ran(catalog, at=NOW + timedelta(days=days))
    assert [one.warmed for one in catalog.read(days_between)] == [1, 2]
