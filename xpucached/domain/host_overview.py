"""All that there is to look at of a host, in one document: who has what, as each user's worker last said.  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from xpucached.domain.checks import CheckState, check_host
from xpucached.domain.names import AwareDatetime
from xpucached.domain.status import Verdict
from xpucached.domain.users import UNTENDED, HostStatus, UserStatus, WorkerState


class UserUsage(Struct, frozen=True):
    """What a user has.  None is what nobody said, as of who runs a daemon of their own."""

    user: str
    state: WorkerState
    verdict: Verdict | None
    sentence: str
    entries: int | None
    allocated: int | None  #: bytes
    warm: int | None  #: models
    cold: int | None  #: models that are not warm, those that failed too
    failed: int | None  #: models
    seen: AwareDatetime | None  #: when the worker last said so
    problems: tuple[str, ...]  #: codes


class HostOverview(Struct, frozen=True):
    """All that there is to look at of a host, for the page, the report and `top`."""

    at: AwareDatetime
    version: str
    host: str  #: its name
    verdict: CheckState  #: the worst of what holds
    sentence: str
    changed: AwareDatetime | None  #: when the driver last became another
    entries: int  #: of all of whom something is known
    allocated: int  #: bytes
    unknown: int  #: users of whom nothing is known
    users: tuple[UserUsage, ...]  #: who has most bytes first
    problems: Mapping[str, int]  #: of the host and of users, by their codes


def host_overview(value: HostStatus, host: str, now: AwareDatetime) -> HostOverview:
    """Return who has what, and how the host stands."""
    check = check_host(value, now)
    users = sorted(map(_usage, value.users), key=lambda one: (-(one.allocated or 0), one.user))
    codes = Counter([*(one.code for one in value.problems), *(code for one in value.known for code in one.problems)])
    return HostOverview(
        now,
        value.version,
        host,
        check.states[0],
        check.sentence,
        value.changed,
        sum(one.entries or 0 for one in users),
        sum(one.allocated or 0 for one in users),
        sum(one.allocated is None for one in users),
        tuple(users),
        dict(sorted(codes.items())),
    )


def _usage(one: UserStatus) -> UserUsage:
    untended = one.state in UNTENDED
    if one.seen is None or untended:
        codes = () if untended else one.problems
        return UserUsage(one.user, one.state, None, one.sentence, None, None, None, None, None, None, codes)
    return UserUsage(
        one.user,
        one.state,
        # What it said before it failed is no verdict.
        None if one.state is WorkerState.FAILED else one.verdict,
        one.sentence,
        one.entries,
        one.allocated,
        one.warm,
        one.cold,
        len(one.failed),
        one.seen,
        one.problems,
    )
