"""The types in which a model works: by its own, by a context, or quantized while it is loaded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import cast

from ..run_order import Foreign, RunOrder, Unfit
from .inputs import type_of

AUTOCAST = "autocast-"


def context(job: RunOrder, torch: ModuleType) -> contextlib.AbstractContextManager[object]:
    """Return what each use happens in: `torch.autocast`, or nothing."""
    if job.precision.startswith(AUTOCAST):
        wanted = getattr(torch, job.precision[len(AUTOCAST) :])
        return cast("contextlib.AbstractContextManager[object]", torch.autocast(job.kind, dtype=wanted))
    return contextlib.nullcontext()


def refuse_quantizing(job: RunOrder, why: str) -> None:
    """Raise `Unfit` for a precision in which a loader quantizes nothing: it would run in another one."""
    if job.precision in _QUANTIZED:
        raise Unfit(f"{job.precision}: {why}")


def in_precision(module: Foreign, job: RunOrder, torch: ModuleType) -> Foreign:
    """Bring a module to the device and the precision."""
    quantized = _QUANTIZED.get(job.precision)
    if quantized is not None:
        return quantized(module, job, torch)
    moved = module.to(job.device)
    wanted = type_of(job, torch)
    return moved if wanted is None else moved.to(wanted)


def _int8(module: Foreign, job: RunOrder, torch: ModuleType) -> Foreign:
    if job.kind == "cpu" and hasattr(torch.ao.quantization, "quantize_dynamic"):
        quantize = cast("Foreign", torch.ao.quantization.quantize_dynamic)
        return quantize(module, {torch.nn.Linear}, dtype=torch.qint8)
    return _torchao_int8(module, job, torch)


def _torchao_int8(module: Foreign, job: RunOrder, _torch: ModuleType) -> Foreign:
    try:
        from torchao.quantization import Int8WeightOnlyConfig, quantize_  # noqa: PLC0415 - only here
    except ImportError as error:
        raise Unfit(f"{job.precision} on this device needs torchao in this interpreter: {error}") from error
    moved = module.to(job.device)
    quantize_(moved, Int8WeightOnlyConfig())
    return moved


def _torchao_int4(module: Foreign, job: RunOrder, torch: ModuleType) -> Foreign:
    try:
        from torchao.quantization import Int4WeightOnlyConfig, quantize_  # noqa: PLC0415 - only here
    except ImportError as error:
        raise Unfit(f"torchao-int4 needs torchao in this interpreter: {error}") from error
    # Which packing a kernel wants: those of Intel's GPUs, and the others'; processors have none in all releases.
    packing = {"cpu": "opaque", "xpu": "plain_int32"}.get(job.kind, "tile_packed_to_4d")
    # Kernels for four bits take no other type beside them.
    moved = module.to(job.device).to(torch.bfloat16)
    try:
        quantize_(moved, Int4WeightOnlyConfig(group_size=32, int4_packing_format=packing))
    except ValueError as error:
        raise Unfit(f"the torchao of this interpreter has no torchao-int4 for {job.kind}: {error}") from error
    return moved


def _bitsandbytes_int8(module: Foreign, job: RunOrder, torch: ModuleType) -> Foreign:
    """Replace each linear layer; weights are quantized when the layer comes to its device."""
    try:
        import bitsandbytes  # noqa: PLC0415 - only here
    except ImportError as error:
        raise Unfit(f"bitsandbytes-int8 needs bitsandbytes in this interpreter: {error}") from error
    for name, linear in list(module.named_modules()):
        if type(linear) is not torch.nn.Linear:
            continue
        parent, _, last = str(name).rpartition(".")
        layer = bitsandbytes.nn.Linear8bitLt(
            linear.in_features, linear.out_features, linear.bias is not None, has_fp16_weights=False
        )
        layer.weight = bitsandbytes.nn.Int8Params(linear.weight.data, requires_grad=False, has_fp16_weights=False)
        if linear.bias is not None:
            layer.bias = linear.bias
        setattr(module.get_submodule(parent), last, layer)
    return module.to(job.device)


_QUANTIZED: Mapping[str, Callable[[Foreign, RunOrder, ModuleType], Foreign]] = {
    "int8": _int8,
    "torchao-int8": _torchao_int8,
    "torchao-int4": _torchao_int4,
    "bitsandbytes-int8": _bitsandbytes_int8,
}
