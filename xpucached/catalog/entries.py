"""Record: questions about entries, and entries that are forgotten."""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from msgspec.structs import replace

from xpucached.catalog import departed
from xpucached.catalog.builds import bundle_of, came_with, take_out
from xpucached.catalog.defects import check_defect, defect_codes
from xpucached.catalog.moments import microseconds
from xpucached.catalog.rows import JOINED, SELECT, WITHOUT_KERNELS, Row, indexed
from xpucached.catalog.tables import (
    ATTRIBUTIONS,
    ENTRIES,
    FIGURES,
    INHERITED,
    RUNS,
    STORES,
    TARGETS,
)
from xpucached.catalog.totals import whole
from xpucached.domain.names import EntryKey, EntryRef, KindName
from xpucached.domain.plans import IndexedEntry, SameInput
from xpucached.domain.queries import EntryPage
from xpucached.domain.stores import EntryId, EntryState, Store
from xpucached.errors import NotFound, RequestError
from xpucached.printing import encodable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from xpucached.domain.activity import Load
    from xpucached.domain.names import Fingerprint
    from xpucached.domain.queries import EntryQuery
    from xpucached.domain.stores import Entry


# How many of the entries that a short reference could mean are named to the one who asked.
_LISTED: Final = 10

# So many entries of other kinds are named that hold the same program: who has many builds of it has many.
_SAME: Final = 100

# Row numbers in one statement: SQLite takes no more than some thousands of values.
_BATCH: Final = 1000

_BIGGEST: Final = 2**63 - 1

# No name in a store begins with it.
_LAST_CHARACTER: Final = "\U0010ffff"

# Seconds: a hundred thousand years, and no more than fits into a row's microseconds.
_LONGEST: Final = 3.0e12

# SQLite refuses patterns of 50,000 bytes; no name that anyone looks for is near that.
_LONG_TEXT: Final = 4096


_E: Final = ENTRIES.c


# The rows of the sums, each with what its entries have in common.
_GROUPS: Final = (
    sa.select(FIGURES)
    .select_from(
        FIGURES.join(STORES, STORES.c.id == FIGURES.c.store_id).outerjoin(TARGETS, TARGETS.c.id == FIGURES.c.target_id)
    )
    .where(FIGURES.c.entries > 0)
)

# From so many groups on, walking over the rows meets the first page as soon.
_FEW: Final = 32

_USED: Final = sa.type_coerce(_E.last_used, sa.BigInteger)


def entry_page(
    connection: sa.Connection, query: EntryQuery, *, present: Collection[Fingerprint], now: datetime
) -> EntryPage:
    """Return the entries that match, in the order in which they were first seen, and the sums over all that match.

    ``present`` is what ``driver="current"`` means; ``now`` is what ``unused`` counts back from.  Raises `RequestError`
    for a cursor or a limit that cannot be.
    """
    if query.limit is not None and query.limit < 0:
        raise RequestError(f"limit is below zero: {query.limit}")
    check_defect(connection, query.defect)
    shared, own = list(_shared(query, present, ENTRIES)), list(_own(query, now))
    statement = SELECT.where(*shared, *own).order_by(_E.id)
    after = 0 if query.after is None else _cursor(query.after)
    # One more than asked for tells whether there are any behind it.
    limit = None if query.limit is None else min(query.limit, _BIGGEST - 1) + 1
    if own:
        total, size = connection.execute(
            sa.select(sa.func.count(), sa.func.total(_E.allocated)).select_from(JOINED).where(*shared, *own)
        ).one()
        groups = None
    else:
        groups = connection.execute(_GROUPS.where(*_shared(query, present, FIGURES))).all()
        total, size = sum(one.entries for one in groups), sum(one.allocated for one in groups)
    if groups is not None and shared and limit is not None and len(groups) <= _FEW:
        statement = SELECT.where(_E.id.in_(_first_of(connection, groups, after, limit))).order_by(_E.id)
    elif limit is not None:
        statement = statement.where(_E.id > after).limit(limit)
    else:
        statement = statement.where(_E.id > after)
    rows = connection.execute(statement).all()
    shown = rows if query.limit is None else rows[: query.limit]
    following = str(shown[-1].id) if shown and len(shown) < len(rows) else None
    return EntryPage(indexed(connection, shown), total, whole(size), following)


