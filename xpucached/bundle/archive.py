"""Tar archives: written byte for byte the same, and read without ever making a path of what they say.

The reader takes exactly what the writer makes: plain files and folders, in ascending order, once each.  Nothing is
extracted: it gives names and bytes, and each name is one that we would have written.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

from xpucached.bundle import words
from xpucached.errors import BadBundle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xpucached.bundle.packing import Readable

_BLOCK: Final = 512
_NAME, _PREFIX = 100, 155
_OCTAL: Final = re.compile(rb"[0-7]+\Z")
_MAGIC: Final = b"ustar\x0000"
_FILE, _FOLDER = b"0", b"5"
_END: Final = bytes(_BLOCK)
_ROUND: Final = 20 * _BLOCK
"""What the whole archive is a multiple of."""


# -- writing ----------------------------------------------------------------------------------------------------------


_NOBODY: Final = b"0000000\0" * 2
_MODE: Final = {_FOLDER: b"0000755\0" + _NOBODY, _FILE: b"0000644\0" + _NOBODY}
_TIME: Final = b"%011o\0" % 0
_TAIL: Final = bytes(100) + _MAGIC + bytes(64) + _NOBODY
_SAME: Final = {kind: sum(_MODE[kind] + _TIME + kind + _TAIL) + 8 * 32 for kind in _MODE}
"""The part of a head's checksum that is the same for all."""


def _header(name: str, size: int, kind: bytes) -> bytes:
    raw, prefix = name.encode("ascii"), b""
    if len(raw) > _NAME:
        prefix, _, raw = raw.rpartition(b"/")
    if len(raw) > _NAME or len(prefix) > _PREFIX:
        raise ValueError(f"a name is too long for an archive: {name}")
    length = b"%011o\0" % size
    head = raw.ljust(_NAME, b"\0") + _MODE[kind] + length + _TIME
    check = b"%06o\0 " % (_SAME[kind] + sum(raw) + sum(length) + sum(prefix))
    return head + check + kind + _TAIL + prefix.ljust(_PREFIX, b"\0") + bytes(12)


