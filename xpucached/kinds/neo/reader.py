"""Observe: one entry, read whole and judged by itself."""

from __future__ import annotations

import errno
import functools
import os
import stat
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached import shortage
from xpucached.binaries import formats, zebin
from xpucached.domain.defects import Effect
from xpucached.domain.stores import Entry, EntryId, EntryState, ImageFormat, Store, program_digest
from xpucached.host import gpu_devices
from xpucached.kinds import fs, images, statx
from xpucached.kinds.neo import defects, layout, soundness
from xpucached.kinds.neo.remover import stamp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xpucached.domain.defects import Defect
    from xpucached.domain.names import EntryKey

_LIMIT: Final = 64 << 20
"""Bytes of an entry that are taken into memory; oneDNN's largest have one million."""

_SIZE: Final = (1 << 63) - 1
"""A file with a hole may claim more than the catalog counts."""

_SETTLED: Final = 10.0
"""Seconds after which a file that looks damaged is not being written any more; drivers up to 23.17 write in place."""


def read_entry(
    store: Store, directory: int, name: str, key: EntryKey, before: os.stat_result, place: int | None, now: datetime
) -> Entry:
    """Read an entry; ``before`` is what it was when it was just looked at.  Raises OSError that says nothing of it."""
    entry = _described(store, key, before, place, now)
    if not stat.S_ISREG(before.st_mode):
        return replace(_judged(entry, _strange(store, directory, name, before)), size=0, allocated=0)
    unread = _unread(directory, name, before)
    if unread is not None:
        young = unread[0] is defects.EMPTY and _young(before, now)
        return _changing(entry) if young else _judged(entry, *unread)
    try:
        with fs.regular_file(directory, name, before) as (descriptor, status):
            data = fs.read(descriptor, min(_LIMIT, status.st_size) + 1)
            born = statx.birth(descriptor)
    except FileNotFoundError:
        raise
    except OSError as error:
        if shortage.is_ours(error):
            raise
        if fs.passing(error):
            return _unread_now(entry, error)
        return _judged(entry, defects.UNREADABLE, error.strerror or "")
    if stamp(status) != stamp(before) or len(data) != status.st_size:
        return _changing(entry)
    wrong = None if data else defects.EMPTY
    detail = soundness.damage(data) if data else ""
    if detail:
        wrong = defects.DAMAGED
    if wrong is not None:
        return _changing(entry) if _young(before, now) else _judged(entry, wrong, detail or "")
    entry = replace(
        _filled(entry, data),
        created=min(entry.created, _moment(born)) if born is not None else entry.created,
        # Where no births are kept, a number is soon another file's.
        source=f"{status.st_ino}.{status.st_mtime_ns if born is None else born}",
    )
    where = layout.place(key)
    return _judged(entry, defects.MISPLACED) if where is not None and where.misplaced else entry


def _unread(directory: int, name: str, status: os.stat_result) -> tuple[Defect, str] | None:
    """Judge an entry that is not opened: reading what is somebody else's would look like use."""
    foreign = status.st_uid not in (os.fstat(directory).st_uid, os.geteuid())
    whose = f"it is user {status.st_uid}'s" if foreign else ""
    may = functools.partial(os.access, name, dir_fd=directory, effective_ids=True, follow_symlinks=False)
    # Where a filter of system calls refuses the question, not even that it is there is confirmed: opening it tells.
    if not may(os.R_OK) and may(os.F_OK):
        return defects.UNREADABLE, whose
    if foreign:
        return defects.FOREIGN if status.st_size else defects.EMPTY, whose
    return (defects.LARGE, "") if status.st_size > _LIMIT else None


def _young(status: os.stat_result, now: datetime) -> bool:
    """Return whether somebody may still write a file."""
    return 0 <= now.timestamp() - status.st_mtime < _SETTLED


def _described(store: Store, key: EntryKey, status: os.stat_result, place: int | None, now: datetime) -> Entry:
    return Entry(
        EntryId(store, key),
        stamp(status),
        min(status.st_size, _SIZE),
        min(status.st_blocks * 512, _SIZE),
        min(_moment(status.st_mtime_ns), now),
        accessed(status),
        place=place,
    )


def _filled(entry: Entry, data: bytes) -> Entry:
    """Add what an entry says of itself."""
    entry = replace(
        entry,
        binary=formats.image_format(data),
        digest=program_digest(data).hexdigest(),
        kernels=images.kernels(data),
    )
    told = zebin.read(data)
    return replace(
        entry,
        options=told.options,
        image=ImageFormat.SPIRV if told.input is not None else None,
        image_size=told.input_size,
        input=told.input,
        facts=tuple(_facts(entry, told)),
    )


def _facts(entry: Entry, told: zebin.Zebin) -> Iterator[tuple[str, str]]:
    """Name what an entry is for, as far as it says so: neither driver nor compiler, only the GPU and the format."""
    where = layout.place(entry.id.key)
    if where is not None:
        yield "interface", layout.INTERFACES[where.suffix] + (", as drivers up to 26.01 keep it" if where.flat else "")
    if told.ip is not None:
        version = zebin.ip_text(told.ip)
        name = gpu_devices.by_version(version)
        yield "gpu", f"{name}, IP version {version}" if name else f"IP version {version}"
    elif told.family is not None:
        yield "gpu", f"product family {told.family}"
    if told.version:
        yield "format", f"zebin {told.version}"


def accessed(status: os.stat_result) -> datetime:
    """Return when a file was read last, as far as its file system keeps that."""
    return _moment(status.st_atime_ns)


def _moment(nanoseconds: int) -> datetime:
    try:
        return datetime.fromtimestamp(nanoseconds / 1e9, UTC)
    except (OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(0, UTC)


def _judged(entry: Entry, defect: Defect, detail: str = "") -> Entry:
    state = EntryState.OK if defect.effect is Effect.HARMLESS else EntryState.DEFECTIVE
    return replace(entry, defect=defect, detail=detail, state=state)


def _strange(store: Store, directory: int, name: str, status: os.stat_result) -> Defect:
    """Judge what is no regular file; nothing of it is opened."""
    if stat.S_ISLNK(status.st_mode):
        try:
            status = fs.leads_to(directory, name, os.fspath(store.root))
        except OSError as error:
            return defects.LINK_DANGLING if error.errno in (errno.ENOENT, errno.ELOOP) else defects.LINK_AWAY
        if stat.S_ISREG(status.st_mode):
            return defects.LINK if status.st_size else defects.EMPTY
    return defects.FIFO if stat.S_ISFIFO(status.st_mode) else defects.NOT_A_FILE


def _unread_now(entry: Entry, error: OSError) -> Entry:
    detail = f"it cannot be read just now: {error.strerror}"
    return replace(entry, stamp="", state=EntryState.UNREAD, detail=detail, place=None)


def _changing(entry: Entry) -> Entry:
    return replace(entry, stamp="", state=EntryState.UNFINISHED, detail="it changes while we look", place=None)
