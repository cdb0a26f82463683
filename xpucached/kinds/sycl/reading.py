"""Observe: the slots of one leaf, flawed ones too, each read whole and judged beside its neighbours.

The runtime's own walk decides what a slot is worth: it tries slots 0, 1, 2 … and stops at the first number that has
neither ``.bin`` nor ``.src``; it skips a slot that has a ``.lock``; it compares the whole ``.src``; only then it opens
the ``.bin``.  What each kind of damage costs was tried on runtimes 2024.2, 2025.2 and 2026.2 (``docs/kinds.md``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from xpucached.domain import Effect, Entry, EntryId, EntryKey, EntryState, Environment, Flaw, Generation, Seen
from xpucached.kinds.sycl import files, images, layout, locks
from xpucached.kinds.sycl.large import large_digest
from xpucached.kinds.sycl.look import Look
from xpucached.kinds.sycl.slots import Slot, Slots, accessed, digest, key_of, slot_stamp

_DEPTH: Final = 4
_SIZE: Final = (1 << 63) - 1
"""A file with a hole may claim nearly this much, and an entry has several; the catalog counts no further."""


_HEAD: Final = 1 << 20
"""So much of an image is searched for kernels where no program looks for it: one file may have links in many leaves."""

_DEVICE: Final = 4 << 10
"""No device, with its platform, version and driver, has a longer name."""


@dataclass(slots=True)
class _Reading:
    """What we learn of one slot before it is compared with its neighbours."""

    entry: Entry
    identity: str | None = None  #: digest of a complete ``.src``
    reachable: bool = True
    live: bool = True  #: the runtime would use it, were it reached


class Changed(Exception):
    """A program wrote here meanwhile; look again."""


class _Unread(Exception):
    """A file cannot be read just now, which says nothing about what is in it."""


def read_slots(look: Look, leaf: int, path: tuple[str, ...], slots: Slots, place: int | None) -> Iterator[Entry | None]:
    """Read every slot of a leaf, or find it unchanged as a whole: neighbours decide what a slot is worth.

    Gives None for each that is unchanged.
    """
    stamps: list[str] = []
    locked = False
    for slot in slots:
        stamps.append(slot_stamp(slot))
        locked = locked or ".lock" in slot.files
    leaf_stamp = digest(zip(slots.names, stamps, strict=False))
    if not locked and len(stamps) == len(slots) and _unchanged(look, leaf_stamp, stamps, path, slots):
        for slot in slots:
            key = key_of(path, slot.name)
            look.unchanged.append(Seen(key, accessed(slot), place))
            look.seen.add(key)
            yield None
        return
    compiled = path[0] == layout.RTC
    neighbours = _Neighbours()
    expected = 0
    gap = False
    for slot, stamp in zip(slots, stamps, strict=False):
        if slot_stamp(slot) != stamp:
            raise Changed
        entry = _described(look, path, slot, f"{leaf_stamp}:{stamp}", place)
        try:
            reading = _locked(look, leaf, slot, entry)
            if reading is None and compiled:
                reading = _run_time_compiled(look, leaf, path, slot, entry)
            elif reading is None:
                reading = _ordinary(look, leaf, path, slot, entry, alone=len(slots) == 1)
        except _Unread as error:
            reading = _Reading(unfinished(look, path, slot, str(error)), live=False)
        if slot.name.isdigit() and not compiled:
            gap = gap or int(slot.name) != expected
            # A slot without .bin and .src ends the runtime's walk, whatever else lies there.
            expected = int(slot.name) + 1 if {".bin", ".src"} & slot.files.keys() else -1
            reading.reachable = not gap
        yield neighbours.judged(reading)


def _unchanged(look: Look, leaf_stamp: str, stamps: list[str], path: tuple[str, ...], slots: Slots) -> bool:
    """Tell whether every slot of a leaf is as it was known."""
    names = zip(slots.names, stamps, strict=True)
    return bool(stamps) and all(_stamp(look, key_of(path, name)) == f"{leaf_stamp}:{one}" for name, one in names)


def _stamp(look: Look, key: EntryKey) -> str | None:
    row = look.known.get(key)
    return None if row is None else row.stamp


def _environment(look: Look, device: str) -> Environment | None:
    """Tell what a device directory stands for, from the head of one of its entries."""
    if device not in look.environments:
        look.environments[device] = None
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            here = stack.enter_context(files.directory_in(look.root, device, look.device))
            for image in sorted(os.listdir(here))[:_WITNESSES]:
                found = _declared(look, here, image, device)
                if found is not None:
                    look.environments[device] = found
                    break
    return look.environments[device]


_WITNESSES: Final = 8
"""So many images of a device are asked what device it is: the first may be damaged."""


def _declared(look: Look, parent: int, name: str, device: str, depth: int = 2) -> Environment | None:
    """Ask the first slot of an image's first leaf."""
    with contextlib.suppress(OSError), files.directory_in(parent, name, look.device) as here:
        if depth < _DEPTH:
            below = min(os.listdir(here), default=None)
            return None if below is None else _declared(look, here, below, device, depth + 1)
        with files.regular_file(here, "0.src") as (descriptor, status):
            source = layout.source(files.read(descriptor, 64 << 10), status.st_size)
        if str(layout.string_hash(source.device)) == device:
            return layout.environment(layout.text(source.device))
    return None