def _first_of(connection: sa.Connection, groups: Iterable[Row], after: int, limit: int) -> list[int]:
    """Find the first rows of these groups: a walk over all rows would pass the whole catalog for what is rare."""
    found: list[int] = []
    for one in groups:
        where = (
            _E.store_id == one.store_id,
            _E.target_id.is_not_distinct_from(one.target_id or None),
            _E.state == one.state,
            _E.defect.is_not_distinct_from(one.defect or None),
            _E.id > after,
        )
        found += connection.scalars(sa.select(_E.id).where(*where).order_by(_E.id).limit(limit))
    return sorted(found)[:limit]


def all_entries(
    connection: sa.Connection, *where: sa.ColumnElement[bool], kernels: bool = True
) -> tuple[IndexedEntry, ...]:
    """Return every entry of every store, or those that these conditions select; perhaps without their kernels."""
    statement = SELECT if kernels else WITHOUT_KERNELS
    return indexed(connection, connection.execute(statement.where(*where).order_by(_E.id)))


def unclaimed_entries(connection: sa.Connection, store: Store, since: datetime) -> tuple[IndexedEntry, ...]:
    """Return the entries of a store that were made since then, and that no run of a model made or used."""
    here = sa.select(STORES.c.id).where(STORES.c.kind == store.kind, STORES.c.root == str(store.root))
    claimed = sa.select(ATTRIBUTIONS.c.entry_id)
    found = all_entries(connection, _E.store_id.in_(here), _E.created > since, _E.id.not_in(claimed))
    return tuple(one for one in found if not one.models)


def defective_entries(connection: sa.Connection) -> tuple[IndexedEntry, ...]:
    """Return the entries that have a defect, and those whose use decides what is done about one; without kernels."""
    locked = ENTRIES.alias()
    leaf = sa.func.rtrim(locked.c.key, sa.func.replace(locked.c.key, "/", ""))
    codes = defect_codes(connection, lambda one: one.superseded)
    # Each once: a leaf may have a hundred thousand of them.
    leaves = sa.select(locked.c.store_id, leaf.label("leaf")).where(locked.c.defect.in_(codes), leaf != "").distinct()
    of = leaves.subquery()
    near = sa.select(_E.id).join(
        of, sa.and_(_E.store_id == of.c.store_id, _E.key > of.c.leaf, _E.key < of.c.leaf + _LAST_CHARACTER)
    )
    return all_entries(connection, sa.or_(_E.defect.is_not(None), _E.id.in_(near)), kernels=False)


def entries_by_id(connection: sa.Connection, ids: Iterable[EntryId]) -> tuple[IndexedEntry, ...]:
    """Return these entries; those that are not known are left out."""
    numbers = sorted(rows_of(connection, ids).values())
    rows = (
        row
        for start in range(0, len(numbers), _BATCH)
        for row in connection.execute(SELECT.where(_E.id.in_(numbers[start : start + _BATCH])).order_by(_E.id))
    )
    return indexed(connection, rows)


def find_entry(connection: sa.Connection, ref: EntryRef | str) -> IndexedEntry:
    """Return the entry whose reference begins so.  Raises `NotFound`, or `RequestError` if several do."""
    if not ref:
        raise RequestError("an entry's reference is missing")
    rows = connection.execute(SELECT.where(*_begins(ref)).order_by(_E.ref, _E.id).limit(_LISTED + 1)).all()
    if not rows:
        raise NotFound(f"no entry {ref}", hint="see: xpucachectl ls")
    if len(rows) > 1:
        listed = ", ".join(row.ref for row in rows[:_LISTED]) + (" …" if len(rows) > _LISTED else "")
        raise RequestError(f"{ref} is the beginning of several references: {listed}", hint="give more digits")
    (found,) = indexed(connection, rows)
    return replace(found, elsewhere=_elsewhere(connection, found.entry), bundle=bundle_of(connection, found.entry))


