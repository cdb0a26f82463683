"""How far runs cover their models: which proofs count, what failed since, and what replay made for them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.support import catalogs
from tests.unit.catalog.test_catalog import CPU, NEW, NOW, OLD, STORE, architecture, entry, host, model, run, scan
from xpucached.catalog import coverage
from xpucached.catalog.builds import record_build
from xpucached.catalog.coverage import model_coverage, proven_kinds
from xpucached.catalog.models import add_model
from xpucached.catalog.runs import begin_run, finish_run
from xpucached.catalog.scans import record_scan
from xpucached.catalog.surveys import record_survey
from xpucached.domain.models import Attribution, Coverage, Layer, Outcome, WarmReason
from xpucached.domain.names import KindName, ModelName
from xpucached.domain.plans import Built
from xpucached.domain.stores import Entry, EntryState, Store
from xpucached.domain.targets import Origin, Target
from xpucached.kinds import sycl
from xpucached.planning.prewarm import need

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from xpucached.catalog import Catalog


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    opened = catalogs.fresh(tmp_path / "catalog.sqlite")
    opened.write(add_model, model())
    yield opened
    opened.close()


def covered(catalog: Catalog, name: str = "net") -> Coverage:
    return next(one for one in catalog.read(model_coverage) if one.model == name)


def proofs(catalog: Catalog) -> list[int]:
    return [one.run.id for one in covered(catalog).proofs]


def test_of_each_host_as_it_was_the_newest_proof_counts_the_newest_first(catalog: Catalog) -> None:
    run(catalog, model(), signature="here")
    there = run(catalog, model(), signature="there")
    here = run(catalog, model(), signature="here")
    run(catalog, model(), Outcome.UNPROVEN, signature="elsewhere")
    assert proofs(catalog) == [here, there]


def test_so_many_proofs_count_and_no_more(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "PROOFS", 2)
    runs = [run(catalog, model(), signature=str(number)) for number in range(2)]
    assert proofs(catalog) == [runs[1], runs[0]]
    runs.append(run(catalog, model(), signature="2"))
    assert proofs(catalog) == [runs[2], runs[1]]


def test_what_another_command_proved_is_the_last_good_run_and_no_proof(catalog: Catalog) -> None:
    earlier = run(catalog, model())
    catalog.write(add_model, model(command="python3.12"))
    found = covered(catalog)
    assert found.good is not None
    assert (found.good.id, found.proofs) == (earlier, ())


def test_the_last_run_is_the_newest_that_ended_by_itself(catalog: Catalog) -> None:
    failed = run(catalog, model(), Outcome.FAILED)
    run(catalog, model(), Outcome.CANCELLED)
    catalog.write(begin_run, model(), WarmReason.MANUAL, "here", NOW)
    found = covered(catalog)
    assert found.last is not None
    assert (found.last.id, found.good, found.entries, found.remaining, found.layers) == (failed, None, 0, 0, ())


def test_failures_are_those_of_one_model_on_this_host_since_it_was_warm_or_cached_nothing(catalog: Catalog) -> None:
    catalog.write(add_model, model("other"))
    run(catalog, model(), Outcome.FAILED, signature="there")
    run(catalog, model(), Outcome.FAILED)
    run(catalog, model("other"), Outcome.FAILED, signature="there")
    run(catalog, model(), Outcome.FAILED)
    assert (covered(catalog).failures, covered(catalog, "other").failures) == (2, 1)
    run(catalog, model(), Outcome.UNCACHED)
    assert covered(catalog).failures == 0
    # What came before the run that ended the count does not count again.
    run(catalog, model(), Outcome.FAILED)
    assert (covered(catalog).failures, covered(catalog, "other").failures) == (1, 1)


MIDST: Final = ("conf.yaml was changed while the run that proved it went on",)
EDITED: Final = ("app.py was modified",)


def test_runs_in_a_row_for_what_changed_are_counted_within_a_day(catalog: Catalog) -> None:
    catalog.write(add_model, model("other"))
    changed = [(MIDST, 0), (MIDST, 2), (EDITED, 2), (MIDST, 2), (MIDST, 2), (MIDST, 2)]
    for changes, day in changed:
        started = catalog.write(begin_run, model(), WarmReason.PROGRAM, "here", NOW + timedelta(days=day), "", changes)
        finished = NOW + timedelta(days=day, hours=1)
        catalog.write(finish_run, started.id, Outcome.WARMED, [], Attribution(), (), "", "", finished)
        run(catalog, model("other"))
    assert (covered(catalog).again, covered(catalog, "other").again) == (3, 0)
    # Yesterday's count no more.
    started = catalog.write(begin_run, model(), WarmReason.PROGRAM, "here", NOW + timedelta(days=9), "", MIDST)
    catalog.write(finish_run, started.id, Outcome.WARMED, [], Attribution(), (), "", "", NOW + timedelta(days=9))
    assert covered(catalog).again == 1
    run(catalog, model())
    assert covered(catalog).again == 0


def test_what_is_there_of_a_run_is_told_apart_by_kind(catalog: Catalog) -> None:
    other = Store(KindName("neo"), STORE.root)
    here, gone, there = entry("a/0"), entry("b/0"), entry("c", other)
    catalog.write(record_scan, scan(here), architecture)
    catalog.write(record_scan, scan(there, store=other), architecture)
    run(catalog, model(), created=(here, gone), used=(there,))
    assert covered(catalog).layers == (Layer(KindName("neo"), 1, 1), Layer(KindName("sycl"), 2, 1))
    assert (covered(catalog).entries, covered(catalog).remaining) == (3, 2)


def test_a_model_is_proven_by_the_kinds_of_its_newest_proof(catalog: Catalog) -> None:
    assert catalog.read(proven_kinds, model()) == frozenset()
    other = entry("c", Store(KindName("neo"), STORE.root))
    run(catalog, model(), created=(entry("a/0"),))
    assert catalog.read(proven_kinds, model()) == {"sycl"}
    run(catalog, model(), created=(other,))
    run(catalog, model(), Outcome.FAILED, created=(entry("a/0"),))
    assert catalog.read(proven_kinds, model()) == {"neo"}
    assert catalog.read(proven_kinds, model("other")) == frozenset()
    assert catalog.read(proven_kinds, model(command="python3.12")) == frozenset()


def test_what_replay_made_counts_while_it_is_whole_and_its_driver_here(catalog: Catalog) -> None:
    def made(of: Entry, target: Target) -> Entry:
        built = Built(of.id, target, Origin.REBUILT, "driver", 1, 1.0, of.digest or "", (ModelName("net"),))
        catalog.write(record_build, built, NOW)
        return replace(of, environment=target)

    whole, old, broken = made(entry("a/0"), NEW), made(entry("b/0"), OLD), made(entry("c/0"), NEW)
    catalog.write(record_survey, host(NEW, CPU))
    catalog.write(record_scan, scan(whole, old, broken), architecture)
    assert covered(catalog).inherited == 2
    damaged = replace(broken, state=EntryState.DEFECTIVE, defect=sycl.defects.BIN_EMPTY, stamp="later")
    catalog.write(record_scan, scan(whole, old, damaged), architecture)
    assert covered(catalog).inherited == 1


@pytest.mark.parametrize("then", [None, Outcome.LOST, Outcome.FAILED, Outcome.CANCELLED, Outcome.WARMED])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_compiled_again_is_denied_until_a_run_proves_it(
    catalog: Catalog, then: Outcome | None, *, elsewhere: bool
) -> None:
    """Whatever came of runs since then, and though one with another driver proved it there."""
    here, other = host(NEW), host(OLD)
    outcomes = [(Outcome.WARMED, here), (Outcome.UNPROVEN, here), *([(Outcome.WARMED, other)] if elsewhere else [])]
    for outcome, on in [*outcomes, *([(then, here)] if then is not None else [])]:
        number = catalog.write(begin_run, model(), WarmReason.MANUAL, on.signature, NOW).id
        met = on.environments if outcome is Outcome.WARMED else ()
        catalog.write(finish_run, number, outcome, (), Attribution(), met, "", "", NOW)
    known = covered(catalog)
    assert (need(model(), known, here) is None) is (then is Outcome.WARMED)
    assert (need(model(), known, other) is None) is elsewhere
