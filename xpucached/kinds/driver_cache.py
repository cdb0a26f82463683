"""The GPU driver's own compiler cache: a rebuild fills the one that the model's programs use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached.kinds.neo.targets import NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_HOMES: Final = ("HOME", "XDG_CACHE_HOME")
_NAMES: Final = ("NEO_CACHE_DIR", "NEO_CACHE_MAX_SIZE", "NEO_CACHE_PERSISTENT")


KIND: Final = NAME
"""The kind of its entries: they are made as well when the same programs are compiled for a cache above it."""


def of(variables: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return those of a program's variables that say where its driver caches."""
    # A directory that is named is all that counts: programs whose homes differ can share a compiler.
    names = _NAMES if variables.get("NEO_CACHE_DIR") else (*_HOMES, *_NAMES)
    return tuple((name, variables[name]) for name in names if name in variables)


def root(variables: Iterable[tuple[str, str]]) -> Path | None:
    """Return the directory that is named as the driver's cache, if one is."""
    named = dict(variables).get("NEO_CACHE_DIR")
    return Path(named) if named else None


def at(directory: Path) -> tuple[tuple[str, str], ...]:
    """Return the variables that make a driver cache in a directory."""
    return (("NEO_CACHE_DIR", str(directory)), ("NEO_CACHE_PERSISTENT", "1"))
