"""Libraries that a run's processes had mapped: SYCL runtimes, and drivers.  Pure."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct


class SyclRuntime(Struct, frozen=True):
    """One build of the SYCL runtime."""

    library: Path  #: the runtime itself
    build: str  #: its GNU build id, or else 32 hex digits of its content: another number is another build
    layout: int  #: which version of a program's description it reads


class Libraries(Struct, frozen=True):
    """What the processes of a run were seen to have mapped, of what decides about the cache."""

    runtimes: tuple[SyclRuntime, ...] = ()
    drivers: tuple[Path, ...] = ()  #: OpenCL and Level Zero drivers
    further: tuple[Path, ...] = ()  #: of these, the ones to which no variable of the model led
