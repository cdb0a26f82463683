"""Many programs for one store, whose disk is waited for once."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xpucached.domain.names import EntryKey
    from xpucached.domain.plans import Recipe
    from xpucached.domain.targets import Target


class Batch(AbstractContextManager["Batch"], Protocol):
    """Programs that lie beside a store until all of them are on the disk; what was not published goes at the end."""

    def add(self, recipe: Recipe, environment: Target, binary: bytes) -> None:
        """Write one beside.  Raises OSError."""

    def publish(self) -> Iterator[EntryKey | None]:
        """Wait for the disk, and put each where the runtime looks for it; give its key, in the order they came in.

        None if there is one already, which stays.  Raises OSError.
        """


_WHOLE: Final = frozenset({0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994, 0x794C7630})
"""ext, XFS, Btrfs, F2FS, tmpfs and overlays of them, as `statfs` calls them: of these it is known that one call waits
for all of their files.  For a FUSE it waits for nothing."""


def syncs_as_a_whole(descriptor: int) -> bool:
    """Return whether `sync_as_a_whole` is as good as to wait for each file."""
    kind = ctypes.create_string_buffer(256)
    try:
        found = ctypes.CDLL(None)["fstatfs"](descriptor, kind) == 0
    except (OSError, AttributeError):
        return False
    return found and int.from_bytes(kind.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder) in _WHOLE


def sync_as_a_whole(descriptor: int) -> None:
    """Wait until all that was written to a file system is on its disk.  Raises OSError."""
    if ctypes.CDLL(None, use_errno=True)["syncfs"](descriptor) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
