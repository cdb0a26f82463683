"""Door: how a model is exercised and what came of each variant, for people.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpucached.domain.models import Outcome, RanOn
from xpucached.domain.workloads import Loader
from xpucached.printing import plain
from xpucached.render.text import Cell, Colour, count, fold, seconds, section, size, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from xpucached.domain.beside_cpu import CpuComparison
    from xpucached.domain.models import Trial
    from xpucached.domain.workloads import RunSpec
    from xpucached.render.text import TextStyle

_PLACES = {RanOn.MEANT: Colour.GREEN, RanOn.OTHER: Colour.RED, RanOn.UNKNOWN: Colour.DIM}


def exercise(one: RunSpec) -> Iterator[tuple[str, str]]:
    """Yield names and values of what is said about how a model is exercised; without a value where nothing is."""
    if one.loader is not Loader.COMMAND:
        yield "loader", f"{one.loader} {one.target}"
        yield "python", one.python
        yield "inputs", one.inputs
        yield "used", f"{count(one.steps, 'time')} a pass{', through torch.compile' if one.compile else ''}"
    elif one.serves:
        ready = f"{one.ready_url} answers" if one.ready_url else f"it prints {one.ready_line!r}"
        yield "server", f"ready when {ready}, within {seconds(one.ready_timeout)}"
        yield "requests", one.requests
    yield "device", f"{one.device}{', required' if one.require_device else ''}"
    yield "compared with", one.compare
    yield "precisions", ", ".join(one.precisions)
    yield "shapes", " ".join(one.shapes)
    yield "caches", ", ".join(map(str, one.caches))
    yield (
        "may take",
        ", ".join(
            f"{size(bound)} of {what}"
            for what, bound in (("memory", one.memory), ("disk", one.disk))
            if bound is not None
        ),
    )


def trials(values: Sequence[Trial], style: TextStyle) -> str:
    """Write one line per variant, and below it what shows where it ran."""
    rows: list[list[str | Cell]] = []
    for one in values:
        first = one.figures[0] if one.figures else None
        last = one.figures[-1] if one.figures else None
        # What was warm already is only proven so: there was no cold pass.
        alone = len(one.passes) == 1 and one.passes[0].created == 0
        rows.append([
            one.variant.label,
            Cell(one.outcome, Colour.GREEN if one.outcome is Outcome.WARMED else Colour.RED),
            "-" if alone else seconds(first.first_seconds if first else one.passes[0].seconds if one.passes else None),
            seconds(last.first_seconds if last else one.passes[-1].seconds if one.passes else None),
            _exactly(last.steady_seconds if last else None),
            _ranged(last.first_token_seconds, last.first_token_seconds_p95, last.first_token_spread) if last else "-",
            _ranged(last.token_seconds, last.token_seconds_p95, last.token_spread) if last else "-",
            Cell(one.device or str(one.ran_on), _PLACES[one.ran_on]),
            one.detail,
        ])  # fmt: skip
    heads = ("VARIANT", "OUTCOME", "COLD", "WARM", "STEADY", "FIRST TOKEN", "PER TOKEN", "RAN ON", "DETAIL")
    text = section("Variants", table(heads, rows, style, right="COLD WARM STEADY"), style)
    for one in values:
        if one.use is not None:
            text += f"\n  {fold(f'{plain(one.variant.label)}: {plain(one.use.sentence)}', style, 2)}"
        for gpu in one.use.gpus if one.use is not None else ():
            text += f"\n  {fold(f'{plain(one.variant.label)}: {plain(gpu.sentence)}', style, 2)}"
        if one.cpu is not None:
            text += f"\n  {fold(f'{plain(one.variant.label)}: {plain(_beside(one.cpu))}', style, 2)}"
        for line in one.evidence:
            text += f"\n  {fold(f'{plain(one.variant.label)}: {plain(line)}', style, 2)}"
    return text


def _beside(one: CpuComparison) -> str:
    return f"{one.sentence}: see why" if one.not_faster else one.sentence


def _ranged(median: float | None, high: float | None, spread: float | None) -> str:
    told = _exactly(median)
    if high is not None:
        told += f", p95 {_exactly(high)}"
    return told if spread is None else f"{told}, spread {_exactly(spread)}"


def _exactly(count: float | None) -> str:
    if count is None:
        return "-"
    return f"{count * 1000:.1f} ms" if count < 1 else seconds(count)
