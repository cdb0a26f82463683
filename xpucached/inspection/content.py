"""Where bytes come from: a file of somebody else, or what was unpacked of one; read in bounded pieces, never mapped."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final, Protocol, Self

from xpucached import reading

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_BLOCK: Final = 1 << 18
_BLOCKS: Final = 64


class Unreadable(Exception):
    """A file cannot be read, or does not hold together; the text says why."""

    def __init__(self, why: str, taken: int = 0) -> None:
        """``taken`` are the bytes of memory that it took to see that."""
        super().__init__(why)
        self.taken = taken


class Content(Protocol):
    """Some bytes that can be read from anywhere."""

    @property
    def size(self) -> int:
        """Return how many there are."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes, fewer where they end."""
        ...


class MemoryContent:
    """Bytes in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes, fewer where they end."""
        return self._data[offset : offset + length] if offset >= 0 else b""


class FileContent:
    """An open file, or a part of one; it is not mapped, because others may cut it while we read."""

    def __init__(self, descriptor: int, size: int, start: int = 0) -> None:
        self._descriptor = descriptor
        self._start = start
        self.size = size
        self._blocks: dict[int, bytes] = {}

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes, fewer where they end.  Raises `Unreadable`."""
        length = min(length, self.size - offset)
        if length <= 0 or offset < 0:
            return b""
        if length > _BLOCK:
            return self._pread(offset, length)
        first, last = offset // _BLOCK, (offset + length - 1) // _BLOCK
        joined = b"".join(self._block(number) for number in range(first, last + 1))
        return joined[offset - first * _BLOCK :][:length]

    def _block(self, number: int) -> bytes:
        block = self._blocks.pop(number, None)
        if block is None:
            block = self._pread(number * _BLOCK, min(_BLOCK, self.size - number * _BLOCK))
            while len(self._blocks) >= _BLOCKS:
                del self._blocks[next(iter(self._blocks))]
        self._blocks[number] = block
        return block

    def _pread(self, offset: int, length: int) -> bytes:
        parts: list[bytes] = []
        left = length
        while left:
            try:
                part = os.pread(self._descriptor, min(left, 1 << 26), self._start + offset + length - left)
            except OSError as error:
                raise Unreadable(f"it cannot be read: {error.strerror}") from error
            if not part:
                raise Unreadable("it became shorter while it was read")
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


class OpenFile:
    """A file of somebody else: opened without waiting, and the same from the first byte read to the last."""

    def __init__(self, path: Path) -> None:
        try:
            self.descriptor = reading.opened(path)
        except (OSError, ValueError) as error:
            raise Unreadable(f"it cannot be opened: {getattr(error, 'strerror', None) or error}") from error
        status = os.fstat(self.descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self.descriptor)
            raise Unreadable("it is no file")
        self._identity = _identity(status)
        self.content = FileContent(self.descriptor, status.st_size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self.descriptor)

    def check(self) -> None:
        """Raise `Unreadable` if it changed since it was opened."""
        if _identity(os.fstat(self.descriptor)) != self._identity:
            raise Unreadable("it changed while it was read")


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
