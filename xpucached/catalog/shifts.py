"""Record: what became slower or faster after a change, until somebody has seen it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from msgspec.structs import replace

from xpucached.catalog.lists import among
from xpucached.catalog.readable import Row, document, readable, stored
from xpucached.catalog.tables import SHIFTS
from xpucached.domain.diagnosis import Figure
from xpucached.domain.names import ModelName
from xpucached.domain.shifts import Shift

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

_C = SHIFTS.c


def record_shifts(
    connection: sa.Connection, model: ModelName, found: Sequence[Shift]
) -> tuple[tuple[Shift, ...], tuple[Shift, ...]]:
    """Make what is kept of a model equal to what was found; return what is new, and what is so no longer.

    What somebody has seen stays seen, whatever its figures are by now.
    """
    kept = {_key(one): one for one in _values(connection, _C.model == model)}
    wanted = {_key(one): one for one in found}
    news: list[Shift] = []
    for key, one in wanted.items():
        numbers = {name: getattr(one, name) for name in ("before", "spread", "before_runs", "after", "after_runs")}
        values = {**numbers, "at": one.at, "changed": list(one.changed)}
        if key in kept:
            connection.execute(sa.update(SHIFTS).where(_C.id == kept[key].id).values(values))
            continue
        keys = dict(zip(("variant", "figure", "run_id"), (one.variant, one.figure.value, one.run), strict=True))
        # One of the same keys is there only if it cannot be read.
        adding = sa.insert(SHIFTS).prefix_with("OR REPLACE").values(model=model, **keys, **values)
        news += _values(connection, _C.id == connection.execute(adding).lastrowid)
    over = tuple(one for key, one in kept.items() if key not in wanted)
    for one in over:
        connection.execute(sa.delete(SHIFTS).where(_C.id == one.id))
    return tuple(news), over


# Made once, as it is asked for every `status`.
_UNSEEN: Final = stored(SHIFTS).where(_C.seen.is_(None)).order_by(_C.id)


def unseen_shifts(connection: sa.Connection) -> tuple[Shift, ...]:
    """Return what nobody has seen yet, oldest first."""
    return tuple(readable(connection.execute(_UNSEEN), _value))


def see_shifts(connection: sa.Connection, models: Sequence[ModelName], now: datetime) -> tuple[Shift, ...]:
    """Note that these models' were seen, or all; return those that were not before."""
    condition = sa.and_(_C.seen.is_(None), among(_C.model, models) if models else sa.true())
    found = _values(connection, condition)
    connection.execute(sa.update(SHIFTS).where(condition).values(seen=now))
    return tuple(replace(one, seen=now) for one in found)


def _key(one: Shift) -> tuple[str, str, int]:
    return (one.variant, one.figure.value, one.run)


def _values(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> list[Shift]:
    return list(readable(connection.execute(stored(SHIFTS).where(condition).order_by(_C.id)), _value))


def _value(row: Row) -> Shift:
    return Shift(
        row.id,
        ModelName(row.model.decode()),
        row.variant.decode(),
        Figure(row.figure.decode()),
        row.run_id,
        row.at,
        *(row.before, row.spread, row.before_runs, row.after, row.after_runs),
        document(row.changed, tuple[str, ...]),
        row.seen,
    )
