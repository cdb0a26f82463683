"""This machine: devices, drivers, processes, problems.  Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from xpucached.domain.names import Architecture, AwareDatetime, ModelName
from xpucached.domain.targets import Target


class DriverAnswer(Struct, frozen=True, order=True):
    """What a driver says of one of its devices: the four strings by which programs know it."""

    platform: str
    device: str
    version: str
    driver: str


_CPU: Final = "cpu"


class Device(Struct, frozen=True):
    """A GPU (or the CPU as an OpenCL device), what drivers say of it, and what is valid for it now."""

    name: str
    architecture: Architecture
    pci_address: str | None = None  #: ``0000:03:00.0``
    pci_id: str | None = None  #: ``0xe20b``
    kernel_driver: str | None = None  #: ``xe``, ``i915``
    kernel_driver_version: str | None = None
    render_node: Path | None = None
    answers: tuple[DriverAnswer, ...] = ()
    environments: tuple[Target, ...] = ()  #: those of `Scanner.targets` of every kind

    @property
    def is_cpu(self) -> bool:
        """Whether it is the processor.  What is not, and has no PCI address, may be a GPU, as in WSL, or anything."""
        return self.pci_address is None and self.architecture == _CPU


class DriverFile(Struct, frozen=True, order=True):
    """One file of the user-mode driver or its compiler."""

    path: Path
    target: Path  #: after symbolic links
    version: str | None
    size: int
    modified: AwareDatetime
    build_id: str | None
    package: str | None  #: ``name version``, where a package manager knows it


AUTOMATIC: Final = "automatic-job-failed"
"""The code of a problem with what the daemon does by itself."""


class Problem(Struct, frozen=True):
    """Something that is missing or wrong on this host: a stable code, what it costs, what to do."""

    code: str
    message: str
    hint: str = ""
    subject: str = ""  #: the file it is about, if it is about one


CODES: Final = frozenset(
    {
        *(AUTOMATIC, "bad-settings", "catalog-failing", "catalog-rebuilt", "clock-jumped"),
        *("conflict", "models-away"),
        *("compiling-while-serving", "digest-changed", "driver-files-silent", "driver-missing", "driver-silent"),
        *("foreign-store", "kernel-driver-unbound", "metrics-port", "names-silent", "no-driver"),
        *("no-driver-cache", "no-gpu", "no-render-access", "no-such-user", "not-reloaded", "not-watched"),
        *("probe-crashed", "probe-failed", "probe-garbled", "probe-timed-out", "push-failed", "push-overdue"),
        "quota-too-small",
        *("restart-needed", "revocations-unknown", "revoked-entries", "state-not-kept"),
        *("store-failing", "store-fault", "store-full"),
        *("store-read-only", "store-unreadable", "too-many-stores", "unclear-store", "unsafe-runtime"),
        *("worker-failing", "workers-forbidden"),
        *("level-zero-error", "no-level-zero", "no-level-zero-driver", "no-opencl", "no-opencl-driver", "opencl-error"),
    }
)
"""The codes that there are."""


def given_by(signature: str) -> str:
    """Return what stands in a host's signature for the variables that programs were given; empty for none."""
    return signature.partition("-")[2]


class ProbeReport(Struct, frozen=True):
    """What the installed drivers answered a fresh child."""

    answers: tuple[DriverAnswer, ...] = ()
    problems: tuple[Problem, ...] = ()


class OtherDriver(Struct, frozen=True):
    """A driver to compile with: one in use, one that is unpacked in a folder, or one that pretends another GPU."""

    environments: tuple[Target, ...]
    stamp: str  #: digest of its files and of what it pretends
    variables: Mapping[str, str]  #: what makes a program load it
    command: tuple[str, ...] = ()  #: what such a program's command begins with, if the driver needs its own C library
    device: str | None = None  #: the GPU that it pretends
    models: frozenset[ModelName] = frozenset()  #: those that are led to it by variables of their own
    devices: tuple[Device, ...] = ()  #: those of one that is not in use
    driver: tuple[DriverFile, ...] = ()  #: the files of one that is not in use


