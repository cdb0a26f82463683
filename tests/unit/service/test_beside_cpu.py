"""How variants are run once more on the processor."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from tests.support.api_stub import make_model
from tests.unit.planning.test_beside_cpu import tried
from xpucached.domain.beside_cpu import CpuComparison, TimedUnit
from xpucached.domain.models import Figures, Outcome, RanOn, Workload
from xpucached.domain.workloads import RunSpec, Variant
from xpucached.processes.pause import RunLimits
from xpucached.processes.reports import RunnerReport
from xpucached.processes.results import RunResult
from xpucached.service import beside_cpu
from xpucached.service.beside_cpu import CpuRunner

if TYPE_CHECKING:
    import pytest

    from xpucached.domain.models import Trial
    from xpucached.processes.supervised import ProcessStarter
    from xpucached.service.context import Context


class Starter:
    """Notes what it is asked to run, and says what came of it."""

    def __init__(self, *results: RunResult) -> None:
        self.results = list(results)
        self.asked: list[tuple[Workload, dict[str, str], Variant]] = []

    async def execute(
        self, workload: Workload, variables: dict[str, str], _trace: object, *, variant: Variant, **_more: object
    ) -> RunResult:
        self.asked.append((workload, variables, variant))
        assert os.path.isdir(variables["SYCL_CACHE_DIR"])  # noqa: ASYNC240, PTH112 - it waits for nobody
        return self.results.pop(0)


def result(seconds: float = 1.0, outcome: Outcome | None = None, told: RunnerReport | None = None) -> RunResult:
    return RunResult(outcome, seconds, 0.0, 0, 0, "still running after 1 s" if outcome else "", "", told=told)


def run(starter: Starter, *values: Trial, **variables: str) -> tuple[CpuComparison | None, ...]:
    model = replace(make_model().model, workload=Workload(("a",), Path("/"), variables, 900.0, RunSpec(device="xpu")))
    context = cast(
        "Context",
        SimpleNamespace(
            clock=lambda: datetime.now(UTC), present=SimpleNamespace(seen_by=lambda _name: SimpleNamespace(devices=()))
        ),
    )
    runner = CpuRunner(context, cast("ProcessStarter", starter))
    return asyncio.run(
        runner.compared(model, model.workload, values, cast("RunLimits", None), lambda _what: None, polite=False)
    )


def test_variants_are_run_on_the_processor_in_directories_of_their_own_and_in_bounded_time() -> None:
    told = RunnerReport(ran_on=RanOn.MEANT, device="cpu", figures=Figures(steady_seconds=0.5))
    starter = Starter(result(told=told))
    trial = tried(Figures(steady_seconds=0.1))
    other = replace(trial, variant=Variant("xpu:1"))
    failed = replace(trial, outcome=Outcome.FAILED)
    found = run(starter, trial, other, failed, SYCL_DEVICE_FILTER="gpu", TOKEN="x")  # noqa: S106 - no secret
    # Steps were measured in the first process, and the two devices differ in nothing there.
    assert found == (CpuComparison(TimedUnit.STEP, 0.1, 0.5, gpu_shown=True, cpu_shown=True),) * 2 + (None,)
    ((workload, variables, variant),) = starter.asked
    assert variant == Variant("cpu")
    assert workload.variables == {"TOKEN": "x"}
    assert workload.timeout <= beside_cpu.LONGEST
    assert variables["ONEAPI_DEVICE_SELECTOR"] == "*:cpu"
    place = Path(variables["SYCL_CACHE_DIR"]).parent
    assert Path(variables["TRITON_CACHE_DIR"]).parent == place
    assert not place.exists()

    # A command's second process counts, which compiles nothing; without entries nothing shows where it ran.
    starter = Starter(result(9.0), result(8.0))
    assert run(starter, tried()) == (CpuComparison(TimedUnit.PASS, 2.0, 8.0, gpu_shown=True),)
    starter = Starter(result(1.0, Outcome.TIMED_OUT))
    assert run(starter, tried()) == (
        CpuComparison(TimedUnit.PASS, 2.0, None, gpu_shown=True, detail="on the CPU: still running after 1 s"),
    )


def test_when_the_time_is_over_the_rest_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside_cpu, "LONGEST", 0.5)
    began = time.monotonic()
    (found,) = run(Starter(), tried())
    assert time.monotonic() - began < 60
    assert found is not None
    assert (found.cpu_seconds, "were over" in found.detail) == (None, True)
