"""Observe and act: the locks of a SYCL store, ours and the runtime's, and how old they are."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Final

from xpucached.kinds.sycl import files

AGE: Final = timedelta(minutes=10)
"""A write takes milliseconds.  A lock of this age is dead, whoever made it."""

YOUNG: Final = timedelta(seconds=5)
"""Below this age a lock is believed even if no live program is known that could have made it."""

_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)

OURS: Final = b"xpucached "
"""How the locks that we make begin; the runtime's own are empty."""


def moment(nanoseconds: int) -> datetime:
    """Turn a kernel's time into ours; a forged one beyond the calendar becomes its end."""
    try:
        return _BEGINNING + timedelta(microseconds=nanoseconds // 1000)
    except OverflowError:
        return _BEGINNING if nanoseconds < 0 else datetime(9999, 1, 1, tzinfo=UTC)


def age(status: os.stat_result, now: datetime, writer_since: datetime | None) -> timedelta | None:
    """Give the age of a lock that was left behind; None while somebody may hold it."""
    made = moment(status.st_mtime_ns)
    passed = now - made
    if passed >= AGE:
        return passed
    if passed <= -AGE:
        # The clock was set back since: how old it is cannot be known, but it was not made just now.
        return timedelta(0)
    # Whether another user's programs live was not asked: who made a lock is its owner.
    nobody = status.st_uid == os.geteuid() and (writer_since is None or made < writer_since)
    return passed if nobody and passed >= YOUNG else None


def take(leaf: int, slot: str) -> bool:
    """Make the runtime's lock, with our name in it so that a successor can tell it from a program's."""
    try:
        files.appear(leaf, slot + ".lock", OURS + b"%d\n" % os.getpid())
    except FileExistsError:
        return False
    return True


def of_ours(leaf: int, name: str) -> int | None:
    """Give the process id in a lock that an xpucached made; None for anybody else's."""
    try:
        with files.regular_file(leaf, name) as (descriptor, _):
            content = files.read(descriptor, 64)
    except OSError:
        return None
    digits = content.removeprefix(OURS).strip()
    return int(digits) if content.startswith(OURS) and digits.isdigit() else None
