"""The kernel's fanotify, by ctypes: groups, marks, events, and directories by their handles."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
import time
from typing import Final, NamedTuple, Self

# Events, from linux/fanotify.h.
CLOSE_WRITE: Final = 0x08
CLOSE_NOWRITE: Final = 0x10
MOVED_FROM: Final = 0x40
MOVED_TO: Final = 0x80
DELETE: Final = 0x200
OVERFLOW: Final = 0x4000
ONDIR: Final = 0x40000000

_CLOEXEC: Final = 0x1
_NONBLOCK: Final = 0x2
_REPORT_DFID_NAME: Final = 0xC00
_MARK_ADD: Final = 0x1
_MARK_REMOVE: Final = 0x2
_MARK_FILESYSTEM: Final = 0x100
_INFO_DFID_NAME: Final = 2
_VERSION: Final = 3

_AT_EMPTY_PATH: Final = 0x1000
_HANDLE_ROOM: Final = 128

_OPENAT2: Final = 437
_HOW_SIZE: Final = 24
_NO_MOUNTS: Final = 0x01
_NO_LINKS: Final = 0x02 | 0x04
_BENEATH: Final = 0x08

# Kinds of file systems, from linux/magic.h.
BCACHEFS: Final = 0xCA451A4E
BTRFS: Final = 0x9123683E
CEPH: Final = 0x00C36400
EXT: Final = 0xEF53
F2FS: Final = 0xF2F52010
FUSE: Final = 0x65735546
JFS: Final = 0x3153464A
LUSTRE: Final = 0x0BD00BD0
NFS: Final = 0x6969
OVERLAY: Final = 0x794C7630
RAMFS: Final = 0x858458F6
TMPFS: Final = 0x01021994
XFS: Final = 0x58465342
ZFS: Final = 0x2FC12FC1

_EVENT: Final = struct.Struct("=IBBHQii")  # length, version, reserved, length of this head, mask, descriptor, process
_INFO: Final = struct.Struct("=BBHQIi")  # type, padding, length, file system, bytes of the handle, its type
_INFO_HEAD: Final = 4 + 8  # what stands before the handle
_BUFFER: Final = 1 << 16
_FILES: Final = 128
"""Without names, so many events at a time: each comes with an open file, and what finds no number free is lost."""

_PACE: Final = 0.02
"""Seconds between two looks at a queue: of a thousand files that are closed meanwhile hardly one is ours."""

_SUPERBLOCK: Final = re.compile(rb"^fanotify sdev:([0-9a-f]{1,8}) ", re.MULTILINE)
_MOUNT: Final = re.compile(rb"^mnt_id:\t([0-9]+)$", re.MULTILINE)

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class KernelEvent(NamedTuple):
    """One event: with names the directory's handle and the name in it, else a descriptor of the file, to be closed."""

    mask: int
    pid: int  #: 0 for a process that we may not know
    system: int  #: the file system's number, as `os.fstatvfs` gives it
    directory: bytes
    name: bytes
    descriptor: int


