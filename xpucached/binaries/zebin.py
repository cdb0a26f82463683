"""What stands in an entry: the compiled program as the driver loads it, with the notes of its compiler.  Pure.

Everything read here may be forged: every offset is checked, every walk ends.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from xpucached.binaries import formats
from xpucached.domain.stores import ImageFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOTES: Final = b".note.intelgt.compat"
_SPIRV: Final = b".spv"
_OPTIONS: Final = b".misc.buildOptions"
_OWNER: Final = b"IntelGT\0"
_HEAD: Final = struct.Struct("<3I")
_NUMBER: Final = struct.Struct("<I")
_MOST_NOTES: Final = 64
_LONGEST_OPTIONS: Final = 64 << 10
_LONGEST_VERSION: Final = 64
_NARROW: Final = b"\x7fELF\x01"

_FAMILY, _CORE, _VERSION, _IP = 1, 2, 4, 6


class Zebin(Struct, frozen=True):
    """What an entry says of itself.  Neither the driver nor the compiler that made it stands in it."""

    ip: int | None = None  #: the GPU's IP version, packed; absent in 2022
    family: int | None = None  #: the product family
    core: int | None = None
    version: str = ""  #: of the format, which tells the compiler's age roughly
    options: str = ""  #: for the build, as the driver rewrote them
    input: str | None = None  #: SHA-256 of the SPIR-V that it was compiled from
    input_size: int = 0


class NotesError(ValueError):
    """The notes do not hold together."""


def ip_text(packed: int) -> str:
    """Spell an IP version: ten bits architecture, eight release, six revision."""
    return f"{packed >> 22 & 0x3FF}.{packed >> 14 & 0xFF}.{packed & 0x3F}"


def judged(data: bytes) -> bool:
    """Return whether an entry is of a form that we can judge: one for programs of 32 bits is not."""
    return not data.startswith(_NARROW)


def read(data: bytes) -> Zebin:
    """Read an entry; what it lacks is empty, and of another form than ELF everything.

    Raises ValueError if it does not hold together.
    """
    if formats.image_format(data) is not ImageFormat.ELF or not judged(data):
        return Zebin()
    found: dict[int, bytes] = {}
    options, image = b"", b""
    for name, offset, size in formats.sections(data, apart=True):
        if name == _NOTES:
            for kind, content in _notes(data[offset : offset + size]):
                found.setdefault(kind, content)
        elif name == _OPTIONS:
            options = data[offset : offset + min(size, _LONGEST_OPTIONS)]
        elif name == _SPIRV:
            image = data[offset : offset + size]
    given = formats.input_digest(image)
    return Zebin(
        _number(found.get(_IP)),
        _number(found.get(_FAMILY)),
        _number(found.get(_CORE)),
        found.get(_VERSION, b"")[:_LONGEST_VERSION].split(b"\0")[0].decode("ascii", "backslashreplace"),
        options.split(b"\0")[0].decode("utf-8", "backslashreplace"),
        given,
        len(image) if given else 0,
    )


def image(data: bytes) -> bytes:
    """Return the SPIR-V that an entry holds; empty if none.  Raises ValueError if it does not hold together."""
    if formats.image_format(data) is not ImageFormat.ELF or not judged(data):
        return b""
    places = ((offset, size) for name, offset, size in formats.sections(data) if name == _SPIRV)
    offset, size = next(places, (0, 0))
    return data[offset : offset + size]


def _number(content: bytes | None) -> int | None:
    return None if content is None or len(content) != _NUMBER.size else int(_NUMBER.unpack(content)[0])


def _notes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and content of each note of Intel's; others are passed over."""
    at = 0
    for _ in range(_MOST_NOTES):
        if at == len(data):
            return
        if at + _HEAD.size > len(data):
            break
        owner, size, kind = _HEAD.unpack_from(data, at)
        content = at + _HEAD.size + _padded(owner)
        end = content + _padded(size)
        # The last one need not be filled up.
        if content + size > len(data):
            break
        if data[at + _HEAD.size : at + _HEAD.size + owner] == _OWNER:
            yield kind, data[content : content + size]
        at = min(end, len(data))
    raise NotesError("the notes of its compiler do not hold together")


def _padded(size: int) -> int:
    return (size + 3) & ~3
