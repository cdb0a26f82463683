"""Record: long texts, each once, in files of our own that are named by their digests."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import zlib
from typing import TYPE_CHECKING, Final

from xpucached import state_files

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

LARGEST: Final = 16 << 20
"""Bytes of one text."""

_READ: Final = 2 * LARGEST
"""Bytes of a file that are read: what cannot be made shorter takes a little more than it has."""

_NAME: Final = re.compile(r"[0-9a-f]{64}\Z")
_LEVEL: Final = 6


class Blobs:
    """A directory of texts.  Nobody else may read or write there."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is made with the first text."""
        self._folder = folder

    def put(self, text: bytes) -> tuple[str, int]:
        """Keep a text; give its digest, and the bytes that it takes.  Raises OSError."""
        digest = hashlib.sha256(text).hexdigest()
        path = self._folder / digest
        with contextlib.suppress(FileNotFoundError):
            return digest, path.stat().st_size
        self._folder.mkdir(0o700, parents=True, exist_ok=True)
        content = zlib.compress(text, _LEVEL)
        beside = self._folder / f"{digest}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            beside.unlink()
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            beside.rename(path)
        except OSError:
            # Half a text only takes what the disk has too little of.
            beside.unlink(missing_ok=True)
            raise
        return digest, len(content)

    def get(self, digest: str) -> bytes | None:
        """Read a text; None if it is not there, or not what was kept: then it goes, so that it can be kept again."""
        path = self._folder / digest
        try:
            content = state_files.read(path, _READ, anybodys=True)
        except OSError as error:
            if error.errno not in {errno.ELOOP, errno.ENXIO}:
                return None
            content = b""  # a link or a pipe is nothing that was kept
        with contextlib.suppress(zlib.error):
            text = zlib.decompressobj().decompress(content, LARGEST)
            if hashlib.sha256(text).hexdigest() == digest:
                return text
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def keep_only(self, digests: Collection[str]) -> None:
        """Remove all other texts, and what a killed daemon had half written."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as found:
            for one in found:
                if one.name not in digests and _NAME.match(one.name.partition(".")[0]):
                    with contextlib.suppress(OSError):
                        os.unlink(one.path)  # noqa: PTH108 - of a scan's own
