"""The interpreter with a real torch that tests start the worker with, and what they ask of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached.domain.models import Workload
from xpucached.domain.workloads import Loader, RunSpec, Variant
from xpucached.processes.output import Trace
from xpucached.processes.supervised import ProcessStarter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xpucached.processes.results import RunResult

APPLICATION: Final = Path(__file__).parent / "application"
"""Where the programs lie whose functions models name."""

COMPILING: Final = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",  # each one more would load a torch of its own
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",  # worth it from the second kernel on
    "TORCHINDUCTOR_VEC_ISA_OK": "1",  # or it compiles a program to find out
}
"""What lets a model be compiled in half the time."""

MAKING: Final = Path(__file__).parent / "small_models.py"


@dataclass(frozen=True, slots=True)
class Torch:
    """An interpreter with torch, and the models made with it."""

    python: Path
    models: Path

    def exercise(
        self, loader: Loader, target: str | Path = "", *, device: str = "cpu", inputs: str | Path = "", **more: object
    ) -> RunSpec:
        """Say how to exercise a model on the CPU."""
        return RunSpec(
            loader=loader,
            python=str(self.python),
            target=str(target),
            device=device,
            inputs=str(inputs),
            steps=3,
            **more,  # type: ignore[arg-type] # fields of it
        )


def run(
    exercise: RunSpec,
    *,
    variant: Variant | None = None,
    variables: Mapping[str, str] | None = None,
    directory: Path = APPLICATION,
    timeout: float = 50,
    compare: bool = False,
) -> RunResult:
    """Run one pass of one variant, the only one if none is named."""
    if variant is None:
        (variant,) = exercise.variants((exercise.device,))
    base = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PYTHONDONTWRITEBYTECODE": "1"}
    dispatch = ProcessStarter(base, "test")
    workload = Workload((), directory, variables or {}, timeout, exercise)
    return asyncio.run(dispatch.execute(workload, {}, Trace(), polite=False, variant=variant, compare=compare))


def make(python: Path, models: Path) -> Torch:
    """Make the models."""
    subprocess.run([python, "-B", "-W", "ignore", MAKING, models], check=True, capture_output=True)
    return Torch(python, models)
