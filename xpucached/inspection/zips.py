"""Zip archives of any size: the directory is read piece by piece, and each member unpacked within bounds.

Python's own module holds a row for each member in memory, and believes the sizes that an archive tells.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from xpucached.inspection.content import Content, FileContent, MemoryContent, Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

_END: Final = b"PK\5\6"
_END_64: Final = b"PK\6\7"
_ROW: Final = b"PK\1\2"
_HEAD: Final = b"PK\3\4"
_STORED, _DEFLATED = 0, 8
_ENCRYPTED: Final = 1
_PIECE: Final = 1 << 20
_IN_MEMORY: Final = 64 << 20
_FEW: Final = 8 << 10
_MOST_MEMBERS: Final = 1 << 21
_LARGEST: Final = 8 << 30
_ELSEWHERE: Final = "TMPDIR names another place"
_LARGEST_NAME: Final = 1 << 16


class Member(Struct, frozen=True):
    """One row of an archive's directory."""

    name: str
    method: int
    encrypted: bool
    packed: int
    size: int
    at: int
    checksum: int


class ZipArchive:
    """A zip archive; raises `Unreadable` if it is none or does not hold together."""

    def __init__(self, content: Content) -> None:
        self._content = content
        tail_at = max(0, content.size - (1 << 16) - 22)
        tail = content.read(tail_at, content.size - tail_at)
        end = tail.rfind(_END)
        if end < 0 or end + 22 > len(tail):
            raise Unreadable("it is no zip archive")
        self.count, size, start = struct.unpack_from("<H2I", tail, end + 10)
        if end >= 20 and tail[end - 20 : end - 16] == _END_64:  # noqa: PLR2004 - where the larger fields are told
            (where,) = struct.unpack_from("<Q", tail, end - 12)
            row = content.read(where, 56)
            if len(row) == 56 and row.startswith(b"PK\6\6"):  # noqa: PLR2004
                self.count, size, start = struct.unpack_from("<3Q", row, 32)
        if start + size > content.size:
            raise Unreadable("the directory of the archive lies outside")
        if self.count > _MOST_MEMBERS:
            raise Unreadable(f"the archive has {self.count} members; at most {_MOST_MEMBERS} are looked at")
        self._start, self._end = start, start + size
        self._taken = self._searched = 0

    def members(self) -> Iterator[Member]:
        """Yield the rows of its directory."""
        at = self._start
        piece, begin = b"", 0
        for _ in range(self.count):
            if begin + _LARGEST_NAME * 3 > len(piece):
                piece, begin = self._content.read(at, min(_PIECE, self._end - at)), 0
            if len(piece) - begin < 46 or piece[begin : begin + 4] != _ROW:  # noqa: PLR2004 - a row without its name
                raise Unreadable("the directory of the archive does not hold together")
            flags, method = struct.unpack_from("<2H", piece, begin + 8)
            checksum, packed, size, name, extra, comment = struct.unpack_from("<3I3H", piece, begin + 16)
            (offset,) = struct.unpack_from("<I", piece, begin + 42)
            text = piece[begin + 46 : begin + 46 + name].decode("utf-8", "backslashreplace")
            more = piece[begin + 46 + name : begin + 46 + name + extra]
            packed, size, offset = _wide(more, packed, size, offset)
            yield Member(text, method, bool(flags & _ENCRYPTED), packed, size, offset, checksum)
            length = 46 + name + extra + comment
            begin, at = begin + length, at + length

    def beginning(self, member: Member, length: int = 64) -> bytes:
        """Return the first bytes of a member.  Raises `Unreadable`."""
        try:
            return b"".join(self._stream(member, length, _FEW))
        except Unreadable:
            # Nothing may come of much that is packed first; members that share it would make that endless.
            self._searched += member.packed
            if member.packed <= _FEW or self._searched > self._content.size:
                raise
            return b"".join(self._stream(member, length))

    @contextmanager
    def unpack(self, member: Member) -> Iterator[Content]:
        """Give the whole of a member, in memory or in a file without a name.  Raises `Unreadable`."""
        # Members that share their bytes would make a small archive an endless one.
        self._taken += member.packed
        if self._taken > self._content.size:
            raise Unreadable("members of the archive overlap")
        if member.size > _LARGEST:
            raise Unreadable(f"it has {_mib(member.size)} unpacked: of a member at most {_mib(_LARGEST)} are")
        if member.size <= _IN_MEMORY:
            yield MemoryContent(b"".join(self._stream(member, member.size)))
            return
        import tempfile  # noqa: PLC0415 - slow to load, and seldom needed

        with ExitStack() as stack:
            try:
                file = stack.enter_context(tempfile.TemporaryFile(prefix="xpucached-"))
                _need_room(file.fileno(), tempfile.gettempdir(), member.size)
                for piece in self._stream(member, member.size):
                    file.write(piece)
                file.flush()
            except OSError as error:
                raise Unreadable(f"no room to unpack it: {error.strerror}; {_ELSEWHERE}") from error
            yield FileContent(file.fileno(), member.size)

    def _stream(self, member: Member, most: int, packed: int = sys.maxsize) -> Iterator[bytes]:
        """Yield a member's bytes, at most so many, and of at most so many that are packed."""
        if member.encrypted or member.method not in {_STORED, _DEFLATED}:
            raise Unreadable("it is packed in a way that is not known")
        head = self._content.read(member.at, 30)
        if len(head) < 30 or not head.startswith(_HEAD):  # noqa: PLR2004 - a head without its name
            raise Unreadable("a member lies outside of the archive")
        name, extra = struct.unpack_from("<2H", head, 26)
        at = member.at + 30 + name + extra
        end = min(at + min(member.packed, packed), self._content.size)
        engine = zlib.decompressobj(-15) if member.method == _DEFLATED else None
        left = min(most, member.size)
        while left > 0:
            raw = self._content.read(at, min(_PIECE if most > _IN_MEMORY else 4 * _PIECE, most + 4096, end - at))
            at += len(raw)
            if engine is None:
                made = raw[:left]
            else:
                try:
                    made = engine.decompress(raw, min(left, 16 * _PIECE))
                except zlib.error as error:
                    raise Unreadable(f"a member is damaged: {error}") from error
                at -= len(engine.unconsumed_tail)
            if not made and (at >= end or not raw or (engine is not None and engine.eof)):
                raise Unreadable("a member ends too early")
            left -= len(made)
            yield made


def _need_room(descriptor: int, place: str, size: int) -> None:
    """Raise `Unreadable` if less would be left free than is taken; many keep temporary files in memory."""
    room = os.fstatvfs(descriptor)
    free = room.f_bavail * room.f_frsize
    if room.f_blocks and size > free // 2:
        taken = f"it has {_mib(size)} unpacked, and of the {_mib(free)} that are free in {place} at most half are taken"
        raise Unreadable(f"{taken}; {_ELSEWHERE}")


def _mib(size: int) -> str:
    return f"{-(-size >> 20)} MiB"


def _wide(extra: bytes, packed: int, size: int, offset: int) -> tuple[int, int, int]:
    """Return sizes and place of a member, from where they stand if they are too large for their fields."""
    full = 0xFFFFFFFF
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            numbers = iter(struct.unpack_from(f"<{min(length, len(extra) - at - 4) // 8}Q", extra, at + 4))
            size = next(numbers, size) if size == full else size
            packed = next(numbers, packed) if packed == full else packed
            offset = next(numbers, offset) if offset == full else offset
            break
        at += 4 + length
    return packed, size, offset
