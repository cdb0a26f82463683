"""Act: mend entries of a SYCL store in their places, by the runtime's own rules: see `remover`."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from xpucached.domain.defects import RepairAction
from xpucached.domain.stores import Entry, EntryId
from xpucached.domain.trash import Repair
from xpucached.kinds import folders, fs, removal
from xpucached.kinds.sycl import exchange, locks, remover
from xpucached.kinds.sycl.slots import SlotNumbers, holds_program, slot_in
from xpucached.processes.cancellation import until_cancelled

log = logging.getLogger(__name__)

_GAPS: Final = 200
"""So many gaps of one leaf are closed at a time; each lingers."""


def mend(repairs: Sequence[Repair], failed: Callable[[Path, OSError], None] | None = None) -> Mapping[EntryId, bool]:
    """Mend entries in their places; see `Doctor.mend`."""
    results = {one.entry.id: False for one in repairs}
    actions = {one.entry.id: one.action for one in repairs}
    for one in until_cancelled(repairs):
        if one.action is RepairAction.SWAP_BACK and one.other is not None and not results[one.entry.id]:
            # Both of a pair are asked for.
            results[one.entry.id] = results[one.other.id] = _swap_back(one.entry, one.other, failed)
    in_place = [one.entry for one in repairs if one.action is not RepairAction.SWAP_BACK]
    for entries in until_cancelled(removal.by_directory(in_place)):
        try:
            with removal.opened(entries[0].id) as (descriptors, _, _path):
                leaf = descriptors[-1]
                for entry in until_cancelled(entries):
                    try:
                        if actions[entry.id] is RepairAction.UNLOCK:
                            results[entry.id] = _unlock(leaf, entry)
                        elif actions[entry.id] is RepairAction.READABLE:
                            results[entry.id] = _make_readable(leaf, entry)
                    except OSError as error:
                        removal.report_error(entry.id, error, failed, "mended")
                gapped = [entry for entry in entries if actions[entry.id] is RepairAction.CLOSE_GAP]
                if gapped:
                    done = _close_gaps(leaf)
                    results.update((entry.id, done) for entry in gapped)
        except OSError as error:
            removal.report_error(entries[0].id, error, failed, "mended")
    return results


def _swap_back(entry: Entry, other: Entry, failed: Callable[[Path, OSError], None] | None) -> bool:
    """Let the programs of two entries change places, under both locks: True if they did."""
    try:
        with contextlib.ExitStack() as stack:
            places: list[tuple[int, str]] = []
            # Always in one order, so that no two who do this wait for each other; nobody waits here, though.
            for one in sorted((entry, other), key=lambda one: one.id.key):
                descriptors, slot, _ = stack.enter_context(removal.opened(one.id))
                lock = remover.take_lock(descriptors[-1], slot)
                if lock is None:
                    return False
                stack.callback(lock.release)
                if remover.content(descriptors[-1], one) is None:
                    return False
                places.append((descriptors[-1], slot + ".bin"))
            exchange.exchange(*places[0], *places[1])
            remover.pause("exchanged")
    except OSError as error:
        for one in (entry, other):
            removal.report_error(one.id, error, failed, "mended")
        return False
    return True


def _unlock(leaf: int, entry: Entry) -> bool:
    """Remove the lock of a dead program from a whole slot: no program skips it any more."""
    slot = entry.id.key.rpartition("/")[2]
    present = slot_in(leaf, slot)
    lock = present.files.get(".lock")
    if lock is None:
        return True
    if remover.content(leaf, entry) is None or locks.young(lock):
        # Not what was judged: somebody wrote it anew, or is about to.
        return False
    folders.unlink(leaf, slot + ".lock")
    return True


def _make_readable(leaf: int, entry: Entry) -> bool:
    """Let the files of a slot be read again, by those who may list its directory; only files that are ours."""
    slot = slot_in(leaf, entry.id.key.rpartition("/")[2])
    listed = stat.S_IMODE(os.fstat(leaf).st_mode) & 0o444
    for suffix, status in slot.files.items():
        if suffix not in (".bin", ".src") or status.st_mode & stat.S_IRUSR:
            continue
        if not folders.allow(leaf, slot.name + suffix, stat.S_IRUSR | listed):
            return False
    # It may be another thing than its mode that keeps a file from being read.
    try:
        for suffix in {".bin", ".src"} & slot.files.keys():
            with fs.regular_file(leaf, slot.name + suffix) as (descriptor, _):
                fs.read(descriptor, 1)
    except OSError:
        return False
    return True


def _close_gaps(leaf: int) -> bool:
    """Move the highest slots down until every number below them has one: True if there is nothing left to move.

    So many gaps as somebody could forge are closed by several looks.
    """
    neighbours = SlotNumbers.of(leaf)
    taken = [number for number in neighbours.numbers if _is_taken(leaf, number)]
    known = frozenset(taken)
    closed = 0
    for gap in itertools.count():
        while taken and not _is_taken(leaf, taken[-1]):
            taken.pop()
        if not taken or gap > taken[-1]:
            return True
        if gap in known:
            continue
        lock = remover.take_lock(leaf, str(gap)) if closed < _GAPS else None
        if lock is None:
            # It is somebody else's, or there are more than are closed at once.
            return False
        closed += 1
        try:
            if not holds_program(slot_in(leaf, str(gap)).files):
                # Else a program was quicker, and has written just there.
                remover.unlink_slot(leaf, str(gap))
                remover.close_gap(lock, neighbours)
                if not holds_program(slot_in(leaf, str(gap)).files):
                    return True
        finally:
            lock.release()
    return True


def _is_taken(leaf: int, number: int) -> bool:
    """Return whether a slot is no gap: one that is being written will have its program in a moment."""
    present = slot_in(leaf, str(number)).files
    return holds_program(present) or ".lock" in present
