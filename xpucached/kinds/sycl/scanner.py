"""Observe: the walk through a whole SYCL store, in the order of its keys, one leaf after the other."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from xpucached.domain.names import EntryKey
from xpucached.domain.stores import Entry, EntryState, FoundStore, KnownEntry, Scan, StoreState, UnchangedEntry
from xpucached.kinds import folders, fs, listing, walking
from xpucached.kinds.known_cursor import KnownCursor
from xpucached.kinds.sycl import blocking, doctor, entry_format, recipes
from xpucached.kinds.sycl import targets as valid
from xpucached.kinds.sycl.reader import read_slots, unsettled
from xpucached.kinds.sycl.scan_state import ScanState
from xpucached.kinds.sycl.slots import Slots, names_in
from xpucached.kinds.sycl.unread import Changed
from xpucached.processes import cancellation

targets = valid.targets
architecture = valid.architecture

_MARKER: Final = "CACHEDIR.TAG"
_DEPTH: Final = 4
_RETRIES: Final = 3

_SLASH: Final = re.compile("/")

_TICK: Final = 2_000_000_000
"""Nanoseconds.  Who looks at a directory so soon after a change may miss the next one in the same tick of its clock."""


def scan(found: FoundStore, now: datetime, known: Mapping[EntryKey, str], writer_since: datetime | None) -> Scan:
    """Look at a whole store; each entry once."""
    rows = (KnownEntry(key, known[key]) for key in sorted(known))
    entries: dict[EntryKey, Entry] = {}
    unchanged: list[UnchangedEntry] = []
    shut_in: list[EntryKey] = []
    for part in parts(found, now, rows, writer_since):
        if part.state is not StoreState.OK:
            return replace(part, vanished=None)
        # One that was told twice has changed meanwhile.
        entries.update((entry.id.key, entry) for entry in part.entries)
        unchanged += part.unchanged
        shut_in += part.shut_in
    whole = replace(part, entries=tuple(entries.values()), unchanged=tuple(unchanged), shut_in=tuple(shut_in))
    return replace(whole, vanished=None)


def parts(
    found: FoundStore,
    now: datetime,
    known: Iterable[KnownEntry],
    writer_since: datetime | None,
    *,
    quick: bool = False,
    inside: bool = True,
) -> Iterator[Scan]:
    """Look at a store bit by bit; see `Scanner.parts`."""

    def walk(root: int, status: os.stat_result) -> Iterator[Scan]:
        look = ScanState(found, now, KnownCursor(known), quick, root, status, writer_since=writer_since, inside=inside)
        look.faults = doctor.met(found, root, now, writer_since)
        yield from _walk_root(look)
        yield look.part(last=True)

    return walking.parts(found, now, walk)


def key(path: str) -> EntryKey | None:
    """Return to which entry a file belongs; see `Scanner.key`."""
    leaf, _, name = path.rpartition("/")
    match = entry_format.SLOT_FILE.match(name) or entry_format.IR_FILE.match(name)
    # What we keep aside lies in directories of ours, and is no entry there.
    return (
        EntryKey(f"{leaf}/{match[1]}")
        if match is not None and leaf and not leaf.startswith(entry_format.OURS)
        else None
    )


def built_from(key: EntryKey) -> tuple[str, str] | None:
    """Return the directories of a key that stand for device and image, and those with constants and options."""
    parts = key.split("/")[:_DEPTH]
    return ("/".join(parts[:2]), "/".join(parts)) if len(parts) == _DEPTH else None


def _walk_root(look: ScanState) -> Iterator[Scan]:
    """Go through a store in the order of its keys; give all but the last part."""
    names = sorted(listing.names(look.root))
    for name in names:
        if entry_format.NUMBER.match(name):
            yield from _walk_device(look, name)
        elif name == folders.own(look.root, recipes.STAGING):
            if recipes.abandoned(look.root, look.device):
                look.claim(EntryKey(name))
        elif name not in (entry_format.RTC, _MARKER, doctor.SIZE, doctor.SIZE_LOCK):
            look.foreign += not name.startswith(entry_format.OURS)
    if entry_format.RTC in names:
        yield from look.pass_before(entry_format.RTC + "/")
        _remember(look, look.rows.take(entry_format.RTC + "/"))
        yield from _walk_run_time_compiled(look)
        _miss(look)
    yield from look.pass_before()


def _remember(look: ScanState, rows: list[KnownEntry]) -> None:
    """Begin to look at what is below a directory, of which these entries are known."""
    look.known = {row.key: row for row in rows}
    look.seen = set()
    look.hollow = False


def _miss(look: ScanState) -> None:
    """Note which of its known entries are not there any more."""
    shut = frozenset(look.shut)
    look.shut.clear()
    for key in look.known.keys() - look.seen:
        above = (key[: slash.end()] for slash in _SLASH.finditer(key)) if shut else ()
        (look.rows.passed if shut.isdisjoint(above) else look.rows.shut_in).append(key)


@contextlib.contextmanager
def _foreign(look: ScanState, *path: str) -> Iterator[None]:
    """Count what is no part of the store: a link, a file, another file system, or not for us to read.

    What may not be read is there all the same, and what was known of it is not forgotten.
    """
    try:
        yield
    except OSError as error:
        _note_foreign(look, path, error)


def _note_foreign(look: ScanState, path: tuple[str, ...], error: OSError) -> None:
    if isinstance(error, FileNotFoundError):
        return
    if isinstance(error, PermissionError):
        look.shut.append("/".join((*path, "")))
        look.shut_in_all += 1
    elif fs.passing(error):
        raise error
    look.foreign += 1


def _enter(look: ScanState, parent: int, name: str, owner: int) -> tuple[int, os.stat_result]:
    """Open a directory of a level, and note whether something else is in its place.  Raises OSError."""
    try:
        return fs.enter(parent, name, look.device, owner)
    except OSError:
        look.blocked = look.blocked or blocking.stands(parent, name, os.fspath(look.store.root))
        raise


def _walk_device(look: ScanState, name: str) -> Iterator[Scan]:
    images: list[str] = []
    with contextlib.ExitStack() as opened:
        with _foreign(look, name):
            here, status = _enter(look, look.root, name, look.status.st_uid)
            opened.callback(os.close, here)
            images = sorted(listing.names(here))
        if look.shut:
            yield from look.pass_before(look.shut[-1])
            yield from look.leave_unread(look.shut.pop())
        for below in images:
            if not entry_format.NUMBER.match(below):
                look.foreign += 1
                continue
            yield from look.pass_before(f"{name}/{below}/")
            rows = look.rows.take(f"{name}/{below}/")
            if look.quick and rows and _settled(here, below, rows):
                continue
            before = look.parts
            _remember(look, rows)
            yield from _walk(look, here, status.st_uid, below, (name, below), ())
            _miss(look)
            # Where a part was given on the way, too: nobody knows any more whether it was hollow.
            if look.hollow or look.parts != before:
                look.unsettle(f"{name}/{below}/")
            if look.full:
                yield look.part()


def _settled(device: int, image: str, rows: list[KnownEntry]) -> bool:
    """Tell whether the directories of an image are those that were seen, and nothing was added, taken or renamed there.

    Three questions for each leaf instead of opening and listing three directories.  What a link leads to, and who may
    never answer there, is not asked for.
    """
    before, place = "", None
    try:
        first = os.stat(image, dir_fd=device, follow_symlinks=False)
        if not stat.S_ISDIR(first.st_mode):
            return False
        for row in rows:
            key = row.key
            leaf = key[key.index("/") + 1 : key.rindex("/")]
            if leaf != before:
                cancellation.check()
                before = leaf
                third = os.stat(leaf[: leaf.rindex("/")], dir_fd=device, follow_symlinks=False)
                if not stat.S_ISDIR(third.st_mode):
                    return False
                place = _place(first, third, os.stat(leaf, dir_fd=device, follow_symlinks=False))
            if row.place != place:
                return False
    except OSError:
        return False
    return True


def _place(first: os.stat_result, third: os.stat_result, leaf: os.stat_result) -> int:
    """Return a number (64 bits, signed) that changes with the directories that an entry lies in.

    The hash of a tuple of numbers, which is the same in every process, is made in a quarter of the time of a digest.
    """
    return hash((first.st_ino, first.st_ctime_ns, third.st_ino, third.st_ctime_ns, leaf.st_ino, leaf.st_ctime_ns))


def _walk(
    look: ScanState, parent: int, owner: int, name: str, path: tuple[str, ...], above: tuple[os.stat_result, ...]
) -> Iterator[Scan]:
    """Go down the numbered levels; a leaf is at the fourth."""
    cancellation.check()
    before = len(look.seen)
    try:
        here, status = _enter(look, parent, name, owner)
        try:
            through = (*above, status)
            if len(path) == _DEPTH:
                yield from _leaf(look, here, path, entry_format.SLOT_FILE, through)
            for below in sorted(listing.names(here)) if len(path) < _DEPTH else ():
                if entry_format.NUMBER.match(below):
                    yield from _walk(look, here, status.st_uid, below, (*path, below), through)
                else:
                    look.foreign += 1
        finally:
            os.close(here)
    except OSError as error:
        _note_foreign(look, path, error)
    if len(look.seen) == before:
        look.hollow = True


def _walk_run_time_compiled(look: ScanState) -> Iterator[Scan]:
    with _foreign(look, entry_format.RTC), fs.directory_in(look.root, entry_format.RTC, look.device) as here:
        owner = os.fstat(here).st_uid
        for name in sorted(listing.names(here)):
            if entry_format.NUMBER.match(name):
                yield from _walk(look, here, owner, name, (entry_format.RTC, name), ())
            elif entry_format.IR_KEY.match(name):
                with _foreign(look, entry_format.RTC, name), fs.directory_in(here, name, look.device) as leaf:
                    yield from _leaf(look, leaf, (entry_format.RTC, name), entry_format.IR_FILE, ())
            else:
                look.foreign += 1


def leaf(look: ScanState, descriptor: int, path: str) -> Sequence[Entry]:
    """Look at one leaf only."""
    told = [one.entries for one in _leaf(look, descriptor, tuple(path.split("/")), entry_format.SLOT_FILE, ())]
    # One that was told twice has changed meanwhile.
    found = {one.id.key: one for one in itertools.chain(*told, look.entries)}
    look.entries.clear()
    return tuple(found.values())


def _leaf(
    look: ScanState, leaf: int, path: tuple[str, ...], pattern: re.Pattern[str], through: tuple[os.stat_result, ...]
) -> Iterator[Scan]:
    place = None
    if through and max(one.st_ctime_ns for one in through) + _TICK < look.now.timestamp() * 1e9:
        place = _place(*through)
    # Then nothing is added there but with another time of its own.
    rested = bool(through) and through[-1].st_ctime_ns + _TICK < time.time_ns()
    for _ in range(_RETRIES):
        slots = Slots(leaf, pattern)
        before, begun = look.parts, len(look.entries)
        read: set[EntryKey] = set()
        try:
            for entry in read_slots(look, leaf, path, slots, place):
                if entry is not None:
                    look.add(entry)
                    read.add(entry.id.key)
                if look.full:
                    yield _part(look, path)
            # What is unchanged was looked at only now.
            same = not read or (rested and os.fstat(leaf).st_ctime_ns == through[-1].st_ctime_ns)
            if same or names_in(leaf, pattern) == slots.names:
                look.seen |= read
                break
        except Changed:
            pass
        # What was handed over already is told again, as it is then.
        del look.entries[begun if before == look.parts else 0 :]
    else:
        # Somebody writes here all the time: what could not be read at rest is unfinished by definition.
        slots = Slots(leaf, pattern)
        for slot in slots:
            look.add(unsettled(look, path, slot, EntryState.UNFINISHED, "it changes while we look"))
            look.seen.add(look.entries[-1].id.key)
            if look.full:
                yield _part(look, path)
    look.foreign += slots.foreign
    if look.full:
        yield _part(look, path)


def _part(look: ScanState, path: tuple[str, ...]) -> Scan:
    """Hand over what was found in the middle of an image: the next look has to go there again."""
    look.unsettle("/".join(path[:2]) + "/")
    return look.part()
