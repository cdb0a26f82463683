"""Record: the stores that were looked at, and which entries each has."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from xpucached.catalog import departed
from xpucached.catalog.tables import ENTRIES, FIGURES, STORES
from xpucached.catalog.totals import whole
from xpucached.domain.names import EntryKey, KindName
from xpucached.domain.stores import UNSETTLED, EntryState, Lookups, Store, StoreOrigin, StoreState, StoreStatus


def known_keys(connection: sa.Connection, store: Store) -> frozenset[EntryKey]:
    """Return the entries of a store."""
    c = ENTRIES.c
    rows = connection.execute(sa.select(c.key).join(STORES, STORES.c.id == c.store_id).where(*is_store(store)))
    return frozenset(EntryKey(key) for (key,) in rows)


def last_thorough_scan(connection: sa.Connection, store: Store) -> datetime | None:
    """Return when each file of a store was last looked at; None if that never was."""
    found: datetime | None = connection.execute(sa.select(STORES.c.thorough).where(*is_store(store))).scalar()
    return found


def came_last(connection: sa.Connection, store: Store, before: datetime) -> datetime | None:
    """Return when the last of what came to a store before a moment was written, or first seen; None if nothing did."""
    came = sa.func.max(ENTRIES.c.first_seen, ENTRIES.c.created)
    joined = ENTRIES.join(STORES, STORES.c.id == ENTRIES.c.store_id)
    asked = sa.select(sa.func.max(came)).select_from(joined).where(*is_store(store), came < before)
    found: datetime | None = connection.execute(asked).scalar()
    return found


def is_store(store: Store) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    """Ask for the row of a store."""
    return (STORES.c.kind == store.kind, STORES.c.root == str(store.root))


def _every_store() -> sa.Select[tuple[object, ...]]:
    c = FIGURES.c
    figures = (
        sa.select(
            c.store_id,
            sa.func.sum(c.entries).label("entries"),
            sa.func.sum(sa.case((c.state == EntryState.DEFECTIVE.value, c.entries), else_=0)).label("defective"),
            sa.func.sum(sa.case((c.state.in_(UNSETTLED), c.entries), else_=0)).label("unfinished"),
            sa.func.total(c.size).label("size"),
            sa.func.total(c.allocated).label("allocated"),
        )
        .group_by(c.store_id)
        .subquery()
    )
    return (
        sa.select(STORES, figures)
        .outerjoin(figures, figures.c.store_id == STORES.c.id)
        .order_by(STORES.c.kind, STORES.c.root)
    )


# Made once: every `status` asks it, and making it takes longer than the answer.
_STORES: Final = _every_store()


def all_stores(connection: sa.Connection) -> tuple[StoreStatus, ...]:
    """Return every store that was looked at, with its figures."""
    rows = connection.execute(_STORES)
    return tuple(
        StoreStatus(
            KindName(row.kind),
            Path(row.root),
            StoreOrigin(row.origin),
            row.via,
            StoreState(row.state),
            row.owner,
            row.entries or 0,
            row.defective or 0,
            row.unfinished or 0,
            whole(row.size or 0),
            whole(row.allocated or 0),
            row.foreign_files,
            row.scanned,
            tuple(row.notes),
            Lookups(row.found, row.missed) if row.found or row.missed else None,
        )
        for row in rows
    )


def forget_store(connection: sa.Connection, store: Store) -> None:
    """Forget a store and all that was in it; one that is not known is forgotten already."""
    number = connection.execute(sa.select(STORES.c.id).where(*is_store(store))).scalar()
    if number is not None:
        departed.leave(connection, number)
        connection.execute(sa.delete(STORES).where(STORES.c.id == number))
