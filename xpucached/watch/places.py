"""Where inotify listens, and whom it concerns: pure questions to the file system, which is only looked at."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import mounts
from xpucached.domain.triggers import DriverChanged, KeysChanged, ModelsChanged, StoreChanged

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from xpucached.domain.triggers import Trigger

_MOST_DEVICES: Final = 16
"""Device directories that are watched in one store.  Of more it is the newest that are used."""
_LISTED: Final = 100_000


@dataclass(frozen=True, slots=True)
class Interest:
    """Whom to wake when something happens in a directory; with ``towards`` only if it happens on the way there."""

    trigger: Trigger
    towards: Path | None = None
    files: bool = False
    heard: bool = False  #: it is heard of otherwise, but for rights that change

    def concerns(self, paths: Iterable[Path]) -> bool:
        """Return whether something that happened at these paths is meant."""
        return self.towards is None or any(self.towards.is_relative_to(path) for path in paths)


def identity(place: Path) -> tuple[int, int] | None:
    """Return device and inode of a directory; None if there is nothing."""
    try:
        status = place.stat()
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino)


def places(
    stores: Iterable[Path],
    drivers: Iterable[Path],
    models: Iterable[Path],
    keys: Iterable[Path],
    whole: Collection[Path],
) -> Iterator[tuple[Path, Interest]]:
    """Give the directories to listen at, links resolved, and for what; ``whole`` are the stores heard of otherwise.

    What matters most comes first: there may be more than are listened at.
    """
    for trigger, directories in ((KeysChanged(), keys), (DriverChanged(), drivers), (ModelsChanged(), models)):
        for directory in directories:
            place = resolved(directory)
            if is_directory(place):
                yield place, Interest(trigger, files=True)
            else:
                # What comes there may be a link, and the kernel tells of one as of a file.
                yield _missing(place, trigger, files=True)
    there: list[tuple[Path, StoreChanged]] = []
    for root in stores:
        place, changed = resolved(root), StoreChanged(root)
        if is_directory(place):
            yield place, Interest(changed)
            there.append((place, changed))
        else:
            yield _missing(place, changed)
    for place, changed in there:
        for device in _devices(place):
            if place not in whole:
                yield device, Interest(changed)
            elif not may_read(device):
                yield device, Interest(changed, heard=True)


def is_directory(place: Path) -> bool:
    """Return whether a path leads to a directory."""
    # pathlib's own question raises where we may not look.
    try:
        return stat.S_ISDIR(place.stat().st_mode)
    except (OSError, ValueError):
        return False


def may_read(place: Path) -> bool:
    """Return whether we may see what is in a directory."""
    return os.access(place, os.R_OK | os.X_OK)


def resolved(path: Path) -> Path:
    """Return a path with its links resolved."""
    # A watch on a link hears nothing of what happens in the directory.
    return Path(mounts.real(path))


def _missing(place: Path, trigger: Trigger, *, files: bool = False) -> tuple[Path, Interest]:
    """Return the nearest parent that is there, in which the way to a missing directory will begin."""
    for parent in place.parents:
        if is_directory(parent):
            return parent, Interest(trigger, place, files)
    return Path("/"), Interest(trigger, place, files)


def _devices(root: Path) -> list[Path]:
    """Return the device directories of a store; the newest ones if there are very many."""
    try:
        with os.scandir(root) as children:
            some = [child for child, _ in zip(children, range(_LISTED), strict=False)]
            found = [Path(child.path) for child in some if child.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    if len(found) > _MOST_DEVICES:
        found.sort(key=_modified, reverse=True)
    return found[:_MOST_DEVICES]


def _modified(place: Path) -> int:
    try:
        return place.lstat().st_mtime_ns
    except OSError:
        return 0
