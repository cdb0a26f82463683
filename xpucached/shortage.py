"""Errors that say that this process, or its host, has no more room, and so nothing about what they met.  Pure."""

from __future__ import annotations

import errno
from typing import Final

_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def is_ours(error: OSError) -> bool:
    """Return whether an error says what we lack, whosesoever the fault is: what it met is not known."""
    return error.errno in _ROOM
