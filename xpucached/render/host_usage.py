"""Present: which user of a host has which bytes, and how they stand; also as a picture of so many lines.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xpucached.domain.checks import LEVELS, Level
from xpucached.domain.status import Verdict
from xpucached.printing import plain
from xpucached.render.text import Cell, Colour, age, cells, count, cut, facts, fold, section, size, table
from xpucached.render.top import Order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xpucached.domain.host_overview import HostOverview, UserUsage
    from xpucached.render.text import TextStyle

_HEADS: Final = ("USER", "STATE", "ENTRIES", "ON DISK", "SHARE", "WARM", "COLD", "FAILED", "SEEN")
_KEYS: Final = "q quit   s by state   b by bytes"
_SMALLEST: Final = (40, 8)
"""Columns and lines below which only the sentence is shown."""
_NARROW, _NAME, _NAME_AT_LEAST = 60, 32, 8


def host_usage(value: HostOverview, style: TextStyle) -> str:
    """Write who has which bytes, as each user's worker last said; ``?`` is what nobody said."""
    unknown = f"; of {count(value.unknown, 'user')} nothing is known" if value.unknown else ""
    head = [
        ("host", plain(value.sentence)),
        (
            "all",
            f"{count(value.entries, 'entry')}, {size(value.allocated)}, of {count(len(value.users), 'user')}{unknown}",
        ),
        ("at", f"{value.at:%Y-%m-%d %H:%M:%S} UTC"),
    ]
    parts = [facts(head, style)]
    if value.users:
        rows = [list[str | Cell](_row(one, value, style)) for one in value.users]
        parts.append(section("Users", table(_HEADS, rows, style, right="ENTRIES SHARE WARM COLD FAILED"), style))
    return "\n\n".join(parts)


def _row(one: UserUsage, value: HostOverview, style: TextStyle) -> list[str]:
    known = one.allocated is not None and value.allocated
    return [
        plain(one.user),
        str(one.verdict or one.state),
        _number(one.entries),
        "?" if one.allocated is None else size(one.allocated),
        f"{100 * (one.allocated or 0) / value.allocated:.0f} %" if known else "?",
        _number(one.warm),
        _number(one.cold),
        _number(one.failed),
        age(one.seen, style.now) if one.seen else "never",
    ]


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)


def host_lines(
    value: HostOverview, style: TextStyle, *, height: int | None, order: Order = Order.STATE, complaint: str = ""
) -> list[str]:
    """Return the lines of the host's picture, none wider than the terminal, and no more than ``height`` (None: all)."""
    colour = Colour.GREEN if LEVELS[value.verdict] is Level.OK else Colour.YELLOW
    sentence = [style.paint(_cut(one, style), colour) for one in fold(plain(value.sentence), style).split("\n")]
    foot = style.paint(_cut(plain(complaint), style), Colour.RED) if complaint else ""
    if height is not None and (height < _SMALLEST[1] or (style.width or _SMALLEST[0]) < _SMALLEST[0]):
        return [*sentence[: height - bool(foot)], *([foot] if foot else [])][:height]
    changed = f"; the driver changed {age(value.changed, style.now)}" if value.changed is not None else ""
    whole = f"{count(len(value.users), 'user')}, {count(value.entries, 'entry')}, {size(value.allocated)}"
    head = [
        *(sentence if height is None else sentence[: max(1, height // 6)]),
        _cut(
            f"{plain(value.host)}, xpucached {plain(value.version)}; {whole}{changed}",
            style,
        ),
    ]
    if height is None:
        return [*head, "", *_users(value, style, None, order)]
    foot = foot or style.paint(_cut(_KEYS, style), Colour.DIM)
    body = [*head, "", *_users(value, style, height - len(head) - 3, order)][: height - 1]
    return [*body, *[""] * (height - 1 - len(body)), foot]


def _users(value: HostOverview, style: TextStyle, room: int | None, order: Order) -> list[str]:
    def place(one: UserUsage) -> tuple[float, str]:
        well = one.verdict in {Verdict.WARM, Verdict.UNCACHED}
        return (float(well) if order is Order.STATE else -(one.allocated or 0)), one.user

    ranked = sorted(value.users, key=place)
    shown = ranked if room is None else ranked[: max(1, room - (len(ranked) > room))]
    if not shown:
        return ["no users"]
    rows = [list(_HEADS), *(_row(one, value, style) for one in shown)]
    columns = (0, 1, 3) if (style.width or _NARROW) < _NARROW else tuple(range(len(_HEADS)))
    widths = {index: max(cells(row[index]) for row in rows) for index in columns}
    others = sum(widths[index] + 2 for index in columns if index)
    widths[0] = min(widths[0], _NAME if style.width is None else max(_NAME_AT_LEAST, style.width - others))
    written = [_line(row, columns, widths, style) for row in rows]
    if len(shown) < len(ranked):
        written.append(_cut(f"… {len(ranked) - len(shown)} more", style))
    return written


def _line(row: Sequence[str], columns: Sequence[int], widths: dict[int, int], style: TextStyle) -> str:
    texts = [cut(row[index], widths[index]) for index in columns]
    gaps = [" " * (widths[index] - cells(text) + 2) for index, text in zip(columns, texts, strict=True)]
    return _cut("".join(text + gap for text, gap in zip(texts, gaps, strict=True)).rstrip(), style)


def _cut(text: str, style: TextStyle) -> str:
    return text if style.width is None else cut(text, style.width)
