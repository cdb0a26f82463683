"""The devices that somebody asks about: those of this host, or any of the known ones by the names that people use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from xpucached.domain.inspection import InspectedDevice
from xpucached.errors import RequestError
from xpucached.host import gpu_devices, product_names
from xpucached.inspection.acceptance import GpuRules, rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from xpucached.domain.host import Device
    from xpucached.domain.targets import Target

_NAMED = 12


class AskedDevice(Struct, frozen=True):
    """A device, and by which rules its driver takes code; None for a processor."""

    told: InspectedDevice
    rules: GpuRules | None


CPU = AskedDevice(InspectedDevice("processor", "cpu"), None)


def asked(texts: Iterable[str]) -> tuple[AskedDevice, ...]:
    """Return the devices that somebody names, one for each architecture.  Raises `RequestError`."""
    found: dict[str, AskedDevice] = {}
    for text in texts:
        if text.strip().lower() == "cpu":
            found.setdefault("cpu", CPU)
            continue
        gpus = product_names.named(text)
        if not gpus:
            known = ", ".join(sorted({gpu.architecture for gpu in gpu_devices.known().values()})[:_NAMED])
            raise RequestError(f"device: no GPU {text!r} is known", hint=f"a name (B580), a PCI id, cpu, or {known}, …")
        for gpu in gpus:
            name = product_names.spoken(gpu.name) if len(gpus) == 1 and gpu.name else text
            made = AskedDevice(_told(name, gpu, here=False), rules(gpu))
            found.setdefault(gpu.architecture, made)
    return tuple(found.values())


def here(versions: Sequence[str] = ()) -> tuple[AskedDevice, ...]:
    """Return the GPUs of this host, one for each architecture; ``versions`` are what their driver told."""
    found: dict[str, AskedDevice] = {}
    for device in gpu_devices.gpus():
        gpu = gpu_devices.known().get(device.pci_id or "")
        if gpu is not None:
            version = next((one for one in versions if one in gpu.versions), "")
            told = _told(product_names.spoken(device.name), gpu, here=True, version=version)
            found.setdefault(gpu.architecture, AskedDevice(told, rules(gpu, version)))
    return tuple(found.values())


def used(targets: Iterable[Target], met: Sequence[Device], versions: Sequence[str] = ()) -> tuple[AskedDevice, ...]:
    """Return the devices that these are for, as far as that is known.

    ``met`` are those that drivers offer here; of what is not among them, the name tells.
    """
    present = {one.told.architecture: one for one in here(versions)}
    found: dict[str, AskedDevice] = {}
    for target in targets:
        told = next((one for one in met if any(target.lineage == each.lineage for each in one.environments)), None)
        if told is not None and told.is_cpu:
            found["cpu"] = CPU
            continue
        named = product_names.architectures(target.device if told is None else told.architecture)
        if len(named) == 1 and named[0] not in found:
            found[named[0]] = present.get(named[0]) or asked(named)[0]
    return tuple(found.values())


def _told(name: str, gpu: gpu_devices.Gpu, *, here: bool, version: str = "") -> InspectedDevice:
    usual = gpu.versions[0] if gpu.versions else ""
    return InspectedDevice(name, gpu.architecture, version or usual, here, not version and len(gpu.versions) > 1)
