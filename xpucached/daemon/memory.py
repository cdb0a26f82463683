"""Memory that a daemon holds while it rests: as little as the C library can be talked into."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator
from typing import Final

_ARENA_MAX: Final = -8  # M_ARENA_MAX of malloc.h


def share() -> None:
    """Let all threads take their memory from one place: each scan has another thread, and each would keep its own."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None)["mallopt"](_ARENA_MAX, 1)


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Look for no garbage while the program is loaded, nor ever in what was: it stays, and looking takes long."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def trim() -> None:
    """Give memory back that a scan needed: the C library keeps what was freed, and we rest for an hour."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None)["malloc_trim"](0)
