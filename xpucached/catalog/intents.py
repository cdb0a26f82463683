"""Record: what is about to be removed, so that a successor finishes what a daemon that was killed began."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from xpucached.catalog.tables import INTENTS
from xpucached.domain.names import EntryKey, KindName
from xpucached.domain.stores import EntryId, Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime


def intend(connection: sa.Connection, ids: Iterable[EntryId], now: datetime) -> None:
    """Note that these are about to be removed; of each, when that was noted last."""
    rows = [{"kind": one.store.kind, "root": str(one.store.root), "key": one.key, "at": now} for one in ids]
    if rows:
        statement = insert(INTENTS)
        again = {"at": statement.excluded.at}
        connection.execute(statement.on_conflict_do_update(INTENTS.primary_key.columns, set_=again), rows)


def open_intents(connection: sa.Connection) -> Mapping[EntryId, datetime]:
    """Return what was about to be removed, and when, and was not fulfilled: after a start, what a dead daemon left."""
    rows = connection.execute(sa.select(INTENTS).order_by(INTENTS.c.kind, INTENTS.c.root, INTENTS.c.key))
    return {EntryId(Store(KindName(row.kind), Path(row.root)), EntryKey(row.key)): row.at for row in rows}


def fulfil(connection: sa.Connection, ids: Iterable[EntryId]) -> None:
    """Note that these removals have ended, whether the entries are gone or were busy."""
    rows = [{"a_kind": one.store.kind, "a_root": str(one.store.root), "a_key": one.key} for one in ids]
    if rows:
        c = INTENTS.c
        is_it = (c.kind == sa.bindparam("a_kind"), c.root == sa.bindparam("a_root"), c.key == sa.bindparam("a_key"))
        connection.execute(sa.delete(INTENTS).where(*is_it), rows)
