"""Act: the trash of a SYCL store, where entries wait that were taken out: they can come back, or go for good.

It lies in the store's root under a name at which no runtime looks, so what moves there never leaves its file system and
its owner's rights.  Each entry has a directory: a label (``about.json``, written before the first file moves) and the
leaf with the slot's files under the names that they had.  A death in between leaves a label that names more files than
there are; `resume` brings the rest.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import itertools
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

from xpucached.domain.defects import Defect
from xpucached.domain.names import EntryKey, TrashRef
from xpucached.domain.plans import EvictReason
from xpucached.domain.stores import Entry, Store
from xpucached.domain.trash import Restored, Trashed, TrashLabel
from xpucached.kinds import fs
from xpucached.kinds.sycl import entry_format, locks
from xpucached.kinds.sycl.slots import ORDER, slot_in
from xpucached.kinds.trash_labels import BLANK, Label, loads

log = logging.getLogger(__name__)

_ABOUT: Final = "about.json"
_LEAF: Final = "leaf"
_REF: Final = re.compile(r"[0-9a-f]{12}\Z")
_LIMIT: Final = 64 << 10
"""Bytes of a label; ours have some hundred."""

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMLINK})
_SLOTS: Final = 1 << 16

WHOLE: Final = frozenset({Defect.DUPLICATE, Defect.BEHIND_GAP, Defect.SHADOWED, Defect.STALE_LOCK})
"""Defects of a place.  What has another one is damaged itself, and is not given back."""


# -- into the trash ---------------------------------------------------------------------------------------------------


def take(
    root: int, device: int, leaf: int, entry: Entry, note: TrashLabel, present: Mapping[str, os.stat_result]
) -> bool:
    """Move one slot's files into the trash: True if they are there, False if there is no room for a label.

    The slot's lock must be ours.  Raises OSError.
    """
    slot = entry.id.key.rpartition("/")[2]
    moving = [suffix for suffix in ORDER if suffix in present]
    if not moving:
        return False
    with contextlib.ExitStack() as stack:
        made = _labelled(stack, root, device, leaf, entry, note, present)
        if made is None:
            return False
        _, place = made
        for suffix in moving:
            with contextlib.suppress(FileNotFoundError):
                os.rename(slot + suffix, slot + suffix, src_dir_fd=leaf, dst_dir_fd=place)
    return True


def take_leaf(
    root: int,
    device: int,
    parent: int,
    leaf: int,
    entry: Entry,
    note: TrashLabel,
    present: Mapping[str, os.stat_result],
) -> bool:
    """Move a leaf that holds only this slot, and no lock, into the trash as a whole; else as `take`.

    A program that was about to write there just stores nothing.
    """
    name = entry.id.key.split("/")[-2]
    with contextlib.ExitStack() as stack:
        made = _labelled(stack, root, device, leaf, entry, note, present)
        if made is None:
            return False
        # The empty directory that waits there is replaced.
        os.rename(name, _LEAF, src_dir_fd=parent, dst_dir_fd=made[0])
    return True


def _labelled(
    stack: contextlib.ExitStack,
    root: int,
    device: int,
    leaf: int,
    entry: Entry,
    note: TrashLabel,
    present: Mapping[str, os.stat_result],
) -> tuple[int, int] | None:
    """Make an entry's directory in the trash, with its label; give it and where the files go."""
    environment = entry.environment
    damaged = entry.defect is not None and entry.defect not in WHOLE and note.reason in _FOR_DAMAGE
    label = Label(
        entry.id.key,
        note.at,
        note.reason,
        note.detail if entry.defect is None or not entry.detail else f"{note.detail} ({entry.detail})",
        damaged,
        environment.device if environment else "",
        environment.driver if environment else "",
        stat.S_IMODE(os.fstat(leaf).st_mode) & 0o777,
        {suffix: (present[suffix].st_size, present[suffix].st_mtime_ns) for suffix in ORDER if suffix in present},
    )
    name = secrets.token_hex(6)
    _indexed.clear()
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(entry_format.TRASH, 0o700, dir_fd=root)
        trash = stack.enter_context(fs.directory_in(root, entry_format.TRASH, device))
        os.mkdir(name, 0o700, dir_fd=trash)
        stack.push(lambda kind, *_: _give_up(trash, name, device) if kind and issubclass(kind, OSError) else None)
        try:
            item = stack.enter_context(fs.directory_in(trash, name, device))
            _write(item, label.dumps())
            os.mkdir(_LEAF, 0o700, dir_fd=item)
            return item, stack.enter_context(fs.directory_in(item, _LEAF, device))
        except OSError:
            _drop(trash, name, device)
            raise
    except OSError as error:
        if error.errno in _NO_ROOM:
            return None
        raise


