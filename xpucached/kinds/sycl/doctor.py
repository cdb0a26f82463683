"""Observe and act: what is wrong with a SYCL store as a whole.

The runtime's own eviction leaves what makes programs hang: its size file, the lock of that, and a file beside the root
that stops all writers (``docs/kinds.md``).  Of what stands in a directory's place see `blocking`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from datetime import datetime
from typing import Final

from xpucached.domain.defects import StoreFault
from xpucached.domain.stores import FoundStore, Store
from xpucached.kinds import fs, listing
from xpucached.kinds.sycl import blocking, defects, entry_format, locks, mender, trash_files

log = logging.getLogger(__name__)

SIZE: Final = "cache_size.txt"
SIZE_LOCK: Final = SIZE + ".lock"
_LARGEST: Final = (1 << 64) - 1
_BARRIER: Final = "_eviction_in_progress"


mend = mender.mend
take_up = trash_files.take_up
FAULTS: Final = defects.FAULTS


def faults(found: FoundStore, now: datetime, writer_since: datetime | None) -> tuple[StoreFault, ...]:
    """Return what is wrong with a store as a whole; see `Doctor.faults`."""
    try:
        with fs.root_directory(os.fspath(found.store.root)) as (root, status):
            there = _found(found, root, now, writer_since)
            return (*there, defects.BLOCKED) if blocking.found(os.fspath(found.store.root), root, status) else there
    except OSError:
        return ()


def met(found: FoundStore, root: int, now: datetime, writer_since: datetime | None) -> tuple[StoreFault, ...]:
    """Return the same of a store that is being looked at; what blocks programs is met on the way."""
    return tuple(one for one in _found(found, root, now, writer_since) if one is not defects.SIZE_MISSING)


def words(store: Store, fault: StoreFault) -> str:
    """Return what a fault of this store is."""
    if fault is defects.BARRIER:
        return f"{_barrier(store)} exists: every program that wants to write here hangs"
    return fault.message


def _found(found: FoundStore, root: int, now: datetime, writer_since: datetime | None) -> tuple[StoreFault, ...]:
    names = frozenset(listing.names(root))
    there: list[StoreFault] = []
    if SIZE in names:
        there.append(defects.EVICTION_ON)
        if _size(root) is None:
            there.append(defects.SIZE_GARBAGE)
    if SIZE_LOCK in names:
        # Held for microseconds: it may be gone since it was listed.
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(SIZE_LOCK, dir_fd=root, follow_symlinks=False)
            if locks.age(status, now, writer_since) is not None:
                there.append(defects.SIZE_LOCK)
    with contextlib.suppress(OSError):
        # A program that evicts has it there for as long as that takes.
        if locks.age(os.lstat(_barrier(found.store)), now, writer_since) is not None:
            there.append(defects.BARRIER)
    owner = os.fstat(root)
    if (
        SIZE not in names
        and names & {entry_format.RTC, *filter(entry_format.NUMBER.match, names)}
        and not owner.st_mode & 0o222
    ):
        there.append(defects.SIZE_MISSING)
    return tuple(there)


def _barrier(store: Store) -> str:
    return os.fspath(store.root).rstrip("/") + _BARRIER


def _size(root: int) -> int | None:
    """Read the runtime's own total; None if the file holds no number that the runtime could read."""
    try:
        with fs.regular_file(root, SIZE) as (descriptor, _):
            digits = fs.read(descriptor, 32)
    except OSError as error:
        # What cannot be read just now may hold one.
        return 0 if isinstance(error, FileNotFoundError) or fs.passing(error) else None
    return int(digits) if digits.isdigit() and int(digits) <= _LARGEST else None


def clear(store: Store, fault: StoreFault, now: datetime, writer_since: datetime | None) -> bool:
    """Put an end to a fault; see `Doctor.clear`.  Looks again first: a program may hold the lock by now."""
    if not fault.clearable:
        return False
    try:
        with fs.root_to_change(os.fspath(store.root)) as (root, status):
            match fault:
                case defects.SIZE_GARBAGE:
                    if _size(root) is not None:
                        return True
                    # The next program that writes counts anew.
                    os.unlink(SIZE, dir_fd=root)
                case defects.SIZE_LOCK:
                    lock = os.stat(SIZE_LOCK, dir_fd=root, follow_symlinks=False)
                    if locks.age(lock, now, writer_since) is None:
                        return False
                    os.unlink(SIZE_LOCK, dir_fd=root)
                case defects.BLOCKED:
                    return blocking.clear(os.fspath(store.root), root, status)
                case _:
                    with fs.root_to_change(os.fspath(store.root.parent)) as (parent, above):
                        there = os.stat(store.root.name, dir_fd=parent, follow_symlinks=False)
                        if (there.st_dev, there.st_ino) != (status.st_dev, status.st_ino):
                            return False
                        barrier = os.stat(store.root.name + _BARRIER, dir_fd=parent, follow_symlinks=False)
                        # What somebody else put there is not ours to remove, wherever we may write.
                        ours = barrier.st_uid in (above.st_uid, os.geteuid())
                        if not ours or locks.age(barrier, now, writer_since) is None:
                            return False
                        os.unlink(store.root.name + _BARRIER, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError as error:
        log.warning("no end could be put to a fault: %s: %s: %s", fault.code, store.root, error)
        return False
    return True
