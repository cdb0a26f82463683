"""Decide: whether a run used a GPU, by the kernels in caches and by what the kernel counted.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpucached.domain.models import DeviceUse, GraphicsUse, RanOn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from xpucached.domain.host import Device
    from xpucached.domain.targets import Target


def device_use(
    counts: Mapping[Target | None, int],
    devices: Iterable[Device],
    graphics: Iterable[Sequence[GraphicsUse]],
    *,
    worked: bool = False,
) -> DeviceUse:
    """Sum up a variant's passes.

    ``counts`` are its entries by what they are for (None: not known), ``devices`` those that its programs meet,
    ``graphics`` what the kernel counted in each pass, ``worked`` whether engines were seen to work: xe tells no time
    of what was looked at but once.
    """
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
    return DeviceUse(on_gpus, on_others, unplaced, tuple(sums.values()), worked)


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
