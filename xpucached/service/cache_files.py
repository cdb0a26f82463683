"""Counting the files below directories where compilers cache that are no kind of ours: a warm pass adds none."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from typing import TYPE_CHECKING, Final

from xpucached import deadlines, reading

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MOST: Final = 500_000
"""Files of the watched directories that are looked at."""

_COUNTING: Final = 120.0
"""Seconds that it may take to look at these, or until they are on the disk."""


def files(places: Iterable[Path]) -> frozenset[str] | None:
    """Return the files below these directories, save those that only mark something as busy; None: it is unknown."""
    paths = tuple(map(os.fspath, places))
    try:
        return deadlines.ask(paths, lambda: _below(paths), _COUNTING)
    except TimeoutError:
        return None


def kept(places: Iterable[Path], before: frozenset[str] | None) -> frozenset[str] | None:
    """Return the same after a pass, and see that what came since ``before`` is on the disk before it proves anything.

    Compilers do not, and a power cut leaves it empty: no look at these directories would find that out.
    """
    paths = tuple(places)
    found = files(paths)
    came = found - before if found is not None and before is not None else ()
    with contextlib.suppress(TimeoutError):
        deadlines.ask(tuple(map(os.fspath, paths)), lambda: _sync(came), _COUNTING)
    return found


def _sync(paths: Iterable[str]) -> None:
    # Who gave this up counts the same files at once after the next pass, and would be told that they do not answer.
    end = time.monotonic() + _COUNTING
    for path in itertools.takewhile(lambda _path: time.monotonic() < end, paths):
        with contextlib.suppress(OSError):
            descriptor = reading.opened(path, follow=False)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


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