def _described(look: Look, path: tuple[str, ...], slot: Slot, stamp: str, place: int | None) -> Entry:
    statuses = [status for status in slot.files.values() if stat.S_ISREG(status.st_mode)]
    blocks = {(status.st_dev, status.st_ino): status.st_blocks * 512 for status in statuses}
    written = [status.st_mtime_ns for suffix, status in slot.files.items() if suffix in (".bin", ".src")]
    oldest = min(written or [status.st_mtime_ns for status in slot.files.values()])
    return Entry(
        EntryId(look.store, key_of(path, slot.name)),
        stamp,
        min(sum(status.st_size for status in statuses), _SIZE),
        min(sum(blocks.values()), _SIZE),
        min(locks.moment(oldest), look.now),
        accessed(slot),
        place=place,
    )


def unfinished(look: Look, path: tuple[str, ...], slot: Slot, detail: str) -> Entry:
    """Describe a slot that cannot be read at rest."""
    entry = _described(look, path, slot, "", None)
    return dataclasses.replace(entry, state=EntryState.UNFINISHED, detail=detail)


def _flawed(entry: Entry, flaw: Flaw, detail: str = "", readers: frozenset[Generation] = frozenset()) -> Entry:
    state = EntryState.OK if flaw.effect_for(readers) is Effect.HARMLESS else EntryState.FLAWED
    return dataclasses.replace(entry, flaw=flaw, detail=detail, state=state)


# -- locks ------------------------------------------------------------------------------------------------------------


def _lock_age(look: Look, status: os.stat_result) -> timedelta | None:
    """Give the age of a lock that was left behind; None while somebody may hold it."""
    return locks.age(status, look.now, look.writer_since)


def _locked(look: Look, leaf: int, slot: Slot, entry: Entry) -> _Reading | None:
    """Judge a slot that has a lock; None if it has none."""
    lock = slot.files.get(".lock")
    if lock is None:
        if slot.files.keys() <= {"_access_time.txt", "_access_time.txt.lock"}:
            return _Reading(_flawed(entry, Flaw.SKELETON), live=False)
        return None
    owner = locks.of_ours(leaf, slot.name + ".lock")
    age = _lock_age(look, lock)
    if owner is not None and locks.left_behind(owner, lock.st_mtime_ns, look.now):
        look.ours.append(entry.id.key)
        return _Reading(_flawed(entry, Flaw.STALE_LOCK, f"made by xpucached, process {owner.pid}"), live=False)
    if owner is not None or age is None:
        who = "another xpucached works at it" if owner is not None else "a program is writing it"
        return _Reading(dataclasses.replace(entry, state=EntryState.UNFINISHED, detail=who), live=False)
    detail = f"the lock is {int(age.total_seconds())} s old"
    present = {".bin", ".src"} & slot.files.keys()
    if not present:
        return _Reading(_flawed(entry, Flaw.LOCK_ONLY, detail), live=False)
    whole = len(present) == 2 and _complete(leaf, slot)  # noqa: PLR2004 - both
    return _Reading(_flawed(entry, Flaw.STALE_LOCK if whole else Flaw.INTERRUPTED, detail), live=False)


