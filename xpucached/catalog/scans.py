"""Record: what a look at a store found.  The catalog is made equal to it in the caller's one transaction."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy.dialects.sqlite import insert

from xpucached.catalog import builds, departed, predicted, recipes, targets
from xpucached.catalog.defects import defect_codes, note_defects
from xpucached.catalog.moments import microseconds
from xpucached.catalog.stores import is_store
from xpucached.catalog.tables import ENTRIES, FIGURES, STORES
from xpucached.catalog.totals import whole
from xpucached.domain.defects import CHANGED
from xpucached.domain.names import EntryKey, KindName
from xpucached.domain.stores import UNSETTLED, Delta, EntryId, EntryState, KnownEntry, Store, StoreState
from xpucached.domain.targets import Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from xpucached.catalog import Catalog
    from xpucached.domain.names import Architecture
    from xpucached.domain.stores import Entry, Scan, UnchangedEntry
    from xpucached.domain.targets import Target

_T = TypeVar("_T")

# Rows a statement: more gain nothing, and the whole of a large store need not stand in memory twice.
_BATCH: Final = 1000
_NEVER: Final = datetime.max.replace(tzinfo=UTC)

# What is known of so many entries is read at a time.
_PAGE: Final = 2000

# Made once: `json.dumps` would make one for every entry.
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))


class EarlierEntry(Struct, frozen=True):
    """What the catalog held of an entry before a look."""

    stamp: str
    created: datetime
    size: int
    state: EntryState
    defect: str | None  #: its code
    trusted: str | None  #: the digest that it had when it was first seen whole, a space, and `Entry.source` then


def judge(entry: Entry, before: EarlierEntry | None) -> tuple[Entry, str | None]:
    """Compare an entry with what it was: give it, defective if its program changed in place, and what to trust.

    What is trusted is the digest of the program when it was first seen whole, and which source stood beside it.  A
    runtime never writes over a program, and writes the source with each: while the source is the same file, unwritten,
    another program is damage or somebody's hand, whatever its size and its times.  Pure.
    """
    whole = entry.digest if entry.state is EntryState.OK or (entry.defect and entry.defect.whole) else None
    fresh = f"{whole} {entry.source or ''}".rstrip() if whole else None
    if before is None or before.trusted is None:
        return entry, fresh
    digest, _, source = before.trusted.partition(" ")
    if source and entry.source:
        anew = source != entry.source
    else:
        # An earlier version did not note the source; where there is none now, nobody has written the entry anew.
        unwhole = before.state not in (EntryState.OK, EntryState.UNREAD) and before.defect != CHANGED.code
        anew = not source and (unwhole or before.created != entry.created or before.size != entry.size)
    if anew:
        return entry, fresh
    if whole is None or whole == digest:
        return entry, fresh or before.trusted
    detail = f"its digest was {digest} when it was first seen whole, and is {whole} now"
    return replace(entry, state=EntryState.DEFECTIVE, defect=CHANGED, detail=detail), before.trusted


def _promote_copies(judged: list[tuple[Entry, str | None]]) -> list[tuple[Entry, str | None]]:
    """If a program changed in place, its first intact copy is no longer a duplicate: see `Defect.uncovered`."""
    changed = {one.id.key for one, _ in judged if one.defect == CHANGED}
    result: list[tuple[Entry, str | None]] = []
    for entry, trusted in judged:
        instead = entry.defect.uncovered if entry.defect is not None and entry.before in changed else None
        if instead is not None and entry.before is not None:
            changed.discard(entry.before)
            result.append((replace(entry, defect=instead), trusted))
        else:
            result.append((entry, trusted))
    return result


def record_scan(connection: sa.Connection, scan: Scan, architecture: Callable[[Target], Architecture]) -> Delta:
    """Make the catalog equal to what the scan, or a part of one, found.

    What vanished is forgotten; entries that the scan calls unchanged keep all but their access time.  A missing store
    has no entries; one that could not be read keeps those it had.  ``architecture`` must be pure.
    """
    store = _record_store(connection, scan)
    told = {entry.defect.code: entry.defect for entry in scan.entries if entry.defect is not None}
    if told:
        note_defects(connection, [one for defect in told.values() for one in (defect, defect.uncovered or defect)])
    if scan.state is StoreState.MISSING:
        # It may be back in a moment: unmounted, locked, or moved away for an upgrade.
        departed.leave(connection, store)
        gone = connection.execute(sa.delete(ENTRIES).where(ENTRIES.c.store_id == store)).rowcount
        return _delta(connection, store, vanished=gone)
    if scan.state is not StoreState.OK:
        return _delta(connection, store)
    if scan.shut_in:
        connection.exec_driver_sql(_LEAVE_UNREAD, [(store, key) for key in scan.shut_in])
    gone = _vanish(connection, store, _absent(connection, store, scan) if scan.vanished is None else scan.vanished)
    targets_seen = {entry.environment for entry in scan.entries if entry.environment is not None}
    admitted = targets.admit(connection, targets_seen)
    rows = targets.ensure(connection, {one: architecture(one) for one in admitted})
    numbers = {one: rows[one.fingerprint] for one in admitted}
    added = changed = 0
    remembered = bool(scan.entries) and departed.any_of(connection, store)
    for some in _by_leaves(scan.entries):
        before = _known(connection, store, [entry.id.key for entry in some])
        back = _back(connection, store, some, before) if remembered else {}
        # Who had the number of what moved is gone, and its models and costs must not be taken for those of this one.
        _vanish(connection, store, back.keys() & before.keys())
        judged = _promote_copies([judge(entry, _before(entry.id.key, before, back)) for entry in some])
        facts = [_facts(entry, trusted, store, numbers, scan.at) for entry, trusted in judged]
        connection.exec_driver_sql(_UPSERT, list(map(_ROW, facts)))
        departed.come_back(connection, store, back.items())
        builds.move(connection, store, {key: one.trusted for key, one in back.items()})
        added += len({entry.id.key for entry in some} - before.keys())
        changed += sum(_differs(entry, before[entry.id.key]) for entry, _ in judged if entry.id.key in before)
    for seen in _batches(scan.unchanged):
        _touch(connection, store, seen)
    if scan.entries:
        # Of a part of a large store only its own: all of it for each part would take longer with every part.
        goes_on = scan.vanished is not None and scan.told >= _BATCH
        keys = [entry.id.key for entry in scan.entries] if goes_on else None
        builds.claim(connection, store, keys)
        recipes.note_targets(connection, store, keys)
        predicted.claim(connection, store, keys)
    return _delta(connection, store, added=added, changed=changed, vanished=gone)


def _absent(connection: sa.Connection, store: int, scan: Scan) -> list[EntryKey]:
    """Return the entries of which a look at everything says nothing."""
    seen = {entry.id.key for entry in scan.entries} | {one.key for one in scan.unchanged} | set(scan.shut_in)
    rows = connection.exec_driver_sql("SELECT key FROM entries WHERE store_id = ?", (store,))
    return [EntryKey(key) for (key,) in rows if key not in seen]


def _vanish(connection: sa.Connection, store: int, keys: Iterable[EntryKey]) -> int:
    rows = [(store, key) for key in keys]
    if not rows:
        return 0
    departed.leave(connection, store, (key for _, key in rows))
    return connection.exec_driver_sql("DELETE FROM entries WHERE store_id = ? AND key = ?", rows).rowcount


def _batches(values: Iterable[_T]) -> Iterator[list[_T]]:
    rest = iter(values)
    while some := list(islice(rest, _BATCH)):
        yield some


def _by_leaves(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Divide entries, which come leaf by leaf; the slots of a leaf stay together, because they are judged together."""
    batch: list[Entry] = []
    for one in entries:
        if len(batch) >= _BATCH and _leaf(one.id.key) != _leaf(batch[-1].id.key):
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch


