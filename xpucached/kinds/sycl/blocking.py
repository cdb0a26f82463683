"""Observe and act: what stands in a SYCL store where a program needs a directory.

A program that finds a file there can make no leaf below it: it stores nothing, says nothing, and compiles again at
every start.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from typing import Final

from xpucached.kinds import folders, fs, listing
from xpucached.kinds.sycl import entry_format

_LEVELS: Final = 4

_DIGITS: Final = 12
"""A hash has 64 bits: one in 18 million has fewer digits.  A shorter name is more likely a date, or somebody's own."""


def stands(parent: int, name: str, store: str) -> bool:
    """Return whether what has a directory's name is no directory, nor a link to one; False if that cannot be told.

    ``store`` is the path of the root.
    """
    if entry_format.NUMBER.match(name) and len(name) < _DIGITS:
        return False
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            # A runtime follows it.
            try:
                status = fs.leads_to(parent, name, store)
            except OSError as error:
                return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
    except OSError:
        return False
    return not stat.S_ISDIR(status.st_mode)


def found(store: str, root: int, status: os.stat_result) -> bool:
    """Return whether anything stands in the way anywhere in a store."""
    return next(_all(store, root, status.st_dev, status.st_uid, ()), None) is not None


def clear(store: str, root: int, status: os.stat_result) -> bool:
    """Move all of it into the trash's directory, where it stays until somebody removes it: True if none is left."""
    name = folders.own(root, entry_format.TRASH)
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=root)
    with fs.directory_in(root, name, status.st_dev) as trash:
        for parent, path in _all(store, root, status.st_dev, status.st_uid, ()):
            aside = "-".join(("blocking", secrets.token_hex(6), *path))
            # What cannot be moved is a mount, or in a directory that is not ours: it is still found below.
            with contextlib.suppress(OSError):
                os.rename(path[-1], aside, src_dir_fd=parent, dst_dir_fd=trash)
                if stat.S_ISDIR(os.stat(aside, dir_fd=trash, follow_symlinks=False).st_mode):
                    # Somebody has put a directory in its place since we looked.
                    os.rename(aside, path[-1], src_dir_fd=trash, dst_dir_fd=parent)
    return not found(store, root, status)


def _all(
    store: str, parent: int, device: int, owner: int, path: tuple[str, ...]
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield what stands in the way: the directory that it is in, open, and its path."""
    listed = listing.entries(parent)
    names = {one.name: one.is_dir(follow_symlinks=False) for one in listed if _is_level(one.name, path)}
    for name, is_directory in sorted(names.items()):
        below = (*path, name)
        if not is_directory:
            if stands(parent, name, store):
                yield parent, below
        elif len(below) < _LEVELS and not entry_format.IR_KEY.match(name):
            try:
                here, status = fs.enter(parent, name, device, owner)
            except OSError:
                continue
            try:
                yield from _all(store, here, device, status.st_uid, below)
            finally:
                os.close(here)


def _is_level(name: str, path: tuple[str, ...]) -> bool:
    """Return whether the runtime makes directories of this name here."""
    if entry_format.NUMBER.match(name):
        return True
    return (name == entry_format.RTC and not path) or (
        path == (entry_format.RTC,) and entry_format.IR_KEY.match(name) is not None
    )
