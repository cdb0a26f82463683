"""Counting the files below directories where compilers cache that are no kind of ours: a warm pass adds none."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Final

from xpucached import deadlines

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MOST: Final = 500_000
"""Files of the watched directories that are looked at."""

_COUNTING: Final = 120.0
"""Seconds that it may take to look at these."""


def files(places: Iterable[Path]) -> frozenset[str] | None:
    """Return the files below these directories, save those that only mark something as busy; None: it is unknown."""
    paths = tuple(map(os.fspath, places))
    try:
        return deadlines.ask(paths, lambda: _below(paths), _COUNTING)
    except TimeoutError:
        return None


def _below(places: Iterable[str]) -> frozenset[str] | None:
    found: set[str] = set()
    ahead = [*places]
    left = MOST
    while ahead and left > 0:
        try:
            with os.scandir(ahead.pop()) as entries:
                for entry in itertools.islice(entries, left):
                    left -= 1
                    if entry.is_dir(follow_symlinks=False):
                        ahead.append(entry.path)
                    elif not entry.name.endswith(".lock"):
                        found.add(entry.path)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            # It is not there yet, or has gone meanwhile, or is nothing into which this user's programs could write.
            continue
        except OSError:
            return None
    return frozenset(found) if left > 0 else None