def _complete(leaf: int, slot: Slot) -> bool:
    try:
        with files.regular_file(leaf, slot.name + ".src") as (descriptor, status):
            source = layout.source(files.read(descriptor, layout.READ_LIMIT), status.st_size)
        with files.regular_file(leaf, slot.name + ".bin") as (descriptor, status):
            frame = _frame(descriptor, status.st_size)
    except OSError as error:
        _refused(error, "src")
        return False
    return source.complete and frame.length > 0


# -- the files of one slot --------------------------------------------------------------------------------------------


def _frame(descriptor: int, size: int) -> layout.Frame:
    return layout.frame(files.read(descriptor, 16), size, lambda offset: files.read(descriptor, 8, offset))


def _links(look: Look, leaf: int, slot: Slot, suffixes: tuple[str, ...]) -> Flaw | None:
    """Judge a slot of which a file is a link, by what programs find in the place of each; None if none is one."""
    there = {suffix: slot.files[suffix] for suffix in suffixes if suffix in slot.files}
    if not any(stat.S_ISLNK(status.st_mode) for status in there.values()):
        return None
    root = os.fspath(look.store.root)
    found = [_behind(leaf, slot.name, suffix, there.get(suffix), root) for suffix in suffixes]
    return max(found, key=lambda flaw: tuple(Effect).index(flaw.effect))


def _behind(leaf: int, name: str, suffix: str, status: os.stat_result | None, root: str) -> Flaw:
    source = suffix == ".src"
    if status is None:
        return Flaw.SRC_MISSING if source else Flaw.BIN_MISSING
    if stat.S_ISLNK(status.st_mode):
        try:
            status = files.leads_to(leaf, name + suffix, root)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return Flaw.DANGLING_LINK
            return Flaw.LINK_AWAY if error.errno == errno.EXDEV else _refused(error, suffix[1:])
    if stat.S_ISREG(status.st_mode):
        return Flaw.LINK
    if stat.S_ISFIFO(status.st_mode):
        return Flaw.SRC_FIFO if source else Flaw.BIN_FIFO
    return Flaw.SRC_NOT_A_FILE if source else Flaw.BIN_NOT_A_FILE


def _refused(error: OSError, what: str) -> Flaw:
    """Name why a file could not be read.  One that has vanished means that the leaf changed."""
    if isinstance(error, FileNotFoundError):
        raise Changed from error
    if files.ours(error):
        # Else a busy daemon would find good entries unreadable, and evict them.
        raise error
    if files.passing(error) or error.errno == errno.EXDEV:
        # Also what is mounted on a file: the runtime reads that.
        raise _Unread(f"it cannot be read just now: {error.strerror}") from error
    if isinstance(error, IsADirectoryError):
        return Flaw.SRC_NOT_A_FILE if what == "src" else Flaw.BIN_NOT_A_FILE
    return Flaw.SRC_UNREADABLE if what == "src" else Flaw.BIN_UNREADABLE


def _forbidden(status: os.stat_result) -> bool:
    """Tell whether the owner's programs may not read a file that we, as root, may."""
    return os.geteuid() == 0 and status.st_uid != 0 and not status.st_mode & stat.S_IRUSR


