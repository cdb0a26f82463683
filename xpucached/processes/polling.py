"""Observe: which of some descriptors can be read or written, whatever their numbers: `select.select` ends at 1,024."""

from __future__ import annotations

import select


def readable(*descriptors: int, seconds: float) -> frozenset[int]:
    """Return which of them have something to read, or are at their end, waiting so long for the first."""
    return _ready(descriptors, select.POLLIN, seconds)


def writable(descriptor: int, *, seconds: float | None) -> bool:
    """Return whether it takes something, or says why not, waiting so long for it; None: for ever."""
    return bool(_ready((descriptor,), select.POLLOUT, seconds))


def _ready(descriptors: tuple[int, ...], events: int, seconds: float | None) -> frozenset[int]:
    poll = select.poll()
    for one in descriptors:
        poll.register(one, events)
    return frozenset(number for number, _ in poll.poll(None if seconds is None else seconds * 1000))
