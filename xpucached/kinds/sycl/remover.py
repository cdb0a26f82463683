"""Act: take entries out of a SYCL store by the runtime's own rules.

The order is lock, ``.src``, ``.bin``, access time, lock: without its source an entry cannot be found, and while the
lock exists no program reads or writes the slot.  A lower slot must never go while a higher one stays, for a program
stops at the first empty number: the highest slot that stays is moved down into the place, and remains readable at its
old place until the new one is.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from xpucached.domain.stores import UNSETTLED, Entry, EntryId
from xpucached.domain.trash import TrashLabel
from xpucached.kinds import folders, fs, listing, removal
from xpucached.kinds.sycl import defects, entry_format, locks, recipes, trash_files
from xpucached.kinds.sycl.slots import SlotNumbers, slot_in, slot_stamp
from xpucached.processes.cancellation import until_cancelled

log = logging.getLogger(__name__)

_SUFFIXES: Final = (".src", ".bin", "_access_time.txt")

_LINGER: Final = 0.02
"""A program that met the lock on the new place walks on and must still find the old one: it needs microseconds."""


def _nothing(_: str) -> None:
    return


pause: Callable[[str], None] = _nothing
"""Tests put their own function here, to act between two system calls.  It is told what has just been done."""


def remove(
    entries: Sequence[Entry],
    notes: Mapping[EntryId, TrashLabel] | None = None,
    failed: Callable[[Path, OSError], None] | None = None,
) -> Mapping[EntryId, bool]:
    """Take entries out, leaf by leaf; see `Remover.remove`."""
    results = {entry.id: False for entry in entries}
    for leaf in until_cancelled(removal.by_directory(entries)):
        results.update(_remove_leaf(leaf, notes or {}, failed))
    return results


def _remove_leaf(
    entries: Sequence[Entry], notes: Mapping[EntryId, TrashLabel], failed: Callable[[Path, OSError], None] | None
) -> Mapping[EntryId, bool]:
    results = {entry.id: False for entry in entries}
    freed = 0
    try:
        with removal.opened(entries[0].id) as (descriptors, _, path):
            leaf = descriptors[-1]
            neighbours = SlotNumbers.of(leaf)
            # Before the first one goes: where slots share files by hard links, removing one touches all of them.
            judged = {entry.id: content(leaf, entry) for entry in until_cancelled(entries)}
            for entry in until_cancelled(_in_turn(entries, neighbours)):
                try:
                    note = notes.get(entry.id)
                    if note is not None and _take_leaf(descriptors, entry, judged[entry.id], note):
                        results[entry.id], size = True, entry.size
                    else:
                        destination = None if note is None else _TrashDestination(descriptors[0], note)
                        results[entry.id], size = _remove_slot(leaf, entry, judged[entry.id], neighbours, destination)
                except OSError as error:
                    removal.report_error(entry.id, error, failed)
                    continue
                freed += size
            _remove_empty(descriptors, path)
            if freed:
                _correct_size(descriptors[0], freed)
    except FileNotFoundError:
        # Somebody else removed the whole leaf, which is what was wanted.
        return dict.fromkeys(results, True)
    except OSError as error:
        removal.report_error(entries[0].id, error, failed)
    return results


def _in_turn(entries: Sequence[Entry], neighbours: SlotNumbers) -> Iterator[Entry]:
    """Yield entries of a leaf from the highest slot down, so that a death in between leaves no gap.

    But while what stays is above all of them, the lowest comes first: so it moves down once, and not into each place.
    """
    slots = {_number(entry.id.key.rpartition("/")[2]): entry for entry in entries}
    left = deque(sorted(slots))
    while len(left) > 1:
        above = neighbours.highest(left[0])
        yield slots.pop(left.pop() if above is None or int(above) in slots else left.popleft())
    yield from slots.values()


def _take_leaf(descriptors: Sequence[int], entry: Entry, judged: Content | None, note: TrashLabel) -> bool:
    """Move a leaf into the trash as a whole if it holds nothing but this entry, and nobody is at work there."""
    root, parent, leaf = descriptors[0], descriptors[-2], descriptors[-1]
    slot = entry.id.key.rpartition("/")[2]
    present = slot_in(leaf, slot).files
    if judged is None or not present or content_of(present) != judged or any(one.endswith(".lock") for one in present):
        return False
    with os.scandir(leaf) as listed:
        if len(list(itertools.islice(listed, len(present) + 1))) != len(present):
            return False
    try:
        if not trash_files.take_leaf(root, os.fstat(root).st_dev, parent, leaf, entry, note, present):
            return False
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # Overlayfs renames no directory of a lower layer, but its files.
        return False
    # A program that began to write in between finds its leaf gone, and just stores nothing.
    pause("moved")
    return True


def sweep(entry: EntryId) -> bool:
    """Finish what a dead daemon began; see `Remover.sweep`."""
    if entry.key.startswith(recipes.STAGING):
        return recipes.clear_staging(os.fspath(entry.store.root))
    try:
        with removal.opened(entry) as (descriptors, slot, path), locks.inherited(descriptors[-1], slot) as held:
            leaf = descriptors[-1]
            if not held:
                return False
            # While our lock stands no program wrote here: what is left is what we had begun to take away, and what was
            # to be kept goes where the rest of it is.
            trash_files.resume(descriptors[0], os.fstat(descriptors[0]).st_dev, leaf, "/".join(path), slot)
            _rejoin(leaf, slot)
            lock = SlotLock(leaf, slot)
            present = slot_in(leaf, slot).files
            if ".bin" not in present or (".src" not in present and path[0] != entry_format.RTC):
                # Else nothing was begun with, or a higher slot has moved here already: then it stays.
                unlink_slot(leaf, slot)
                close_gap(lock, SlotNumbers.of(leaf))
            lock.release()
            _remove_empty(descriptors, path)
    except FileNotFoundError:
        # The whole leaf went, which is what was wanted.
        return False
    except OSError as error:
        log.warning("a removal could not be finished: %s: %s", entry.key, error)
        return False
    return True


def _rejoin(leaf: int, slot: str) -> None:
    """Bring the two halves of a slot together again whose move, file by file, a dead daemon had begun.

    A removal leaves no source without its program, so the half with the source is what has not moved yet.
    """
    there = slot_in(leaf, slot).files
    if ".bin" not in there or ".src" in there:
        return
    names = set(listing.names(leaf))
    for number in SlotNumbers.among(leaf, names).numbers:
        upper = str(number)
        if upper + ".src" not in names or upper + ".bin" in names or upper + ".lock" not in names:
            continue
        with locks.inherited(leaf, upper) as held:
            if held:
                for suffix in ("_access_time.txt", ".src"):
                    with contextlib.suppress(FileNotFoundError):
                        os.rename(upper + suffix, slot + suffix, src_dir_fd=leaf, dst_dir_fd=leaf)
                folders.unlink(leaf, upper + ".lock")
                return


def _number(slot: str) -> int:
    return int(slot) if slot.isdigit() else 0


Content = frozenset[tuple[str, int, int, int, int]]
"""What tells the files of a slot from others in their place."""


def content_of(present: Mapping[str, os.stat_result]) -> Content:
    """Return what these files hold."""
    return frozenset(
        (suffix, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode)
        for suffix, status in present.items()
        if not suffix.endswith(".lock")
    )


def content(leaf: int, entry: Entry) -> Content | None:
    """Return what a slot holds; None if somebody has written it anew since it was judged."""
    slot = slot_in(leaf, entry.id.key.rpartition("/")[2])
    return content_of(slot.files) if slot_stamp(slot) == entry.stamp.rpartition(":")[2] else None


@dataclass(frozen=True, slots=True)
class _TrashDestination:
    """Where an entry goes instead of away: the trash of this root, with this note."""

    root: int
    note: TrashLabel


def _remove_slot(
    leaf: int, entry: Entry, judged: Content | None, neighbours: SlotNumbers, destination: _TrashDestination | None
) -> tuple[bool, int]:
    """Remove one slot: whether it is gone, and the bytes of its ``.src`` and ``.bin``."""
    slot = entry.id.key.rpartition("/")[2]
    present = slot_in(leaf, slot)
    if not present.files:
        return True, 0
    if judged is None or content_of(present.files) != judged:
        return False, 0
    left_behind = entry.defect in (defects.STALE_LOCK, defects.LOCK_ONLY, defects.INTERRUPTED)
    if entry.state in UNSETTLED or (".lock" in present.files) != left_behind:
        return False, 0
    if left_behind and locks.young(present.files[".lock"]):
        # Not the lock that was judged: somebody removed that one, and a program took its own.
        return False, 0
    lock = SlotLock(leaf, slot) if left_behind else take_lock(leaf, slot)
    if lock is None:
        return False, 0
    try:
        if destination is not None:
            # Without room for a label it goes for good: a full disk is why it has to go at all.
            trash_files.take(
                destination.root, os.fstat(destination.root).st_dev, leaf, entry, destination.note, present.files
            )
            pause("moved")
        unlink_slot(leaf, slot)
        close_gap(lock, neighbours)
    finally:
        lock.release()
        pause("unlocked")
    return True, sum(present.files[suffix].st_size for suffix in (".src", ".bin") if suffix in present.files)


@dataclass(slots=True)
class SlotLock:
    """The lock of a slot while it is ours: made by us, or left behind by somebody dead."""

    leaf: int
    slot: str
    held: bool = True

    def release(self) -> None:
        """Give the slot back, once: a lock that appears there later is a program's."""
        if self.held:
            self.held = False
            folders.unlink(self.leaf, self.slot + ".lock")


