"""Record: what happened each day, and when models came to stand otherwise."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, cast

import sqlalchemy as sa
from msgspec.structs import asdict, replace
from sqlalchemy.dialects.sqlite import insert

from xpucached import codec
from xpucached.catalog.entries import note_uses
from xpucached.catalog.history_tables import DAYS, WARMTH
from xpucached.catalog.readable import Row, readable, stored, values
from xpucached.domain.models import Warmth
from xpucached.domain.names import ModelName
from xpucached.domain.usage import Day, WarmthChange
from xpucached.printing import encodable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from xpucached.domain.activity import Load
    from xpucached.domain.models import ModelStatus

KEPT_DAYS: Final = 800
"""Days that are kept: two years, and some more."""
_BEFORE: Final = "0000-00-00"
"""The row of all days before those, added up: what is counted since the beginning must not fall."""
KEPT_CHANGES: Final = 1000
"""Changes of warmth that are kept of each model …"""
KEPT_MODELS: Final = 1000
"""… and of all together so many thousands at most."""

_LONGEST: Final = 500
"""Characters of why a model stands as it does."""

_AT_FIRST: Final[Mapping[str, int | None]] = {
    column.name: None if column.nullable else 0 for column in DAYS.c if column.name != "day"
}


def day_of(moment: datetime) -> str:
    """Return a moment's day in UTC, such as ``2026-11-22``."""
    return moment.astimezone(UTC).date().isoformat()


def add(connection: sa.Connection, now: datetime, /, **amounts: float) -> None:
    """Add to what happened today; what was not watched before today is from now on."""
    c, day = DAYS.c, day_of(now)
    row: dict[str, object] = {**_AT_FIRST, **amounts, "day": day}
    more = {name: sa.func.coalesce(c[name], 0) + amount for name, amount in amounts.items()}
    _put(connection, row, more)


def note_state(connection: sa.Connection, now: datetime, entries: int, allocated: int) -> None:
    """Note what the stores hold."""
    state = {"entries": entries, "allocated": float(allocated)}
    _put(connection, {**_AT_FIRST, **state, "day": day_of(now)}, state)


def _put(connection: sa.Connection, row: Mapping[str, object], update: Mapping[str, object]) -> None:
    connection.execute(insert(DAYS).values(**row).on_conflict_do_update(index_elements=[DAYS.c.day], set_=dict(update)))
    c = DAYS.c
    kept = sa.select(c.day).where(c.day > _BEFORE).order_by(c.day.desc()).limit(1).offset(KEPT_DAYS)
    oldest = connection.scalar(kept)
    if oldest is not None:
        sums = sa.select(*(sa.func.sum(c[name]).label(name) for name in _AT_FIRST)).where(c.day <= oldest)
        before = {**connection.execute(sums).mappings().one(), "entries": None, "allocated": None, "day": _BEFORE}
        connection.execute(sa.delete(DAYS).where(c.day <= oldest))
        connection.execute(sa.insert(DAYS).values(before))


def note_loads(connection: sa.Connection, loads: Collection[Load], rate: float, now: datetime) -> None:
    """Note last uses, and what they avoided: what compiling each took, or may take by its size and the ``rate``."""
    note_uses(connection, loads)
    count, avoided, estimated = 0, 0.0, 0.0
    for one in loads:
        if encodable(one.key) != one.key:
            continue
        row = connection.exec_driver_sql(_COST, (str(one.store), one.key)).first()
        if row is None:
            continue
        cost, size = row
        count += one.hits
        avoided += one.hits * (size * rate if cost is None else cost)
        estimated += one.hits * size * rate if cost is None else 0.0
    add(connection, now, loads=count, avoided_seconds=avoided, estimated_seconds=estimated)


_COST: Final = (
    "SELECT cost, CASE WHEN image_size > 0 THEN image_size ELSE allocated END FROM entries"
    " WHERE store_id IN (SELECT id FROM stores WHERE root = ?) AND key = ?"
)


def days_between(connection: sa.Connection, since: str = "", until: str = "9999-12-31") -> tuple[Day, ...]:
    """Return the days that something is known of, the oldest first, from one to another."""
    c = DAYS.c
    asked = stored(DAYS).where(c.day > _BEFORE, c.day >= since, c.day <= until).order_by(c.day)
    return tuple(readable(connection.execute(asked), read_day))


