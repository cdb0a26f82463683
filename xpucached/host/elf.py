"""Observe: the build id inside a shared library; reads a few bounded pieces of one file."""

from __future__ import annotations

import os
import stat
import struct
from typing import TYPE_CHECKING

from xpucached.host.digests import told_of_file

if TYPE_CHECKING:
    from pathlib import Path

_PT_NOTE = 4
_NT_GNU_BUILD_ID = 3
_MOST_SEGMENTS = 256  # real libraries have about ten
_LONGEST_NOTE = 1 << 16
_LONGEST_ID = 64  # 20 bytes is usual
_HEADER = 64
_SHORT_HEADER = 52  # of a 32-bit file


def build_id(path: Path) -> str | None:
    """Return the GNU build id of an ELF file in hex; None if it has none or is no such file.

    Raises OSError where no file can be opened now: it may have one.
    """
    try:
        # Opening a device has effects of its own.  What is swapped for a pipe meanwhile must not stop us.
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        told_of_file(error)
        return None
    except ValueError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return _search(descriptor)
    except (OSError, OverflowError, struct.error):
        return None
    finally:
        os.close(descriptor)


def _search(descriptor: int) -> str | None:
    head = os.pread(descriptor, _HEADER, 0)
    if head[:4] != b"\x7fELF" or len(head) < _SHORT_HEADER:
        return None
    order = ">" if head[5] == 2 else "<"  # noqa: PLR2004 - EI_DATA of a big-endian file
    wide = head[4] == 2  # noqa: PLR2004 - EI_CLASS of a 64-bit file
    if wide:
        table, size, count = *struct.unpack_from(f"{order}Q", head, 32), *struct.unpack_from(f"{order}HH", head, 54)
        offset_at, length_at, word, least = 8, 32, "Q", 56
    else:
        table, size, count = *struct.unpack_from(f"{order}I", head, 28), *struct.unpack_from(f"{order}HH", head, 42)
        offset_at, length_at, word, least = 4, 16, "I", 32
    if size < least:
        return None
    left = _LONGEST_NOTE
    for index in range(min(count, _MOST_SEGMENTS)):
        segment = os.pread(descriptor, least, table + index * size)
        if struct.unpack_from(f"{order}I", segment)[0] != _PT_NOTE:
            continue
        (offset,) = struct.unpack_from(f"{order}{word}", segment, offset_at)
        (length,) = struct.unpack_from(f"{order}{word}", segment, length_at)
        # Segments may share their bytes.
        notes = os.pread(descriptor, min(length, left), offset)
        left -= len(notes)
        found = _note(notes, order)
        if found:
            return found
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
