"""Observe: the slots of a leaf, and what changes when one of their files does."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from xpucached.domain import EntryKey
from xpucached.kinds.sycl import layout, locks


@dataclass(slots=True)
class Slot:
    """The files of one slot, by suffix."""

    name: str
    files: dict[str, os.stat_result] = field(default_factory=dict)


def slots_in(leaf: int, pattern: re.Pattern[str] = layout.SLOT_FILE) -> tuple[dict[str, Slot], int]:
    """List the slots of a leaf in the runtime's order, and count what belongs to none."""
    slots: dict[str, Slot] = {}
    foreign = 0
    for name in os.listdir(leaf):
        match = pattern.match(name)
        if match is None:
            foreign += 1
            continue
        try:
            status = os.stat(name, dir_fd=leaf, follow_symlinks=False)
        except FileNotFoundError:
            continue
        slots.setdefault(match[1], Slot(match[1])).files[match[2]] = status
    ordered = sorted(slots, key=lambda name: int(name) if name.isdigit() else 0)
    return {name: slots[name] for name in ordered}, foreign


def names_in(leaf: int, pattern: re.Pattern[str]) -> set[str]:
    """List the names of the slots of a leaf."""
    return {match[1] for match in map(pattern.match, os.listdir(leaf)) if match is not None}


def slot_in(leaf: int, name: str) -> Slot:
    """Look at one slot as `slots_in` does; without files if there is none.  Raises OSError if it cannot be told."""
    slot = Slot(name)
    for suffix in layout.SLOT_SUFFIXES if name.isdigit() else layout.IR_SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            slot.files[suffix] = os.stat(name + suffix, dir_fd=leaf, follow_symlinks=False)
    return slot


def slot_stamp(slot: Slot) -> str:
    """16 hex digits that change when a file of this slot is written, replaced or removed."""
    return digest(
        (suffix, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode)
        for suffix, status in sorted(slot.files.items())
        if not suffix.endswith(".lock")
    )


def digest(facts: Iterator[tuple[object, ...]]) -> str:
    """Give 16 hex digits that stand for facts in this order."""
    found = hashlib.blake2b(digest_size=8)
    for fact in facts:
        found.update(repr(fact).encode())
    return found.hexdigest()


def key_of(path: tuple[str, ...], slot: str) -> EntryKey:
    """Name a slot."""
    return EntryKey("/".join((*path, slot)))


def accessed(slot: Slot) -> datetime | None:
    """Tell when a program last read a slot, as far as its files say."""
    times = [slot.files[suffix].st_atime_ns for suffix in (".src", ".bin") if suffix in slot.files]
    # With its own eviction on, the runtime records each hit here.
    access = slot.files.get("_access_time.txt")
    if access is not None:
        times.append(access.st_mtime_ns)
    return locks.moment(max(times)) if times else None
