"""See what a model did: where it ran, and what it gave."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator, Mapping

from .run_order import Foreign, Invalid, RunOrder, offers, torch_of


def wait(job: RunOrder) -> None:
    """Wait until the device has done what it was given."""
    torch = sys.modules.get("torch")
    if torch is not None and job.kind != "cpu" and offers(torch, job.kind):
        getattr(torch, job.kind).synchronize()


def tensors_in(value: object, depth: int = 0) -> Iterator[Foreign]:
    """Yield the tensors in a value."""
    torch = sys.modules.get("torch")
    if torch is None or depth > 4:  # noqa: PLR2004 - nobody nests results deeper
        return
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from tensors_in(one, depth + 1)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_in(one, depth + 1)


def _parameters() -> dict[str, int]:
    """Return the bytes of all living modules' parameters and buffers, by the type of their device."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    seen: dict[int, tuple[str, int]] = {}
    for one in gc.get_objects():
        # By its type: what pretends to be a module (a proxy, a lazy import) would come to life when it is asked.
        if not issubclass(type(one), torch.nn.Module):
            continue
        with contextlib.suppress(Exception):
            for tensor in [*one.parameters(recurse=False), *one.buffers(recurse=False)]:
                seen[id(tensor)] = (tensor.device.type, tensor.numel() * tensor.element_size())
    sums: dict[str, int] = {}
    for kind, size in seen.values():
        sums[kind] = sums.get(kind, 0) + size
    return sums


def must_be_finite(value: object) -> None:
    """Raise `Invalid` if a value's tensors hold what is no number."""
    torch = sys.modules.get("torch")
    for tensor in tensors_in(value):
        # A tensor on "meta" has no values.
        if (
            torch is not None
            and str(tensor.device) != "meta"
            and bool(tensor.is_floating_point())
            and not bool(torch.isfinite(tensor).all())
        ):
            raise Invalid("its outputs are not finite")


def ran_where(job: RunOrder, result: object, places: Mapping[str, int]) -> tuple[str, str, list[str], int | None]:
    """Return whether the work was done on the device it was meant for: verdict, device, evidence, peak memory.

    ``places`` is where another program said that its weights are, if it did the work.
    """
    evidence: list[str] = []
    votes: list[bool] = []
    parameters = dict(places) or _parameters()
    total = sum(parameters.values())
    if total:
        evidence += [f"{size} bytes of parameters live on {kind}" for kind, size in sorted(parameters.items())]
        votes.append(parameters.get(job.kind, 0) * 2 >= total)
    outputs = sorted({str(tensor.device.type) for tensor in tensors_in(result)})
    if outputs and job.loader != "diffusers":
        evidence.append(f"outputs live on {', '.join(outputs)}")
        # A result may be fetched to the host, so there it says nothing against a device that has the parameters.
        if job.kind in outputs or not total:
            votes.append(job.kind in outputs)
    torch, memory = sys.modules.get("torch"), None
    if torch is not None and job.kind != "cpu" and offers(torch, job.kind):
        memory = int(getattr(torch, job.kind).max_memory_allocated())
        evidence.append(f"{memory} bytes were allocated on {job.kind} at most")
        votes.append(memory > 0)
    if not votes:
        return "unknown", "", evidence, memory
    if all(votes):
        return "meant", _device_name(job), evidence, memory
    return "other", ", ".join(sorted(parameters) or outputs), evidence, memory


def _device_name(job: RunOrder) -> str:
    torch = sys.modules.get("torch")
    if torch is None or job.kind == "cpu":
        return "cpu"
    part = getattr(torch, job.kind)
    number = int(part.current_device())
    return f"{job.kind}:{number} {part.get_device_name(number)}"


def devices(job: RunOrder) -> list[str]:
    """Return one device of each distinct environment."""
    torch = torch_of(job)
    if job.kind == "cpu":
        return ["cpu"]
    part = getattr(torch, job.kind)
    found: dict[str, str] = {}
    for number in range(int(part.device_count())):
        known = part.get_device_properties(number)
        words = ("name", "platform_name", "driver_version", "version", "major", "minor")
        found.setdefault(repr([getattr(known, word, None) for word in words]), f"{job.kind}:{number}")
    return list(found.values())
