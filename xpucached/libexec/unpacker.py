"""Act: the child that unpacks a package's files into an empty folder, beside the system; imports nothing of ours.

It reads an archive from stdin, as ``dpkg-deb --fsys-tarfile`` (tar) and ``rpm2cpio`` (cpio) write it, and writes
what programs load: libraries and what lies beside them.  No script of a package is run, no owner, no special right and
no device is made.  What an archive says is not believed: a path that leads out of the folder or through a link, a
special file, and what is beyond the bounds end it.  Times of change are kept, because caches know compilers by them.
It answers one JSON object on stdout: ``{"files": …, "bytes": …}``, or ``{"error": …, "code": …}``.
"""

from __future__ import annotations

import argparse
import binascii
import contextlib
import errno
import json
import os
import resource
import stat
import struct
import sys
import tarfile
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PLACES = ("usr/lib", "usr/lib64", "usr/lib32", "usr/local/lib", "lib", "lib64", "opt", "etc/OpenCL")
_MEMORY = 1 << 30  # bytes of address space
_SECONDS = 1800  # of processor time
_DEEPEST = 32
_LONGEST = 4096
_PIECE = 1 << 20
_LOOKS = 32 << 20  # bytes between two looks at how much room is left
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAGICS = (b"070701", b"070702")
_HEAD = 110
_TRAILER = "TRAILER!!!"
_LATEST = 1 << 33  # seconds; what is beyond is no time of change


class NotUnpacked(Exception):
    """What the archive holds is not unpacked; the text says why."""

    code = "refused"


class DiskFull(NotUnpacked):
    """There is no room for it."""

    code = "no-room"


class ArchiveMember:
    """One thing of an archive."""

    def __init__(self, name: str, kind: str, modified: float, *, runs: bool = False, target: str = "") -> None:
        """``kind`` is ``file``, ``folder``, ``link``, ``same`` (another name of a file) or what else it may be."""
        self.name = name
        self.kind = kind
        self.modified = modified
        self.runs = runs
        self.target = target