class Process(Struct, frozen=True):
    """A live process, as far as it tells where it keeps a cache."""

    pid: int
    uid: int
    started: AwareDatetime
    name: str
    directory: Path | None
    variables: Mapping[str, str]
    libraries: tuple[Path, ...] = ()  #: shared objects that it has mapped
    known: bool = True  #: whether these are all; else it has too many, and may have any


class DriverInUse(Struct, frozen=True):
    """A driver that some models are led to by variables of their own, and what their programs meet."""

    variables: Mapping[str, str]  #: those of `kinds.variables.LEADING`, as the first of these models has them
    models: tuple[ModelName, ...]
    stamp: str  #: digest of its files
    devices: tuple[Device, ...] = ()
    driver: tuple[DriverFile, ...] = ()
    environments: tuple[Target, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def id(self) -> str:
        """16 hex digits of the variables: it stays when the driver is upgraded in its place."""
        text = "\0".join(f"{name}={value}" for name, value in sorted(self.variables.items()))
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def digest_of_variables(variables: Mapping[str, str]) -> str:
    """Return what stands for variables that all programs are given; empty if there are none."""
    text = "\0".join(f"{name}={value}" for name, value in sorted(variables.items()))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest() if variables else ""


class Host(Struct, frozen=True):
    """This machine now, as programs meet it whose own variables lead to no other driver."""

    surveyed: AwareDatetime
    boot: str  #: the kernel's boot id
    kernel: str  #: kernel release
    stamp: str  #: digest of the driver files: another stamp means another driver
    devices: tuple[Device, ...] = ()
    driver: tuple[DriverFile, ...] = ()
    environments: tuple[Target, ...] = ()  #: what programs on this host will use now
    problems: tuple[Problem, ...] = ()
    drivers: tuple[DriverInUse, ...] = ()  #: further ones, to which models' own variables lead
    variables: str = ""  #: 8 hex digits of the variables that the configuration gives all programs; empty: none
    signature: str = ""  #: 16 hex digits of the present environments together, and after a dash those variables

    def __post_init__(self) -> None:
        """Derive the signature, whatever was given."""
        text = "\n".join(sorted(one.fingerprint for one in self.environments))
        digest = hashlib.blake2b(text.encode(), digest_size=8)
        given = f"-{self.variables}" if self.variables else ""
        force_setattr(self, "signature", digest.hexdigest() + given)

    def seen_by(self, model: ModelName) -> Self:
        """Return this machine as a model's programs meet it."""
        return self.seen_with(next((one for one in self.drivers if model in one.models), None))

    def seen_with(self, driver: DriverInUse | None) -> Self:
        """Return this machine as programs meet it that are led to this driver; None is the one of all others."""
        if driver is None:
            return replace(self, drivers=()) if self.drivers else self
        return replace(
            self,
            stamp=driver.stamp,
            devices=driver.devices,
            driver=driver.driver,
            environments=driver.environments,
            problems=driver.problems,
            drivers=(),
        )

    def gave(self, signature: str) -> bool:
        """Return whether programs were given the same variables when the host had this signature."""
        return given_by(signature) == self.variables

    @property
    def answers(self) -> tuple[DriverAnswer, ...]:
        """What drivers say of all devices."""
        return tuple(dict.fromkeys(answer for device in self.devices for answer in device.answers))

    @property
    def offered(self) -> tuple[Target, ...]:
        """What any program on this host meets, whatever its variables."""
        some = (self.environments, *(one.environments for one in self.drivers))
        return tuple(dict.fromkeys(environment for environments in some for environment in environments))

    @property
    def drivers_met(self) -> tuple[object, ...]:
        """Return what is another as soon as any program on this host meets another driver."""
        return (self.offered, self.stamp, *((one.models, one.stamp) for one in self.drivers))


class DriverChange(Struct, frozen=True):
    """One line of the host's history: which environments came and which went."""

    at: AwareDatetime
    stamp: str
    appeared: tuple[Target, ...]
    vanished: tuple[Target, ...]


class Presence(Struct, frozen=True):
    """When an environment was first and last what this host offered."""

    environment: Target
    first: AwareDatetime | None
    last: AwareDatetime | None
    present: bool
    drivers: frozenset[str] = frozenset()  #: `DriverInUse.id` of those that offered it; empty text: the host's own
