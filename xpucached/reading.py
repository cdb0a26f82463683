"""Files of other programs, opened to be read: nothing is waited for, and no lock of this process is lost.

To close a file lets go of all locks that a process has on it (POSIX), however often it has it open.  SQLite's are such:
where others can make links, one to our own catalog would have the next process that opens the catalog believe that it
is alone, and take away what is written.  So what is opened is looked at before it is opened to be read.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_protected: Final[set[str]] = set()
_SIDES: Final = ("", "-wal", "-shm", "-journal")
"""What SQLite has open beside a database."""


def opened(path: str | Path, *, follow: bool = True, dir_fd: int | None = None) -> int:
    """Return a descriptor, to read from.  Raises OSError, also for a database of this process, and ValueError."""
    flags = 0 if follow else os.O_NOFOLLOW
    if not _protected:
        return os.open(path, _FLAGS | flags, dir_fd=dir_fd)
    # A descriptor of this kind has no part in locks.
    found = os.open(path, os.O_PATH | os.O_CLOEXEC | flags, dir_fd=dir_fd)
    try:
        _refuse_ours(found, path)
        return os.open(f"/proc/self/fd/{found}", _FLAGS)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    finally:
        os.close(found)


def protect(database: Path) -> None:
    """Refuse from now on to open a database, or what lies beside it, here: this process has locks on it."""
    _protected.add(os.fspath(database))


def unprotect(database: Path) -> None:
    """Open it as other files from now on: this process has closed it."""
    _protected.discard(os.fspath(database))


def _refuse_ours(descriptor: int, path: str | Path) -> None:
    status = os.fstat(descriptor)
    for one in tuple(_protected):
        for side in _SIDES:
            try:
                ours = os.stat(one + side)  # noqa: PTH116 - a text beside a text
            except OSError:
                continue
            if os.path.samestat(status, ours):
                raise PermissionError(errno.EPERM, "a database of this process", os.fspath(path))
