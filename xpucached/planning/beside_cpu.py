"""Decide: what a variant's passes on the GPU and on the processor tell beside each other.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpucached.domain.beside_cpu import ComparedVariant, CpuComparison, TimedUnit
from xpucached.domain.models import Outcome, RanOn

if TYPE_CHECKING:
    from xpucached.domain.models import Figures, Model, Run, Trial

_RAN = frozenset({Outcome.WARMED, Outcome.UNPROVEN, Outcome.UNCACHED})


def ran(trial: Trial) -> bool:
    """Return whether a variant came to its end, so that its times say something."""
    return trial.outcome in _RAN and bool(trial.passes)


def comparison(
    trial: Trial, seconds: float | None, figures: Figures | None, place: RanOn, detail: str
) -> CpuComparison:
    """Put what a variant took beside the newest pass of it on the processor.

    ``seconds`` and ``figures`` are that pass's (None: it did not run to its end, and ``detail`` says why), ``place``
    whether it was seen to run on the processor.
    """
    own = trial.figures[-1] if trial.figures else None
    gpu_shown, cpu_shown = trial.ran_on is RanOn.MEANT, place is RanOn.MEANT
    if own is None:
        unit, gpu, cpu = TimedUnit.PASS, trial.passes[-1].seconds if trial.passes else None, seconds
    elif own.token_seconds is not None:
        unit, gpu, cpu = TimedUnit.TOKEN, own.token_seconds, figures.token_seconds if figures else None
    else:
        unit, gpu, cpu = TimedUnit.STEP, own.steady_seconds, figures.steady_seconds if figures else None
    return CpuComparison(unit, gpu, cpu, gpu_shown, cpu_shown, detail)


def compared(model: Model, run: Run | None) -> tuple[ComparedVariant, ...]:
    """Return the comparisons that a run made of the model as it is now."""
    if run is None or run.workload != model.workload.digest:
        return ()
    return tuple(ComparedVariant(one.variant.label, one.cpu) for one in run.trials if one.cpu is not None)