def _leaf(key: EntryKey) -> str:
    """Return the path of a leaf, with a slash at its end."""
    return key[: key.rfind("/") + 1]


def _back(
    connection: sa.Connection, store: int, some: Iterable[Entry], before: Mapping[EntryKey, EarlierEntry]
) -> dict[EntryKey, departed.Departed]:
    """Find those that were in the same leaf before, under this number or another, and went."""
    fresh = {
        (_leaf(one.id.key), one.source): one.id.key
        for one in some
        if one.source is not None
        and ((known := before.get(one.id.key)) is None or (known.trusted or "").partition(" ")[2] != one.source)
    }
    found = departed.find(connection, store, {leaf for leaf, _ in fresh}) if fresh else {}
    return {fresh[place]: one for place, one in found.items() if place in fresh}


def _before(
    key: EntryKey, before: Mapping[EntryKey, EarlierEntry], back: Mapping[EntryKey, departed.Departed]
) -> EarlierEntry | None:
    known = before.get(key)
    if key not in back:
        return known
    if known is None:
        known = EarlierEntry("", datetime.fromtimestamp(0, UTC), 0, EntryState.OK, None, None)
    return replace(known, trusted=back[key].trusted)


def _record_store(connection: sa.Connection, scan: Scan) -> int:
    store = scan.found.store
    facts = {
        "origin": scan.found.origin.value,
        "via": scan.found.via,
        "state": scan.state.value,
        "owner": scan.owner,
        "scanned": scan.at,
        "notes": list(scan.notes),
    }
    if scan.foreign is not None:
        facts["foreign_files"] = scan.foreign
    if scan.lookups is not None:
        facts |= {"found": scan.lookups.hits, "missed": scan.lookups.misses}
    if scan.thorough and scan.state is StoreState.OK:
        facts["thorough"] = scan.at
    connection.execute(
        insert(STORES)
        .values(kind=store.kind, root=str(store.root), **{"foreign_files": 0, **facts})
        .on_conflict_do_update(index_elements=[STORES.c.kind, STORES.c.root], set_=facts)
    )
    number: int = connection.execute(sa.select(STORES.c.id).where(*is_store(store))).scalar_one()
    return number


