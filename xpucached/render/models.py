"""Door: models and their runs, for people.  Pure."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from xpucached.domain.models import REGISTERED, Outcome, Warmth
from xpucached.printing import command, plain, quoted, safe
from xpucached.render.caches import caches
from xpucached.render.text import Cell, Colour, age, count, facts, fold, seconds, section, size, table
from xpucached.render.trials import exercise, trials

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xpucached.domain.models import Layer, ModelStatus, Run
    from xpucached.render.text import TextStyle

_COLOURS: Final[Mapping[Warmth, Colour]] = {
    Warmth.WARM: Colour.GREEN,
    Warmth.COLD: Colour.YELLOW,
    Warmth.CHANGED: Colour.YELLOW,
    Warmth.UNKNOWN: Colour.YELLOW,
    Warmth.WAITING: Colour.YELLOW,
    Warmth.WARMING: Colour.YELLOW,
    Warmth.FAILED: Colour.RED,
}


def models(values: Sequence[ModelStatus], style: TextStyle, owners: Sequence[str] = ()) -> str:
    """Write one line per model."""
    if not values:
        return "no models"
    rows: list[list[str | Cell]] = [
        [
            one.model.name,
            Cell(one.warmth, _COLOURS.get(one.warmth)),
            str(one.entries),
            size(one.allocated),
            seconds(one.cold_seconds),
            seconds(one.warm_seconds),
            "command" if one.source == REGISTERED else plain(PurePath(one.source).name),
            # Which run proved it stands with the model alone.
            one.why.partition("; ")[0] if one.warmth is Warmth.WARM else _why(one),
        ]
        for one in values
    ]
    heads = ("NAME", "STATE", "ENTRIES", "SIZE", "FIRST", "AGAIN", "FROM", "WHY")
    return table(heads, rows, style, right="ENTRIES SIZE FIRST AGAIN", owners=owners)


def _why(value: ModelStatus) -> str:
    words = value.run.last_words if value.run and value.warmth is Warmth.FAILED else ""
    return f"{value.why}; it said: {words}" if words else value.why


def detail(one: Run) -> str:
    """Write how a run ended, with the line in which it says why."""
    return f"{one.detail}: {one.last_words}" if one.last_words else one.detail


def model(value: ModelStatus, style: TextStyle) -> str:
    """Write everything about one model."""
    registered, workload = value.model, value.model.workload
    pairs = [
        ("name", registered.name),
        ("state", f"{value.warmth}: {_why(value)}" if _why(value) else value.warmth),
        ("command", command(workload.command)),
        *exercise(workload.exercise),
        ("started by", f"xpucachectl run {quoted(registered.name)} -- COMMAND"),
        ("directory", str(workload.directory)),
        ("timeout", seconds(workload.timeout)),
        ("store", str(registered.store) if registered.store else "the managed store"),
        ("priority", f"{registered.priority}{', pinned' if registered.pinned else ''}"),
        ("source", registered.source if registered.source != REGISTERED else "registered by command"),
        ("before", ", ".join(registered.before)),
        ("entries", f"{value.entries}, {size(value.allocated)}"),
        *((f"in {one.kind}", _layer(one)) for one in value.layers),
        ("first pass", seconds(value.cold_seconds) if value.cold_seconds is not None else ""),
        ("warm pass", seconds(value.warm_seconds) if value.warm_seconds is not None else ""),
    ]
    parts = [facts(pairs, style, whole=("command", "directory", "started by"))]
    if value.beyond:
        said = plain(f"{value.beyond}; more: xpucachectl why {quoted(value.name)}")
        parts.append(section("Compiled besides", fold(said, style), style))
    if value.changes:
        parts.append(section("Changed since it was proven", "\n".join(map(plain, value.changes)), style))
    if workload.variables:
        lines = (plain(f"{name}={quoted(text)}") for name, text in sorted(workload.variables.items()))
        parts.append(section("Variables", "\n".join(lines), style))
    if value.caches:
        parts.append(section("Other caches", caches(value.caches, style), style))
    if value.run:
        parts.append(section("Last run", run(value.run, style), style))
    return "\n\n".join(parts)


def _layer(one: Layer) -> str:
    lost = one.entries - one.remaining
    proven = f"it was proven with {count(one.entries, 'entry')}"
    wrong = ([f"{lost} of them gone or damaged"] if lost else []) + (
        [f"{one.unread} of them cannot be read now"] if one.unread else []
    )
    return "; ".join([proven, *(wrong or ["all are there"])])


_OUTCOMES: Final = {Outcome.WARMED: Colour.GREEN, Outcome.UNCACHED: None, Outcome.CANCELLED: Colour.YELLOW}


def outcome_of(one: Run) -> Cell:
    """Write how a run ended."""
    if one.outcome is None:
        return Cell("running", Colour.YELLOW)
    return Cell(one.outcome, _OUTCOMES.get(one.outcome, Colour.RED))


def run(one: Run, style: TextStyle) -> str:
    """Write everything about one run."""
    outcome = outcome_of(one)
    pairs = [
        ("run", f"{one.id}, {one.model}, {one.reason}"),
        ("outcome", f"{outcome.text}: {one.detail}" if one.detail else outcome.text),
        ("started", age(one.started, style.now)),
        *(
            (
                f"pass {number}",
                f"{seconds(each.seconds)}, {each.created} created, {each.used} used, {_exit(each.exit_status)}",
            )
            for number, each in enumerate(one.passes, 1)
        ),
    ]
    text = facts(pairs, style)
    if len(one.trials) > 1 or any(each.figures or each.evidence or each.use or each.cpu for each in one.trials):
        text += "\n\n" + trials(one.trials, style)
    if one.output:
        lines = "\n".join(f"  {safe(line)}" for line in one.output.splitlines())
        text += "\n\n" + section("Output", lines, style)
    return text


def _exit(status: int | None) -> str:
    if status is None:
        return "never started"
    return f"ended by signal {-status}" if status < 0 else f"exit status {status}"


def runs(values: Sequence[Run], style: TextStyle, owners: Sequence[str] = ()) -> str:
    """Write one line per run."""
    if not values:
        return "no runs"
    rows: list[list[str | Cell]] = [
        [
            str(one.id),
            one.model,
            outcome_of(one),
            one.reason,
            age(one.started, style.now),
            seconds(sum(each.seconds for each in one.passes)) if one.passes else "-",
            str(one.passes[0].created) if one.passes else "-",
            detail(one),
        ]
        for one in values
    ]
    heads = ("RUN", "MODEL", "OUTCOME", "REASON", "STARTED", "TOOK", "CREATED", "DETAIL")
    return table(heads, rows, style, right="RUN TOOK CREATED", owners=owners)
