"""A file system that fails where a test wants it: the kernel's own error for every program, in any of its calls.

``ailing.py MOUNTPOINT BACKING CONTROL`` (root) mounts a directory again through FUSE, and speaks the kernel's protocol
itself.  As long as the file ``CONTROL`` holds ``{"errno": 5, "calls": ["READ"], "below": "store"}``, these calls fail
below that directory; with ``"errno": 0`` they get no answer at all, until the file goes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import stat
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS: Final = {
    1: "LOOKUP",
    3: "GETATTR",
    4: "SETATTR",
    5: "READLINK",
    6: "SYMLINK",
    9: "MKDIR",
    10: "UNLINK",
    11: "RMDIR",
    12: "RENAME",
    13: "LINK",
    14: "OPEN",
    15: "READ",
    16: "WRITE",
    17: "STATFS",
    18: "RELEASE",
    20: "FSYNC",
    25: "FLUSH",
    26: "INIT",
    27: "OPENDIR",
    28: "READDIR",
    29: "RELEASE",
    30: "FSYNC",
    35: "CREATE",
    45: "RENAME2",
}
UNANSWERED: Final = {2, 36, 38, 42}  # FORGET, INTERRUPT, DESTROY, BATCH_FORGET
CHANGES: Final = ("SETATTR", "SYMLINK", "MKDIR", "UNLINK", "RMDIR", "RENAME", "RENAME2", "LINK", "WRITE", "CREATE")
LARGEST: Final = 1 << 17


class Ailing:
    """Answers the kernel."""

    def __init__(self, device: int, backing: Path, control: Path) -> None:
        self._device = device
        self._backing = backing
        self._control = control
        self._paths = {1: ""}
        self._nodes = {"": 1}
        self._held: list[int] = []

    def serve(self) -> None:
        """Answer until it is unmounted."""
        while True:
            try:
                request = os.read(self._device, LARGEST + 4096)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                return
            _, number, unique, node, uid, gid = struct.unpack_from("<IIQQII", request)
            if number in UNANSWERED:
                continue
            name = CALLS.get(number)
            try:
                if name is None:
                    self._say(unique, errno.ENOSYS, b"")
                    continue
                if self._fails(name, node):
                    self._held.append(unique)
                    continue
                answer: Callable[[int, bytes, tuple[int, int]], bytes] = getattr(self, f"_{name.lower()}")
                self._say(unique, 0, answer(node, request[40:], (uid, gid)))
            except OSError as error:
                self._say(unique, error.errno or errno.EIO, b"")

    def _say(self, unique: int, error: int, body: bytes) -> None:
        # Who asked may have been killed meanwhile.
        with contextlib.suppress(OSError):
            os.write(self._device, struct.pack("<IiQ", 16 + len(body), -error, unique) + body)

    def _fails(self, name: str, node: int) -> bool:
        try:
            wanted = json.loads(self._control.read_bytes())
        except (OSError, ValueError):
            for unique in self._held:
                self._say(unique, errno.EIO, b"")
            self._held.clear()
            return False
        path = self._paths.get(node, "")
        if name not in wanted["calls"] or not f"{path}/".startswith(wanted["below"]):
            return False
        if wanted["errno"]:
            raise OSError(wanted["errno"], "as the test wants it")
        return True

    # -- places -------------------------------------------------------------------------------------------------------

    def _at(self, node: int, name: bytes = b"") -> tuple[str, str]:
        """Return a path below the mount, and where it really is."""
        path = "/".join(filter(None, (self._paths[node], os.fsdecode(name))))
        return path, os.path.join(self._backing, path)

    def _attributes(self, status: os.stat_result) -> bytes:
        times = (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)
        return struct.pack(
            "<6Q10I",
            status.st_ino,
            status.st_size,
            status.st_blocks,
            *(one // 10**9 for one in times),
            *(one % 10**9 for one in times),
            status.st_mode,
            status.st_nlink,
            status.st_uid,
            status.st_gid,
            0,
            4096,
            0,
        )

    def _entry(self, node: int, name: bytes) -> bytes:
        path, real = self._at(node, name)
        status = os.lstat(real)
        number = self._nodes.setdefault(path, len(self._paths) + 1)
        self._paths[number] = path
        # Nothing is remembered by the kernel: whatever fails does so at once.
        return struct.pack("<QQQQII", number, 0, 0, 0, 0, 0) + self._attributes(status)

    # -- calls --------------------------------------------------------------------------------------------------------

    def _init(self, _node: int, body: bytes, _who: tuple[int, int]) -> bytes:
        _, _, readahead, _ = struct.unpack_from("<4I", body)
        return struct.pack("<4I2H2I2HI7I", 7, 31, readahead, 0, 16, 12, LARGEST, 1, LARGEST // 4096, 0, 0, *[0] * 7)

    def _lookup(self, node: int, body: bytes, _who: tuple[int, int]) -> bytes:
        return self._entry(node, body.rstrip(b"\0"))

    def _getattr(self, node: int, _body: bytes, _who: tuple[int, int]) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._attributes(os.lstat(self._at(node)[1]))

    def _setattr(self, node: int, body: bytes, who: tuple[int, int]) -> bytes:
        valid, _, _, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid = struct.unpack_from(
            "<IIQQQQQQ7I", body
        )
        real = self._at(node)[1]
        if valid & 1:
            os.chmod(real, stat.S_IMODE(mode))
        if valid & 6:
            os.lchown(real, uid if valid & 2 else -1, gid if valid & 4 else -1)
        if valid & 8:
            os.truncate(real, size)
        if valid & (16 | 32 | 128 | 256):
            status = os.lstat(real)
            times = [status.st_atime_ns, status.st_mtime_ns]
            if valid & 16:
                times[0] = atime * 10**9 + atime_ns
            if valid & 32:
                times[1] = mtime * 10**9 + mtime_ns
            os.utime(real, ns=(times[0], times[1]), follow_symlinks=False)
        return self._getattr(node, b"", who)

    def _readlink(self, node: int, _body: bytes, _who: tuple[int, int]) -> bytes:
        return os.fsencode(os.readlink(self._at(node)[1]))

    def _symlink(self, node: int, body: bytes, who: tuple[int, int]) -> bytes:
        name, target = body.split(b"\0")[:2]
        os.symlink(target, os.fsencode(self._at(node, name)[1]))
        os.lchown(self._at(node, name)[1], *who)
        return self._entry(node, name)

    def _mkdir(self, node: int, body: bytes, who: tuple[int, int]) -> bytes:
        mode, umask = struct.unpack_from("<II", body)
        name = body[8:].rstrip(b"\0")
        real = self._at(node, name)[1]
        os.mkdir(real)
        os.chmod(real, mode & ~umask & 0o7777)
        os.lchown(real, *who)
        return self._entry(node, name)

    def _forget_path(self, path: str) -> None:
        self._nodes.pop(path, None)

    def _unlink(self, node: int, body: bytes, _who: tuple[int, int]) -> bytes:
        path, real = self._at(node, body.rstrip(b"\0"))
        os.unlink(real)
        self._forget_path(path)
        return b""

    def _rmdir(self, node: int, body: bytes, _who: tuple[int, int]) -> bytes:
        path, real = self._at(node, body.rstrip(b"\0"))
        os.rmdir(real)
        self._forget_path(path)
        return b""

    def _renamed(self, node: int, other: int, names: bytes) -> bytes:
        old, new = names.split(b"\0")[:2]
        (was, there), (becomes, here) = self._at(node, old), self._at(other, new)
        os.rename(there, here)
        self._forget_path(becomes)
        for path, number in [*self._nodes.items()]:
            if path == was or path.startswith(f"{was}/"):
                del self._nodes[path]
                self._nodes[becomes + path[len(was) :]] = number
                self._paths[number] = becomes + path[len(was) :]
        return b""

    def _rename(self, node: int, body: bytes, _who: tuple[int, int]) -> bytes:
        return self._renamed(node, struct.unpack_from("<Q", body)[0], body[8:])

    def _rename2(self, node: int, body: bytes, _who: tuple[int, int]) -> bytes:
        other, flags, _ = struct.unpack_from("<QII", body)
        if flags & ~1:
            raise OSError(errno.EINVAL, "")
        if flags and os.path.lexists(self._at(other, body[16:].split(b"\0")[1])[1]):
            raise OSError(errno.EEXIST, "")
        return self._renamed(node, other, body[16:])

    def _link(self, node: int, body: bytes, _who: tuple[int, int]) -> bytes:
        source = self._at(struct.unpack_from("<Q", body)[0])[1]
        name = body[8:].rstrip(b"\0")
        os.link(source, self._at(node, name)[1], follow_symlinks=False)
        return self._entry(node, name)

    def _open(self, node: int, body: bytes, _who: tuple[int, int]) -> bytes:
        flags = struct.unpack_from("<I", body)[0] & (os.O_ACCMODE | os.O_TRUNC)
        return struct.pack("<QII", os.open(self._at(node)[1], flags | os.O_CLOEXEC), 0, 0)

    def _create(self, node: int, body: bytes, who: tuple[int, int]) -> bytes:
        flags, mode, umask, _ = struct.unpack_from("<4I", body)
        name = body[16:].rstrip(b"\0")
        real = self._at(node, name)[1]
        wanted = flags & (os.O_ACCMODE | os.O_TRUNC | os.O_EXCL) | os.O_CREAT | os.O_CLOEXEC
        file = os.open(real, wanted, 0o600)
        os.fchmod(file, mode & ~umask & 0o7777)
        os.fchown(file, *who)
        return self._entry(node, name) + struct.pack("<QII", file, 0, 0)

    def _read(self, _node: int, body: bytes, _who: tuple[int, int]) -> bytes:
        file, offset, size = struct.unpack_from("<QQI", body)
        return os.pread(file, size, offset)

    def _write(self, _node: int, body: bytes, _who: tuple[int, int]) -> bytes:
        file, offset, size = struct.unpack_from("<QQI", body)
        return struct.pack("<II", os.pwrite(file, body[40 : 40 + size], offset), 0)

    def _release(self, _node: int, body: bytes, _who: tuple[int, int]) -> bytes:
        if file := struct.unpack_from("<Q", body)[0]:
            os.close(file)
        return b""

    def _flush(self, *_: object) -> bytes:
        return b""

    _fsync = _flush

    def _opendir(self, node: int, _body: bytes, _who: tuple[int, int]) -> bytes:
        os.close(os.open(self._at(node)[1], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        return struct.pack("<QII", 0, 0, 0)

    def _readdir(self, node: int, body: bytes, _who: tuple[int, int]) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        told = b""
        with os.scandir(self._at(node)[1]) as entries:
            found = sorted((entry.name, entry.inode(), entry.is_dir(follow_symlinks=False)) for entry in entries)
        for number, (name, inode, is_dir) in enumerate(found[offset:], start=offset + 1):
            text = os.fsencode(name)
            row = struct.pack("<QQII", inode, number, len(text), (stat.S_IFDIR if is_dir else stat.S_IFREG) >> 12)
            row += text + bytes(-len(text) % 8)
            if len(told) + len(row) > size:
                break
            told += row
        return told

    def _statfs(self, _node: int, _body: bytes, _who: tuple[int, int]) -> bytes:
        facts = os.statvfs(self._backing)
        counts = (facts.f_blocks, facts.f_bfree, facts.f_bavail, facts.f_files, facts.f_ffree)
        return struct.pack("<5Q4I6I", *counts, facts.f_bsize, 255, facts.f_frsize, 0, *[0] * 6)


def main() -> None:
    """Mount, and serve until it is unmounted."""
    mountpoint, backing, control = map(Path, sys.argv[1:4])
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"ailing", os.fsencode(mountpoint), b"fuse", 0, options.encode()):
        raise SystemExit(f"no FUSE here: {os.strerror(ctypes.get_errno())}")
    print("mounted", flush=True)
    Ailing(device, backing, control).serve()


if __name__ == "__main__":
    main()
