"""`domain.readiness`: nobody is called warm of whom that is not known, and what may become better is waited for."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import pytest
from msgspec.structs import replace

from tests.support.api_stub import NOW, make_model, make_status
from xpucached.domain import readiness
from xpucached.domain.host import Problem
from xpucached.domain.models import Warmth
from xpucached.domain.names import ModelName
from xpucached.domain.readiness import EXITS, Readiness
from xpucached.domain.status import Status, Verdict
from xpucached.domain.users import HostStatus, UserStatus, WorkerState

SOON: Final = NOW + timedelta(seconds=1)
NET: Final = (ModelName("net"),)
WARM: Final = UserStatus(
    "alice", 1001, WorkerState.AWAKE, Verdict.WARM, "It is.", 3, 4096, 1, 0, NET, (), SOON, looked=SOON
)


def host(*users: UserStatus, problems: tuple[Problem, ...] = ()) -> HostStatus:
    """Return a host whose driver changed, and which was looked at since."""
    return HostStatus("1", NOW, "stamp", NOW, problems, users, SOON, 3600.0)


@pytest.mark.parametrize(
    ("one", "state", "why"),
    [
        (WARM, Readiness.WARM, ""),
        (replace(WARM, state=WorkerState.ASLEEP, busy=True), Readiness.WARM, ""),
        (replace(WARM, busy=True), Readiness.WAITING, "It is."),
        # What it said before the question may not hold any more: a model may have failed since.
        (replace(WARM, seen=NOW - timedelta(seconds=1)), Readiness.WAITING, "has yet to answer"),
        (replace(WARM, seen=NOW - timedelta(seconds=1), models=(), entries=0), Readiness.WAITING, "has yet to answer"),
        (replace(WARM, seen=NOW - timedelta(seconds=1), state=WorkerState.ASLEEP), Readiness.WARM, ""),
        (replace(WARM, due=True), Readiness.WAITING, "has yet to look"),
        (replace(WARM, state=WorkerState.STARTING), Readiness.WAITING, "has yet to look"),
        (
            replace(WARM, looked=NOW - timedelta(seconds=1)),
            Readiness.WAITING,
            "has not looked since the driver changed",
        ),
        (replace(WARM, looked=None), Readiness.WAITING, "has not looked since the driver changed"),
        (UserStatus("bob", 1002), Readiness.WAITING, "has not looked since the driver changed"),
        (replace(WARM, warm=0, cold=1, sentence="Cold."), Readiness.COLD, "Cold."),
        (replace(WARM, problems=("store-fault", "other")), Readiness.COLD, "has problems: store-fault"),
        (replace(WARM, cold=1, failed=NET), Readiness.FAILED, "could not be warmed: net"),
        (replace(WARM, state=WorkerState.FAILED, sentence="It died."), Readiness.FAILED, "It died."),
        (replace(WARM, state=WorkerState.FAILED, due=True), Readiness.WAITING, "has yet to look"),
        (replace(WARM, state=WorkerState.ASIDE, cold=1), Readiness.ASIDE, "runs a daemon of their own"),
        (replace(WARM, state=WorkerState.DENIED, cold=1), Readiness.DENIED, "PAM lets nothing be run for this account"),
        (
            replace(WARM, state=WorkerState.DENIED).with_declared(NET),
            Readiness.COLD,
            "PAM lets nothing be run for this account: net",
        ),
        # It may be otherwise by now: an account was extended, a daemon of their own was stopped.
        (replace(WARM, state=WorkerState.ASIDE, due=True), Readiness.WAITING, "has yet to look"),
        (replace(WARM, state=WorkerState.DENIED, due=True), Readiness.WAITING, "has yet to look"),
        (replace(WARM, entries=0, models=(), looked=None), Readiness.NOTHING, ""),
        (replace(WARM, entries=0, models=(), warm=0).with_declared(NET), Readiness.COLD, "has not told of: net"),
    ],
)
def test_each_user_stands_as_their_worker_said(one: UserStatus, state: Readiness, why: str) -> None:
    found = readiness.of_host(host(one), NOW)
    assert (found.users[0].state, found.users[0].why) == (state, why)
    assert found.state is state


def test_the_worst_of_all_counts() -> None:
    bob = replace(WARM, user="bob", cold=1)
    carol = replace(WARM, user="carol", state=WorkerState.FAILED)
    assert EXITS[readiness.of_host(host(WARM), NOW).state] == 0
    assert EXITS[readiness.of_host(host(WARM, bob), NOW).state] == 1
    assert EXITS[readiness.of_host(host(WARM, carol, bob), NOW).state] == 2
    assert EXITS[readiness.of_host(host(), NOW).state] == 0
    # Somebody may be missing.
    lost = readiness.of_host(host(WARM, problems=(Problem("names-silent", "nobody answers", ""),)), NOW)
    assert (lost.state, lost.problems) == (Readiness.COLD, ("nobody answers",))


def test_a_look_from_before_it_was_asked_for_tells_nothing() -> None:
    assert readiness.of_host(host(WARM), SOON + timedelta(seconds=1)).state is Readiness.WAITING
    assert readiness.of_host(replace(host(WARM), looked=None), NOW).state is Readiness.WAITING


def status(verdict: Verdict) -> Status:
    """Return what a daemon without problems says."""
    return replace(make_status(verdict), problems=(), models=(make_model(),))


@pytest.mark.parametrize(
    ("value", "state"),
    [
        (status(Verdict.WARM), Readiness.WARM),
        (status(Verdict.UNCACHED), Readiness.WARM),
        (replace(status(Verdict.WARM), busy=True), Readiness.WAITING),
        (replace(status(Verdict.WARM), look_due=True), Readiness.WAITING),
        (status(Verdict.STARTING), Readiness.WAITING),
        (status(Verdict.COLD), Readiness.COLD),
        (status(Verdict.NO_DEVICE), Readiness.COLD),
        (replace(status(Verdict.WARM), problems=(Problem("bad-settings", "x", ""),)), Readiness.COLD),
        (status(Verdict.FAILED), Readiness.FAILED),
        (replace(status(Verdict.NO_MODELS), models=()), Readiness.WARM),
        (replace(status(Verdict.NO_MODELS), models=(), entries=0), Readiness.NOTHING),
    ],
)
def test_a_user_s_own_daemon_stands_as_it_says(value: Status, state: Readiness) -> None:
    found = readiness.of_daemon(value, "alice", 1001)
    assert found.state is found.users[0].state is state
    assert bool(found.users[0].why) is (state not in {Readiness.WARM, Readiness.NOTHING})


def test_models_are_counted() -> None:
    models = (make_model(), make_model("bert", Warmth.COLD), make_model("none", Warmth.UNCACHED))
    one = readiness.of_daemon(replace(status(Verdict.COLD), models=models), "alice", 1001).users[0]
    assert (one.warm, one.cold) == (1, 1)
