"""Digests of the driver's libraries, from one command to the next: to hash 400 MB takes half a second each time.

A file that keeps its device, inode, size, and both of its times in nanoseconds has the same content: the kernel sets
the second one at each change.  Nothing is remembered of what changed just now: it may change again at the same time.
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING, Final

from xpucached import codec, messages, state_files

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from xpucached.messages import Json

NAME: Final = "libraries.json"
_LARGEST: Final = 64 << 10
_MOST: Final = 64
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}\Z")
_SETTLED: Final = 2_000_000_000
"""Nanoseconds; clocks of file systems tick slowly."""


class LibraryDigests:
    """What is remembered in a folder of this user's; nothing where there is no such folder."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / NAME
        self._known = dict(self._read())

    def get(self, status: os.stat_result) -> str | None:
        """Return the digest of a file."""
        return self._known.get(_key(status))

    def keep(self, status: os.stat_result, digest: str) -> None:
        """Remember the digest of a file that was like this before it was read."""
        if self._path is None or max(status.st_mtime_ns, status.st_ctime_ns) + _SETTLED > time.time_ns():
            return
        # What others remembered meanwhile stays, and of too many what was remembered last.
        self._known = dict(self._read()) | {_key(status): digest}
        newest: dict[str, Json] = dict(list(self._known.items())[-_MOST:])
        with contextlib.suppress(OSError):
            state_files.write(self._path, codec.dumps(newest))

    def _read(self) -> Iterator[tuple[str, str]]:
        found: Mapping[str, object] = {}
        with contextlib.suppress(OSError, messages.BadMessage):
            if self._path is not None:
                found = messages.members(messages.parse(state_files.read(self._path, _LARGEST), largest=_LARGEST))
        for key, digest in found.items():
            if isinstance(digest, str) and _DIGEST.match(digest):
                yield key, digest


def _key(status: os.stat_result) -> str:
    numbers = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return ":".join(map(str, numbers))
