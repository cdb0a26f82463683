"""Observe: one look at a store while it goes on, and what was known of the store before."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from xpucached.domain.defects import StoreFault
from xpucached.domain.names import EntryKey
from xpucached.domain.stores import Entry, FoundStore, KnownEntry, Scan, Store, StoreState, UnchangedEntry
from xpucached.domain.targets import Target
from xpucached.kinds import known_cursor
from xpucached.kinds.known_cursor import KnownCursor
from xpucached.kinds.sycl import defects, doctor

OURS: Final = 200
"""Removals of a dead daemon that are finished after one look; what says that it is one may be forged."""

_WEIGHT: Final = 64 << 20
"""So many characters of names are handed over at a time, and one entry's: they may be forged."""


@dataclass(slots=True)
class ScanState:
    """One scan while it goes on."""

    found: FoundStore
    now: datetime
    rows: KnownCursor
    writer_since: datetime | None
    quick: bool
    inside: bool  #: whether programs are read
    root: int
    status: os.stat_result
    faults: tuple[StoreFault, ...] = ()
    known: Mapping[EntryKey, KnownEntry] = field(default_factory=dict)  #: of what is looked at just now
    seen: set[EntryKey] = field(default_factory=set)  #: of it, those that are there
    entries: list[Entry] = field(default_factory=list)
    unchanged: list[UnchangedEntry] = field(default_factory=list)
    ours: list[EntryKey] = field(default_factory=list)
    left: int = 0  #: what of a dead daemon was met, whether it is in ``ours`` or not
    foreign: int = 0
    hollow: bool = False  #: whether a directory holds no entry, so that none tells when something is written there
    shut: list[str] = field(default_factory=list)  #: directories, below what is looked at, that may not be read
    shut_in_all: int = 0
    blocked: bool = False  #: whether something stands where programs need a directory
    digests: dict[tuple[int, ...], str] = field(default_factory=dict)  #: of large programs, by file
    environments: dict[str, Target | None] = field(default_factory=dict)
    weight: int = 0  #: characters of the names in the entries
    parts: int = 0  #: that were given

    def claim(self, key: EntryKey) -> None:
        """Note what a dead daemon left; of more than `OURS` any so many, so that none that can be finished waits."""
        self.left += 1
        if len(self.ours) < OURS:
            self.ours.append(key)
        elif (place := random.randrange(self.left)) < OURS:  # noqa: S311 - no secret
            self.ours[place] = key

    def add(self, entry: Entry) -> None:
        """Note an entry that is there."""
        self.entries.append(entry)
        self.weight += len(entry.options) + len(entry.constants)
        self.weight += sum(len(kernel.name) + len(kernel.display) for kernel in entry.kernels)

    def pass_before(self, prefix: str = "") -> Iterator[Scan]:
        """Come to a directory, or to the end; give the parts that are full of what was known before it."""
        while not self.rows.pass_before(prefix):
            yield self.part()

    def leave_unread(self, prefix: str) -> Iterator[Scan]:
        """Go by a directory that may not be read; give the parts that are full of what was known below it."""
        while not self.rows.leave_unread(prefix):
            yield self.part()

    @property
    def full(self) -> bool:
        """Whether what was found since the part before is enough for one."""
        return len(self.entries) + len(self.unchanged) + self.rows.noted >= known_cursor.PART or self.weight >= _WEIGHT

    @property
    def store(self) -> Store:
        """What is looked at."""
        return self.found.store

    @property
    def device(self) -> int:
        """The file system that it lies on."""
        return self.status.st_dev

    def part(self, *, last: bool = False) -> Scan:
        """Return what was found since the part before."""
        faults = (*self.faults, defects.BLOCKED) if last and self.blocked else self.faults
        notes = tuple(doctor.words(self.store, fault) for fault in faults)
        if last and self.shut_in_all:
            notes = (*notes, f"directories that may not be read, whose entries are not known now: {self.shut_in_all}")
        found = Scan(
            self.found,
            self.now,
            StoreState.OK,
            self.status.st_uid,
            tuple(self.entries),
            tuple(self.unchanged),
            self.foreign if last and not self.quick else None,
            notes,
            tuple(self.ours) if last else (),
            tuple(self.rows.shut_in),
            tuple(self.rows.passed),
            thorough=last and not self.quick,
            faults=faults,
            shut=self.shut_in_all if last else 0,
        )
        for one in (self.entries, self.unchanged, self.rows.shut_in, self.rows.passed):
            one.clear()
        self.weight = 0
        self.parts += 1
        return found
