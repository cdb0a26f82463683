"""Observe: the slots of one leaf, defective ones too, each read whole and judged beside its neighbours.

The runtime's own walk decides what a slot is worth: it tries slots 0, 1, 2 … and stops at the first number that has
neither ``.bin`` nor ``.src``; it skips a slot that has a ``.lock``; it compares the whole ``.src``; only then it opens
the ``.bin``.  What each kind of damage costs was tried on runtimes 2024.2, 2025.2 and 2026.2 (``docs/kinds.md``).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from xpucached.binaries import formats
from xpucached.domain.defects import Defect, Effect
from xpucached.domain.names import EntryKey
from xpucached.domain.stores import Entry, EntryId, EntryState, UnchangedEntry, program_digest
from xpucached.domain.targets import Target
from xpucached.kinds import fs, images, listing, statx
from xpucached.kinds.sycl import defects, entry_format, locks, targets
from xpucached.kinds.sycl.large import large_digest
from xpucached.kinds.sycl.scan_state import ScanState
from xpucached.kinds.sycl.slots import Slot, Slots, accessed, digest, key_of, slot_stamp
from xpucached.kinds.sycl.unread import Changed, UnreadFile, forbidden, links, refused

_DEPTH: Final = 4
_SIZE: Final = (1 << 63) - 1
"""A file with a hole may claim nearly this much, and an entry has several; the catalog counts no further."""

_HEAD: Final = 1 << 20
"""So much of an image is searched for kernels where no program looks for it: one file may have links in many leaves."""
_DEVICE: Final = 4 << 10
"""No device, with its platform, version and driver, has a longer name."""


class _Reading(Struct):
    """What we learn of one slot before it is compared with its neighbours."""

    entry: Entry
    identity: str | None = None  #: digest of a complete ``.src``
    reachable: bool = True


def read_slots(
    look: ScanState, leaf: int, path: tuple[str, ...], slots: Slots, place: int | None
) -> Iterator[Entry | None]:
    """Read every slot of a leaf, or find it unchanged as a whole: neighbours decide what a slot is worth.

    Gives None for each that is unchanged.
    """
    stamps: list[str] = []
    restless = False
    for slot in slots:
        stamps.append(slot_stamp(slot))
        restless = restless or slot.restless
    leaf_stamp = digest(zip(slots.names, stamps, strict=False))
    if not restless and len(stamps) == len(slots) and _unchanged(look, leaf_stamp, stamps, path, slots):
        for slot in slots:
            key = key_of(path, slot.name)
            look.unchanged.append(UnchangedEntry(key, accessed(slot), place))
            look.seen.add(key)
            yield None
        return
    compiled = path[0] == entry_format.RTC
    neighbours = _LeafJudge()
    expected = 0
    gap = False
    for slot, stamp in zip(slots, stamps, strict=False):
        if not slots.kept and slot_stamp(slot) != stamp:
            raise Changed
        entry = _described(look, path, slot, f"{leaf_stamp}:{stamp}", None if restless else place)
        try:
            reading = _locked(look, leaf, slot, entry)
            if reading is None and compiled:
                reading = _run_time_compiled(look, leaf, path, slot, entry)
            elif reading is None:
                reading = _ordinary(look, leaf, path, slot, entry, alone=len(slots) == 1)
        except UnreadFile as error:
            reading = _Reading(unsettled(look, path, slot, EntryState.UNREAD, str(error)))
        if slot.name.isdigit() and not compiled:
            gap = gap or int(slot.name) != expected
            # A slot without .bin and .src ends the runtime's walk, whatever else lies there.
            expected = int(slot.name) + 1 if {".bin", ".src"} & slot.files.keys() else -1
            reading.reachable = not gap
        yield neighbours.judged(reading)


def _unchanged(look: ScanState, leaf_stamp: str, stamps: list[str], path: tuple[str, ...], slots: Slots) -> bool:
    """Return whether every slot of a leaf is as it was known."""
    names = zip(slots.names, stamps, strict=True)
    return bool(stamps) and all(_stamp(look, key_of(path, name)) == f"{leaf_stamp}:{one}" for name, one in names)


def _stamp(look: ScanState, key: EntryKey) -> str | None:
    row = look.known.get(key)
    return None if row is None else row.stamp


def environment_of(look: ScanState, device: str) -> Target | None:
    """Return what a device directory stands for, from the head of one of its entries."""
    if device not in look.environments:
        look.environments[device] = None
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            here = stack.enter_context(fs.directory_in(look.root, device, look.device))
            for image in sorted(listing.names(here))[:_WITNESSES]:
                found = _declared(look, here, image, device)
                if found is not None:
                    look.environments[device] = found
                    break
    return look.environments[device]


_WITNESSES: Final = 8
"""So many images of a device are asked what device it is: the first may be damaged."""


def _declared(look: ScanState, parent: int, name: str, device: str, depth: int = 2) -> Target | None:
    """Ask the first slot of an image's first leaf."""
    with contextlib.suppress(OSError), fs.directory_in(parent, name, look.device) as here:
        if depth < _DEPTH:
            below = min(listing.names(here), default=None)
            return None if below is None else _declared(look, here, below, device, depth + 1)
        with fs.regular_file(here, "0.src") as (descriptor, status):
            source = entry_format.source(fs.read(descriptor, 64 << 10), status.st_size)
        if str(entry_format.string_hash(source.device)) == device:
            return targets.parse(entry_format.text(source.device))
    return None


