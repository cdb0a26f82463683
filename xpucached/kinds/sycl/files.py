"""Careful hands in somebody else's directory: descriptors instead of paths, no link followed, no access time moved."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from functools import cache
from typing import Final

_QUIET: Final = os.O_NOATIME
"""Reading must not look like use.  The kernel grants it to a file's owner only; we do without where it refuses."""


def ours(error: OSError) -> bool:
    """Tell whether an error says that this process has no more room, and so nothing about the file it met."""
    return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def _open(name: str, flags: int, directory: int | None) -> int:
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        return os.open(name, flags | _QUIET, dir_fd=directory)
    except PermissionError:
        return os.open(name, flags, dir_fd=directory)


@contextlib.contextmanager
def directory_in(parent: int, name: str, device: int) -> Iterator[int]:
    """Open a directory below another one.  Raises OSError; also for a mount point, which is not the store's."""
    descriptor = _open(name, os.O_RDONLY | os.O_DIRECTORY, parent)
    try:
        # A directory bound from elsewhere on this file system has the same number: only the kernel can tell.
        if os.fstat(descriptor).st_dev != device or _mounted(descriptor):
            message = "another file system is mounted here"
            raise OSError(message)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def root_directory(path: str) -> Iterator[tuple[int, os.stat_result]]:
    """Open a store's root.  This one name may be a link: a runtime follows it, and its owner chose it."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | _QUIET)
    except PermissionError:
        descriptor = os.open(path, flags)
    try:
        yield descriptor, os.fstat(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def regular_file(directory: int, name: str) -> Iterator[tuple[int, os.stat_result]]:
    """Open a regular file for reading.  Raises OSError; `IsADirectoryError` for whatever is no regular file."""
    before = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if not stat.S_ISREG(before.st_mode):
        # Opening a pipe or a device has effects of its own, so it is not even tried.
        message = "not a regular file"
        raise IsADirectoryError(message)
    descriptor = _open(name, os.O_RDONLY, directory)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            message = "not a regular file"
            raise IsADirectoryError(message)
        yield descriptor, status
    finally:
        os.close(descriptor)


def read(descriptor: int, limit: int, offset: int = 0) -> bytes:
    """Read up to ``limit`` bytes; fewer where the file ends earlier."""
    parts: list[bytes] = []
    while limit > 0:
        part = os.pread(descriptor, min(limit, 1 << 20), offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        limit -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class _Statx(ctypes.Structure):
    _fields_ = (
        ("mask", ctypes.c_uint32),
        ("block", ctypes.c_uint32),
        ("attributes", ctypes.c_uint64),
        ("middle", ctypes.c_uint8 * 64),
        ("birth_seconds", ctypes.c_int64),
        ("birth_nanoseconds", ctypes.c_uint32),
        ("tail", ctypes.c_uint8 * 164),
    )


_BIRTH: Final = 0x800
_EMPTY_PATH: Final = 0x1000
_MOUNT_ROOT: Final = 0x2000


@cache
def _statx() -> ctypes._NamedFuncPointer | None:
    try:
        function = ctypes.CDLL(None)["statx"]
    except (OSError, AttributeError):
        return None
    function.argtypes = (
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.POINTER(_Statx),
    )
    return function


def _status(descriptor: int) -> _Statx | None:
    function = _statx()
    result = _Statx()
    if function is None or function(descriptor, b"", _EMPTY_PATH, _BIRTH, ctypes.byref(result)) != 0:
        return None
    return result


def _mounted(descriptor: int) -> bool:
    status = _status(descriptor)
    return status is not None and bool(status.attributes & _MOUNT_ROOT)


def birth(descriptor: int) -> int | None:
    """Tell when a file was made, in nanoseconds since 1970, where the file system knows."""
    status = _status(descriptor)
    if status is None or not status.mask & _BIRTH:
        return None
    return int(status.birth_seconds) * 1_000_000_000 + int(status.birth_nanoseconds)
