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
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from xpucached.domain.defects import Defect
from xpucached.domain.stores import Entry, EntryId, EntryState, Store
from xpucached.domain.trash import Repair, RepairAction, TrashLabel
from xpucached.kinds import fs, listing
from xpucached.kinds.sycl import entry_format, exchange, locks, recipes, trash_files
from xpucached.kinds.sycl.slots import SlotNumbers, holds_program, slot_in, slot_stamp

log = logging.getLogger(__name__)

_SUFFIXES: Final = (".src", ".bin", "_access_time.txt")

_GAPS: Final = 200
"""So many gaps of one leaf are closed at a time; each lingers."""

_LINGER: Final = 0.02
"""A program that met the lock on the new place walks on and must still find the old one: it needs microseconds."""


def _nothing(_: str) -> None:
    return


_pause: Callable[[str], None] = _nothing
"""Tests put their own function here, to act between two system calls.  It is told what has just been done."""


@contextlib.contextmanager
def _leaf(entry: EntryId) -> Iterator[tuple[list[int], str, tuple[str, ...]]]:
    """Open every directory from the root to an entry's leaf; give the descriptors, the slot and the path."""
    *path, slot = entry.key.split("/")
    with contextlib.ExitStack() as stack:
        root, status = stack.enter_context(fs.root_to_change(os.fspath(entry.store.root)))
        descriptors = [root]
        for name in path:
            descriptors.append(stack.enter_context(fs.directory_in(descriptors[-1], name, status.st_dev)))
        yield descriptors, slot, tuple(path)


def remove(
    entries: Sequence[Entry],
    notes: Mapping[EntryId, TrashLabel] | None = None,
    failed: Callable[[Path, OSError], None] | None = None,
) -> Mapping[EntryId, bool]:
    """Take entries out, leaf by leaf; see `Remover.remove`."""
    results: dict[EntryId, bool] = {}
    for leaf in _by_leaf(entries):
        results.update(_remove_leaf(leaf, notes or {}, failed or _unheard))
    return results


def _unheard(_root: Path, _error: OSError) -> None:
    return


def _refused(entry: Entry, error: OSError, failed: Callable[[Path, OSError], None], what: str = "removed") -> None:
    """Tell what a disk refused; what somebody forged there is no trouble of the disk."""
    log.warning("an entry could not be %s: %s: %s", what, entry.id.key, error)
    if fs.refused(error):
        failed(entry.id.store.root, error)


def _by_leaf(entries: Sequence[Entry]) -> Iterable[list[Entry]]:
    leaves: dict[tuple[Store, str], list[Entry]] = {}
    for entry in entries:
        leaves.setdefault((entry.id.store, entry.id.key.rpartition("/")[0]), []).append(entry)
    return leaves.values()


def _remove_leaf(
    entries: Sequence[Entry], notes: Mapping[EntryId, TrashLabel], failed: Callable[[Path, OSError], None]
) -> Mapping[EntryId, bool]:
    results = {entry.id: False for entry in entries}
    # From the highest slot down, so that a death in between leaves no gap.
    order = sorted(entries, key=lambda entry: _number(entry.id.key.rpartition("/")[2]), reverse=True)
    freed = 0
    try:
        with _leaf(order[0].id) as (descriptors, _, path):
            leaf = descriptors[-1]
            neighbours = SlotNumbers.of(leaf)
            # Before the first one goes: where slots share files by hard links, removing one touches all of them.
            judged = {entry.id: _content(leaf, entry) for entry in order}
            for entry in order:
                try:
                    note = notes.get(entry.id)
                    if note is not None and _take_leaf(descriptors, entry, judged[entry.id], note):
                        results[entry.id], size = True, entry.size
                    else:
                        bin_ = None if note is None else _Bin(descriptors[0], note)
                        results[entry.id], size = _remove_slot(leaf, entry, judged[entry.id], neighbours, bin_)
                except OSError as error:
                    _refused(entry, error, failed)
                    continue
                freed += size
            _remove_empty(descriptors, path)
            if freed:
                _correct_size(descriptors[0], freed)
    except FileNotFoundError:
        # Somebody else removed the whole leaf, which is what was wanted.
        return dict.fromkeys(results, True)
    except OSError as error:
        _refused(order[0], error, failed)
    return results


def _take_leaf(descriptors: Sequence[int], entry: Entry, judged: _Content | None, note: TrashLabel) -> bool:
    """Move a leaf into the trash as a whole if it holds nothing but this entry, and nobody is at work there."""
    root, parent, leaf = descriptors[0], descriptors[-2], descriptors[-1]
    slot = entry.id.key.rpartition("/")[2]
    present = slot_in(leaf, slot).files
    if judged is None or not present or _content_of(present) != judged or any(one.endswith(".lock") for one in present):
        return False
    with os.scandir(leaf) as listed:
        if len(list(itertools.islice(listed, len(present) + 1))) != len(present):
            return False
    if not trash_files.take_leaf(root, os.fstat(root).st_dev, parent, leaf, entry, note, present):
        return False
    # A program that began to write in between finds its leaf gone, and just stores nothing.
    _pause("moved")
    return True


