"""Decide: what monitoring hears of a daemon and of a host, and which state stands for what.  Pure.

Each thing that may be the matter is a state with a level.  All that hold are found, and the worst one counts: critical,
then unknown, then warning.  What nobody knows is never OK.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Final

from msgspec import Struct

from xpucached.domain.host import AUTOMATIC
from xpucached.domain.jobs import UNDER_WAY, WARMING
from xpucached.domain.models import Warmth
from xpucached.domain.status import Status, Verdict
from xpucached.domain.users import HostStatus, UserStatus, WorkerState


class Level(IntEnum):
    """Exit statuses, as monitoring systems expect them."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


class CheckState(StrEnum):
    """What is the matter, in a word."""

    WARM = "warm"
    UNCACHED = "uncached"
    COLD = "cold"
    NO_MODELS = "no-models"
    AT_WORK = "at-work"
    PROBLEM = "problem"
    USER_FAILED = "user-failed"
    USER_REFUSED = "user-refused"
    NO_ANSWER = "no-answer"
    NO_DEVICE = "no-device"
    STARTING = "starting"
    UNREAD = "unread"
    UNHEARD = "unheard"
    OVERDUE = "overdue"
    REFUSED = "refused"
    OLD = "old"
    SILENT = "silent"
    FAILED = "failed"
    WORKER_FAILED = "worker-failed"


LEVELS: Final[Mapping[CheckState, Level]] = {
    CheckState.WARM: Level.OK,
    CheckState.UNCACHED: Level.OK,
    CheckState.COLD: Level.WARNING,
    CheckState.NO_MODELS: Level.WARNING,
    CheckState.AT_WORK: Level.WARNING,
    CheckState.PROBLEM: Level.WARNING,
    CheckState.USER_FAILED: Level.WARNING,
    CheckState.USER_REFUSED: Level.WARNING,
    CheckState.NO_ANSWER: Level.UNKNOWN,
    CheckState.NO_DEVICE: Level.UNKNOWN,
    CheckState.STARTING: Level.UNKNOWN,
    CheckState.UNREAD: Level.UNKNOWN,
    CheckState.UNHEARD: Level.UNKNOWN,
    CheckState.OVERDUE: Level.UNKNOWN,
    CheckState.REFUSED: Level.UNKNOWN,
    CheckState.OLD: Level.UNKNOWN,
    CheckState.SILENT: Level.UNKNOWN,
    CheckState.FAILED: Level.CRITICAL,
    CheckState.WORKER_FAILED: Level.CRITICAL,
}
"""How bad each is; the table in ``docs/operations.md`` says the same, and a test holds each row."""

_BEST_FIRST: Final = (Level.OK, Level.WARNING, Level.UNKNOWN, Level.CRITICAL)

PROBLEMS: Final[Mapping[str, CheckState]] = {
    # With these a model that somebody declared may be missing, so that "all" is not all.
    "bad-settings": CheckState.REFUSED,
    "conflict": CheckState.REFUSED,
    "restart-needed": CheckState.REFUSED,
    "no-such-user": CheckState.REFUSED,
    "names-silent": CheckState.REFUSED,
    "catalog-failing": CheckState.OLD,
    "driver-files-silent": CheckState.NO_ANSWER,
    "probe-failed": CheckState.NO_ANSWER,
    "probe-timed-out": CheckState.NO_ANSWER,
    "probe-crashed": CheckState.NO_ANSWER,
    "probe-garbled": CheckState.NO_ANSWER,
    "workers-forbidden": CheckState.WORKER_FAILED,
    AUTOMATIC: CheckState.PROBLEM,
    "catalog-rebuilt": CheckState.PROBLEM,
    "push-failed": CheckState.PROBLEM,
    "push-overdue": CheckState.PROBLEM,
    "revocations-unknown": CheckState.PROBLEM,
    "revoked-entries": CheckState.PROBLEM,
    "state-not-kept": CheckState.PROBLEM,
    "store-fault": CheckState.PROBLEM,
    "store-unreadable": CheckState.PROBLEM,
}
"""Problems with which a host is not well, however warm it is."""

_VERDICTS: Final[Mapping[Verdict, CheckState]] = {
    Verdict.WARM: CheckState.WARM,
    Verdict.UNCACHED: CheckState.UNCACHED,
    Verdict.COLD: CheckState.COLD,
    Verdict.WAITING: CheckState.COLD,
    Verdict.WARMING: CheckState.COLD,
    Verdict.UNKNOWN: CheckState.UNREAD,
    Verdict.NO_MODELS: CheckState.NO_MODELS,
    Verdict.STARTING: CheckState.STARTING,
    Verdict.NO_DEVICE: CheckState.NO_DEVICE,
    Verdict.FAILED: CheckState.FAILED,
}

