"""Observe: what is in a directory that somebody may have filled without end."""

from __future__ import annotations

import errno
import itertools
import os
from typing import Final

_NAMES: Final = 3_000_000
"""Names of one directory that are taken into memory; a million entries have as many."""


def names(directory: int) -> list[str]:
    """List a directory.  Raises OSError; also for one that somebody has filled without end."""
    with os.scandir(directory) as listed:
        found = [one.name for one in itertools.islice(listed, _NAMES + 1)]
    if len(found) > _NAMES:
        raise OSError(errno.E2BIG, f"a directory holds more than {_NAMES} names")
    return found


def exists(directory: int, name: str) -> bool:
    """Tell whether there is anything of this name in a directory.  Raises OSError."""
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