def _described(look: ScanState, path: tuple[str, ...], slot: Slot, stamp: str, place: int | None) -> Entry:
    size, blocks = 0, {}
    for status in slot.files.values():
        if stat.S_ISREG(status.st_mode):
            size += status.st_size
            blocks[status.st_dev, status.st_ino] = status.st_blocks * 512
    written = [slot.files[suffix].st_mtime_ns for suffix in (".bin", ".src") if suffix in slot.files]
    oldest = min(written or [status.st_mtime_ns for status in slot.files.values()])
    return Entry(
        EntryId(look.store, key_of(path, slot.name)),
        stamp,
        min(size, _SIZE),
        min(sum(blocks.values()), _SIZE),
        min(locks.moment(oldest), look.now),
        accessed(slot),
        place=place,
    )


def unsettled(look: ScanState, path: tuple[str, ...], slot: Slot, state: EntryState, detail: str) -> Entry:
    """Describe a slot that cannot be read at rest."""
    entry = _described(look, path, slot, "", None)
    return replace(entry, state=state, detail=detail)


def _defective(entry: Entry, defect: Defect, detail: str = "", readers: frozenset[str] = frozenset()) -> Entry:
    state = EntryState.OK if defects.effect_for(defect, readers) is Effect.HARMLESS else EntryState.DEFECTIVE
    return replace(entry, defect=defect, detail=detail, state=state)


# -- locks ------------------------------------------------------------------------------------------------------------


def _lock_age(look: ScanState, status: os.stat_result) -> timedelta | None:
    """Return the age of a lock that was left behind; None while somebody may hold it."""
    return locks.age(status, look.now, look.writer_since)


def _locked(look: ScanState, leaf: int, slot: Slot, entry: Entry) -> _Reading | None:
    """Judge a slot that has a lock; None if it has none."""
    lock = slot.files.get(".lock")
    if lock is None:
        if slot.files.keys() <= {"_access_time.txt", "_access_time.txt.lock"}:
            return _Reading(_defective(entry, defects.SKELETON))
        return None
    owner = locks.of_ours(leaf, slot.name + ".lock")
    age = _lock_age(look, lock)
    if owner is not None and locks.left_behind(owner, lock.st_mtime_ns, look.now):
        look.claim(entry.id.key)
        return _Reading(_defective(entry, defects.STALE_LOCK, f"made by xpucached, process {owner.pid}"))
    if owner is not None or age is None:
        who = "another xpucached works at it" if owner is not None else "a program is writing it"
        return _Reading(replace(entry, state=EntryState.UNFINISHED, detail=who))
    detail = f"the lock is {int(age.total_seconds())} s old"
    present = {".bin", ".src"} & slot.files.keys()
    if not present:
        return _Reading(_defective(entry, defects.LOCK_ONLY, detail))
    whole = len(present) == 2 and _complete(leaf, slot)  # noqa: PLR2004 - both
    return _Reading(_defective(entry, defects.STALE_LOCK if whole else defects.INTERRUPTED, detail))


def _complete(leaf: int, slot: Slot) -> bool:
    try:
        with fs.regular_file(leaf, slot.name + ".src") as (descriptor, status):
            source = entry_format.source(fs.read(descriptor, entry_format.READ_LIMIT), status.st_size)
        with fs.regular_file(leaf, slot.name + ".bin") as (descriptor, status):
            frame = _frame(descriptor, status.st_size, fs.read(descriptor, 16))
    except OSError as error:
        refused(error, "src")
        return False
    return source.complete and frame.length > 0


# -- the files of one slot --------------------------------------------------------------------------------------------


