"""Observe: which unit of systemd a process is in, by its control group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

_LONGEST: Final = 1 << 16
"""Characters that are read."""


def innermost(cgroup: Path) -> str:
    """Return the service or scope that a process is in; empty if none."""
    try:
        with cgroup.open(encoding="utf-8", errors="replace", newline="\n") as stream:
            text = stream.read(_LONGEST)
    except OSError:
        return ""
    for line in text.split("\n"):
        parts = line.split(":", 2)[-1].split("/")
        unit = next((part for part in reversed(parts) if part.endswith((".service", ".scope"))), "")
        if unit:
            return unit
    return ""


def unit_of(cgroup: Path, units: Collection[str]) -> str | None:
    """Return which of these units a process is in; None if in none.  Raises OSError."""
    with cgroup.open(encoding="utf-8", errors="replace", newline="\n") as stream:
        text = stream.read(_LONGEST)
    parts = {part for line in text.split("\n") for part in line.split(":", 2)[-1].split("/")}
    return next((unit for unit in units if unit in parts), None)
