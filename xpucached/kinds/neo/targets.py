"""What an entry of the GPU driver's cache is valid for: a device through OpenCL or Level Zero, a driver, its compiler.

None of it stands in an entry.  A trace names the device's PCI id, and size and time of the compiler's file; the rest is
what drivers on this host say.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from xpucached.domain.host import DriverAnswer
from xpucached.domain.names import Architecture, KindName
from xpucached.domain.targets import Target
from xpucached.host import gpu_devices
from xpucached.kinds.neo import discovery

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from xpucached.domain.host import Device, Host
    from xpucached.kinds.neo.trace import Lookup

NAME: Final = KindName("neo")

_COMPILER: Final = re.compile(r"libigc\.so\.")
_LEVEL_ZERO: Final = "libze_intel_gpu"
_FAMILIES: Final = {True: "Level Zero", False: "OpenCL"}


def targets(host: Host) -> tuple[Target, ...]:
    """Return what entries would be valid for now; see `Scanner.targets`.

    Which of several compilers a driver loads is not known: then entries are for all of them together, and a change of
    any one is a change for all.  Nothing where no compiler is seen, and for a driver that keeps nothing.
    """
    files = compilers(host)
    if not files:
        return ()
    return tuple(dict.fromkeys(_target(answer, files) for _, answer in _answers(host)))


def target_of(lookup: Lookup, host: Host) -> Target | None:
    """Return for what the entry is that a program asked for on this host; None if that cannot be said."""
    files = compilers(host)
    if (lookup.compiler.size, lookup.compiler.modified) not in files:
        return None
    found = {
        _target(answer, files)
        for device, answer in _answers(host)
        if gpu_devices.is_level_zero(answer) != lookup.opencl and _is_of(device, answer, lookup)
    }
    return found.pop() if len(found) == 1 else None


def is_opencl(target: Target) -> bool:
    """Return whether what is for a target was asked for through OpenCL, and not through Level Zero."""
    return target.family == _FAMILIES[False]


def architecture(target: Target) -> Architecture:
    """Return the generation of a target's device; see `Scanner.architecture`."""
    found = gpu_devices.architecture(DriverAnswer("Intel(R) OpenCL Graphics", target.device, "", target.toolchain))
    return found or Architecture(target.device)


def compilers(host: Host) -> list[tuple[int, int]]:
    """Return size and time of each compiler's file."""
    return sorted(
        {(one.size, int(one.modified.timestamp())) for one in host.driver if _COMPILER.match(one.target.name)}
    )


def _answers(host: Host) -> Iterator[tuple[Device, DriverAnswer]]:
    without = {one.target.name.startswith(_LEVEL_ZERO) for one in discovery.without_cache(host)}
    return (
        (device, one)
        for device in host.devices
        for one in device.answers
        if gpu_devices.is_gpu(one) and gpu_devices.is_level_zero(one) not in without
    )


def _target(answer: DriverAnswer, files: Iterable[tuple[int, int]]) -> Target:
    family = _FAMILIES[gpu_devices.is_level_zero(answer)]
    text = ", ".join(f"{size} {modified}" for size, modified in files)
    return Target(NAME, family, answer.device, answer.driver, (("compiler", text),))


def _is_of(device: Device, answer: DriverAnswer, lookup: Lookup) -> bool:
    """Return whether a trace is of this device."""
    pci_id = f"0x{lookup.device:04x}"
    told = device.pci_id or gpu_devices.pci_id_of(answer)
    if told is not None:
        return told == pci_id
    row = gpu_devices.known().get(pci_id)
    return row is not None and row.architecture == device.architecture
