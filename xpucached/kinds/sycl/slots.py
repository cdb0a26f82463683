"""Observe: the slots of a leaf, and what changes when one of their files does."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Final

from xpucached.domain.names import EntryKey
from xpucached.kinds import listing
from xpucached.kinds.sycl import entry_format, locks
from xpucached.processes import cancellation

ORDER: Final = (".src", ".bin", "_access_time.txt")
"""Files are taken out in this order; put back with the source last, because with it the entry can be found."""


@dataclass(slots=True)
class Slot:
    """The files of one slot, by suffix."""

    name: str
    files: dict[str, os.stat_result] = field(default_factory=dict)

    @property
    def restless(self) -> bool:
        """Whether it may change though its files do not: who holds a lock may end, and what a link leads to may go."""
        return ".lock" in self.files or any(stat.S_ISLNK(one.st_mode) for one in self.files.values())


class Slots:
    """The slots of a leaf, in the runtime's order.

    Only those of a small leaf are kept as they were found: a program that stores anew at every start makes a hundred
    thousand in a year, and what the kernel says of each takes a kilobyte.
    """

    def __init__(self, leaf: int, pattern: re.Pattern[str] = entry_format.SLOT_FILE) -> None:
        self._leaf = leaf
        self._kept: dict[str, Slot] = {}
        self.foreign = 0  #: files that belong to none
        suffixes: dict[str, tuple[str, ...]] = {}
        for name in listing.names(leaf):
            match = pattern.match(name)
            if match is None:
                self.foreign += 1
            else:
                slot, suffix = match.groups()
                suffixes[slot] = _with(suffixes.get(slot, ()), suffix)
        if len(suffixes) > 1:
            ordered = sorted(suffixes, key=lambda name: int(name) if name.isdigit() else 0)
            suffixes = {name: suffixes[name] for name in ordered}
        self._suffixes = suffixes
        if self.kept:
            self._kept = {name: self._look(name) for name in suffixes}

    def _look(self, name: str) -> Slot:
        slot = Slot(name)
        cancellation.check()
        for suffix in self._suffixes[name]:
            try:
                slot.files[suffix] = os.stat(name + suffix, dir_fd=self._leaf, follow_symlinks=False)
            except FileNotFoundError:
                continue
        return slot

    def __len__(self) -> int:
        return len(self._suffixes)

    def __iter__(self) -> Iterator[Slot]:
        """Yield each slot that has a file, as it was, or as it is now."""
        for name in self._suffixes:
            cancellation.check()
            slot = self._kept.get(name) or self._look(name)
            if slot.files:
                yield slot

    @property
    def kept(self) -> bool:
        """Whether each is given as it was found; else it is looked at again."""
        return len(self._suffixes) <= KEPT

    @property
    def names(self) -> Collection[str]:
        """What they are called."""
        return self._suffixes.keys()


KEPT: Final = 1000
"""Slots of one leaf that are kept in memory at a time."""


@cache
def _with(suffixes: tuple[str, ...], suffix: str) -> tuple[str, ...]:
    """Return one tuple for all that have the same files."""
    return tuple(sorted((*suffixes, suffix)))


def names_in(leaf: int, pattern: re.Pattern[str]) -> set[str]:
    """List the names of the slots of a leaf."""
    return {match[1] for match in map(pattern.match, listing.names(leaf)) if match is not None}


def slot_in(leaf: int, name: str) -> Slot:
    """Look at one slot as `Slots` does; without files if there is none.  Raises OSError if it cannot be told."""
    slot = Slot(name)
    for suffix in entry_format.SLOT_SUFFIXES if name.isdigit() else entry_format.IR_SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            slot.files[suffix] = os.stat(name + suffix, dir_fd=leaf, follow_symlinks=False)
    return slot


def slot_stamp(slot: Slot) -> str:
    """16 hex digits that change when a file of this slot is written, replaced or removed."""
    facts = [
        (suffix, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode)
        for suffix, status in sorted(slot.files.items())
        if not suffix.endswith(".lock")
    ]
    return hashlib.blake2b("".join(map(repr, facts)).encode(), digest_size=8).hexdigest()


def digest(facts: Iterator[tuple[object, ...]]) -> str:
    """Return 16 hex digits that stand for facts in this order."""
    found = hashlib.blake2b(digest_size=8)
    for fact in facts:
        found.update(repr(fact).encode())
    return found.hexdigest()


def key_of(path: tuple[str, ...], slot: str) -> EntryKey:
    """Name a slot."""
    return EntryKey("/".join((*path, slot)))


def accessed(slot: Slot) -> datetime | None:
    """Return when a program last read a slot, as far as its files say."""
    times = [slot.files[suffix].st_atime_ns for suffix in (".src", ".bin") if suffix in slot.files]
    # With its own eviction on, the runtime records each hit here.
    access = slot.files.get("_access_time.txt")
    if access is not None:
        times.append(access.st_mtime_ns)
    return locks.moment(max(times)) if times else None


_BUSY: Final = 64
"""So many slots that are being written are passed over in search of one that can be moved."""


@dataclass(slots=True)
class SlotNumbers:
    """The numbers in a leaf, ascending.  Listed once: to list 20,000 slots anew for each of them would take an hour."""

    leaf: int
    numbers: list[int]

    @classmethod
    def of(cls, leaf: int) -> SlotNumbers:
        """List a leaf."""
        return cls.among(leaf, listing.names(leaf))

    @classmethod
    def among(cls, leaf: int, names: Iterable[str]) -> SlotNumbers:
        """Read them from the names in a leaf."""
        matches = map(entry_format.SLOT_FILE.match, names)
        return cls(leaf, sorted({int(match[1]) for match in matches if match is not None}))

    def highest(self, above: int) -> str | None:
        """Return the highest slot above a number that has files and is not being written."""
        if not self.numbers or self.numbers[-1] <= above:
            # A program may have put its next one there since we listed them.
            if not holds_program(slot_in(self.leaf, str(above + 1)).files):
                return None
            self.numbers = self.of(self.leaf).numbers
        busy: list[int] = []
        found = None
        while found is None and len(busy) < _BUSY and self.numbers and self.numbers[-1] > above:
            number = self.numbers.pop()
            present = slot_in(self.leaf, str(number)).files
            if holds_program(present):
                busy.append(number)
                if ".lock" not in present:
                    found = str(number)
        self.numbers += reversed(busy)
        return found


def holds_program(present: Mapping[str, os.stat_result]) -> bool:
    """Return whether a program walks on behind this slot."""
    return ".src" in present or ".bin" in present
