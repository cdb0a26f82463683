"""How we behave towards others on the host: occasions, efforts, limits.  Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Struct

from xpucached.domain.bounds import DAY, Duration, Percent, Whole, Window
from xpucached.domain.names import AwareDatetime


class RunCause(StrEnum):
    """What made a run necessary; each has an effort of its own."""

    MANUAL = "manual"  #: somebody asked, and waits
    DRIVER = "driver-changed"
    BOOT = "boot"  #: found when the daemon started
    NEW = "new-model"
    CHANGED = "changed"  #: its workload, or what its program needs
    GAP = "gap"  #: entries were lost, or an earlier run failed


class RunPriority(Struct, frozen=True):
    """How much a run takes from others."""

    occasion: RunCause
    nice: int
    cpu_weight: int  #: of its control group; 100 is what everybody has
    io_weight: int
    idle_io: bool  #: reads and writes only when nobody else does
    waits: bool  #: for its window, and for the host to be calm
    pauses: bool  #: when others need the host


class ThrottlePolicy(Struct, frozen=True):
    """When runs that nobody waits for may start, and when they pause."""

    window: Annotated[tuple[int, int] | None, Window()] = None
    only_when_idle: bool = False
    cpu_pressure: Annotated[int | None, Percent()] = 60  #: of the time in which something waits for it
    memory_pressure: Annotated[int | None, Percent()] = 10
    io_pressure: Annotated[int | None, Percent()] = 40
    gpu_busy: Annotated[int | None, Percent()] = 20  #: of the time in which an engine works for others
    max_wait: Annotated[float, Duration(0, 7 * DAY)] = 3600.0  #: so long a run waits, and so long it may be paused
    isolate: bool = True  #: a control group for each child, where systemd gives one
    tasks: Annotated[int, Whole(16, 1_000_000)] = 4096  #: processes and threads of a child


class Waiting(Struct, frozen=True):
    """A model that is to be warmed as soon as this is the time for it."""

    since: AwareDatetime
    why: str


class Pressure(Struct, frozen=True):
    """What others feel, in percent; None is not known."""

    cpu: float | None = None
    memory: float | None = None
    io: float | None = None
    gpu: float | None = None  #: of the busiest device
