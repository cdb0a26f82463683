"""Folders of keys, and what is revoked in them: digests of bundles, of images in them and of keys, in a file there.

Read by whoever asks, without a library: a daemon needs to know it of what came earlier, too.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from xpucached import reading, state_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

REVOKED: Final = "revoked"
"""A file beside the keys: digests, one a line, that are trusted no more."""

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_LARGEST: Final = 1 << 20
_MOST: Final = 4096
"""Files of a folder that are told from others."""
_WRITABLE: Final = 0o022


class KeyFolder(Struct, frozen=True):
    """A folder of keys that is open, and what is revoked in it."""

    path: Path
    descriptor: int
    revoked: frozenset[str] = frozenset()
    doubt: str = ""  #: why it is not known what is revoked in it; then no key in it counts


def key_folders(folders: Iterable[Path]) -> Iterator[KeyFolder]:
    """Open those of these folders of keys that are there, each until the next one is asked for.

    Where others can write, nobody knows what was revoked: they may have taken that away.  Blocks.
    """
    for path in folders:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield KeyFolder(path, -1, doubt=_doubt(path, error.strerror))
            continue
        try:
            yield _read(path, descriptor)
        finally:
            os.close(descriptor)


def _read(path: Path, descriptor: int) -> KeyFolder:
    if why := open_to_others(os.fstat(descriptor)):
        return KeyFolder(path, descriptor, doubt=_doubt(path, why))
    try:
        return KeyFolder(path, descriptor, _revoked(descriptor))
    except (OSError, ValueError) as error:
        return KeyFolder(path, descriptor, doubt=_doubt(path / REVOKED, error))


def _doubt(path: Path, why: object) -> str:
    return f"what is revoked in {path} cannot be read: {why}"


class Revocations(Struct, frozen=True):
    """What is revoked, and why that is not known of some folder."""

    digests: frozenset[str] = frozenset()
    doubt: str = ""

    def also(self, folder: KeyFolder) -> Revocations:
        """Return what is revoked here or there."""
        return Revocations(self.digests | folder.revoked, folder.doubt or self.doubt)


def revocations(folders: Iterable[Path]) -> Revocations:
    """Read what is revoked in these folders of keys.  Blocks."""
    known = Revocations()
    for one in key_folders(folders):
        known = known.also(one)
    return known


def _revoked(folder: int) -> frozenset[str]:
    """Read digests, one a line; none if there is no such file.

    Raises OSError, and ValueError for a line that is none: it was meant to end somebody's trust.
    """
    try:
        os.stat(REVOKED, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return frozenset()
    found: set[str] = set()
    for number, line in enumerate(text(folder, REVOKED).splitlines(), start=1):
        digest = line.partition("#")[0].strip().lower()
        if digest and _DIGEST.fullmatch(digest) is None:
            raise ValueError(f"line {number} is no digest: expected sha256: and 64 hex digits")
        if digest:
            found.add(digest)
    return frozenset(found)


def state_of(folder: Path) -> tuple[object, ...]:
    """Return what is another when a file in a folder was written, also in its place; empty if there is none.

    So it is when others can write the folder no more, as no key in it counted until then.
    """
    files: list[tuple[str, int, int, int]] = []
    try:
        if why := open_to_others(found := folder.stat()):
            files.append((why, found.st_ino, found.st_uid, found.st_mode))
        with os.scandir(folder) as entries:
            for one in itertools.islice(entries, _MOST):
                try:
                    status = one.stat()
                except OSError:
                    # A link that leads nowhere hides no other file.
                    files.append((one.name, 0, 0, 0))
                else:
                    files.append((one.name, status.st_ino, status.st_size, status.st_ctime_ns))
    except FileNotFoundError:
        return ()
    except OSError as error:
        return (error.errno,)
    return tuple(sorted(files))


def open_to_others(found: os.stat_result) -> str:
    """Return why what lies there may be somebody else's word; empty if it is root's or ours alone."""
    if found.st_uid not in {0, os.geteuid()}:
        return "it belongs to somebody else"
    return "others can write it" if found.st_mode & _WRITABLE else ""


def text(folder: int, name: str) -> str:
    """Read a small file that nobody else can write.  Raises OSError and ValueError."""
    descriptor = reading.opened(name, dir_fd=folder)
    with state_files.stream(descriptor) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise ValueError("it is no file, or too large")
        if why := open_to_others(status):
            raise ValueError(why)
        return file.read(_LARGEST).decode()