def _known(connection: sa.Connection, store: int, keys: Collection[EntryKey]) -> dict[EntryKey, EarlierEntry]:
    c = ENTRIES.c
    known: dict[EntryKey, EarlierEntry] = {}
    for some in _batches(keys):
        rows = connection.execute(
            sa.select(c.key, c.stamp, c.created, c.size, c.state, c.defect, c.trusted).where(
                c.store_id == store, c.key.in_(some)
            )
        )
        for row in rows:
            state = EntryState(row.state)
            known[EntryKey(row.key)] = EarlierEntry(row.stamp, row.created, row.size, state, row.defect, row.trusted)
    return known


def _differs(entry: Entry, before: EarlierEntry) -> bool:
    return (entry.stamp, entry.state, entry.defect and entry.defect.code) != (before.stamp, before.state, before.defect)


def _facts(
    entry: Entry, trusted: str | None, store: int, numbers: Mapping[Target, int], now: datetime
) -> dict[str, str | int | None]:
    """Return a row by column.  Times are numbers already: these go straight to the driver, which is twice as fast."""
    origin = None
    number = numbers.get(entry.environment) if entry.environment is not None else None
    if number is not None:
        origin = Origin.OBSERVED if entry.observed else Origin.DECLARED
    names = [name for kernel in entry.kernels for name in (kernel.name, kernel.display)]
    return {
        "store_id": store,
        "key": entry.id.key,
        "ref": entry.id.ref,
        "stamp": entry.stamp,
        "state": entry.state.value,
        "defect": entry.defect.code if entry.defect else None,
        "size": entry.size,
        "allocated": entry.allocated,
        "created": microseconds(entry.created),
        "accessed": None if entry.accessed is None else microseconds(entry.accessed),
        "first_seen": microseconds(now),
        "target_id": number,
        "origin": origin.value if origin else None,
        "options": entry.options,
        "constants": entry.constants,
        "image": entry.image.value if entry.image else None,
        "image_size": entry.image_size,
        "binary": entry.binary.value if entry.binary else None,
        "digest": entry.digest,
        "trusted": trusted,
        "detail": entry.detail,
        "kernels": _kernels(entry),
        "kernel_names": "\n".join(dict.fromkeys(names)),
        "place": entry.place,
        "input": entry.input,
        "facts": _ENCODER.encode(entry.facts) if entry.facts else None,
    }


def _kernels(entry: Entry) -> str:
    if not entry.kernels:
        return "[]"
    rows = [(one.name, None if one.display == one.name else one.display, one.library) for one in entry.kernels]
    return _ENCODER.encode(rows)


def _touch(connection: sa.Connection, store: int, seen: list[UnchangedEntry]) -> None:
    """Give unchanged entries the access times and places that the look saw; those that have them stay unwritten."""
    rows = [(None if one.accessed is None else microseconds(one.accessed), one.place, store, one.key) for one in seen]
    connection.exec_driver_sql(
        "UPDATE entries SET accessed = ?1, place = ?2"
        " WHERE store_id = ?3 AND key = ?4 AND (accessed IS NOT ?1 OR place IS NOT ?2)",
        rows,
    )


