"""How far the scrub is, for the next daemon to go on: one that never lives for long comes to read everything, too."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Final

from xpucached import state_files

if TYPE_CHECKING:
    from xpucached.service.context import Context

PARTS: Final = 168
"""A scrub reads so many parts of the stores one after the other: with the usual week, one an hour."""

_FIRST: Final = 2.0
"""Seconds after the start before what is due is read: a worker is still there then, whatever it was started for."""
_LARGEST: Final = 64


class ScrubProgress:
    """Which part was read last, and when."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._file = context.settings.paths.state / "scrubbed"

    def wait(self, every: float) -> float:
        """Return the seconds until the next part is due, of which one is read every so many."""
        due = self._last()[1] + every - self._context.clock().timestamp()
        return min(max(due, _FIRST), every)

    def next_part(self) -> int:
        """Go on to the next part.  One that cannot be read, or not to its end, keeps no other from being read."""
        return self._note((self._last()[0] + 1) % PARTS)[0]

    def _last(self) -> tuple[int, int]:
        try:
            part, at = map(int, state_files.read(self._file, _LARGEST).split())
        except (OSError, ValueError):
            return self._note(random.randrange(PARTS))  # noqa: S311 - begins anywhere
        # The clock was ahead when it was noted, and it would be due only when it is there again.
        return (part, at) if at <= self._context.clock().timestamp() else self._note(part)

    def _note(self, part: int) -> tuple[int, int]:
        at = int(self._context.clock().timestamp())
        with contextlib.suppress(OSError):  # then the next one is any
            state_files.write(self._file, b"%d %d" % (part, at))
        return part, at
