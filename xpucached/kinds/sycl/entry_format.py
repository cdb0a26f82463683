"""The bytes of a SYCL entry: names, ``.src`` and ``.bin``.  Pure but for libstdc++'s own hash function.

Read from intel/llvm's ``persistent_device_code_cache.cpp`` and checked on runtimes 2024.2 to 2026.2.  All integers are
unsigned, 64 bits, little-endian; there is no magic and no version field.

An entry lies at ``D1/D2/D3/D4/<slot>``; each level is ``std::hash<std::string>`` of one field of the ``.src``, in
decimal.  On disk the fields are in another order: device, build options, specialization constants, image.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Final

from msgspec import Struct

from xpucached.domain.defects import Defect
from xpucached.kinds.sycl import defects

NUMBER: Final = re.compile(r"(?:0|[1-9][0-9]{0,19})\Z")
"""The name of a directory of levels 1 to 4."""

IR_KEY: Final = re.compile(r"[A-Za-z0-9+_=-]{43,176}\Z")
"""The name of a run-time compiled program's directory: one or two base64 hashes, ``/`` written as ``-``."""

RTC: Final = "ext_kernel_compiler"
"""The directory of programs that were compiled from source at run time."""

OURS: Final = ".xpucached"
"""What the names of our own directories and files in a store begin with."""

TRASH: Final = f"{OURS}.trash"
"""The directory in a store's root where what was taken out waits.  No runtime looks at names that are not numbers."""

IR: Final = "ir"
"""The only slot of such a directory."""

IR_SUFFIXES: Final = (".bin", ".lock", "_access_time.txt", "_access_time.txt.lock")
SLOT_SUFFIXES: Final = (*IR_SUFFIXES, ".src")

SLOT_FILE: Final = re.compile(rf"(0|[1-9][0-9]{{0,8}})({'|'.join(map(re.escape, SLOT_SUFFIXES))})\Z")
IR_FILE: Final = re.compile(rf"({IR})({'|'.join(map(re.escape, IR_SUFFIXES))})\Z")

READ_LIMIT: Final = 64 << 20
"""So much of one file is held in memory at a time.  Kernel names stand at the head of an image; a larger image is real
only for whole libraries compiled ahead of time, and is then indexed without its checksum."""

ABSURD: Final = 1 << 34
"""A length from here on makes the runtime's allocation fail instead of its read.  The runtime caches no image above
1 GiB by default."""

_MULTIPLIER: Final = 0xC6A4A7935BD1E995
_SEED: Final = 0xC70F6907
_MASK: Final = (1 << 64) - 1


def _mixed(value: int) -> int:
    return value ^ (value >> 47)


def portable_hash(data: bytes) -> int:
    """Return libstdc++'s 64-bit ``std::hash<std::string>``, about 18 MB/s."""
    whole = len(data) & ~7
    state = _SEED ^ (len(data) * _MULTIPLIER & _MASK)
    for (word,) in struct.iter_unpack("<Q", memoryview(data)[:whole]):
        state ^= _mixed(word * _MULTIPLIER & _MASK) * _MULTIPLIER & _MASK
        state = state * _MULTIPLIER & _MASK
    if len(data) > whole:
        state ^= int.from_bytes(data[whole:], "little")
        state = state * _MULTIPLIER & _MASK
    state = _mixed(state) * _MULTIPLIER & _MASK
    return _mixed(state)


_LONG: Final = 1 << 20


@cache
def _hash_function() -> Callable[[bytes], int]:
    """Take libstdc++'s own function (2 GB/s) if the host has it; it is the very one the runtime calls."""
    try:
        # For what is short, to let other threads go on and to wait for them takes longer than the hash.
        short, long = (one("libstdc++.so.6")["_ZSt11_Hash_bytesPKvmm"] for one in (ctypes.PyDLL, ctypes.CDLL))
    except (OSError, AttributeError):
        return portable_hash
    for native in (short, long):
        native.restype = ctypes.c_size_t
        native.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t)

    def native_hash(data: bytes) -> int:
        return int((short if len(data) < _LONG else long)(data, len(data), _SEED))

    sample = b"xpucached \x00 probe"
    return native_hash if native_hash(sample) == portable_hash(sample) else portable_hash


def string_hash(data: bytes) -> int:
    """Return the number that the runtime uses as a directory name for these bytes."""
    return _hash_function()(data)


def directory_name(data: bytes) -> str:
    """Return what the runtime calls the directory of a field; devices and options come again and again."""
    return _known_name(data) if len(data) <= _SHORT else str(string_hash(data))


_SHORT: Final = 512


@lru_cache(maxsize=1024)
def _known_name(data: bytes) -> str:
    return str(string_hash(data))


def text(data: bytes) -> str:
    """Decode what a runtime wrote; bytes that are no UTF-8 stay visible as escapes."""
    return data.decode("utf-8", "backslashreplace")


def data(text: str) -> bytes:
    """Encode what `text`, or a driver's answer, has decoded: no device is named by such escapes itself."""
    return _ESCAPED.sub(lambda match: bytes.fromhex(match[1].decode()), text.encode("utf-8", "surrogateescape"))


