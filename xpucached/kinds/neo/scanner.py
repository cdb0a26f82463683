"""Observe: the walk through a store of the GPU driver's, in the order of its keys."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final

from msgspec.structs import replace

from xpucached.domain.names import EntryKey
from xpucached.domain.stores import FoundStore, KnownEntry, Scan, UnchangedEntry
from xpucached.kinds import fs, listing, walking
from xpucached.kinds.known_cursor import KnownCursor
from xpucached.kinds.neo import counting, doctor, layout
from xpucached.kinds.neo import targets as neo_targets
from xpucached.kinds.neo.reader import accessed, read_entry
from xpucached.kinds.neo.remover import stamp
from xpucached.kinds.walking import StoreWalk
from xpucached.processes import cancellation

_TICK: Final = 2_000_000_000
"""Nanoseconds.  Who looks at a directory so soon after a change may miss the next one in the same tick of its clock."""

_OURS: Final = frozenset({layout.TOTAL, layout.STATS, "CACHEDIR.TAG"})


def parts(
    found: FoundStore,
    now: datetime,
    known: Iterable[KnownEntry],
    writer_since: datetime | None,  # noqa: ARG001 - its lock tells who writes
    *,
    quick: bool = False,
    inside: bool = True,
) -> Iterator[Scan]:
    """Look at a store bit by bit; see `Scanner.parts`."""

    def walk(root: int, status: os.stat_result) -> Iterator[Scan]:
        look = _NeoWalk(found, now, KnownCursor(known), quick, root, status, inside=inside)
        yield from look.walk()
        yield look.part(last=True)

    return walking.parts(found, now, walk)


key = layout.key
targets = neo_targets.targets
architecture = neo_targets.architecture


def built_from(key: EntryKey) -> tuple[str, str] | None:  # noqa: ARG001
    """Return nothing: a key is a hash of all at once."""
    return None


def _order(name: str) -> str:
    """Make names come as their keys do: those of directories go on behind a slash."""
    return f"{name}/" if layout.LEVEL.match(name) else name


@dataclass(slots=True)
class _NeoWalk(StoreWalk):
    """One look while it goes on."""

    HEAVY: ClassVar[int] = 16 << 20

    shut: int = 0  #: directories that may not be read

    def walk(self) -> Iterator[Scan]:
        """Go through the store; give all parts but the last."""
        for name in sorted(listing.names(self.root), key=_order):
            if layout.LEVEL.match(name):
                yield from self._level(name)
            elif layout.ENTRY.match(name):
                key = EntryKey(name)
                yield from self.pass_before(key)
                self._entry(self.root, name, key, None, next(iter(self.rows.take(key)), None))
                if self.full:
                    yield self.part()
            elif name not in _OURS and not layout.TEMPORARY.match(name) and not layout.TRACE.match(name):
                self.foreign += 1
        yield from self.pass_before()

    def _level(self, first: str) -> Iterator[Scan]:
        """Go through a directory of the first level, and those below it."""
        yield from self.pass_before(f"{first}/")
        try:
            with fs.directory_in(self.root, first, self.device) as here:
                for second in sorted(listing.names(here)):
                    if layout.LEVEL.match(second):
                        yield from self._leaf(here, f"{first}/{second}/", second)
                    else:
                        self.foreign += second != layout.STATS
        except OSError as error:
            yield from self._refused(error, f"{first}/")

    def _leaf(self, parent: int, path: str, name: str) -> Iterator[Scan]:
        cancellation.check()
        yield from self.pass_before(path)
        rows = self.rows.take(path)
        try:
            with fs.directory_in(parent, name, self.device) as here:
                status = os.fstat(here)
                settled = status.st_ctime_ns + _TICK < self.now.timestamp() * 1e9
                place = hash((status.st_ino, status.st_ctime_ns)) if settled else None
                if self.quick and rows and place is not None and all(row.place == place for row in rows):
                    return
                there = sorted(listing.names(here))
                known = {row.key: row for row in rows}
                for file in there:
                    if layout.ENTRY.match(file):
                        key = EntryKey(path + file)
                        self._entry(here, file, key, place, known.pop(key, None))
                        if self.full:
                            # Given in the middle of a directory: the next look has to go there again.
                            place = None
                            self.unsettle(path)
                            yield self.part()
                    else:
                        self.foreign += file != layout.STATS
                self.rows.passed += known
        except OSError as error:
            kept = self.rows.shut_in if isinstance(error, PermissionError) else self.rows.passed
            kept += (row.key for row in rows)
            yield from self._refused(error, path)

    def _entry(self, directory: int, name: str, key: EntryKey, place: int | None, row: KnownEntry | None) -> None:
        """Look at an entry, and read it if it is not the one that was known."""
        cancellation.check()
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                self.foreign += 1
                self._gone(row)
            elif row is not None and row.stamp == stamp(status):
                self.unchanged.append(UnchangedEntry(key, accessed(status), place))
            else:
                entry = read_entry(self.store, directory, name, key, status, place, self.now)
                entry = self.shortened(entry, status)
                self.note_told(key, status, walking.told(entry))
                self.add(entry)
        except FileNotFoundError:
            self._gone(row)

    def _gone(self, row: KnownEntry | None) -> None:
        if row is not None:
            self.rows.passed.append(row.key)

    def _refused(self, error: OSError, path: str) -> Iterator[Scan]:
        """Note what may not be read, or is no part of the store; what was known of the former is not forgotten."""
        if isinstance(error, FileNotFoundError):
            return
        if fs.passing(error):
            raise error
        self.foreign += 1
        if isinstance(error, PermissionError):
            self.shut += 1
            yield from self.leave_unread(path)

    def about(self, *, last: bool) -> Scan:
        """Return what a part says of the store as a whole."""
        said = StoreWalk.about(self, last=last)
        if not last:
            return said
        faults, counted = doctor.met(self.root, os.fspath(self.store.root), self.now)
        notes = (*(one.message for one in faults), *self._notes(counted))
        return replace(said, notes=notes, faults=faults, lookups=counting.lookups(self.root), shut=self.shut)

    def _notes(self, counted: counting.Counted) -> Iterator[str]:
        if self.status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            yield "others may write here: programs load what they put there"
        if counted.flat:
            yield f"entries of drivers up to 26.01, which later ones count and never read: {counted.flat}"
        if counted.traces:
            yield f"files of traced runs, which hold source text and which no driver removes: {counted.traces}"
        if self.shut:
            yield f"directories that may not be read, whose entries are not known now: {self.shut}"
