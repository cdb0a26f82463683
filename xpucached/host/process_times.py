"""Observe: which processes there are, and when each began, by clocks that hold whatever the clock on the wall says."""

from __future__ import annotations

import contextlib
import math
import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import psutil

from xpucached.host.roots import HERE
from xpucached.processes import live_threads

if TYPE_CHECKING:
    from xpucached.host.roots import HostRoots

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_LONGEST: Final = 1 << 16
_OF_KERNEL: Final = 0x00200000  # PF_KTHREAD of the kernel's sched.h


def pids() -> list[int]:
    """Return the numbers of all processes that we can see."""
    return sorted(map(int, filter(str.isdigit, os.listdir("/proc"))))


def read(path: str) -> bytes:
    """Return a short file that the kernel writes when it is read.  Raises OSError."""
    # Not by pathlib and a stream, nor by psutil: all processes are looked at each time that a store is.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _LONGEST)
    finally:
        os.close(descriptor)


def uid(pid: int) -> int:
    """Return whose a process is.  Raises OSError and IndexError."""
    return int(read(f"/proc/{pid}/status").partition(b"\nUid:")[2].split(None, 1)[0])


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What the kernel says in one line of a process."""

    ended: bool  #: and only its exit status is left
    leader_ended: bool  #: its first thread has ended, and others work on
    parent: int
    of_kernel: bool  #: a thread of the kernel's own, which runs no program
    began: float  #: seconds since boot
    touched: tuple[bytes, ...]  #: how often it met memory for the first time, and how much it has: no mapping without


def facts(line: bytes) -> ProcessFacts:
    """Read ``/proc/PID/stat``.  Raises IndexError and ValueError."""
    # Its name may hold anything, parentheses too; numbers follow behind the last one.
    fields = line.rpartition(b")")[2].split()
    of_kernel, began = bool(int(fields[6]) & _OF_KERNEL), int(fields[19]) / _TICKS
    ended = live_threads.has_ended(fields)
    touched = (fields[7], fields[9], fields[20])
    return ProcessFacts(ended, fields[0] == b"Z" and not ended, int(fields[1]), of_kernel, began, touched)


def started(pid: int, places: HostRoots = HERE) -> float | None:
    """Return when a process began, in seconds since boot; None if it is gone."""
    try:
        return facts(read(f"{places.proc}/{pid}/stat")).began
    except (OSError, ValueError, IndexError):
        return None


def moment(began: float) -> datetime:
    """Return when so many seconds since boot had passed, by the clock as it is set now.

    psutil remembers of a process what the clock said at the first look, and it may have been set since.
    """
    boot = math.floor(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))  # whole seconds, to be the same each time
    return datetime.fromtimestamp(boot + began, UTC)


def family(pid: int) -> frozenset[int]:
    """Return a process and all that descend from it."""
    with contextlib.suppress(psutil.Error):
        return frozenset({pid, *(one.pid for one in psutil.Process(pid).children(recursive=True))})
    return frozenset({pid})