def _ordinary(look: Look, leaf: int, path: tuple[str, ...], slot: Slot, entry: Entry, *, alone: bool) -> _Reading:
    """Read an entry of the numbered levels; ``alone`` in its leaf, it has nothing to be compared with."""
    link = _links(look, leaf, slot, (".src", ".bin"))
    if link is not None:
        return _Reading(_flawed(entry, link), live=link is Flaw.LINK)
    if ".src" not in slot.files:
        entry = _with_binary(look, leaf, slot, entry, intel=True)
        return _Reading(_flawed(entry, Flaw.SRC_MISSING), live=False)
    if stat.S_ISFIFO(slot.files[".src"].st_mode):
        return _Reading(_flawed(entry, Flaw.SRC_FIFO), live=False)
    try:
        with files.regular_file(leaf, slot.name + ".src", slot.files[".src"]) as (descriptor, status):
            # One byte more than there should be tells whether it grows.
            data = files.read(descriptor, min(layout.READ_LIMIT, status.st_size + 1))
            recorded = _recorded_time(leaf, slot) or _born(descriptor)
            size = max(status.st_size, len(data))
    except OSError as error:
        return _Reading(_flawed(entry, _refused(error, "src"), error.strerror or ""), live=False)
    if _forbidden(status):
        return _Reading(_flawed(entry, Flaw.SRC_UNREADABLE, "its owner may not read it"), live=False)
    source = layout.source(data, size)
    entry = dataclasses.replace(entry, source=f"{status.st_ino}.{status.st_mtime_ns}")
    entry = _with_source(entry, source, recorded, path[0])
    if not source.complete and source.flaw is not Flaw.SRC_TOO_LARGE:
        entry = dataclasses.replace(entry, kernels=images.kernels(source.image[:_HEAD]))
        return _Reading(_flawed(entry, source.flaw or Flaw.SRC_TRUNCATED, source.detail), live=False)
    wrong = _misplaced(path, source)
    if wrong:
        entry = dataclasses.replace(entry, kernels=images.kernels(source.image[:_HEAD]))
        return _Reading(_flawed(entry, Flaw.MISPLACED, wrong), live=False)
    entry = dataclasses.replace(entry, kernels=images.kernels(source.image))
    if entry.environment is not None:
        look.environments[path[0]] = entry.environment
    platform = entry.environment.platform if entry.environment else ""
    entry = _with_binary(look, leaf, slot, entry, intel=images.is_intel(platform))
    if not (entry.flaw and entry.state is EntryState.FLAWED):
        if source.flaw is not None:
            entry = _flawed(entry, source.flaw, source.detail)
        elif entry.environment is None:
            entry = _flawed(entry, Flaw.SRC_UNPARSABLE, layout.text(source.device[:200]))
    identity = hashlib.blake2b(data, digest_size=16).hexdigest() if source.whole and not alone else None
    return _Reading(entry, identity, live=entry.state is EntryState.OK)


def _with_source(entry: Entry, source: layout.Source, recorded: datetime | None, directory: str) -> Entry:
    # A source that is cut short may be cut inside its first field, too: then only the path can vouch for it.
    declared = source.complete or str(layout.string_hash(source.device)) == directory
    declared = declared and len(source.device) <= _DEVICE
    return dataclasses.replace(
        entry,
        # A copied or restored file is younger than its content: the oldest witness is right.
        created=min(recorded or entry.created, entry.created),
        environment=layout.environment(layout.text(source.device)) if declared else None,
        options=layout.text(source.options[: 64 << 10]),
        constants=source.constants[: 4 << 10].hex(),
        image=images.image_format(source.image) if source.image else None,
        image_size=source.image_size,
    )


def _born(descriptor: int) -> datetime | None:
    made = files.birth(descriptor)
    return None if made is None else locks.moment(made)


def _recorded_time(leaf: int, slot: Slot) -> datetime | None:
    """Give the birth that the runtime wrote down (2025.2 and later)."""
    if "_access_time.txt" not in slot.files:
        return None
    try:
        name = "_access_time.txt"
        with files.regular_file(leaf, slot.name + name, slot.files[name]) as (descriptor, _):
            digits = files.read(descriptor, 32)
    except OSError:
        return None
    return locks.moment(int(digits)) if digits.isdigit() and len(digits) <= 19 else None  # noqa: PLR2004 - nanoseconds


