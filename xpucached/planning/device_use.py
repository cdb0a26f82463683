"""Decide: whether a run used a GPU, by the kernels in caches and by what the kernel counted.  Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from xpucached.domain.device_use import DeviceUse, GpuUse, GraphicsUse
from xpucached.domain.models import RanOn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from xpucached.domain.host import Device
    from xpucached.domain.targets import Target


def device_use(
    counts: Mapping[Target | None, int],
    devices: Iterable[Device],
    graphics: Iterable[Sequence[GraphicsUse]],
    engines: Iterable[Mapping[str, int]] = (),
) -> DeviceUse:
    """Sum up a variant's passes.

    ``counts`` are its entries by what they are for (None: not known), ``devices`` those that its programs meet,
    ``graphics`` what the kernel counted in each pass, ``engines`` by PCI address what shows that engines worked, of
    each pass, too: xe tells no time of what was looked at but once.
    """
    devices = tuple(devices)
    busy = {address for one in engines for address, spent in one.items() if spent}
    gpus: set[Target] = set()
    others: set[Target] = set()
    for device in devices:
        if device.pci_address:
            gpus.update(device.environments)
        elif device.is_cpu:
            others.update(device.environments)
    sums: dict[str, GraphicsUse] = {}
    for one in (each for of_pass in graphics for each in of_pass):
        before = sums.get(one.device, GraphicsUse(one.device, one.driver, 0.0, 0))
        most = max(before.memory, one.memory)
        sums[one.device] = GraphicsUse(one.device, one.driver, before.seconds + one.seconds, most)
    on_gpus = sum(number for target, number in counts.items() if target in gpus)
    on_others = sum(number for target, number in counts.items() if target in others - gpus)
    unplaced = sum(counts.values()) - on_gpus - on_others
    each = _each(counts, devices, sums, busy | {address for address, one in sums.items() if one.seconds > 0})
    return DeviceUse(on_gpus, on_others, unplaced, tuple(sums.values()), bool(busy), each)


def _each(
    counts: Mapping[Target | None, int], devices: Sequence[Device], sums: Mapping[str, GraphicsUse], busy: set[str]
) -> tuple[GpuUse, ...]:
    """Return the part of each GPU, where there are several.

    Entries are for all GPUs of a sort, so where there are more of it, they do not tell which was used.
    """
    found: list[GpuUse] = []
    for one in devices:
        number = sum(counts.get(target, 0) for target in one.environments)
        if one.is_cpu or not (one.pci_address or number):
            continue
        alike = sum(not each.is_cpu and not {*one.environments}.isdisjoint(each.environments) for each in devices)
        address = one.pci_address or ""
        row = sums.get(address)
        used: bool | None = None
        if address in busy or (number and alike == 1):
            used = True
        elif row is not None and any(other in busy and sums[other].driver == row.driver for other in sums):
            # Older drivers of the kernel count nothing, so only what they count for another one says something.
            used = False
        seconds = row.seconds if row is not None else 0.0
        found.append(GpuUse(one.name, one.architecture, address, number, max(1, alike), seconds, used))
    return tuple(found) if len(found) > 1 else ()


_FELL_BACK: Final = "Aten Op fallback from XPU to CPU happens"
_OPERATOR: Final = re.compile(r"The operator '([\w:.]{1,100})'? on the XPU backend is falling back to run on the CPU")
_NAMED: Final = 5


def fallbacks(outputs: Iterable[str]) -> tuple[str, ...]:
    """Return what torch printed of operators that ran on the CPU for want of a kernel."""
    text = "\n".join(outputs)
    names = sorted(set(_OPERATOR.findall(text)))
    if names:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return (f"torch ran these operators on the CPU: {', '.join(names[:_NAMED])}{more}; how many of all is unknown",)
    hint = "which and how many is unknown: --env PYTORCH_DEBUG_XPU_FALLBACK=1 names them"
    return (f"torch ran some operators on the CPU, {hint}",) if _FELL_BACK in text else ()


def ran_on(kind: str, use: DeviceUse) -> RanOn:
    """Return whether the work was done on the kind of device that it was meant for, such as ``xpu``.

    What is for a device of which nobody knows what it is may be for the one that was meant, so it is no proof that
    something else was used.
    """
    on_gpu = use.gpu_entries > 0 or use.worked
    if kind == "xpu":
        return RanOn.MEANT if on_gpu else RanOn.OTHER if use.only_cpu else RanOn.UNKNOWN
    if kind == "cpu":
        return RanOn.OTHER if on_gpu else RanOn.MEANT if use.only_cpu else RanOn.UNKNOWN
    return RanOn.UNKNOWN