def _call(name: str, *arguments: object) -> int:
    try:
        function = getattr(_LIBC, name)
    except AttributeError:
        raise OSError(errno.ENOSYS, f"this C library has no {name}") from None
    result: int = function(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


class Group:
    """A queue of events.  Bounded on purpose: what does not fit is told as `OVERFLOW`, and costs nobody memory."""

    def __init__(self, *, names: bool) -> None:
        """Raise OSError where the kernel has no fanotify, or not for us."""
        flags = _CLOEXEC | _NONBLOCK | (_REPORT_DFID_NAME if names else 0)
        self.names = names
        self._rested = 0.0
        self._room = _BUFFER if names else _FILES * _EVENT.size
        # Files that come with events are opened by the kernel for us; a FIFO among them must not make it wait.
        opened = os.O_RDONLY | os.O_CLOEXEC | os.O_LARGEFILE | os.O_NONBLOCK | os.O_NOATIME
        self._descriptor = _call("fanotify_init", ctypes.c_uint(flags), ctypes.c_uint(opened))

    def fileno(self) -> int:
        """Return the descriptor, to wait for."""
        return self._descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget the queue and its marks."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def mark(self, directory: int, mask: int) -> None:
        """Hear of these events on the whole file system on which an open directory lies.  Raises OSError."""
        self._mark(_MARK_ADD, directory, mask)

    def unmark(self, directory: int, mask: int) -> None:
        """Hear of them no longer.  Raises OSError."""
        self._mark(_MARK_REMOVE, directory, mask)

    def _mark(self, what: int, directory: int, mask: int) -> None:
        _call(
            "fanotify_mark",
            self._descriptor,
            ctypes.c_uint(what | _MARK_FILESYSTEM),
            ctypes.c_uint64(mask),
            directory,
            None,
        )

    def rested(self) -> Self:
        """Let more come before it is read, if that was a moment ago; what comes with open files does not wait."""
        if self.names:
            time.sleep(max(0.0, self._rested + _PACE - time.monotonic()))
            self._rested = time.monotonic()
        return self

    def read(self) -> list[KernelEvent]:
        """Return what came since; nothing if nothing did.

        Raises OSError where the file of one event could not be opened for us: that event is gone, and no other.
        """
        try:
            data = os.read(self._descriptor, self._room)
        except BlockingIOError:
            return []
        return kernel_events(data)


def kernel_events(data: bytes) -> list[KernelEvent]:
    """Read the kernel's records."""
    found: list[KernelEvent] = []
    start = 0
    while start + _EVENT.size <= len(data):
        length, version, _, head, mask, descriptor, pid = _EVENT.unpack_from(data, start)
        if length < _EVENT.size or version != _VERSION:
            break
        system, directory, name = 0, b"", b""
        if length - head >= _INFO.size:
            info = start + head
            kind, _, size, system, handle, _ = _INFO.unpack_from(data, info)
            if kind == _INFO_DFID_NAME:
                end = info + _INFO.size + handle
                directory = data[info + _INFO_HEAD : end]
                name = data[end : info + size].split(b"\0", 1)[0]
        found.append(KernelEvent(mask, pid, system, directory, name, descriptor))
        start += length
    return found


def open_below(directory: int, name: bytes, *, file: bool = False) -> int:
    """Open what is in a directory under a name, only to look at it: no link is followed, and nothing mounted there.

    A directory, or with ``file`` anything.  Raises OSError, also where the kernel is older than 5.6.
    """
    flags = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW | (0 if file else os.O_DIRECTORY)
    return _open(directory, name, flags, _BENEATH | _NO_LINKS | _NO_MOUNTS)


def open_above(directory: int) -> int:
    """Open the directory above another, on the same mount, only to see which it is.  Raises OSError, also at its top.

    What lies above a mount that a user made may be a file system of that user's, which never answers.
    """
    return _open(directory, b"..", os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY, _NO_LINKS | _NO_MOUNTS)


def _open(directory: int, name: bytes, flags: int, how: int) -> int:
    return _call(
        "syscall",
        ctypes.c_long(_OPENAT2),
        ctypes.c_int(directory),
        ctypes.c_char_p(name),
        ctypes.create_string_buffer(struct.pack("=QQQ", flags, 0, how)),
        ctypes.c_size_t(_HOW_SIZE),
    )


def file_system(descriptor: int) -> int:
    """Return the kernel's number for the kind of a file system.  Raises OSError; one in user space may never answer."""
    room = ctypes.create_string_buffer(512)
    _call("fstatfs", descriptor, room)
    return int(struct.unpack_from("@l", room.raw)[0]) & 0xFFFFFFFF


def superblock(directory: int) -> int:
    """Return the number of the whole file system of an open directory, which is what a mark is for.  Raises OSError.

    A subvolume (btrfs, bcachefs) has another number for each of its files.  So a mark is made, and the kernel asked
    where.
    """
    with Group(names=False) as group:
        group.mark(directory, CLOSE_WRITE)
        with open(f"/proc/self/fdinfo/{group.fileno()}", "rb") as stream:  # noqa: PTH123 - a file of the kernel's
            found = _SUPERBLOCK.search(stream.read())
    if found is None:
        raise OSError(errno.ENODEV, "the kernel does not say which file system is watched")
    return int(found[1], 16)


def mount_of(directory: int) -> int:
    """Return the kernel's number for the mount at which a directory was opened.  Raises OSError."""
    with open(f"/proc/self/fdinfo/{directory}", "rb") as stream:  # noqa: PTH123 - a file of the kernel's
        found = _MOUNT.search(stream.read())
    if found is None:
        raise OSError(errno.ENODEV, "the kernel does not say on which mount it lies")
    return int(found[1])


def handle_of(directory: int) -> bytes:
    """Return the handle of an open directory.  Raises OSError."""
    room = ctypes.create_string_buffer(struct.pack("=Ii", _HANDLE_ROOM, 0), 8 + _HANDLE_ROOM)
    mount = ctypes.c_int()
    _call("name_to_handle_at", directory, b"", room, ctypes.byref(mount), _AT_EMPTY_PATH)
    (size,) = struct.unpack_from("=I", room.raw)
    return room.raw[: 8 + size]


def open_handle(beside: int, handle: bytes) -> int:
    """Open the directory of a handle, on the file system of another open one, only to see where it is.

    Raises OSError: it is gone, or we may not.
    """
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    return _call("open_by_handle_at", beside, ctypes.create_string_buffer(handle, len(handle)), flags)
