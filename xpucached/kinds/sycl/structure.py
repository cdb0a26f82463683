"""Observe: whether the tables inside a compiled program (an ELF of 64 bits) hold together, one by one.

Code itself cannot be judged: a bit that flipped there before anybody looked is found by compiling again only.  Pure;
everything read here may be forged: every offset is checked, every walk ends.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from xpucached.binaries.formats import SECTION

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SYMBOLS: Final = 2
_STRINGS: Final = 3
_RELOCATIONS: Final = {4: 24, 9: 16}
"""Section types, with and without an addend, and the size of one."""
_NO_BYTES: Final = 8
_CODE: Final = 4
"""The flag of a section that is executed."""
_HOLE: Final = bytes(1024)
"""So many zeros in a row stand in no code (GPUs' ends with less than 200), and in no names, symbols or relocations: a
power cut leaves them in a file that has its length already, and not all of its pages."""
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_RESERVED: Final = 0xFF00
"""From here on a symbol's section is no number of one."""
_OBJECT: Final = 1
"""The type of a file whose relocations count from the beginning of the section that they are for."""
_ROWS: Final = 1 << 16
"""So many rows of all tables of one program are looked at."""
_INFO: Final = b".ze_info"
_TEXT: Final = b"\t\n\r" + bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x100))
_PIECE: Final = 1 << 16
"""Bytes that are looked at in one go: other threads wait meanwhile."""


class _Section(NamedTuple):
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry: int


def table_damage(data: bytes) -> str | None:
    """Return which table does not hold together; None if all do.  That of the sections, and its names, were checked."""
    (kind,) = struct.unpack_from("<H", data, 16)
    (table,) = struct.unpack_from("<Q", data, 40)
    _, count, names = struct.unpack_from("<3H", data, 58)
    rows_of = SECTION.iter_unpack(memoryview(data)[table : table + SECTION.size * count])
    sections = list(map(_Section._make, rows_of))
    left = _ROWS
    for number, section in enumerate(sections):
        if _has_hole(data, section):
            return f"section {number}: a part of it is all zero"
        if section.name and not data[sections[names].offset + section.name]:
            return f"section {number}: its name is all zero"
        rows = section.size // 16
        if section.type in (_SYMBOLS, *_RELOCATIONS) and 0 < rows <= left:
            left -= rows
            wrong = _symbols(data, sections, section) if section.type == _SYMBOLS else None
            wrong = wrong or (_relocations(data, sections, section, kind) if section.type in _RELOCATIONS else None)
            if wrong:
                return f"section {number}: {wrong}"
        elif section.type == _STRINGS and section.size:
            if data[section.offset] or data[section.offset + section.size - 1]:
                return f"section {number}: its strings have no end"
        else:
            start = sections[names].offset + section.name
            told = data[start : start + len(_INFO) + 1] == _INFO + b"\0" and section.type != _NO_BYTES
            if told and not _is_text(data, section.offset, section.offset + section.size):
                return f"section {number}: .ze_info is no text"
    return None


def _has_hole(data: bytes, section: _Section) -> bool:
    """Return whether zeros stand where none can be."""
    whole = section.type in (_SYMBOLS, _STRINGS, *_RELOCATIONS) or (section.flags & _CODE and section.type != _NO_BYTES)
    return bool(whole) and data.find(_HOLE, section.offset, section.offset + section.size) >= 0


def _is_text(data: bytes, at: int, end: int) -> bool:
    """Return whether there is only text, and zeros behind it."""
    for start in range(at, end, _PIECE):
        if data[start : min(start + _PIECE, end)].translate(None, _TEXT):
            rest = data[start:end].rstrip(b"\0")
            return len(rest) <= _PIECE and not rest.translate(None, _TEXT)
    return True


def _symbols(data: bytes, sections: Sequence[_Section], section: _Section) -> str | None:
    if section.entry != _SYMBOL.size or section.size % _SYMBOL.size:
        return "its symbols have another size"
    if section.link >= len(sections) or sections[section.link].type != _STRINGS:
        return "its symbols have no names"
    names = sections[section.link].size
    for name, _, _, place, _, _ in _rows(_SYMBOL, data, section):
        if name >= names:
            return "the name of a symbol lies outside"
        if len(sections) <= place < _RESERVED:
            return "a symbol lies in no section"
    return None


def _relocations(data: bytes, sections: Sequence[_Section], section: _Section, kind: int) -> str | None:
    size = _RELOCATIONS[section.type]
    if section.entry != size or section.size % size:
        return "its relocations have another size"
    if section.link >= len(sections) or sections[section.link].type != _SYMBOLS or section.info >= len(sections):
        return "its relocations are for nothing"
    symbols = sections[section.link].size // _SYMBOL.size
    target = sections[section.info].size
    for place, what, *_ in _rows(struct.Struct("<QQq" if size > 16 else "<QQ"), data, section):  # noqa: PLR2004
        if what >> 32 >= symbols:
            return "a relocation names no symbol"
        if kind == _OBJECT and place >= target:
            return "a relocation lies outside"
    return None


def _rows(row: struct.Struct, data: bytes, section: _Section) -> Iterator[tuple[int, ...]]:
    return row.iter_unpack(memoryview(data)[section.offset : section.offset + section.size])
