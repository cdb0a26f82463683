"""Decide: with how much effort a run goes, whether it may start now, and whether it must pause.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xpucached.domain import Effort, Occasion, WarmReason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xpucached.domain import Manners, Strain

_OCCASIONS: Final[Mapping[WarmReason, Occasion]] = {
    WarmReason.MANUAL: Occasion.MANUAL,
    WarmReason.DRIVER: Occasion.DRIVER,
    WarmReason.NEVER: Occasion.NEW,
    WarmReason.CHANGED: Occasion.CHANGED,
    WarmReason.PROGRAM: Occasion.CHANGED,
    WarmReason.LOST: Occasion.GAP,
    WarmReason.RETRY: Occasion.GAP,
}

_EFFORTS: Final = {
    effort.occasion: effort
    for effort in (
        Effort(Occasion.MANUAL, 0, 100, 100, idle_io=False, waits=False, pauses=False),
        # Everything on this host is cold: whoever starts now compiles it all himself, which costs others more.
        Effort(Occasion.BOOT, 5, 50, 50, idle_io=False, waits=True, pauses=True),
        Effort(Occasion.DRIVER, 5, 50, 50, idle_io=False, waits=True, pauses=True),
        Effort(Occasion.NEW, 10, 20, 20, idle_io=True, waits=True, pauses=True),
        Effort(Occasion.CHANGED, 10, 20, 20, idle_io=True, waits=True, pauses=True),
        Effort(Occasion.GAP, 15, 10, 10, idle_io=True, waits=True, pauses=True),
    )
}

_IDLE: Final = 1.0
"""Percent: what a host that does nothing still shows."""

_DAY: Final = 24 * 60


def effort(reason: WarmReason, *, booting: bool = False) -> Effort:
    """Give the effort of a run with this reason; ``booting`` says that the daemon has just started."""
    occasion = _OCCASIONS[reason]
    if booting and occasion is not Occasion.MANUAL:
        occasion = Occasion.BOOT
    return _EFFORTS[occasion]


def is_open(manners: Manners, minute: int) -> bool:
    """Tell whether runs may start at this minute after midnight, local time.  A window may go over midnight."""
    if manners.window is None:
        return True
    begin, end = manners.window
    return (minute - begin) % _DAY < (end - begin) % _DAY


def strained(strain: Strain, manners: Manners, *, starting: bool) -> str:
    """Say what speaks against running now; empty if nothing does.

    While a run goes on (not ``starting``) the processor does not count: it is shared by weight, and what waits for it
    is mostly the run itself.
    """
    idle = manners.only_when_idle and starting
    limits = (
        ("the processor", "something waits for it", strain.cpu, manners.cpu_pressure if starting else None),
        ("memory", "something waits for it", strain.memory, manners.memory_pressure),
        ("the disk", "something waits for it", strain.io, manners.io_pressure),
        ("a GPU", "it works for others", strain.gpu, manners.gpu_busy),
    )
    for name, what, value, limit in limits:
        most = _IDLE if idle else limit
        if value is not None and most is not None and value > most:
            return f"{name} is busy: {what} {value:.0f} % of the time ({most:g} % are let pass)"
    return ""
