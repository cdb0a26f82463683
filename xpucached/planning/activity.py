"""Decide: what programs did in a store, from the files that they closed.  Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from xpucached.domain.activity import FileAct, FileEvent, Load, Program
from xpucached.domain.names import EntryKey

Half = tuple[Path, EntryKey, int, datetime]
"""An entry of which a program has read the source and not yet the binary."""

_MOST_HALVES: Final = 10_000
"""A program that reads sources and nothing else must not fill the memory."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What programs did."""

    loaded: tuple[tuple[Program, Path, EntryKey, datetime], ...] = ()
    made: Mapping[Program, tuple[tuple[Path, EntryKey, datetime], ...]] = field(default_factory=dict)
    halves: frozenset[Half] = frozenset()  #: to be given along with what comes next


def observed_activity(
    file_events: Iterable[tuple[FileEvent, Program]], boot: datetime, halves: frozenset[Half] = frozenset()
) -> Activity:
    """Tell which entries were loaded, and which were made, by whom.

    Only by programs with the SYCL runtime, and not by models that we warm.  The runtime compares ``N.src`` and then
    loads ``N.bin``: the order is what tells a load from other reading, for example when a key differed.  It writes
    ``N.src`` last.  What it compiled from source (``ir.bin``) has no ``.src``.  ``boot`` is when `FileEvent.at` was
    zero.
    """
    pending = set(halves)
    loaded: list[tuple[Program, Path, EntryKey, datetime]] = []
    made: dict[Program, list[tuple[Path, EntryKey, datetime]]] = {}
    for file_event, program in file_events:
        stem, _, suffix = file_event.path.rpartition(".")
        if program.ours or not program.sycl or suffix not in {"src", "bin"}:
            continue
        key = EntryKey(stem)
        alone = stem.endswith("/ir")
        half: Half = (file_event.store, key, program.pid, program.started)
        at = boot + timedelta(seconds=file_event.at)
        match file_event.act:
            case FileAct.READ if suffix == "src":
                if len(pending) < _MOST_HALVES:
                    pending.add(half)
            case FileAct.READ if half in pending or alone:
                pending.discard(half)
                loaded.append((program, file_event.store, key, at))
            case FileAct.WRITTEN if suffix == "src" or alone:
                made.setdefault(program, []).append((file_event.store, key, at))
    return Activity(tuple(loaded), {one: tuple(some) for one, some in made.items()}, frozenset(pending))


def uses(
    before: Mapping[tuple[Path, EntryKey], Load], loaded: Iterable[tuple[Program, Path, EntryKey, datetime]]
) -> dict[tuple[Path, EntryKey], Load]:
    """Add loads to those that are not written down yet."""
    found = dict(before)
    for program, store, key, at in loaded:
        old = found.get((store, key))
        if old is None:
            found[store, key] = Load(store, key, at, 1, program.label, program.uid)
        else:
            found[store, key] = dataclasses.replace(
                old, last=max(old.last, at), hits=old.hits + 1, program=program.label, uid=program.uid
            )
    return found
