"""Door: times as clocks of this place show them.  Daemons write all of theirs in UTC; reads the time zone."""

from __future__ import annotations

import re
import time
from typing import Final

_TIME: Final = re.compile(r"\b(?:(\d{4})-(\d\d)-(\d\d) )?(\d\d):(\d\d)(:\d\d)? UTC\b")


def local(text: str, now: float | None = None) -> str:
    """Return a text in which each time that ends in ``UTC`` is one of this place, with the name of its zone.

    ``now`` (seconds, default: the clock's) is of the day that a time without a date is of.
    """
    if not time.timezone and not time.daylight:
        return text
    today = time.gmtime(now)[:3]

    def here(found: re.Match[str]) -> str:
        date = tuple(map(int, found.group(1, 2, 3))) if found[1] else today
        try:
            there = time.localtime(86400 * _days(*date) + 3600 * int(found[4]) + 60 * int(found[5]))
        except (OverflowError, ValueError, OSError):
            return found[0]
        day = "%Y-%m-%d " if found[1] or there[:3] != today else ""
        return time.strftime(f"{day}%H:%M{found[6] or ''} %Z", there)

    return _TIME.sub(here, text)


def _days(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01; `calendar` has the same, and takes long to load.  Raises `ValueError`."""
    if not (0 < month <= 12 and 0 < day <= 31):  # noqa: PLR2004 - a calendar's
        raise ValueError(f"no day: {year}-{month}-{day}")
    # Years begin in March here, so that the day that may be missing is the last.
    year, month = (year, month - 3) if month > 2 else (year - 1, month + 9)  # noqa: PLR2004 - as above
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day - 1 - 719468
