"""Observe and act: a directory with all that is in it, where entries are directories; no link is followed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from xpucached.kinds import fs, listing

_DEPTH: Final = 16
"""Directories below each other; those of compilers have three."""

_MOST: Final = 100_000
"""Names in one entry, with all that is below it."""


def below(stack: ExitStack, root: int, parts: Iterable[str], mode: int) -> int:
    """Make the directories that lead to a place below the root, and give the last one, open.  Raises OSError."""
    here, device = root, os.fstat(root).st_dev
    for part in parts:
        new = make(here, part, mode)
        here = stack.enter_context(fs.directory_in(here, part, device))
        if new:
            allow_all(here, mode)
    return here


def make(directory: int, name: str, mode: int) -> bool:
    """Make a directory: True if it was not there.  Raises OSError."""
    try:
        os.mkdir(name, mode, dir_fd=directory)
    except FileExistsError:
        return False
    return True


def allow_all(directory: int, mode: int) -> None:
    """Give a directory that we just made the rights that it shall have whatever the mask of this process is.

    Programs of other users, who share a store, would be shut out of it for good.
    """
    found = os.fstat(directory)
    missing = mode & 0o777 & ~found.st_mode
    # One with something in it is another, which somebody put in its place meanwhile.
    if missing and found.st_uid == os.geteuid() and not listing.names(directory):
        # Where that is refused, as by a filter of system calls for the group's bit, it stays as it was made.
        with contextlib.suppress(OSError):
            os.fchmod(directory, stat.S_IMODE(found.st_mode) | missing)


def own(home: int, name: str) -> str:
    """Return what a directory of this user's is called in an open one: who shares a store has one of his own there.

    Nobody else can enter it, and what one puts away another need not see.
    """
    us = os.geteuid()
    return name if os.fstat(home).st_uid == us else f"{name}-{us}"


def unlink(directory: int, name: str) -> None:
    """Remove a file, or what somebody put in its place; of directories only an empty one.  Raises OSError."""
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        os.rmdir(name, dir_fd=directory)


def allow(directory: int, name: str, more: int) -> bool:
    """Add rights to a regular file that is ours alone; False: it is none, or has other names.  Raises OSError."""
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink > 1:
            return False
        Path(f"/proc/self/fd/{descriptor}").chmod(stat.S_IMODE(found.st_mode) | more)
    finally:
        os.close(descriptor)
    return True


def walk(directory: int, device: int) -> Iterator[tuple[int, str, os.stat_result]]:
    """Yield all that is below a directory, what is deeper first: where it lies, its name, and what it is.

    Raises OSError; also for what nobody fills or nests so, and for what is another file system's or somebody else's.
    """
    left = _MOST
    for found in _walk(directory, device, _DEPTH):
        left -= 1
        if left < 0:
            raise OSError(errno.E2BIG, f"a directory holds more than {_MOST} names")
        yield found


def _walk(directory: int, device: int, depth: int) -> Iterator[tuple[int, str, os.stat_result]]:
    for name in listing.names(directory):
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(status.st_mode):
            if depth <= 0:
                raise OSError(errno.E2BIG, f"directories are nested deeper than {_DEPTH}", name)
            with fs.directory_in(directory, name, device) as below:
                yield from _walk(below, device, depth - 1)
        yield directory, name, status


def allocated(directory: int, device: int) -> int:
    """Return how many bytes of a disk a directory takes with all that is in it.  Raises OSError as `walk` does."""
    every = (status for _, _, status in walk(directory, device))
    return sum(status.st_blocks * 512 // max(1, status.st_nlink) for status in every)


def remove(parent: int, name: str, device: int) -> None:
    """Remove a directory with all that is in it, if it is still there.  Raises OSError as `walk` does."""
    try:
        with fs.directory_in(parent, name, device) as directory:
            for here, below, status in walk(directory, device):
                (os.rmdir if stat.S_ISDIR(status.st_mode) else os.unlink)(below, dir_fd=here)
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return


def clear(parent: int, name: str, device: int) -> None:
    """Remove whatever has a name, if it is still there.  Raises OSError as `walk` does."""
    try:
        unlink(parent, name)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        remove(parent, name, device)