def _frame(descriptor: int, size: int, head: bytes) -> entry_format.Frame:
    return entry_format.frame(head, size, lambda offset: fs.read(descriptor, 8, offset))


def _ordinary(look: ScanState, leaf: int, path: tuple[str, ...], slot: Slot, entry: Entry, *, alone: bool) -> _Reading:
    """Read an entry of the numbered levels; ``alone`` in its leaf, it has nothing to be compared with."""
    link = links(look, leaf, slot, (".src", ".bin"))
    if link is not None:
        return _Reading(_defective(entry, link))
    if ".src" not in slot.files:
        entry = _with_binary(look, leaf, slot, entry, intel=True)
        return _Reading(_defective(entry, defects.SRC_MISSING))
    if stat.S_ISFIFO(slot.files[".src"].st_mode):
        return _Reading(_defective(entry, defects.SRC_FIFO))
    try:
        with fs.regular_file(leaf, slot.name + ".src", slot.files[".src"]) as (descriptor, status):
            # One byte more than there should be tells whether it grows.
            data = fs.read(descriptor, min(entry_format.READ_LIMIT, status.st_size + 1))
            recorded = _recorded_time(leaf, slot) or _born(descriptor)
            size = max(status.st_size, len(data))
    except OSError as error:
        return _Reading(_defective(entry, refused(error, "src"), error.strerror or ""))
    if forbidden(status):
        return _Reading(_defective(entry, defects.SRC_UNREADABLE, "its owner may not read it"))
    source = entry_format.source(data, size)
    entry = _with_source(entry, source, recorded, path[0], f"{status.st_ino}.{status.st_mtime_ns}")
    if not source.complete and source.defect is not defects.SRC_TOO_LARGE:
        entry = look.stray(entry, status, source.image[:_HEAD])
        return _Reading(_defective(entry, source.defect or defects.SRC_TRUNCATED, source.detail))
    wrong = _misplaced(path, source)
    if wrong:
        entry = look.stray(entry, status, source.image[:_HEAD])
        return _Reading(_defective(entry, defects.MISPLACED, wrong))
    entry = look.shortened(entry, status)
    whole = source.image if source.whole else b""
    if look.inside:
        entry = replace(look.named(entry, status, source.image), input=formats.input_digest(whole))
    if entry.environment is not None:
        look.environments[path[0]] = entry.environment
    platform = entry.environment.family if entry.environment else ""
    entry = _with_binary(look, leaf, slot, entry, intel=images.is_intel(platform))
    if not (entry.defect and entry.state is EntryState.DEFECTIVE):
        if source.defect is not None:
            entry = _defective(entry, source.defect, source.detail)
        elif entry.environment is None:
            entry = _defective(entry, defects.SRC_UNPARSABLE, entry_format.text(source.device[:200]))
    identity = hashlib.blake2b(data, digest_size=16).hexdigest() if source.whole and not alone else None
    return _Reading(entry, identity)


def _with_source(
    entry: Entry, source: entry_format.Source, recorded: datetime | None, directory: str, written: str
) -> Entry:
    # A source that is cut short may be cut inside its first field, too: then only the path can vouch for it.
    declared = source.complete or str(entry_format.string_hash(source.device)) == directory
    declared = declared and len(source.device) <= _DEVICE
    return replace(
        entry,
        # A copied or restored file is younger than its content: the oldest witness is right.
        created=min(recorded or entry.created, entry.created),
        environment=_target(source.device) if declared else None,
        options=entry_format.text(source.options[: 64 << 10]),
        constants=source.constants[: 4 << 10].hex(),
        image=formats.image_format(source.image) if source.image else None,
        image_size=source.image_size,
        source=written,
    )


@functools.lru_cache(64)
def _target(device: bytes) -> Target | None:
    """Return what a store's few devices stand for, which each of its entries declares."""
    return targets.parse(entry_format.text(device))


def _born(descriptor: int) -> datetime | None:
    made = statx.birth(descriptor)
    return None if made is None else locks.moment(made)


def _recorded_time(leaf: int, slot: Slot) -> datetime | None:
    """Return the birth that the runtime wrote down (2025.2 and later)."""
    if "_access_time.txt" not in slot.files:
        return None
    try:
        name = "_access_time.txt"
        with fs.regular_file(leaf, slot.name + name, slot.files[name]) as (descriptor, _):
            digits = fs.read(descriptor, 32)
    except OSError:
        return None
    return locks.moment(int(digits)) if digits.isdigit() and len(digits) <= 19 else None  # noqa: PLR2004 - nanoseconds


