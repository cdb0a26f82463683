"""Careful hands in somebody else's directory: descriptors instead of paths, no link followed, no access time moved."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from xpucached import mounts, shortage
from xpucached.kinds import statx

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_QUIET: Final = os.O_NOATIME
"""Reading must not look like use.  The kernel grants it to a file's owner only; we do without where it refuses."""


_LASTING: Final = frozenset(
    {errno.ENOENT, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOTDIR, errno.EXDEV}
)
"""Errors that say what something is, or whose.  All others say something of this moment: of us, of who holds a lease
on a file, of the disk, the network or the program behind a file system."""


def passing(error: OSError) -> bool:
    """Return whether an error says nothing of what it met: what cannot be read just now is still there."""
    return error.errno not in _LASTING


_REFUSING: Final = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
        *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ENOTCONN),
    }
)
"""With these, and where we have no more room, a file system refuses whatever is asked of it."""


def refused(error: OSError) -> bool:
    """Return whether an error is a trouble of the disk, and not of what somebody forged there."""
    return shortage.is_ours(error) or error.errno in _REFUSING


# -- opening without following -----------------------------------------------------------------------------------------


class _How(ctypes.Structure):
    """The kernel's ``struct open_how``."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_OPENAT2: Final = 437
"""The number of the system call, the same on every architecture; the C library has no function for it."""

_HERE: Final = -100
"""The descriptor that stands for none (``AT_FDCWD``): only with absolute paths."""

_NO_XDEV: Final = 0x01
_NO_MAGICLINKS: Final = 0x02
_NO_SYMLINKS: Final = 0x04
_BENEATH: Final = 0x08
_WITHIN: Final = _NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH
_STRAIGHT: Final = _NO_MAGICLINKS | _NO_SYMLINKS


def _openat2(directory: int, name: str, flags: int, resolve: int) -> int:
    """Call the kernel's ``openat2``.  Raises OSError; ``ENOSYS`` where there is none."""
    function = _syscall()
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), name)
    while True:
        descriptor: int = function(_OPENAT2, directory, name.encode(*_NAMES), _how(flags, resolve), _HOW_SIZE)
        if descriptor >= 0:
            return descriptor
        code = ctypes.get_errno()
        # Python's own calls go on after a signal, too.
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code), name)


_HOW_SIZE: Final = ctypes.sizeof(_How)

_NAMES: Final = (sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())
"""What `os.fsencode` would ask of each name."""


@cache
def _how(flags: int, resolve: int) -> _How:
    # Made once: a scan calls this for every directory and file, and the kernel only reads it.
    return _How(flags, 0, resolve)


@cache
def _syscall() -> ctypes._NamedFuncPointer | None:
    try:
        function = ctypes.CDLL(None, use_errno=True)["syscall"]
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_long
    function.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_How), ctypes.c_size_t)
    return function


@cache
def _has_openat2() -> bool:
    """Return whether the kernel (5.6 and later) has the call, and no filter of system calls takes it away."""
    try:
        os.close(_openat2(_HERE, "/", os.O_PATH | os.O_CLOEXEC, _STRAIGHT))
    except OSError:
        return False
    return True


def _quietly(opening: Callable[[int], int]) -> int:
    try:
        return opening(_QUIET)
    except PermissionError:
        return opening(0)


_CAREFULLY: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def _open(name: str, flags: int, directory: int) -> int:
    """Open what has this name in a directory: that itself, never what a link or a mount there leads to."""
    flags |= _CAREFULLY
    if _has_openat2():
        try:
            return _openat2(directory, name, flags | _QUIET, _WITHIN)
        except PermissionError:
            return _openat2(directory, name, flags, _WITHIN)
    return _quietly(lambda quiet: os.open(name, flags | quiet, dir_fd=directory))


