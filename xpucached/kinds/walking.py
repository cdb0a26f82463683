"""Observe: one look at a store while it goes on, for kinds whose entries are met in the order of their keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from msgspec.structs import replace

from xpucached.domain.names import EntryKey
from xpucached.domain.stores import Entry, FoundStore, Scan, Store, StoreState, UnchangedEntry
from xpucached.kinds import fs, known_cursor
from xpucached.kinds.known_cursor import KnownCursor


def parts(found: FoundStore, now: datetime, walk: Callable[[int, os.stat_result], Iterator[Scan]]) -> Iterator[Scan]:
    """Give what a walk through an open store gives, or the one part that says why there is none."""
    try:
        with fs.root_directory(os.fspath(found.store.root)) as (root, status):
            yield from walk(root, status)
    except FileNotFoundError:
        yield Scan(found, now, StoreState.MISSING, None, vanished=())
    except NotADirectoryError:
        yield Scan(found, now, StoreState.NOT_A_DIRECTORY, None, vanished=())
    except OSError as error:
        notes = (f"{error.strerror or error}",)
        yield Scan(found, now, StoreState.UNREADABLE, None, notes=notes, vanished=())


def told(entry: Entry) -> int:
    """Return how many characters of names and options an entry tells."""
    names = sum(len(kernel.name) + len(kernel.display) for kernel in entry.kernels)
    return names + len(entry.options) + len(entry.constants)


@dataclass(slots=True)
class StoreWalk:
    """One look while it goes on."""

    HEAVY: ClassVar[int] = 64 << 20
    """So many characters of names and options are handed over at a time, and one entry's: they may be forged."""
    LIGHT: ClassVar[int] = 1 << 10
    """So many a file may tell of each entry that is a link to it."""
    FEW: ClassVar[int] = 2
    """A file of so many names tells all in each: who makes equal files one (hardlink) has two equal programs."""
    MOST_LINKED: ClassVar[int] = 100_000
    """Files with several names of which it is remembered that they tell more."""

    found: FoundStore
    now: datetime
    rows: KnownCursor
    quick: bool
    root: int
    status: os.stat_result
    entries: list[Entry] = field(default_factory=list)
    unchanged: list[UnchangedEntry] = field(default_factory=list)
    foreign: int = 0
    weight: int = 0  #: characters of the names in the entries
    linked: dict[tuple[int, int], EntryKey] = field(default_factory=dict)
    """Files with several names that tell much, and of which entry they have told it; empty: of none yet."""
    inside: bool = True  #: whether programs are read; where not, nobody asks what entries tell, and may keep them all

    @property
    def store(self) -> Store:
        """What is looked at."""
        return self.found.store

    @property
    def device(self) -> int:
        """The file system that it lies on."""
        return self.status.st_dev

    def add(self, entry: Entry) -> None:
        """Note an entry that is there."""
        entry = entry if self.inside else replace(entry, kernels=(), options="", constants="")
        self.entries.append(entry)
        self.weight += told(entry)

    def repeats(self, key: EntryKey, status: os.stat_result, *, stray: bool = False) -> bool:
        """Return whether a file has told much of another entry: linked into many places it would fill a catalog.

        One that is a ``stray`` leaves it to where the file belongs.
        """
        teller = self.linked.get((status.st_dev, status.st_ino), key)
        return status.st_nlink > self.FEW and teller != key and (stray or bool(teller))

    def note_told(self, key: EntryKey, status: os.stat_result, characters: int) -> None:
        """Note how much a file told of an entry."""
        if status.st_nlink > self.FEW and characters > self.LIGHT:
            if len(self.linked) >= self.MOST_LINKED:
                self.linked.clear()
            self.linked[status.st_dev, status.st_ino] = key

    def shortened(self, entry: Entry, status: os.stat_result) -> Entry:
        """Return an entry without what its file has told of another one."""
        return replace(entry, kernels=(), options="", constants="") if self.repeats(entry.id.key, status) else entry

    @property
    def full(self) -> bool:
        """Whether what was found since the part before is enough for one."""
        found = len(self.entries) + len(self.unchanged) + len(self.rows.passed) + len(self.rows.shut_in)
        return found >= known_cursor.PART or self.weight >= self.HEAVY

    def pass_before(self, prefix: str = "") -> Iterator[Scan]:
        """Come to a directory, or to the end; give the parts that are full of what was known before it."""
        while not self.rows.pass_before(prefix):
            yield self.part()

    def leave_unread(self, prefix: str) -> Iterator[Scan]:
        """Go by a directory that may not be read; give the parts that are full of what was known below it."""
        while not self.rows.leave_unread(prefix):
            yield self.part()

    def part(self, *, last: bool = False) -> Scan:
        """Return what was found since the part before."""
        found = replace(
            self.about(last=last),
            entries=tuple(self.entries),
            unchanged=tuple(self.unchanged),
            shut_in=tuple(self.rows.shut_in),
            vanished=tuple(self.rows.passed),
        )
        for one in (self.entries, self.unchanged, self.rows.shut_in, self.rows.passed):
            one.clear()
        self.weight = 0
        return found

    def unsettle(self, prefix: str) -> None:
        """Forget the places of what was found last, below one directory: the next look has to go there again."""
        begin = len(self.entries)
        while begin and self.entries[begin - 1].id.key.startswith(prefix):
            begin -= 1
        self.entries[begin:] = [replace(one, place=None) for one in self.entries[begin:]]
        begin = len(self.unchanged)
        while begin and self.unchanged[begin - 1].key.startswith(prefix):
            begin -= 1
        self.unchanged[begin:] = [replace(one, place=None) for one in self.unchanged[begin:]]

    def about(self, *, last: bool) -> Scan:
        """Return what a part says of the store as a whole; the last one tells how it is."""
        whole = last and not self.quick
        foreign = self.foreign if whole else None
        return Scan(self.found, self.now, StoreState.OK, self.status.st_uid, foreign=foreign, thorough=whole)