def _misplaced(path: tuple[str, ...], source: layout.Source) -> str:
    """Say which level's name is not the hash of its field."""
    names = ("device", "image", "constants", "options")
    fields = (source.device, source.image, source.constants, source.options)
    for level, (name, content, directory) in enumerate(zip(names, fields, path, strict=True), start=1):
        if name == "image" and not source.whole:
            continue
        if not source.complete and name != "device":
            continue
        expected = str(layout.string_hash(content))
        if expected != directory:
            return f"level {level} is {directory}, its {name} hashes to {expected}"
    return ""


def _with_binary(look: Look, leaf: int, slot: Slot, entry: Entry, *, intel: bool) -> Entry:
    if ".bin" not in slot.files:
        return _flawed(entry, Flaw.BIN_MISSING)
    if stat.S_ISFIFO(slot.files[".bin"].st_mode):
        return _flawed(entry, Flaw.BIN_FIFO)
    try:
        with files.regular_file(leaf, slot.name + ".bin", slot.files[".bin"]) as (descriptor, status):
            if _forbidden(status):
                return _flawed(entry, Flaw.BIN_UNREADABLE, "its owner may not read it")
            if entry.source is None and entry.id.key.startswith(layout.RTC):
                # No source is written with it: who replaces the file is taken for a runtime, who changes it is not.
                # Only what lies alone is also written over: by a runtime that cannot use what another one compiled.
                written = status.st_mtime_ns if slot.name == layout.IR else files.birth(descriptor)
                entry = dataclasses.replace(entry, source=f"{status.st_ino}.{written}")
            frame = _frame(descriptor, status.st_size)
            if not frame.length and frame.flaw is not None:
                return _flawed(entry, frame.flaw, frame.detail)
            payload = files.read(descriptor, min(frame.length, layout.READ_LIMIT), frame.offset)
            whole = len(payload) == frame.length
            read_apart = None if whole else large_digest(look, entry.id.key, descriptor, status, frame)
    except OSError as error:
        return _flawed(entry, _refused(error, "bin"), error.strerror or "")
    entry = dataclasses.replace(
        entry,
        binary=images.image_format(payload),
        digest=hashlib.blake2b(payload, digest_size=16).hexdigest() if whole else read_apart,
        # A native image has no entry points of its own; the compiled program names its kernels by section.
        kernels=entry.kernels or images.kernels(payload),
    )
    wrong = images.damage(payload, intel=intel) if whole else None
    if wrong:
        return _flawed(entry, Flaw.BIN_PAYLOAD_DAMAGED, wrong)
    return _flawed(entry, frame.flaw, frame.detail, look.found.readers) if frame.flaw else entry


def _run_time_compiled(look: Look, leaf: int, path: tuple[str, ...], slot: Slot, entry: Entry) -> _Reading:
    """Read a program compiled from source: a ``.bin`` alone, whose neighbours tell the device, if any does."""
    link = _links(look, leaf, slot, (".bin",))
    if link is not None:
        return _Reading(_flawed(entry, link))
    entry = dataclasses.replace(entry, environment=_environment(look, path[1]))
    recorded = _recorded_time(leaf, slot)
    if recorded is not None:
        entry = dataclasses.replace(entry, created=min(recorded, entry.created))
    return _Reading(_with_binary(look, leaf, slot, entry, intel=False))


class _Neighbours:
    """The slots of a leaf judge each other, lowest first, as the runtime meets them."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[bool, str]] = {}
        """The first slot of each source: whether it is live, and its number."""

    def judged(self, reading: _Reading) -> Entry:
        """Give the next slot as those below it leave it."""
        entry = reading.entry
        whole = reading.live and entry.state is EntryState.OK
        lower = self._first.get(reading.identity) if reading.identity is not None else None
        if whole and not reading.reachable:
            entry = _flawed(entry, Flaw.BEHIND_GAP)
        elif whole and lower is not None:
            live, number = lower
            entry = _flawed(entry, Flaw.DUPLICATE if live else Flaw.SHADOWED, f"of slot {number}")
        # The runtime takes the first slot whose source matches, even if its binary then cannot be read.
        if reading.reachable and reading.identity is not None and entry.flaw is not Flaw.BIN_MISSING:
            self._first.setdefault(reading.identity, (reading.live, entry.id.key.rpartition("/")[2]))
        return entry
