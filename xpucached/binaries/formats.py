"""What device images and compiled programs are: their format, their kernels' names, and their sections.

Everything read here may be forged: every offset is checked, every walk ends.
"""

from __future__ import annotations

import hashlib
import re
import struct
import sys
from array import array
from itertools import islice
from typing import TYPE_CHECKING, Final

from xpucached.domain.stores import ImageFormat

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SPIRV: Final = b"\x03\x02\x23\x07"
_SPIRV_WORD: Final = 0x07230203
ELF: Final = b"\x7fELF"
ARCHIVE: Final = b"!<arch>\n"
BITCODE: Final = (b"BC\xc0\xde", b"\xde\xc0\x17\x0b")
PATCH_TOKENS: Final = (b"CTNI", b"INTC")
"""How the binaries of the GPU driver began before it wrote ELF."""

_HEADER: Final = 5
"""Words before the first instruction of a module."""
_ENTRY_POINT: Final = 15
_LAST_BEFORE_BODIES: Final = 54
_SOURCE: Final = 3
_OPENCL_C: Final = 3
_PREAMBLE: Final = 1 << 16
"""So many words of a module are looked through for the language of its source, which stands before its types."""
_INSTRUCTIONS: Final = 1 << 20
"""So many instructions of one image are walked, all its modules together."""
SECTION: Final = struct.Struct("<IIQQQQIIQQ")
"""A row of an ELF's table of sections."""

_MEMBERS: Final = 4096
"""So many members of an archive are looked at."""
_NAME: Final = 64 << 10
_NAMES: Final = 1 << 20
"""So many bytes the names of one image have together: they travel with the entry into the catalog and over the wire."""
_SHARED: Final = 2
"""Names of sections may share their ends: beyond `_NAMES`, so many times the bytes of the file together at most."""


def image_format(data: bytes) -> ImageFormat:
    """Return what an image is from its first bytes."""
    if data.startswith(SPIRV):
        return ImageFormat.SPIRV
    if data.startswith(ELF):
        return ImageFormat.ELF
    if data.startswith(ARCHIVE):
        return ImageFormat.ARCHIVE
    if data.startswith(BITCODE):
        return ImageFormat.BITCODE
    return ImageFormat.UNKNOWN


def input_digest(data: bytes) -> str | None:
    """Return what SPIR-V is known by, whichever cache it was found in; None for anything else."""
    return hashlib.sha256(data).hexdigest() if data.startswith(SPIRV) else None


_MODULE: Final = re.compile(SPIRV + rb"(?=\0.\x01\0.{4}(?!\0{4}).{4}\0{4})", re.DOTALL)
"""The head of a module: its magic number; version 1, generator, bound and schema of 0 follow."""

_CROOKED: Final = 64
"""So many heads are passed over that are not where a word begins; more of them are forged."""


def _next_module(data: bytes, at: int) -> int | None:
    # One search by the regular expression's own code: a file full of magic numbers costs no more than its length.
    for head in islice(_MODULE.finditer(data, at), _CROOKED):
        if head.start() % 4 == 0:
            return head.start()
    return None


def modules(data: bytes, most: int = 2) -> int:
    """Count the SPIR-V modules of an image, up to ``most``: 0 if it is something else."""
    count, at = 0, _next_module(data, 0) if data.startswith(SPIRV) else None
    while at is not None and count < most:
        count += 1
        at = _next_module(data, at + 20)
    return count


def _spirv_kernels(data: bytes) -> Iterator[bytes]:
    """Walk each module up to its first function: entry points come before."""
    left = _INSTRUCTIONS
    # One view of all words, because thousands of instructions may stand before the first function.
    words = _words(data)
    end = len(words)
    module = _next_module(data, 0)
    while module is not None and left > 0:
        at = module // 4 + _HEADER
        while at < end and left > 0:
            left -= 1
            word = words[at]
            opcode, length = word & 0xFFFF, word >> 16
            if opcode == _ENTRY_POINT and length:
                start = 4 * at + 12
                yield data[start : min(4 * (at + length), start + _NAME)].split(b"\0", 1)[0]
            elif length == 0 or opcode == _LAST_BEFORE_BODIES or word == _SPIRV_WORD:
                break
            at += length
        # The search goes on where the walk ended: no word is walked twice, however many headers are forged.
        module = _next_module(data, 4 * at)


