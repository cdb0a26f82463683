"""What monitoring hears: each state of the table in the manual, and which of several counts."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

import xpucached
from tests.support import api_stub
from xpucached.domain.checks import LEVELS, PROBLEMS, CheckState, Level, check, check_host, overdue, unanswered
from xpucached.domain.host import CODES, Problem
from xpucached.domain.jobs import Job, JobState
from xpucached.domain.models import Warmth
from xpucached.domain.names import JobId, ModelName
from xpucached.domain.status import Status, Verdict
from xpucached.domain.users import HostStatus, UserStatus, WorkerState
from xpucached.processes import driver_probe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOW: Final = api_stub.NOW
HOUR: Final = timedelta(hours=1)
NET: Final = ModelName("net")


def status(verdict: Verdict = Verdict.WARM, warmth: Warmth = Warmth.WARM) -> Status:
    """Return what a user's daemon says: one model, looked at just now, each ten minutes."""
    models = (replace(api_stub.make_model("net"), warmth=warmth),)
    return replace(api_stub.make_status(verdict), problems=(), models=models, looked=NOW, look_every=600.0)


def troubled(one: Status, code: str) -> Status:
    """Let it have a problem, between two that do not matter."""
    return replace(one, problems=(Problem("no-gpu", "x"), Problem(code, "this and that"), Problem("not-watched", "y")))


def at_work(one: Status, kind: str, state: JobState = JobState.QUEUED) -> Status:
    """Let it have a job."""
    return replace(one, jobs=(Job(JobId("1"), kind, state, NOW),))


ANN: Final = UserStatus(
    *("ann", 1000, WorkerState.ASLEEP, Verdict.WARM), entries=5, warm=1, models=(NET,), seen=NOW, looked=NOW
)
BOB: Final = replace(ANN, user="bob", uid=1001)


def host(*users: UserStatus) -> HostStatus:
    """Return what the host's daemon knows: it looked just now, and does so each hour."""
    return HostStatus("1", NOW, "stamp", NOW - HOUR, (), users or (ANN, BOB), NOW, 3600.0)


def codes(*states: CheckState) -> list[str]:
    """Return the problems that come to these states."""
    return [code for code, state in PROBLEMS.items() if state in states]


OF_A_USER: Final[Mapping[CheckState, Sequence[Status]]] = {
    CheckState.WARM: (status(), at_work(status(), "scan"), at_work(status(), "replay", JobState.DONE)),
    CheckState.UNCACHED: (status(Verdict.UNCACHED, Warmth.UNCACHED),),
    CheckState.COLD: [status(one, Warmth.COLD) for one in (Verdict.COLD, Verdict.WAITING, Verdict.WARMING)],
    CheckState.NO_MODELS: (replace(status(Verdict.NO_MODELS), models=()),),
    CheckState.AT_WORK: (at_work(status(), "replay"), at_work(status(), "prewarm", JobState.RUNNING)),
    CheckState.PROBLEM: [troubled(status(), code) for code in codes(CheckState.PROBLEM)],
    CheckState.NO_ANSWER: [
        replace(status(), look_due=True),
        *(troubled(status(), code) for code in codes(CheckState.NO_ANSWER)),
    ],
    CheckState.NO_DEVICE: (status(Verdict.NO_DEVICE),),
    CheckState.STARTING: (replace(status(Verdict.STARTING), looked=None),),
    CheckState.UNREAD: (
        status(Verdict.UNKNOWN, Warmth.UNKNOWN),
        # Beside one that is known to be cold.
        status(Verdict.COLD, Warmth.UNKNOWN),
    ),
    CheckState.OVERDUE: (replace(status(), looked=None), replace(status(), looked=NOW - HOUR)),
    CheckState.REFUSED: [troubled(status(), code) for code in codes(CheckState.REFUSED)],
    CheckState.OLD: (troubled(status(), "catalog-failing"),),
    CheckState.FAILED: (status(Verdict.FAILED, Warmth.FAILED),),
}
"""Each state of a user's daemon, and what leads to it."""

