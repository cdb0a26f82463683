"""Decide: how warm each user is after a change of the driver, and whether more will come by itself.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from xpucached.domain.checks import PROBLEMS
from xpucached.domain.models import Warmth
from xpucached.domain.names import AwareDatetime
from xpucached.domain.status import Status, Verdict
from xpucached.domain.users import HostStatus, UserStatus, WorkerState


class Readiness(StrEnum):
    """How it stands, the best first."""

    NOTHING = "nothing"  #: nothing is to be kept warm
    ASIDE = "aside"  #: the user runs a daemon of their own, which sees to it
    DENIED = "denied"  #: the host's PAM lets nothing be run for the user
    WARM = "warm"
    COLD = "cold"  #: not all is warm, and no more comes by itself
    WAITING = "waiting"  #: more may come, or nobody knows yet
    FAILED = "failed"


EXITS: Final[Mapping[Readiness, int]] = {
    Readiness.NOTHING: 0,
    Readiness.ASIDE: 0,
    Readiness.DENIED: 0,
    Readiness.WARM: 0,
    Readiness.COLD: 1,
    Readiness.WAITING: 1,
    Readiness.FAILED: 2,
}
"""What a script hears."""

_ABSENT: Final[Mapping[WorkerState, tuple[Readiness, str]]] = {
    WorkerState.ASIDE: (Readiness.ASIDE, "runs a daemon of their own"),
    WorkerState.DENIED: (Readiness.DENIED, "PAM lets nothing be run for this account"),
}
_BEST_FIRST: Final = tuple(Readiness)
_SAID: Final = 5
"""Models or problems that are named."""


class UserReadiness(Struct, frozen=True):
    """How one user stands."""

    user: str
    uid: int
    state: Readiness
    warm: int = 0
    cold: int = 0
    entries: int = 0
    why: str = ""


class HostReadiness(Struct, frozen=True):
    """How all users stand."""

    state: Readiness  #: the worst
    changed: AwareDatetime | None  #: when the driver last became another
    users: tuple[UserReadiness, ...]
    problems: tuple[str, ...] = ()  #: of the host, with which somebody may be missing


def of_host(value: HostStatus, asked: AwareDatetime) -> HostReadiness:
    """Judge what the host's daemon says; ``asked`` is when it was told that something may have changed."""
    problems = tuple(one.message for one in value.problems if one.code in PROBLEMS)
    if value.looked is None or value.looked < asked:
        return HostReadiness(Readiness.WAITING, value.changed, (), problems)
    users = tuple(_of_user(one, value.changed, asked) for one in value.users)
    states = [*(one.state for one in users), *([Readiness.COLD] if problems else [])]
    return HostReadiness(max(states, key=_BEST_FIRST.index, default=Readiness.NOTHING), value.changed, users, problems)


def _of_user(one: UserStatus, changed: AwareDatetime | None, asked: AwareDatetime) -> UserReadiness:
    state, why = _judged(one, changed)
    if one.state is WorkerState.AWAKE and (one.seen is None or one.seen < asked):
        # A model may have been added, or failed, since it last said how it stands.
        state, why = Readiness.WAITING, "has yet to answer"
    # Of who is denied what held before tells nothing.
    warm, cold = (0, len(one.declared)) if one.state is WorkerState.DENIED else (one.warm, one.cold)
    return UserReadiness(one.user, one.uid, state, warm, cold, one.entries, why)


def _judged(one: UserStatus, changed: AwareDatetime | None) -> tuple[Readiness, str]:
    if one.due or one.state is WorkerState.STARTING:
        return Readiness.WAITING, "has yet to look"
    if one.state in _ABSENT:
        state, why = _ABSENT[one.state]
        # Whoever declares models for somebody on this host does not want them cold.
        in_vain = one.state is WorkerState.DENIED and one.declared
        return (Readiness.COLD, f"{why}: {_named(one.declared)}") if in_vain else (state, why)
    if one.state is WorkerState.FAILED:
        return Readiness.FAILED, one.sentence
    if not one.matters:
        return Readiness.NOTHING, ""
    if one.looked is None or (changed is not None and one.looked < changed):
        return Readiness.WAITING, "has not looked since the driver changed"
    if one.busy and one.state is WorkerState.AWAKE:
        return Readiness.WAITING, one.sentence
    if one.failed:
        return Readiness.FAILED, f"could not be warmed: {_named(one.failed)}"
    troubles = [code for code in one.problems if code in PROBLEMS]
    if one.cold or troubles:
        why = f"has not told of: {_named(one.untold)}" if one.untold else one.sentence
        return Readiness.COLD, f"has problems: {_named(troubles)}" if troubles else why
    return Readiness.WARM, ""


def _named(some: tuple[str, ...] | list[str]) -> str:
    return ", ".join(some[:_SAID]) + (f" and {len(some) - _SAID} more" if len(some) > _SAID else "")


def of_daemon(value: Status, user: str, uid: int) -> HostReadiness:
    """Judge what a user's own daemon says."""
    troubles = [one.message for one in value.problems if one.code in PROBLEMS]
    if value.look_due or value.busy or value.verdict is Verdict.STARTING:
        state = Readiness.WAITING
    elif value.verdict is Verdict.FAILED:
        state = Readiness.FAILED
    elif value.verdict in {Verdict.WARM, Verdict.UNCACHED, Verdict.NO_MODELS} and not troubles:
        state = Readiness.NOTHING if value.verdict is Verdict.NO_MODELS and not value.entries else Readiness.WARM
    else:
        state = Readiness.COLD
    by = [one.warmth for one in value.models]
    cold = sum(one not in {Warmth.WARM, Warmth.UNCACHED} for one in by)
    why = "" if state in {Readiness.WARM, Readiness.NOTHING} else _named(troubles) or value.sentence
    one = UserReadiness(user, uid, state, by.count(Warmth.WARM), cold, value.entries, why)
    return HostReadiness(state, value.changes[0].at if value.changes else None, (one,))
