"""What programs did in a SYCL store, from the files that they closed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from xpucached.domain.activity import FileAct, FileEvent, Program, WatchSpec
from xpucached.domain.names import EntryKey
from xpucached.kinds.sycl.discovery import LIBRARIES
from xpucached.planning.activity import Activity, Half

WATCH: Final = WatchSpec(r"(?:[0-9]{1,10}|ir)\.(?:src|bin)", 4)

_MOST_HALVES: Final = 10_000
"""A program that reads sources and nothing else must not fill the memory."""


def interpret(
    events: Iterable[tuple[FileEvent, Program]], boot: datetime, halves: frozenset[Half] = frozenset()
) -> Activity:
    """Return which entries were loaded, and which were made, by whom.

    Only by programs with the SYCL runtime, and not by models that we warm.  The runtime compares ``N.src`` and then
    loads ``N.bin``: the order is what tells a load from other reading, for example when a key differed.  It writes
    ``N.src`` last.  What it compiled from source (``ir.bin``) has no ``.src``.  ``boot`` is when `FileEvent.at` was
    zero.
    """
    pending = set(halves)
    loaded: list[tuple[Program, Path, EntryKey, datetime]] = []
    made: dict[Program, list[tuple[Path, EntryKey, datetime]]] = {}
    for file_event, program in events:
        stem, _, suffix = file_event.path.rpartition(".")
        if program.ours or not _has_runtime(program) or suffix not in {"src", "bin"}:
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


def is_half(path: str) -> bool:
    """Return whether its source follows: a binary is written first."""
    return path.endswith("/0.bin")


def _has_runtime(program: Program) -> bool:
    return any(name.startswith(LIBRARIES) for name in program.libraries)
