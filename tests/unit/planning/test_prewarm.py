"""Which proof of several counts, what came and went of a host, and what cannot be read."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import pytest
from msgspec.structs import replace

from tests.unit.planning.test_planning import (
    NEW,
    NOW,
    OLD,
    OTHER,
    coverage,
    env,
    failed,
    host,
    model,
    plan,
    run,
)
from xpucached.domain.host import DriverInUse, Host
from xpucached.domain.models import Coverage, Outcome, Proof, Run, WarmReason, Warmth
from xpucached.domain.plans import Policy
from xpucached.domain.targets import Target
from xpucached.domain.workloads import RunSpec
from xpucached.planning.prewarm import (
    Need,
    applicable,
    failure,
    met_another_compiler,
    need,
    plan_prewarm,
    rests_on_successors,
    uncached,
    unread,
)
from xpucached.planning.verdict import warmth

# The same driver and device with another compiler, and what looks alike and is not.
BUILT: Final = replace(NEW, facts=(("compiler", "a"),))
REBUILT: Final = replace(NEW, facts=(("compiler", "b"),))
LATER: Final = replace(REBUILT, toolchain="3")
OTHERS: Final = replace(REBUILT, device="another")


def proof(number: int, *environments: Target, remaining: int = 4, unreadable: str = "") -> Proof:
    return Proof(run(environments=environments, number=number), 4, remaining, unreadable=unreadable)


@pytest.mark.parametrize(
    ("again", "minutes"), [(0, 0.0), (1, 0.0), (2, 15.0), (3, 30.0), (6, 240.0), (60, 30 * 24 * 60.0)]
)
def test_what_changes_in_each_run_is_run_again_after_longer_and_longer_pauses(again: int, minutes: float) -> None:
    last = run(ended=NOW - timedelta(seconds=1))
    known = replace(coverage(last), changes=("app.py was changed while the run that proved it went on",), again=again)
    found = plan(known)
    if not minutes:
        assert [one.reason for one in found.warm] == [WarmReason.PROGRAM]
        return
    (late,) = found.deferred
    assert late.until == NOW + timedelta(minutes=minutes, seconds=-1)
    assert late.why.startswith("not proven as it is now: app.py was changed")
    assert f"{again + 1} runs in a row" in late.why
    assert [one.reason for one in plan(known, force="net").warm] == [WarmReason.MANUAL]
    (asked,) = plan_prewarm([model()], [known], host(NEW), Policy(), NOW, patient=False).warm
    assert asked.reason is WarmReason.PROGRAM
    # What waits for its time is changed, and so it is told.
    state, why, reason = warmth(model(), known, host(NEW), Policy(), NOW)
    assert (state, why, reason) == (Warmth.CHANGED, late.why, WarmReason.PROGRAM)
    # Who has edited it since waits for no pause.
    assert plan(replace(known, changes=("app.py was modified",))).warm
    # Nor does a clock that was set back hold it for ever.
    assert plan(replace(known, last=run(ended=NOW + timedelta(days=1)))).warm


@pytest.mark.parametrize(
    ("proofs", "counts"),
    [
        ((), 9),
        ((proof(1, NEW),), 1),
        ((proof(1, OTHER),), 9),
        ((proof(1, NEW), proof(2, NEW)), 2),
        ((proof(2, NEW), proof(1, NEW)), 2),
        ((proof(1, NEW), proof(2, OTHER)), 1),
        # What is whole comes before what lost something, then what can be read, then what is newer.
        ((proof(1, NEW), proof(2, NEW, remaining=3)), 1),
        ((proof(1, NEW), proof(2, NEW, unreadable="denied")), 1),
        ((proof(1, NEW, unreadable="denied"), proof(2, NEW, remaining=3)), 1),
    ],
)
def test_where_the_newest_proof_holds_no_more_the_best_that_does_counts(proofs: tuple[Proof, ...], counts: int) -> None:
    known = replace(coverage(run(environments=(OLD,), number=9), remaining=1), proofs=proofs, changes=("a",))
    found = applicable(known, host(NEW))
    assert found.good is not None
    assert found.good.id == counts
    if counts != 9:
        (best,) = (one for one in proofs if one.run.id == counts)
        assert (found.entries, found.remaining, found.unreadable) == (4, best.remaining, best.unreadable)
        # What changed was told of the newest.
        assert found.changes == ()


def test_a_proof_that_holds_is_not_looked_past_and_without_one_there_is_none() -> None:
    older = (proof(1, NEW),)
    holds = replace(coverage(run(number=9), remaining=1), proofs=older)
    assert applicable(holds, host(NEW)) is holds
    never = replace(coverage(), proofs=older)
    assert applicable(never, host(NEW)) is never


def tailored(good: Target, *successors: Target) -> Coverage:
    return replace(coverage(run(environments=(good,))), successors=successors)


def test_what_counts_for_another_compiler_is_denied_by_what_denies_it_for_its_own() -> None:
    denial = run(environments=(BUILT,), on=host(BUILT), outcome=Outcome.UNPROVEN, number=2)
    known = replace(tailored(BUILT, REBUILT), denials=(denial,))
    assert need(model(), replace(known, denials=()), host(REBUILT)) is None
    assert [need(model(), known, host(one)) is None for one in (BUILT, REBUILT)] == [False, False]


@pytest.mark.parametrize(
    ("known", "on", "warm", "rests"),
    [
        (tailored(BUILT), host(BUILT), True, False),
        (tailored(BUILT, REBUILT), host(BUILT), True, False),
        (tailored(BUILT, REBUILT), host(REBUILT), True, True),
        (tailored(BUILT, REBUILT), host(BUILT, REBUILT), True, False),
        (tailored(BUILT), host(REBUILT), False, False),
        # It is not here; it is of another driver; it is another device's.
        (tailored(BUILT, REBUILT), host(OTHER), False, False),
        (tailored(BUILT, LATER), host(LATER), False, False),
        (tailored(BUILT, OTHERS), host(OTHERS), False, False),
        (coverage(), host(REBUILT), False, False),
    ],
)
def test_another_compiler_is_as_good_only_where_all_is_there_that_programs_look_for_with_it(
    known: Coverage, on: Host, *, warm: bool, rests: bool
) -> None:
    assert (need(model(), known, on) is None) is warm
    assert rests_on_successors(known, on) is rests


def test_a_run_met_another_compiler_if_any_of_what_it_met_is_not_here() -> None:
    assert not met_another_compiler(run(environments=()), host(NEW))
    assert not met_another_compiler(run(environments=(NEW,)), host(NEW, OTHER))
    assert met_another_compiler(run(environments=(NEW, OTHER)), host(NEW))


@pytest.mark.parametrize(
    ("good", "proofs"),
    [
        (run(environments=(OLD,), number=2), (proof(1, NEW),)),
        (run(environments=(NEW,), on=replace(host(NEW), variables="0123abcd"), number=2), (proof(1, NEW),)),
    ],
)
def test_a_proof_holds_for_another_host_no_more_than_for_other_variables(good: Run, proofs: tuple[Proof, ...]) -> None:
    found = applicable(replace(coverage(good), proofs=proofs), host(NEW))
    assert found.good is not None
    assert found.good.id == 1


def appeared(*some: Target, used: tuple[Target, ...] = (NEW,)) -> Coverage:
    return replace(coverage(run(environments=used)), appeared=some)


def test_a_driver_that_other_models_had_makes_one_cold_that_meets_it_now() -> None:
    known = coverage(run(on=host(NEW, OTHER)))
    assert need(model(), known, host(NEW, OTHER)) is None
    wanted = need(model(), known, host(NEW, OLD, OTHER))
    assert wanted is not None
    assert f"driver {OLD.toolchain} for {OLD.device} came" in wanted.detail


@pytest.mark.parametrize(
    ("known", "on", "came"),
    [
        (appeared(OTHER), host(NEW, OTHER), [OTHER.device]),
        (appeared(OTHER, OTHERS), host(NEW, OTHER, OTHERS), [OTHER.device, OTHERS.device]),
        (appeared(OTHER, OTHERS), host(NEW, OTHER), [OTHER.device]),
        (appeared(OTHER), host(NEW), []),
        # It is the device that was used: which of its drivers a program takes, the runtime says.
        (appeared(OLD), host(NEW, OLD), [f"driver {OLD.toolchain} for {OLD.device}"]),
        (coverage(run(on=host(NEW, OLD))), host(NEW, OLD, OTHER), []),
        # One that was there then, and was not used, has another driver, or a further one.
        (appeared(replace(OTHER, toolchain="9")), host(NEW, OTHER, replace(OTHER, toolchain="9")), []),
    ],
)
def test_a_device_that_came_since_makes_a_model_cold(known: Coverage, on: Host, came: list[str]) -> None:
    detail = f"{', '.join(came)} came since it was warmed: its programs may use that now"
    assert need(model(), known, on) == (Need(WarmReason.DRIVER, detail) if came else None)


def test_what_came_speaks_against_an_older_proof_as_well() -> None:
    older = replace(proof(1, NEW), appeared=(OTHER,))
    known = replace(coverage(run(environments=(OLD,), number=2)), proofs=(older,))
    for on, counts in ((host(NEW), 1), (host(NEW, OTHER), 2)):
        found = applicable(known, on)
        assert found.good is not None
        assert found.good.id == counts


@pytest.mark.parametrize(
    ("known", "told"),
    [
        (None, ""),
        (coverage(run()), ""),
        (replace(coverage(run()), unreadable="denied"), "where it caches cannot be read now (denied)"),
        (replace(coverage(run()), unreadable="denied", unread=2), "2 of its 4 entries cannot be read now (denied)"),
        (replace(coverage(run()), unread=2), ""),
    ],
)
def test_what_cannot_be_read_is_told_and_nothing_is_run(known: Coverage | None, told: str) -> None:
    assert unread(known, host(NEW)) == told
    if known is not None and told:
        for one in (known, replace(known, remaining=3)):
            decided = plan(one)
            assert [(one.why, one.until) for one in decided.deferred] == [(told, None)]
            assert (decided.warm, decided.covered) == ((), ())


@pytest.mark.parametrize("elsewhere", [True, False])
def test_where_a_model_caches_in_another_store_now_that_is_said(*, elsewhere: bool) -> None:
    known = replace(coverage(run(), remaining=3), elsewhere=int(elsewhere))
    found = need(model(), known, host(NEW))
    assert found is not None
    where = "it caches in another store now, where 1 of its 4 entries are not"
    assert found.detail == (where if elsewhere else "1 of its 4 entries are gone or damaged")


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (3, "3 entries are there already, of 4 that it had"),
        # Besides those of its proof there were others of its own.
        (5, "5 entries are there already"),
    ],
)
def test_what_was_compiled_ahead_for_a_driver_is_told_with_what_is_missing(made: int, told: str) -> None:
    known = replace(coverage(run(environments=(OLD,))), inherited=made)
    found = need(model(), known, host(NEW))
    assert found is not None
    assert found.detail.endswith(f" now has 2; for that {told}")


def test_of_several_drivers_and_devices_that_are_gone_the_first_is_told() -> None:
    first, second = env("1", device="a"), env("1", device="b")
    known = coverage(run(environments=(second, first)))
    found = need(model(), known, host(env("2", device="a"), env("3", device="a"), NEW))
    assert found is not None
    assert found.detail == "it was warmed for driver 1; a now has 2, 3"


@pytest.mark.parametrize(
    ("last", "on", "told"),
    [
        (run(outcome=Outcome.UNCACHED), host(NEW), True),
        (run(outcome=Outcome.UNCACHED), host(NEW, OTHER), False),
        (run(model(command="other"), outcome=Outcome.UNCACHED), host(NEW), False),
        (run(outcome=Outcome.FAILED), host(NEW), False),
        (None, host(NEW), False),
    ],
)
def test_a_model_uses_no_cache_as_long_as_it_and_the_host_are_as_they_were(
    last: Run | None, on: Host, *, told: bool
) -> None:
    known = coverage(last=last)
    assert (uncached(model(), known, on) is not None) is told
    assert any(one.uncached for one in plan(known, on=on).deferred) is told


@pytest.mark.parametrize(
    ("known", "until"),
    [
        (None, False),
        (failed(0), False),
        (failed(1, on=host(OLD)), False),
        (replace(failed(1), last=run(model(command="other"), outcome=Outcome.FAILED)), False),
        (failed(1, ago=60), NOW + timedelta(seconds=840)),
        (failed(1, ago=0), NOW + timedelta(seconds=900)),
        (failed(1, ago=-1), NOW),
        (failed(1, outcome=Outcome.CANCELLED), NOW),
        (failed(2), NOW + timedelta(seconds=1740)),
        (failed(3), None),
        # What crashes may take the GPU with it: once is enough.
        (failed(1, outcome=Outcome.CRASHED), None),
    ],
)
def test_until_when_a_failed_model_waits(known: Coverage | None, until: object) -> None:
    found = failure(model(), known, host(NEW), Policy(), NOW)
    assert (found.until if found else False) == until
    if found:
        assert known is not None
        assert (found.count, found.last) == (known.failures, known.last)


def test_a_run_that_died_with_the_daemon_counts_from_its_start() -> None:
    last = replace(run(outcome=Outcome.FAILED), started=NOW - timedelta(seconds=100), finished=None)
    found = failure(model(), replace(failed(1), last=last), host(NEW), Policy(), NOW)
    assert found is not None
    assert found.until == NOW + timedelta(seconds=800)


def test_each_model_is_judged_by_the_driver_that_its_own_variables_lead_to() -> None:
    on = host(NEW)
    led = replace(on, drivers=(DriverInUse({}, (model().name,), "stamp", environments=(OTHER,)),))
    known = coverage(run(environments=(OTHER,), on=host(OTHER)))
    assert [one.reason for one in plan(known, on=on).warm] == [WarmReason.DRIVER]
    assert plan(known, on=led).covered == ("net",)


def test_what_needs_no_device_of_this_host_is_warmed_without_and_stays_uncached_whatever_comes() -> None:
    workload = model().workload
    there = replace(model(), workload=replace(workload, exercise=RunSpec(device="cpu")))
    tried = coverage(last=run(there, outcome=Outcome.UNCACHED))
    assert [one.reason for one in plan_prewarm([there], [], host(), Policy(), NOW).warm] == [WarmReason.NEVER]
    for on in (host(), host(NEW), host(NEW, OTHER)):
        assert uncached(there, tried, on) == tried.last
