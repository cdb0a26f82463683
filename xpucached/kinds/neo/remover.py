"""Act: take entries out of a store of the GPU driver's, and put them back, under the driver's own lock.

The lock is held for one entry at a time, and the driver's number of bytes is put right before it is given back.  The
trash lies beside the store: what is in it, the driver would count, and evict.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Final

from xpucached.domain.names import EntryKey
from xpucached.kinds import fs, listing
from xpucached.kinds.neo import counting, layout, soundness
from xpucached.kinds.removal import PathRemover
from xpucached.kinds.trash import TrashFolder
from xpucached.kinds.trash_labels import Label

_READ: Final = 64 << 20
"""Bytes of what lies in an entry's place that are judged; what is larger counts as sound."""


def stamp_of(directory: int, name: str) -> str:
    """Return what an entry's stamp would be now; see `PathRemover.stamp`."""
    return stamp(os.stat(name, dir_fd=directory, follow_symlinks=False))


def stamp(status: os.stat_result) -> str:
    """Return what changes whenever an entry's file does; its access time does not count."""
    return f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}"


@contextlib.contextmanager
def exclusive(root: int, key: EntryKey) -> Iterator[bool]:  # noqa: ARG001 - the whole store has one lock
    """Keep drivers from writing; False: one of them writes now."""
    lockable = counting.lockable(root)
    if not lockable:
        yield lockable is False
        return
    with counting.locked(root) as descriptor:
        yield descriptor is not None


def settle(root: int, key: EntryKey, freed: int) -> None:  # noqa: ARG001
    """Put the driver's number right while its lock is held."""
    if counting.lockable(root):
        with counting.opened(root) as descriptor:
            counting.add(descriptor, -freed)


@contextlib.contextmanager
def _place(root: int, here: int, _leaf: int, label: Label) -> Iterator[str | None]:
    """Hold the place to which an entry may return; see `TrashFolder.place`."""
    if counting.lockable(root) is False:
        yield _free(here, label)
        return
    with counting.locked(root) as descriptor:
        if descriptor is None:
            raise OSError(errno.EBUSY, "a program writes to the cache")
        name = _free(here, label)
        yield name
        if name is not None:
            counting.add(descriptor, os.stat(name, dir_fd=here, follow_symlinks=False).st_size)


def _free(here: int, label: Label) -> str | None:
    """Return the name of an entry's place; None if a sound one is there.  Raises OSError if something else is."""
    if not listing.exists(here, label.slot):
        return label.slot
    if _holds(here, label.slot):
        return None
    raise FileExistsError(errno.EEXIST, "what is in its place is damaged, or no file: see xpucachectl verify")


def _holds(here: int, name: str) -> bool:
    """Return whether a file holds together as far as can be seen."""
    try:
        with fs.regular_file(here, name) as (descriptor, status):
            data = fs.read(descriptor, _READ) if status.st_size <= _READ else None
    except OSError as error:
        # What cannot be read just now may be sound all the same.
        if fs.passing(error):
            raise
        return False
    return data is None or (data != b"" and soundness.damage(data) is None)


def _is_place(names: list[str]) -> bool:
    return layout.place("/".join(names)) is not None


TRASH: Final = TrashFolder(
    ".xpucached.trash",
    ("",),
    _is_place,
    lambda name: layout.ENTRY.match(name) is not None,
    _place,
    beside=True,
)

REMOVER: Final = PathRemover(stamp_of, TRASH, exclusive, settle, of_all=True)
