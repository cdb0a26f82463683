"""Door: how warm users are after a change of the driver, for people.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xpucached.domain.readiness import Readiness
from xpucached.printing import plain
from xpucached.render.text import Cell, Colour, count, seconds, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xpucached.domain.readiness import HostReadiness, UserReadiness
    from xpucached.render.text import TextStyle

_COLOURS: Final[Mapping[Readiness, Colour]] = {
    Readiness.WARM: Colour.GREEN,
    Readiness.COLD: Colour.YELLOW,
    Readiness.WAITING: Colour.YELLOW,
    Readiness.FAILED: Colour.RED,
}
_SENTENCES: Final[Mapping[Readiness, str]] = {
    Readiness.NOTHING: "nothing is to be kept warm",
    Readiness.ASIDE: "all is seen to by users' own daemons",
    Readiness.DENIED: "the host's PAM lets nothing be run for anybody of whom something is to be kept warm",
    Readiness.WARM: "all is warm",
    Readiness.COLD: "not all is warm, and no more comes by itself",
    Readiness.WAITING: "the time is up, and not all is warm yet",
    Readiness.FAILED: "something failed",
}

_UNTENDED: Final = frozenset({Readiness.ASIDE, Readiness.DENIED})

_SAID: Final = 5
"""Users who are named."""


def readiness(value: HostReadiness, took: float, style: TextStyle) -> str:
    """Write how all users stand, and how long that took."""
    known = [one for one in value.users if one.state not in _UNTENDED]
    warm, all_of_them = sum(one.warm for one in known), sum(one.warm + one.cold for one in known)
    figures = f"{warm} of {count(all_of_them, 'model')}, {count(len(known), 'user')}, after {seconds(took)}"
    if others := len(value.users) - len(known):
        figures += f"; of {count(others, 'user')}, aside or denied, nothing is known here"
    rows: list[list[str | Cell]] = [
        [one.user, Cell(one.state, _COLOURS.get(one.state)), *_figures(one), one.why] for one in value.users
    ]
    parts = [f"{_SENTENCES[value.state]}: {figures}", *map(plain, value.problems)]
    if rows:
        parts.append(table(("USER", "STATE", "ENTRIES", "WARM", "COLD", "WHY"), rows, style, right="ENTRIES WARM COLD"))
    return "\n".join(parts)


def _figures(one: UserReadiness) -> tuple[str, ...]:
    return ("?", "?", "?") if one.state in _UNTENDED else (str(one.entries), str(one.warm), str(one.cold))


def waiting(value: HostReadiness) -> str:
    """Write in one line who is waited for, and for what."""
    left = [one for one in value.users if one.state is Readiness.WAITING]
    if not left:
        return "waiting for a look at the driver"
    more = f"; and {len(left) - _SAID} more" if len(left) > _SAID else ""
    named = "; ".join(f"{one.user}: {one.why}" for one in left[:_SAID])
    return plain(f"waiting for {len(left)} of {count(len(value.users), 'user')}: {named}{more}")