def _misplaced(path: tuple[str, ...], source: entry_format.Source) -> str:
    """Return which level's name is not the hash of its field."""
    names = ("device", "image", "constants", "options")
    fields = (source.device, source.image, source.constants, source.options)
    for level, (name, content, directory) in enumerate(zip(names, fields, path, strict=True), start=1):
        if name == "image" and not source.whole:
            continue
        if not source.complete and name != "device":
            continue
        expected = entry_format.directory_name(content)
        if expected != directory:
            return f"level {level} is {directory}, its {name} hashes to {expected}"
    return ""


def _with_binary(look: ScanState, leaf: int, slot: Slot, entry: Entry, *, intel: bool) -> Entry:
    if ".bin" not in slot.files:
        return _defective(entry, defects.BIN_MISSING)
    if stat.S_ISFIFO(slot.files[".bin"].st_mode):
        return _defective(entry, defects.BIN_FIFO)
    try:
        with fs.regular_file(leaf, slot.name + ".bin", slot.files[".bin"]) as (descriptor, status):
            if forbidden(status):
                return _defective(entry, defects.BIN_UNREADABLE, "its owner may not read it")
            if entry.source is None and entry.id.key.startswith(entry_format.RTC):
                # No source is written with it: who replaces the file is taken for a runtime, who changes it is not.
                # Only what lies alone is also written over: by a runtime that cannot use what another one compiled.
                born = None if slot.name == entry_format.IR else statx.birth(descriptor)
                written = status.st_mtime_ns if born is None else born  # without births a number is soon another file's
                entry = replace(entry, source=f"{status.st_ino}.{written}")
            data = fs.read(descriptor, status.st_size if look.inside and status.st_size <= _HEAD else 16)
            frame = _frame(descriptor, status.st_size, data[:16])
            if not frame.length and frame.defect is not None:
                return _defective(entry, frame.defect, frame.detail)
            if not look.inside:
                return _framed(look, entry, frame)
            payload = data[frame.offset : frame.offset + frame.length]
            if len(payload) < frame.length:
                payload = fs.read(descriptor, min(frame.length, entry_format.READ_LIMIT), frame.offset)
            whole = len(payload) == frame.length
            read_apart = None if whole else large_digest(look, entry.id.key, descriptor, status, frame)
    except OSError as error:
        return _defective(entry, refused(error, "bin"), error.strerror or "")
    entry = replace(
        entry,
        binary=formats.image_format(payload),
        digest=program_digest(payload).hexdigest() if whole else read_apart,
    )
    # A native image has no entry points of its own; the compiled program names its kernels by section.
    entry = entry if entry.kernels else look.named(entry, status, payload)
    wrong = images.damage(payload, intel=intel) if whole else None
    if wrong:
        return _defective(entry, defects.BIN_PAYLOAD_DAMAGED, wrong)
    return _framed(look, entry, frame)


def _framed(look: ScanState, entry: Entry, frame: entry_format.Frame) -> Entry:
    return _defective(entry, frame.defect, frame.detail, look.found.readers) if frame.defect else entry


def _run_time_compiled(look: ScanState, leaf: int, path: tuple[str, ...], slot: Slot, entry: Entry) -> _Reading:
    """Read a program compiled from source: a ``.bin`` alone, whose neighbours tell the device, if any does."""
    link = links(look, leaf, slot, (".bin",))
    if link is not None:
        return _Reading(_defective(entry, link))
    entry = replace(entry, environment=environment_of(look, path[1]), observed=True)
    recorded = _recorded_time(leaf, slot)
    if recorded is not None:
        entry = replace(entry, created=min(recorded, entry.created))
    return _Reading(_with_binary(look, leaf, slot, entry, intel=False))


class _LeafJudge:
    """The slots of a leaf judge each other, lowest first, as the runtime meets them."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[bool, str]] = {}
        """The first slot of each source: whether it is live, and its number."""

    def judged(self, reading: _Reading) -> Entry:
        """Return the next slot as those below it leave it."""
        entry = reading.entry
        whole = entry.state is EntryState.OK
        lower = self._first.get(reading.identity) if reading.identity is not None else None
        if whole and not reading.reachable:
            entry = _defective(entry, defects.BEHIND_GAP)
        elif whole and lower is not None:
            live, number = lower
            entry = _defective(entry, defects.DUPLICATE if live else defects.SHADOWED, f"of slot {number}")
        # The runtime takes the first slot whose source matches, even if its binary then cannot be read.
        if reading.reachable and reading.identity is not None and entry.defect is not defects.BIN_MISSING:
            self._first.setdefault(reading.identity, (whole, entry.id.key.rpartition("/")[2]))
        return entry
