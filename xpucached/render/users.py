"""Door: the users of a host, for people.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xpucached.domain.checks import check_host
from xpucached.domain.users import UNTENDED, WorkerState
from xpucached.printing import plain
from xpucached.render.host import problems
from xpucached.render.text import Cell, Colour, age, fold, section, size, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xpucached.domain.users import HostStatus
    from xpucached.render.text import TextStyle

_STATES: Final[Mapping[WorkerState, Colour | None]] = {
    WorkerState.NEVER: Colour.YELLOW,
    WorkerState.STARTING: Colour.YELLOW,
    WorkerState.AWAKE: Colour.GREEN,
    WorkerState.ASLEEP: None,
    WorkerState.ASIDE: None,
    WorkerState.DENIED: None,
    WorkerState.FAILED: Colour.RED,
}


def _ahead(value: HostStatus) -> list[str]:
    """Write for whom it is prepared for drivers that are not installed, and how far."""
    found: dict[str, list[str]] = {}
    for one in value.users:
        for _, words in one.ahead:
            found.setdefault(words, []).append(one.user)
    return [plain(f"{words}: {', '.join(users)}") for words, users in sorted(found.items())]


def host_users(value: HostStatus, style: TextStyle) -> str:
    """Write how the host stands."""
    changed = f"; the driver changed {age(value.changed, style.now)}" if value.changed is not None else ""
    head = f"{check_host(value, style.now).sentence}{changed}"
    rows: list[list[str | Cell]] = []
    for one in value.users:
        colour = _STATES[one.state]
        figures: list[str | Cell] = [
            str(one.entries),
            size(one.allocated),
            str(one.warm),
            Cell(str(one.cold), Colour.YELLOW) if one.cold else "0",
        ]
        rows.append(
            [
                plain(one.user),
                Cell(str(one.state), colour) if colour else str(one.state),
                # What a daemon of their own has since is not known.
                *(figures if one.state not in UNTENDED else "????"),
                age(one.seen, style.now) if one.seen else "never",
            ]
        )
    heads = ("USER", "WORKER", "ENTRIES", "SIZE", "WARM", "COLD", "SEEN")
    shown = table(heads, rows, style, right="ENTRIES SIZE WARM COLD") if rows else "no users"
    parts = [fold(plain(head), style), shown]
    if value.users and (ahead := _ahead(value)):
        parts.append(section("Drivers that are not installed yet", "\n".join(ahead), style))
    if value.problems:
        parts.append(section("Problems", problems(value.problems, style), style))
    return "\n\n".join(parts)
