"""This machine: devices, drivers, processes, problems.  Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from xpucached.domain.environments import Environment
from xpucached.domain.names import Architecture


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU (or the CPU as an OpenCL device) and the environments it offers to programs now."""

    name: str
    architecture: Architecture
    pci_address: str | None = None  #: ``0000:03:00.0``
    pci_id: str | None = None  #: ``0xe20b``
    kernel_driver: str | None = None  #: ``xe``, ``i915``
    kernel_driver_version: str | None = None
    render_node: Path | None = None
    environments: tuple[Environment, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class DriverFile:
    """One file of the user-mode driver or its compiler."""

    path: Path
    target: Path  #: after symbolic links
    version: str | None
    size: int
    modified: datetime
    build_id: str | None
    package: str | None  #: ``name version``, where a package manager knows it


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is missing or wrong on this host: a stable code, what it costs, what to do."""

    code: str
    message: str
    hint: str = ""
    subject: str = ""  #: the file it is about, if it is about one


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What the installed drivers answered a fresh child."""

    environments: tuple[Environment, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class OtherDriver:
    """A driver that programs on this host do not use: unpacked in a folder, or one that pretends another GPU."""

    environments: tuple[Environment, ...]
    stamp: str  #: digest of its files and of what it pretends
    variables: Mapping[str, str]  #: what makes a program load it
    command: tuple[str, ...] = ()  #: what such a program's command begins with, if the driver needs its own C library
    device: str | None = None  #: the GPU that it pretends


@dataclass(frozen=True, slots=True)
class Process:
    """A live process, as far as it tells where it keeps a cache."""

    pid: int
    uid: int
    started: datetime
    name: str
    directory: Path | None
    variables: Mapping[str, str]
    libraries: tuple[Path, ...] = ()  #: shared objects that it has mapped


@dataclass(frozen=True, slots=True)
class Host:
    """This machine now."""

    surveyed: datetime
    boot: str  #: the kernel's boot id
    kernel: str  #: kernel release
    stamp: str  #: digest of the driver files: another stamp means another driver
    devices: tuple[Device, ...] = ()
    driver: tuple[DriverFile, ...] = ()
    environments: tuple[Environment, ...] = ()  #: what programs on this host will use now
    problems: tuple[Problem, ...] = ()

    @property
    def signature(self) -> str:
        """16 hex digits of the present environments together."""
        text = "\n".join(sorted(one.identity for one in self.environments))
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class DriverChange:
    """One line of the host's history: which environments came and which went."""

    at: datetime
    stamp: str
    appeared: tuple[Environment, ...]
    vanished: tuple[Environment, ...]


@dataclass(frozen=True, slots=True)
class Presence:
    """When an environment was first and last what this host offered."""

    environment: Environment
    first: datetime | None
    last: datetime | None
    present: bool
