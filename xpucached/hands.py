"""Act: what is done in a store, done with the rights of its owner.  Touches stores through `kinds`, and processes.

A daemon of one user works in its own stores, with its own hands.  A daemon that runs as root lends its hands to nobody:
in a store of somebody else, each look and each removal is a child of its own that has become that user, with his groups
gone, before it opens the first directory.  What such a child says is that user's word: it is read as values of the
types that are expected, and believed about his store only.

``kinds`` itself refuses to open another's store as root, so that what is forgotten here does nothing there.
"""

from __future__ import annotations

import json
import logging
import os
import pwd
import re
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, cast

from xpucached import host
from xpucached.api import codec
from xpucached.domain import (
    Entry,
    EntryId,
    EntryKey,
    FoundStore,
    Hazard,
    Known,
    Note,
    Remedy,
    Restored,
    Scan,
    Store,
    StoreState,
    Trashed,
    TrashRef,
)
from xpucached.kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from xpucached.api import Json

log = logging.getLogger(__name__)

_NOBODY: Final = 65534
"""The group of a user without an entry in the password file.  Never that of his directory, which may be root's."""

_TIME: Final = 900.0
"""Seconds for one act.  A first look at a hundred thousand entries takes half a minute."""

_LARGEST: Final = 512 << 20
"""Bytes of one answer: about a million entries."""


_KEY: Final = re.compile(r"[A-Za-z0-9+_=.-]{1,200}(?:/[A-Za-z0-9+_=-]{1,200}){0,8}")
"""What keys look like.  None of their parts is a point or two."""


@dataclass(frozen=True, slots=True)
class _Job:
    """What a child is asked to do: one of these."""

    scan: FoundStore | None = None
    now: datetime | None = None
    known: tuple[Known, ...] = ()
    remove: tuple[Entry, ...] = ()
    notes: tuple[Note | None, ...] = ()  #: one for each that is removed
    sweep: EntryId | None = None
    mend: tuple[Remedy, ...] = ()
    trash: Store | None = None
    restore: Store | None = None
    discard: Store | None = None
    refs: tuple[TrashRef, ...] = ()
    hazards: FoundStore | None = None
    clear: Hazard | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    """What it says."""

    scan: Scan | None = None
    gone: tuple[bool, ...] = ()
    swept: bool = False
    trash: tuple[Trashed, ...] = ()
    restored: tuple[Restored, ...] = ()
    discarded: tuple[TrashRef, ...] = ()
    hazards: tuple[Hazard, ...] = ()


def scan(found: FoundStore, now: datetime, known: Mapping[EntryKey, str], writer_since: datetime | None) -> Scan:
    """Look at a store; see `Kind.scan`.  Which of his programs may be writing, another's child finds out itself."""
    uid = foreign(found.store)
    if uid is None:
        return KINDS[found.store.kind].scan(found, now, known, writer_since)
    job = _Job(scan=found, now=now, known=tuple(Known(key, stamp) for key, stamp in known.items()))
    try:
        answer = _lend(uid, job)
    except (OSError, ValueError) as error:
        return Scan(found, now, StoreState.UNREADABLE, uid, notes=(f"as user {uid}: {error}",))
    if answer.scan is None:
        return Scan(found, now, StoreState.UNREADABLE, uid, notes=(f"as user {uid}: no answer",))
    return _about(found, uid, answer.scan)


def parts(
    found: FoundStore, now: datetime, known: Iterable[Known], writer_since: datetime | None, *, quick: bool = False
) -> Iterator[Scan]:
    """Look at a store bit by bit; see `Kind.parts`.  Somebody else's comes in one part, and is never quick."""
    if foreign(found.store) is None:
        yield from KINDS[found.store.kind].parts(found, now, known, writer_since, quick=quick)
    else:
        stamps = {row.key: row.stamp for row in known if row.stamp is not None}
        yield scan(found, now, stamps, writer_since)


