"""Record: questions about entries, and entries that are forgotten; and the removals that are under way."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from xpucached.catalog import departed, targets
from xpucached.catalog.tables import (
    ATTRIBUTIONS,
    ENTRIES,
    ENVIRONMENTS,
    FIGURES,
    HOST,
    INHERITED,
    INTENTS,
    RUNS,
    STORES,
    microseconds,
)
from xpucached.domain.defects import Defect
from xpucached.domain.names import Architecture, EntryKey, KindName, ModelName
from xpucached.domain.plans import IndexedEntry
from xpucached.domain.queries import EntryPage
from xpucached.domain.stores import Entry, EntryId, EntryState, ImageFormat, Kernel, Store
from xpucached.domain.targets import Origin
from xpucached.errors import NotFound, RequestError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from xpucached.domain.activity import Load
    from xpucached.domain.names import EntryRef, Fingerprint
    from xpucached.domain.queries import EntryQuery
    from xpucached.domain.targets import Target

# How many of the entries that a short reference could mean are named to the one who asked.
_LISTED: Final = 10

# Row numbers in one statement: SQLite takes no more than some thousands of values.
_BATCH: Final = 1000

_BIGGEST: Final = 2**63 - 1

# No name in a store begins with it.
_LAST_CHARACTER: Final = "\U0010ffff"

# Seconds: a hundred thousand years, and no more than fits into a row's microseconds.
_LONGEST: Final = 3.0e12

# SQLite refuses patterns of 50,000 bytes; no name that anyone looks for is near that.
_LONG_TEXT: Final = 4096


class Summary(NamedTuple):
    """The catalog in four figures."""

    entries: int
    defective: int
    allocated: int
    stale: int  #: entries for environments that this host does not offer now


_Row = sa.Row[tuple[object, ...]]

# A row of `_SELECT`.
_Values = tuple[
    int,
    int,
    int | None,
    int,
    int | None,
    int | None,
    int | None,
    int | None,
    int,
    EntryKey,
    str,
    int,
    int,
    str,
    str,
    str | None,
    int,
    str | None,
    str | None,
    str,
    str,
    str | None,
    str,
    str | None,
    float | None,
    int | None,
    str | None,
    str,
    str,
    str,
]

_E: Final = ENTRIES.c

_MODELS: Final = (
    sa.select(sa.func.json_group_array(RUNS.c.model.distinct()))
    .select_from(ATTRIBUTIONS.join(RUNS, RUNS.c.id == ATTRIBUTIONS.c.run_id))
    .where(ATTRIBUTIONS.c.entry_id == _E.id)
    .scalar_subquery()
)

_INHERITED: Final = (
    sa.select(sa.func.json_group_array(INHERITED.c.model)).where(INHERITED.c.entry_id == _E.id).scalar_subquery()
)

_JOINED: Final = ENTRIES.join(STORES, STORES.c.id == _E.store_id).outerjoin(
    ENVIRONMENTS, ENVIRONMENTS.c.id == _E.environment_id
)

# The rows of the sums, each with what its entries have in common.
_GROUPS: Final = (
    sa.select(FIGURES)
    .select_from(
        FIGURES.join(STORES, STORES.c.id == FIGURES.c.store_id).outerjoin(
            ENVIRONMENTS, ENVIRONMENTS.c.id == FIGURES.c.environment_id
        )
    )
    .where(FIGURES.c.entries > 0)
)

# From so many groups on, walking over the rows meets the first page as soon.
_FEW: Final = 32

_USED: Final = sa.type_coerce(_E.last_used, sa.BigInteger)

_TIMES: Final = tuple(sa.type_coerce(_E[name], sa.BigInteger) for name in ("created", "accessed", "run_used"))
_LATER: Final = tuple(sa.type_coerce(_E[name], sa.BigInteger) for name in ("restored", "witnessed", "first_seen"))


# In the order in which `_value` takes them apart; times are numbers, so that each costs one conversion and no more.
def _selected(kernels: sa.ColumnElement[str]) -> sa.Select[tuple[object, ...]]:
    return sa.select(
        _E.id,
        _E.store_id,
        _E.environment_id,
        *_TIMES,
        *_LATER,
        _E.key,
        _E.stamp,
        _E.size,
        _E.allocated,
        _E.options,
        _E.constants,
        _E.image,
        _E.image_size,
        _E.binary,
        _E.digest,
        kernels,
        _E.state,
        _E.defect,
        _E.detail,
        _E.origin,
        _E.cost,
        _E.hits,
        _E.program,
        _E.ref,
        _MODELS.label("models"),
        _INHERITED.label("inherited"),
    ).select_from(_JOINED)


_SELECT: Final = _selected(_E.kernels)
_WITHOUT_KERNELS: Final = _selected(sa.literal_column("'[]'", sa.Text))

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TICK: Final = timedelta(microseconds=1)  # to multiply it takes less than half of what it takes to make another
_IMAGES: Final[Mapping[str | None, ImageFormat | None]] = {None: None, **{one.value: one for one in ImageFormat}}
_ORIGINS: Final[Mapping[str | None, Origin | None]] = {None: None, **{one.value: one for one in Origin}}
_DEFECTS: Final[Mapping[str | None, Defect | None]] = {None: None, **{one.value: one for one in Defect}}
_STATES: Final[Mapping[str, EntryState]] = {one.value: one for one in EntryState}


def page(connection: sa.Connection, query: EntryQuery, *, present: Collection[Fingerprint], now: datetime) -> EntryPage:
    """Give the entries that match, in the order in which they were first seen, and the sums over all that match."""
    if query.limit is not None and query.limit < 0:
        raise RequestError(f"limit is below zero: {query.limit}")
    shared, own = list(_shared(query, present, ENTRIES)), list(_own(query, now))
    statement = _SELECT.where(*shared, *own).order_by(_E.id)
    after = 0 if query.after is None else _cursor(query.after)
    # One more than asked for tells whether there are any behind it.
    limit = None if query.limit is None else min(query.limit, _BIGGEST - 1) + 1
    if own:
        total, size = connection.execute(
            sa.select(sa.func.count(), sa.func.total(_E.allocated)).select_from(_JOINED).where(*shared, *own)
        ).one()
        groups = None
    else:
        groups = connection.execute(_GROUPS.where(*_shared(query, present, FIGURES))).all()
        total, size = sum(one.entries for one in groups), sum(one.allocated for one in groups)
    if groups is not None and shared and limit is not None and len(groups) <= _FEW:
        statement = _SELECT.where(_E.id.in_(_first_of(connection, groups, after, limit))).order_by(_E.id)
    elif limit is not None:
        statement = statement.where(_E.id > after).limit(limit)
    else:
        statement = statement.where(_E.id > after)
    rows = connection.execute(statement).all()
    shown = rows if query.limit is None else rows[: query.limit]
    following = str(shown[-1].id) if shown and len(shown) < len(rows) else None
    return EntryPage(_indexed(connection, shown), total, max(0, int(size)), following)


def _first_of(connection: sa.Connection, groups: Iterable[_Row], after: int, limit: int) -> list[int]:
    """Find the first rows of these groups: a walk over all rows would pass the whole catalog for what is rare."""
    found: list[int] = []
    for one in groups:
        where = (
            _E.store_id == one.store_id,
            _E.environment_id.is_not_distinct_from(one.environment_id or None),
            _E.state == one.state,
            _E.defect.is_not_distinct_from(one.defect or None),
            _E.id > after,
        )
        found += connection.scalars(sa.select(_E.id).where(*where).order_by(_E.id).limit(limit))
    return sorted(found)[:limit]


def every(connection: sa.Connection, *where: sa.ColumnElement[bool], kernels: bool = True) -> tuple[IndexedEntry, ...]:
    """Give every entry of every store, or those that these conditions select; perhaps without their kernels."""
    statement = _SELECT if kernels else _WITHOUT_KERNELS
    return _indexed(connection, connection.execute(statement.where(*where).order_by(_E.id)))


def defective(connection: sa.Connection) -> tuple[IndexedEntry, ...]:
    """Give the entries that have a defect, and those in one leaf with a lock that was left behind; without kernels."""
    locked = ENTRIES.alias()
    leaf = sa.func.rtrim(locked.c.key, sa.func.replace(locked.c.key, "/", ""))
    beside = sa.select(_E.id).join(
        locked, sa.and_(_E.store_id == locked.c.store_id, _E.key > leaf, _E.key < leaf + _LAST_CHARACTER)
    )
    near = beside.where(locked.c.defect == Defect.STALE_LOCK.value)
    return every(connection, sa.or_(_E.defect.is_not(None), _E.id.in_(near)), kernels=False)


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
        raise NotFound(f"no entry {ref}", hint="see: xpucachectl ls")
    if len(rows) > 1:
        listed = ", ".join(row.ref for row in rows[:_LISTED]) + (" …" if len(rows) > _LISTED else "")
        raise RequestError(f"{ref} is the beginning of several references: {listed}", hint="give more digits")
    return _indexed(connection, rows)[0]


def forget(connection: sa.Connection, ids: Iterable[EntryId]) -> None:
    """Forget entries; those that are not known are forgotten already."""
    numbers = rows_of(connection, ids).values()
    if numbers:
        departed.leave_rows(connection, numbers)
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
    """Count, for each model that has any, its entries and their allocated bytes.

    One program that is there for several drivers of a device counts once, by the one that was recorded last: a driver
    change doubles nothing.
    """
    a, i = ATTRIBUTIONS.c, INHERITED.c
    seen = sa.select(RUNS.c.model, a.entry_id).join(RUNS, RUNS.c.id == a.run_id)
    pairs = seen.union(sa.select(i.model, i.entry_id)).subquery()
    # What stays of a key when the driver changes is what follows its first part.
    tail = sa.func.substr(_E.key, sa.func.instr(_E.key, "/"))
    newest = (
        sa.select(pairs.c.model, sa.func.max(_E.id), _E.allocated)
        .join(ENTRIES, _E.id == pairs.c.entry_id)
        .outerjoin(ENVIRONMENTS, ENVIRONMENTS.c.id == _E.environment_id)
        .group_by(pairs.c.model, _E.store_id, ENVIRONMENTS.c.platform, ENVIRONMENTS.c.device, tail)
        .subquery()
    )
    rows = connection.execute(
        sa.select(newest.c.model, sa.func.count(), sa.func.sum(newest.c.allocated)).group_by(newest.c.model)
    )
    return {ModelName(model): (count, allocated) for model, count, allocated in rows}


def summary(connection: sa.Connection) -> Summary:
    """Count entries and bytes.  Nothing is stale before the first survey of the host."""
    surveyed, count, defective, allocated, stale = connection.execute(_SUMMARY).one()
    return Summary(count or 0, defective or 0, max(0, int(allocated)), (stale or 0) if surveyed else 0)


# Made once: to make a statement takes longer than to run it.
_SUMMARY: Final = sa.select(
    sa.exists(sa.select(HOST.c.id)),
    sa.func.sum(FIGURES.c.entries),
    sa.func.sum(sa.case((FIGURES.c.state == EntryState.DEFECTIVE.value, FIGURES.c.entries), else_=0)),
    sa.func.total(FIGURES.c.allocated),
    sa.func.sum(
        sa.case(
            (
                FIGURES.c.environment_id.in_(sa.select(ENVIRONMENTS.c.id).where(ENVIRONMENTS.c.present.is_(False))),
                FIGURES.c.entries,
            ),
            else_=0,
        )
    ),
)


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


def _shared(query: EntryQuery, present: Collection[Fingerprint], of: sa.Table) -> Iterator[sa.ColumnElement[bool]]:
    """Ask what all entries of a row of the sums have in common, of these or of the entries."""
    for column, exact in (
        (STORES.c.kind, query.kind),
        (STORES.c.root, None if query.store is None else str(query.store)),
        (ENVIRONMENTS.c.architecture, query.architecture),
        (of.c.state, query.state and query.state.value),
        (of.c.defect, query.defect and query.defect.value),
    ):
        if exact is not None:
            yield column == exact
    if query.device is not None:
        yield _part(ENVIRONMENTS.c.device, query.device)
    if query.driver is not None:
        yield _driver(query.driver, present)


def _own(query: EntryQuery, now: datetime) -> Iterator[sa.ColumnElement[bool]]:
    """Ask what only the entry itself can tell."""
    if query.ref:
        yield from _begins(query.ref)
    if query.kernel is not None:
        yield _part(_E.kernel_names, query.kernel)
    if query.model is not None:
        uses = sa.select(ATTRIBUTIONS.c.entry_id).join(RUNS, RUNS.c.id == ATTRIBUTIONS.c.run_id)
        inherited = sa.select(INHERITED.c.entry_id).where(INHERITED.c.model == query.model)
        yield sa.or_(_E.id.in_(uses.where(RUNS.c.model == query.model)), _E.id.in_(inherited))
    if query.min_size is not None:
        yield _E.size >= _bounded(query.min_size)
    if query.max_size is not None:
        yield _E.size <= _bounded(query.max_size)
    if query.unused is not None:
        # Reckoned in numbers: a very long time ago is before the first date that there is.
        yield microseconds(now) - _bounded(int(min(query.unused, _LONGEST) * 1_000_000)) >= _USED


def _bounded(number: int) -> int:
    return max(-_BIGGEST, min(number, _BIGGEST))


def _part(column: sa.ColumnElement[str], text: str) -> sa.ColumnElement[bool]:
    if len(text) > _LONG_TEXT:
        raise RequestError(f"more than {_LONG_TEXT} characters to look for")
    if "\0" in text:
        # For LIKE a pattern ends there.
        return sa.func.instr(column, text) > 0
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
    known: dict[int | None, tuple[Target | None, Architecture | None]] = {None: (None, None)}
    for row in connection.execute(sa.select(ENVIRONMENTS)):
        known[row.id] = (targets.value(row), Architecture(row.architecture) if row.architecture else None)
    return tuple(_value(row, stores, known) for row in rows)


def _value(
    row: _Row,
    stores: Mapping[int, Store],
    known: Mapping[int | None, tuple[Target | None, Architecture | None]],
) -> IndexedEntry:
    (
        _,
        store_id,
        environment_id,
        created,
        accessed,
        run_used,
        restored,
        witnessed,
        first_seen,
        key,
        stamp,
        size,
        allocated,
        options,
        constants,
        image,
        image_size,
        binary,
        digest,
        kernels,
        state,
        defect,
        detail,
        origin,
        cost,
        hits,
        program,
        _,
        models,
        inherited,
    ) = cast("_Values", row)
    seen, to_be_seen = _models(models), _models(inherited)
    last_used, how = created, "created"
    if accessed is not None and accessed > last_used:
        last_used, how = accessed, "access-time"
    if witnessed is not None and witnessed > last_used:
        last_used, how = witnessed, "observed-loads"
    if run_used is not None and run_used >= last_used:
        last_used, how = run_used, "run"
    if restored is not None and restored > last_used:
        last_used, how = restored, "restored"
    environment, architecture = known[environment_id]
    born = _EPOCH + created * _TICK
    entry = Entry(
        EntryId(stores[store_id], key),
        stamp,
        size,
        allocated,
        born,
        None if accessed is None else _EPOCH + accessed * _TICK,
        environment,
        options,
        constants,
        _IMAGES[image],
        image_size,
        _IMAGES[binary],
        digest,
        _kernels(kernels),
        _STATES[state],
        _DEFECTS[defect],
        detail,
    )
    return IndexedEntry(
        entry,
        _ORIGINS[origin],
        architecture,
        tuple(sorted({*seen, *to_be_seen})) if to_be_seen else seen,
        _EPOCH + first_seen * _TICK,
        born if last_used == created else _EPOCH + last_used * _TICK,
        how,
        cost,
        None if restored is None else _EPOCH + restored * _TICK,
        hits=hits or 0,
        program=program or "",
        inherited=tuple(name for name in to_be_seen if name not in seen) if to_be_seen else (),
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


def note_uses(connection: sa.Connection, uses: Iterable[Load]) -> None:
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
