"""Observe: this machine now, put together from sysfs, the driver's files and what the drivers answered."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from xpucached.domain.host import Device, Host, Problem
from xpucached.host.drivers import driver_files, stamp
from xpucached.host.gpu_devices import architecture, boot_id, gpus, is_gpu, is_level_zero, kernel, known, pci_id_of
from xpucached.host.roots import HERE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from xpucached.domain.host import DriverAnswer, DriverFile, ProbeReport
    from xpucached.host.roots import HostRoots

_KERNEL_DRIVERS = ("xe", "i915")
_SHUT = "no-render-access"
_ONLY_FOR_GPUS = ("no-level-zero", "no-level-zero-driver")


def survey(
    report: ProbeReport,
    variables: Mapping[str, str],
    now: datetime,
    places: HostRoots = HERE,
    *,
    files: tuple[DriverFile, ...] | None = None,
) -> Host:
    """Put together what this machine offers: its devices, what drivers say of them, its driver, and what is wrong.

    ``report`` is the answer of `ask` under the same ``variables``; ``now`` is when this look began.  ``files`` is what
    `driver_files` gave before the question: a driver that is replaced meanwhile then shows as a change at the next
    look.  Without it the files are looked at now.
    """
    release = kernel(places)
    files = driver_files(variables, places) if files is None else files
    present = gpus(places)
    devices = _devices(present, tuple(dict.fromkeys(report.answers)))
    return Host(
        surveyed=now,
        boot=boot_id(places),
        kernel=release,
        stamp=stamp(files, release),
        devices=devices,
        driver=files,
        problems=_problems(report.problems, devices, has_gpu=bool(present)),
    )


def reach(present: Iterable[Device]) -> frozenset[tuple[object, ...]]:
    """Return which GPUs are there, and whether programs can reach them: what a driver says hangs on that."""
    return frozenset(
        (one.pci_address, one.kernel_driver, one.render_node, any(problem.code == _SHUT for problem in _wrong(one)))
        for one in present
    )


def _devices(present: Sequence[Device], answers: Sequence[DriverAnswer]) -> tuple[Device, ...]:
    """Return each GPU what drivers say of it, and add the devices that no GPU on the PCI bus explains."""
    owned: list[list[DriverAnswer]] = [[] for _ in present]
    left: list[DriverAnswer] = []
    # Level Zero first: it tells the generation, and after that the other backends are known by the device's name.
    for answer in sorted(answers, key=lambda one: not is_level_zero(one)):
        owners = _owners(answer, present) or [
            index for index, mine in enumerate(owned) if any(one.device == answer.device for one in mine)
        ]
        for index in owners:
            owned[index].append(answer)
        if not owners:
            left.append(answer)
    devices = [
        replace(device, name=mine[0].device, answers=tuple(mine)) if mine else device
        for device, mine in zip(present, owned, strict=True)
    ]
    # One GPU that our table does not know and one device that no GPU explains are the same thing.
    strangers = [
        index
        for index, device in enumerate(devices)
        if device.pci_id not in known() and _usable(device) and not owned[index]
    ]
    unexplained = [one for one in left if is_gpu(one)]
    if len(strangers) == 1 and len({one.device for one in unexplained}) == 1:
        index = strangers[0]
        devices[index] = replace(
            devices[index],
            name=unexplained[0].device,
            architecture=architecture(unexplained[0]),
            answers=tuple(unexplained),
        )
        left = [one for one in left if one not in unexplained]
    groups: dict[str, list[DriverAnswer]] = {}
    for answer in left:
        groups.setdefault(answer.device, []).append(answer)
    devices += [
        Device(name=name, architecture=architecture(group[0]), answers=tuple(group)) for name, group in groups.items()
    ]
    return tuple(devices)


def _usable(device: Device) -> bool:
    """Return whether programs can use a GPU as far as the kernel is concerned."""
    return device.kernel_driver in _KERNEL_DRIVERS


def _owners(answer: DriverAnswer, present: Sequence[Device]) -> list[int]:
    """Return the GPUs of which a driver says this: several, if they are alike."""
    if not is_gpu(answer):
        return []
    usable = [(index, device) for index, device in enumerate(present) if _usable(device)]
    pci_id = pci_id_of(answer)
    if pci_id is not None:
        return [index for index, device in usable if device.pci_id == pci_id]
    named = [index for index, device in usable if device.name == answer.device]
    generation = architecture(answer)
    alike = [index for index, device in usable if device.architecture == generation]
    # Names are shared between generations, and the table's name may differ from the driver's: both together, or one.
    return [index for index in named if index in alike] or alike or named


def _problems(reported: Iterable[Problem], devices: Sequence[Device], *, has_gpu: bool) -> tuple[Problem, ...]:
    """Return what is missing or wrong, each thing once."""
    problems: list[Problem] = []
    offered = [answer for device in devices for answer in device.answers]
    for device in devices:
        problems += _wrong(device)
    for problem in reported:
        # Without a GPU nothing is lost by a missing GPU driver.
        if has_gpu or problem.code not in _ONLY_FOR_GPUS:
            problems.append(problem)
    if not has_gpu and not any(is_gpu(one) for one in offered):
        cost = (
            "programs use the Intel CPU device" if offered else "the host's own driver offers nothing to warm models on"
        )
        problems.append(Problem("no-gpu", f"no Intel GPU is in this machine: {cost}"))
    return tuple(dict.fromkeys(problems))


def _wrong(device: Device) -> list[Problem]:
    """Return what is wrong with one GPU."""
    if device.pci_address is None:
        return []
    who = f"GPU {device.pci_address} ({device.name})"
    if not _usable(device):
        held = f"is held by {device.kernel_driver}" if device.kernel_driver else "has no kernel driver"
        return [
            Problem(
                "kernel-driver-unbound",
                f"{who} {held}: programs cannot use it and nothing is warmed for it",
                "load the kernel driver (xe or i915), unless the GPU is given to a virtual machine",
            )
        ]
    problems: list[Problem] = []
    node = device.render_node
    if node is None or not os.access(node, os.R_OK | os.W_OK):
        there = node is not None and os.access(node, os.F_OK)
        what = f"this user may not open {node}" if there else "it has no render node"
        problems.append(
            Problem(
                "no-render-access",
                f"{who}: {what}: nothing can be warmed for it here",
                "add the user to the group that owns /dev/dri/renderD*, usually render",
            )
        )
    if not device.answers:
        problems.append(
            Problem(
                "no-driver",
                f"no OpenCL or Level Zero driver offers {who}: programs cannot use it and nothing is warmed for it",
                "install the user-mode driver (libze-intel-gpu1, intel-opencl-icd) of a version that knows this GPU",
            )
        )
    return problems
