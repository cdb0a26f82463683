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
from xpucached.kinds.neo.trace import CompilerFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xpucached.domain.host import Device, Host
    from xpucached.kinds.neo.trace import Lookup

NAME: Final = KindName("neo")

_COMPILER: Final = re.compile(r"libigc\.so\.")
_FAMILIES: Final = {True: "Level Zero", False: "OpenCL"}


def targets(host: Host) -> tuple[Target, ...]:
    """Return what entries would be valid for now; see `Scanner.targets`.

    Nothing where there are several compilers: which one a driver loads is not known.
    """
    compiler = _compiler(host)
    if compiler is None:
        return ()
    return tuple(dict.fromkeys(_target(answer, compiler) for _, answer in _answers(host)))


def target_of(lookup: Lookup, host: Host) -> Target | None:
    """Return for what the entry is that a program asked for on this host; None if that cannot be said."""
    compiler = _compiler(host)
    if compiler is None or (compiler.size, compiler.modified) != (lookup.compiler.size, lookup.compiler.modified):
        return None
    found = {
        _target(answer, compiler)
        for device, answer in _answers(host)
        if gpu_devices.is_level_zero(answer) != lookup.opencl and _is_of(device, answer, lookup)
    }
    return found.pop() if len(found) == 1 else None


def architecture(target: Target) -> Architecture:
    """Return the generation of a target's device; see `Scanner.architecture`."""
    found = gpu_devices.architecture(DriverAnswer("Intel(R) OpenCL Graphics", target.device, "", target.toolchain))
    return found or Architecture(target.device)


def _compiler(host: Host) -> CompilerFile | None:
    found = {
        CompilerFile(one.size, int(one.modified.timestamp())) for one in host.driver if _COMPILER.match(one.target.name)
    }
    return found.pop() if len(found) == 1 else None


def _answers(host: Host) -> Iterator[tuple[Device, DriverAnswer]]:
    return ((device, one) for device in host.devices for one in device.answers if gpu_devices.is_gpu(one))


def _target(answer: DriverAnswer, compiler: CompilerFile) -> Target:
    family = _FAMILIES[gpu_devices.is_level_zero(answer)]
    return Target(NAME, family, answer.device, answer.driver, (("compiler", f"{compiler.size} {compiler.modified}"),))


def _is_of(device: Device, answer: DriverAnswer, lookup: Lookup) -> bool:
    """Return whether a trace is of this device."""
    pci_id = f"0x{lookup.device:04x}"
    told = device.pci_id or gpu_devices.pci_id_of(answer)
    if told is not None:
        return told == pci_id
    row = gpu_devices.known().get(pci_id)
    return row is not None and row.architecture == device.architecture
