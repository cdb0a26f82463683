"""Present: how the host stands, as a picture of so many lines and columns.  Pure."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from xpucached.domain.models import Warmth
from xpucached.domain.status import Verdict
from xpucached.printing import plain
from xpucached.render.text import Cell, Colour, age, cells, count, cut, cut_within, fold, size
from xpucached.render.usage import about, saved

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xpucached.domain.overview import Overview, OverviewModel, UnderWay
    from xpucached.render.text import TextStyle

_SMALLEST: Final = (40, 8)
"""Columns and lines below which only the sentence is shown."""
_WIDE, _NARROW, _NAME, _BAR = 110, 60, 40, 20
_CHANGES: Final = 5
"""Changes of warmth that are shown where there is room, and all of which a pipe gets."""
_KEYS: Final = "q quit   s by state   b by bytes   c by what compiling takes"


class Order(Enum):
    """In which order models stand."""

    STATE = "s"  #: those that are not warm first
    BYTES = "b"
    COST = "c"


KEYS: Final[Mapping[str, Order]] = {one.value: one for one in Order}
"""What the keys choose."""


def lines(
    value: Overview, style: TextStyle, *, height: int | None, order: Order = Order.STATE, complaint: str = ""
) -> list[str]:
    """Return the lines of the picture, none wider than the terminal, and no more than ``height`` (None: all)."""
    colour = Colour.GREEN if value.verdict is Verdict.WARM else Colour.YELLOW
    sentence = [style.paint(_cut(one, style), colour) for one in fold(plain(value.sentence), style).split("\n")]
    foot = style.paint(_cut(plain(complaint), style), Colour.RED) if complaint else ""
    if height is not None and (height < _SMALLEST[1] or (style.width or _SMALLEST[0]) < _SMALLEST[0]):
        return [*sentence[: height - bool(foot)], *([foot] if foot else [])][:height]
    head = [
        *(sentence if height is None else sentence[: max(1, height // 6)]),
        _cut(f"{plain(value.host)}, xpucached {plain(value.version)}; {count(len(value.models), 'model')}", style),
        _cut(saved(value.saved, style), style),
    ]
    if height is None:
        parts = [_under_way(value, style, None), _models(value, style, None, order), _changes(value, style, _CHANGES)]
        return head + [line for part in parts if part for line in ("", *part)]
    foot = foot or style.paint(_cut(_KEYS, style), Colour.DIM)
    left = height - len(head) - 1
    under_way = _under_way(value, style, max(1, left // 4))
    left -= len(under_way) + bool(under_way)
    changes = _changes(value, style, min(_CHANGES, left // 3 - 2)) if left > 3 * _CHANGES else []
    left -= len(changes) + bool(changes)
    models = _models(value, style, left - 2, order) if left > 2 else []  # noqa: PLR2004 - a gap, heads, one model
    body = head + [line for part in (under_way, models, changes) if part for line in ("", *part)]
    body = body[: height - 1]
    return [*body, *[""] * (height - 1 - len(body)), foot]


def _cut(text: str, style: TextStyle) -> str:
    return text if style.width is None else cut(text, style.width)


def _fitted(row: Sequence[Cell], style: TextStyle) -> str:
    """Write cells one after the other, as far as there is room."""
    written, left = "", style.width
    for one in row:
        text = one.text if left is None else cut(one.text, left)
        left = None if left is None else left - cells(text)
        written += style.paint(text, one.colour)
    return written.rstrip()


def _under_way(value: Overview, style: TextStyle, room: int | None) -> list[str]:
    shown = value.under_way if room is None else value.under_way[:room]
    return [_work(one, style) for one in shown]


def _work(one: UnderWay, style: TextStyle) -> str:
    since = f", began {age(one.since, style.now)}" if one.since is not None else ""
    figures = f"{one.done}/{one.total}" if one.total else str(one.done or "")
    bar = ""
    if one.total > 0 and (style.width is None or style.width >= _NARROW):
        full = round(_BAR * min(1.0, max(0.0, one.done / one.total)))
        bar = f"  [{'#' * full}{'.' * (_BAR - full)}]"
    name = Cell(cut(plain(one.what), _NAME), Colour.BOLD)
    return _fitted([name, Cell(f"{bar}  {figures}  {plain(one.detail)}{since}")], style)


def _models(value: Overview, style: TextStyle, room: int | None, order: Order) -> list[str]:
    amounts = {one.model: one for one in value.usage.models}

    def place(one: OverviewModel) -> tuple[float, str]:
        used = amounts.get(one.model)
        cost = used.own.seconds + used.shared.seconds if used else 0.0
        return {Order.STATE: float(one.warmth is Warmth.WARM), Order.BYTES: -one.allocated, Order.COST: -cost}[
            order
        ], one.model

    ranked = sorted(value.models, key=place)
    shown = ranked if room is None else ranked[: max(1, room - (len(ranked) > room))]
    if not shown:
        return ["no models are registered"]
    rows = [["MODEL", "STATE", "ON DISK", "OWN", "SHARED", "TO COMPILE", "SINCE", "WHY"]]
    for one in shown:
        used = amounts.get(one.model)
        rows.append(
            [
                cut_within(plain(one.model), _NAME),
                one.warmth,
                size(one.allocated),
                size(used.own.allocated) if used else "-",
                size(used.shared.allocated) if used else "-",
                about(used.own.seconds + used.shared.seconds, used.own.measured + used.shared.measured)
                if used
                else "-",
                age(one.since, style.now) if one.since is not None else "-",
                plain(one.why),
            ]
        )
    width = style.width or _WIDE
    columns = (0, 1, 2) if width < _NARROW else (0, 1, 2, 3, 4, 5) if width < _WIDE else tuple(range(8))
    widths = {index: max(cells(row[index]) for row in rows) for index in columns}
    if style.width is not None:
        # Columns go before a name is cut, save how the model stands.
        while _room(columns, widths, style.width) < widths[0] and len(columns) > _KEPT:
            columns = columns[:-1]
        widths[0] = min(widths[0], max(8, _room(columns, widths, style.width)))
    written = []
    for number, row in enumerate(rows):
        painted = []
        for index in columns:
            text = row[index] if index else cut_within(row[index], widths[index])
            colour = Colour.BOLD if not number else _colour(shown[number - 1]) if index == 1 else None
            painted += [Cell(text, colour), Cell(" " * (widths[index] - cells(text) + 2))]
        written.append(_fitted(painted, style))
    if len(shown) < len(ranked):
        written.append(_cut(f"… {len(ranked) - len(shown)} more", style))
    return written


_KEPT: Final = 2


def _room(columns: Sequence[int], widths: Mapping[int, int], width: int) -> int:
    """Return how wide names may be: the last column, a sentence, has what is left."""
    return width - sum(widths[index] + 2 for index in columns if index not in {0, 7})


def _colour(one: OverviewModel) -> Colour:
    return Colour.GREEN if one.warmth is Warmth.WARM else Colour.YELLOW


def _changes(value: Overview, style: TextStyle, room: int) -> list[str]:
    if room < 1 or not value.warmth:
        return []
    last = sorted(value.warmth, key=lambda one: one.id, reverse=True)[:room]
    return [
        style.paint("Last changes", Colour.BOLD),
        *(_cut(f"{age(one.at, style.now)}: {plain(one.model)} is {one.now}: {plain(one.why)}", style) for one in last),
    ]
