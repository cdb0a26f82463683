"""The interpreter with a real torch that tests start the worker with, and what they ask of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests import INSTANCE
from tests.support.loaded_torch import interpreter
from tests.support.runtimes import ONE_THREAD
from xpucached.domain.models import Workload
from xpucached.domain.workloads import Loader, RunSpec, Variant
from xpucached.processes.output import Trace
from xpucached.processes.supervised import ProcessStarter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from xpucached.processes.results import RunResult

APPLICATION: Final = Path(__file__).parent / "application"
"""Where the programs lie whose functions models name."""

COMPILING: Final = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",  # each one more would load a torch of its own
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",  # worth it from the second kernel on
    "TORCHINDUCTOR_VEC_ISA_OK": "0",  # or it compiles a program to find out, and half as many headers more
}
"""What lets a model be compiled in half the time."""

LOADED: Final = Path(__file__).parent / "loaded_torch.py"


@dataclass(frozen=True, slots=True)
class Torch:
    """An interpreter with torch, one that has loaded it already, and the models made with them.

    ``compiling`` has loaded the compiler, too, which takes longer than the rest of a small program with one.
    """

    python: Path
    loaded: Path
    compiling: Path
    models: Path

    def exercise(
        self,
        loader: Loader,
        target: str | Path = "",
        *,
        device: str = "cpu",
        inputs: str | Path = "",
        fresh: bool = False,
        **more: object,
    ) -> RunSpec:
        """Return how to exercise a model on the CPU; ``fresh`` in an interpreter that loads torch itself.

        So does every function of an application: whether it has loaded torch makes a difference there.
        """
        return RunSpec(
            loader=loader,
            python=str(self.python if fresh or loader is Loader.PYTHON else self.loaded),
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
    base = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PYTHONDONTWRITEBYTECODE": "1", **ONE_THREAD}
    dispatch = ProcessStarter(base, INSTANCE)
    workload = Workload((), directory, variables or {}, timeout, exercise)
    return asyncio.run(dispatch.execute(workload, {}, Trace(), polite=False, variant=variant, compare=compare))


@contextlib.contextmanager
def loaded(python: Path, place: Path, listens: Path) -> Iterator[Torch]:
    """Let torch be loaded, and the models be made, in a process from which others are forked."""
    models = place / "models"
    command = [str(python), "-B", "-W", "ignore", str(LOADED), str(models), str(listens)]
    # The compiler reads these when it is loaded.
    variables = os.environ | COMPILING
    with subprocess.Popen(
        command, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listens\n"
            compiling = interpreter(place / "compiling", listens, ("torch._inductor.compile_fx",))
            yield Torch(python, interpreter(place / "python", listens), compiling, models)
        finally:
            process.kill()
