"""Observe: what is in a directory that somebody may have filled without end."""

from __future__ import annotations

import errno
import itertools
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMES: Final = 3_000_000
"""Names of one directory that are taken into memory; a million entries have as many."""


def names(directory: int) -> list[str]:
    """List a directory.  Raises OSError; also for one that somebody has filled without end."""
    with os.scandir(directory) as listed:
        found = [one.name for one in itertools.islice(listed, _NAMES)]
        if next(listed, None) is not None:
            raise _endless()
    return found


def entries(directory: int) -> Iterator[os.DirEntry[str]]:
    """Yield what is in a directory, one after the other.  Raises OSError as `names` does."""
    with os.scandir(directory) as listed:
        yield from itertools.islice(listed, _NAMES)
        if next(listed, None) is not None:
            raise _endless()


def _endless() -> OSError:
    return OSError(errno.E2BIG, f"a directory holds more than {_NAMES} names")


def exists(directory: int, name: str) -> bool:
    """Return whether there is anything of this name in a directory.  Raises OSError."""
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