def since_the_beginning(connection: sa.Connection) -> tuple[Day, ...]:
    """Return all days that are kept; first of them, where there were more, those before them as if they were one."""
    return tuple(readable(connection.execute(stored(DAYS).order_by(DAYS.c.day)), read_day))


def read_day(row: Row) -> Day:
    """Read a row of that table, as `stored`.  Raises `ValueError` or `OverflowError`."""
    # The names of columns are no plain texts.
    of = {str(name): value for name, value in values(row).items()}
    of |= {name: int(one) for name in ("freed", "allocated") if isinstance(one := of[name], float | int)}
    return cast("Day", codec.convert(of, Day))


def days_back(connection: sa.Connection, now: datetime, count: int) -> tuple[Day, ...]:
    """Return what is known of the last days, today among them."""
    return days_between(connection, day_of(now - timedelta(days=count - 1)))


# -- warmth -------------------------------------------------------------------------------------------------------


def note_warmth(connection: sa.Connection, models: Collection[ModelStatus], now: datetime) -> tuple[WarmthChange, ...]:
    """Note how models stand, where that is another than it was; gives what changed.

    What is being warmed just now still stands as it did.
    """
    w = WARMTH.c
    newest = sa.select(sa.func.max(w.id)).group_by(w.model)
    known = {one.model: one.now for one in _changes(connection, stored(WARMTH).where(w.id.in_(newest)))}
    changes = [
        WarmthChange(0, now, one.model.name, known.get(one.model.name), one.warmth, encodable(one.why)[:_LONGEST])
        for one in models
        if one.warmth not in {known.get(one.model.name), Warmth.WARMING}
    ]
    if not changes:
        return ()
    # Thousands of models may change at once, as with a driver: each statement is made once for all of them.
    rows = [{name: fact for name, fact in asdict(one).items() if name != "id"} for one in changes]
    last = connection.scalar(sa.select(sa.func.coalesce(sa.func.max(w.id), 0)))
    connection.execute(sa.insert(WARMTH), rows)
    numbers = {row.model: row.id for row in connection.execute(sa.select(w.model, w.id).where(w.id > last))}
    mine = w.model == sa.bindparam("name")
    oldest = sa.select(w.id).where(mine).order_by(w.id.desc()).limit(1).offset(KEPT_CHANGES).scalar_subquery()
    connection.execute(sa.delete(WARMTH).where(mine, w.id <= oldest), [{"name": one.model} for one in changes])
    connection.execute(sa.delete(WARMTH).where(w.id <= max(numbers.values()) - KEPT_CHANGES * KEPT_MODELS))
    return tuple(replace(one, id=numbers[one.model]) for one in changes)


def warmth_changes(
    connection: sa.Connection, since: datetime | None = None, model: ModelName | None = None, limit: int = 1000
) -> tuple[WarmthChange, ...]:
    """Return the newest changes, the oldest of them first; of one model or of all."""
    w = WARMTH.c
    asked = stored(WARMTH).order_by(w.id.desc()).limit(limit)
    if since is not None:
        asked = asked.where(w.at >= since)
    if model is not None:
        asked = asked.where(w.model == model)
    return tuple(reversed(_changes(connection, asked)))


def standing_since(connection: sa.Connection) -> dict[ModelName, datetime]:
    """Return when each model came to stand as it does, as far as it was noted."""
    w = WARMTH.c
    newest = sa.select(sa.func.max(w.id)).group_by(w.model)
    return {one.model: one.at for one in _changes(connection, stored(WARMTH).where(w.id.in_(newest)))}


def _changes(connection: sa.Connection, asked: sa.Select[tuple[object, ...]]) -> list[WarmthChange]:
    return list(readable(connection.execute(asked), read_change))


def read_change(row: Row) -> WarmthChange:
    """Read a row of that table, as `stored`.  Raises `ValueError`."""
    return WarmthChange(
        row.id,
        row.at,
        ModelName(row.model.decode()),
        None if row.before is None else Warmth(row.before.decode()),
        Warmth(row.now.decode()),
        row.why.decode(),
    )
