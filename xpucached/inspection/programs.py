"""The device images that a compiler put into a program or a library: found by the table that it registers at start.

A compiler leaves, in writable memory, one row for each image: its format, the name of its target, where it lies, and
the names of its kernels.  Rows hold addresses, which the loader would fill in; here the relocations are applied to a
copy.  Everything read may be forged: rows that do not hold together are no rows, and every walk is bounded.
"""

from __future__ import annotations

import re
import struct
from array import array
from bisect import bisect_right
from itertools import islice
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from xpucached.inspection.content import Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from xpucached.inspection.content import Content

_LOAD, _DYNAMIC = 1, 2
_WRITABLE: Final = 2
_RELATIVE: Final = {62: 8, 183: 1027}
"""The kind of relocation that only adds where the library was loaded, by the processor."""
_RELA, _RELA_SIZE = 7, 8

_MOST_SEGMENTS: Final = 256
_MOST_WRITABLE_SEGMENTS: Final = 8
"""Linkers make two or three."""
_MOST_WRITABLE: Final = 1 << 30
_MOST_RELOCATIONS: Final = 1 << 25
_RELOCATIONS_AT_ONCE: Final = 24 << 16
_RELOCATIONS_SEARCHED: Final = 24 << 9
"""So many bytes of them are passed over at once where none is of that kind: those of holes in a file take no room."""
_MOST_ROWS: Final = 1 << 22
_MOST_IMAGES: Final = 1 << 18
MOST_KERNELS: Final = 1 << 20
_MOST_ENTRIES: Final = 1 << 21
MOST_NAMES: Final = 1 << 28
_LONGEST_NAME: Final = 64 << 10
_MOST_TEXT: Final = 1 << 30
"""Bytes that are read in search of the ends of names."""

_ROW: Final = re.compile(rb"(?=[\x01-\x03]\x00\x04[\x00-\x04]\x00\x00\x00\x00)", re.DOTALL)
"""The head of a row: its version, the number of the language, a format, and nothing up to the next address."""
_TARGET: Final = re.compile(
    rb"(spir(64)?(_[a-z0-9_]+)?|(llvm_)?(nvptx|amdgcn)[a-z0-9_-]*|native_cpu|intel_gpu_[a-z0-9_]+)\Z"
)
_WITH_MANIFEST: Final = struct.Struct("<HBBI11Q")
_ROW_SIZE: Final = {1: 96, 2: 96, 3: 80}
_ENTRY, _NEW_ENTRY = 32, 56
_NEW: Final = struct.Struct("<QHHI")


class FoundImage(Struct, frozen=True):
    """One device image in a file: what it is for, where it lies, and the kernels that it is registered with."""

    target: str
    offset: int
    size: int
    kernels: tuple[bytes, ...]


class Segment(Struct, frozen=True):
    """A part of a program that is loaded."""

    address: int
    offset: int
    size: int
    writable: bool


class _Spans:
    """Parts of an address space, which may overlap: the first one at an address is found at once, of however many."""

    def __init__(self, parts: Sequence[tuple[int, int]]) -> None:
        """``parts`` are where each begins, and its size."""
        self._edges = sorted({edge for start, size in parts for edge in (start, start + size)})
        self._first = [
            next((number for number, (start, size) in enumerate(parts) if start <= edge < start + size), None)
            for edge in self._edges
        ]

    def at(self, address: int) -> int | None:
        """Return the number of the first one at an address; None if none is."""
        number = bisect_right(self._edges, address) - 1
        return self._first[number] if number >= 0 else None