OF_THE_HOST: Final[Mapping[CheckState, Sequence[HostStatus]]] = {
    CheckState.WARM: (
        host(),
        # Whom it does not concern nobody wakes, and of who runs a daemon of their own nothing is known here.
        host(ANN, replace(BOB, entries=0, warm=0, models=(), looked=NOW - 9 * HOUR)),
        host(ANN, replace(BOB, state=WorkerState.ASIDE, looked=None, cold=1, problems=("store-fault",))),
        host(ANN, replace(BOB, state=WorkerState.DENIED, looked=None, cold=1, problems=("store-fault",))),
        replace(host(), problems=(Problem("worker-failing", "another"),)),
    ),
    CheckState.COLD: (
        host(ANN, replace(BOB, warm=0, cold=1)),
        host(replace(BOB, entries=0, models=(), warm=0).with_declared((NET,))),
        # Of who is denied, whatever held before.
        host(ANN, replace(BOB, state=WorkerState.DENIED).with_declared((NET,))),
        host(replace(BOB, state=WorkerState.DENIED).with_declared((NET,))),
    ),
    CheckState.NO_MODELS: (host(replace(ANN, models=(), warm=0)), replace(host(), users=())),
    CheckState.AT_WORK: (host(ANN, replace(BOB, working=True)),),
    CheckState.PROBLEM: (host(ANN, replace(BOB, problems=("no-gpu", "store-fault"))),),
    # A model that nobody but its user declared is that user's.
    CheckState.USER_FAILED: (host(ANN, replace(BOB, verdict=Verdict.FAILED, failed=(NET,))),),
    CheckState.USER_REFUSED: (
        host(ANN, replace(BOB, problems=("bad-settings",))),
        host(ANN, replace(BOB, state=WorkerState.FAILED, problems=("bad-settings",))),
    ),
    CheckState.NO_DEVICE: (host(*(replace(one, verdict=Verdict.NO_DEVICE) for one in (ANN, BOB))),),
    CheckState.STARTING: (replace(host(), looked=None), replace(host(), looked=None, users=())),
    CheckState.UNREAD: (host(ANN, replace(BOB, verdict=Verdict.UNKNOWN, warm=0, cold=1)),),
    CheckState.UNHEARD: (
        host(ANN, UserStatus("new", 2)),
        host(ANN, replace(BOB, looked=None)),
        host(ANN, replace(BOB, looked=NOW - 2 * HOUR)),
        # What a worker says before its first look is from before it started.
        host(ANN, replace(BOB, verdict=Verdict.STARTING)),
    ),
    CheckState.OVERDUE: (
        replace(host(), looked=NOW - 3 * HOUR),
        replace(host(ANN, replace(BOB, looked=NOW - 3 * HOUR)), changed=NOW - 5 * HOUR),
    ),
    CheckState.REFUSED: [
        replace(host(), problems=(Problem("worker-failing", "another"), Problem(code, "this and that")))
        for code in codes(CheckState.REFUSED)
    ],
    CheckState.FAILED: (host(ANN, replace(BOB, verdict=Verdict.FAILED, failed=(NET,), declared=(NET,))),),
    CheckState.WORKER_FAILED: (host(ANN, replace(BOB, state=WorkerState.FAILED)),),
}
"""Each state of the host's daemon, and what leads to it."""


@pytest.mark.parametrize(("state", "made"), [(state, one) for state, some in OF_A_USER.items() for one in some])
def test_each_state_of_a_user_s_daemon(state: CheckState, made: Status) -> None:
    judged = check(made, NOW)
    assert (judged.states[0], judged.level) == (state, LEVELS[state])
    assert judged.sentence.startswith(made.sentence.removesuffix("."))
    # What the first sentence does not say stands behind it.
    assert ("; but " in judged.sentence) == (len(judged.states) > 1)


@pytest.mark.parametrize(("state", "made"), [(state, one) for state, some in OF_THE_HOST.items() for one in some])
def test_each_state_of_the_host_s_daemon(state: CheckState, made: HostStatus) -> None:
    judged = check_host(made, NOW)
    assert (judged.states[0], judged.level) == (state, LEVELS[state])
    assert judged.sentence


def test_each_state_has_its_case() -> None:
    assert {*OF_A_USER, *OF_THE_HOST, CheckState.SILENT} == {*CheckState} == {*LEVELS}
    silent = unanswered("no daemon answers")
    assert (silent.level, silent.states, silent.sentence) == (Level.UNKNOWN, (CheckState.SILENT,), "no daemon answers")


def test_what_is_not_known_is_never_well() -> None:
    """Whatever else holds beside it."""
    for others in (OF_A_USER[CheckState.COLD], OF_A_USER[CheckState.FAILED], OF_A_USER[CheckState.NO_MODELS]):
        for one in others:
            assert check(replace(one, looked=None), NOW).level in {Level.UNKNOWN, Level.CRITICAL}
    assert check_host(replace(host(), looked=None, users=()), NOW).level is Level.UNKNOWN


