"""Observe: what others on this host feel: the kernel's pressure figures, and the GPU engines that work for them."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from typing import TYPE_CHECKING, Final

from xpucached.domain.throttling import Pressure
from xpucached.host.roots import HERE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from xpucached.host.roots import HostRoots

_SOME: Final = re.compile(r"^some avg10=(\d+(?:\.\d+)?) ", re.MULTILINE)
_LONGEST: Final = 1 << 16
_OPEN_OF_ONE: Final = 5000
_OPEN: Final = 100_000
"""Descriptors that are looked at each time, of one process and of all."""
_ENGINE: Final = re.compile(r"^drm-engine-(?!capacity)([\w-]+):\s+(\d+) ns$", re.MULTILINE)
_CYCLES: Final = re.compile(r"^drm-(cycles|total-cycles)-([\w-]+):\s+(\d+)$", re.MULTILINE)
_FIELD: Final = re.compile(r"^drm-(pdev|client-id):\s+(\S+)$", re.MULTILINE)


class PressureMeter:
    """Measures what others feel; GPUs between one look and the next, so the first look knows nothing of them."""

    def __init__(self, places: HostRoots = HERE) -> None:
        self._places = places
        self._before: dict[tuple[str, str, str], tuple[float, float]] | None = None

    def look(self, without: Collection[int] = ()) -> Pressure:
        """Look; the processes in ``without`` are not others.

        The kernel lets us read what GPUs do for our own processes, and as root for all; nobody else's is known.
        """
        pressure = self._places.proc / "pressure"
        return Pressure(
            _pressure(pressure / "cpu"), _pressure(pressure / "memory"), _pressure(pressure / "io"), self._gpu(without)
        )

    def _gpu(self, without: Collection[int]) -> float | None:
        now = time.monotonic()
        spent: dict[tuple[str, str, str], tuple[float, float]] = {}
        for text in _descriptions(self._places.proc, without):
            fields = dict(_FIELD.findall(text))
            for engine, told in _engines(text, now).items():
                key = (fields.get("pdev", "?"), fields.get("client-id", "?"), engine)
                # A client that several descriptors share is told once by each.
                spent[key] = max(spent.get(key, told), told)
        before, self._before = self._before, spent
        if before is None:
            return None
        shares: dict[tuple[str, str], float] = {}  # of each client: that of the engine that worked most for it
        for (device, client, engine), (worked, of) in spent.items():
            was, then = before.get((device, client, engine), (worked, of))
            if of > then:
                shares[device, client] = max(shares.get((device, client), 0.0), (worked - was) / (of - then))
        devices: dict[str, float] = {}
        for (device, _), share in shares.items():
            devices[device] = devices.get(device, 0.0) + share
        return min(100.0, max(devices.values(), default=0.0) * 100)


def _pressure(path: Path) -> float | None:
    """Read the share of the last ten seconds in which something waited, in percent; None where no kernel tells."""
    try:
        match = _SOME.search(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return float(match[1]) if match else None


def _engines(text: str, now: float) -> dict[str, tuple[float, float]]:
    """Return of each engine how much it worked so far, and of how much: both in seconds, or in cycles of its clock.

    The xe driver counts cycles.  The GPU's clock rests, or begins anew, while the machine sleeps, and some go round in
    an hour, so it tells nothing but what was between two looks.
    """
    cycles = {(kind, engine): int(number) for kind, engine, number in _CYCLES.findall(text)}
    counted: dict[str, tuple[float, float]] = {
        engine: (worked, cycles["total-cycles", engine])
        for (kind, engine), worked in cycles.items()
        if kind == "cycles" and ("total-cycles", engine) in cycles
    }
    return counted | {name: (int(number) / 1e9, now) for name, number in _ENGINE.findall(text)}


def _descriptions(proc: Path, without: Collection[int]) -> Iterator[str]:
    """Yield what the kernel says of every open graphics device of others; of what is beyond our bounds, nothing."""
    left = _OPEN
    with contextlib.suppress(OSError):
        for name in os.listdir(proc):
            if name.isdigit() and int(name) not in without:
                some = list(itertools.islice(_of_process(proc / name), min(_OPEN_OF_ONE, left)))
                left -= len(some)
                yield from filter(None, some)


def _of_process(place: Path) -> Iterator[str]:
    """Yield what is said of each descriptor that a process has; nothing of one that is no graphics device."""
    with contextlib.suppress(OSError), os.scandir(place / "fd") as numbers:
        for one in numbers:
            said = ""
            with contextlib.suppress(OSError, ValueError):
                if os.readlink(one.path).startswith("/dev/dri/"):  # noqa: PTH115 - many of them
                    with (place / "fdinfo" / one.name).open(encoding="ascii") as stream:
                        said = stream.read(_LONGEST)
            yield said
