"""A blob that is not whole yet: in a file beside its place, from which the next one goes on."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import TYPE_CHECKING, Final, Self

from xpucached.errors import BadBundle

if TYPE_CHECKING:
    from pathlib import Path

_PIECE: Final = 1 << 20
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def beside(place: Path) -> Path:
    """Return where a blob lies that is not whole yet."""
    return place.with_name(f"{place.name}.part")


class PartialBlob:
    """Takes a blob as it comes; what was there from before is read again."""

    def __init__(self, path: Path, digest: str, size: int) -> None:
        """Open it, or begin it.  Raises OSError."""
        self.digest = digest
        self.size = size
        self.at = 0
        self._path = path
        self._hash = hashlib.sha256()
        descriptor = os.open(path, _FLAGS, 0o600)
        self._file = os.fdopen(descriptor, "r+b")
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            self._file.close()
            raise BadBundle(f"{path} is no file")
        while piece := self._file.read(_PIECE):
            self._hash.update(piece)
            self.at += len(piece)
        if self.at > size:
            self.restart()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def restart(self) -> None:
        """Begin anew."""
        self._file.seek(0)
        self._file.truncate()
        self.at = 0
        self._hash = hashlib.sha256()

    def add(self, piece: bytes, host: str) -> None:
        """Take some bytes.  Raises `BadBundle` where they are more than there may be."""
        if self.at + len(piece) > self.size:
            self.restart()
            raise BadBundle(f"{host} gave a blob that is longer than its {self.size} bytes: {self.digest}")
        self._file.write(piece)
        self._hash.update(piece)
        self.at += len(piece)

    def is_right(self) -> bool:
        """Return whether all that came is what the digest says."""
        return f"sha256:{self._hash.hexdigest()}" == self.digest

    def finish(self, place: Path) -> None:
        """Give it its name."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._path.rename(place)