def test_the_worst_counts_and_the_others_are_said() -> None:
    made = troubled(at_work(status(Verdict.FAILED, Warmth.FAILED), "replay"), "bad-settings")
    judged = check(made, NOW)
    assert judged.level is Level.CRITICAL
    assert judged.states == (CheckState.FAILED, CheckState.REFUSED, CheckState.AT_WORK)
    assert judged.sentence == f"{made.sentence.removesuffix('.')}; but this and that; a replay is under way or waits"

    cold = replace(ANN, warm=0, cold=2)
    assert check_host(host(cold, UserStatus("new", 2)), NOW).sentence == (
        "of 1 user nothing is known since the driver changed; 2 of 2 models are cold"
    )
    yet = check_host(replace(host(ANN, UserStatus("new", 2)), changed=None), NOW)
    assert yet.sentence == "of 1 user nothing is known yet"
    dead = check_host(replace(host(cold, replace(BOB, state=WorkerState.FAILED)), looked=None), NOW)
    assert dead.states == (CheckState.WORKER_FAILED, CheckState.STARTING, CheckState.COLD)


def test_a_host_that_is_well_says_whom_it_does_not_know() -> None:
    assert check_host(host(), NOW).sentence == "2 models of 2 users, all warm"
    aside = check_host(host(ANN, replace(BOB, state=WorkerState.ASIDE)), NOW)
    assert aside.sentence == "1 model of 1 user, all warm; of 1 user, aside or denied, nothing is known here"


def test_a_model_that_the_host_declares_for_who_is_denied_is_named() -> None:
    judged = check_host(
        host(replace(ANN, models=(), warm=0), replace(BOB, state=WorkerState.DENIED, declared=(NET,))), NOW
    )
    assert judged.states == (CheckState.COLD,)
    assert judged.sentence == "1 model cannot be warmed, for PAM lets nothing be run for the user: bob:net"
    assert judged.figures["cold"].startswith("1;")


def test_problems_of_a_user_are_named() -> None:
    one = replace(BOB, problems=("no-gpu", "store-fault", "automatic-job-failed"))
    assert check_host(host(ANN, one), NOW).sentence == "1 user with problems: bob (automatic-job-failed, store-fault)"


def test_one_user_s_mistake_is_that_user_s_and_not_the_host_s() -> None:
    wrong = replace(BOB, state=WorkerState.FAILED, problems=("bad-settings",))
    judged = check_host(host(ANN, wrong), NOW)
    assert judged.level is Level.WARNING
    assert judged.sentence == "a configuration or model file of their own is refused: bob"


def test_figures_stand_in_the_form_of_plugins() -> None:
    assert check(status(Verdict.FAILED, Warmth.FAILED), NOW).figures == {
        "warm": "0;1:;;0;1",
        "cold": "1;0;;0;1",
        "failing": "1;;0;0;1",
        "entries": "3;;;0",
        "size": "12288B;;;0",
    }
    assert check_host(host(), NOW).figures["users"] == "2;;;0"


@pytest.mark.parametrize(
    ("every", "age", "late"),
    [
        *((1.0, 299, False), (1.0, 302, True), (600.0, 1199, False), (600.0, 1201, True), (1e12, 1e9, False)),
        *((-1e300, 299, False), (-1e300, 301, True), (1e308, 1e9, False)),
    ],
)
def test_a_look_has_twice_its_time_or_five_minutes(every: float, age: float, *, late: bool) -> None:
    assert overdue(NOW - timedelta(seconds=age), every, NOW) is late


@pytest.mark.parametrize(("ahead", "late"), [(59, False), (61, True), (1e9, True)])
def test_a_look_from_before_the_clock_was_set_back_is_not_known_to_be_recent(ahead: float, *, late: bool) -> None:
    assert overdue(NOW + timedelta(seconds=ahead), 600.0, NOW) is late
    told = check_host(host(replace(ANN, looked=NOW + timedelta(seconds=ahead))), NOW)
    assert (CheckState.OVERDUE in told.states) is late


def test_the_codes_of_problems_are_those_that_are_told() -> None:
    sources = [path.read_text(encoding="utf-8") for path in Path(xpucached.__file__).parent.rglob("*.py")]
    given = re.compile(
        r'Problem\(\s*"([a-z-]+)"|"(probe-[a-z-]+)"|"((?:no-)?(?:opencl|level-zero)-?(?:error|driver)?)",'
    )
    told = {"".join(code) for text in sources for code in given.findall(text)}
    assert told - set(driver_probe.BACKENDS) == CODES
    assert PROBLEMS.keys() <= CODES
