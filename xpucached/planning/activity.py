"""Decide: what programs did in a store, from the files that they closed.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from msgspec.structs import replace

from xpucached.domain.activity import Load, Program
from xpucached.domain.names import EntryKey

Half = tuple[Path, EntryKey, int, datetime]
"""An entry of which a program has read the source and not yet the binary."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What programs did."""

    loaded: tuple[tuple[Program, Path, EntryKey, datetime], ...] = ()
    made: Mapping[Program, tuple[tuple[Path, EntryKey, datetime], ...]] = field(default_factory=dict)
    halves: frozenset[Half] = frozenset()  #: to be given along with what comes next


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
            found[store, key] = replace(
                old, last=max(old.last, at), hits=old.hits + 1, program=program.label, uid=program.uid
            )
    return found
