"""Observe: what else concerns users when it is another: drivers that are not installed, whose bundles count, files."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from xpucached.bundle.revocations import state_of
from xpucached.domain.bundles import HOST_KEYS
from xpucached.host import staged

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def beside(patterns: Iterable[str]) -> str:
    """Return a text that changes with what lies here of both; empty if nothing does.  Blocks; raises OSError."""
    return f"{staged.stamp(patterns)} {of(HOST_KEYS)}".strip()


def of(folder: Path) -> str:
    """Return a text that changes when a file in a folder is written; empty if there is none.  Blocks."""
    files = state_of(folder)
    return hashlib.blake2b(repr(files).encode(errors="replace"), digest_size=8).hexdigest() if files else ""
