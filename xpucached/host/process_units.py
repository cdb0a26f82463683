"""Observe: which unit of systemd a process is in, by its control group."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LONGEST: Final = 1 << 16
"""Characters that are read."""

_UNIT: Final = re.compile(r"[A-Za-z0-9:_.@\\-]+\.(?:service|scope)")


def unit_of(cgroup: Path) -> str:
    """Return the service or scope that a process is in: of the host's manager, or of our own user's; empty if none.

    What lies below a unit is made, and called, by whoever runs there.  Raises OSError.
    """
    with cgroup.open(encoding="utf-8", errors="replace", newline="\n") as stream:
        text = stream.read(_LONGEST)
    return next(filter(None, map(_unit, text.split("\n"))), "")


def _unit(line: str) -> str:
    number, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    if number != "0" and controllers != "name=systemd":
        return ""
    units: Iterator[str] = (part for part in path.split("/") if _UNIT.fullmatch(part))
    found = next(units, "")
    return next(units, found) if found == f"user@{os.getuid()}.service" else found