def is_from_opencl_c(data: bytes) -> bool:
    """Return whether a SPIR-V module says that it was made of OpenCL C: what debuggers are told stands in front."""
    words = _words(data[: 4 * _PREAMBLE])
    at = _HEADER
    while at + 1 < len(words) and (words[at] >> 16):
        opcode, length = words[at] & 0xFFFF, words[at] >> 16
        if opcode == _SOURCE:
            return words[at + 1] == _OPENCL_C
        at += length
    return False


def _words(data: bytes) -> Sequence[int]:
    """Return the words of an image as the little-endian numbers that they are."""
    whole = memoryview(data)[: len(data) & ~3]
    if sys.byteorder == "little":
        return whole.cast("I")
    swapped = array("I", whole.tobytes())
    swapped.byteswap()
    return swapped


def sections(data: bytes, *, apart: bool = False) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, offset and size of each section of an ELF; raise ValueError for one that does not hold together.

    With ``apart``, also before they have more bytes together than there are: who reads each of them may need that.
    """
    if len(data) < 64 or not data.startswith(ELF):  # noqa: PLR2004 - the size of an ELF64 header
        message = "no ELF header"
        raise ValueError(message)
    if data[4:6] != b"\x02\x01":
        message = "not a 64-bit little-endian ELF"
        raise ValueError(message)
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<3H", data, 58)
    if size != 64 or not count > 0 or table < 64 or table + size * count > len(data) or names >= count:  # noqa: PLR2004
        message = "its section table lies outside"
        raise ValueError(message)
    rows = list(SECTION.iter_unpack(memoryview(data)[table : table + size * count]))
    strings = rows[names]
    if strings[4] + strings[5] > len(data) or strings[5] == 0:
        message = "its section names lie outside"
        raise ValueError(message)
    table_of_names = data[strings[4] : strings[4] + strings[5]]
    named = taken = 0
    for index, (at, kind, _, _, offset, length, *_) in enumerate(rows):
        occupies = kind != 8  # noqa: PLR2004 - SHT_NOBITS has no bytes
        if at >= len(table_of_names) or (occupies and offset + length > len(data)):
            message = f"section {index} lies outside"
            raise ValueError(message)
        # Names may share their ends, so each could be as long as the table; a longer one than ours is forged.
        end = table_of_names.find(b"\0", at, at + _NAME)
        if end < 0:
            message = f"the name of section {index} has no end"
            raise ValueError(message)
        named += end - at
        if named > _NAMES + _SHARED * len(data):
            message = "its section names overlap"
            raise ValueError(message)
        taken += length if occupies else 0
        if apart and taken > len(data):
            message = "its sections overlap"
            raise ValueError(message)
        yield table_of_names[at:end], offset, length if occupies else 0


def _elf_kernels(data: bytes) -> Iterator[bytes]:
    try:
        for name, _, _ in sections(data):
            if name.startswith(b".text."):
                yield name.removeprefix(b".text.")
    except ValueError:
        return


def archive_members(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield name and content of each member of an archive, as far as it holds together, up to so many."""
    at = len(ARCHIVE)
    for _ in range(_MEMBERS):
        if at + 60 > len(data):
            return
        digits = data[at + 48 : at + 58].strip()
        if not digits.isdigit() or len(digits) > 10:  # noqa: PLR2004 - the field's width
            return
        size = int(digits)
        yield data[at : at + 16].rstrip().removesuffix(b"/"), data[at + 60 : at + 60 + size]
        at += 60 + size + size % 2


def kernel_names(data: bytes) -> Iterator[bytes]:
    """Yield the names of the kernels of an image (SPIR-V modules, an ELF, or an archive of either), in order."""
    kind = image_format(data)
    if kind is ImageFormat.SPIRV:
        yield from _spirv_kernels(data)
    elif kind is ImageFormat.ELF:
        yield from _elf_kernels(data)
    elif kind is ImageFormat.ARCHIVE:
        left = _NAMES + _SHARED * len(data)  # as of one file: members may share nothing, and names of each their ends
        for _, member in archive_members(data):
            for name in _elf_kernels(member):
                left -= len(name)
                if left < 0:
                    return
                yield name