def remove(entries: Sequence[Entry], notes: Mapping[EntryId, Note] | None = None) -> Mapping[EntryId, bool]:
    """Take entries out of any stores; see `Kind.remove`."""
    notes = notes or {}
    results = {entry.id: False for entry in entries}
    for store in dict.fromkeys(entry.id.store for entry in entries):
        some = [entry for entry in entries if entry.id.store == store]
        uid = foreign(store)
        if uid is None:
            results.update(KINDS[store.kind].remove(some, notes))
            continue
        try:
            gone = _lend(uid, _Job(remove=tuple(some), notes=tuple(notes.get(entry.id) for entry in some))).gone
        except (OSError, ValueError) as error:
            log.warning("nothing was removed as user %d: %s: %s", uid, store.root, error)
            continue
        if len(gone) == len(some):
            results.update(zip((entry.id for entry in some), gone, strict=True))
    return results


def sweep(entry: EntryId) -> bool:
    """Finish what a dead daemon of ours began; see `Kind.sweep`."""
    uid = foreign(entry.store)
    if uid is None:
        return KINDS[entry.store.kind].sweep(entry)
    try:
        return _lend(uid, _Job(sweep=entry)).swept
    except (OSError, ValueError) as error:
        log.warning("a removal could not be finished as user %d: %s: %s", uid, entry.key, error)
        return False


def mend(remedies: Sequence[Remedy]) -> Mapping[EntryId, bool]:
    """Mend entries of any stores in their places; see `Kind.mend`."""
    results = {one.entry.id: False for one in remedies}
    for store in dict.fromkeys(one.entry.id.store for one in remedies):
        some = tuple(one for one in remedies if one.entry.id.store == store)
        uid = foreign(store)
        if uid is None:
            results.update(KINDS[store.kind].mend(some))
            continue
        gone = _asked(uid, store, _Job(mend=some)).gone
        if len(gone) == len(some):
            results.update(zip((one.entry.id for one in some), gone, strict=True))
    return results


def trash(store: Store) -> tuple[Trashed, ...]:
    """Tell what is in a store's trash; see `Kind.trash`."""
    uid = foreign(store)
    if uid is None:
        return KINDS[store.kind].trash(store)
    said = _asked(uid, store, _Job(trash=store)).trash
    return tuple(replace(one, store=store) for one in said)


def restore(store: Store, refs: tuple[TrashRef, ...]) -> tuple[Restored, ...]:
    """Bring entries back; see `Kind.restore`."""
    uid = foreign(store)
    if uid is None:
        return KINDS[store.kind].restore(store, refs)
    said = {one.ref: one for one in _asked(uid, store, _Job(restore=store, refs=refs)).restored}
    return tuple(said.get(ref, Restored(ref, None, "its owner's process did not answer")) for ref in refs)


def discard(store: Store, refs: tuple[TrashRef, ...]) -> frozenset[TrashRef]:
    """Remove from a store's trash for good; see `Kind.discard`."""
    uid = foreign(store)
    if uid is None:
        return KINDS[store.kind].discard(store, refs)
    return frozenset(_asked(uid, store, _Job(discard=store, refs=refs)).discarded) & frozenset(refs)


def hazards(found: FoundStore, now: datetime, writer_since: datetime | None) -> tuple[Hazard, ...]:
    """Tell what is wrong with a store as a whole; see `Kind.hazards`."""
    uid = foreign(found.store)
    if uid is None:
        return KINDS[found.store.kind].hazards(found, now, writer_since)
    return _asked(uid, found.store, _Job(hazards=found, now=now)).hazards


def clear(found: FoundStore, hazard: Hazard, now: datetime, writer_since: datetime | None) -> bool:
    """Put an end to a hazard; see `Kind.clear`."""
    uid = foreign(found.store)
    if uid is None:
        return KINDS[found.store.kind].clear(found.store, hazard, now, writer_since)
    return _asked(uid, found.store, _Job(hazards=found, clear=hazard, now=now)).gone == (True,)


def _asked(uid: int, store: Store, job: _Job) -> _Answer:
    """Let a child do something; what fails is nothing done."""
    try:
        return _lend(uid, job)
    except (OSError, ValueError) as error:
        log.warning("nothing was done as user %d: %s: %s", uid, store.root, error)
        return _Answer()


def foreign(store: Store) -> int | None:
    """Give the uid of a store's owner if it is not ours to work in: we are root, and it is not root's."""
    if os.geteuid() != 0:
        return None
    try:
        owner = store.root.stat().st_uid
    except OSError:
        return None
    return owner or None


