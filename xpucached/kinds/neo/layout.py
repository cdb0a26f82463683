"""How the files of the GPU driver's cache are called, and where in a store they lie.  Pure."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from xpucached.domain.names import EntryKey

TOTAL: Final = "config.file"
"""What the driver believes that all entries have together, in bytes; it is also the lock of the whole store."""

STATS: Final = "stats"
"""Counters of hits and misses, at the root and in each directory (since 26.14, where a variable asks for them)."""

INTERFACES: Final = {".cl_cache": "OpenCL", ".l0_cache": "Level Zero", ".ocloc_cache": "ocloc"}
"""Through which interface an entry was asked for, by how its name ends; ocloc compiles without a device."""

SUFFIXES: Final = tuple(INTERFACES)
"""How the names of entries end."""

ENTRY: Final = re.compile(r"([0-9a-f]{16})(\.cl_cache|\.l0_cache|\.ocloc_cache)\Z")
LEVEL: Final = re.compile(r"[0-9a-f]\Z")
"""The first two digits of a name are directories since 26.05."""

TEMPORARY: Final = re.compile(r"cl_cache\.[A-Za-z0-9]{6}\Z")
"""An entry that is being written; who dies meanwhile leaves it for ever."""

TRACE: Final = re.compile(r"([0-9a-f]{16})\.(?:trace|input)\Z")
"""What a run left that was asked to tell which entries it looks for."""

DEPTH: Final = 2
"""So many directories an entry has above it, or none."""


class EntryPlace(Struct, frozen=True):
    """An entry's file, by its path below the root."""

    hash: str  #: what the driver made of all that decides about the program
    suffix: str
    flat: bool  #: as drivers up to 26.01 look for it
    misplaced: bool = False  #: no driver looks for it here


def place(path: str) -> EntryPlace | None:
    """Return what a file is, by its path below the root; None if it is no entry's."""
    *above, name = path.split("/")
    match = ENTRY.match(name)
    if match is None or len(above) not in (0, DEPTH) or not all(map(LEVEL.match, above)):
        return None
    return EntryPlace(match[1], match[2], flat=not above, misplaced=bool(above) and above != list(match[1][:DEPTH]))


def key(path: str) -> EntryKey | None:
    """Return to which entry a file belongs: each is one file."""
    return EntryKey(path) if place(path) is not None else None


def counted(path: str) -> bool:
    """Return whether the driver counts a file, and evicts it: by what its path holds, two directories deep."""
    return path.count("/") <= DEPTH and any(suffix in path for suffix in SUFFIXES)
