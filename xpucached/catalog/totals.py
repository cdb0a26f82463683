"""Record: sums of what files claim to have, as numbers that can be told."""

from __future__ import annotations

from typing import Final

_MOST: Final = (1 << 63) - 1
"""As much as one file may claim.  Many claim more together than any reader of JSON takes for a number."""


def whole(total: float) -> int:
    """Return a sum of bytes."""
    return min(max(0, int(total)), _MOST)
