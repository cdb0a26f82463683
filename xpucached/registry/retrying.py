"""What is tried again, how often, and when."""

from __future__ import annotations

import random
import time
from typing import Final

from xpucached.errors import RegistryError

RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Answers of HTTP that may be others a moment later."""

TRIES: Final = 5
_FIRST_PAUSE: Final = 0.5  # seconds; doubled each time
_LONGEST_PAUSE: Final = 30.0
_PROGRESS: Final = 1 << 20
"""So many bytes later a transfer that breaks off has all its tries again."""
_DIGITS: Final = 3


class Interrupted(Exception):
    """A request came to no answer, or its answer to no end; the text says why."""

    def __init__(self, why: str, after: str = "") -> None:
        """``after`` is what the other side says of when to come back: seconds, if it is a number."""
        super().__init__(why)
        self.after = after


class NoTls(Interrupted):
    """Who was asked over TLS answered without."""


class Retries:
    """Counts how often something was tried in vain, and waits longer each time."""

    def __init__(self) -> None:
        self._count = 0
        self._at = 0

    def failed(self, why: Interrupted, at: int = 0) -> None:
        """Wait, or give up; ``at`` are the bytes that are done.  Raises `RegistryError`."""
        if at >= self._at + _PROGRESS:
            self._count, self._at = 0, at
        self._count += 1
        if self._count >= TRIES:
            hint = "does it run, and is its name right? what is done already is kept: the same command does the rest"
            raise RegistryError(f"{why} (tried {TRIES} times)", hint=hint) from why
        longest = _FIRST_PAUSE * 2**self._count
        asked = why.after.isdecimal() and len(why.after) <= _DIGITS
        pause = float(why.after) if asked else random.uniform(longest / 2, longest)  # noqa: S311 - not for secrets
        time.sleep(min(pause, _LONGEST_PAUSE))
