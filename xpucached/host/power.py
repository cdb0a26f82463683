"""Observe: whether this machine runs on its battery; reads sysfs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpucached.host.roots import HERE

if TYPE_CHECKING:
    from pathlib import Path

    from xpucached.host.roots import HostRoots

_MOST = 64
_LONGEST = 64


def on_battery(places: HostRoots = HERE) -> bool:
    """Return whether a battery supplies this machine: one discharges, and nothing else feeds it.

    Batteries of a mouse or a headset are none of the machine's.
    """
    discharging = False
    try:
        supplies = sorted((places.sysfs / "class/power_supply").iterdir())[:_MOST]
    except OSError:
        return False
    for supply in supplies:
        if _read(supply / "scope") == "Device":
            continue
        if _read(supply / "type") == "Battery":
            discharging = discharging or _read(supply / "status") == "Discharging"
        elif _read(supply / "online") == "1":
            return False
    return discharging


def _read(path: Path) -> str:
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            return file.read(_LONGEST).strip()
    except OSError:
        return ""
