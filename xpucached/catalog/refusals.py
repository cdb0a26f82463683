"""Record: what a compiler refused to rebuild, so that it is not tried again until the driver changes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from xpucached.catalog.tables import REFUSALS
from xpucached.domain.names import Fingerprint, KindName
from xpucached.domain.stores import Store

if TYPE_CHECKING:
    from datetime import datetime

_LONGEST = 2000
_REMEMBERED = timedelta(days=365)


def record_refusal(
    connection: sa.Connection,
    store: Store,
    tail: str,
    fingerprint: Fingerprint,
    stamp: str,
    message: str,
    now: datetime,
) -> None:
    """Note that the driver with this stamp refused to rebuild a leaf for an environment."""
    what = {"stamp": stamp, "message": message[:_LONGEST], "at": now}
    key = {"kind": store.kind, "root": str(store.root), "tail": tail, "fingerprint": fingerprint}
    connection.execute(
        insert(REFUSALS)
        .values(**key, **what)
        .on_conflict_do_update(index_elements=[REFUSALS.c[name] for name in key], set_=what)
    )


def forget_old_refusals(connection: sa.Connection, now: datetime) -> None:
    """Forget what was refused a year ago: that driver is history, or may be asked once more."""
    connection.execute(sa.delete(REFUSALS).where(REFUSALS.c.at < now - _REMEMBERED))


def refused_by(connection: sa.Connection, stamp: str) -> frozenset[tuple[Store, str, Fingerprint]]:
    """Return what the driver with this stamp refused."""
    rows = connection.execute(sa.select(REFUSALS).where(REFUSALS.c.stamp == stamp))
    return frozenset(
        (Store(KindName(row.kind), Path(row.root)), row.tail, Fingerprint(row.fingerprint)) for row in rows
    )