def _give_up(trash: int, name: str, device: int) -> None:
    """Remove an item into which nothing could be moved."""
    with contextlib.suppress(OSError), fs.directory_in(trash, name, device) as item:
        os.rmdir(_LEAF, dir_fd=item)
        _drop(trash, name, device)


_FOR_DAMAGE: Final = frozenset({EvictReason.DEFECTIVE, EvictReason.ASKED})


def _write(item: int, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(_ABOUT, flags, 0o600, dir_fd=item)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)


def resume(root: int, device: int, leaf: int, path: str, slot: str) -> None:
    """Bring what a dead daemon was moving, into the trash or out of it, to the rest of it in the trash.

    The slot's lock must be ours.  All of it goes to one item.  An empty one of the same place may be what is left of an
    entry that came back, so the one that can be completed comes first, then what lacks least, then the youngest.
    Raises OSError; also if the trash is too full for the rest to be found.
    """
    if not {suffix for suffix in ORDER if suffix in slot_in(leaf, slot).files}:
        return
    torn: list[tuple[int, int, datetime, str]] = []
    for name, label, place in _items(root, device, _items_of(root, device, path)):
        if label is not None and place is not None and label.leaf == path:
            lacking = _lacking(label, place)
            here = [suffix for suffix in lacking if _is_file(leaf, slot + suffix, label.files[suffix])]
            if here:
                torn.append((len(here) - len(lacking), -len(lacking), label.at, name))
    for _, label, place in _items(root, device, [max(torn)[3]] if torn else ()):
        if label is not None and place is not None:
            for suffix in _lacking(label, place):
                if _is_file(leaf, slot + suffix, label.files[suffix]):
                    os.rename(slot + suffix, label.slot + suffix, src_dir_fd=leaf, dst_dir_fd=place)


def _lacking(label: Label, place: int) -> list[str]:
    there = _statuses(place, label)
    return [suffix for suffix in label.files if label.slot + suffix not in there]


_indexed: dict[tuple[int, ...], dict[str, list[str]] | None] = {}
"""Which items came from which leaf, of the trash that was searched last, as it was then; None: it holds too many."""

_OF_LEAF: Final = 1000
"""Items of one leaf that are searched for the rest of an entry."""


