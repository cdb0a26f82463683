"""Observe: one look at a store while it goes on, and what was known of the store before."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from xpucached.domain.defects import StoreFault
from xpucached.domain.names import EntryKey
from xpucached.domain.stores import Entry, KnownEntry, Scan
from xpucached.domain.targets import Target
from xpucached.kinds import images, walking
from xpucached.kinds.sycl import defects, doctor
from xpucached.kinds.walking import StoreWalk

OURS: Final = 200
"""Removals of a dead daemon that are finished after one look; what says that it is one may be forged."""


@dataclass(slots=True)
class ScanState(StoreWalk):
    """One scan while it goes on."""

    writer_since: datetime | None = None
    faults: tuple[StoreFault, ...] = ()
    known: Mapping[EntryKey, KnownEntry] = field(default_factory=dict)  #: of what is looked at just now
    seen: set[EntryKey] = field(default_factory=set)  #: of it, those that are there
    ours: list[EntryKey] = field(default_factory=list)
    left: int = 0  #: what of a dead daemon was met, whether it is in ``ours`` or not
    hollow: bool = False  #: whether a directory holds no entry, so that none tells when something is written there
    shut: list[str] = field(default_factory=list)  #: directories, below what is looked at, that may not be read
    shut_in_all: int = 0
    blocked: bool = False  #: whether something stands where programs need a directory
    digests: dict[tuple[int, ...], str] = field(default_factory=dict)  #: of large programs, by file
    environments: dict[str, Target | None] = field(default_factory=dict)
    parts: int = 0  #: that were given

    def claim(self, key: EntryKey) -> None:
        """Note what a dead daemon left; of more than `OURS` any so many, so that none that can be finished waits."""
        self.left += 1
        if len(self.ours) < OURS:
            self.ours.append(key)
        elif (place := random.randrange(self.left)) < OURS:  # noqa: S311 - no secret
            self.ours[place] = key

    def named(self, entry: Entry, status: os.stat_result, image: bytes) -> Entry:
        """Add the kernels of a file's image; what is linked into many places names many of them once."""
        if not self.repeats(entry.id.key, status):
            entry = replace(entry, kernels=images.kernels(image))
            self.note_told(entry.id.key, status, walking.told(entry))
        return entry

    def stray(self, entry: Entry, status: os.stat_result, image: bytes) -> Entry:
        """Add the kernels of a file that belongs elsewhere, or is cut short; not many, if it has other names."""
        bare = replace(entry, kernels=(), options="", constants="")
        if self.repeats(entry.id.key, status, stray=True):
            return bare
        entry = replace(entry, kernels=images.kernels(image))
        self.note_told(EntryKey(""), status, walking.told(entry))
        return bare if self.repeats(entry.id.key, status, stray=True) else entry

    def part(self, *, last: bool = False) -> Scan:
        """Return what was found since the part before."""
        self.parts += 1
        return StoreWalk.part(self, last=last)

    def about(self, *, last: bool) -> Scan:
        """Return what a part says of the store as a whole: its faults in each."""
        faults = (*self.faults, defects.BLOCKED) if last and self.blocked else self.faults
        notes = tuple(doctor.words(self.store, fault) for fault in faults)
        if last and self.shut_in_all:
            notes = (*notes, f"directories that may not be read, whose entries are not known now: {self.shut_in_all}")
        ours, shut = (tuple(self.ours), self.shut_in_all) if last else ((), 0)
        return replace(StoreWalk.about(self, last=last), notes=notes, ours=ours, faults=faults, shut=shut)
