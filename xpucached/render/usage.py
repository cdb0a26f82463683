"""Present: who uses which bytes, what compiling takes, and what was saved.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xpucached.domain.models import Warmth
from xpucached.domain.usage import CostSource
from xpucached.printing import plain
from xpucached.render.entries import brief
from xpucached.render.text import Cell, Colour, age, count, facts, seconds, section, size, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from xpucached.domain.usage import Amount, Day, Saved, Usage, WarmthChange
    from xpucached.render.text import TextStyle

_UNWATCHED: Final = "unknown, as nobody watches what programs load (see: xpucachectl doctor)"


def about(whole: float, measured: float) -> str:
    """Write seconds, with ``~`` before them where a part is estimated."""
    # What differs by less is a sum in another order.
    return f"{'~' if whole - measured > max(1e-6, whole * 1e-6) else ''}{seconds(whole)}"


def saved(value: Saved, style: TextStyle) -> str:
    """Write what programs did not have to wait for: what was avoided and what was spared, never their sum."""
    if value.avoided_month is None:
        avoided = f"avoided: {_UNWATCHED}"
    else:
        mark = "~" if value.estimated else ""
        today = "unknown" if value.avoided_today is None else f"{mark}{seconds(value.avoided_today)}"
        avoided = f"avoided by loads: {today} today, {mark}{seconds(value.avoided_month)} in 30 days"
    spared = f"spared by replay: {seconds(value.spared_month)} in 30 days"
    if value.upgraded is not None:
        spared += f", {seconds(value.spared_upgrade)} since the driver changed {age(value.upgraded, style.now)}"
    return f"{avoided}; {spared}"


def usage(value: Usage, style: TextStyle) -> str:
    """Write who uses which bytes, what is there for which driver, and the dearest entries."""
    rows = list[list[str | Cell]]()
    head = [
        ("all", _amount(value.total)),
        ("shared", f"{_amount(value.shared)}: used by several models, counted once"),
        ("nobody's", f"{_amount(value.nobody)}: for what is here now, and used by no registered model"),
        *(("kind", f"{one.kind}: {_amount(one)}") for one in value.kinds),
        ("at", f"{value.at:%Y-%m-%d %H:%M:%S} UTC"),
    ]
    parts = [facts(head, style)]
    for model in value.models:
        own, shared = model.own, model.shared
        whole = own.seconds + shared.seconds
        rows.append(
            [
                model.model,
                str(own.entries + shared.entries),
                size(own.allocated),
                size(shared.allocated),
                about(whole, own.measured + shared.measured),
            ]
        )
    if rows:
        heads = ("MODEL", "ENTRIES", "OWN", "SHARED", "TO COMPILE")
        parts.append(section("Models", table(heads, rows, style, right="ENTRIES OWN SHARED TO COMPILE"), style))
    for title, some in (
        ("Drivers", [(one.driver, one.present, one) for one in value.drivers]),
        ("Devices", [(one.device, one.present, one) for one in value.devices]),
    ):
        if some:
            parts.append(section(title, _places(title[:-1].upper(), some, style), style))
    if value.dearest:
        rows = [
            [
                one.ref,
                about(one.cost.seconds, 0.0 if one.cost.source is CostSource.ESTIMATE else one.cost.seconds),
                size(one.allocated),
                ", ".join(one.models) or "-",
                brief(one.kernel) or "-",
            ]
            for one in value.dearest
        ]
        heads = ("REF", "TO COMPILE", "ON DISK", "MODELS", "KERNEL")
        parts.append(section("Dearest entries", table(heads, rows, style, right="ON DISK"), style))
    return "\n\n".join(parts)


def _amount(one: Amount) -> str:
    return f"{count(one.entries, 'entry')}, {size(one.allocated)}, {about(one.seconds, one.measured)} to compile"


def _places(head: str, some: Iterable[tuple[str, bool, Amount]], style: TextStyle) -> str:
    rows: list[list[str | Cell]] = [
        [
            name or "unknown",
            Cell("here") if here else Cell("not here", Colour.DIM),
            str(one.entries),
            size(one.allocated),
            about(one.seconds, one.measured),
        ]
        for name, here, one in some
    ]
    return table((head, "NOW", "ENTRIES", "ON DISK", "TO COMPILE"), rows, style, right="ENTRIES")


def days(values: Sequence[Day], style: TextStyle) -> str:
    """Write what happened each day; ``?`` is what nobody watched."""
    rows: list[list[str | Cell]] = [
        [
            one.day,
            _known(one.loads),
            "?" if one.avoided_seconds is None else about(one.avoided_seconds, _measured(one)),
            str(one.replayed),
            seconds(one.spared_seconds),
            str(one.prewarmed),
            seconds(one.replay_seconds + one.prewarm_seconds),
            _known(one.compiled),
            f"{one.warmed}/{one.warmed + one.failed}" if one.warmed + one.failed else "-",
            size(one.freed) if one.evicted else "-",
            str(one.changes) if one.changes else "-",
            "?" if one.allocated is None else size(one.allocated),
        ]
        for one in values
    ]
    heads = (
        *("DAY", "LOADS", "AVOIDED", "REPLAYED", "SPARED", "PREWARMED", "SPENT", "PROGRAMS"),
        *("WARMED", "FREED", "DRIVERS", "ON DISK"),
    )
    return table(heads, rows, style, right="LOADS REPLAYED PREWARMED PROGRAMS") if rows else "no days yet"


def _known(number: int | None) -> str:
    return "?" if number is None else str(number)


def _measured(one: Day) -> float:
    return (one.avoided_seconds or 0.0) - (one.estimated_seconds or 0.0)


def warmth(values: Sequence[WarmthChange], style: TextStyle) -> str:
    """Write when models came to stand otherwise, and why."""
    rows: list[list[str | Cell]] = [
        [
            f"{one.at:%Y-%m-%d %H:%M:%S}",
            one.model,
            one.before or "-",
            Cell(one.now, Colour.GREEN if one.now is Warmth.WARM else Colour.YELLOW),
            plain(one.why),
        ]
        for one in values
    ]
    return table(("AT (UTC)", "MODEL", "WAS", "IS", "WHY"), rows, style) if rows else "no changes yet"