class FilledFolder:
    """The folder that is filled, and how much is let in."""

    def __init__(self, place: str, most_bytes: int, most_members: int, reserve: int) -> None:
        self._root = os.open(place, _FOLDER)
        self._left = most_bytes
        self._members = most_members
        self._reserve = reserve
        self._unlooked = _LOOKS
        self.files = 0
        self.bytes = 0

    def take(self, member: ArchiveMember, content: BinaryIO | None) -> bool:
        """Unpack one member if it is of those that are wanted; return whether it was."""
        self._members -= 1
        if self._members < 0:
            raise NotUnpacked("it holds too many files")
        parts = split(member.name)
        if not parts or not _is_wanted(parts):
            return False
        if member.kind == "folder":
            os.close(self._folder(parts))
            return True
        if member.kind not in {"file", "link", "same"}:
            raise NotUnpacked(f"it holds a {member.kind}, which no driver does: {member.name[:200]}")
        folder = self._folder(parts[:-1])
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(parts[-1], dir_fd=folder)
            if member.kind == "link":
                os.symlink(_inside(parts, member.target), parts[-1], dir_fd=folder)
            elif member.kind == "same":
                return self._again(member, parts[-1], folder)
            elif content is not None:
                self._write(member, parts[-1], folder, content)
        except IsADirectoryError as error:
            raise NotUnpacked(f"a file stands where a folder is: {member.name[:200]}") from error
        finally:
            os.close(folder)
        self.files += 1
        return True

    def _folder(self, parts: Sequence[str]) -> int:
        """Open a folder below, and make what is missing on the way; through no link."""
        here = os.dup(self._root)
        try:
            for part in parts:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=here)
                inner = os.open(part, _FOLDER, dir_fd=here)
                os.close(here)
                here = inner
        except OSError as error:
            os.close(here)
            if error.errno in {errno.ELOOP, errno.ENOTDIR}:
                raise NotUnpacked(f"a path goes through what is no folder: {'/'.join(parts)[:200]}") from error
            raise
        return here

    def _again(self, member: ArchiveMember, name: str, folder: int) -> bool:
        """Give a file that was unpacked another name; nothing if it was not wanted."""
        parts = split(member.target)
        if not parts or not _is_wanted(parts):
            return False
        home = self._folder(parts[:-1])
        try:
            if not stat.S_ISREG(os.stat(parts[-1], dir_fd=home, follow_symlinks=False).st_mode):
                raise NotUnpacked(f"it gives another name to what is no file: {member.target[:200]}")
            os.link(parts[-1], name, src_dir_fd=home, dst_dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError as error:
            raise NotUnpacked(f"it gives another name to what is not in it: {member.target[:200]}") from error
        finally:
            os.close(home)
        return True

    def _write(self, member: ArchiveMember, name: str, folder: int, content: BinaryIO) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(name, flags, 0o755 if member.runs else 0o644, dir_fd=folder)
        try:
            while piece := content.read(_PIECE):
                self._left -= len(piece)
                self._unlooked -= len(piece)
                if self._left < 0:
                    raise NotUnpacked("it holds more bytes than a driver does")
                if self._unlooked < 0:
                    self.look()
                self.bytes += len(piece)
                while piece:
                    piece = piece[os.write(file, piece) :]
            if not 0 <= member.modified < _LATEST:
                raise NotUnpacked(f"a file's time of change is none: {member.name[:200]}")
            when = int(member.modified * 1_000_000_000)
            os.utime(file, ns=(when, when))
        finally:
            os.close(file)

    def look(self) -> None:
        """See that as much room is left as shall be."""
        self._unlooked = _LOOKS
        there = os.fstatvfs(self._root)
        if there.f_bavail * there.f_frsize < self._reserve:
            raise DiskFull(f"less than {self._reserve >> 20} MiB would be free")


def split(name: str) -> list[str]:
    """Return the parts of a member's path; refuse one that leads out of the archive's own root."""
    if len(name) > _LONGEST or "\0" in name:
        raise NotUnpacked("a path is too long, or none")
    if name.startswith("/"):
        raise NotUnpacked(f"a path is absolute: {name[:200]}")
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise NotUnpacked(f"a path leads out of it: {name[:200]}")
    if len(parts) > _DEEPEST:
        raise NotUnpacked(f"a path is too deep: {name[:200]}")
    return parts


def _is_wanted(parts: Sequence[str]) -> bool:
    path = "/".join(parts)
    return any(path == place or path.startswith(f"{place}/") for place in _PLACES)


def _inside(parts: Sequence[str], target: str) -> str:
    """Return a link's target, relative to its folder, so that it stays in the root that is made here."""
    if len(target) > _LONGEST or not target or "\0" in target:
        raise NotUnpacked("a link's target is too long, or none")
    above = len(parts) - 1
    if target.startswith("/"):
        target = "/".join([*[".."] * above, *split(target.lstrip("/"))]) or "."
    depth, below = above, False
    for part in target.split("/"):
        below = below or part not in {"", ".", ".."}
        depth -= part == ".."
        # Behind a name `..` leads to wherever that is: it may be a link itself.
        if depth < 0 or (below and part == ".."):
            raise NotUnpacked(f"a link leads out of it: {'/'.join(parts)[:200]}")
    return target


def tar_members(stream: BinaryIO) -> Iterator[tuple[ArchiveMember, BinaryIO | None]]:
    """Yield what a tar archive holds, in its order."""
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for one in archive:
            kind = "special file"
            if one.isreg():
                kind = "file"
            elif one.isdir():
                kind = "folder"
            elif one.issym():
                kind = "link"
            elif one.islnk():
                kind = "same"
            member = ArchiveMember(one.name, kind, float(one.mtime), runs=bool(one.mode & 0o100), target=one.linkname)
            yield member, archive.extractfile(one) if kind == "file" else None  # type: ignore[misc]


class StreamPart:
    """The next bytes of a stream, so many of them."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream = stream
        self.left = size

    def read(self, size: int) -> bytes:
        """Read on; nothing at the end of the part."""
        piece = self._stream.read(min(size, self.left))
        if not piece and self.left:
            raise NotUnpacked("it cannot be read: it is cut short")
        self.left -= len(piece)
        return piece


_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}


def cpio_members(stream: BinaryIO) -> Iterator[tuple[ArchiveMember, BinaryIO | None]]:
    """Yield what a cpio archive holds.  Of a file with several names only the last one has the content."""
    others: dict[tuple[int, int, int], list[ArchiveMember]] = {}
    while (head := _cpio_head(stream)) is not None:
        name, kind, (inode, mode, _, _, names, modified, size, major, minor, *_) = head
        target = ""
        if kind == "link":
            if not 0 < size <= _LONGEST:
                raise NotUnpacked("a link's target is too long, or none")
            target = _exactly(stream, size).decode("utf-8", "surrogateescape")
        elif size and kind != "file":
            raise NotUnpacked("what is no file has content")
        member = ArchiveMember(name, kind, float(modified), runs=bool(mode & 0o100), target=target)
        if kind != "file":
            yield member, None
        elif names > 1 and not size:
            others.setdefault((inode, major, minor), []).append(member)
        else:
            content = StreamPart(stream, size)
            yield member, content  # type: ignore[misc]
            while content.read(_PIECE):
                pass
            for other in others.pop((inode, major, minor), []):
                yield ArchiveMember(other.name, "same", other.modified, target=name), None
        stream.read(-size % 4)
    # Whoever writes to the pipe wants it read to its end.
    while stream.read(_PIECE):
        pass


def _cpio_head(stream: BinaryIO) -> tuple[str, str, list[int]] | None:
    """Read what stands before a member's content: its name, its kind and its numbers; None after the last."""
    head = stream.read(_HEAD)
    if len(head) != _HEAD or head[:6] not in _MAGICS:
        raise NotUnpacked("it cannot be read: it is cut short, or of a form that is not known")
    numbers = [*struct.unpack(">13I", binascii.unhexlify(head[6:]))]
    length = numbers[11]
    if not 0 < length <= _LONGEST:
        raise NotUnpacked("a path is too long, or none")
    name = _exactly(stream, length + -(_HEAD + length) % 4)[: length - 1].decode("utf-8", "surrogateescape")
    return None if name == _TRAILER else (name, _KINDS.get(stat.S_IFMT(numbers[1]), "special file"), numbers)


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise NotUnpacked("it cannot be read: it is cut short")
    return data


def main(arguments: Sequence[str] | None = None) -> int:
    """Unpack what comes on stdin, and answer."""
    parser = argparse.ArgumentParser(prog="unpacker", description="Unpack a package's files into an empty folder.")
    parser.add_argument("--form", choices=["tar", "cpio"], required=True)
    parser.add_argument("--into", required=True)
    parser.add_argument("--most-bytes", type=int, required=True)
    parser.add_argument("--most-members", type=int, required=True)
    parser.add_argument("--reserve", type=int, required=True, help="bytes that shall stay free there")
    given = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for limit, most in ((resource.RLIMIT_AS, _MEMORY), (resource.RLIMIT_CPU, _SECONDS)):
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    os.umask(0o022)
    answer: dict[str, object]
    try:
        folder = FilledFolder(given.into, given.most_bytes, given.most_members, given.reserve)
        folder.look()
        members = tar_members if given.form == "tar" else cpio_members
        for member, content in members(sys.stdin.buffer):
            folder.take(member, content)
        answer = {"files": folder.files, "bytes": folder.bytes}
    except NotUnpacked as refusal:
        answer = {"error": str(refusal), "code": refusal.code}
    except (tarfile.TarError, EOFError, ValueError, ArithmeticError, RecursionError) as error:
        # Also of a member whose content breaks off, which is read only here.
        answer = {"error": f"it cannot be read: {error}", "code": NotUnpacked.code}
    except MemoryError:
        answer = {"error": "it takes too much memory to read", "code": NotUnpacked.code}
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        words = error.strerror or str(error)
        answer = {"error": words, "code": DiskFull.code if full else "broken"}
    sys.stdout.write(json.dumps(answer))
    return 0 if "files" in answer else 1


if __name__ == "__main__":
    sys.exit(main())
