"""Record: catalogs that are set aside, and which of these nobody has taken anything over from yet.

Touches the folder of the catalog.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

SIDES: Final = ("-wal", "-shm")
"""What the names of the files end with that SQLite has beside a catalog."""

CORRUPT: Final = "corrupt"

_MARK: Final = ".unread"
"""What the name of an empty file ends with that stands beside what is still to be taken over."""


def set_aside(path: Path, why: str) -> Path:
    """Move a catalog away with its journal, and say where it is now; one that is corrupt is marked before."""
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    aside = path.with_name(f"{path.name}.{why}-{moment}")
    number = 1
    while os.path.lexists(aside):
        number += 1
        aside = path.with_name(f"{path.name}.{why}-{moment}-{number}")
    if why == CORRUPT and os.path.lexists(path):
        mark(aside)
    with suppress(FileNotFoundError):
        path.rename(aside)
    _follow(path, aside)
    return aside


def _follow(path: Path, aside: Path) -> None:
    # Left beside a new file, the journal could be taken for that one's.
    for side in SIDES:
        with suppress(FileNotFoundError):
            path.with_name(path.name + side).rename(aside.with_name(aside.name + side))


def mark(one: Path) -> None:
    """Note of a catalog that it is to be taken over, by the next start if nobody comes to it before."""
    one.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # An empty file, for which there is room on most disks that are full.
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    os.close(os.open(_beside(one), flags, 0o600))


def unmark(one: Path) -> None:
    """Note that a catalog was taken over, as far as it can be read."""
    _beside(one).unlink(missing_ok=True)


def is_marked(one: Path) -> bool:
    """Return whether a catalog is still to be taken over."""
    return os.path.lexists(_beside(one))


def is_away(one: Path) -> bool:
    """Return whether nobody can tell now what is in a catalog, or that there is none: a later start may know."""
    try:
        os.close(os.open(one, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return False


def unread(path: Path, *, guest: bool = False) -> tuple[Path, ...]:
    """Return what was set aside of a catalog and is still to be taken over, the oldest first.

    Who was killed while that was set aside has its journal follow.  To a ``guest`` every mark is one of who is at it.
    """
    names = os.listdir(path.parent) if path.parent.is_dir() else []
    begin = f"{path.name}.{CORRUPT}-"
    marked = sorted(one.removesuffix(_MARK) for one in names if one.startswith(begin) and one.endswith(_MARK))
    found: list[Path] = []
    for aside in map(path.with_name, marked):
        if os.path.lexists(aside):
            found.append(aside)
        elif not guest:
            # It was not moved, or somebody has seen to it.
            unmark(aside)
    if found and not os.path.lexists(path):
        _follow(path, found[-1])
    return tuple(found)


def _beside(one: Path) -> Path:
    return one.with_name(one.name + _MARK)
