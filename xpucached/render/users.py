"""Door: the users of a host, for people.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xpucached.domain.status import Verdict
from xpucached.domain.users import WorkerState
from xpucached.printing import plain
from xpucached.render.status import WARNINGS
from xpucached.render.text import Cell, Colour, age, count, section, size, table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from xpucached.domain.users import HostStatus, UserStatus
    from xpucached.render.text import TextStyle

_STATES: Final[Mapping[WorkerState, Colour | None]] = {
    WorkerState.NEVER: Colour.YELLOW,
    WorkerState.STARTING: Colour.YELLOW,
    WorkerState.AWAKE: Colour.GREEN,
    WorkerState.ASLEEP: None,
    WorkerState.ASIDE: None,
    WorkerState.FAILED: Colour.RED,
}

_WARNINGS: Final = WARNINGS | {"no-such-user", "names-silent"}
"""Problems of the host's daemon itself with which a user or a model may be missing."""


def check(value: HostStatus) -> tuple[int, str]:
    """Return the exit status for monitoring, and a sentence."""
    failed = [one.user for one in value.users if one.state is WorkerState.FAILED or one.verdict is Verdict.FAILED]
    cold = sum(one.cold for one in value.users)
    warm = sum(one.warm for one in value.users)
    if failed:
        return 2, f"{count(len(failed), 'user')} failed: {', '.join(failed[:5])}"
    if cold:
        return 1, f"{cold} of {count(cold + warm, 'model')} are cold"
    unheard = sum(_is_unheard(one, value.changed) for one in value.users)
    if unheard:
        since = "yet" if value.changed is None else "since the driver changed"
        return 1, f"of {count(unheard, 'user')} nothing is known {since}"
    unwell = [
        one for one in value.users if one.state is not WorkerState.ASIDE and not WARNINGS.isdisjoint(one.problems)
    ]
    if unwell:
        named = ", ".join(f"{one.user} ({', '.join(sorted(WARNINGS & set(one.problems)))})" for one in unwell[:5])
        return 1, f"{count(len(unwell), 'user')} with problems: {named}"
    warnings = [problem.message for problem in value.problems if problem.code in _WARNINGS]
    if warnings:
        return 1, warnings[0]
    return 0, f"{count(warm, 'model')} of {count(len(value.users), 'user')}, all warm"


def _is_unheard(one: UserStatus, changed: datetime | None) -> bool:
    """Return whether what is known of a user, if anything is, was said before the driver became another."""
    if one.state is WorkerState.ASIDE or not one.matters:
        return False
    if one.verdict is Verdict.STARTING:
        return True
    return one.seen is None or (changed is not None and one.seen < changed)


def host_users(value: HostStatus, style: TextStyle) -> str:
    """Write how the host stands."""
    changed = f"; the driver changed {age(value.changed, style.now)}" if value.changed is not None else ""
    head = f"{check(value)[1]}{changed}"
    rows: list[list[str | Cell]] = []
    for one in value.users:
        colour = _STATES[one.state]
        rows.append(
            [
                plain(one.user),
                Cell(str(one.state), colour) if colour else str(one.state),
                str(one.entries),
                size(one.allocated),
                str(one.warm),
                Cell(str(one.cold), Colour.YELLOW) if one.cold else "0",
                age(one.seen, style.now) if one.seen else "never",
            ]
        )
    heads = ("USER", "WORKER", "ENTRIES", "SIZE", "WARM", "COLD", "SEEN")
    parts = [head, table(heads, rows, style) if rows else "no users"]
    if value.problems:
        lines = "\n".join(plain(f"{one.message}. {one.hint}" if one.hint else one.message) for one in value.problems)
        parts.append(section("Problems", lines, style))
    return "\n\n".join(parts)
