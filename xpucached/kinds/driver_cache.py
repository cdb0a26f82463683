"""The GPU driver's own compiler cache: a rebuild fills the one that the model's programs use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_NAMES: Final = ("HOME", "XDG_CACHE_HOME", "NEO_CACHE_DIR", "NEO_CACHE_MAX_SIZE", "NEO_CACHE_PERSISTENT")


def of(variables: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return those of a program's variables that say where its driver caches."""
    return tuple((name, variables[name]) for name in _NAMES if name in variables)


def at(directory: Path) -> tuple[tuple[str, str], ...]:
    """Return the variables that make a driver cache in a directory."""
    return (("NEO_CACHE_DIR", str(directory)), ("NEO_CACHE_PERSISTENT", "1"))