def mend(repairs: Sequence[Repair], failed: Callable[[Path, OSError], None] | None = None) -> Mapping[EntryId, bool]:
    """Mend entries in their places; see `Doctor.mend`."""
    results = {one.entry.id: False for one in repairs}
    actions = {one.entry.id: one.action for one in repairs}
    for one in repairs:
        if one.action is RepairAction.SWAP_BACK and one.other is not None and not results[one.entry.id]:
            # Both of a pair are asked for.
            results[one.entry.id] = results[one.other.id] = _swap_back(one.entry, one.other)
    for entries in _by_leaf([one.entry for one in repairs if one.action is not RepairAction.SWAP_BACK]):
        try:
            with _leaf(entries[0].id) as (descriptors, _, _path):
                leaf = descriptors[-1]
                for entry in entries:
                    if actions[entry.id] is RepairAction.UNLOCK:
                        results[entry.id] = _unlock(leaf, entry)
                    elif actions[entry.id] is RepairAction.READABLE:
                        results[entry.id] = _make_readable(leaf, entry)
                gapped = [entry for entry in entries if actions[entry.id] is RepairAction.CLOSE_GAP]
                if gapped:
                    done = _close_gaps(leaf)
                    results.update((entry.id, done) for entry in gapped)
        except OSError as error:
            _refused(entries[0], error, failed or _unheard, "mended")
    return results


def _swap_back(entry: Entry, other: Entry) -> bool:
    """Let the programs of two entries change places, under both locks: True if they did."""
    try:
        with contextlib.ExitStack() as stack:
            places: list[tuple[int, str]] = []
            # Always in one order, so that no two who do this wait for each other; nobody waits here, though.
            for one in sorted((entry, other), key=lambda one: one.id.key):
                descriptors, slot, _ = stack.enter_context(_leaf(one.id))
                lock = _lock(descriptors[-1], slot)
                if lock is None:
                    return False
                stack.callback(lock.release)
                if _content(descriptors[-1], one) is None:
                    return False
                places.append((descriptors[-1], slot + ".bin"))
            exchange.exchange(*places[0], *places[1])
            _pause("exchanged")
    except OSError as error:
        log.warning("two programs could not change places: %s, %s: %s", entry.id.key, other.id.key, error)
        return False
    return True


def _unlock(leaf: int, entry: Entry) -> bool:
    """Remove the lock of a dead program from a whole slot: no program skips it any more."""
    slot = entry.id.key.rpartition("/")[2]
    present = slot_in(leaf, slot)
    lock = present.files.get(".lock")
    if lock is None:
        return True
    if _content(leaf, entry) is None or locks.young(lock):
        # Not what was judged: somebody wrote it anew, or is about to.
        return False
    _unlink(leaf, slot + ".lock")
    return True


def _make_readable(leaf: int, entry: Entry) -> bool:
    """Let the files of a slot be read again, by those who may list its directory; only files that are ours."""
    slot = slot_in(leaf, entry.id.key.rpartition("/")[2])
    listed = stat.S_IMODE(os.fstat(leaf).st_mode) & 0o444
    for suffix, status in slot.files.items():
        if suffix not in (".bin", ".src") or status.st_mode & stat.S_IRUSR:
            continue
        descriptor = os.open(slot.name + suffix, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=leaf)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink > 1:
                return False
            Path(f"/proc/self/fd/{descriptor}").chmod(stat.S_IMODE(found.st_mode) | stat.S_IRUSR | listed)
        finally:
            os.close(descriptor)
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
        lock = _lock(leaf, str(gap)) if closed < _GAPS else None
        if lock is None:
            # It is somebody else's, or there are more than are closed at once.
            return False
        closed += 1
        try:
            if not holds_program(slot_in(leaf, str(gap)).files):
                # Else a program was quicker, and has written just there.
                _unlink_slot(leaf, str(gap))
                _close_gap(lock, neighbours)
                if not holds_program(slot_in(leaf, str(gap)).files):
                    return True
        finally:
            lock.release()
    return True


def _is_taken(leaf: int, number: int) -> bool:
    """Tell whether a slot is no gap: one that is being written will have its program in a moment."""
    present = slot_in(leaf, str(number)).files
    return holds_program(present) or ".lock" in present


def sweep(entry: EntryId) -> bool:
    """Finish what a dead daemon began; see `Remover.sweep`."""
    if entry.key == recipes.STAGING:
        return recipes.clear_staging(os.fspath(entry.store.root))
    try:
        with _leaf(entry) as (descriptors, slot, path), locks.inherited(descriptors[-1], slot) as held:
            leaf = descriptors[-1]
            if not held:
                return False
            # While our lock stands no program wrote here: what is left is what we had begun to take away, and what was
            # to be kept goes where the rest of it is.
            trash_files.resume(descriptors[0], os.fstat(descriptors[0]).st_dev, leaf, "/".join(path), slot)
            _rejoin(leaf, slot)
            lock = _Lock(leaf, slot)
            present = slot_in(leaf, slot).files
            if ".bin" not in present or (".src" not in present and path[0] != entry_format.RTC):
                # Else nothing was begun with, or a higher slot has moved here already: then it stays.
                _unlink_slot(leaf, slot)
                _close_gap(lock, SlotNumbers.of(leaf))
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
                _unlink(leaf, upper + ".lock")
                return