_GRACE: Final = 300.0
"""Seconds that a look may take beyond its time, however often it is made."""
_AHEAD: Final = 60.0
"""Seconds by which a look may be ahead of who asks: a clock is put right by less all the time."""
_NAMED: Final = 5
"""Users that a sentence names."""
_SAID: Final = 3
"""Things that one line says besides the first."""


class Check(Struct, frozen=True):
    """What monitoring hears: the worst of what is the matter, all of it in a sentence, and figures."""

    level: Level
    states: tuple[CheckState, ...]  #: the worst first
    sentence: str
    figures: Mapping[str, str] = {}  #: name to value, as plugins write it: ``value;warning;critical;least;most``


_Found = tuple[CheckState, str]


def _worst_first(found: Iterable[_Found]) -> list[_Found]:
    return sorted(found, key=lambda one: _BEST_FIRST.index(LEVELS[one[0]]), reverse=True)


def unanswered(why: str) -> Check:
    """Return what is said where no daemon answers."""
    return Check(LEVELS[CheckState.SILENT], (CheckState.SILENT,), why)


def overdue(looked: datetime, every: float, now: datetime) -> bool:
    """Return whether a look that is made so often, in seconds, is older than it can be while all is well.

    So may be one from the future: it was made before the clock was set back, nobody knows how long ago.
    """
    if looked - now > timedelta(seconds=_AHEAD):
        return True
    # Another user's daemon says it, and may say anything.
    late = max(0.0, every) + max(every, _GRACE)
    return now - looked > timedelta(seconds=min(late, timedelta.max.total_seconds() / 2))


# -- a user's daemon ------------------------------------------------------------------------------------------------


def check(value: Status, now: datetime) -> Check:
    """Judge what a user's daemon says."""
    state = _VERDICTS[value.verdict]
    further = list(_of_looks(value, now)) if state is not CheckState.STARTING else []
    working = sorted({one.kind for one in value.jobs if one.state in UNDER_WAY and one.kind in WARMING})
    if working and value.verdict is not Verdict.WARMING:
        further.append((CheckState.AT_WORK, f"a {' and a '.join(working)} is under way or waits"))
    unread = [one.name for one in value.models if one.warmth is Warmth.UNKNOWN]
    if unread and state is not CheckState.UNREAD:
        further.append((CheckState.UNREAD, f"whether these are warm nobody knows: {_names([*unread])}"))
    further += [(PROBLEMS[one.code], one.message) for one in value.problems if one.code in PROBLEMS]
    further = _worst_first(further)
    said = "; ".join(dict.fromkeys(text for _, text in further[:_SAID]))
    # What ends the first sentence may be a command, after which no full stop may stand.
    sentence = f"{value.sentence.removesuffix('.')}; but {said}" if said else value.sentence
    states = [one for one, _ in _worst_first([(state, ""), *further])]
    by = [one.warmth for one in value.models]
    figures = _figures(
        warm=by.count(Warmth.WARM),
        cold=sum(one not in {Warmth.WARM, Warmth.UNCACHED} for one in by),
        failed=by.count(Warmth.FAILED),
        entries=value.entries,
        size=value.allocated,
    )
    return Check(LEVELS[states[0]], tuple(dict.fromkeys(states)), sentence, figures)


def _of_looks(value: Status, now: datetime) -> Iterable[_Found]:
    if value.looked is None:
        yield CheckState.OVERDUE, "no look at the host and its stores has succeeded since the daemon started"
    elif overdue(value.looked, value.look_every, now):
        yield CheckState.OVERDUE, f"the last look at the host and its stores was at {value.looked:%Y-%m-%d %H:%M} UTC"
    if value.look_due:
        yield CheckState.NO_ANSWER, "the driver may have changed, and no look at it has ended well since"


# -- the host's daemon ----------------------------------------------------------------------------------------------


def check_host(value: HostStatus, now: datetime) -> Check:
    """Judge what the host's daemon knows; of who has no worker by right it knows nothing."""
    known = value.known
    found = _worst_first([*_of_host(value, now), *_of_users(value, known, now)])
    warm, failed = sum(one.warm for one in known), sum(map(_failed, known))
    cold = sum(one.cold for one in known) + len(value.in_vain)
    figures = _figures(
        warm=warm,
        cold=cold,
        failed=failed,
        entries=sum(one.entries for one in known),
        size=sum(one.allocated for one in known),
    )
    figures = {**figures, "users": f"{len(known)};;;0"}
    if found:
        sentence = "; ".join(dict.fromkeys(text for _, text in found[: _SAID + 1]))
        states = tuple(dict.fromkeys(state for state, _ in found))
        return Check(LEVELS[states[0]], states, sentence, figures)
    sentence = f"{_count(warm, 'model')} of {_count(len(known), 'user')}, all warm"
    if others := len(value.users) - len(known):
        sentence += f"; of {_count(others, 'user')}, aside or denied, nothing is known here"
    return Check(Level.OK, (CheckState.WARM,), sentence, figures)