def _delta(connection: sa.Connection, store: int, *, added: int = 0, changed: int = 0, vanished: int = 0) -> Delta:
    c = FIGURES.c
    sums = sa.select(sa.func.coalesce(sa.func.sum(c.entries), 0), sa.func.total(c.allocated)).where(c.store_id == store)
    count, size = connection.execute(sums).one()
    return Delta(added=added, changed=changed, vanished=vanished, entries=count, size=whole(size))


# `run_used` and `cost` belong to the runs, `restored` to the trash, the last three to who watches; the rest of what
# only the catalog knows outlives a change of the files.
_OTHERS: Final = {"id", "run_used", "cost", "restored", "witnessed", "hits", "program", "last_used"}
_COLUMNS: Final = tuple(column.name for column in ENTRIES.c if column.name not in _OTHERS)
_ROW: Final = itemgetter(*_COLUMNS)
_FRESH: Final = tuple(name for name in _COLUMNS if name not in {"store_id", "key", "ref", "first_seen"})
_UPSERT: Final = (
    f"INSERT INTO entries ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608 - our names
    f" ON CONFLICT (store_id, key) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _FRESH)}"
)


# The next look reads them again, whatever it finds; what they are trusted by stays.
_LEAVE_UNREAD: Final = (
    f"UPDATE entries SET state = '{EntryState.UNREAD}', defect = NULL, stamp = '', place = NULL,"  # noqa: S608 - ours
    " detail = 'its directory may not be read now'"
    f" WHERE store_id = ? AND key = ? AND state <> '{EntryState.UNREAD}'"
)


def known_entries(catalog: Catalog, store: Store, since: datetime = _NEVER) -> Iterator[KnownEntry]:
    """Yield what the next look at this store need not read again, in the order of keys; it must what came ``since``.

    Read bit by bit, as it is asked for: what is recorded meanwhile of later keys is seen.
    """
    after = EntryKey("")
    while True:
        some = catalog.read(_known_page, store, after, since)
        yield from some
        if len(some) < _PAGE:
            return
        after = some[-1].key


def _known_page(connection: sa.Connection, store: Store, after: EntryKey, since: datetime) -> list[KnownEntry]:
    c = ENTRIES.c
    passing = sa.or_(
        sa.func.max(c.first_seen, c.created) >= since,
        c.state.in_(UNSETTLED),
        sa.and_(
            c.defect.is_not(None),
            c.defect.in_(defect_codes(connection, lambda one: one.passing)),
        ),
    )
    rows = connection.execute(
        sa.select(c.key, sa.case((passing, None), else_=c.stamp), sa.case((passing, None), else_=c.place))
        .join(STORES, STORES.c.id == c.store_id)
        .where(*is_store(store), c.key > after)
        .order_by(c.key)
        .limit(_PAGE)
    )
    # All at once: one by one takes twice as long.
    return [KnownEntry(EntryKey(key), stamp, place) for key, stamp, place in rows.all()]


def trusted_digests(connection: sa.Connection) -> dict[EntryId, str]:
    """Return the digests that entries whose program changed had when they were first seen whole."""
    c = ENTRIES.c
    rows = connection.execute(
        sa.select(STORES.c.kind, STORES.c.root, c.key, c.trusted)
        .join(STORES, STORES.c.id == c.store_id)
        .where(c.defect == CHANGED.code, c.trusted.is_not(None))
    )
    return {
        EntryId(Store(KindName(row.kind), Path(row.root)), EntryKey(row.key)): row.trusted.partition(" ")[0]
        for row in rows
    }


def trust_digests(connection: sa.Connection, digests: Mapping[EntryId, str]) -> None:
    """Take these digests for those of good programs from now on; the next look reads their entries again."""
    rows = [(digest, one.store.kind, str(one.store.root), one.key) for one, digest in digests.items()]
    if rows:
        connection.exec_driver_sql(_TRUST, rows)


# What stands behind the blank is the source that the program was seen with; it stays.
_TRUST: Final = (
    "UPDATE entries SET trusted = ? || substr(trusted, instr(trusted || ' ', ' ')), stamp = '', place = NULL"
    " WHERE store_id = (SELECT id FROM stores WHERE kind = ? AND root = ?) AND key = ? AND trusted IS NOT NULL"
)