class LinkedProgram:
    """An ELF file as its loader would lay it out; raises `Unreadable` if it is none or does not hold together."""

    def __init__(self, content: Content) -> None:
        self._content = content
        head = content.read(0, 64)
        if len(head) < 64 or head[:4] != b"\x7fELF" or head[4:6] != b"\x02\x01":  # noqa: PLR2004 - an ELF64 header
            raise Unreadable("it is no 64-bit little-endian ELF file")
        self.kind, self.machine = struct.unpack_from("<2H", head, 16)
        (table,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<2H", head, 54)
        self.segments: list[Segment] = []
        dynamic = (0, 0)
        for index in range(min(count, _MOST_SEGMENTS) if size >= 56 else 0):  # noqa: PLR2004 - the size of a row
            row = content.read(table + index * size, 56)
            if len(row) < 56:  # noqa: PLR2004
                break
            kind, flags, offset, address, _, filled = struct.unpack_from("<2I4Q", row)
            if offset + filled > content.size:
                raise Unreadable("a segment lies outside")
            if kind == _LOAD and filled:
                self.segments.append(Segment(address, offset, filled, bool(flags & _WRITABLE)))
            elif kind == _DYNAMIC:
                dynamic = (offset, filled)
        self._spans = _Spans([(one.address, one.size) for one in self.segments])
        self._memory = self._writable(*dynamic)
        self._written = _Spans([(start, len(data)) for start, data in self._memory])
        self._looked = 0  # entries for kernels
        self._read = 0  # bytes of texts

    def _writable(self, dynamic: int, size: int) -> list[tuple[int, bytearray]]:
        """Return what can be written to, as it is after loading at address 0."""
        parts = [one for one in self.segments if one.writable]
        # Segments that share their bytes would make a small file an endless one.
        most = min(_MOST_WRITABLE, self._content.size)
        if sum(one.size for one in parts) > most or len(parts) > _MOST_WRITABLE_SEGMENTS:
            raise Unreadable("it has more writable memory than any program")
        memory = [(one.address, bytearray(self._content.read(one.offset, one.size))) for one in parts]
        rows = self._content.read(dynamic, min(size, 1 << 16))
        told: dict[int, int] = {}
        for key, value in struct.iter_unpack("<2Q", rows[: len(rows) // 16 * 16]):
            if key == 0:
                break
            told.setdefault(key, value)
        place = self.place(told.get(_RELA, 0))
        if place is not None and self.machine in _RELATIVE:
            end = min(place + told.get(_RELA_SIZE, 0), place + 24 * _MOST_RELOCATIONS, self._content.size)
            for at in range(place, end - 23, _RELOCATIONS_AT_ONCE):
                _relocate(memory, self._content.read(at, min(_RELOCATIONS_AT_ONCE, end - at)), _RELATIVE[self.machine])
        return memory

    def place(self, address: int) -> int | None:
        """Return where in the file an address lies; None if nowhere."""
        number = self._spans.at(address)
        return None if number is None else self.segments[number].offset + address - self.segments[number].address

    def loaded(self, address: int, length: int) -> bytes:
        """Return what stands at an address after loading; fewer bytes where they end, none if nothing is there."""
        number = self._written.at(address)
        if number is not None:
            start, data = self._memory[number]
            return bytes(data[address - start : address - start + length])
        number = self._spans.at(address)
        if number is None:
            return b""
        one = self.segments[number]
        at = address - one.address
        return self._content.read(one.offset + at, min(length, one.size - at))

    def text(self, address: int, longest: int = _LONGEST_NAME) -> bytes | None:
        """Return the text that begins at an address; None if it has no end."""
        length = 256
        while True:
            piece = self.loaded(address, length)
            self._read += len(piece)
            if self._read > _MOST_TEXT:
                raise Unreadable("its names are longer than any program's")
            end = piece.find(b"\0")
            if end >= 0:
                return piece[:end]
            if length >= longest or len(piece) < length:
                return None
            length = min(4 * length, longest)

    def images(self) -> Iterator[FoundImage]:
        """Yield the images that it registers, in the order of its memory."""
        left_kernels, left_bytes, count, rows = MOST_KERNELS, MOST_NAMES, 0, 0
        targets: dict[int, str | None] = {}
        for start, data in self._memory:
            for match in _ROW.finditer(data):
                at = match.start()
                if (start + at) % 8:
                    continue
                rows += 1
                if rows > _MOST_ROWS:
                    raise Unreadable("it registers more images than any program")
                if (row := self._row(data, at, targets)) is None:
                    continue
                target, first, end, entries, last = row
                place = self.place(first)
                if place is None or place + end - first > self._content.size:
                    continue
                count += 1
                if count > _MOST_IMAGES:
                    raise Unreadable(f"it registers more than {_MOST_IMAGES} images")
                names = tuple(islice(self._names(entries, last), left_kernels))
                left_kernels -= len(names)
                left_bytes -= sum(map(len, names))
                if left_kernels <= 0 or left_bytes <= 0:
                    raise Unreadable("it registers more kernels than any program")
                yield FoundImage(target, place, end - first, names)

    def _row(self, data: bytearray, at: int, targets: dict[int, str | None]) -> tuple[str, int, int, int, int] | None:
        version = data[at]
        row = bytes(data[at : at + _ROW_SIZE[version]])
        if len(row) < _ROW_SIZE[version]:
            return None
        if version == 3:  # noqa: PLR2004 - it lost two addresses, which nobody had used
            row = row[:32] + bytes(16) + row[32:]
        _, _, _, _, name, _, _, _, _, first, end, entries, last, _, _ = _WITH_MANIFEST.unpack(row)
        if not 0 < first <= end or entries > last:
            return None
        if name not in targets:
            read = self.text(name, 64)
            targets[name] = read.decode("ascii") if read is not None and _TARGET.match(read) else None
        target = targets[name]
        return None if target is None else (target, first, end, entries, last)

    def _names(self, first: int, end: int) -> Iterator[bytes]:
        at = first
        while at < end:
            # Tables may overlap, and hold entries without names: what is looked at counts, not what is found.
            self._looked += 1
            if self._looked > _MOST_ENTRIES:
                raise Unreadable("it registers more kernels than any program")
            entry = self.loaded(at, _NEW_ENTRY)
            newer = len(entry) == _NEW_ENTRY and _NEW.unpack_from(entry) == (0, 1, 8, 0)
            if len(entry) < _ENTRY:
                return
            (address,) = struct.unpack_from("<Q", entry, 24 if newer else 8)
            name = self.text(address)
            if name is not None:
                yield name
            at += _NEW_ENTRY if newer else _ENTRY


def _relocate(memory: list[tuple[int, bytearray]], rows: bytes, relative: int) -> None:
    numbers = array("Q")
    some = (rows[at : at + _RELOCATIONS_SEARCHED] for at in range(0, len(rows) // 24 * 24, _RELOCATIONS_SEARCHED))
    wanted = relative.to_bytes(8, "little")
    numbers.frombytes(b"".join(one[: len(one) // 24 * 24] for one in some if wanted in one))
    for start, data in memory:
        end = start + len(data) - 8
        pack = struct.Struct("<Q").pack_into
        for address, kind, addend in zip(numbers[0::3], numbers[1::3], numbers[2::3], strict=True):
            if kind == relative and start <= address <= end:
                pack(data, address - start, addend)
