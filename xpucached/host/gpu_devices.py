"""Observe: the Intel GPUs that the kernel lists; reads sysfs and the table that the package ships."""

from __future__ import annotations

import csv
import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from xpucached.domain.host import Device
from xpucached.domain.names import Architecture
from xpucached.host.digests import told_of_file
from xpucached.host.roots import HERE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xpucached.domain.host import DriverAnswer
    from xpucached.host.roots import HostRoots

CPU = Architecture("cpu")

_TABLE = Path(__file__).resolve().parent.parent / "data" / "intel-gpu-archs.csv"
_MOST_DEVICES = 4096  # a machine has some hundred PCI functions; virtual ones may make it a thousand
_INTEL = 0x8086
_DISPLAY = 0x03
_NUMBER = re.compile(r"0x[0-9a-f]{1,8}")
_BRACKETED = re.compile(r"\[(0x[0-9a-fA-F]{4})\]")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One row of the table of known GPUs."""

    pci_id: str
    architecture: Architecture
    versions: tuple[str, ...]  #: IP versions of its steppings, ``20.1.4``
    name: str  #: what Intel calls it; may be empty
    product: str = ""  #: the family that it comes from, ``BMG``


@functools.cache
def known() -> Mapping[str, Gpu]:
    """Return the table of known GPUs by PCI id (``0xe20b``)."""
    with _TABLE.open(encoding="utf-8", newline="") as stream:
        rows = [
            Gpu(
                row["pci_id"],
                Architecture(row["architecture"]),
                tuple(row["versions"].split()),
                row["name"],
                row["product"],
            )
            for row in csv.DictReader(stream)
        ]
    return {row.pci_id: row for row in rows}


@functools.cache
def _by_version() -> Mapping[str, Architecture]:
    return {version: row.architecture for row in known().values() for version in row.versions}


@functools.cache
def _by_name() -> Mapping[str, Architecture]:
    """Map names to architectures, where a name has just one: ``Intel(R) Graphics`` says nothing."""
    found: dict[str, set[Architecture]] = {}
    for row in known().values():
        if row.name:
            found.setdefault(row.name, set()).add(row.architecture)
    return {name: next(iter(ones)) for name, ones in found.items() if len(ones) == 1}


def by_version(version: str) -> Architecture | None:
    """Return the generation of a GPU by its IP version (``20.1.0``); None if that is not known."""
    return _by_version().get(version)


def is_level_zero(answer: DriverAnswer) -> bool:
    """Return whether this is what a Level Zero driver says."""
    return "Level-Zero" in answer.platform


def is_gpu(answer: DriverAnswer) -> bool:
    """Return whether this is said of a GPU; Intel's OpenCL driver for GPUs calls itself NEO."""
    return is_level_zero(answer) or "NEO" in answer.version.split() or answer.platform.endswith(" Graphics")


def pci_id_of(answer: DriverAnswer) -> str | None:
    """Return the PCI id that a driver writes into the name of a device it knows no name for."""
    bracketed = _BRACKETED.search(answer.device)
    return bracketed.group(1).lower() if bracketed else None


def architecture(answer: DriverAnswer) -> Architecture:
    """Return the generation of a device; one that is not known stays as its version is written."""
    if is_gpu(answer):
        numbered = by_version(answer.version) if is_level_zero(answer) else None
        by_id = known().get(pci_id_of(answer) or "")
        by_name = _by_name().get(answer.device)
        return numbered or (by_id.architecture if by_id else None) or by_name or Architecture(answer.version)
    if answer.platform == "Intel(R) OpenCL" or "CPU Runtime for OpenCL" in answer.platform:
        return CPU
    return Architecture(answer.version)


def _line(path: Path) -> str:
    """Read the first line of a small kernel file; empty if it cannot be read.  Raises OSError as `told_of_file`."""
    try:
        with path.open("rb") as stream:
            return stream.readline(256).decode("utf-8", "replace").strip()
    except OSError as error:
        told_of_file(error)
        return ""


def _number(path: Path) -> int | None:
    text = _line(path).lower()
    return int(text, 16) if _NUMBER.fullmatch(text) else None


def _names(path: Path, prefix: str = "") -> list[str]:
    try:
        return sorted(one.name for one in path.iterdir() if one.name.startswith(prefix))
    except OSError as error:
        told_of_file(error)
        return []


def _driver(device: Path) -> str | None:
    """Name the kernel driver that a PCI device is bound to."""
    try:
        return (device / "driver").readlink().name
    except OSError:
        return None


def kernel(places: HostRoots = HERE) -> str:
    """Return the kernel's release."""
    return _line(places.proc / "sys/kernel/osrelease") or os.uname().release


def boot_id(places: HostRoots = HERE) -> str:
    """Return the id of this boot; empty where the kernel tells none."""
    return _line(places.proc / "sys/kernel/random/boot_id")


def gpus(places: HostRoots = HERE) -> tuple[Device, ...]:
    """Return the Intel GPUs in sysfs, virtual functions too, by PCI address; without what drivers say of them.

    A device that cannot be read is left out; one with an id that is not known has that id as its architecture.  Raises
    OSError where nothing can be opened now.
    """
    root = places.sysfs / "bus/pci/devices"
    found: list[Device] = []
    for address in _names(root)[:_MOST_DEVICES]:
        path = root / address
        kind, vendor, number = _number(path / "class"), _number(path / "vendor"), _number(path / "device")
        if kind is None or kind >> 16 != _DISPLAY or vendor != _INTEL or number is None:
            continue
        pci_id = f"0x{number:04x}"
        row = known().get(pci_id)
        driver = _driver(path)
        nodes = _names(path / "drm", "renderD")
        found.append(
            Device(
                name=row.name if row and row.name else f"Intel(R) Graphics [{pci_id}]",
                architecture=row.architecture if row else Architecture(pci_id),
                pci_address=address,
                pci_id=pci_id,
                kernel_driver=driver,
                kernel_driver_version=(_line(path / "driver/module/version") or kernel(places)) if driver else None,
                render_node=places.dev / "dri" / nodes[0] if nodes else None,
            )
        )
    return tuple(found)