_ESCAPED: Final = re.compile(rb"\\x([89a-f][0-9a-f])")


class Source(Struct, frozen=True):
    """What a ``.src`` holds.  ``image`` is as much of the device image as was read, ``image_size`` all of it."""

    device: bytes = b""
    options: bytes = b""
    constants: bytes = b""
    image: bytes = b""
    image_size: int = 0
    complete: bool = False
    """All four fields are there."""
    whole: bool = False
    """And the image was read to its end."""
    defect: Defect | None = None
    detail: str = ""

    @property
    def directories(self) -> tuple[str, str, str, str]:
        """Where a program looks for this entry.  Only for a whole source."""
        return (
            directory_name(self.device),
            directory_name(self.image),
            directory_name(self.constants),
            directory_name(self.options),
        )


_FIELDS: Final = ("device", "options", "constants", "image")


def _partial(fields: list[bytes], defect: Defect, detail: str) -> Source:
    device, options, constants, image = (*fields, b"", b"", b"", b"")[:4]
    return Source(device, options, constants, image, defect=defect, detail=detail)


def source(data: bytes, size: int) -> Source:
    """Read a ``.src``.

    ``data`` is its beginning and ``size`` its full length; only an image may lie beyond ``data``.
    """
    if size == 0:
        return Source(defect=defects.SRC_EMPTY, detail="0 bytes")
    fields: list[bytes] = []
    at = length = 0
    for name in _FIELDS:
        if at + 8 > size:
            return _partial(fields, defects.SRC_TRUNCATED, f"ends at byte {size}, before the {name}")
        if at + 8 > len(data):
            return _partial(fields, defects.SRC_TOO_LARGE, f"the {name} begins beyond byte {len(data)}")
        length = int.from_bytes(data[at : at + 8], "little")
        at += 8
        if length >= ABSURD:
            return _partial(fields, defects.SRC_LENGTH_ABSURD, f"the {name} announces {length} bytes")
        fields.append(data[at : at + length])
        if length > size - at:
            return _partial(fields, defects.SRC_TRUNCATED, f"the {name} announces {length} bytes, {size - at} follow")
        at += length
        if name != "image" and at > len(data):
            return _partial(fields, defects.SRC_TOO_LARGE, f"the {name} ends beyond byte {len(data)}")
    whole = at <= len(data)
    defect, detail = None, ""
    if at < size:
        defect, detail = defects.SRC_TRAILING, f"{size - at} bytes follow the image"
    elif not whole:
        defect, detail = defects.SRC_TOO_LARGE, f"the image has {length} bytes"
    device, options, constants, image = fields
    return Source(device, options, constants, image, length, complete=True, whole=whole, defect=defect, detail=detail)


class Frame(Struct, frozen=True):
    """How a ``.bin`` wraps its program: where the first payload begins and how long it is."""

    offset: int = 0
    length: int = 0
    defect: Defect | None = None
    detail: str = ""


_FRAME: Final = 16


def frame(head: bytes, size: int, later: Callable[[int], bytes]) -> Frame:
    """Read the frame of a ``.bin``: a count, then a length and that many bytes for each program.

    ``head`` is its beginning (16 bytes or all), ``size`` its length, and ``later(offset)`` reads 8 bytes further on.
    Runtimes up to 2025.0 wrote one program per device of the context; later ones write, and read, exactly one.
    """
    if size == 0:
        return Frame(defect=defects.BIN_EMPTY, detail="0 bytes")
    if size < _FRAME or len(head) < _FRAME:
        return Frame(defect=defects.BIN_TRUNCATED, detail=f"{size} bytes are less than a header")
    count, length = struct.unpack_from("<QQ", head)
    rest = size - _FRAME
    if length >= ABSURD:
        return Frame(defect=defects.BIN_LENGTH_ABSURD, detail=f"announces {length} bytes, {rest} follow")
    if length > rest:
        return Frame(defect=defects.BIN_TRUNCATED, detail=f"announces {length} bytes, {rest} follow")
    first = Frame(_FRAME, length)
    at, seen = _FRAME + length, 1
    while 1 < count <= 64 and seen < count and at + 8 <= size:  # noqa: PLR2004 - no host has more devices
        further = int.from_bytes(later(at), "little")
        if further > size - at - 8:
            break
        at, seen = at + 8 + further, seen + 1
    if count != seen:
        return Frame(_FRAME, length, defects.BIN_COUNT_WRONG, f"counts {count} programs, holds {seen}")
    if at < size:
        return Frame(_FRAME, length, defects.BIN_TRAILING, f"{size - at} bytes follow")
    return first


def is_place(path: list[str]) -> bool:
    """Return whether a key names a slot where the runtime keeps one."""
    if path[0] == RTC and len(path) == 3:  # noqa: PLR2004 - the directory, the key, ``ir``
        return IR_KEY.match(path[1]) is not None and path[2] == IR
    numbers = path[1:] if path[0] == RTC else path
    return len(path) == 5 and all(NUMBER.match(one) for one in numbers)  # noqa: PLR2004 - four levels and a slot