def _items_of(root: int, device: int, path: str) -> list[str]:
    """Name the items that came from a leaf; the trash is read once for all that a dead daemon left.  Raises OSError."""
    try:
        status = os.stat(entry_format.TRASH, dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        return []
    stamp = (device, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    if stamp not in _indexed:
        names = _names(root, device)
        found: dict[str, list[str]] = {}
        for name, label, _ in _items(root, device, names) if len(names) <= MOST else ():
            if label is not None:
                found.setdefault(label.leaf, []).append(name)
        _indexed.clear()
        _indexed[stamp] = found if len(names) <= MOST else None
    index = _indexed[stamp]
    if index is None or len(index.get(path, ())) > _OF_LEAF:
        raise OSError(errno.E2BIG, "the trash holds too much to find the rest of an entry there")
    return index.get(path, [])


def _is_file(leaf: int, name: str, facts: tuple[int, int]) -> bool:
    """Tell whether a file is the one of these facts."""
    try:
        status = os.stat(name, dir_fd=leaf, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (status.st_size, status.st_mtime_ns) == facts


# -- what is in it ----------------------------------------------------------------------------------------------------


MOST: Final = 50_000
"""Items of one trash that are looked at at a time.  Who may write there may put millions of them."""

_TEXT: Final = 64 << 20
"""So many characters of labels are kept at a time."""

_FILES: Final = 1000
"""So many names in an item's leaf are looked at; of ours it has five."""


def _names(root: int, device: int) -> list[str]:
    """List the items; of more than `MOST` any so many and one, others at each look, so that none waits for ever."""
    salt = secrets.randbits(48)
    try:
        with fs.directory_in(root, entry_format.TRASH, device) as trash, os.scandir(trash) as listed:
            names = (one.name for one in listed if _REF.match(one.name))
            return heapq.nsmallest(MOST + 1, names, key=lambda name: int(name, 16) ^ salt)
    except FileNotFoundError:
        return []


def _items(root: int, device: int, names: Iterable[str]) -> Iterator[tuple[str, Label | None, int | None]]:
    """Open one of these items after the other: its name, its label if it has one, its leaf if it has one.

    What the disk does not give just now is passed over: it is no debris.
    """
    try:
        with fs.directory_in(root, entry_format.TRASH, device) as trash:
            for name in names:
                with contextlib.ExitStack() as stack:
                    try:
                        item = stack.enter_context(fs.directory_in(trash, name, device))
                    except OSError:
                        continue
                    label = place = None
                    try:
                        with contextlib.suppress(ValueError), fs.regular_file(item, _ABOUT) as (descriptor, _):
                            label = loads(fs.read(descriptor, _LIMIT), entry_format.is_place, ORDER)
                    except OSError as error:
                        if _unknown(error):
                            continue
                    try:
                        place = stack.enter_context(fs.directory_in(item, _LEAF, device))
                    except OSError as error:
                        if _unknown(error):
                            continue
                    yield name, label, place
    except FileNotFoundError:
        return


def _unknown(error: OSError) -> bool:
    """Tell whether what could not be opened may be there all the same."""
    return fs.passing(error) or isinstance(error, PermissionError)


def trash(of: Store) -> tuple[Trashed, ...]:
    """Tell what is in a store's trash; see `Trash.trash`."""
    return tuple(_there(of))


def trash_size(of: Store) -> int:
    """Tell how much room a store's trash takes; see `Trash.trash_size`."""
    return sum(one.allocated for one in _there(of))


def _there(of: Store) -> Iterator[Trashed]:
    text = 0
    with contextlib.suppress(OSError), fs.root_directory(os.fspath(of.root)) as (root, status):
        names = _names(root, status.st_dev)
        if len(names) > MOST:
            log.warning("the trash of %s holds more than %d entries: the others are looked at later", of.root, MOST)
        for name, written, place in _items(root, status.st_dev, names[:MOST]):
            label = written or BLANK
            try:
                there = _statuses(place, label)
            except OSError:
                # Judged by what could be seen of it, it would go for good.
                continue
            text += len(label.detail) + len(label.device) + len(label.driver)
            if text > _TEXT:
                return
            yield Trashed(
                TrashRef(name),
                of,
                label.key,
                label.at,
                label.reason,
                label.detail,
                label.quarantined,
                label.device,
                label.driver,
                sum(one.st_blocks * 512 // max(1, one.st_nlink) for one in there.values()),
                whole=bool(label.files) and not _torn(label, there),
            )


def _torn(label: Label, there: Mapping[str, os.stat_result]) -> str | None:
    """Say which file of an entry is not what was put into the trash; None if all of them are."""
    for suffix, (size, _) in label.files.items():
        status = there.get(label.slot + suffix)
        if status is None:
            return "not all its files are there"
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            return f"its {suffix} is not the one that was put here"
    return None


def _statuses(place: int | None, label: Label) -> dict[str, os.stat_result]:
    """Look at the files that a label names, and at what else there can be ours; whatever lies beside it is not."""
    statuses: dict[str, os.stat_result] = {}
    if place is None:
        return statuses
    for name in dict.fromkeys((*(label.slot + suffix for suffix in label.files), *_files(place))):
        with contextlib.suppress(FileNotFoundError):
            statuses[name] = os.stat(name, dir_fd=place, follow_symlinks=False)
    return statuses


def _files(leaf: int) -> list[str]:
    with os.scandir(leaf) as listed:
        names = [one.name for one in itertools.islice(listed, _FILES)]
    return [name for name in names if entry_format.SLOT_FILE.match(name) or entry_format.IR_FILE.match(name)]


# -- out of it --------------------------------------------------------------------------------------------------------


def discard(
    of: Store, refs: tuple[TrashRef, ...], failed: Callable[[Path, OSError], None] | None = None
) -> frozenset[TrashRef]:
    """Remove from the trash for good; see `Trash.discard`."""
    gone: set[TrashRef] = set()
    try:
        with fs.root_to_change(os.fspath(of.root)) as (root, status):
            with fs.directory_in(root, entry_format.TRASH, status.st_dev) as place:
                for ref in refs:
                    try:
                        if _drop(place, ref, status.st_dev):
                            gone.add(ref)
                    except OSError as error:
                        if failed is not None and fs.refused(error):
                            failed(of.root, error)
            with contextlib.suppress(OSError):
                os.rmdir(entry_format.TRASH, dir_fd=root)
    except FileNotFoundError:
        return frozenset(refs)
    except OSError:
        return frozenset(gone)
    return frozenset(gone)


def _drop(trash: int, name: str, device: int) -> bool:
    """Remove one item; only what can be an item's is touched.  The label goes last but one: it vouches for the rest."""
    if not _REF.match(name):
        return False
    try:
        with fs.directory_in(trash, name, device) as item:
            with contextlib.suppress(FileNotFoundError):
                with fs.directory_in(item, _LEAF, device) as leaf:
                    for file in _files(leaf):
                        _unlink(leaf, file)
                os.rmdir(_LEAF, dir_fd=item)
            _unlink(item, _ABOUT)
        os.rmdir(name, dir_fd=trash)
    except FileNotFoundError:
        return True
    return True


def _unlink(directory: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        os.rmdir(name, dir_fd=directory)


def restore(of: Store, refs: tuple[TrashRef, ...]) -> tuple[Restored, ...]:
    """Bring entries back; see `Trash.restore`."""
    results = {ref: Restored(ref, None, "it is not there any more") for ref in refs}
    try:
        with fs.root_to_change(os.fspath(of.root)) as (root, status):
            device = status.st_dev
            for ref in filter(_REF.match, refs):
                try:
                    results[ref] = _restore(root, device, ref)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    results[ref] = Restored(ref, None, error.strerror or str(error))
            with contextlib.suppress(OSError):
                os.rmdir(entry_format.TRASH, dir_fd=root)
    except OSError as error:
        return tuple(Restored(ref, None, error.strerror or str(error)) for ref in refs)
    return tuple(results[ref] for ref in refs)


def _restore(root: int, device: int, ref: TrashRef) -> Restored:
    with contextlib.ExitStack() as stack:
        bin_ = stack.enter_context(fs.directory_in(root, entry_format.TRASH, device))
        item = stack.enter_context(fs.directory_in(bin_, ref, device))
        try:
            with fs.regular_file(item, _ABOUT) as (descriptor, _):
                label = loads(fs.read(descriptor, _LIMIT), entry_format.is_place, ORDER)
            place = stack.enter_context(fs.directory_in(item, _LEAF, device))
        except (FileNotFoundError, ValueError):
            return Restored(ref, None, "its label is damaged")
        torn = _torn(label, _statuses(place, label))
        if torn is not None:
            # With a .bin that was cut short programs would compile at every start.
            return Restored(ref, None, torn)
        here = root
        for part in label.leaf.split("/"):
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, label.mode | 0o700, dir_fd=here)
            here = stack.enter_context(fs.directory_in(here, part, device))
        slot = _free_slot(here, place, label)
        if slot is None:
            _drop(bin_, ref, device)
            return Restored(ref, label.key, "a program has made it again meanwhile")
        try:
            for suffix in (".bin", "_access_time.txt", ".src"):
                if suffix in label.files:
                    os.rename(label.slot + suffix, slot + suffix, src_dir_fd=place, dst_dir_fd=here)
        finally:
            _unlink(here, slot + ".lock")
        _drop(bin_, ref, device)
    return Restored(ref, EntryKey(f"{label.leaf}/{slot}"))


def _free_slot(leaf: int, place: int, label: Label) -> str | None:
    """Take the lock of the first free slot; None if a slot holds the same already.

    Free is what a program takes for free: neither a source nor a program, whatever access time was left there.  To pass
    over such a slot would leave the entry behind a gap, where no program looks.  Raises OSError.
    """
    source = _content(place, label.slot)
    names = map(str, range(_SLOTS)) if label.slot.isdigit() else iter((label.slot,))
    for name in names:
        present = slot_in(leaf, name).files
        if not present.keys() & {".src", ".bin"} or (".lock" in present and not name.isdigit()):
            if locks.take(leaf, name):
                return name
            raise BlockingIOError(errno.EAGAIN, "a program is writing there now, or has left its lock there")
        same = ".lock" not in present and (not name.isdigit() or _same(leaf, name, source))
        if same and _holds(leaf, name):
            return None
        if same:
            raise FileExistsError(errno.EEXIST, "a damaged one is in its place: xpucachectl verify --fix takes it away")
    raise OSError(errno.EMLINK, "the leaf is full")


def _same(leaf: int, slot: str, source: bytes | None) -> bool:
    return source is not None and _content(leaf, slot) == source


def _holds(leaf: int, slot: str) -> bool:
    """Tell whether a slot has a program that is all there."""
    try:
        with fs.regular_file(leaf, slot + ".bin") as (descriptor, status):
            frame = entry_format.frame(fs.read(descriptor, 16), status.st_size, lambda at: fs.read(descriptor, 8, at))
    except OSError:
        return False
    return frame.length > 0


def _content(leaf: int, slot: str) -> bytes | None:
    try:
        with fs.regular_file(leaf, slot + ".src") as (descriptor, status):
            if status.st_size > entry_format.READ_LIMIT:
                return None
            return fs.read(descriptor, entry_format.READ_LIMIT)
    except OSError:
        return None
