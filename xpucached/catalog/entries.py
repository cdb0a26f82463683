"""Record: questions about entries, and entries that are forgotten; and the removals that are under way."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from xpucached.catalog import environments
from xpucached.catalog.tables import ATTRIBUTIONS, ENTRIES, ENVIRONMENTS, HOST, INTENTS, RUNS, STORES, microseconds
from xpucached.domain import (
    Architecture,
    Entry,
    EntryId,
    EntryKey,
    EntryPage,
    EntryState,
    Flaw,
    ImageFormat,
    IndexedEntry,
    Kernel,
    KindName,
    ModelName,
    Origin,
    Store,
)
from xpucached.errors import NotFound, RequestError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from datetime import datetime

    from xpucached.domain import EntryQuery, EntryRef, Environment, Fingerprint, Use

# How many of the entries that a short reference could mean are named to the one who asked.
_LISTED: Final = 10

# Row numbers in one statement: SQLite takes no more than some thousands of values.
_BATCH: Final = 1000

_BIGGEST: Final = 2**63 - 1

# Seconds: a hundred thousand years, and no more than fits into a row's microseconds.
_LONGEST: Final = 3.0e12

# SQLite refuses patterns of 50,000 bytes; no name that anyone looks for is near that.
_LONG_TEXT: Final = 4096


class Summary(NamedTuple):
    """The catalog in four figures."""

    entries: int
    flawed: int
    allocated: int
    stale: int  #: entries for environments that this host no longer offers


_Row = sa.Row[tuple[object, ...]]

_E: Final = ENTRIES.c

_CREATED_US: Final = sa.type_coerce(_E.created, sa.BigInteger)
_LAST_USED: Final = sa.func.max(
    _CREATED_US,
    sa.func.coalesce(sa.type_coerce(_E.accessed, sa.BigInteger), _CREATED_US),
    sa.func.coalesce(sa.type_coerce(_E.run_used, sa.BigInteger), _CREATED_US),
    sa.func.coalesce(sa.type_coerce(_E.witnessed, sa.BigInteger), _CREATED_US),
)

_MODELS: Final = (
    sa.select(sa.func.json_group_array(RUNS.c.model.distinct()))
    .select_from(ATTRIBUTIONS.join(RUNS, RUNS.c.id == ATTRIBUTIONS.c.run_id))
    .where(ATTRIBUTIONS.c.entry_id == _E.id)
    .scalar_subquery()
)

_JOINED: Final = ENTRIES.join(STORES, STORES.c.id == _E.store_id).outerjoin(
    ENVIRONMENTS, ENVIRONMENTS.c.id == _E.environment_id
)

_SELECT: Final = sa.select(ENTRIES, _MODELS.label("models")).select_from(_JOINED)


def page(connection: sa.Connection, query: EntryQuery, *, present: Collection[Fingerprint], now: datetime) -> EntryPage:
    """Give the entries that match, in the order in which they were first seen, and the sums over all that match."""
    if query.limit is not None and query.limit < 0:
        raise RequestError(f"limit is below zero: {query.limit}")
    conditions = list(_conditions(query, present, now))
    total, size = connection.execute(
        sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(_E.allocated), 0))
        .select_from(_JOINED)
        .where(*conditions)
    ).one()
    statement = _SELECT.where(*conditions).order_by(_E.id)
    if query.after is not None:
        statement = statement.where(_E.id > _cursor(query.after))
    if query.limit is not None:
        # One more than asked for tells whether there are any behind it.
        statement = statement.limit(min(query.limit, _BIGGEST - 1) + 1)
    rows = connection.execute(statement).all()
    shown = rows if query.limit is None else rows[: query.limit]
    following = str(shown[-1].id) if shown and len(shown) < len(rows) else None
    return EntryPage(_indexed(connection, shown), total, size, following)


def every(connection: sa.Connection) -> tuple[IndexedEntry, ...]:
    """Give every entry of every store."""
    return _indexed(connection, connection.execute(_SELECT.order_by(_E.id)))


def some(connection: sa.Connection, ids: Iterable[EntryId]) -> tuple[IndexedEntry, ...]:
    """Give these entries; those that are not known are left out."""
    numbers = sorted(rows_of(connection, ids).values())
    rows = (
        row
        for start in range(0, len(numbers), _BATCH)
        for row in connection.execute(_SELECT.where(_E.id.in_(numbers[start : start + _BATCH])).order_by(_E.id))
    )
    return _indexed(connection, rows)


def one(connection: sa.Connection, ref: EntryRef | str) -> IndexedEntry:
    """Give the entry whose reference begins so."""
    if not ref:
        raise RequestError("an entry's reference is missing")
    rows = connection.execute(_SELECT.where(*_begins(ref)).order_by(_E.ref, _E.id).limit(_LISTED + 1)).all()
    if not rows:
        raise NotFound(f"no such entry: {ref}", hint="`ls` shows the references of all entries")
    if len(rows) > 1:
        listed = ", ".join(row.ref for row in rows[:_LISTED]) + (" …" if len(rows) > _LISTED else "")
        raise RequestError(f"{ref} is the beginning of several references: {listed}", hint="give more digits")
    return _indexed(connection, rows)[0]


def forget(connection: sa.Connection, ids: Iterable[EntryId]) -> None:
    """Forget entries; those that are not known are forgotten already."""
    numbers = rows_of(connection, ids).values()
    if numbers:
        connection.execute(sa.delete(ENTRIES).where(_E.id == sa.bindparam("row")), [{"row": row} for row in numbers])


def rows_of(connection: sa.Connection, ids: Iterable[EntryId]) -> dict[EntryId, int]:
    """Find the rows of entries; those that are not known are left out."""
    keys: defaultdict[Store, list[EntryKey]] = defaultdict(list)
    for wanted in ids:
        keys[wanted.store].append(wanted.key)
    found: dict[EntryId, int] = {}
    for store, those in keys.items():
        mine = sa.select(STORES.c.id).where(STORES.c.kind == store.kind, STORES.c.root == str(store.root))
        for start in range(0, len(those), _BATCH):
            rows = connection.execute(
                sa.select(_E.key, _E.id).where(
                    _E.store_id == mine.scalar_subquery(), _E.key.in_(those[start : start + _BATCH])
                )
            )
            found |= {EntryId(store, EntryKey(row.key)): row.id for row in rows}
    return found


def model_sizes(connection: sa.Connection) -> dict[ModelName, tuple[int, int]]:
    """Count, for each model that has any, its entries and their allocated bytes."""
    a = ATTRIBUTIONS.c
    pairs = sa.select(RUNS.c.model, a.entry_id).join(RUNS, RUNS.c.id == a.run_id).distinct().subquery()
    rows = connection.execute(
        sa.select(pairs.c.model, sa.func.count(), sa.func.sum(_E.allocated))
        .join(ENTRIES, _E.id == pairs.c.entry_id)
        .group_by(pairs.c.model)
    )
    return {ModelName(model): (count, allocated) for model, count, allocated in rows}


def summary(connection: sa.Connection) -> Summary:
    """Count entries and bytes.  Nothing is stale before the first survey of the host."""
    surveyed = connection.execute(sa.select(HOST.c.id)).first() is not None
    flawed = sa.func.coalesce(sa.func.sum(sa.case((_E.state == EntryState.FLAWED.value, 1), else_=0)), 0)
    count, broken, allocated = connection.execute(
        sa.select(sa.func.count(), flawed, sa.func.coalesce(sa.func.sum(_E.allocated), 0)).select_from(ENTRIES)
    ).one()
    gone = sa.select(ENVIRONMENTS.c.id).where(ENVIRONMENTS.c.present.is_(False))
    stale = sa.select(sa.func.count()).select_from(ENTRIES).where(_E.environment_id.in_(gone))
    return Summary(count, broken, allocated, connection.execute(stale).scalar_one() if surveyed else 0)


# -- removals under way -------------------------------------------------------------------------------------------


def intend(connection: sa.Connection, ids: Iterable[EntryId], now: datetime) -> None:
    """Note that these are about to be removed."""
    rows = [{"kind": one.store.kind, "root": str(one.store.root), "key": one.key, "at": now} for one in ids]
    if rows:
        connection.execute(insert(INTENTS).on_conflict_do_nothing(), rows)


def intents(connection: sa.Connection) -> tuple[EntryId, ...]:
    """Give what was about to be removed."""
    rows = connection.execute(sa.select(INTENTS).order_by(INTENTS.c.kind, INTENTS.c.root, INTENTS.c.key))
    return tuple(EntryId(Store(KindName(row.kind), Path(row.root)), EntryKey(row.key)) for row in rows)


def fulfil(connection: sa.Connection, ids: Iterable[EntryId]) -> None:
    """Note that these removals have ended, whether the entries are gone or were busy."""
    rows = [{"a_kind": one.store.kind, "a_root": str(one.store.root), "a_key": one.key} for one in ids]
    if rows:
        c = INTENTS.c
        is_it = (c.kind == sa.bindparam("a_kind"), c.root == sa.bindparam("a_root"), c.key == sa.bindparam("a_key"))
        connection.execute(sa.delete(INTENTS).where(*is_it), rows)


# -- conditions and rows ------------------------------------------------------------------------------------------


def _cursor(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text[:20]) > _BIGGEST:
        raise RequestError(f"not a cursor: {text[:40]!r}", hint="give the `next` of an earlier answer")
    return int(text)


def _begins(ref: str) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    # A range, which the index answers; no hex digit sorts behind the g.
    return (_E.ref >= ref.lower(), _E.ref < ref.lower() + "g")


def _conditions(query: EntryQuery, present: Collection[Fingerprint], now: datetime) -> Iterator[sa.ColumnElement[bool]]:
    yield from _begins(query.ref or "")
    for column, exact in (
        (STORES.c.kind, query.kind),
        (STORES.c.root, None if query.store is None else str(query.store)),
        (ENVIRONMENTS.c.architecture, query.architecture),
        (_E.state, query.state and query.state.value),
        (_E.flaw, query.flaw and query.flaw.value),
    ):
        if exact is not None:
            yield column == exact
    for column, part in ((ENVIRONMENTS.c.device, query.device), (_E.kernel_names, query.kernel)):
        if part is not None:
            yield _part(column, part)
    if query.driver is not None:
        yield _driver(query.driver, present)
    if query.model is not None:
        uses = sa.select(ATTRIBUTIONS.c.entry_id).join(RUNS, RUNS.c.id == ATTRIBUTIONS.c.run_id)
        yield _E.id.in_(uses.where(RUNS.c.model == query.model))
    if query.min_size is not None:
        yield _E.size >= _bounded(query.min_size)
    if query.max_size is not None:
        yield _E.size <= _bounded(query.max_size)
    if query.unused is not None:
        # Reckoned in numbers: a very long time ago is before the first date that there is.
        yield microseconds(now) - _bounded(int(min(query.unused, _LONGEST) * 1_000_000)) >= _LAST_USED


def _bounded(number: int) -> int:
    return max(-_BIGGEST, min(number, _BIGGEST))


def _part(column: sa.ColumnElement[str], text: str) -> sa.ColumnElement[bool]:
    if len(text) > _LONG_TEXT:
        raise RequestError(f"more than {_LONG_TEXT} characters to look for")
    return column.contains(text, autoescape=True)


def _driver(wanted: str, present: Collection[Fingerprint]) -> sa.ColumnElement[bool]:
    if wanted == "current":
        return ENVIRONMENTS.c.fingerprint.in_(present)
    if wanted.endswith("*"):
        return ENVIRONMENTS.c.driver.startswith(wanted.removesuffix("*"), autoescape=True)
    return ENVIRONMENTS.c.driver == wanted


def _indexed(connection: sa.Connection, rows: Iterable[_Row]) -> tuple[IndexedEntry, ...]:
    """Read rows of `_SELECT`.  The entries share their few stores and environments, instead of one copy each."""
    stores = {
        row.id: Store(KindName(row.kind), Path(row.root))
        for row in connection.execute(sa.select(STORES.c.id, STORES.c.kind, STORES.c.root))
    }
    known: dict[int | None, tuple[Environment | None, Architecture | None]] = {None: (None, None)}
    for row in connection.execute(sa.select(ENVIRONMENTS)):
        known[row.id] = (environments.value(row), Architecture(row.architecture) if row.architecture else None)
    return tuple(_value(row, stores[row.store_id], *known[row.environment_id]) for row in rows)


def _value(row: _Row, store: Store, environment: Environment | None, architecture: Architecture | None) -> IndexedEntry:
    last_used, how = row.created, "created"
    if row.accessed is not None and row.accessed > last_used:
        last_used, how = row.accessed, "access-time"
    if row.witnessed is not None and row.witnessed > last_used:
        last_used, how = row.witnessed, "observed-opens"
    if row.run_used is not None and row.run_used >= last_used:
        last_used, how = row.run_used, "run"
    if row.restored is not None and row.restored > last_used:
        last_used, how = row.restored, "restored"
    entry = Entry(
        EntryId(store, EntryKey(row.key)),
        row.stamp,
        row.size,
        row.allocated,
        row.created,
        row.accessed,
        environment,
        row.options,
        row.constants,
        ImageFormat(row.image) if row.image else None,
        row.image_size,
        ImageFormat(row.binary) if row.binary else None,
        row.digest,
        _kernels(row.kernels),
        EntryState(row.state),
        Flaw(row.flaw) if row.flaw else None,
        row.detail,
    )
    origin = Origin(row.origin) if row.origin else None
    models = _models(row.models)
    return IndexedEntry(
        entry,
        origin,
        architecture,
        models,
        row.first_seen,
        last_used,
        how,
        cost=row.cost,
        restored=row.restored,
        hits=row.hits or 0,
        program=row.program or "",
    )


def _models(text: str) -> tuple[ModelName, ...]:
    return () if text == "[]" else tuple(sorted(ModelName(name) for name in json.loads(text)))


def _kernels(text: str) -> tuple[Kernel, ...]:
    if text == "[]":
        return ()
    return tuple(
        Kernel(name, name if display is None else display, library) for name, display, library in json.loads(text)
    )


def note_restored(connection: sa.Connection, ids: Iterable[EntryId], now: datetime) -> None:
    """Note that somebody wants these back."""
    rows = rows_of(connection, ids)
    if rows:
        statement = sa.update(ENTRIES).where(_E.id == sa.bindparam("row")).values(restored=now)
        connection.execute(statement, [{"row": row} for row in rows.values()])


def note_uses(connection: sa.Connection, uses: Iterable[Use]) -> None:
    """Add that programs were seen to load these; those that are not known are left out."""
    connection.exec_driver_sql(
        _NOTE_USE, [(microseconds(one.last), one.hits, one.program, str(one.store), one.key) for one in uses]
    )


_NOTE_USE: Final = (
    "UPDATE entries SET witnessed = max(coalesce(witnessed, 0), ?), hits = coalesce(hits, 0) + ?, program = ?"
    " WHERE store_id IN (SELECT id FROM stores WHERE root = ?) AND key = ?"
)


def note_costs(connection: sa.Connection, ids: Iterable[EntryId], seconds: float) -> None:
    """Note what it took to make these together; each has its share by size.  The newest measurement counts."""
    numbers = sorted(rows_of(connection, ids).values())
    for start in range(0, len(numbers), _BATCH):
        some = numbers[start : start + _BATCH]
        sizes = connection.execute(sa.select(_E.id, _E.image_size, _E.size).where(_E.id.in_(some))).all()
        weights = {row.id: max(1, row.image_size or row.size) for row in sizes}
        share = seconds * len(some) / len(numbers) / max(1, sum(weights.values()))
        statement = sa.update(ENTRIES).where(_E.id == sa.bindparam("row")).values(cost=sa.bindparam("seconds"))
        if weights:
            connection.execute(statement, [{"row": row, "seconds": share * one} for row, one in weights.items()])
