"""Observe: when a process began, by clocks that hold whatever the clock on the wall was set to since."""

from __future__ import annotations

import math
import os
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from xpucached.host.roots import HERE

if TYPE_CHECKING:
    from xpucached.host.roots import HostRoots

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_LONGEST: Final = 1 << 16


def started(pid: int, places: HostRoots = HERE) -> float | None:
    """Return when a process began, in seconds since boot; None if it is gone."""
    try:
        with (places.proc / str(pid) / "stat").open("rb") as stream:
            # Its name may hold anything, parentheses too; numbers follow behind the last one.
            return int(stream.read(_LONGEST).rpartition(b")")[2].split()[19]) / _TICKS
    except (OSError, ValueError, IndexError):
        return None


def moment(began: float) -> datetime:
    """Return when so many seconds since boot had passed, by the clock as it is set now.

    psutil remembers of a process what the clock said at the first look, and it may have been set since.
    """
    boot = math.floor(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))  # whole seconds, to be the same each time
    return datetime.fromtimestamp(boot + began, UTC)
