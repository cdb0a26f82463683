"""Unpacking images that a compiler compressed (zstd): by Python's own module, or by the system's library."""

from __future__ import annotations

import ctypes
import functools
import importlib
import mmap
from typing import TYPE_CHECKING, Final, Protocol

from xpucached.inspection.content import Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable

MAGIC: Final = b"\x28\xb5\x2f\xfd"
_LARGEST: Final = 1 << 29
_UNKNOWN: Final = (1 << 64) - 2


class _Unpacks(Protocol):
    @property
    def eof(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


@functools.cache
def _unpacker() -> Callable[[bytes, int], bytes] | None:
    for name in ("compression.zstd", "backports.zstd"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue

        def unpack(data: bytes, most: int, make: Callable[[], _Unpacks] = module.ZstdDecompressor) -> bytes:
            one = make()
            made = one.decompress(data, most)
            # Half an image would be judged as if it were all of it.
            if not one.eof:
                raise Unreadable("a compressed image is cut short, or is too large", len(made))
            return made

        return unpack
    try:
        library = ctypes.CDLL("libzstd.so.1")
    except OSError:
        return None
    whole, length = library["ZSTD_decompress"], library["ZSTD_getFrameContentSize"]
    whole.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
    whole.restype = ctypes.c_size_t
    length.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    length.restype = ctypes.c_ulonglong

    def decompress(data: bytes, most: int) -> bytes:
        size = length(data, len(data))
        if size >= _UNKNOWN or size > most:
            raise Unreadable("a compressed image does not say its size, or is too large")
        # What it says may be forged: only what is written to is taken of this memory.
        with mmap.mmap(-1, max(size, 1)) as made:
            place = ctypes.c_char.from_buffer(made)
            try:
                done = whole(ctypes.byref(place), size, data, len(data))
            finally:
                del place
            if done != size:
                raise Unreadable("a compressed image is damaged", size)
            return made[:size]

    return decompress


def available() -> bool:
    """Return whether anything here can unpack."""
    return _unpacker() is not None


def unpacked(data: bytes, most: int = _LARGEST) -> bytes:
    """Return what was compressed.  Raises `Unreadable` if it is damaged, too large, or nothing here can unpack it."""
    unpack = _unpacker()
    if unpack is None:
        raise Unreadable("nothing here unpacks zstd: install libzstd")
    try:
        return unpack(data, most)
    except Unreadable:
        raise
    except Exception as error:
        # Four bytes of it may have become 128 KiB before that was seen.
        raise Unreadable(f"a compressed image is damaged: {error}", min(most, len(data) << 15)) from error
