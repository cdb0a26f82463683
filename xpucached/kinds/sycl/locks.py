"""Observe and act: the locks of a SYCL store, ours and the runtime's, and how old they are."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from xpucached import quantities
from xpucached.kinds import fs
from xpucached.kinds.sycl import makers
from xpucached.kinds.sycl.makers import Maker

if TYPE_CHECKING:
    from collections.abc import Iterator

AGE: Final = timedelta(minutes=10)
"""A write takes milliseconds.  A lock of this age is dead, whoever made it."""

YOUNG: Final = timedelta(seconds=5)
"""Below this age a lock is believed even if no live program is known that could have made it."""

OURS: Final = b"xpucached "
"""How the locks that we make begin; the runtime's own are empty."""

_SOMEBODY: Final = Maker(0, 0, 0, "")
"""An xpucached that did not say which."""


moment: Final = quantities.moment


def age(status: os.stat_result, now: datetime, writer_since: datetime | None) -> timedelta | None:
    """Return the age of a lock that was left behind; None while somebody may hold it."""
    passed = passed_since(status.st_mtime_ns, now)
    if passed >= AGE:
        return passed
    # Whether another user's programs live was not asked: who made a lock is its owner.
    mine = status.st_uid == os.geteuid()
    if passed <= -AGE:
        # The clock was set back since, or the server of the files has another one: how old it is cannot be known, only
        # for how long it has been seen.
        watched = _watched(status)
        return watched if watched >= AGE or (mine and writer_since is None) else None
    nobody = mine and (writer_since is None or now - passed < writer_since)
    return passed if nobody and passed >= YOUNG else None


_first: dict[tuple[int, int, int, int], float] = {}
"""When each lock from the future was first seen, by a clock that nobody sets."""

_remembering: Final = threading.Lock()

_FIRST: Final = 4096
"""So many are remembered; those that were seen first are forgotten first."""


def _watched(status: os.stat_result) -> timedelta:
    """Return for how long a lock has been seen as it is."""
    now = time.monotonic()
    with _remembering:
        since = _first.setdefault(_identity(status), now)
        if len(_first) > _FIRST:
            _first.pop(next(iter(_first)))
    return timedelta(seconds=now - since)


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def young(status: os.stat_result) -> bool:
    """Return whether a lock may have been made since the look that found one left behind."""
    passed = passed_since(status.st_mtime_ns, datetime.fromtimestamp(time.time(), UTC))
    return _identity(status) not in _first if passed < timedelta() else passed < YOUNG


def passed_since(modified: int, now: datetime) -> timedelta:
    """Return how much time has passed at least since a kernel's time; less than none for one that is still to come.

    What was made before the clock was set forward looks so much older than it is.
    """
    passed = now - moment(modified)
    return passed if passed < timedelta() else max(passed - _ahead(), timedelta())


def _offset() -> tuple[float, float]:
    """Return by how much the clock is ahead of the time since boot, which nobody sets, and that time."""
    since = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - since, since


_offsets: Final = deque([_offset()])
"""By how much it was ahead, and until when that may have been so: what was so within `AGE`, the newest last."""

_DRIFT: Final = 1.0
"""Seconds; by less clocks are put right all the time."""


def _ahead() -> timedelta:
    """Tell by how much the clock was set forward within `AGE`, and since this was first asked.

    When it was set is not known better than between two questions.
    """
    offset, since = _offset()
    with _remembering:
        before, _ = _offsets.pop()
        _offsets.append((before, since))
        if abs(offset - before) >= _DRIFT:
            _offsets.append((offset, since))
        while _offsets[0][1] < since - AGE.total_seconds():
            _offsets.popleft()
        ahead = offset - min(one for one, _ in _offsets)
    return timedelta(seconds=ahead if ahead >= _DRIFT else 0.0)


def take(leaf: int, slot: str) -> bool:
    """Make the runtime's lock, with our name in it so that a successor can tell it from a program's."""
    try:
        fs.appear(leaf, slot + ".lock", OURS + f"{makers.ourselves()}\n".encode())
    except FileExistsError:
        return False
    return True


def of_ours(leaf: int, name: str) -> Maker | None:
    """Return the xpucached that made a lock; None for anybody else's.  Of an earlier version it is not known which."""
    try:
        with fs.regular_file(leaf, name) as (descriptor, _):
            return _maker(fs.read(descriptor, 256))
    except OSError:
        return None


def _maker(content: bytes) -> Maker | None:
    if not content.startswith(OURS):
        return None
    return makers.parse(content.removeprefix(OURS).decode("ascii", "replace")) or _SOMEBODY


def left_behind(maker: Maker, modified: int, now: datetime) -> bool:
    """Return whether what an xpucached made, at a kernel's time, is nobody's any more.

    One of another host or container cannot be seen from here: there, what it made is judged by its age alone.
    """
    return maker.gone is True or passed_since(modified, now) >= AGE


@contextlib.contextmanager
def inherited(leaf: int, slot: str) -> Iterator[bool]:
    """Tell whether a lock was left behind by an xpucached, and see that no other one finishes at once what it began."""
    name = slot + ".lock"
    with contextlib.ExitStack() as stack:
        try:
            descriptor, status = stack.enter_context(fs.regular_file(leaf, name))
            maker = _maker(fs.read(descriptor, 256))
            _hold(descriptor)
            there = os.stat(name, dir_fd=leaf, follow_symlinks=False)
            same = (there.st_dev, there.st_ino) == (status.st_dev, status.st_ino)
            mine = same and maker is not None and left_behind(maker, there.st_mtime_ns, datetime.now(UTC))
        except (FileNotFoundError, BlockingIOError):
            mine = False
        yield mine


def _hold(descriptor: int) -> None:
    """Hold a file against other daemons until it is closed.  Raise BlockingIOError if another one holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        # This file system has none of these, or not for who only reads: then only the look before the work counts.
        return
