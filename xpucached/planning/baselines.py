"""Decide: what is usual for a model, and what is worse than usual.  Pure."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from xpucached.domain.diagnosis import Baseline, Figure
from xpucached.domain.models import Outcome, Pass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from xpucached.domain.models import Figures, ModelStatus, Run, Trial

FEWEST: Final = 4
"""Earlier samples that it takes to call something unusual."""

_NORMAL: Final = 1.4826
"""Of a normal distribution the standard deviation is so many median absolute deviations."""

_FAR: Final = 4.0
"""Standard deviations beyond the median that chance does not explain."""

_LEAST: Final = 0.1
"""Nothing within a tenth of the median is worth anybody's attention, however still it was before."""

_TICKS: Final = {
    Figure.COLD: 0.5,
    Figure.WARM: 0.2,
    Figure.STEADY: 0.001,
    Figure.CPU: 0.5,
    Figure.MEMORY: 32 << 20,
    Figure.DEVICE_MEMORY: 32 << 20,
}
"""What a busy host adds to the shortest run (seconds, bytes)."""


def baselines(runs: Iterable[Run]) -> tuple[Baseline, ...]:
    """Return every figure of every variant and environment, over these runs of one model, newest environment first.

    Only passes that ended well count.  "Worse" is further above the median of the earlier ones than four robust
    standard deviations (1.4826 MAD), a tenth of it, and the unrest of any host.
    """
    found: dict[tuple[str, str, Figure], list[tuple[datetime, float]]] = {}
    for run in sorted(runs, key=lambda one: one.id, reverse=True):
        if run.finished is None:
            continue
        for variant, figure, value in samples(run):
            found.setdefault((run.host, variant, figure), []).append((run.started, value))
    return tuple(_baseline(host, variant, figure, values) for (host, variant, figure), values in found.items())


def _baseline(host: str, variant: str, figure: Figure, values: Sequence[tuple[datetime, float]]) -> Baseline:
    at, newest = values[0]
    before = [value for _, value in values[1:]]
    if not before:
        return Baseline(variant, host, figure, newest, at, None, None, 1, worse=False)
    usual = median(before)
    deviation = median(abs(value - usual) for value in before)
    worse = len(before) >= FEWEST and newest - usual > limit(figure, usual, deviation)
    return Baseline(variant, host, figure, newest, at, usual, deviation, len(values), worse)


def limit(figure: Figure, usual: float, deviation: float) -> float:
    """Return how far from the median a figure may be by chance; ``deviation`` is the median absolute one."""
    return max(_FAR * _NORMAL * deviation, _LEAST * usual, _TICKS[figure])


def samples(run: Run) -> Iterator[tuple[str, Figure, float]]:
    """Yield what a run measured: variant, figure, and its value.  Only passes that ended well count."""
    if run.trials:
        for trial in run.trials:
            if trial.outcome in _TOLD:
                yield from _told(trial.variant.label, trial.passes, trial.figures)
    elif run.outcome in _TOLD:
        yield from _told("default", run.passes, ())


_TOLD: Final = frozenset({Outcome.WARMED, Outcome.UNPROVEN})


def _told(variant: str, passes: Sequence[Pass], figures: Sequence[Figures]) -> Iterator[tuple[str, Figure, float]]:
    good = [one for one in passes if one.exit_status == 0]
    if good and good[0].created:
        yield variant, Figure.COLD, good[0].seconds
    if good and not good[-1].created:
        last = good[-1]
        yield variant, Figure.WARM, last.seconds
        yield variant, Figure.CPU, last.cpu_seconds
        yield variant, Figure.MEMORY, float(last.peak_rss)
    if figures:
        measured = figures[-1]
        if measured.steady_seconds is not None:
            yield variant, Figure.STEADY, measured.steady_seconds
        if measured.device_memory is not None:
            yield variant, Figure.DEVICE_MEMORY, float(measured.device_memory)


def usual_seconds(models: Iterable[ModelStatus | None]) -> float | None:
    """Return the seconds that these models' two passes took when they were last warmed; None if one is not known."""
    total = 0.0
    for one in models:
        if one is None or one.cold_seconds is None or one.warm_seconds is None:
            return None
        total += one.cold_seconds + one.warm_seconds
    return total


def summed(trials: Sequence[Trial]) -> tuple[Pass, ...]:
    """Add the passes of all variants: the first ones, and the second ones."""

    def add(passes: Sequence[Pass]) -> Pass:
        bad = [one.exit_status for one in passes if one.exit_status != 0]
        return Pass(
            sum(one.seconds for one in passes),
            sum(one.cpu_seconds for one in passes),
            max(one.peak_rss for one in passes),
            bad[0] if bad else 0,
            sum(one.created for one in passes),
            sum(one.used for one in passes),
        )

    longest = max((len(one.passes) for one in trials), default=0)
    # Who needed no second pass took its first as proof.
    return tuple(add([one.passes[min(number, len(one.passes) - 1)] for one in trials]) for number in range(longest))
