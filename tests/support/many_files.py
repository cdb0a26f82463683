"""Folders that are full of names."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_LINKS: Final = 60_000
"""Names of one file; ext4 allows 65,000."""


def add(folder: Path, names: Iterable[str]) -> None:
    """Put empty files of these names there, as links to a few: a file of its own takes many times as long to make."""
    left = iter(names)
    for first in left:
        os.mknod(f"{folder}/{first}")
        for name in itertools.islice(left, _LINKS - 1):
            os.link(f"{folder}/{first}", f"{folder}/{name}")
