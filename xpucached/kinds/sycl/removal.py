"""Act: take entries out of a SYCL store by the runtime's own rules.

The order is lock, ``.src``, ``.bin``, access time, lock: without its source an entry cannot be found, and while the
lock exists no program reads or writes the slot.  A lower slot must never go while a higher one stays, for a program
stops at the first empty number: the highest slot that stays is moved down into the place, and remains readable at its
old place until the new one is.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from xpucached.domain import Entry, EntryId, EntryState, Flaw, Store
from xpucached.kinds.sycl import files, layout, store

log = logging.getLogger(__name__)

_SUFFIXES: Final = (".src", ".bin", "_access_time.txt")

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
        root, status = stack.enter_context(files.root_directory(os.fspath(entry.store.root)))
        descriptors = [root]
        for name in path:
            descriptors.append(stack.enter_context(files.directory_in(descriptors[-1], name, status.st_dev)))
        yield descriptors, slot, tuple(path)


def remove(entries: Sequence[Entry]) -> Mapping[EntryId, bool]:
    """Delete entries, leaf by leaf; see `Kind.remove`."""
    leaves: dict[tuple[Store, str], list[Entry]] = {}
    for entry in entries:
        leaves.setdefault((entry.id.store, entry.id.key.rpartition("/")[0]), []).append(entry)
    results: dict[EntryId, bool] = {}
    for leaf in leaves.values():
        results.update(_remove_leaf(leaf))
    return results


def _remove_leaf(entries: Sequence[Entry]) -> Mapping[EntryId, bool]:
    results = {entry.id: False for entry in entries}
    # From the highest slot down, so that a death in between leaves no gap.
    order = sorted(entries, key=lambda entry: _number(entry.id.key.rpartition("/")[2]), reverse=True)
    freed = 0
    try:
        with _leaf(order[0].id) as (descriptors, _, path):
            for entry in order:
                try:
                    results[entry.id], size = _remove_slot(descriptors[-1], entry)
                except OSError as error:
                    log.warning("an entry could not be removed: %s: %s", entry.id.key, error)
                    continue
                freed += size
            _remove_empty(descriptors, path)
            if freed:
                _correct_size(descriptors[0], freed)
    except FileNotFoundError:
        # Somebody else removed the whole leaf, which is what was wanted.
        return dict.fromkeys(results, True)
    except OSError as error:
        log.warning("a leaf could not be opened: %s: %s", order[0].id.key, error)
    return results


def sweep(entry: EntryId) -> bool:
    """Finish the removal that a dead daemon began; see `Kind.sweep`."""
    try:
        with _leaf(entry) as (descriptors, slot, path):
            leaf = descriptors[-1]
            if store.lock_of_ours(leaf, slot + ".lock") is None:
                return False
            # While our lock stands no program wrote here: what is left is what we had begun to take away.
            _unlink_slot(leaf, slot)
            _close_gap(leaf, slot)
            _unlink(leaf, slot + ".lock")
            _remove_empty(descriptors, path)
    except OSError as error:
        log.warning("a removal could not be finished: %s: %s", entry.key, error)
        return False
    return True


def _number(slot: str) -> int:
    return int(slot) if slot.isdigit() else 0


def _remove_slot(leaf: int, entry: Entry) -> tuple[bool, int]:
    """Remove one slot: whether it is gone, and the bytes of its ``.src`` and ``.bin``."""
    slot = entry.id.key.rpartition("/")[2]
    slots, _ = store.slots_in(leaf, layout.SLOT_FILE if slot.isdigit() else layout.IR_FILE)
    present = slots.get(slot)
    if present is None:
        return True, 0
    # Somebody may have written the slot anew since it was judged.
    if store.slot_stamp(present) != entry.stamp.rpartition(":")[2]:
        return False, 0
    left_behind = entry.flaw in (Flaw.STALE_LOCK, Flaw.LOCK_ONLY, Flaw.INTERRUPTED)
    if entry.state is EntryState.UNFINISHED or (".lock" in present.files) != left_behind:
        return False, 0
    if not left_behind and not _lock(leaf, slot):
        return False, 0
    try:
        _unlink_slot(leaf, slot)
        _close_gap(leaf, slot)
    finally:
        _unlink(leaf, slot + ".lock")
        _pause("unlocked")
    return True, sum(present.files[suffix].st_size for suffix in (".src", ".bin") if suffix in present.files)


def _lock(leaf: int, slot: str) -> bool:
    """Make the runtime's lock, with our name in it so that a successor can tell it from a program's."""
    name = slot + ".lock"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, 0o600, dir_fd=leaf)
    except FileExistsError:
        return False
    try:
        os.write(descriptor, b"%s%d\n" % (store.OURS, os.getpid()))
    except OSError as error:
        # On a full disk, just where evicting is needed most, an empty lock does: were we to die now, it would pass
        # for a dead program's.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            _unlink(leaf, name)
            raise
    finally:
        os.close(descriptor)
    _pause("locked")
    return True


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


def _close_gap(leaf: int, slot: str) -> None:
    """Move the highest slot that stays into the place of one that went.  We hold the lock of the place."""
    if not slot.isdigit():
        return
    slots, _ = store.slots_in(leaf)
    above = [
        other
        for name, other in slots.items()
        if int(name) > int(slot) and {".src", ".bin"} & other.files.keys() and ".lock" not in other.files
    ]
    if not above:
        return
    highest = max(above, key=lambda other: int(other.name))
    suffixes = [suffix for suffix in reversed(_SUFFIXES) if suffix in highest.files]
    try:
        for suffix in suffixes:
            os.link(highest.name + suffix, slot + suffix, src_dir_fd=leaf, dst_dir_fd=leaf, follow_symlinks=False)
    except OSError:
        # No hard links here, or the slot is going away.  Without them the move is a rename under both locks, and a
        # program that looks just now compiles once.
        for suffix in suffixes:
            _unlink(leaf, slot + suffix)
        if _lock(leaf, highest.name):
            try:
                for suffix in suffixes:
                    with contextlib.suppress(FileNotFoundError):
                        os.rename(highest.name + suffix, slot + suffix, src_dir_fd=leaf, dst_dir_fd=leaf)
            finally:
                _unlink(leaf, highest.name + ".lock")
        return
    _pause("linked")
    _unlink(leaf, slot + ".lock")
    time.sleep(_LINGER)
    if not _lock(leaf, highest.name):
        return
    try:
        _unlink_slot(leaf, highest.name)
    finally:
        _unlink(leaf, highest.name + ".lock")


def _remove_empty(descriptors: list[int], path: tuple[str, ...]) -> None:
    """Remove the directories that are empty now.  A program that writes at this moment just stores nothing."""
    for parent, name in zip(reversed(descriptors[:-1]), reversed(path), strict=True):
        try:
            os.rmdir(name, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                return
            raise


def _correct_size(root: int, freed: int) -> None:
    """Keep the runtime's own total right, where its eviction is on.

    Without the runtime's lock: one that we left behind would hang every program that has a limit set, and a total that
    is off by one entry is harmless.
    """
    name = "cache_size.txt"
    beside = f"{name}.xpucached"
    try:
        with files.regular_file(root, name) as (descriptor, status):
            digits = files.read(descriptor, 32)
        if not digits.isdigit() or f"{name}.lock" in os.listdir(root):
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
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
