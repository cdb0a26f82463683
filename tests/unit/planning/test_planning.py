"""`planning`: a table of cases for each reason, and the promises as properties."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.builders import sycl_target
from xpucached.domain.defects import CHANGED, Defect, Effect
from xpucached.domain.host import Device, DriverInUse, Host, Presence, Problem
from xpucached.domain.models import (
    DENYING,
    Coverage,
    Layer,
    Model,
    ModelStatus,
    Outcome,
    Run,
    WarmReason,
    Warmth,
    Workload,
)
from xpucached.domain.names import Architecture, EntryKey, KindName, ModelName
from xpucached.domain.plans import (
    DiskSpace,
    Evict,
    EvictionPlan,
    EvictReason,
    IndexedEntry,
    Limits,
    Policy,
    PrewarmPlan,
    Subtotal,
)
from xpucached.domain.status import Verdict
from xpucached.domain.stores import UNSETTLED, Entry, EntryId, EntryState, Store
from xpucached.domain.targets import Origin, Target
from xpucached.kinds import sycl
from xpucached.planning.attribution import attribute
from xpucached.planning.eviction import plan_eviction, plan_named
from xpucached.planning.prewarm import plan_prewarm
from xpucached.planning.verdict import of_drivers, of_system, verdict, warmth

NOW: Final = datetime(2026, 6, 1, 12, tzinfo=UTC)
DAY: Final = timedelta(days=1)
STORE: Final = Store(KindName("sycl"), Path("/cache/sycl"))

OCL: Final = "Intel(R) OpenCL"
CPU: Final = "Intel(R) Xeon(R)"


def env(driver: str, *, platform: str = OCL, device: str = CPU, version: str = "OpenCL 3.0") -> Target:
    return sycl_target(platform, device, version, driver)


OLD: Final = env("1")
NEW: Final = env("2")
OTHER: Final = env("7", device="Intel(R) Arc(TM)")


def host(*environments: Target) -> Host:
    return Host(NOW, "boot", "6.1", "stamp", environments=environments)


# -- prewarm ------------------------------------------------------------------------------------------------------


def model(name: str = "net", *, command: str = "/bin/true", priority: int = 50, pinned: bool = False) -> Model:
    return Model(ModelName(name), Workload((command,), Path("/")), priority=priority, pinned=pinned)


def run(
    of: Model | None = None,
    *,
    outcome: Outcome = Outcome.WARMED,
    on: Host | None = None,
    environments: tuple[Target, ...] = (NEW,),
    ended: datetime = NOW - DAY,
    number: int = 1,
) -> Run:
    of = of or model()
    return Run(
        id=number,
        model=of.name,
        workload=of.workload.digest,
        reason=WarmReason.NEVER,
        started=ended,
        finished=ended,
        outcome=outcome,
        host=(on or host(NEW)).signature,
        environments=environments,
        detail="exit status 1" if outcome is Outcome.FAILED else "",
    )


def coverage(
    good: Run | None = None, last: Run | None = None, *, failures: int = 0, entries: int = 4, remaining: int = 4
) -> Coverage:
    denials = tuple(
        one for one in (last,) if one and one.outcome in DENYING and one.workload == model().workload.digest
    )
    entries, remaining = (entries, remaining) if good else (0, 0)
    return Coverage(ModelName("net"), last or good, good, failures, entries, remaining, denials=denials)


def failed(times: int, *, ago: float = 60, outcome: Outcome = Outcome.FAILED, on: Host | None = None) -> Coverage:
    return coverage(
        last=run(outcome=outcome, ended=NOW - timedelta(seconds=ago), on=on, environments=()), failures=times
    )


def plan(
    known: Coverage | None, *, on: Host | None = None, policy: Policy | None = None, force: str | None = None
) -> PrewarmPlan:
    return plan_prewarm(
        [model()],
        [known] if known else [],
        on or host(NEW),
        policy or Policy(),
        NOW,
        force=frozenset({ModelName(force)}) if force else None,
    )


LOST_IN_NEO = (Layer(KindName("neo"), 2, 1), Layer(KindName("sycl"), 2, 2))


@pytest.mark.parametrize(
    ("known", "on"),
    [
        pytest.param(coverage(run()), host(NEW), id="same"),
        pytest.param(coverage(run()), host(NEW, OTHER), id="another device came"),
        pytest.param(coverage(run(environments=())), host(NEW), id="touched none, same host"),
        pytest.param(
            coverage(run(), run(outcome=Outcome.FAILED, number=2), failures=1), host(NEW), id="a later run failed"
        ),
        pytest.param(
            coverage(run(), run(outcome=Outcome.UNPROVEN, number=2, on=host(OLD), environments=(OLD,)), failures=1),
            host(NEW),
            id="a later run with another driver compiled again",
        ),
        pytest.param(
            coverage(run(), run(model(command="/bin/false"), outcome=Outcome.UNPROVEN, number=2)),
            host(NEW),
            id="a later run of another command compiled again",
        ),
        pytest.param(
            coverage(run(number=2), run(outcome=Outcome.UNPROVEN, number=1), failures=0),
            host(NEW),
            id="an earlier one did",
        ),
    ],
)
def test_a_model_is_covered(known: Coverage, on: Host) -> None:
    assert plan(known, on=on) == PrewarmPlan(covered=(ModelName("net"),))


@pytest.mark.parametrize(
    ("known", "on", "reason", "detail"),
    [
        (None, host(NEW), WarmReason.NEVER, "it has never been warmed"),
        (coverage(), host(NEW), WarmReason.NEVER, "it has never been warmed"),
        (failed(0, outcome=Outcome.LOST), host(NEW), WarmReason.NEVER, "it has never been warmed"),
        (
            coverage(run(model(command="/bin/false"))),
            host(NEW),
            WarmReason.CHANGED,
            "its workload changed since it was warmed",
        ),
        (
            coverage(last=run(model(command="/bin/false"), outcome=Outcome.FAILED), failures=3),
            host(NEW),
            WarmReason.CHANGED,
            "its workload changed since it was tried",
        ),
        (
            coverage(run(environments=(OLD,))),
            host(NEW),
            WarmReason.DRIVER,
            f"it was warmed for driver 1; {CPU} now has 2",
        ),
        (
            coverage(run(environments=(NEW, OTHER))),
            host(NEW),
            WarmReason.DRIVER,
            "it was warmed for Intel(R) Arc(TM), which this host does not offer now",
        ),
        (
            coverage(run(environments=(), on=host(OLD))),
            host(NEW),
            WarmReason.DRIVER,
            "the host's devices or drivers changed since it was warmed",
        ),
        (
            failed(3, on=host(OLD)),
            host(NEW),
            WarmReason.DRIVER,
            "the host's devices or drivers changed since it was tried",
        ),
        (
            coverage(run(), run(outcome=Outcome.UNPROVEN, number=2)),
            host(NEW),
            WarmReason.RETRY,
            "run 2 did not prove it again: ",
        ),
        (
            coverage(run(), run(outcome=Outcome.UNPROVEN, number=2, on=host(NEW, OTHER))),
            host(NEW),
            WarmReason.RETRY,
            "run 2 did not prove it again: ",
        ),
        (
            coverage(run(), run(outcome=Outcome.CRASHED, number=2)),
            host(NEW),
            WarmReason.RETRY,
            "run 2 did not prove it again: ",
        ),
        (coverage(run(), remaining=3), host(NEW), WarmReason.LOST, "1 of its 4 entries are gone or damaged"),
        (
            replace(coverage(run(), remaining=3), layers=LOST_IN_NEO),
            host(NEW),
            WarmReason.LOST,
            "1 of its 4 entries are gone or damaged (1 neo)",
        ),
        (
            coverage(run(environments=(replace(NEW, facts=(("compiler", "1"), ("version", "2"))),))),
            host(replace(NEW, facts=(("compiler", "3"), ("version", "2")))),
            WarmReason.DRIVER,
            f"the compiler of driver {NEW.toolchain} changed since it was warmed for {NEW.device}",
        ),
        (
            replace(coverage(run()), changes=("a was modified", "b is gone", "c 1 → 2", "d", "e")),
            host(NEW),
            WarmReason.PROGRAM,
            "not proven as it is now: a was modified; b is gone; c 1 → 2; and 2 more",
        ),
        (
            replace(coverage(run()), changes=("a was modified", "b is gone", "c 1 → 2")),
            host(NEW),
            WarmReason.PROGRAM,
            "not proven as it is now: a was modified; b is gone; c 1 → 2",
        ),
        (
            replace(coverage(run(), remaining=3), changes=("a was modified",)),
            host(NEW),
            WarmReason.LOST,
            "1 of its 4 entries are gone or damaged",
        ),
    ],
)
def test_a_model_is_warmed_for_a_reason(known: Coverage | None, on: Host, reason: WarmReason, detail: str) -> None:
    decided = plan(known, on=on)

    assert [(one.model.name, one.reason, one.detail) for one in decided.warm] == [("net", reason, detail)]
    assert not decided.deferred
    assert not decided.covered


@pytest.mark.parametrize(
    ("failures", "ago", "wait"),
    [(1, 899, 1), (1, 900, 0), (2, 1799, 1), (2, 1800, 0), (2, 0, 1800), (1, -60, 0)],
)
def test_a_failed_model_waits_twice_as_long_each_time(failures: int, ago: float, wait: float) -> None:
    decided = plan(failed(failures, ago=ago))

    if wait:
        (one,) = decided.deferred
        assert one.until == NOW + timedelta(seconds=wait)
        assert "exit status 1" in one.why
        assert not decided.warm
    else:
        assert [one.reason for one in decided.warm] == [WarmReason.RETRY]
        assert not decided.deferred


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.UNPROVEN, Outcome.TIMED_OUT])
def test_every_kind_of_failure_has_so_many_attempts(outcome: Outcome) -> None:
    decided = plan(failed(3, ago=1e6, outcome=outcome))

    (one,) = decided.deferred
    assert one.until is None
    assert "3 times in a row" in one.why
    assert not decided.warm


@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.CANCELLED])
def test_a_run_that_was_stopped_is_no_reason_to_wait(outcome: Outcome) -> None:
    assert [one.model.name for one in plan(failed(1, ago=1, outcome=outcome)).warm] == ["net"]
    assert plan(failed(0, ago=1, outcome=outcome)).warm[0].reason is WarmReason.NEVER


def test_another_driver_starts_afresh() -> None:
    assert plan(failed(3), on=host(NEW)).warm == ()
    assert [one.reason for one in plan(failed(3), on=host(NEW, OTHER)).warm] == [WarmReason.DRIVER]


def test_the_longest_delay_overflows_no_date() -> None:
    (one,) = plan(failed(99), policy=Policy(attempts=100, retry_after=1e7)).deferred

    assert one.until is not None
    assert one.until <= NOW + 31 * DAY


@pytest.mark.parametrize("known", [coverage(run()), failed(3), None])
def test_what_is_asked_for_is_warmed_whatever_was(known: Coverage | None) -> None:
    decided = plan(known, force="net")

    assert [one.reason for one in decided.warm] == [WarmReason.MANUAL]
    assert decided.warm[0].detail.startswith("asked for; ")
    assert plan(known, force="other") == plan(known)


@pytest.mark.parametrize("force", [None, "net"])
def test_without_a_device_everything_waits(force: str | None) -> None:
    decided = plan(coverage(run()), on=host(), force=force)

    assert [(one.model, one.why, one.until) for one in decided.deferred] == [
        ("net", "no device to warm it on; see: xpucachectl why net", None)
    ]
    assert not decided.warm
    assert not decided.covered


def test_the_urgent_come_first_then_the_names() -> None:
    some = [model("c"), model("a"), model("b", priority=90), model("d", priority=10)]

    decided = plan_prewarm(some, [], host(NEW), Policy(), NOW)

    assert [one.model.name for one in decided.warm] == ["b", "a", "c", "d"]


outcomes = st.sampled_from([one for one in Outcome if one is not Outcome.WARMED])


@settings(deadline=None, database=None)
@given(
    failures=st.integers(0, 200),
    outcome=outcomes,
    ago=st.floats(-1e6, 1e8),
    attempts=st.integers(1, 100),
    retry=st.floats(0, 1e7),
    good=st.booleans(),
    remaining=st.integers(0, 4),
    environments=st.sets(st.sampled_from([OLD, NEW, OTHER])),
    then=st.sampled_from([host(OLD), host(NEW), host(NEW, OTHER), host()]),
)
def test_each_model_is_in_one_list_and_failures_end(
    failures: int,
    outcome: Outcome,
    ago: float,
    attempts: int,
    retry: float,
    good: bool,  # noqa: FBT001 - hypothesis gives it by name
    remaining: int,
    environments: set[Target],
    then: Host,
) -> None:
    last = run(outcome=outcome, ended=NOW - timedelta(seconds=ago), on=host(NEW), environments=(), number=2)
    known = coverage(
        run(environments=tuple(environments)) if good else None, last, failures=failures, remaining=remaining
    )
    policy = Policy(attempts=attempts, retry_after=retry)
    decided = plan(known, on=then, policy=policy)
    state, why, reason = warmth(model(), known, then, policy, NOW)

    assert len(decided.warm) + len(decided.deferred) + len(decided.covered) == 1
    assert why
    assert (state is Warmth.WARM) == bool(decided.covered)
    # What uses no cache needs nothing, and is not called warm.
    assert (reason is None) == (state in {Warmth.WARM, Warmth.UNCACHED} or not then.environments)
    if then == host(NEW) and failures >= attempts:
        assert not decided.warm
    if state is Warmth.COLD and then.environments:
        assert decided.warm


# -- how things stand ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "on", "warming", "state", "why", "reason"),
    [
        (coverage(run()), host(NEW), False, Warmth.WARM, "all its 4 entries are there; run 1 proved it", None),
        (
            replace(coverage(run()), layers=LOST_IN_NEO),
            host(NEW),
            False,
            Warmth.WARM,
            "all its 4 entries are there (2 neo, 2 sycl); run 1 proved it",
            None,
        ),
        (coverage(run()), host(NEW), True, Warmth.WARMING, "it is warmed once more", None),
        (None, host(NEW), True, Warmth.WARMING, "it has never been warmed", WarmReason.NEVER),
        (None, host(NEW), False, Warmth.COLD, "it has never been warmed", WarmReason.NEVER),
        (None, host(), True, Warmth.COLD, "no device", None),
        (
            replace(coverage(run()), appeared=(OTHER,)),
            host(NEW, OTHER),
            False,
            Warmth.COLD,
            "Intel(R) Arc(TM) came since it was warmed: its programs may use that now",
            WarmReason.DRIVER,
        ),
        # It is another model's driver that offers it.
        (replace(coverage(run()), appeared=(OTHER,)), host(NEW), False, Warmth.WARM, "run 1 proved it", None),
        (
            coverage(run()),
            replace(host(NEW), variables="0123abcd"),
            False,
            Warmth.COLD,
            "driver.variables, or the daemon's own of their kind, are set now, and none were noted when it was warmed",
            WarmReason.DRIVER,
        ),
        (
            coverage(run(on=replace(host(NEW), variables="4567abcd"))),
            replace(host(NEW), variables="0123abcd"),
            False,
            Warmth.COLD,
            "driver.variables, or the daemon's own of their kind, changed since it was warmed",
            WarmReason.DRIVER,
        ),
        (
            coverage(run(on=replace(host(NEW), variables="0123abcd"))),
            replace(host(NEW, OTHER), variables="0123abcd"),
            False,
            Warmth.WARM,
            "run 1 proved it",
            None,
        ),
        (failed(1), host(NEW), False, Warmth.FAILED, "it is tried again after 2026-06-01 12:14 UTC", WarmReason.RETRY),
        (failed(3), host(NEW), False, Warmth.FAILED, "it is not tried again until", WarmReason.RETRY),
        (failed(3, on=host(OLD)), host(NEW), False, Warmth.COLD, "drivers changed", WarmReason.DRIVER),
        (
            replace(coverage(run()), changes=("a was modified",)),
            host(NEW),
            False,
            Warmth.CHANGED,
            "not proven as it is now: a was modified",
            WarmReason.PROGRAM,
        ),
    ],
)
def test_how_a_model_stands(
    known: Coverage | None,
    on: Host,
    warming: bool,  # noqa: FBT001 - a column of the table
    state: Warmth,
    why: str,
    reason: WarmReason | None,
) -> None:
    found = warmth(model(), known, on, Policy(), NOW, warming=warming)

    assert (found[0], found[2]) == (state, reason)
    assert why in found[1]


def status(name: str, state: Warmth) -> ModelStatus:
    return ModelStatus.of(model(name), state, "why")


def statuses(*states: Warmth) -> list[ModelStatus]:
    """Return models that stand so; what is cold was never run."""
    return [
        replace(status(f"m{number}", state), reason=WarmReason.NEVER if state is Warmth.COLD else None)
        for number, state in enumerate(states, start=1)
    ]


@pytest.mark.parametrize(
    ("on", "states", "word", "sentence"),
    [
        (
            host(),
            [],
            Verdict.NO_DEVICE,
            "No device: programs find none on this host: no GPU found; see: xpucachectl devices",
        ),
        (
            None,
            [Warmth.COLD],
            Verdict.NO_DEVICE,
            "No device: programs find none on this host: no GPU found; see: xpucachectl devices",
        ),
        (
            host(NEW),
            [],
            Verdict.NO_MODELS,
            "No models: nothing is kept warm; run: xpucachectl model add NAME -- COMMAND",
        ),
        (host(NEW), [Warmth.WARM], Verdict.WARM, "Warm: m1 is warm for driver 2"),
        (host(NEW, OTHER), [Warmth.WARM] * 2, Verdict.WARM, "Warm: all 2 models are warm for drivers 2, 7"),
        (
            host(NEW),
            [Warmth.WARM, Warmth.COLD, Warmth.WARM],
            Verdict.COLD,
            "Cold: 1 of 3 models is not warm for driver 2; run: xpucachectl prewarm --stale",
        ),
        (
            host(NEW),
            [Warmth.WARM, Warmth.CHANGED, Warmth.WARM],
            Verdict.COLD,
            (
                "Changed: 1 of 3 models is not proven warm for driver 2 (m2): what was proven has changed since;"
                " run: xpucachectl prewarm --stale"
            ),
        ),
        (
            host(NEW),
            [Warmth.COLD, Warmth.CHANGED, Warmth.WARM],
            Verdict.COLD,
            "Cold: 2 of 3 models are not warm for driver 2; run: xpucachectl prewarm --stale",
        ),
        (
            host(NEW),
            [Warmth.COLD, Warmth.COLD],
            Verdict.COLD,
            "Cold: 2 of 2 models are not warm for driver 2; run: xpucachectl prewarm --stale",
        ),
        (
            host(NEW),
            [Warmth.WARMING, Warmth.COLD, Warmth.FAILED],
            Verdict.WARMING,
            "Warming: 0 of 3 models are warm for driver 2; m1 is under way",
        ),
        (host(NEW), [Warmth.WARMING], Verdict.WARMING, "Warming: 0 of 1 model is warm for driver 2; m1 is under way"),
        (
            host(NEW),
            [Warmth.UNKNOWN],
            Verdict.UNKNOWN,
            "Unknown: whether it is warm for driver 2 nobody knows (m1): why; see the problems",
        ),
        (
            host(NEW),
            [Warmth.WARM, Warmth.UNKNOWN],
            Verdict.UNKNOWN,
            "Unknown: whether 1 of 2 models is warm for driver 2 nobody knows (m2): why; see the problems",
        ),
        (
            host(NEW),
            [Warmth.UNCACHED, Warmth.WARM],
            Verdict.WARM,
            "Warm: m2 is warm for driver 2; m1 uses no cache that xpucached knows",
        ),
        (
            host(NEW),
            [Warmth.UNCACHED, Warmth.UNCACHED],
            Verdict.UNCACHED,
            (
                "Uncached: m1, m2 use no cache that xpucached knows: there is nothing to keep warm;"
                " see: xpucachectl why m1"
            ),
        ),
        (
            host(NEW),
            [Warmth.COLD, Warmth.FAILED],
            Verdict.FAILED,
            "Failed: 1 of 2 models is cold for driver 2 and could not be warmed (m2); see: xpucachectl model show m2",
        ),
    ],
)
def test_how_the_host_stands(on: Host | None, states: list[Warmth], word: Verdict, sentence: str) -> None:
    problems = [Problem("no-gpu", "no GPU found")]

    assert verdict(on, statuses(*states), problems) == (word, sentence)
    assert verdict(on, statuses(*states), problems, starting=True)[0] is Verdict.STARTING


def test_where_there_is_no_device_for_what_is_cold_no_run_is_advised() -> None:
    helpless = [status("plain", Warmth.COLD), *statuses(Warmth.WARM)]
    (word, sentence), (_, both) = (
        verdict(host(NEW), one, []) for one in (helpless, [*helpless, *statuses(Warmth.COLD)])
    )

    assert word is Verdict.COLD
    assert sentence.endswith("not warm for driver 2; there is no device for plain; see: xpucachectl why plain")
    assert both.endswith("run: xpucachectl prewarm --stale")


def test_where_all_models_bring_their_driver_the_system_lacks_none() -> None:
    lacking = (
        Problem("no-gpu", "x"),
        Problem("no-opencl", "x"),
        Problem("no-level-zero-driver", "x"),
        Problem("opencl-error", "x"),
    )
    brought = DriverInUse({"OCL_ICD_FILENAMES": "/x"}, (ModelName("m1"), ModelName("m2")), "stamp", environments=(NEW,))
    bare = replace(host(), problems=lacking)
    led = replace(bare, drivers=(brought,))
    two = statuses(Warmth.WARM, Warmth.COLD)

    def codes(on: Host, models: list[ModelStatus]) -> list[str]:
        return [one.code for one in of_system(on, models)]

    assert codes(led, two) == ["opencl-error"]
    everything = [one.code for one in lacking]
    # It counts where there is no model yet, one has no other driver, theirs offers nothing, or there is a GPU.
    assert codes(led, []) == everything
    assert codes(bare, two) == everything
    assert codes(led, statuses(Warmth.WARM, Warmth.WARM, Warmth.COLD)) == everything
    assert codes(replace(bare, drivers=(replace(brought, environments=()),)), two) == everything
    gpu = Device("GPU", Architecture("bmg-g21"), "0000:03:00.0")
    assert codes(replace(led, devices=(gpu,)), two) == everything


def test_what_a_driver_of_some_models_lacks_is_told_with_whom_it_concerns() -> None:
    lacking = tuple(Problem(code, code.upper()) for code in ("no-gpu", "driver-missing", "probe-hung", "no-opencl"))
    driver = DriverInUse({}, (ModelName("m1"), ModelName("m2")), "stamp", problems=lacking)
    own = [("driver-missing", "for m1, m2: DRIVER-MISSING"), ("probe-hung", "for m1, m2: PROBE-HUNG")]

    def told(*drivers: DriverInUse) -> list[tuple[str, str]]:
        return [(one.code, one.message) for one in of_drivers(replace(host(NEW), drivers=drivers))]

    silent = "for m1, m2: the driver that their own variables lead to offers no device: "
    assert told(driver) == [*own, ("driver-silent", f"{silent}PROBE-HUNG; NO-OPENCL")]
    assert told(replace(driver, problems=lacking[:1])) == [("driver-silent", f"{silent}it does not say why")]
    assert told(replace(driver, environments=(NEW,))) == own
    assert of_drivers(replace(host(NEW), drivers=(driver,)))[-1].subject == "m1"


def test_a_sentence_names_three_at_most() -> None:
    for failed, names in ((5, "(m1, m2, m3 and 2 more)"), (3, "(m1, m2, m3)")):
        assert names in verdict(host(NEW), statuses(*[Warmth.FAILED] * failed), [])[1]


def test_mistakes_in_the_configuration_are_not_hidden_by_a_good_verdict() -> None:
    word, sentence = verdict(host(NEW), statuses(Warmth.WARM), [Problem("bad-settings", "x"), Problem("no-gpu", "y")])

    assert word is Verdict.WARM
    assert sentence == "Warm: m1 is warm for driver 2; 1 mistake in the configuration, see the problems"


# -- attribution --------------------------------------------------------------------------------------------------


def ids(text: str) -> frozenset[EntryId]:
    return frozenset(EntryId(STORE, EntryKey(letter)) for letter in text)


@pytest.mark.parametrize(
    ("before", "after", "created", "used", "traced", "made", "touched"),
    [
        pytest.param("ab", "abcd", "c", "a", True, "c", "a", id="what others made beside it is not its"),
        pytest.param("a", "a", "c", "b", True, "", "", id="what is not there afterwards does not count"),
        pytest.param("a", "abc", "bc", "abc", True, "bc", "a", id="used by the second pass, made by the first"),
        pytest.param("a", "ab", "ab", "", True, "b", "a", id="stored although it was there"),
        pytest.param("ab", "bcd", "", "", False, "cd", "", id="no trace: what is new"),
        pytest.param("ab", "bcd", "", "", None, "cd", "", id="a trace that names nothing is none"),
        pytest.param("ab", "bcd", "", "b", None, "", "b", id="a trace that names something is one"),
        pytest.param("ab", "bcd", "", "", True, "", "", id="an empty trace"),
    ],
)
def test_whose_entries_these_are(
    before: str,
    after: str,
    created: str,
    used: str,
    traced: bool | None,  # noqa: FBT001 - a column of the table
    made: str,
    touched: str,
) -> None:
    found = attribute(ids(before), ids(after), ids(created), ids(used), traced=traced)

    assert (found.created, found.used) == (ids(made), ids(touched))


letters = st.sets(st.sampled_from("abcdef")).map("".join)


@settings(deadline=None, database=None)
@given(before=letters, after=letters, created=letters, used=letters, traced=st.sampled_from([True, False, None]))
def test_attributed_is_only_what_is_there_and_only_once(
    before: str,
    after: str,
    created: str,
    used: str,
    traced: bool | None,  # noqa: FBT001 - hypothesis gives it by name
) -> None:
    found = attribute(ids(before), ids(after), ids(created), ids(used), traced=traced)

    assert found.created | found.used <= ids(after)
    assert not found.created & found.used
    assert not found.created & ids(before)


# -- eviction -----------------------------------------------------------------------------------------------------


def entry(
    key: str = "a",
    *,
    environment: Target | None = NEW,
    created: float = 30,
    used: float = 1,
    seen: float | None = None,
    size: int = 1000,
    models: tuple[str, ...] = (),
    state: EntryState = EntryState.OK,
    defect: Defect | None = None,
) -> IndexedEntry:
    """Make an entry; times are days ago."""
    born = NOW - created * DAY
    return IndexedEntry(
        Entry(
            EntryId(STORE, EntryKey(key)),
            "stamp",
            size,
            size,
            born,
            None,
            environment,
            state=EntryState.DEFECTIVE if defect is not None else state,
            defect=defect,
        ),
        None,
        None,
        tuple(map(ModelName, models)),
        NOW - (created if seen is None else seen) * DAY,
        NOW - used * DAY,
        "created",
    )


def presence(environment: Target, first: float | None, last: float | None) -> Presence:
    """Return when an environment was here, in days ago; last 0 is now."""
    return Presence(
        environment,
        None if first is None else NOW - first * DAY,
        None if last is None else NOW - last * DAY,
        last == 0,
    )


# What the policy decides; the other is somebody's wish.
NEXT: Final = env("3")


def built_ahead(days: float, environment: Target = NEXT) -> IndexedEntry:
    """Make an entry that was compiled for a driver before it was installed, so many days ago."""
    return replace(entry(environment=environment, created=days, used=days), origin=Origin.AHEAD)


# What was named or revoked goes whatever the policy says.
POLICY_REASONS: Final = [
    one for one in EvictReason if one not in {EvictReason.ASKED, EvictReason.SPACE, EvictReason.REVOKED}
]

# The driver changed ten days ago.
HISTORY: Final = (presence(OLD, 100, 10), presence(NEW, 10, 0))


def evict(
    *entries: IndexedEntry,
    on: Host | None = None,
    history: tuple[Presence, ...] = HISTORY,
    warm: tuple[str, ...] = (),
    models: tuple[Model, ...] = (),
    policy: Policy | None = None,
    reasons: frozenset[EvictReason] | None = None,
    asked: bool = True,
    disk_space: tuple[DiskSpace, ...] = (),
    others: tuple[Subtotal, ...] = (),
    predicted: tuple[str, ...] = (),
) -> EvictionPlan:
    return plan_eviction(
        entries,
        on or host(NEW),
        history,
        frozenset(map(ModelName, warm)),
        {one.name: one for one in models},
        policy or Policy(),
        NOW,
        reasons=reasons,
        asked=asked,
        disk_space=disk_space,
        others=others,
        predicted=frozenset(map(ModelName, predicted)),
    )


def decided(made: EvictionPlan) -> dict[str, EvictReason]:
    return {one.entry.entry.id.key: one.reason for one in made.evict}


NONE_KEPT: Final = Policy(keep_driver_generations=0)
PINNED: Final = model("net", pinned=True)


def test_nothing_to_evict() -> None:
    assert evict() == EvictionPlan()
    assert evict(entry()) == EvictionPlan(kept=1)


@pytest.mark.parametrize("defect", [CHANGED, *sycl.defects.DEFECTS], ids=lambda one: one.code)
def test_a_defect_goes_unless_it_is_harmless_or_only_hides(defect: Defect) -> None:
    made = evict(entry(defect=defect, environment=None))

    if defect.effect in {Effect.HARMLESS, Effect.HIDDEN}:
        assert made == EvictionPlan(kept=1)
    else:
        assert [(one.reason, one.detail) for one in made.evict] == [(EvictReason.DEFECTIVE, defect.message)]
        assert (made.frees, made.kept) == (1000, 0)


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(entry(defect=sycl.defects.BIN_MISSING, created=0), id="younger than the grace, and defective"),
        pytest.param(entry(environment=OLD, created=0), id="younger than the grace, and superseded"),
        pytest.param(entry(created=-300, seen=0), id="from the future, first seen just now"),
        pytest.param(entry(state=EntryState.UNFINISHED, environment=None, used=900), id="being written"),
        pytest.param(entry(state=EntryState.UNREAD, environment=None, used=900), id="it cannot be read now"),
        pytest.param(entry(models=("net",), used=900), id="pinned"),
        pytest.param(entry(models=("net",), used=900, environment=None), id="pinned, and for every device"),
        pytest.param(
            entry(models=("net",), used=900, defect=sycl.defects.BIN_TRAILING), id="pinned, with a harmless defect"
        ),
    ],
)
def test_kept_always(kept: IndexedEntry) -> None:
    policy = Policy(keep_driver_generations=0, max_bytes=1, max_unused=1.0)

    assert evict(kept, models=(PINNED,), warm=("net",), policy=policy) == EvictionPlan(kept=1)


@pytest.mark.parametrize(
    ("goes", "reason"),
    [
        pytest.param(entry(created=-300, seen=2, used=900), EvictReason.UNUSED, id="from the future, but old"),
        pytest.param(
            entry(models=("net",), defect=sycl.defects.SRC_FIFO), EvictReason.DEFECTIVE, id="pinned, but it hangs"
        ),
        pytest.param(entry(models=("net",), environment=OLD), EvictReason.SUPERSEDED, id="pinned, for an old driver"),
        pytest.param(entry(models=("gone",), used=900), EvictReason.UNUSED, id="of a model that is not registered"),
    ],
)
def test_not_kept_for_ever(goes: IndexedEntry, reason: EvictReason) -> None:
    made = evict(goes, models=(PINNED,), warm=("net",), policy=NONE_KEPT)

    assert decided(made) == {"a": reason}


@pytest.mark.parametrize(
    ("one", "stays"),
    [
        pytest.param(entry(models=("net",), used=900), True, id="of a pinned model"),
        pytest.param(entry(models=("net",), used=900, environment=None), True, id="of a pinned model, for any device"),
        pytest.param(entry(models=("two", "net"), used=900), True, id="of two models, one of them pinned"),
        pytest.param(entry(models=("unknown", "net"), used=900), True, id="of two models, one of them not registered"),
        pytest.param(entry(models=("two",), used=900), False, id="of another model"),
        pytest.param(entry(models=("unknown",), used=900), False, id="of a model that is not registered"),
        pytest.param(entry(models=("two", "unknown"), used=900), False, id="of two models, none of them pinned"),
        pytest.param(entry(used=900), False, id="of no model"),
        pytest.param(entry(models=("net",), used=900, environment=OLD), False, id="for an old driver"),
        pytest.param(entry(models=("net",), used=900, environment=OTHER), False, id="for a device that is not here"),
        pytest.param(entry(models=("net",), used=900, defect=sycl.defects.BIN_EMPTY), False, id="with a defect"),
        pytest.param(
            entry(models=("net",), used=900, defect=sycl.defects.BIN_TRAILING), True, id="with a harmless defect"
        ),
    ],
)
def test_a_pin_protects_what_its_model_can_use_and_nothing_else(one: IndexedEntry, *, stays: bool) -> None:
    models = (PINNED, model("two"))

    assert bool(evict(one, models=models, warm=("net", "two")).evict) is not stays
    made, kept = plan_named([one], host(NEW), {each.name: each for each in models}, Policy(), NOW)
    assert bool(made.evict) is not stays
    assert list(kept.values()) == ["a pinned model needs it"] * stays


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(entry(models=("net",), used=900, defect=sycl.defects.BIN_EMPTY), id="of a pinned model"),
        pytest.param(
            replace(entry(used=900, defect=sycl.defects.BIN_EMPTY), restored=NOW - DAY), id="that somebody brought back"
        ),
    ],
)
def test_what_is_damaged_goes_for_that_alone_if_it_would_stay_whole(one: IndexedEntry) -> None:
    """Asked for what is unused, nobody mends before: what could have been would be lost."""
    policy = Policy(max_bytes=1)
    others = frozenset(POLICY_REASONS) - {EvictReason.DEFECTIVE}

    assert decided(evict(one, models=(PINNED,), policy=policy, reasons=others)) == {}
    assert decided(evict(one, models=(PINNED,), policy=policy)) == {"a": EvictReason.DEFECTIVE}


@pytest.mark.parametrize(("ago", "stays"), [(-1.0, True), (0.0, True), (599.9, True), (600.0, False)])
def test_what_is_younger_than_the_grace_stays(ago: float, *, stays: bool) -> None:
    one = entry(created=ago / 86400, used=900, seen=0 if ago < 0 else 900)

    assert bool(evict(one).evict) is not stays
    made, kept = plan_named([one], host(NEW), {}, Policy(), NOW)
    assert (len(made.evict), made.kept) == (int(not stays), int(stays))
    assert list(kept.values()) == ["it is younger than the grace of 600 s (policy.grace)"] * stays


def test_what_a_process_has_open_stays() -> None:
    here = DiskSpace(STORE, held=frozenset({EntryKey("a")}))
    elsewhere = DiskSpace(Store(STORE.kind, Path("/other")), held=frozenset({EntryKey("b")}))
    some = [entry(name, used=900, models=("net",)) for name in "ab"]

    assert list(decided(evict(*some, disk_space=(here, elsewhere)))) == ["b"]
    assert list(decided(evict(*some, disk_space=(elsewhere,)))) == ["a", "b"]
    made, kept = plan_named(some, host(NEW), {PINNED.name: PINNED}, Policy(), NOW, (here, elsewhere))
    assert not made.evict
    assert {one.key: why for one, why in kept.items()} == {
        "a": "a process has it open",
        "b": "a pinned model needs it",
    }


@pytest.mark.parametrize(
    ("ago", "defect", "stays"), [(6.9, None, True), (7, None, False), (1, sycl.defects.BIN_EMPTY, False)]
)
def test_what_somebody_brought_back_stays_for_a_while(ago: float, defect: Defect | None, *, stays: bool) -> None:
    one = replace(entry(used=900, defect=defect), restored=NOW - ago * DAY)

    assert bool(evict(one).evict) is not stays
    # Somebody's wish counts more.
    assert plan_named([one], host(NEW), {}, Policy(), NOW)[0].evict


@pytest.mark.parametrize("by", ["run", "restored", "observed-loads", "access-time", "created"])
@pytest.mark.parametrize("keeps", [True, False])
def test_where_access_times_say_nothing_only_who_saw_it_used_knows(by: str, *, keeps: bool) -> None:
    one = replace(entry(used=91), last_used_by=by)
    made = evict(one, disk_space=(DiskSpace(STORE, keeps_access_times=keeps),))

    assert bool(made.evict) is (keeps or by in {"run", "restored", "observed-loads"})


@pytest.mark.parametrize(("used", "goes"), [(90, False), (90.01, True)])
def test_what_is_used_once_in_so_many_days_stays(used: float, *, goes: bool) -> None:
    assert bool(evict(entry(used=used)).evict) is goes


def test_the_oldest_go_first_and_those_of_one_moment_by_their_place() -> None:
    some = [entry("b", used=92), entry("a", used=92), entry("c", used=93)]

    assert list(decided(evict(*some))) == ["c", "a", "b"]


def counted(environment: Target | None, *, created: float = 50, used: float = 1, entries: int = 3) -> Subtotal:
    """Sum up entries that nothing is decided about; times are days ago."""
    return Subtotal(STORE, environment, entries, 1000 * entries, NOW - created * DAY, NOW - used * DAY)


@pytest.mark.parametrize(
    ("other", "goes"),
    [
        pytest.param(counted(OLD), True, id="of the driver before: that one is kept"),
        pytest.param(counted(OLD, created=5), False, id="made since the change: in use, and nothing to go back to"),
        pytest.param(counted(None), False, id="for any device"),
        pytest.param(counted(NEW), False, id="of the present driver"),
        pytest.param(counted(OTHER), False, id="for another device"),
    ],
)
def test_what_is_only_counted_still_holds_its_generation(other: Subtotal, *, goes: bool) -> None:
    history = (presence(env("0"), 300, 100), *HISTORY)
    made = evict(entry(environment=env("0"), created=150), history=history, others=(other,))

    assert (bool(made.evict), made.kept) == (goes, 3 + (not goes))


@pytest.mark.parametrize(("used", "stays"), [(13, True), (15, False)])
def test_what_is_only_counted_shows_that_somebody_still_uses_a_driver(used: float, *, stays: bool) -> None:
    some = entry(environment=env("c"), created=50, used=30)
    other = counted(env("c"), created=60, used=used)

    assert bool(evict(some, policy=NONE_KEPT, asked=False, others=(other,)).evict) is not stays
    # So long ago, and not so long ago: the later counts, whichever it is.
    late = replace(some, last_used=NOW - 3 * DAY)
    assert not evict(late, policy=NONE_KEPT, asked=False, others=(other,)).evict
    # A sum that does not know when says nothing.
    silent = replace(other, created=None, used=None)
    assert evict(some, policy=NONE_KEPT, asked=False, others=(silent,)).evict


def test_what_is_only_counted_takes_room() -> None:
    some = [entry(name, used=used) for name, used in (("a", 3), ("b", 2), ("c", 1))]
    policy = Policy(max_bytes=5000)

    assert list(decided(evict(*some, policy=policy))) == []
    made = evict(*some, policy=policy, others=(counted(NEW),))
    assert (list(decided(made)), made.kept) == (["a"], 5)


def test_a_store_in_which_all_is_only_counted_has_its_own_rules() -> None:
    elsewhere = Store(STORE.kind, Path("/other"))
    other = replace(counted(NEW), store=elsewhere)
    disk_space = (DiskSpace(STORE, free=500), DiskSpace(elsewhere, free=500))

    # Both lie on one file system, and only the other one's rules want room there.
    policy = Policy(stores=(Limits(elsewhere.root, min_free_bytes=1000),))
    assert decided(evict(entry(), policy=policy, disk_space=disk_space, others=(other,))) == {"a": EvictReason.SPACE}


@pytest.mark.parametrize(
    ("kept", "detail"),
    [
        (0, "for driver 0; now it is 2, and none older is kept"),
        (1, "for driver 0; now it is 2, and one older is kept"),
        (2, "for driver 0; now it is 2, and 2 older is kept"),
    ],
)
def test_a_superseded_entry_says_what_took_its_place(kept: int, detail: str) -> None:
    drivers = ("0", "a", "b")[: kept + 1]
    some = [entry(one, environment=env(one), created=200) for one in drivers]
    past = [presence(env(one), 190, 100 - number) for number, one in enumerate(drivers)]
    history = (*past, presence(NEW, 10, 0))

    (made,) = evict(*some, history=history, policy=Policy(keep_driver_generations=kept)).evict
    assert made.detail == detail


def test_an_old_driver_goes_beyond_the_generations_kept() -> None:
    some = [entry(driver, environment=env(driver), created=50) for driver in ("0", "1", "2")]
    history = (presence(env("0"), 300, 100), presence(OLD, 100, 10), presence(NEW, 10, 0))

    assert decided(evict(*some, history=history)) == {"0": EvictReason.SUPERSEDED}
    assert decided(evict(*some, history=history, policy=Policy(keep_driver_generations=2))) == {}
    made = evict(*some, history=history, policy=NONE_KEPT)
    assert decided(made) == {"0": EvictReason.SUPERSEDED, "1": EvictReason.SUPERSEDED}
    assert made.evict[0].detail == "for driver 0; now it is 2, and none older is kept"


def test_generations_follow_the_hosts_history_and_then_the_age_of_their_entries() -> None:
    # "b" was here last although its entries are older; "x" and "y" never were, and "y" is the newer.
    names = ("a", "b", "x", "y")
    ages = dict(zip(names, (20, 60, 40, 30), strict=True))
    some = [entry(name, environment=env(name), created=ages[name]) for name in names]
    history = (presence(env("a"), 300, 200), presence(env("b"), 200, 10), presence(NEW, 10, 0))

    def left(kept: int) -> set[str]:
        return set(names) - decided(evict(*some, history=history, policy=Policy(keep_driver_generations=kept))).keys()

    assert [left(kept) for kept in range(5)] == [set(), {"b"}, {"b", "a"}, {"b", "a", "y"}, set(names)]


def test_the_driver_that_was_here_last_is_the_one_to_go_back_to() -> None:
    # "a" came first, and was put back for a while after "b".
    history = (presence(env("a"), 300, 10), presence(env("b"), 200, 100), presence(NEW, 10, 0))

    made = evict(*(entry(name, environment=env(name), created=250) for name in "ab"), history=history)

    assert decided(made) == {"b": EvictReason.SUPERSEDED}


def test_what_goes_no_longer_speaks_for_its_generation() -> None:
    # Only the damaged entry was made after the driver changed; without it nobody seems to use the old one.
    damaged = entry("a", environment=OLD, created=5, defect=sycl.defects.SRC_EMPTY)

    made = evict(damaged, entry("b", environment=OLD, created=50), policy=NONE_KEPT)

    assert decided(made) == {"a": EvictReason.DEFECTIVE, "b": EvictReason.SUPERSEDED}


def test_another_version_string_is_the_same_lineage_and_another_adapter_is_not() -> None:
    newer = env("2", version="OpenCL 3.1")
    adapter = env("1", platform=f"{OCL} V2")

    made = evict(
        entry("version", environment=OLD),
        entry("adapter", environment=adapter),
        on=host(newer),
        history=(presence(OLD, 100, 10), presence(newer, 10, 0)),
        policy=NONE_KEPT,
    )

    assert decided(made) == {"version": EvictReason.SUPERSEDED}


def test_several_present_environments_of_a_lineage_are_all_kept() -> None:
    both = host(OLD, NEW)
    history = (presence(env("0"), 300, 100), presence(OLD, 100, 0), presence(NEW, 10, 0))
    some = [entry(driver, environment=env(driver), created=110) for driver in ("0", "1", "2")]

    assert decided(evict(*some, on=both, history=history, policy=NONE_KEPT)) == {"0": EvictReason.SUPERSEDED}


@pytest.mark.parametrize(
    ("history", "goes"),
    [
        pytest.param((presence(OLD, 100, 10), presence(NEW, 10, 0)), False, id="made after the change: in use"),
        pytest.param((presence(OLD, 100, 3), presence(NEW, 3, 0)), True, id="made before the change"),
        pytest.param((presence(OLD, 100, 3),), False, id="nobody knows when the change was"),
        pytest.param((), False, id="no history at all"),
        pytest.param((presence(NEW, 3, 0),), True, id="never here, made before the present one came"),
        pytest.param((presence(NEW, 10, 0),), False, id="never here, made since: a container's"),
    ],
)
def test_an_old_driver_that_somebody_still_uses_is_kept(history: tuple[Presence, ...], *, goes: bool) -> None:
    some = [entry("a", environment=OLD, created=5), entry("b", environment=OLD, created=50)]

    made = evict(*some, history=history, policy=NONE_KEPT)

    assert bool(made.evict) == goes
    assert len(made.evict) in {0, 2}


def test_the_successor_is_the_one_that_came_after() -> None:
    # A driver that stays beside the one that is upgraded replaced nothing.
    stays = env("9")
    history = (presence(stays, 300, 0), presence(OLD, 100, 10), presence(NEW, 10, 0))

    made = evict(entry(environment=OLD, created=50), on=host(stays, NEW), history=history, policy=NONE_KEPT)

    assert decided(made) == {"a": EvictReason.SUPERSEDED}


def test_a_generation_in_use_takes_no_other_generations_place() -> None:
    container = entry("container", environment=env("c"), created=2)
    previous = entry("previous", environment=OLD, created=50)

    assert decided(evict(container, previous)) == {}


@pytest.mark.parametrize(("asked", "used", "goes"), [(True, 1, True), (False, 1, False), (False, 15, True)])
def test_unasked_a_driver_that_was_never_here_goes_only_when_nobody_used_it_lately(
    *, asked: bool, used: float, goes: bool
) -> None:
    some = entry(environment=env("c"), created=50, used=used)

    assert bool(evict(some, policy=NONE_KEPT, asked=asked).evict) == goes
    # What the host itself had needs no such proof.
    assert evict(entry(environment=OLD, created=50), policy=NONE_KEPT, asked=asked).evict


@pytest.mark.parametrize(
    ("owners", "warm", "goes"),
    [
        ((), (), True),
        (("net",), (), False),
        (("net",), ("net",), True),
        (("net", "two"), ("net",), False),
        (("x",), (), True),
    ],
)
def test_warm_before_evict(owners: tuple[str, ...], warm: tuple[str, ...], *, goes: bool) -> None:
    made = evict(
        entry(environment=OLD, models=owners), warm=warm, models=(model("net"), model("two")), policy=NONE_KEPT
    )

    assert bool(made.evict) == goes


@pytest.mark.parametrize(
    ("last", "used", "on", "goes"),
    [
        pytest.param(15, 20, host(NEW), True, id="gone for long"),
        pytest.param(13, 20, host(NEW), False, id="gone for a while"),
        pytest.param(14, 20, host(NEW), False, id="gone as long as it may"),
        pytest.param(15, 3, host(NEW), False, id="somebody uses it"),
        pytest.param(15, 20, host(), False, id="no device at all: the survey may be wrong"),
        pytest.param(15, 20, host(replace(OTHER, toolchain="8")), False, id="its device is here"),
        pytest.param(None, 20, host(NEW), False, id="never here"),
    ],
)
def test_a_device_that_is_gone(last: float | None, used: float, on: Host, *, goes: bool) -> None:
    history = (presence(OTHER, 100, last),) if last is not None else ()

    made = evict(entry(environment=OTHER, created=50, used=used), on=on, history=history)

    assert decided(made) == ({"a": EvictReason.GONE} if goes else {})
    if goes:
        assert made.evict[0].detail == "for Intel(R) Arc(TM), which this host has not had since 2026-05-17"


@pytest.mark.parametrize("environment", [NEW, OLD, OTHER, None])
def test_what_is_not_used_goes(environment: Target | None) -> None:
    made = evict(entry("a", environment=environment, used=91), entry("b", environment=environment, used=89))

    assert decided(made) == {"a": EvictReason.UNUSED}
    assert made.evict[0].detail == "not used for 91 days, since 2026-03-02"
    assert not evict(entry(environment=environment, used=900), policy=Policy(max_unused=None)).evict


def test_over_budget_what_is_least_worth_goes_and_what_a_model_needs_goes_last() -> None:
    some = [
        entry("needed", used=50, models=("net",)),
        entry("old", used=40),
        entry("older", used=45, environment=None),
        entry("of an old driver", used=42, environment=OLD, models=("net",)),
        entry("empty", used=60, size=0),
        entry("young", created=0, used=50),
        entry("recent", used=1),
    ]

    def goes(limit: int) -> list[str]:
        return [one.entry.entry.id.key for one in evict(*some, models=(model(),), policy=Policy(max_bytes=limit)).evict]

    assert goes(6000) == []
    assert goes(5999) == ["of an old driver"]
    assert goes(3000) == ["of an old driver", "older", "old"]
    assert goes(1) == ["of an old driver", "older", "old", "recent", "needed"]


def test_what_somebody_names_goes_unless_it_is_protected() -> None:
    some = [
        entry("whole", models=("net",)),
        entry("defective", defect=sycl.defects.BIN_EMPTY),
        entry("young", created=0),
        entry("writing", state=EntryState.UNFINISHED),
        entry("unread", state=EntryState.UNREAD),
        entry("pinned", models=("held",)),
    ]
    models = {one.name: one for one in (model(), model("held", pinned=True))}

    made, kept = plan_named(some, host(NEW), models, Policy(), NOW)

    assert decided(made) == {"whole": EvictReason.ASKED, "defective": EvictReason.ASKED}
    assert {entry.key: why.split()[0:3] for entry, why in kept.items()} == {
        "young": ["it", "is", "younger"],
        "writing": ["a", "program", "is"],
        "unread": ["it", "cannot", "be"],
        "pinned": ["a", "pinned", "model"],
    }


def test_unasked_nothing_goes_that_would_only_be_warmed_again() -> None:
    some = [
        entry("needed", used=200, models=("net",)),
        entry("of an old driver", used=200, environment=OLD, models=("net",)),
        entry("nobody's", used=50),
    ]
    policy = Policy(max_bytes=1)

    asked = evict(*some, models=(model(),), policy=policy)
    unasked = evict(*some, models=(model(),), policy=policy, asked=False)

    assert set(decided(asked)) == {"needed", "of an old driver", "nobody's"}
    assert set(decided(unasked)) == {"of an old driver", "nobody's"}


def test_the_worst_reason_comes_first_and_counts_are_right() -> None:
    some = [
        entry("unused", used=91),
        entry("defective", defect=sycl.defects.SRC_EMPTY, size=10),
        entry("budget", used=2),
        entry("superseded", environment=OLD),
        replace(built_ahead(9), entry=entry("never-came", environment=NEXT, created=9).entry),
        entry("gone", environment=OTHER, used=20),
        entry("kept"),
    ]
    history = (*HISTORY, presence(OTHER, 100, 15))

    made = evict(*some, history=history, policy=Policy(keep_driver_generations=0, max_bytes=1000))

    assert list(decided(made).values()) == POLICY_REASONS
    assert (made.frees, made.kept) == (5010, 1)


@pytest.mark.parametrize("reason", POLICY_REASONS)
def test_only_the_reasons_that_were_asked_for(reason: EvictReason) -> None:
    some = [
        entry("unused", used=91),
        entry("defective", defect=sycl.defects.SRC_EMPTY),
        entry("superseded", environment=OLD),
        replace(built_ahead(9), entry=entry("never-came", environment=NEXT, created=9).entry),
        entry("gone", environment=OTHER, used=20),
    ]
    history = (*HISTORY, presence(OTHER, 100, 15))

    made = evict(
        *some,
        history=history,
        policy=Policy(keep_driver_generations=0, max_bytes=1),
        reasons=frozenset({reason}),
    )

    assert {one.reason for one in made.evict} == {reason}


# -- the promises -------------------------------------------------------------------------------------------------

drivers = st.sampled_from("0123")
environments = st.one_of(
    st.none(), st.builds(env, drivers, device=st.sampled_from([CPU, "GPU"]), version=st.sampled_from(["3.0", "3.1"]))
)
days = st.floats(-2, 200)
names = st.sampled_from(["net", "two", "unknown"])
entries_ = st.lists(
    st.builds(
        entry,
        st.uuids().map(str),
        environment=environments,
        created=days,
        used=days,
        seen=days,
        size=st.integers(0, 5000),
        models=st.sets(names).map(tuple),
        state=st.sampled_from([EntryState.OK, EntryState.OK, EntryState.UNFINISHED, EntryState.UNREAD]),
        defect=st.one_of(st.none(), st.none(), st.sampled_from((CHANGED, *sycl.defects.DEFECTS))),
    ),
    max_size=30,
)
hosts = st.lists(environments.filter(bool), max_size=3, unique=True).map(
    lambda some: host(*(one for one in some if one))
)
histories = st.lists(
    st.builds(presence, environments.filter(bool), st.one_of(st.none(), days), st.one_of(st.none(), days)),
    unique_by=lambda one: one.environment,
    max_size=8,
).map(tuple)
policies = st.builds(
    Policy,
    keep_driver_generations=st.integers(0, 3),
    max_unused=st.one_of(st.none(), st.floats(1, 1e7)),
    max_bytes=st.one_of(st.none(), st.integers(1, 60000)),
    grace=st.floats(0, 1e6),
)


@pytest.mark.parametrize(
    ("one", "goes"),
    [
        pytest.param(built_ahead(8), True, id="it never came"),
        pytest.param(built_ahead(6), False, id="it may come"),
        pytest.param(built_ahead(8, NEW), False, id="it is here"),
        pytest.param(built_ahead(8, OLD), False, id="it was here"),
        pytest.param(replace(built_ahead(8), last_used=NOW - DAY), False, id="somebody has it, and uses it"),
        pytest.param(replace(built_ahead(8), origin=Origin.DECLARED), False, id="a program made it"),
    ],
)
def test_what_was_compiled_for_a_driver_that_never_came_goes(one: IndexedEntry, *, goes: bool) -> None:
    reasons = frozenset({EvictReason.NEVER_CAME})
    expected = {"a": EvictReason.NEVER_CAME} if goes else {}
    assert decided(evict(one, reasons=reasons)) == expected
    assert decided(evict(one, reasons=reasons, policy=Policy(ahead_keep=None))) == {}
    assert decided(evict(one, reasons=frozenset({EvictReason.GONE}))) == {}


@dataclasses.dataclass(frozen=True)
class Situation:
    """Everything that a plan depends on, but for the entries."""

    on: Host
    history: tuple[Presence, ...]
    warm: tuple[str, ...]
    models: tuple[Model, ...]
    policy: Policy
    reasons: frozenset[EvictReason] | None
    asked: bool

    def evict(self, entries: list[IndexedEntry]) -> EvictionPlan:
        return evict(
            *entries,
            on=self.on,
            history=self.history,
            warm=self.warm,
            models=self.models,
            policy=self.policy,
            reasons=self.reasons,
            asked=self.asked,
        )


situations = st.builds(
    Situation,
    on=hosts,
    history=histories,
    warm=st.sets(names).map(tuple),
    models=st.sampled_from([(), (model("net"),), (PINNED, model("two"))]),
    policy=policies,
    reasons=st.one_of(st.none(), st.sets(st.sampled_from(POLICY_REASONS)).map(frozenset)),
    asked=st.booleans(),
)


def keeps_its_reason(one: Evict, situation: Situation) -> bool:
    """Check that an entry goes only where its reason may hold."""
    its, policy = one.entry.entry, situation.policy
    lineages = {other.lineage for other in situation.on.environments}
    owners = {name for name in one.entry.models if name in {known.name for known in situation.models}}
    match one.reason:
        case EvictReason.DEFECTIVE:
            return its.defect is not None and its.defect.effect not in {Effect.HARMLESS, Effect.HIDDEN}
        case EvictReason.SUPERSEDED:
            if its.environment is None or its.environment in situation.on.environments:
                return False
            return its.environment.lineage in lineages and owners <= set(situation.warm)
        case EvictReason.NEVER_CAME:
            return one.entry.origin is Origin.AHEAD and its.environment not in situation.on.offered
        case EvictReason.GONE:
            return its.environment is not None and bool(lineages) and its.environment.lineage not in lineages
        case EvictReason.UNUSED:
            return policy.max_unused is not None and (NOW - one.entry.last_used).total_seconds() > policy.max_unused
        case EvictReason.BUDGET:
            return policy.max_bytes is not None
        case EvictReason.ASKED | EvictReason.SPACE | EvictReason.REVOKED:
            return False


@pytest.mark.flow
@settings(deadline=None, database=None, max_examples=300)
@given(some=entries_, situation=situations)
def test_the_promises_of_a_plan(some: list[IndexedEntry], situation: Situation) -> None:
    made = situation.evict(some)
    gone = {one.entry.entry.id for one in made.evict}
    rest = [one for one in some if one.entry.id not in gone]

    assert situation.evict(rest).evict == (), "after a plan there is nothing to do"
    assert (len(gone), made.kept) == (len(made.evict), len(rest))
    assert made.frees == sum(one.entry.entry.allocated for one in made.evict)
    assert [one.reason for one in made.evict] == sorted((one.reason for one in made.evict), key=list(EvictReason).index)
    pinned = {one.name for one in situation.models if one.pinned}
    for one in made.evict:
        its = one.entry.entry
        assert one.detail
        assert situation.reasons is None or one.reason in situation.reasons
        assert keeps_its_reason(one, situation)
        assert its.state not in UNSETTLED
        assert its.created > NOW or (NOW - its.created).total_seconds() >= situation.policy.grace
        usable = its.environment is None or its.environment in situation.on.environments
        assert not (usable and pinned & set(one.entry.models)) or one.reason is EvictReason.DEFECTIVE
        if not situation.asked and its.environment in situation.on.environments:
            owned = {one.name for one in situation.models} & set(one.entry.models)
            assert not owned or one.reason not in (EvictReason.UNUSED, EvictReason.BUDGET)


@settings(deadline=None, database=None)
@given(some=entries_, situation=situations)
def test_the_budget_takes_no_more_than_it_must(some: list[IndexedEntry], situation: Situation) -> None:
    # Alone, because what goes for the budget may let more go for another reason.
    made = dataclasses.replace(situation, reasons=frozenset({EvictReason.BUDGET})).evict(some)
    limit = situation.policy.max_bytes
    over = [one for one in made.evict if one.reason is EvictReason.BUDGET]
    if not over or limit is None:
        return
    left = sum(one.entry.allocated for one in some) - made.frees

    assert left + over[-1].entry.entry.allocated > limit


@settings(deadline=None, database=None, max_examples=100)
@given(some=entries_, situation=situations, data=st.data())
def test_the_order_in_which_entries_come_does_not_matter(
    some: list[IndexedEntry], situation: Situation, data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(some))

    assert situation.evict(shuffled) == situation.evict(some)


@pytest.mark.flow
def test_a_hundred_thousand_entries() -> None:
    # A quadratic step would not end within the test's time limit.
    some = [
        entry(
            f"{number:06}",
            environment=env(str(number % 500)),
            created=20 + number % 100,
            used=number % 80,
            models=("net",) if number % 3 else (),
        )
        for number in range(100_000)
    ]
    policy = Policy(keep_driver_generations=3, max_bytes=100_000)

    made = evict(*some, on=host(env("499")), history=(presence(env("499"), 10, 0),), models=(model(),), policy=policy)

    assert made.kept == 100
    assert {one.reason for one in made.evict} == {EvictReason.SUPERSEDED, EvictReason.BUDGET}


def test_a_proof_whose_needs_were_not_recorded_holds_and_says_so() -> None:
    """An upgrade of xpucached is no reason to run every model again."""
    on = host(env("2"))
    good = run(environments=(env("2"),), on=on)
    known = replace(coverage(last=good, good=good), noted=False)

    assert plan(known, on=on).warm == ()
    state, why, reason = warmth(model(), known, on, Policy(), NOW)
    assert (state, reason) == (Warmth.WARM, None)
    assert why.endswith("the model is proven again (xpucachectl prewarm net --force)")
    assert "recorded" not in warmth(model(), coverage(last=good, good=good), on, Policy(), NOW)[1]
