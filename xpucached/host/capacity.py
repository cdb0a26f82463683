"""Observe: what this machine, or the part of it that we were given, has left; reads /proc and the control group."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from xpucached.host.roots import HERE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xpucached.host.roots import HostRoots

_STRAINED: Final = 20.0
"""Per cent of the last ten seconds in which something waited for memory or the disk: beyond it we slow down."""


def cores(places: HostRoots = HERE) -> int:
    """Return how many processors' time we may use: those that we may run on, less if our control group has a quota."""
    count = len(os.sched_getaffinity(0))
    for group in _groups(places):
        quota, _, period = _text(group / "cpu.max").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            count = min(count, math.ceil(int(quota) / max(1, int(period))))
    return max(1, count)


def memory_left(places: HostRoots = HERE) -> int:
    """Return how many bytes a new process could take: of the machine, and of every control group above us."""
    left: int = psutil.virtual_memory().available
    for group in _groups(places):
        most, used = _text(group / "memory.max").strip(), _text(group / "memory.current").strip()
        if most.isdigit() and used.isdigit():
            left = min(left, int(most) - int(used))
    return max(0, left)


def strained(places: HostRoots = HERE) -> bool:
    """Return whether programs wait for memory or for the disk (PSI); False where the kernel does not measure it."""
    return any(_waiting(places.proc / "pressure" / what) > _STRAINED for what in ("memory", "io"))


def _waiting(path: Path) -> float:
    for line in _text(path).splitlines():
        if line.startswith("full "):
            for field in line.split():
                name, _, value = field.partition("=")
                if name == "avg10":
                    try:
                        return float(value)
                    except ValueError:
                        return 0.0
    return 0.0


def _groups(places: HostRoots) -> Iterator[Path]:
    """Yield the directories of our control group and of those above it (version 2)."""
    line = next((one for one in _text(places.proc / "self/cgroup").split("\n") if one.startswith("0::/")), None)
    if line is None:
        return
    root = places.sysfs / "fs/cgroup"
    path = Path(line.removeprefix("0::/"))
    if ".." in path.parts:
        return
    for part in (path, *path.parents):
        yield root / part


def _text(path: Path) -> str:
    """Read a small kernel file; empty if it cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(4096).decode("ascii", "replace")
    except OSError:
        return ""