def _elsewhere(connection: sa.Connection, entry: Entry) -> tuple[SameInput, ...]:
    """Find the program of an entry in caches of other kinds; of many only the first."""
    if entry.input is None:
        return ()
    rows = connection.execute(
        sa.select(STORES.c.kind, STORES.c.root, _E.key, _E.ref, _E.state, _E.digest)
        .join(STORES, STORES.c.id == _E.store_id)
        .where(_E.input == entry.input, STORES.c.kind != entry.id.store.kind)
        .order_by(STORES.c.kind, STORES.c.root, _E.key)
        .limit(_SAME)
    )
    return tuple(
        SameInput(
            KindName(row.kind),
            Path(row.root),
            EntryKey(row.key),
            EntryRef(row.ref),
            EntryState(row.state),
            identical=row.digest is not None and row.digest == entry.digest,
        )
        for row in rows
    )


def forget_entries(connection: sa.Connection, ids: Iterable[EntryId]) -> None:
    """Forget entries; those that are not known are forgotten already."""
    numbers = rows_of(connection, ids).values()
    if numbers:
        departed.leave_rows(connection, numbers)
        take_out(connection, numbers)
        connection.execute(sa.delete(ENTRIES).where(_E.id == sa.bindparam("row")), [{"row": row} for row in numbers])


def rows_of(connection: sa.Connection, ids: Iterable[EntryId]) -> dict[EntryId, int]:
    """Find the rows of entries; those that are not known are left out."""
    keys: defaultdict[Store, list[EntryKey]] = defaultdict(list)
    for wanted in ids:
        # Programs name their files as they like; what is no text is no entry's key.
        if encodable(wanted.key) == wanted.key:
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


# -- conditions and rows ------------------------------------------------------------------------------------------


def _cursor(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(_BIGGEST)) or int(text) > _BIGGEST:
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
        (of.c.state, query.state and query.state.value),
        (of.c.defect, query.defect),
    ):
        if exact is not None:
            yield column == exact
    if query.architecture is not None:
        yield TARGETS.c.architecture.in_(query.architecture.split(","))
    if query.device is not None:
        yield _part(TARGETS.c.device, query.device)
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
    if query.origin is not None:
        yield _E.origin == query.origin.value
    if query.bundle is not None:
        yield came_with(query.bundle)
    if query.min_size is not None:
        yield _E.size >= _bounded(query.min_size)
    if query.max_size is not None:
        yield _E.size <= _bounded(query.max_size)
    if query.unused is not None:
        # Reckoned in numbers: a very long time ago is before the first date that there is.
        yield microseconds(now) - _bounded(math.ceil(Fraction(min(query.unused, _LONGEST)) * 1_000_000)) >= _USED


def _bounded(number: int) -> int:
    return max(-_BIGGEST, min(number, _BIGGEST))


def _part(column: sa.ColumnElement[str], text: str, *, first: bool = False) -> sa.ColumnElement[bool]:
    """Ask for a text in a column, or with ``first`` at its beginning, in capital letters or small ones."""
    if len(text) > _LONG_TEXT:
        raise RequestError(f"more than {_LONG_TEXT} characters to look for")
    if "\0" in text:
        # For LIKE a pattern ends there.
        at = sa.func.instr(sa.func.lower(column), sa.func.lower(text))
        return at == 1 if first else at > 0
    return column.startswith(text, autoescape=True) if first else column.contains(text, autoescape=True)


def _driver(wanted: str, present: Collection[Fingerprint]) -> sa.ColumnElement[bool]:
    if wanted == "current":
        return TARGETS.c.fingerprint.in_(present)
    if wanted.endswith("*"):
        return _part(TARGETS.c.toolchain, wanted.removesuffix("*"), first=True)
    return TARGETS.c.toolchain == wanted


def note_restored(connection: sa.Connection, ids: Iterable[EntryId], now: datetime) -> None:
    """Note that somebody wants these back."""
    rows = rows_of(connection, ids)
    if rows:
        statement = sa.update(ENTRIES).where(_E.id == sa.bindparam("row")).values(restored=now)
        connection.execute(statement, [{"row": row} for row in rows.values()])


def note_uses(connection: sa.Connection, uses: Iterable[Load]) -> None:
    """Add that programs were seen to load these; those that are not known are left out."""
    # As in `rows_of`.
    known = [one for one in uses if encodable(one.key) == one.key]
    rows = [(microseconds(one.last), one.hits, one.program, str(one.store), one.key) for one in known]
    if rows:
        connection.exec_driver_sql(_NOTE_USE, rows)


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
