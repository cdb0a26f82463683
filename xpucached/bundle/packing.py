"""Compressing, and decompressing within bounds.  zstd comes from the extra ``share``; without it there is gzip."""

from __future__ import annotations

import hashlib
import importlib
import zlib
from typing import TYPE_CHECKING, Final, Protocol, cast

from xpucached.domain.bundles import Compression
from xpucached.errors import BadBundle, MissingExtra

if TYPE_CHECKING:
    from types import ModuleType

_LEVEL: Final = 9
_WINDOW: Final = 23
"""The logarithm of how far back a zstd frame may refer: who reads it needs so much memory."""
_PIECE: Final = 256 << 10
_GZIP: Final = 31
_FRAME: Final = b"\x28\xb5\x2f\xfd"


class Compressor(Protocol):
    """Takes bytes, gives compressed ones."""

    def compress(self, data: bytes, /) -> bytes:
        """Take some bytes."""

    def flush(self) -> bytes:
        """Give the rest."""


def zstd() -> ModuleType | None:
    """Return the module for zstd, if there is one."""
    try:
        # Since Python 3.14 it is in the standard library, with the same functions.
        return importlib.import_module("compression.zstd")
    except ImportError:
        pass
    try:
        from backports import zstd as found  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return found


def usual() -> Compression:
    """Return what is used where nobody says."""
    return Compression.ZSTD if zstd() is not None else Compression.GZIP


def compressor(how: Compression) -> Compressor:
    """Return what compresses one layer, the same bytes from the same library.  Raises `MissingExtra`."""
    if how is Compression.GZIP:
        return zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    module = _needed()
    parameter = module.CompressionParameter
    options = {parameter.compression_level: _LEVEL, parameter.window_log: _WINDOW, parameter.checksum_flag: 1}
    return cast("Compressor", module.ZstdCompressor(options=options))


def _needed() -> ModuleType:
    module = zstd()
    if module is None:
        raise MissingExtra("zstd is not installed here", hint="in a clone: pip install '.[share]'; or export with gzip")
    return module


class Readable(Protocol):
    """Gives bytes."""

    def read(self, size: int, /) -> bytes:
        """Give so many bytes, and fewer only at the end."""


def reader(data: Readable, how: Compression, most: int) -> Unpacked:
    """Return what decompresses a layer as it is read: one frame, and nothing before or behind it.

    Reading raises `BadBundle` for what cannot be decompressed, and after ``most`` bytes.  Raises `MissingExtra`.
    """
    return _Zstd(data, most) if how is Compression.ZSTD else _Gzip(data, most)


class Unpacked:
    """A layer as it is uncompressed."""

    def __init__(self, data: Readable, most: int) -> None:
        self._data = data
        self._most = most
        self._given = 0
        self._held, self._at = b"", 0
        self._digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """Give so many bytes, and fewer only at the end."""
        if self._at + size > len(self._held):
            parts = [self._held[self._at :]]
            held = len(parts[0])
            while held < size and (part := self._next(max(size - held, _PIECE))):
                self._given += len(part)
                if self._given > self._most:
                    raise BadBundle(f"a layer has more than the {self._most} bytes that it may have")
                self._digest.update(part)
                parts.append(part)
                held += len(part)
            self._held, self._at = b"".join(parts), 0
        given = self._held[self._at : self._at + size]
        self._at += len(given)
        return given

    def digest(self) -> str:
        """Return the digest of all of it, once all was read."""
        return f"sha256:{self._digest.hexdigest()}"

    def _next(self, most: int) -> bytes:
        raise NotImplementedError

    def _feed(self) -> bytes:
        piece = self._data.read(_PIECE)
        if not piece:
            raise BadBundle("a layer is cut short")
        return piece

    def _end(self, unused: bytes) -> None:
        if unused or self._data.read(1):
            raise BadBundle("bytes follow the end of a layer")


class _Zstd(Unpacked):
    def __init__(self, data: Readable, most: int) -> None:
        super().__init__(data, most)
        module = _needed()
        self._error = module.ZstdError
        self._inner = module.ZstdDecompressor(options={module.DecompressionParameter.window_log_max: _WINDOW})
        self._begun = False

    def _next(self, most: int) -> bytes:
        part = b""
        try:
            while not part and not self._inner.eof:
                piece = self._feed() if self._inner.needs_input else b""
                # A frame that is skipped would hide what it holds.
                if not self._begun and piece[:4] != _FRAME:
                    raise BadBundle("a layer is not one zstd frame")
                self._begun = True
                part = self._inner.decompress(piece, max_length=most)
        except self._error as error:
            raise BadBundle(f"a layer cannot be decompressed: {error}") from None
        if self._inner.eof:
            self._end(self._inner.unused_data)
        return part


class _Gzip(Unpacked):
    def __init__(self, data: Readable, most: int) -> None:
        super().__init__(data, most)
        self._inner = zlib.decompressobj(_GZIP)

    def _next(self, most: int) -> bytes:
        part = b""
        try:
            while not part and not self._inner.eof:
                part = self._inner.decompress(self._inner.unconsumed_tail or self._feed(), most)
        except zlib.error as error:
            raise BadBundle(f"a layer cannot be decompressed: {error}") from None
        if self._inner.eof:
            self._end(self._inner.unused_data)
        return part
