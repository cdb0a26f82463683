"""Observe: digests of files that belong to other programs, read within bounds."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from typing import TYPE_CHECKING, Final

from xpucached import mounts, reading, shortage
from xpucached.domain.dependencies import Dependency, Role

if TYPE_CHECKING:
    from collections.abc import Iterable

_LARGEST: Final = 512 << 20
"""Bytes of a file that is read; of a larger one only size and times are compared."""

_MOST: Final = 2 << 30
"""Bytes that are read for one model at a time."""

_PIECE: Final = 1 << 20

_MOST_LOOKED: Final = 100_000
"""Names of one compiler's cache that are looked at for a file."""

_NOT_FILES: Final = ("/proc/", "/sys/", "/dev/")
_OPEN: Final = ("/proc/", "/sys/", "/dev/fd/", "/dev/stdin")


class Unread(Exception):
    """A file is not read."""


class Enough(Unread):
    """A file is not read now, because enough was read already."""


def told_of_file(error: OSError) -> None:
    """Raise what says nothing of a file, but that this process can open none just now."""
    if shortage.is_ours(error):
        raise error


class Reader:
    """Reads files, up to a number of bytes in all."""

    def __init__(self) -> None:
        self._left = _MOST

    def digest(self, path: str) -> str:
        """Return 32 hex digits of a regular file's content.  Raises OSError, or `Unread`."""
        if not stat.S_ISREG(os.stat(path).st_mode) or not ordinary(path):
            raise Unread
        # It may have become a pipe or a device meanwhile: neither is waited for.
        descriptor = reading.opened(path)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
                raise Unread
            if found.st_size > self._left:
                raise Enough
            left = found.st_size
            digest = hashlib.blake2b(digest_size=16)
            while left > 0 and (piece := os.read(descriptor, min(left, _PIECE))):
                digest.update(piece)
                left -= len(piece)
                self._left -= len(piece)
            return digest.hexdigest()
        finally:
            os.close(descriptor)


def head(path: str, size: int) -> bytes:
    """Return the beginning of a regular file; nothing of anything else, or of what cannot be read."""
    try:
        return beginning(path, size)
    except OSError:
        return b""


def beginning(path: str, size: int) -> bytes:
    """Return the same.  Raises OSError where no file can be opened now."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode) or not ordinary(path):
            return b""
        descriptor = reading.opened(path)
    except OSError as error:
        told_of_file(error)
        return b""
    except ValueError:
        return b""
    try:
        return os.read(descriptor, size) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def is_file(path: str) -> bool:
    """Return whether a regular file lies there; what a program has open (``/dev/fd/3``) is another one here."""
    try:
        return not path.startswith(_OPEN) and stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def ordinary(path: str) -> bool:
    """Return whether a path leads to where files are kept, and not to what the kernel makes up."""
    return not any(f"{one}/".startswith(_NOT_FILES) for one in (os.path.normpath(path), mounts.real(path)))


def plain(path: str) -> str:
    """Return a path without its detours; behind a link, ``..`` leads elsewhere than it seems, and stays."""
    plain = os.path.normpath(path)
    return plain if ".." not in path or mounts.real(plain) == mounts.real(path) else path


def names(path: str, most: int) -> list[tuple[str, bool]] | None:
    """Give the names in a directory, sorted, each with whether it is a directory; None if there are more than ``most``.

    Raises OSError.
    """
    found: list[tuple[str, bool]] = []
    with os.scandir(path) as entries:
        for entry in entries:
            if len(found) >= most:
                return None
            found.append((entry.name, entry.is_dir(follow_symlinks=False)))
    return sorted(found)


def digest_names(found: list[tuple[str, bool]]) -> str:
    """Return 32 hex digits of a directory's names."""
    digest = hashlib.blake2b(digest_size=16)
    for name, folder in found:
        digest.update(os.fsencode(name) + (b"/\0" if folder else b"\0"))
    return digest.hexdigest()


def holds_something(path: str) -> bool:
    """Return whether there is a file below a directory that is more than a lock.  Raises OSError for the directory."""
    ahead, left = [path], _MOST_LOOKED
    while ahead:
        here = ahead.pop()
        try:
            with os.scandir(here) as there:
                for one in there:
                    left -= 1
                    if one.is_dir(follow_symlinks=False):
                        ahead.append(one.path)
                    elif not one.name.endswith(".lock"):
                        return True
                    if left < 0:
                        # So many directories are made for something.
                        return True
        except OSError:
            if here == path:
                raise
    return False


def filled(places: Iterable[str]) -> tuple[Dependency, ...]:
    """Return those of these directories that hold anything: what compilers keep there is part of what was proven."""
    found: list[Dependency] = []
    for path in dict.fromkeys(places):
        with contextlib.suppress(OSError, ValueError):
            if holds_something(path):
                found.append(Dependency(Role.CACHE, path, 0, 0, 0, 0))
    return tuple(found)