def _of_host(value: HostStatus, now: datetime) -> Iterable[_Found]:
    if value.looked is None:
        yield CheckState.STARTING, "who is here, and which driver there is, is being looked at"
    elif overdue(value.looked, value.look_every, now):
        yield CheckState.OVERDUE, f"users and driver were last looked at on {value.looked:%Y-%m-%d %H:%M} UTC"
    for one in value.problems:
        if one.code in PROBLEMS:
            yield PROBLEMS[one.code], one.message
    if value.in_vain:
        models, named = _count(len(value.in_vain), "model"), _names([*value.in_vain])
        yield CheckState.COLD, f"{models} cannot be warmed, for PAM lets nothing be run for the user: {named}"


def _of_users(value: HostStatus, known: Sequence[UserStatus], now: datetime) -> Iterable[_Found]:
    failed = [one for one in known if one.state is WorkerState.FAILED]
    refused = [one for one in known if _is_refused(one)]
    dead = [one.user for one in failed if one not in refused]
    if dead:
        yield CheckState.WORKER_FAILED, f"{_count(len(dead), 'user')} failed: {_names(dead)}"
    declared = {one.user: [name for name in one.failed if name in one.declared] for one in known}
    if models := [f"{user}:{name}" for user, names in declared.items() for name in names]:
        yield CheckState.FAILED, f"{_count(len(models), 'model')} could not be warmed: {_names(models)}"
    unheard = [one for one in known if one not in failed and _is_unheard(one, value.changed)]
    if unheard:
        since = "yet" if value.changed is None else "since the driver changed"
        yield CheckState.UNHEARD, f"of {_count(len(unheard), 'user')} nothing is known {since}"
    heard = [one for one in known if one not in unheard and one not in failed and one.matters]
    late = [one.user for one in heard if one.looked is not None and overdue(one.looked, value.look_every, now)]
    if late:
        yield CheckState.OVERDUE, f"{_count(len(late), 'user')} not looked at for too long: {_names(late)}"
    with_models = [one for one in heard if one.models]
    if with_models and all(one.verdict is Verdict.NO_DEVICE for one in with_models):
        yield CheckState.NO_DEVICE, "programs find no device"
    if cold := sum(one.cold for one in known):
        yield CheckState.COLD, f"{cold} of {_count(cold + sum(one.warm for one in known), 'model')} are cold"
    if unread := [one.user for one in known if one.verdict is Verdict.UNKNOWN]:
        yield CheckState.UNREAD, f"what models were proven with cannot be read now: {_names(unread)}"
    if own := [one.user for one in known if set(one.failed) - set(one.declared)]:
        yield CheckState.USER_FAILED, f"models of their own could not be warmed: {_names(own)}"
    if working := [one.user for one in known if one.working and one not in failed]:
        yield CheckState.AT_WORK, f"a replay or prewarm is under way or waits: {_names(working)}"
    if refused:
        named = _names([one.user for one in refused])
        yield CheckState.USER_REFUSED, f"a configuration or model file of their own is refused: {named}"
    nobody = not value.users and value.looked is not None
    none = known and not (value.in_vain or any(one.models or one.declared for one in known))
    if nobody or (none and not unheard):
        yield CheckState.NO_MODELS, "no models: nothing is kept warm"
    unwell = {one.user: sorted(PROBLEMS.keys() & set(one.problems)) for one in known if one not in refused}
    if told := [f"{user} ({', '.join(codes)})" for user, codes in unwell.items() if codes]:
        yield CheckState.PROBLEM, f"{_count(len(told), 'user')} with problems: {_names(told)}"


def _is_refused(one: UserStatus) -> bool:
    return any(PROBLEMS.get(code) is CheckState.REFUSED for code in one.problems)


def _is_unheard(one: UserStatus, changed: datetime | None) -> bool:
    """Return whether what is known of a user, if anything is, is from before the boot or another driver."""
    if not one.matters:
        return False
    if one.verdict is Verdict.STARTING or one.looked is None:
        return True
    return changed is not None and one.looked < changed


def _failed(one: UserStatus) -> int:
    return len(one.failed)


def _figures(*, warm: int, cold: int, failed: int, entries: int, size: int) -> Mapping[str, str]:
    models = warm + cold
    return {
        "warm": f"{warm};{models}:;;0;{models}",
        "cold": f"{cold};0;;0;{models}",
        "failing": f"{failed};;0;0;{models}",
        "entries": f"{entries};;;0",
        "size": f"{size}B;;;0",
    }


def _names(some: list[str]) -> str:
    more = f" and {len(some) - _NAMED} more" if len(some) > _NAMED else ""
    return ", ".join(some[:_NAMED]) + more


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