def take_lock(leaf: int, slot: str) -> SlotLock | None:
    """Make the runtime's lock, with our name in it so that a successor can tell it from a program's."""
    if not locks.take(leaf, slot):
        return None
    pause("locked")
    return SlotLock(leaf, slot)


def unlink_slot(leaf: int, slot: str) -> None:
    """Remove the files of a slot, so that no program finds half of it; its lock stays.  Raises OSError."""
    for suffix in _SUFFIXES:
        # A directory that somebody filled does not go, and so nothing else does.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.rmdir(slot + suffix, dir_fd=leaf)
    for suffix in _SUFFIXES:
        folders.unlink(leaf, slot + suffix)
        pause(suffix)
    folders.unlink(leaf, slot + "_access_time.txt.lock")


def close_gap(place: SlotLock, neighbours: SlotNumbers) -> None:
    """Move the highest slot that stays into the place of one that went, and give the place back."""
    leaf, slot = place.leaf, place.slot
    if not slot.isdigit():
        return
    above = neighbours.highest(int(slot))
    if above is None:
        return
    highest = slot_in(leaf, above)
    suffixes = [suffix for suffix in reversed(_SUFFIXES) if suffix in highest.files]
    try:
        for suffix in suffixes:
            os.link(highest.name + suffix, slot + suffix, src_dir_fd=leaf, dst_dir_fd=leaf, follow_symlinks=False)
    except OSError:
        # No hard links here, or the slot is going away.  Without them the move is a rename under both locks, and a
        # program that looks just now compiles once.
        for suffix in suffixes:
            folders.unlink(leaf, slot + suffix)
        lock = take_lock(leaf, highest.name)
        if lock is not None:
            try:
                for suffix in suffixes:
                    with contextlib.suppress(FileNotFoundError):
                        os.rename(highest.name + suffix, slot + suffix, src_dir_fd=leaf, dst_dir_fd=leaf)
            finally:
                lock.release()
        return
    pause("linked")
    place.release()
    time.sleep(_LINGER)
    lock = take_lock(leaf, highest.name)
    if lock is None:
        return
    try:
        unlink_slot(leaf, highest.name)
    finally:
        lock.release()


def _remove_empty(descriptors: list[int], path: tuple[str, ...]) -> None:
    """Remove the directories that are empty now.  A program that writes at this moment just stores nothing."""
    for parent, name in zip(reversed(descriptors[:-1]), reversed(path), strict=True):
        try:
            os.rmdir(name, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return
            if error.errno != errno.ENOENT:
                raise


def _correct_size(root: int, freed: int) -> None:
    """Keep the runtime's own total right, where its eviction is on.

    Without the runtime's lock: one that we left behind would hang every program that has a limit set, and a total that
    is off by one entry is harmless.
    """
    name = "cache_size.txt"
    beside = f"{name}.xpucached"
    try:
        with fs.regular_file(root, name) as (descriptor, status):
            digits = fs.read(descriptor, 32)
        if not digits.isdigit() or listing.exists(root, f"{name}.lock"):
            return
        # Whatever has this name already (a pipe, a link to somebody's file) goes; it is never opened.
        folders.unlink(root, beside)
        fs.make(root, beside, b"%d" % max(0, int(digits) - freed), mode=status.st_mode & 0o777)
        os.rename(beside, name, src_dir_fd=root, dst_dir_fd=root)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("the runtime's own size could not be corrected: %s", error)
