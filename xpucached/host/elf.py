"""Observe: what stands in a shared library or a program; reads a few bounded pieces of one file."""

from __future__ import annotations

import os
import stat
import struct
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from xpucached import reading
from xpucached.host.digests import told_of_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

T = TypeVar("T")

_PT_LOAD = 1
_PT_DYNAMIC = 2
_PT_NOTE = 4
_DT_STRTAB = 5
_DT_RPATH = 15
_DT_RUNPATH = 29
_NT_GNU_BUILD_ID = 3
_MOST_SEGMENTS = 256  # real libraries have about ten
_LONGEST_NOTE = 1 << 16
_LONGEST_ID = 64  # 20 bytes is usual
_LONGEST_TABLE = 1 << 14
_LONGEST_PATH = 4096
_MOST_PATHS = 32
_HEADER = 64
_SHORT_HEADER = 52  # of a 32-bit file


def build_id(path: Path) -> str | None:
    """Return the GNU build id of an ELF file in hex; None if it has none or is no such file.

    Raises OSError where no file can be opened now: it may have one.
    """
    return _searched(path, _build_id)


def run_paths(path: Path) -> tuple[str, ...]:
    """Return the directories in which an ELF file has what it needs looked for (RUNPATH).

    Raises OSError where no file can be opened now.
    """
    found = (_searched(path, _run_paths) or "").split(":", _MOST_PATHS)[:_MOST_PATHS]
    place = os.fspath(path.parent)
    meant = (one.replace("${ORIGIN}", place).replace("$ORIGIN", place) for one in found)
    return tuple(one for one in meant if one.startswith("/"))


def _searched(path: Path, search: Callable[[int], T | None]) -> T | None:
    try:
        # Opening a device has effects of its own.  What is swapped for a pipe meanwhile must not stop us.
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        descriptor = reading.opened(path)
    except OSError as error:
        told_of_file(error)
        return None
    except ValueError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return search(descriptor)
    except (OSError, OverflowError, struct.error):
        return None
    finally:
        os.close(descriptor)


class _Segment(NamedTuple):
    """One row of the table of what is loaded."""

    kind: int
    offset: int
    address: int
    length: int


def _segments(descriptor: int) -> Iterator[tuple[str, str, _Segment]]:
    """Yield the segments, each with the order of its bytes and the kind of its words."""
    head = os.pread(descriptor, _HEADER, 0)
    if head[:4] != b"\x7fELF" or len(head) < _SHORT_HEADER:
        return
    order = ">" if head[5] == 2 else "<"  # noqa: PLR2004 - EI_DATA of a big-endian file
    wide = head[4] == 2  # noqa: PLR2004 - EI_CLASS of a 64-bit file
    if wide:
        table, size, count = *struct.unpack_from(f"{order}Q", head, 32), *struct.unpack_from(f"{order}HH", head, 54)
        row, word = struct.Struct(f"{order}I4xQQ8xQ16x"), "Q"
    else:
        table, size, count = *struct.unpack_from(f"{order}I", head, 28), *struct.unpack_from(f"{order}HH", head, 42)
        row, word = struct.Struct(f"{order}III4xI12x"), "I"
    if size < row.size:
        return
    for index in range(min(count, _MOST_SEGMENTS)):
        yield order, word, _Segment(*row.unpack(os.pread(descriptor, row.size, table + index * size)))


def _build_id(descriptor: int) -> str | None:
    left = _LONGEST_NOTE
    for order, _, one in _segments(descriptor):
        if one.kind != _PT_NOTE:
            continue
        # Segments may share their bytes.
        notes = os.pread(descriptor, min(one.length, left), one.offset)
        left -= len(notes)
        found = _note(notes, order)
        if found:
            return found
    return None


def _run_paths(descriptor: int) -> str | None:
    rows = list(_segments(descriptor))
    for order, word, one in rows:
        if one.kind != _PT_DYNAMIC:
            continue
        entry = struct.Struct(f"{order}{word}{word}")
        content = os.pread(descriptor, min(one.length, _LONGEST_TABLE), one.offset)
        tags = dict(entry.iter_unpack(content[: len(content) // entry.size * entry.size]))
        at, text = tags.get(_DT_STRTAB), tags.get(_DT_RUNPATH, tags.get(_DT_RPATH))
        for _, _, two in rows:
            if at is None or text is None or two.kind != _PT_LOAD or not 0 <= at - two.address < two.length:
                continue
            said = os.pread(descriptor, _LONGEST_PATH, two.offset + at - two.address + text)
            return os.fsdecode(said.partition(b"\0")[0])
    return None


def _note(notes: bytes, order: str) -> str | None:
    """Walk the notes of one segment: name length, content length, type, then both padded to four bytes."""
    at = 0
    while at + 12 <= len(notes):
        name_length, length, kind = struct.unpack_from(f"{order}III", notes, at)
        name_at = at + 12
        content_at = name_at + (name_length + 3 & ~3)
        if kind == _NT_GNU_BUILD_ID and notes[name_at : name_at + name_length] == b"GNU\0":
            content = notes[content_at : content_at + length]
            return content.hex() if len(content) == length and 0 < length <= _LONGEST_ID else None
        at = content_at + (length + 3 & ~3)
    return None
