"""What is revoked here: digests of bundles, of images in them and of keys, in a file beside the keys.

Read by whoever asks, without a library: a daemon needs to know it of what came earlier, too.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

REVOKED: Final = "revoked"
"""A file beside the keys: digests, one a line, that are trusted no more."""

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_LARGEST: Final = 1 << 20
_WRITABLE: Final = 0o022


class Revocations(Struct, frozen=True):
    """What is revoked, and why that is not known of some folder."""

    digests: frozenset[str] = frozenset()
    doubt: str = ""


def revocations(folders: Iterable[Path]) -> Revocations:
    """Read what is revoked in these folders of keys.  Blocks."""
    found: set[str] = set()
    doubt = ""
    for folder in folders:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except OSError as error:
            doubt = f"what is revoked in {folder} cannot be read: {error.strerror}"
            continue
        try:
            found |= of_folder(descriptor)
        except (OSError, ValueError) as error:
            doubt = f"what is revoked in {folder / REVOKED} cannot be read: {error}"
        finally:
            os.close(descriptor)
    return Revocations(frozenset(found), doubt)


def of_folder(folder: int) -> frozenset[str]:
    """Read digests, one a line; none if there is no such file.

    Raises OSError, and ValueError for a line that is none: it was meant to end somebody's trust.
    """
    try:
        os.stat(REVOKED, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return frozenset()
    if why := open_to_others(os.fstat(folder)):
        raise ValueError(why)
    found: set[str] = set()
    for number, line in enumerate(text(folder, REVOKED).splitlines(), start=1):
        digest = line.partition("#")[0].strip().lower()
        if digest and _DIGEST.fullmatch(digest) is None:
            raise ValueError(f"line {number} is no digest: expected sha256: and 64 hex digits")
        if digest:
            found.add(digest)
    return frozenset(found)


def open_to_others(found: os.stat_result) -> str:
    """Return why what lies there may be somebody else's word; empty if it is root's or ours alone."""
    if found.st_uid not in {0, os.geteuid()}:
        return "it belongs to somebody else"
    return "others can write it" if found.st_mode & _WRITABLE else ""


def text(folder: int, name: str) -> str:
    """Read a small file that nobody else can write.  Raises OSError and ValueError."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise ValueError("it is no file, or too large")
        if why := open_to_others(status):
            raise ValueError(why)
        return file.read(_LARGEST).decode()
