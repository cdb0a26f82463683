"""Door: advice as text: why a model is cold or slow, and its figures over time.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xpucached.domain.diagnosis import Figure, Safety
from xpucached.domain.models import Warmth
from xpucached.printing import plain, quoted
from xpucached.render.text import Cell, Colour, age, count, facts, fold, seconds, section, size, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xpucached.domain.diagnosis import Baseline, CompiledShare, Diagnosis, Explanation, RuntimeCheck
    from xpucached.domain.host import Problem
    from xpucached.domain.shifts import Shift
    from xpucached.render.text import TextStyle

_BYTES: Final = frozenset({Figure.MEMORY, Figure.DEVICE_MEMORY})
_SAFETIES: Final = {Safety.SAFE: Colour.GREEN, Safety.UNSAFE: Colour.RED, Safety.UNKNOWN: Colour.YELLOW}


def why(value: Diagnosis, style: TextStyle) -> str:
    """Write the first reason and what mends it; below, whatever else there is."""
    parts: list[str] = []
    if value.explanations:
        parts.append(_finding(value.explanations[0], style))
        if value.explanations[1:]:
            parts.append(section("Besides", "\n".join(_finding(one, style) for one in value.explanations[1:]), style))
    else:
        warm = value.warmth is Warmth.WARM
        text = "warm, and nothing speaks against it" if warm else f"{value.warmth}, and no reason was found"
        parts.append(style.paint(f"{plain(value.model)}: {text}", Colour.GREEN if warm else Colour.YELLOW))
    if value.runtimes:
        parts.append(
            section(
                "Its SYCL runtimes" if value.loaded else "SYCL runtimes that its program finds, should it use SYCL",
                "\n".join(_runtime_check(one, style) for one in value.runtimes),
                style,
            )
        )
    if value.compared:
        lines = (fold(plain(f"{one.variant}: {one.comparison.sentence}"), style, 0) for one in value.compared)
        parts.append(section("Beside the CPU", "\n".join(lines), style))
    if value.compiled:
        parts.append(section("What its runs compiled", _compiled(value.compiled, style), style))
    return "\n\n".join(parts)


def _compiled(values: Sequence[CompiledShare], style: TextStyle) -> str:
    rows: list[list[str | Cell]] = [
        [
            one.kind,
            one.library or "-",
            str(one.entries),
            str(one.kernels) if one.kernels else "-",
            seconds(one.seconds),
            "-" if one.share is None else f"{one.share:.0%}",
        ]
        for one in values
    ]
    return table(
        ("CACHE", "LIBRARY", "ENTRIES", "KERNELS", "TIME", "SHARE"), rows, style, right="ENTRIES KERNELS TIME SHARE"
    )


def _finding(one: Explanation, style: TextStyle) -> str:
    text = f"{style.paint('!', Colour.YELLOW)} {fold(f'{plain(one.message)} ({one.cause})', style, 2)}"
    return f"{text}\n  {plain(one.command)}" if one.command else text


def _runtime_check(one: RuntimeCheck, style: TextStyle) -> str:
    verdict = style.paint(one.safety, _SAFETIES[one.safety])
    return f"{plain(str(one.library))}: {verdict}\n  {fold(plain(one.evidence), style, 2)}"


def shifts(values: Sequence[Shift], style: TextStyle) -> str:
    """Write one line for each figure that is another since a change, and below it what came between."""
    rows: list[list[str | Cell]] = [
        [
            one.model,
            one.variant,
            one.figure,
            f"{seconds(one.before)} (±{seconds(one.spread)}, {count(one.before_runs, 'run')})",
            Cell(f"{seconds(one.after)} ({count(one.after_runs, 'run')})", Colour.RED if one.slower else Colour.GREEN),
            age(one.at, style.now),
            "; ".join(one.changed),
        ]
        for one in values
    ]
    return table(("MODEL", "VARIANT", "FIGURE", "BEFORE", "AFTER", "SINCE", "CHANGED"), rows, style)


def seen(values: Sequence[Shift], style: TextStyle) -> str:
    """Write what somebody has seen now."""
    return shifts(values, style) if values else "nothing became slower or faster that nobody had seen"


def history(values: Sequence[Baseline], style: TextStyle) -> str:
    """Write one line per figure of each variant and environment."""
    if not values:
        return "no figures yet"
    rows: list[list[str | Cell]] = [
        [
            one.variant,
            one.host,
            one.figure,
            Cell(_figure(one.figure, one.newest), Colour.RED if one.worse else None),
            _figure(one.figure, one.median),
            _figure(one.figure, one.deviation),
            str(one.samples),
            Cell("worse", Colour.RED) if one.worse else "-",
            age(one.at, style.now),
        ]
        for one in values
    ]
    heads = ("VARIANT", "HOST", "FIGURE", "NEWEST", "MEDIAN", "MAD", "RUNS", "VERDICT", "AT")
    return table(heads, rows, style, right="NEWEST MEDIAN MAD RUNS")


def usual(values: Sequence[Baseline], style: TextStyle) -> str:
    """Write the figures of a model for its own page: a line each, in the environment of its newest run."""
    newest = max(values, key=lambda one: one.at).host if values else ""
    return facts(
        [
            (
                f"{one.variant}, {one.figure}",
                f"{_figure(one.figure, one.newest)}"
                + (
                    f", usually {_figure(one.figure, one.median)} ({count(one.samples - 1, 'run')})"
                    if one.samples > 1
                    else ""
                )
                + (": worse" if one.worse else ""),
            )
            for one in values
            if one.host == newest
        ],
        style,
    )


def _figure(figure: Figure, value: float | None) -> str:
    if value is None:
        return "-"
    return size(round(value)) if figure in _BYTES else seconds(value)


def caution(value: Diagnosis) -> tuple[str, ...]:
    """Return the sentences that belong above the variables of a model: what is unsafe, and what to do."""
    unsafe = [one for one in value.runtimes if one.safety is Safety.UNSAFE]
    lines = [f"{one.library} is unsafe with the cache on for some programs: {one.evidence}" for one in unsafe]
    if unsafe and value.warmth is Warmth.WARM:
        lines.append(f"{value.model} was run with it without a crash, so the cache is on here")
    elif unsafe:
        lines.append(
            f"Until {value.model} was seen to run with it, the cache is off here, and each start compiles all; "
            f"xpucachectl prewarm {quoted(value.model)} sees whether it does"
        )
    lines += [f"{one.message}; {one.command}" for one in value.explanations if one.cause in _CAUTIONS]
    return tuple(plain(line) for line in lines)


_CAUTIONS: Final = frozenset({"unsafe-runtime", "crashed-with-cache"})


def unsafe(values: Sequence[Problem]) -> tuple[str, ...]:
    """Return the sentences that belong above the variables of the managed store."""
    return tuple(plain(f"{one.message}; {one.hint}") for one in values if one.code == "unsafe-runtime")
