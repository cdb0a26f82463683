"""A program that uses no cache is no failure, and one that waits is told to wait, in words and in the plan."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from pathlib import Path

import pytest

from tests.flow.test_upkeep import alone
from tests.support import catalogs
from tests.support.builders import sycl_target
from tests.unit.planning.test_planning import NOW, coverage, failed, host, model, plan, run, status
from xpucached.catalog import Catalog
from xpucached.catalog.coverage import model_coverage
from xpucached.catalog.models import add_model
from xpucached.catalog.runs import begin_run, close_lost_runs, finish_run, newest_runs
from xpucached.domain.host import Problem
from xpucached.domain.models import Attribution, Outcome, WarmReason, Warmth
from xpucached.domain.plans import Policy
from xpucached.domain.status import Verdict
from xpucached.domain.throttling import Waiting
from xpucached.planning.verdict import verdict, warmth

HERE = host(sycl_target("Intel(R) OpenCL", "CPU", "OpenCL 3.0", "2"))
THERE = host(sycl_target("Intel(R) OpenCL", "CPU", "OpenCL 3.0", "3"))


def test_it_is_not_run_again_until_something_changes_or_somebody_insists() -> None:
    known = coverage(last=run(outcome=Outcome.UNCACHED, environments=(), on=HERE))

    assert plan(known, on=HERE).warm == ()
    assert "uses no cache" in plan(known, on=HERE).deferred[0].why
    assert [one.model.name for one in plan(known, on=HERE, force="net").warm] == ["net"]
    assert [one.model.name for one in plan(known, on=THERE).warm] == ["net"]
    other = coverage(last=run(model(command="/bin/false"), outcome=Outcome.UNCACHED, environments=(), on=HERE))
    assert [one.model.name for one in plan(other, on=HERE).warm] == ["net"]
    assert warmth(model(), known, HERE, Policy(), NOW)[0] is Warmth.UNCACHED


def test_the_verdict_says_so_and_counts_it_neither_as_warm_nor_as_failed() -> None:
    alone = verdict(HERE, [status("app", Warmth.UNCACHED)], [])
    assert alone[0] is Verdict.UNCACHED
    assert alone[1].startswith("Uncached: app uses no cache that xpucached knows")
    both = verdict(HERE, [status("app", Warmth.UNCACHED), status("net", Warmth.WARM)], [])
    assert both == (Verdict.WARM, "Warm: net is warm for driver 2; app uses no cache that xpucached knows")


def test_who_waits_says_since_when_and_for_what() -> None:
    waiting = Waiting(NOW - timedelta(days=1), "the processor is busy")
    state, why, reason = warmth(model(), None, HERE, Policy(), NOW, waiting=waiting)

    assert (state, reason) == (Warmth.WAITING, WarmReason.NEVER)
    assert why.startswith(f"waiting since {waiting.since:%Y-%m-%d %H:%M} UTC: the processor is busy; ")
    assert warmth(model(), failed(1), HERE, Policy(), NOW, waiting=waiting)[0] is not Warmth.WARM


def test_what_the_daemon_does_by_itself_in_vain_stands_in_the_sentence() -> None:
    word, sentence = verdict(HERE, [status("net", Warmth.WARM)], [Problem("automatic-job-failed", "x", "", "replay")])

    assert word is Verdict.WARM
    assert sentence.endswith("; what the daemon does by itself failed (replay), see the problems")


@pytest.mark.parametrize("before", [Outcome.FAILED, Outcome.UNCACHED])
def test_a_cancelled_run_says_nothing(before: Outcome, tmp_path: Path) -> None:
    catalog = catalogs.fresh(tmp_path / "catalog.sqlite")
    try:
        catalog.write(add_model, model())
        for outcome in (before, Outcome.CANCELLED, Outcome.CANCELLED):
            begun = catalog.write(begin_run, model(), WarmReason.NEVER, "here", NOW)
            catalog.write(finish_run, begun.id, outcome, (), Attribution(), (), str(outcome), "", NOW)
        (found,) = catalog.read(model_coverage)
        assert found.last is not None
        assert (found.last.outcome, found.failures) == (before, 1 if before is Outcome.FAILED else 0)
    finally:
        catalog.close()


@pytest.mark.parametrize("told", [False, True])
def test_a_run_whose_daemon_was_told_to_end_and_then_killed_is_no_failure(
    home: Path, tmp_path: Path, *, told: bool
) -> None:
    """At the end of a host, or of a worker that has nothing to do, systemd kills those who take too long."""
    with contextlib.closing(Catalog.open(tmp_path / "catalog.sqlite")) as catalog:
        catalog.write(add_model, model())
        catalog.write(begin_run, model(), WarmReason.NEVER, "here", NOW)
        if told:
            asyncio.run(alone(catalog).stop())
    # It was killed here, and this is its successor.
    with contextlib.closing(Catalog.open(tmp_path / "catalog.sqlite")) as catalog:
        assert catalog.write(close_lost_runs, NOW) == 1
        (ended,) = catalog.read(newest_runs)
        (known,) = catalog.read(model_coverage)
        assert (ended.outcome, known.failures) == ((Outcome.CANCELLED, 0) if told else (Outcome.LOST, 1))
