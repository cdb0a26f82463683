"""What was known of a store, taken in the order of its keys beside the walk through it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from xpucached.domain.names import EntryKey
from xpucached.domain.stores import KnownEntry

PART: Final = 1000
"""Entries that are handed over at a time.  A store of any size takes the memory of so many."""


class KnownCursor:
    """What is remembered of a store, in the order of its keys, taken as the look comes by."""

    def __init__(self, rows: Iterable[KnownEntry]) -> None:
        self._rest = iter(rows)
        self._next = next(self._rest, None)
        self.passed: list[EntryKey] = []
        """Those between what was taken: nothing that is there has their names."""
        self.shut_in: list[EntryKey] = []
        """Those below directories that may not be read now."""

    @property
    def noted(self) -> int:
        """How many were passed or left unread."""
        return len(self.passed) + len(self.shut_in)

    def take(self, prefix: str) -> list[KnownEntry]:
        """Return those below a directory; those before it were passed."""
        found: list[KnownEntry] = []
        row = self._next
        while row is not None and row.key.startswith(prefix):
            found.append(row)
            row = next(self._rest, None)
        self._next = row
        return found

    def leave_unread(self, prefix: str) -> bool:
        """Note those below a directory that may not be read; False if there are so many that a part is full."""
        while self._next is not None and self._next.key.startswith(prefix):
            if self.noted >= PART:
                return False
            self.shut_in.append(self._next.key)
            self._next = next(self._rest, None)
        return True

    def pass_before(self, prefix: str) -> bool:
        """Pass those before a directory, or all if it has no name; False if there are so many that a part is full."""
        while self._next is not None and (not prefix or self._next.key < prefix):
            if self.noted >= PART:
                return False
            self.passed.append(self._next.key)
            self._next = next(self._rest, None)
        return True