def _about(found: FoundStore, uid: int, said: Scan) -> Scan:
    """Keep of what somebody says what is about his own store."""
    entries = [one for one in said.entries if _KEY.fullmatch(one.id.key)]
    return replace(
        said,
        found=found,
        owner=uid,
        entries=tuple(replace(one, id=EntryId(found.store, one.id.key)) for one in entries),
        unchanged=tuple(one for one in said.unchanged if _KEY.fullmatch(one.key)),
        ours=tuple(key for key in said.ours if _KEY.fullmatch(key)),
    )


# -- the child --------------------------------------------------------------------------------------------------------


def _lend(uid: int, job: _Job) -> _Answer:
    """Let a child do something as a user.  Raises OSError or ValueError if it does not answer as it should."""
    try:
        group = pwd.getpwuid(uid).pw_gid or _NOBODY
    except KeyError:
        group = _NOBODY
    with tempfile.TemporaryFile() as asked:
        asked.write(codec.dumps(codec.to_json(job)))
        asked.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-I", "-m", "xpucached.hands"],
            cwd="/",
            env={"PATH": os.defpath, "LANG": "C.UTF-8"},
            stdin=asked,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            user=uid,
            group=group,
            extra_groups=[],
            umask=0o077,
            start_new_session=True,
        )
        late = threading.Timer(_TIME, child.kill)
        late.start()
        try:
            said = child.stdout.read(_LARGEST + 1) if child.stdout else b""
        finally:
            late.cancel()
            child.kill()
            child.wait()
            if child.stdout:
                child.stdout.close()
    if len(said) > _LARGEST:
        message = "the answer is too long"
        raise ValueError(message)
    return codec.from_json(_Answer, cast("Json", json.loads(said)))


def _perform(job: _Job) -> _Answer:
    """Do what the daemon asks, as whom we are."""
    if job.scan is not None:
        known = {one.key: one.stamp for one in job.known if one.stamp is not None}
        writer_since = host.writer_since(host.processes(os.getuid()))
        now = job.now or datetime.now(UTC)
        return _Answer(scan=KINDS[job.scan.store.kind].scan(job.scan, now, known, writer_since))
    if job.remove:
        notes = {entry.id: note for entry, note in zip(job.remove, job.notes, strict=True) if note is not None}
        results = KINDS[job.remove[0].id.store.kind].remove(job.remove, notes)
        return _Answer(gone=tuple(results.get(entry.id, False) for entry in job.remove))
    if job.sweep is not None:
        return _Answer(swept=KINDS[job.sweep.store.kind].sweep(job.sweep))
    return _care(job)


def _care(job: _Job) -> _Answer:
    """Do what has to do with the trash, and with what is wrong in a store."""
    if job.mend:
        done = KINDS[job.mend[0].entry.id.store.kind].mend(job.mend)
        return _Answer(gone=tuple(done.get(one.entry.id, False) for one in job.mend))
    if job.trash is not None:
        return _Answer(trash=KINDS[job.trash.kind].trash(job.trash))
    if job.restore is not None:
        return _Answer(restored=KINDS[job.restore.kind].restore(job.restore, job.refs))
    if job.discard is not None:
        return _Answer(discarded=tuple(KINDS[job.discard.kind].discard(job.discard, job.refs)))
    if job.hazards is not None:
        kind, now = KINDS[job.hazards.store.kind], job.now or datetime.now(UTC)
        writer_since = host.writer_since(host.processes(os.getuid()))
        if job.clear is not None:
            return _Answer(gone=(kind.clear(job.hazards.store, job.clear, now, writer_since),))
        return _Answer(hazards=kind.hazards(job.hazards, now, writer_since))
    return _Answer()


def main() -> int:
    """Read a job, do it, say what came of it."""
    if 0 in (os.getuid(), os.geteuid(), os.getgid(), os.getegid()) or 0 in os.getgroups():
        return 77
    job = codec.from_json(_Job, cast("Json", json.load(sys.stdin.buffer)))
    sys.stdout.buffer.write(codec.dumps(codec.to_json(_perform(job))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
