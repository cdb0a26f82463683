"""Act: the trash of a SYCL store, in its root: how slots get there under their locks, and into which one they return.

A death in between leaves a label that names more files than there are; `resume` brings the rest.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from xpucached.domain.names import EntryKey, TrashRef
from xpucached.domain.plans import EvictReason
from xpucached.domain.stores import Entry, Store
from xpucached.domain.trash import Restored, Trashed, TrashLabel
from xpucached.kinds import folders, fs, images, listing
from xpucached.kinds import trash as shared
from xpucached.kinds.sycl import entry_format, locks
from xpucached.kinds.sycl.entry_format import TRASH
from xpucached.kinds.sycl.slots import ORDER, slot_in
from xpucached.kinds.trash_labels import Label

log = logging.getLogger(__name__)

_SLOTS: Final = 1 << 16
_FIRST: Final = "0"

_COMPARED: Final = 64 << 20
"""Bytes of a leaf that are read to tell whether it holds the same already; behind them it comes back as a duplicate."""


# -- into the trash ---------------------------------------------------------------------------------------------------


def take(root: int, device: int, leaf: int, entry: Entry, note: TrashLabel, present: shared.Present) -> bool:
    """Move one slot's files into the trash: True if they are there, False if there is no room for a label.

    The slot's lock must be ours.  Raises OSError.
    """
    _indexed.clear()
    return _BIN.take(root, folders.own(root, TRASH), device, leaf, entry, note, present)


def take_leaf(
    root: int, device: int, parent: int, leaf: int, entry: Entry, note: TrashLabel, present: shared.Present
) -> bool:
    """Move a leaf that holds only this slot, and no lock, into the trash as a whole; else as `take`.

    A program that was about to write there just stores nothing.
    """
    name = entry.id.key.split("/")[-2]
    _indexed.clear()
    with contextlib.ExitStack() as stack:
        made = _BIN.labelled(stack, root, folders.own(root, TRASH), device, leaf, entry, note, present)
        if made is None:
            return False
        # The empty directory that waits there is replaced.
        os.rename(name, shared.LEAF, src_dir_fd=parent, dst_dir_fd=made[0])
    return True


def resume(root: int, device: int, leaf: int, path: str, slot: str) -> None:
    """Bring what a dead daemon was moving, into the trash or out of it, to the rest of it in the trash.

    The slot's lock must be ours.  All of it goes to one item.  An empty one of the same place may be what is left of an
    entry that came back, so the one that can be completed comes first, then what lacks least, then the youngest.
    Raises OSError; also if not all of the trash can be looked at just now, or it is too full for the rest to be found.
    """
    if not {suffix for suffix in ORDER if suffix in slot_in(leaf, slot).files}:
        return
    torn: list[tuple[int, int, datetime, str]] = []
    ours = folders.own(root, TRASH)
    for name, label, place in _BIN.items(root, ours, device, _items_of(root, device, path), each=True):
        if label is not None and place is not None and label.leaf == path:
            lacking = _lacking(label, place)
            here = [suffix for suffix in lacking if _is_file(leaf, slot + suffix, label.files[suffix])]
            if here:
                torn.append((len(here) - len(lacking), -len(lacking), label.at, name))
    for _, label, place in _BIN.items(root, ours, device, [max(torn)[3]] if torn else (), each=True):
        if label is not None and place is not None:
            for suffix in _lacking(label, place):
                if _is_file(leaf, slot + suffix, label.files[suffix]):
                    os.rename(slot + suffix, label.slot + suffix, src_dir_fd=leaf, dst_dir_fd=place)


def _lacking(label: Label, place: int) -> list[str]:
    there = _BIN.statuses(place, label)
    return [suffix for suffix in label.files if label.slot + suffix not in there]


_indexed: dict[tuple[int, ...], dict[str, list[str]] | None] = {}
"""Which items came from which leaf, of the trash that was searched last, as it was then; None: it holds too many."""

_OF_LEAF: Final = 1000
"""Items of one leaf that are searched for the rest of an entry."""


def _items_of(root: int, device: int, path: str) -> list[str]:
    """Name the items that came from a leaf; the trash is read once for all that a dead daemon left.  Raises OSError."""
    ours = folders.own(root, TRASH)
    try:
        status = os.stat(ours, dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        return []
    stamp = (device, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    if stamp not in _indexed:
        names = _BIN.names(root, ours, device, shared.MOST + 1)
        found: dict[str, list[str]] = {}
        some = names if len(names) <= shared.MOST else ()
        for name, label, _ in _BIN.items(root, ours, device, some, each=True):
            if label is not None:
                found.setdefault(label.leaf, []).append(name)
        _indexed.clear()
        _indexed[stamp] = found if len(names) <= shared.MOST else None
    index = _indexed[stamp]
    if index is None or len(index.get(path, ())) > _OF_LEAF:
        raise OSError(errno.E2BIG, "the trash holds too much to find the rest of an entry there")
    return index.get(path, [])


def _is_file(leaf: int, name: str, facts: tuple[int, int]) -> bool:
    """Return whether a file is the one of these facts."""
    try:
        status = os.stat(name, dir_fd=leaf, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (status.st_size, status.st_mtime_ns) == facts


# -- out of it --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _place(_root: int, leaf: int, item: int, label: Label) -> Iterator[str | None]:
    """Hold the slot to which an entry may return; see `TrashFolder.place`."""
    walk = _walk_of(leaf)
    slot = _free_slot(leaf, item, label, walk)
    try:
        yield slot
    finally:
        if slot is not None:
            folders.unlink(leaf, slot + ".lock")
            walk.stamp = _stamp(leaf)


@dataclass(slots=True)
class _SlotWalk:
    """What is known of the slots of a leaf, so that who brings back thousands there walks through them once."""

    stamp: tuple[int, ...]  #: of the leaf, as we left it
    taken: int = 0  #: all slots before this one hold something
    unread: dict[int, deque[int]] = field(default_factory=dict)  #: sources that were not read yet, by their size
    first: dict[bytes, int] = field(default_factory=dict)  #: in which slot a source was found, by its digest
    left: int = field(default_factory=lambda: _COMPARED)

    def on(self, leaf: int) -> str | None:
        """Go on to the first free slot; None: there is none."""
        for number in range(self.taken, _SLOTS):
            present = slot_in(leaf, str(number)).files
            if not present.keys() & {".src", ".bin"}:
                return str(number)
            if ".src" in present and ".lock" not in present:
                self.unread.setdefault(present[".src"].st_size, deque()).append(number)
            self.taken = number + 1
        return None

    def holding(self, leaf: int, source: bytes) -> str | None:
        """Return the first slot behind us that holds a source, of those that were read; None: there is none."""
        unread = self.unread.get(len(source), deque())
        while unread and self.left > 0:
            self.left -= len(source) + 4096
            content = _content(leaf, str(unread[0]))
            if content is not None:
                self.first.setdefault(_digest(content), unread[0])
            unread.popleft()
        found = self.first.get(_digest(source))
        return None if found is None or _content(leaf, str(found)) != source else str(found)


_last: Final[list[_SlotWalk]] = []
"""The leaf to which something came back last, while several do."""


def _walk_of(leaf: int) -> _SlotWalk:
    stamp = _stamp(leaf)
    walk = next((one for one in _last if one.stamp == stamp), None) or _SlotWalk(stamp)
    _last[:] = [walk]
    return walk


def _stamp(leaf: int) -> tuple[int, ...]:
    status = os.fstat(leaf)
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _free_slot(leaf: int, place: int, label: Label, walk: _SlotWalk) -> str | None:
    """Take the lock of the first free slot; None if a slot holds the same already.

    Free is what a program takes for free: neither a source nor a program, whatever access time was left there.  To pass
    over such a slot would leave the entry behind a gap, where no program looks.  Raises OSError.
    """
    source = _content(place, label.slot)
    if label.slot.isdigit():
        slot = walk.on(leaf)
        same = None if source is None else walk.holding(leaf, source)
    else:
        slot, present = label.slot, slot_in(leaf, label.slot).files
        same = slot if ".bin" in present and ".lock" not in present else None
    if same is not None:
        if _holds(leaf, same, label):
            return None
        raise FileExistsError(errno.EEXIST, "a damaged one is in its place: xpucachectl verify --fix takes it away")
    if slot is None:
        raise OSError(errno.EMLINK, "the leaf is full")
    if locks.take(leaf, slot):
        return slot
    raise BlockingIOError(errno.EAGAIN, "a program is writing there now, or has left its lock there")


def _holds(leaf: int, slot: str, label: Label) -> bool:
    """Return whether a slot has a program that is all there, and holds together as far as can be seen."""
    try:
        with fs.regular_file(leaf, slot + ".bin") as (descriptor, status):
            frame = entry_format.frame(fs.read(descriptor, 16), status.st_size, lambda at: fs.read(descriptor, 8, at))
            program = fs.read(descriptor, min(frame.length, entry_format.READ_LIMIT), frame.offset)
    except OSError as error:
        if fs.passing(error):
            raise
        return False
    whole = 0 < len(program) == frame.length
    return frame.length > 0 and not (whole and images.damage(program, intel=images.is_intel(label.device)))


def _content(leaf: int, slot: str) -> bytes | None:
    try:
        with fs.regular_file(leaf, slot + ".src") as (descriptor, status):
            if status.st_size > entry_format.READ_LIMIT:
                return None
            return fs.read(descriptor, entry_format.READ_LIMIT)
    except OSError as error:
        # What cannot be read just now may be the same all the same.
        if fs.passing(error):
            raise
        return None


def take_up(store: Store, begun: Mapping[EntryKey, datetime]) -> int:
    """Put the sources of damaged entries back; see `Doctor.take_up`.

    A source alone costs its program what an empty place does: it compiles once, and has it.
    """
    newest: dict[EntryKey, Trashed] = {}
    after = ""
    while some := trash(store, after):
        after = some[-1].ref
        for one in some:
            if one.whole and one.key in begun and (one.key not in newest or newest[one.key].at < one.at):
                newest[one.key] = one
    # What was evicted since then, and had come into its place before, is what a dead daemon was at.
    # Where that left nothing here, the time tells.
    damaged = [
        one.ref
        for one in newest.values()
        if one.reason is EvictReason.DEFECTIVE and one.quarantined and one.at >= begun[one.key]
    ]
    back = 0
    if damaged:
        with _BIN.home(store.root) as (root, name, device):
            for _, label, place in _BIN.items(root, name, device, damaged):
                if label is not None and place is not None and ".src" in label.files:
                    try:
                        back += _source_back(root, label, place)
                    except OSError as error:
                        log.warning("a damaged entry is not taken up: %s: %s", label.key, error)
    return back


def _source_back(root: int, label: Label, place: int) -> bool:
    with contextlib.ExitStack() as stack:
        leaf = folders.below(stack, root, label.leaf.split("/"), label.mode | 0o700)
        if listing.names(leaf) or not locks.take(leaf, _FIRST):
            return False
        try:
            os.rename(label.slot + ".src", _FIRST + ".src", src_dir_fd=place, dst_dir_fd=leaf)
        finally:
            folders.unlink(leaf, _FIRST + ".lock")
    return True


def _is_ours(name: str) -> bool:
    return bool(entry_format.SLOT_FILE.match(name) or entry_format.IR_FILE.match(name))


_BIN: Final = shared.TrashFolder(TRASH, ORDER, entry_format.is_place, _is_ours, _place)

trash = _BIN.trash
trash_size = _BIN.trash_size
discard = _BIN.discard


def restore(of: Store, refs: tuple[TrashRef, ...]) -> tuple[Restored, ...]:
    """Bring slots back; see `Trash.restore`."""
    try:
        return _BIN.restore(of, refs)
    finally:
        _last.clear()