def _number(slot: str) -> int:
    return int(slot) if slot.isdigit() else 0


_Content = frozenset[tuple[str, int, int, int, int]]
"""What tells the files of a slot from others in their place."""


def _content_of(present: Mapping[str, os.stat_result]) -> _Content:
    return frozenset(
        (suffix, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode)
        for suffix, status in present.items()
        if not suffix.endswith(".lock")
    )


def _content(leaf: int, entry: Entry) -> _Content | None:
    """Give what a slot holds; None if somebody has written it anew since it was judged."""
    slot = slot_in(leaf, entry.id.key.rpartition("/")[2])
    return _content_of(slot.files) if slot_stamp(slot) == entry.stamp.rpartition(":")[2] else None


@dataclass(frozen=True, slots=True)
class _Bin:
    """Where an entry goes instead of away: the trash of this root, with this note."""

    root: int
    note: TrashLabel


def _remove_slot(
    leaf: int, entry: Entry, judged: _Content | None, neighbours: SlotNumbers, bin_: _Bin | None
) -> tuple[bool, int]:
    """Remove one slot: whether it is gone, and the bytes of its ``.src`` and ``.bin``."""
    slot = entry.id.key.rpartition("/")[2]
    present = slot_in(leaf, slot)
    if not present.files:
        return True, 0
    if judged is None or _content_of(present.files) != judged:
        return False, 0
    left_behind = entry.defect in (Defect.STALE_LOCK, Defect.LOCK_ONLY, Defect.INTERRUPTED)
    if entry.state is EntryState.UNFINISHED or (".lock" in present.files) != left_behind:
        return False, 0
    if left_behind and locks.young(present.files[".lock"]):
        # Not the lock that was judged: somebody removed that one, and a program took its own.
        return False, 0
    lock = _Lock(leaf, slot) if left_behind else _lock(leaf, slot)
    if lock is None:
        return False, 0
    try:
        if bin_ is not None:
            # Without room for a label it goes for good: a full disk is why it has to go at all.
            trash_files.take(bin_.root, os.fstat(bin_.root).st_dev, leaf, entry, bin_.note, present.files)
            _pause("moved")
        _unlink_slot(leaf, slot)
        _close_gap(lock, neighbours)
    finally:
        lock.release()
        _pause("unlocked")
    return True, sum(present.files[suffix].st_size for suffix in (".src", ".bin") if suffix in present.files)


@dataclass(slots=True)
class _Lock:
    """The lock of a slot while it is ours: made by us, or left behind by somebody dead."""

    leaf: int
    slot: str
    held: bool = True

    def release(self) -> None:
        """Give the slot back, once: a lock that appears there later is a program's."""
        if self.held:
            self.held = False
            _unlink(self.leaf, self.slot + ".lock")


def _lock(leaf: int, slot: str) -> _Lock | None:
    """Make the runtime's lock, with our name in it so that a successor can tell it from a program's."""
    if not locks.take(leaf, slot):
        return None
    _pause("locked")
    return _Lock(leaf, slot)


def _unlink(leaf: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=leaf)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        # Somebody put a directory where a file belongs; only an empty one goes.
        os.rmdir(name, dir_fd=leaf)


def _unlink_slot(leaf: int, slot: str) -> None:
    for suffix in _SUFFIXES:
        _unlink(leaf, slot + suffix)
        _pause(suffix)
    _unlink(leaf, slot + "_access_time.txt.lock")


def _close_gap(place: _Lock, neighbours: SlotNumbers) -> None:
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
            _unlink(leaf, slot + suffix)
        lock = _lock(leaf, highest.name)
        if lock is not None:
            try:
                for suffix in suffixes:
                    with contextlib.suppress(FileNotFoundError):
                        os.rename(highest.name + suffix, slot + suffix, src_dir_fd=leaf, dst_dir_fd=leaf)
            finally:
                lock.release()
        return
    _pause("linked")
    place.release()
    time.sleep(_LINGER)
    lock = _lock(leaf, highest.name)
    if lock is None:
        return
    try:
        _unlink_slot(leaf, highest.name)
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
        _unlink(root, beside)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(beside, flags, status.st_mode & 0o777, dir_fd=root)
        try:
            os.write(descriptor, b"%d" % max(0, int(digits) - freed))
        finally:
            os.close(descriptor)
        os.rename(beside, name, src_dir_fd=root, dst_dir_fd=root)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("the runtime's own size could not be corrected: %s", error)
