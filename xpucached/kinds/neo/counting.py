"""Observe: what is in a store as its driver counts it, and whether the driver's own number is right."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from xpucached.domain.stores import Lookups
from xpucached.kinds import fs, listing
from xpucached.kinds.neo import layout, totals

log = logging.getLogger(__name__)

_DEPTH: Final = 2
_PATIENCE: Final = 10
_PAUSE: Final = 0.005
"""Seconds, and how often: who holds the lock writes for a few milliseconds."""

_LITTER: Final = 600.0
"""Seconds after which nobody writes on at a file that takes milliseconds to write."""

_MOST_LITTER: Final = 10_000
"""So many of these files are named at a time: somebody may make millions."""


@dataclass(slots=True)
class Counted:
    """What is in a store."""

    sure: bool  #: whether the driver counts just that: links and directories may be counted otherwise
    size: int = 0  #: bytes that the driver counts
    entries: int = 0
    flat: int = 0  #: entries as drivers up to 26.01 look for them
    blocked: bool = False  #: whether something stands where the driver needs a directory or an entry
    litter: list[str] = field(default_factory=list)  #: what programs left that died while they wrote
    traces: int = 0  #: files that runs left which were asked to tell what they look for


def count(root: int, path: str, now: datetime) -> Counted:
    """Count what is in a store, two directories deep.  Raises OSError."""
    found = Counted(sure=not any(suffix in path for suffix in layout.SUFFIXES))
    _count(root, "", found, now, os.fstat(root).st_dev, 0)
    return found


def _count(here: int, above: str, found: Counted, now: datetime, device: int, depth: int) -> None:
    for one in listing.entries(here):
        path = above + one.name
        try:
            status = one.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        level = depth < _DEPTH and all(map(layout.LEVEL.match, path.split("/")))
        directory = stat.S_ISDIR(status.st_mode)
        place = layout.place(path)
        if directory and depth < _DEPTH:
            try:
                with fs.directory_in(here, one.name, device) as below:
                    _count(below, path + "/", found, now, device, depth + 1)
            except FileNotFoundError:
                continue
            except OSError:
                # What the driver finds there is not known.
                found.sure = False
        found.blocked = found.blocked or (level and not directory and not _leads_on(here, one.name))
        found.blocked = found.blocked or (place is not None and directory)
        if not stat.S_ISREG(status.st_mode):
            found.sure = found.sure and not (layout.counted(path) and not directory)
            continue
        if layout.counted(path):
            found.size += status.st_size
        if place is not None:
            found.entries += 1
            found.flat += place.flat
        elif depth == 0 and layout.TEMPORARY.match(one.name) and now.timestamp() - status.st_mtime > _LITTER:
            if len(found.litter) < _MOST_LITTER:
                found.litter.append(one.name)
        elif depth == 0 and layout.TRACE.match(one.name):
            found.traces += 1


def _leads_on(here: int, name: str) -> bool:
    """Return whether a name is a link: the driver may follow it to a directory, and we do not."""
    with contextlib.suppress(OSError):
        return stat.S_ISLNK(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode)
    return True


# -- the driver's own number, and its lock ---------------------------------------------------------------------------


def believed(root: int) -> int:
    """Read what the driver believes that there is.  Raises OSError; `FileNotFoundError` where it will count anew."""
    with fs.regular_file(root, layout.TOTAL) as (descriptor, _):
        return totals.total(fs.read(descriptor, totals.TOTAL_SIZE))


def lookups(root: int) -> Lookups:
    """Return how often programs found what they looked for, as far as the driver was asked to count."""
    try:
        with fs.regular_file(root, layout.STATS) as (descriptor, _):
            return totals.lookups(fs.read(descriptor, totals.STATS_SIZE + 1)) or Lookups(0, 0)
    except OSError:
        return Lookups(0, 0)


@contextlib.contextmanager
def locked(root: int) -> Iterator[int | None]:
    """Hold the lock under which drivers write; give its file, open to read and write.

    None: somebody holds it, or has taken the file away.  Whoever holds it keeps every program waiting that has compiled
    something.  The file is not made, because the driver would take an empty one for a total of zero.  Raises OSError as
    `opened` does.
    """
    with contextlib.ExitStack() as stack:
        try:
            descriptor = stack.enter_context(opened(root))
        except FileNotFoundError:
            yield None
            return
        held = _take(descriptor, fcntl.LOCK_EX) and os.fstat(descriptor).st_nlink > 0
        yield descriptor if held else None


@contextlib.contextmanager
def opened(root: int) -> Iterator[int]:
    """Open the driver's number to write it.  Raises OSError; also for what is not a file of this store alone.

    What is written to a file with other names, or to somebody else's, is written in another place, too.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = os.open(layout.TOTAL, flags, dir_fd=root)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise OSError(errno.EMLINK, "it is no file, or one that has other names, too", layout.TOTAL)
        if status.st_uid not in (os.fstat(root).st_uid, os.geteuid()):
            raise OSError(errno.EXDEV, "it belongs to somebody else", layout.TOTAL)
        yield descriptor
    finally:
        os.close(descriptor)


def lockable(root: int) -> bool | None:
    """Return whether drivers can take the lock; None if its file is a link, which they follow.

    Where they cannot, none of them writes: there is no such file yet, or what is there is no file.
    """
    try:
        mode = os.stat(layout.TOTAL, dir_fd=root, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return False
    return None if stat.S_ISLNK(mode) else stat.S_ISREG(mode)


def free(root: int) -> bool:
    """Return whether the lock is free, or was in a twentieth of a second.  Raises OSError."""
    with fs.regular_file(root, layout.TOTAL) as (descriptor, _):
        return _take(descriptor, fcntl.LOCK_SH)


def _take(descriptor: int, how: int) -> bool:
    for number in range(_PATIENCE):
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if number + 1 < _PATIENCE:
                time.sleep(_PAUSE)
        else:
            return True
    return False


def add(descriptor: int, size: int) -> None:
    """Put the driver's number right, under its lock: so many bytes came, or went if it is below zero.

    They did, also where a full disk refuses that: a look finds the wrong number, as after a death at that moment.
    """
    try:
        before = totals.total(os.pread(descriptor, totals.TOTAL_SIZE, 0))
        put(descriptor, max(0, before + size))
    except OSError as error:
        log.warning("the GPU driver's number of bytes could not be put right: %s", error.strerror)


def put(descriptor: int, size: int) -> None:
    """Write the driver's number, under its lock."""
    os.pwrite(descriptor, totals.total_bytes(size), 0)
