"""Running the variants of a model once more on the processor, to put the times beside those of the GPU.

Nothing of it counts in a proof: what is compiled for the processor goes into directories that are removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached.domain.models import RanOn
from xpucached.domain.stores import FoundStore, Store, StoreOrigin
from xpucached.domain.workloads import Variant
from xpucached.kinds.table import KINDS, variables
from xpucached.kinds.variables import FURTHER, ON_CPU, OTHER_SELECTORS
from xpucached.planning.beside_cpu import comparison, ran
from xpucached.planning.device_use import device_use, ran_on
from xpucached.processes import scratch
from xpucached.processes.output import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from xpucached.domain.beside_cpu import CpuComparison
    from xpucached.domain.models import Figures, Model, Trial, Workload
    from xpucached.domain.targets import Target
    from xpucached.processes.pause import RunLimits
    from xpucached.processes.results import RunResult
    from xpucached.processes.supervised import ProcessStarter
    from xpucached.service.context import Context

LONGEST: Final = 600.0
"""Seconds that all of it may take for one model; a pass may take no longer than the model's own either."""

_PASSES: Final = 2
"""The first of which compiles."""

_Told = tuple[float | None, "Figures | None", RanOn, str]
"""Of the newest pass: seconds, what it measured, whether it was seen on the processor, and why it tells nothing."""


class CpuRunner:
    """Runs a model's variants on the processor."""

    def __init__(self, context: Context, starter: ProcessStarter) -> None:
        self._context = context
        self._starter = starter

    async def compared(
        self,
        model: Model,
        workload: Workload,
        trials: Sequence[Trial],
        run_limits: RunLimits,
        tell: Callable[[str], None],
        *,
        polite: bool,
    ) -> tuple[CpuComparison | None, ...]:
        """Return what each of these variants takes on the processor; None of those that did not run to their end.

        Those that differ by their device only are run once.
        """
        end = time.monotonic() + LONGEST
        told: dict[Variant, _Told] = {}
        found: list[CpuComparison | None] = []
        for trial in trials:
            if not ran(trial):
                found.append(None)
                continue
            variant = replace(trial.variant, device="cpu")
            if variant not in told:
                tell(f"{variant.label}: for comparison")
                try:
                    told[variant] = await self._once(model, workload, variant, run_limits, end, polite=polite)
                except OSError as error:
                    told[variant] = None, None, RanOn.UNKNOWN, f"it was not run on the CPU: {error}"
            found.append(comparison(trial, *told[variant]))
        return tuple(found)

    async def _once(
        self, model: Model, workload: Workload, variant: Variant, run_limits: RunLimits, end: float, *, polite: bool
    ) -> _Told:
        said = {name: text for name, text in workload.variables.items() if name not in OTHER_SELECTORS}
        kept = contextlib.ExitStack()
        place = await asyncio.to_thread(kept.enter_context, scratch.directory())
        try:
            stores = tuple(
                FoundStore(Store(name, Path(place, name)), StoreOrigin.MANAGED, "comparison") for name in KINDS
            )
            for one in stores:
                one.store.root.mkdir()
            given = {
                **variables(lambda name: Path(place, name)),
                **{name: str(Path(place, folder)) for name, folder in FURTHER.items()},
                **ON_CPU,
            }
            executions: list[RunResult] = []
            figures: Figures | None = None
            # What is measured after the first use needs no second process.
            while len(executions) < _PASSES and (figures is None or figures.steady_seconds is None):
                left = end - time.monotonic()
                if left < 1:
                    return None, None, RanOn.UNKNOWN, f"the {LONGEST:.0f} s for the CPU were over"
                timed = replace(workload, variables=said, timeout=round(min(workload.timeout, left), 1))
                done = await self._starter.execute(
                    timed, given, Trace(), polite=polite, run_limits=run_limits, variant=variant
                )
                executions.append(done)
                if done.outcome is not None:
                    return None, None, RanOn.UNKNOWN, f"on the CPU: {done.detail or done.outcome}"
                figures = done.told.figures if done.told is not None else None
            where = await asyncio.to_thread(self._place, model, executions, stores)
            return executions[-1].seconds, figures, where, ""
        finally:
            # A program may have left much there.
            await asyncio.to_thread(kept.close)

    def _place(self, model: Model, executions: Sequence[RunResult], stores: Iterable[FoundStore]) -> RanOn:
        told = executions[-1].told
        if told is not None and told.ran_on is not RanOn.UNKNOWN:
            return told.ran_on
        counts: Counter[Target | None] = Counter()
        for found in stores:
            for part in KINDS[found.store.kind].scanner.parts(found, self._context.clock(), (), None):
                counts.update(entry.environment for entry in part.entries)
        devices = self._context.present.seen_by(model.name).devices
        graphics, engines = [one.graphics for one in executions], [one.engines for one in executions]
        return ran_on("cpu", device_use(counts, devices, graphics, engines))