class ArchiveWriter:
    """Writes an archive, file by file in ascending order of their names; folders come by themselves."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._folders: set[str] = set()
        self.size = 0  #: bytes
        self.count = 0  #: files and folders

    def add(self, name: str, content: bytes) -> None:
        """Write a file."""
        self._put(b"".join((*self._heads(name, len(content)), content, bytes(-len(content) % _BLOCK))))

    def begin(self, name: str, size: int) -> None:
        """Write what stands before a file whose bytes go to `more`."""
        self._put(b"".join(self._heads(name, size)))

    def _heads(self, name: str, size: int) -> list[bytes]:
        heads = [_header(name, size, _FILE)]
        folder = name.rpartition("/")[0]
        while folder and folder not in self._folders:
            self._folders.add(folder)
            heads.append(_header(folder, 0, _FOLDER))
            folder = folder.rpartition("/")[0]
        self.count += len(heads)
        return heads[::-1]

    def more(self, content: bytes) -> None:
        """Write some of a file."""
        self._put(content)

    def end(self, size: int) -> None:
        """Write what stands behind a file of so many bytes."""
        self._put(bytes(-size % _BLOCK))

    def finish(self) -> None:
        """Write the end of the archive."""
        self._put(bytes(2 * _BLOCK))
        self._put(bytes(-self.size % _ROUND))

    def _put(self, data: bytes) -> None:
        self.size += len(data)
        self._write(data)


# -- reading ----------------------------------------------------------------------------------------------------------


class _Head(NamedTuple):
    name: str
    size: int
    folder: bool


def _number(block: bytes, at: int, length: int) -> int:
    text = block[at : at + length].rstrip(b"\0 ")
    if _OCTAL.match(text) is None:
        raise BadBundle("an archive has a size that is no octal number")
    return int(text, 8)


def _ours(block: bytes) -> _Head | None:
    """Read a head that is byte for byte as it is written here, in a part of the time of `_member`; else None."""
    raw, prefix = block[:_NAME].rstrip(b"\0"), block[345:500].rstrip(b"\0")
    kind, length = block[156:157], block[124:135]
    if kind not in _MODE or not length.isdigit():
        return None
    try:
        name = (prefix + b"/" + raw if prefix else raw).decode("ascii")
        size = int(length, 8)
        written = _header(name, size, kind)
    except ValueError:
        return None
    folder = kind == _FOLDER
    return _Head(name, size, folder) if written == block and not (folder and (size or name.endswith("/"))) else None


def _member(block: bytes, *, strict: bool) -> _Head:
    """Read the head of a member; strictly, only as it is written here."""
    if block[257:265] != _MAGIC and (strict or block[257:265] != b"ustar  \0"):
        raise BadBundle("a layer is no archive of the plain form (USTAR)")
    kind = block[156:157]
    if kind not in (_FILE, _FOLDER) and (strict or kind != b"\0"):
        raise BadBundle(f"an archive has a member that is neither file nor folder: type {kind!r}")
    if sum(block[:148]) + 8 * 32 + sum(block[156:]) != _number(block, 148, 8):
        raise BadBundle("the head of a member of an archive is damaged")
    raw, prefix = block[:_NAME].partition(b"\0")[0], block[345:500].partition(b"\0")[0]
    try:
        name = (prefix + b"/" + raw if prefix else raw).decode("ascii")
    except UnicodeDecodeError:
        raise BadBundle("an archive has a name that is not plain text") from None
    size = _number(block, 124, 12)
    if kind == _FOLDER:
        name = name.removesuffix("/")
        if size:
            raise BadBundle("an archive has a folder with a size")
    return _Head(name, size, kind == _FOLDER)


def _exactly(stream: Readable, size: int) -> bytes:
    content = stream.read(size)
    if len(content) != size:
        raise BadBundle("an archive is cut short")
    return content


def files(
    stream: Readable, is_file: Callable[[str], bool], is_folder: Callable[[str], bool]
) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a layer, names and bytes.  Raises `BadBundle` for what the writer would not have written."""
    last, count = "", 0
    while (block := _exactly(stream, _BLOCK)) != _END:
        member = _ours(block) or _member(block, strict=True)
        if not (is_folder if member.folder else is_file)(member.name):
            raise BadBundle(f"an archive has a name that does not belong there: {member.name[:80]!r}")
        if member.name <= last:
            raise BadBundle("the members of an archive are not in order, or one stands there twice")
        last, count = member.name, count + 1
        if count > words.MOST_FILES:
            raise BadBundle(f"an archive has more than {words.MOST_FILES} members")
        if member.size > words.LARGEST_FILE:
            raise BadBundle(f"an archive has a file of {member.size} bytes")
        if member.folder:
            continue
        content = _exactly(stream, member.size + -member.size % _BLOCK)
        if content[member.size :].strip(b"\0"):
            raise BadBundle("an archive hides bytes between its members")
        yield member.name, content[: member.size]
    seen = 0
    while rest := stream.read(1 << 16):
        seen += len(rest)
        if any(rest) or seen > _ROUND:
            raise BadBundle("bytes follow the end of an archive")
    if seen < _BLOCK or seen % _BLOCK:
        raise BadBundle("an archive is cut short")


def places(
    stream: BinaryIO, is_file: Callable[[str], bool], is_folder: Callable[[str], bool], size: int
) -> dict[str, tuple[int, int]]:
    """Return where in an archive of so many bytes each file is, and its size; in any order, as other tools write it."""
    found: dict[str, tuple[int, int]] = {}
    at, count = 0, 0
    while True:
        stream.seek(at)
        block = _exactly(stream, _BLOCK)
        if block == bytes(_BLOCK):
            return found
        member = _member(block, strict=False)
        if member.name in found or not (is_folder if member.folder else is_file)(member.name):
            raise BadBundle(f"an archive has a name twice, or one that does not belong there: {member.name[:80]!r}")
        at, count = at + _BLOCK, count + 1
        if member.size > size - at:
            raise BadBundle("an archive is cut short")
        if not member.folder:
            found[member.name] = (at, member.size)
        if count > words.MOST_FILES:
            raise BadBundle(f"an archive has more than {words.MOST_FILES} members")
        at += member.size + -member.size % _BLOCK
