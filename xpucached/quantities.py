"""Sizes and durations as people write them, into bytes and seconds; and moments as kernels give them.  Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_SIZE: Final = re.compile(r"(?P<number>\d{1,18}(?:\.\d{1,9})?) ?(?P<unit>[a-z]*)", re.IGNORECASE | re.ASCII)
_DURATION: Final = re.compile(r"(?P<number>\d{1,12}(?:\.\d{1,9})?) ?(?P<unit>[a-z]*)(?u:\s*)", re.IGNORECASE | re.ASCII)

_BYTES: Final[dict[str, int]] = {
    "": 1,
    "b": 1,
    **{unit + tail: 1000**power for power, unit in enumerate("kmgt", start=1) for tail in ("", "b")},
    **{unit + "ib": 1024**power for power, unit in enumerate("kmgt", start=1)},
}

# Months and years are left out: they have no fixed length, and nobody should guess which one we took.
_SECONDS: Final = {
    "ms": 0.001,
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("w", "week", "weeks"), 604800.0),
}

_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)


def size(text: str) -> int:
    """Read a size as bytes: ``4096``, ``512k``, ``10MB`` (1000s), ``1.5GiB`` (1024s).

    Raises `ValueError` with a sentence that says what was expected.
    """
    match = _SIZE.fullmatch(text.strip())
    factor = _BYTES.get(match["unit"].lower()) if match else None
    if match is None or factor is None:
        message = f"not a size: {text[:40]!r}; expected a number and a unit, such as 512k, 10MB or 1GiB"
        raise ValueError(message)
    whole, _, fraction = match["number"].partition(".")
    # Integers, because 2**53 bytes is not the largest size that a file may have.
    return int(whole) * factor + int(fraction.ljust(9, "0")) * factor // 1_000_000_000


def duration(text: str) -> float:
    """Read a duration as seconds: ``90``, ``7d``, ``10m``, ``1h30m``, ``1.5 h``.

    Raises `ValueError` with a sentence that says what was expected.
    """
    given = text.strip()
    total, seen, at = 0.0, 0, 0
    while at < len(given):
        match = _DURATION.match(given, at)
        # A bare number is seconds, but only when it stands alone: ``1h30`` could mean either.
        bare = match is not None and not match["unit"] and (seen > 0 or match.end() < len(given))
        factor = _SECONDS.get(match["unit"].lower() or "s") if match else None
        if match is None or factor is None or bare:
            break
        total += float(match["number"]) * factor
        seen += 1
        at = match.end()
    if at < len(given) or not seen:
        message = f"not a duration: {text[:40]!r}; expected a number and a unit, such as 90s, 10m, 1h30m or 7d"
        raise ValueError(message)
    return total


def moment(nanoseconds: int) -> datetime:
    """Turn a kernel's time into ours; a forged one beyond the calendar becomes its end."""
    try:
        return _BEGINNING + timedelta(microseconds=nanoseconds // 1000)
    except OverflowError:
        return _BEGINNING if nanoseconds < 0 else datetime(9999, 1, 1, tzinfo=UTC)
