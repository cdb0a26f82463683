"""Observe: by which names a program comes to the libraries that it mapped; lists directories, reads ELF files."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import mounts
from xpucached.host import elf
from xpucached.host.digests import plain, told_of_file
from xpucached.host.python_packages import site_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

_MOST_GIVEN: Final = 64
"""Directories of ``LD_LIBRARY_PATH``, and files of ``LD_PRELOAD``."""
_MOST_PLACES: Final = 128
_MOST_LED: Final = 512
"""Directories that are looked at for whether a link leads to them."""
_MOST_LISTED: Final = 20_000
"""Names of one directory that are looked at."""
_MOST_NAMES: Final = 16
"""Of one library."""


def given(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield the directories of libraries that these variables name."""
    yield from filter(None, variables.get("LD_LIBRARY_PATH", "").split(":", _MOST_GIVEN)[:_MOST_GIVEN])
    files = variables.get("LD_PRELOAD", "").replace(":", " ").split(None, _MOST_GIVEN)[:_MOST_GIVEN]
    yield from filter(None, map(os.path.dirname, files))


def names(code: Iterable[str], places: Collection[str]) -> dict[str, list[str]]:
    """Return the names that lead to each of these libraries, besides its own.

    They are looked for beside it, in these ``places``, where the libraries themselves have others looked for, and, as
    what is chosen among several (``/etc/alternatives``) has its names there, beside all others.
    """
    found: dict[str, list[str]] = {path: [] for path in code}
    beside: dict[str, list[str]] = {}
    for path in found:
        beside.setdefault(os.path.dirname(path), []).append(path)
        found[path] += _shorter(path, os.path.dirname(path))
    by_inode: dict[tuple[int, int], str] = {}
    for path in found:
        with contextlib.suppress(OSError, ValueError):
            status = os.stat(path)
            by_inode[status.st_dev, status.st_ino] = path
    places = list(map(plain, places))
    searched = itertools.chain(places, map(plain, dict.fromkeys(_of_libraries(found))), beside)
    for place in itertools.islice(dict.fromkeys(one for one in searched if site_of(f"{one}/") is None), _MOST_PLACES):
        real = mounts.real(place)
        # Of the given ones it is known where they lead.
        if real != place and place not in places:
            for path in beside.get(real, ()):
                found[path] += [os.path.join(place, os.path.basename(path)), *_shorter(path, place)]
        for name, inode in _linked(place):
            path = by_inode.get(inode, "")
            if path and len(found[path]) < _MOST_NAMES and name not in found[path] and mounts.real(name) == path:
                found[path].append(name)
    return {path: some[:_MOST_NAMES] for path, some in found.items()}


def links(code: Iterable[str], places: Iterable[str]) -> Iterator[str]:
    """Yield those of these directories that lead by a link to where some of this code lies."""
    lie = set(map(os.path.dirname, code))
    for place in itertools.islice(dict.fromkeys(map(plain, places)), _MOST_LED):
        if (real := mounts.real(place)) != place and real in lie:
            yield place


def made_since(paths: Iterable[str], moment: int) -> Iterator[str]:
    """Yield those of these that are come to by a link that was made since then, in nanoseconds."""
    for path in paths:
        for step in mounts.way(path):
            with contextlib.suppress(OSError, ValueError):
                found = os.lstat(step)
                if stat.S_ISLNK(found.st_mode) and found.st_ctime_ns >= moment:
                    yield path
                    break


def _of_libraries(code: Collection[str]) -> Iterator[str]:
    for path in code:
        yield from elf.run_paths(Path(path))


def _shorter(path: str, place: str) -> Iterator[str]:
    """Yield the shorter names of a library (``libfoo.so.1``) that lead to it there."""
    name = os.path.basename(path)
    while ".so." in name:
        name = name.rpartition(".")[0]
        one = os.path.join(place, name)
        with contextlib.suppress(OSError, ValueError):
            if os.path.islink(one) and mounts.real(one) == path:
                yield one


def _linked(place: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the links in a directory, each with the device and the inode of what it leads to."""
    try:
        with os.scandir(place) as entries:
            for entry in itertools.islice(entries, _MOST_LISTED):
                with contextlib.suppress(OSError):
                    if entry.is_symlink():
                        status = entry.stat()
                        yield entry.path, (status.st_dev, status.st_ino)
    except OSError as error:
        told_of_file(error)
    except ValueError:
        pass
