"""Decide: with how much effort a run goes, whether it may start now, and whether it must pause.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xpucached.domain.models import WarmReason
from xpucached.domain.throttling import RunCause, RunPriority

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xpucached.domain.throttling import Pressure, ThrottlePolicy

_OCCASIONS: Final[Mapping[WarmReason, RunCause]] = {
    WarmReason.MANUAL: RunCause.MANUAL,
    WarmReason.DRIVER: RunCause.DRIVER,
    WarmReason.NEVER: RunCause.NEW,
    WarmReason.CHANGED: RunCause.CHANGED,
    WarmReason.PROGRAM: RunCause.CHANGED,
    WarmReason.LOST: RunCause.GAP,
    WarmReason.RETRY: RunCause.GAP,
}

_EFFORTS: Final = {
    run_priority.occasion: run_priority
    for run_priority in (
        RunPriority(RunCause.MANUAL, 0, 100, 100, idle_io=False, waits=False, pauses=False),
        # Everything on this host is cold: whoever starts now compiles it all himself, which costs others more.
        RunPriority(RunCause.BOOT, 5, 50, 50, idle_io=False, waits=True, pauses=True),
        RunPriority(RunCause.DRIVER, 5, 50, 50, idle_io=False, waits=True, pauses=True),
        RunPriority(RunCause.NEW, 10, 20, 20, idle_io=True, waits=True, pauses=True),
        RunPriority(RunCause.CHANGED, 10, 20, 20, idle_io=True, waits=True, pauses=True),
        RunPriority(RunCause.GAP, 15, 10, 10, idle_io=True, waits=True, pauses=True),
    )
}

_IDLE: Final = 1.0
"""Percent: what a host that does nothing still shows."""

_DAY: Final = 24 * 60


def run_priority(reason: WarmReason, *, booting: bool = False) -> RunPriority:
    """Return the effort of a run with this reason; ``booting`` says that the daemon has just started."""
    occasion = _OCCASIONS[reason]
    if booting and occasion is not RunCause.MANUAL:
        occasion = RunCause.BOOT
    return _EFFORTS[occasion]


def is_open(throttle: ThrottlePolicy, minute: int) -> bool:
    """Return whether runs may start at this minute after midnight, local time.  A window may go over midnight."""
    if throttle.window is None:
        return True
    begin, end = throttle.window
    return (minute - begin) % _DAY < (end - begin) % _DAY


def strained(pressure: Pressure, throttle: ThrottlePolicy, *, starting: bool) -> str:
    """Return what speaks against running now; empty if nothing does.

    While a run goes on (not ``starting``) the processor does not count: it is shared by weight, and what waits for it
    is mostly the run itself.
    """
    idle = throttle.only_when_idle and starting
    limits = (
        ("the processor", "something waits for it", pressure.cpu, throttle.cpu_pressure if starting else None),
        ("memory", "something waits for it", pressure.memory, throttle.memory_pressure),
        ("the disk", "something waits for it", pressure.io, throttle.io_pressure),
        ("a GPU", "it works for others", pressure.gpu, throttle.gpu_busy),
    )
    for name, what, value, limit in limits:
        most = _IDLE if idle else limit
        if value is not None and most is not None and value > most:
            return f"{name} is busy: {what} {value:.0f} % of the time ({most:g} % are let pass)"
    return ""
