"""Programs that torch saved: TorchScript, and what was exported."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

from ..run_order import RunOrder, Subject, Unfit, torch_of
from .inputs import existing, tensors, type_of
from .precision import AUTOCAST, context, refuse_quantizing


def _tensor_subject(module: Callable[..., object], job: RunOrder, torch: ModuleType) -> Subject:
    inputs = tensors(job, torch)

    def call() -> object:
        with torch.no_grad(), context(job, torch):
            return module(*inputs)

    return Subject(call)


def torchscript(job: RunOrder) -> Subject:
    """Load a file of TorchScript; one use is a forward pass."""
    torch = torch_of(job)
    module = torch.jit.load(str(existing(job.target, "the model")), map_location=job.device).eval()
    refuse_quantizing(job, "a saved program has its precision: quantize it before it is saved, and use as-saved")
    wanted = type_of(job, torch)
    return _tensor_subject(module if wanted is None else module.to(wanted), job, torch)


def export(job: RunOrder) -> Subject:
    """Load an exported program; one use is a forward pass."""
    torch = torch_of(job)
    if job.precision not in {"", "as-saved", "float32"} and not job.precision.startswith(AUTOCAST):
        raise Unfit("a saved program has its precision: export it in that one, and use as-saved")
    program = torch.export.load(existing(job.target, "the model"))
    if job.kind != "cpu":
        program = importlib.import_module("torch.export.passes").move_to_device_pass(program, job.device)
    module = program.module()
    return _tensor_subject(torch.compile(module) if job.compile else module, job, torch)
