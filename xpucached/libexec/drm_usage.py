"""What the kernel says of an open graphics device (Documentation/gpu/drm-usage-stats.rst): read as foreign text."""

from __future__ import annotations

from typing import NamedTuple

_LINES = 512  # of one description that are read
_LARGEST = 1 << 62
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}
_MEMORY = ("drm-resident-", "drm-memory-", "drm-total-")  # the first of these that a region has counts
_LOCAL = ("vram", "local")


class DrmClient(NamedTuple):
    """One client of a graphics driver, as one look saw it."""

    device: str  # its PCI address
    client: str
    driver: str
    engines: dict[str, int]  # nanoseconds for which each of them worked for it
    cycles: dict[str, tuple[int, int]]  # of each class of engines: those for it, and all
    memory: int  # bytes: of the device's own memory, or all where it has none


def read(text: str) -> DrmClient | None:
    """Read a description; None if it is no client's: without a driver and a number it cannot be counted once."""
    values: dict[str, str] = {}
    for line in text.splitlines()[:_LINES]:
        name, colon, value = line.partition(":")
        if colon and name.startswith("drm-"):
            values.setdefault(name, value.strip())
    driver, client = values.get("drm-driver", ""), values.get("drm-client-id", "")
    if not driver or not client.isdigit():
        return None
    engines = {
        name[len("drm-engine-") :]: _number(value)
        for name, value in values.items()
        if name.startswith("drm-engine-") and not name.startswith("drm-engine-capacity-")
    }
    cycles = {
        name[len("drm-cycles-") :]: (_number(value), _number(values.get(f"drm-total-cycles-{name[11:]}", "")))
        for name, value in values.items()
        if name.startswith("drm-cycles-")
    }
    return DrmClient(values.get("drm-pdev", "?")[:64], client, driver[:64], engines, cycles, _memory(values))


def _memory(values: dict[str, str]) -> int:
    regions: dict[str, int] = {}
    for prefix in _MEMORY:
        for name, value in values.items():
            if name.startswith(prefix):
                regions.setdefault(name[len(prefix) :], _number(value))
    local = [size for region, size in regions.items() if region.startswith(_LOCAL)]
    return min(sum(local or regions.values()), _LARGEST)


def _number(text: str) -> int:
    words = text.split()
    if not words or not (words[0].isascii() and words[0].isdigit()) or len(words[0]) > 19:  # noqa: PLR2004 - 64 bits
        return 0
    return min(int(words[0]) * _UNITS.get(words[1] if len(words) > 1 else "", 1), _LARGEST)


class GraphicsCounters:
    """What clients took of graphics devices over many looks, each client once however many descriptors it has."""

    def __init__(self, most: int) -> None:
        self.most = most  # clients that are counted
        self.worked: dict[tuple[str, str], int] = {}  # device and client to nanoseconds, or cycles
        self.drivers: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.memory: dict[str, int] = {}
        self._last: dict[tuple[str, str], tuple[float, DrmClient]] = {}

    def look(self, clients: list[DrmClient], now: float) -> None:
        """Take what one look saw, at this time in seconds."""
        memory: dict[str, int] = {}
        for one in {(each.device, each.client): each for each in clients}.values():
            key = (one.device, one.client)
            if key not in self.worked and len(self.worked) >= self.most:
                continue
            spent = sum(one.engines.values()) + sum(cycles for cycles, _ in one.cycles.values())
            self.worked[key] = max(self.worked.get(key, 0), min(spent, _LARGEST))
            self.drivers.setdefault(one.device, one.driver)
            self.seconds[one.device] = self.seconds.get(one.device, 0.0) + self._busy(key, one, now)
            memory[one.device] = memory.get(one.device, 0) + one.memory
        for device, size in memory.items():
            self.memory[device] = max(self.memory.get(device, 0), min(size, _LARGEST))

    def _busy(self, key: tuple[str, str], one: DrmClient, now: float) -> float:
        """Return the seconds for which engines worked since the last look at this client."""
        began, before = self._last.get(key, (now, None))
        self._last[key] = (now, one)
        known = before.engines if before is not None else {}
        busy = sum(max(0, spent - known.get(name, 0)) for name, spent in one.engines.items()) / 1e9
        cycles = before.cycles if before is not None else {}
        for name, (spent, total) in one.cycles.items() if not one.engines else ():
            was, all_was = cycles.get(name, (0, 0))
            if total > all_was > 0 and spent > was:
                # The share of the engine's cycles that were for it, of the time between.
                busy += min(1.0, (spent - was) / (total - all_was)) * (now - began)
        return busy

    def report(self) -> list[list[object]]:
        """Return for each device: its address, driver, seconds of its engines, and bytes at most."""
        return [
            [device, driver, self.seconds.get(device, 0.0), self.memory.get(device, 0)]
            for device, driver in self.drivers.items()
        ]
