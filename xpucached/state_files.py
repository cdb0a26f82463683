"""Small files in which one life of a process leaves something for the next: whole, ours, and nobody else's."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from io import BufferedReader
    from pathlib import Path


def stream(descriptor: int) -> BufferedReader:
    """Return what reads a file that is open, and closes it.  Raises OSError for a directory, and closes that, too."""
    try:
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def read(path: Path, largest: int, *, anybodys: bool = False) -> bytes:
    """Return what such a file holds; one byte more than ``largest`` if it is more than that, for a reader to refuse.

    Raises OSError, also if it is a link (ELOOP) or no regular file (ENXIO), or if somebody else can have written it;
    ``anybodys`` is for who can tell by the content that it is what was written.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with stream(descriptor) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.ENXIO, "no regular file", str(path))
        if not anybodys and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
            raise PermissionError(f"{path} is not ours alone")
        return file.read(largest + 1)


def write(path: Path, data: bytes) -> None:
    """Put such a file in its place, for its owner alone, whatever the umask says.  Raises OSError.

    Of two at once one may fail, or leave half a file, which its reader refuses: what is remembered can be found out
    again.
    """
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(beside, flags, 0o600), "wb") as file:
        file.write(data)
    beside.rename(path)