@contextlib.contextmanager
def directory_in(parent: int, name: str, device: int) -> Iterator[int]:
    """Open a directory below another one; see `enter`."""
    descriptor, _ = enter(parent, name, device, os.fstat(parent).st_uid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def enter(parent: int, name: str, device: int, owner: int) -> tuple[int, os.stat_result]:
    """Open a directory below another one, which is ``owner``'s; give its descriptor, to be closed, and what it is.

    Raises OSError; also for a mount point and for a directory of somebody else, which are not the store's.
    """
    if name in {"", ".", ".."} or "/" in name:
        raise OSError(errno.EINVAL, "it is no name of a directory", name)
    descriptor = _open(name, os.O_RDONLY | os.O_DIRECTORY, parent)
    try:
        return descriptor, _of_store(descriptor, name, device, owner)
    except BaseException:
        os.close(descriptor)
        raise


def _of_store(descriptor: int, name: str, device: int, owner: int) -> os.stat_result:
    status = os.fstat(descriptor)
    # A directory bound from elsewhere on this file system has the same number: only the kernel can tell.
    if status.st_dev != device or (not _has_openat2() and statx.mounted(descriptor)):
        raise OSError(errno.EXDEV, "another file system is mounted here", name)
    if status.st_uid != owner and status.st_uid != os.geteuid():
        raise OSError(errno.EXDEV, "it belongs to somebody else", name)
    return status


@contextlib.contextmanager
def root_directory(path: str) -> Iterator[tuple[int, os.stat_result]]:
    """Open a store's root to look at it.  This one name may be a link: a runtime follows it, its owner chose it."""
    with folder(path) as descriptor:
        yield descriptor, _own(descriptor)


@contextlib.contextmanager
def folder(path: str) -> Iterator[int]:
    """Open a directory that is no store."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = _quietly(lambda quiet: os.open(path, flags | quiet))
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def root_to_change(path: str) -> Iterator[tuple[int, os.stat_result]]:
    """Open a store's root to change what is below it; ``path`` is absolute, with all links resolved.

    Raises OSError if any part of it is a link now: somebody has put it there since, and what is behind it was never
    looked at.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    if _has_openat2():
        descriptor = _quietly(lambda quiet: _openat2(_HERE, path, flags | quiet, _STRAIGHT))
    else:
        descriptor = _stepwise(path, flags)
    try:
        yield descriptor, _own(descriptor)
    finally:
        os.close(descriptor)


def _own(root: int) -> os.stat_result:
    """Look at a root.  Raises `PermissionError` if we are root and it is not: its owner does what is to be done."""
    status = os.fstat(root)
    if os.geteuid() == 0 and status.st_uid != 0:
        raise PermissionError(errno.EACCES, f"it belongs to user {status.st_uid}, who must do this himself")
    return status


def _stepwise(path: str, flags: int) -> int:
    """Open a path part by part, following none."""
    *above, last = [part for part in path.split("/") if part] or ["."]
    here = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in above:
            below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = below
        return _quietly(lambda quiet: os.open(last, flags | quiet, dir_fd=here))
    finally:
        os.close(here)


def _regular(status: os.stat_result, name: str) -> os.stat_result:
    # Opening a pipe or a device has effects of its own, so it is not even tried.
    if not stat.S_ISREG(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "not a regular file", name)
    return status


class regular_file:  # noqa: N801 - it is called as a function
    """Open a regular file for reading.  Raises OSError; `IsADirectoryError` for whatever is no regular file.

    ``before`` is what it was when it was just looked at.
    """

    # No generator: a look enters three for each entry.
    __slots__ = ("_before", "_descriptor", "_directory", "_name")

    def __init__(self, directory: int, name: str, before: os.stat_result | None = None) -> None:
        self._directory, self._name, self._before = directory, name, before

    def __enter__(self) -> tuple[int, os.stat_result]:
        """Return its descriptor, and what it is."""
        _regular(self._before or os.stat(self._name, dir_fd=self._directory, follow_symlinks=False), self._name)
        self._descriptor = _open(self._name, os.O_RDONLY, self._directory)
        try:
            return self._descriptor, _regular(os.fstat(self._descriptor), self._name)
        except BaseException:
            os.close(self._descriptor)
            raise

    def __exit__(self, *_: object) -> None:
        """Close it."""
        os.close(self._descriptor)


def leads_to(directory: int, name: str, root: str) -> os.stat_result:
    """Return what a link leads to; nothing is opened.  Raises OSError: ``EXDEV`` if it leaves the store's file system.

    Somebody else may have mounted what is behind it, and may never answer.
    """
    target = os.readlink(name, dir_fd=directory)
    if not _has_openat2():
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
    top, start = -1, directory
    try:
        if target.startswith("/"):
            above = _top(root, target)
            below = os.path.relpath(target, above)
            if below.startswith("..") or ".." in target.split("/"):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
            top = start = os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            target = below
        descriptor = _openat2(start, target, os.O_PATH | os.O_CLOEXEC, _NO_XDEV | _NO_MAGICLINKS)
    finally:
        if top >= 0:
            os.close(top)
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _top(root: str, target: str = "") -> str:
    """Return the highest directory above a store that lies on its file system; of its mount, if the target lies below.

    It may be bound from elsewhere on the same file system, as into a container.
    """
    # Not by pathlib: where somebody has made a loop of it by now, that raises what is no error of a file.
    path = Path(mounts.real(root))
    device = path.stat().st_dev
    while path != path.parent and path.parent.stat().st_dev == device:
        if Path(target).is_relative_to(path) and _mounted(path):
            break
        path = path.parent
    return os.fspath(path)


def _mounted(path: Path) -> bool:
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return statx.mounted(descriptor)
    finally:
        os.close(descriptor)


def appear(directory: int, name: str, content: bytes) -> None:
    """Make a small file that has its content from its first moment.  Raises `FileExistsError`, OSError.

    On a full disk, just where evicting is needed most, it stays empty.
    """
    try:
        descriptor = os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=directory)
    except OSError:
        _appear_slowly(directory, name, content)
        return
    try:
        with contextlib.suppress(OSError):
            os.write(descriptor, content)
        try:
            os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=directory, follow_symlinks=True)
        except FileNotFoundError:
            # No /proc here.
            _appear_slowly(directory, name, content)
    finally:
        os.close(descriptor)


def _appear_slowly(directory: int, name: str, content: bytes) -> None:
    """Do the same where the file system makes no nameless files; who dies in between leaves an empty one."""
    descriptor = os.open(name, _NEW, 0o600, dir_fd=directory)
    try:
        with contextlib.suppress(OSError):
            os.write(descriptor, content)
    finally:
        os.close(descriptor)


def make(directory: int, name: str, content: bytes, *, mode: int = 0o600, sync: bool = False) -> None:
    """Make a file that is on its way to the disk, or with ``sync`` there.  Raises OSError: then nothing was made."""
    descriptor = os.open(name, _NEW, 0o600, dir_fd=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if mode != 0o600:  # noqa: PLR2004 - as it was made
                os.fchmod(descriptor, mode)
            if sync:
                os.fsync(descriptor)
            with contextlib.suppress(OSError):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=directory)
        raise


_SOME: Final = 1 << 20
"""So much is asked for at a time."""


def read(descriptor: int, limit: int, offset: int = 0) -> bytes:
    """Read up to ``limit`` bytes; fewer where the file ends earlier."""
    if limit <= _SOME:
        return os.pread(descriptor, limit, offset)
    parts: list[bytes] = []
    while limit > 0:
        some = min(limit, _SOME)
        part = os.pread(descriptor, some, offset)
        parts.append(part)
        if len(part) < some:
            # A regular file gives less only where it ends.
            break
        offset += len(part)
        limit -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
