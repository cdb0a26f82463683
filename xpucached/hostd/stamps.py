"""Observe: what else concerns users when it is another one: drivers that are not installed, and whose bundles count."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from xpucached.bundle.revocations import state_of
from xpucached.domain.bundles import HOST_KEYS
from xpucached.host import staged

if TYPE_CHECKING:
    from collections.abc import Iterable


def beside(patterns: Iterable[str]) -> str:
    """Return a text that changes with what lies here of both; empty if nothing does.  Blocks; raises OSError."""
    keys = state_of(HOST_KEYS)
    told = hashlib.blake2b(repr(keys).encode(errors="replace"), digest_size=8).hexdigest() if keys else ""
    return f"{staged.stamp(patterns)} {told}".strip()
