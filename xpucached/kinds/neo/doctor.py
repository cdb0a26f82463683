"""Observe and act: what is wrong with a store of the GPU driver's as a whole.

Its number of bytes is wrong, or its lock held; something stands in the way; or who died while it wrote left its file.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from xpucached.domain.defects import StoreFault
from xpucached.domain.names import EntryKey
from xpucached.domain.stores import EntryId, FoundStore, Store
from xpucached.domain.trash import Repair
from xpucached.kinds import folders, fs
from xpucached.kinds.neo import counting, defects, layout

log = logging.getLogger(__name__)

FAULTS: Final = defects.FAULTS

_LIMIT: Final = 1 << 30
"""The bytes that the driver lets a cache have, unless a variable says otherwise."""

_LOOKS: Final = 5


def faults(found: FoundStore, now: datetime, writer_since: datetime | None) -> tuple[StoreFault, ...]:  # noqa: ARG001
    """Return what is wrong with a store as a whole; see `Doctor.faults`."""
    try:
        with fs.root_directory(os.fspath(found.store.root)) as (root, _):
            return met(root, os.fspath(found.store.root), now)[0]
    except OSError:
        return ()


def met(root: int, path: str, now: datetime) -> tuple[tuple[StoreFault, ...], counting.Counted]:
    """Return the same of a store that is open, and what was counted there.  Raises OSError."""
    there: list[StoreFault] = []
    counted, total = _agreed(root, path, now)
    if isinstance(total, StoreFault):
        there.append(total)
    elif total is not None and counted.sure and total != counted.size:
        surplus = total - counted.size
        there.append(
            defects.TOTAL_LOW if surplus < 0 else defects.TOTAL_OVER if surplus >= _LIMIT else defects.TOTAL_HIGH
        )
    if counted.blocked:
        there.append(defects.BLOCKED)
    if counted.litter:
        there.append(defects.LEFT_BEHIND)
    return tuple(there), counted


def _agreed(root: int, path: str, now: datetime) -> tuple[counting.Counted, int | StoreFault | None]:
    """Count, and read the driver's number, or what is wrong with its file.

    None if it is not known: there is none yet, or programs write all the time.
    """
    for _ in range(_LOOKS):
        try:
            if _in_the_way(root, path):
                return counting.count(root, path, now), defects.TOTAL_BLOCKED
            before = counting.believed(root)
            if not counting.free(root):
                return counting.count(root, path, now), defects.LOCKED
            counted = counting.count(root, path, now)
            if before == counted.size:
                return counted, before
            # Who was amid a write held the lock, or has changed the one or the other by now.
            same = counting.free(root) and counting.believed(root) == before
            if same and counting.count(root, path, now).size == counted.size:
                return counted, before
        except OSError as error:
            if not isinstance(error, FileNotFoundError | IsADirectoryError | PermissionError):
                raise
            return counting.count(root, path, now), None
    return counting.count(root, path, now), None


def _in_the_way(root: int, path: str) -> bool:
    """Return whether ``config.file`` is nothing that the driver could open to write: a link it follows."""
    status = os.stat(layout.TOTAL, dir_fd=root, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        try:
            fs.leads_to(root, layout.TOTAL, path)
        except OSError as error:
            # Of a link that leaves the file system it is not asked where it leads.
            return not fs.passing(error) and error.errno != errno.EXDEV
        return False
    shut = not status.st_mode & stat.S_IWUSR and status.st_uid != 0
    return not stat.S_ISREG(status.st_mode) or shut


def clear(store: Store, fault: StoreFault, now: datetime, writer_since: datetime | None) -> bool:  # noqa: ARG001
    """Put an end to a fault; see `Doctor.clear`."""
    if not fault.clearable:
        return False
    try:
        with fs.root_to_change(os.fspath(store.root)) as (root, _):
            if fault is defects.TOTAL_BLOCKED:
                return _unblock(root, os.fspath(store.root))
            if fault is defects.LEFT_BEHIND:
                return _tidy(root, os.fspath(store.root), now)
            return _recount(root, os.fspath(store.root), now)
    except FileNotFoundError:
        return True
    except OSError as error:
        log.warning("no end could be put to a fault: %s: %s: %s", fault.code, store.root, error)
        return False


def _tidy(root: int, path: str, now: datetime) -> bool:
    """Remove what programs left that died: drivers write under the lock, so while it is ours nobody does."""
    litter = counting.count(root, path, now).litter
    with contextlib.ExitStack() as stack:
        if counting.lockable(root) is not False and stack.enter_context(counting.locked(root)) is None:
            return False
        why: OSError | None = None
        for name in litter:
            try:
                folders.unlink(root, name)
            except OSError as error:
                # Where everybody may write, another user's stays.
                why = why or error
        if why is not None:
            log.warning("what programs left that died stays: %s: %s", path, why)
    return not counting.count(root, path, now).litter


def _unblock(root: int, path: str) -> bool:
    status = os.stat(layout.TOTAL, dir_fd=root, follow_symlinks=False)
    if not _in_the_way(root, path):
        return True
    if stat.S_ISDIR(status.st_mode):
        os.rmdir(layout.TOTAL, dir_fd=root)
    elif stat.S_ISREG(status.st_mode):
        return folders.allow(root, layout.TOTAL, stat.S_IRUSR | stat.S_IWUSR)
    else:
        # The next program that writes makes one, and counts anew.
        os.unlink(layout.TOTAL, dir_fd=root)
    return True


def _recount(root: int, path: str, now: datetime) -> bool:
    """Write the true total.  It is counted before the lock is taken, and holds if the driver's number stayed so."""
    for _ in range(_LOOKS):
        before = counting.believed(root)
        counted = counting.count(root, path, now)
        if not counted.sure:
            return False
        with counting.locked(root) as descriptor:
            if descriptor is not None and counting.believed(root) == before:
                counting.put(descriptor, counted.size)
                return True
    return False


def mend(repairs: Sequence[Repair], failed: Callable[[Path, OSError], None] | None = None) -> Mapping[EntryId, bool]:  # noqa: ARG001
    """Mend nothing in its place: what is damaged leaves the store, and its program compiles it again."""
    return {one.entry.id: False for one in repairs}


def take_up(store: Store, begun: Mapping[EntryKey, datetime]) -> int:  # noqa: ARG001
    """Take up nothing: what is damaged is compiled by its program only."""
    return 0
