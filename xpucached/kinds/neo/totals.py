"""The numbers that the driver keeps in a store: the bytes of all entries, and how often it found what it looked for.

Pure.
"""

from __future__ import annotations

import struct
from typing import Final

from xpucached.domain.stores import Lookups

_TOTAL: Final = struct.Struct("<Q")
_STATS: Final = struct.Struct("<QQQ")
_FORMAT: Final = 1
_MOST: Final = (1 << 62) - 1
"""More lookups than this nobody made, and the catalog counts no more."""

_LARGEST: Final = (1 << 64) - 1

TOTAL_SIZE: Final = _TOTAL.size
STATS_SIZE: Final = _STATS.size


def total(data: bytes) -> int:
    """Read what the driver believes that all entries have together; what is missing of eight bytes is zero to it."""
    return int(_TOTAL.unpack(data[:TOTAL_SIZE].ljust(TOTAL_SIZE, b"\0"))[0])


def total_bytes(size: int) -> bytes:
    """Write such a total as the driver does; files with holes, or a forged one, may add up to more than it counts."""
    return _TOTAL.pack(min(size, _LARGEST))


def lookups(data: bytes) -> Lookups | None:
    """Read a file of counters; None if it is not of the form that is known."""
    if len(data) != STATS_SIZE:
        return None
    hits, misses, form = _STATS.unpack(data)
    return Lookups(hits, misses) if form == _FORMAT and max(hits, misses) <= _MOST else None
