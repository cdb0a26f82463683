"""What a model is used with: texts, and tensors, from files or made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from ..run_order import Foreign, RunOrder, Unfit

# Which types of a framework may be asked for by which names.
_TYPES = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "int8": "float32",
    "torchao-int8": "float32",
    "torchao-int4": "bfloat16",
    "bitsandbytes-int8": "float32",
}


def existing(path: str, what: str) -> Path:
    """Return a path where something is; raise `Unfit` if nothing is."""
    place = Path(path)
    if not place.exists():
        raise Unfit(f"{what} is not there: {path}")
    return place


def texts(job: RunOrder) -> list[str]:
    """Return the prompts, one for each line that is not empty."""
    content = existing(job.inputs, "the file with the inputs").read_text(encoding="utf-8")
    texts = [line for line in content.splitlines() if line.strip()]
    if not texts:
        raise Unfit(f"{job.inputs} has no text")
    return texts


def type_of(job: RunOrder, torch: ModuleType) -> object:
    """Return the type in which a model is loaded and fed; None if the loader decides."""
    return getattr(torch, _TYPES.get(job.precision, ""), None)


def tensors(job: RunOrder, torch: ModuleType) -> list[Foreign]:
    """Return the inputs as tensors: from the file, repeated or cut to the shape; or random ones of the shape."""
    if job.inputs == "random":
        if not job.sizes:
            raise Unfit("random inputs need a shape")
        found = [torch.randn(*sizes) for sizes in job.sizes]
    else:
        found = read_tensors(existing(job.inputs, "the file with the inputs"), torch)
        if job.sizes and len(job.sizes) != len(found):
            raise Unfit(f"{job.inputs} has {len(found)} tensors, the shape {job.shape} is for {len(job.sizes)}")
        found = [fitted(one, sizes) for one, sizes in zip(found, job.sizes)] if job.sizes else found
    wanted = type_of(job, torch)
    return [_moved(one, job, wanted) for one in found]


def _moved(tensor: Foreign, job: RunOrder, wanted: object) -> Foreign:
    moved = tensor.to(job.device)
    return moved.to(wanted) if wanted is not None and bool(moved.is_floating_point()) else moved


def fitted(tensor: Foreign, sizes: Sequence[int]) -> Foreign:
    """Return it repeated or cut to the sizes."""
    if int(tensor.dim()) != len(sizes):
        raise Unfit(f"a shape of {len(sizes)} sizes is for other inputs: theirs is {list(tensor.shape)}")
    fitted = tensor.repeat(*(-(-size // int(have)) for size, have in zip(sizes, tensor.shape)))
    return fitted[tuple(slice(size) for size in sizes)]


def read_tensors(path: Path, torch: ModuleType) -> list[Foreign]:
    """Return the tensors that a file holds."""
    if path.suffix == ".npy":
        import numpy  # noqa: ICN001, PLC0415 - only here

        return [torch.from_numpy(numpy.load(path, allow_pickle=False))]
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file  # noqa: PLC0415 - only here

        content = load_file(path)
    else:
        content = torch.load(path, map_location="cpu", weights_only=True)
    parts = list(content.values()) if isinstance(content, dict) else content
    found = list(parts) if isinstance(parts, (list, tuple)) else [parts]
    if not found or not all(isinstance(one, torch.Tensor) for one in found):
        raise Unfit(f"{path} holds something else than tensors")
    return found
