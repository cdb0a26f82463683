"""Record: what happened, so that a reader can go on after a restart; bounded, and ids are never reused."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from xpucached.catalog.readable import Row, document, readable, stored
from xpucached.catalog.tables import EVENTS
from xpucached.domain.jobs import Event
from xpucached.domain.names import ModelName

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

MODEL_REMOVED: Final = "model-removed"
"""The topic of events that tell that a model was removed, or its file."""

RESTORED: Final = "restored"
"""The topic of those that tell what came back from the trash; ``models`` are those whose directories did."""

KEPT: Final = 5000
"""Events that are kept."""


def record_events(connection: sa.Connection, events: Collection[Event], reserved: int) -> None:
    """Keep events; after a death the ids go on behind ``reserved``."""
    if events:
        rows = [
            {"id": one.id, "at": one.at, "topic": one.topic, "message": one.message, "fields": dict(one.fields)}
            for one in events
        ]
        connection.execute(insert(EVENTS).on_conflict_do_nothing(), rows)
        oldest = sa.select(EVENTS.c.id).order_by(EVENTS.c.id.desc()).limit(1).offset(KEPT).scalar_subquery()
        connection.execute(sa.delete(EVENTS).where(EVENTS.c.id <= oldest))
    # The row is SQLite's own account of the ids it gave; it has none before the first.
    sequence = {"id": reserved}
    if not connection.execute(sa.text("UPDATE sqlite_sequence SET seq = :id WHERE name = 'events'"), sequence).rowcount:
        connection.execute(sa.text("INSERT INTO sqlite_sequence (name, seq) VALUES ('events', :id)"), sequence)


def newest_events(connection: sa.Connection, limit: int) -> tuple[int, tuple[Event, ...]]:
    """Return the highest id ever reserved, and the newest events, in their order."""
    before = sa.select(EVENTS.c.id).order_by(EVENTS.c.id.desc()).limit(1).offset(limit).scalar_subquery()
    return _reserved(connection), _events(connection, EVENTS.c.id > (connection.scalar(sa.select(before)) or 0))


def events_after(connection: sa.Connection, last: int) -> tuple[int | None, tuple[Event, ...]]:
    """Return the id of the oldest event that is kept, and all behind ``last``."""
    oldest: int | None = connection.execute(sa.select(sa.func.min(EVENTS.c.id))).scalar()
    return oldest, _events(connection, EVENTS.c.id > last)


def removed_models(connection: sa.Connection) -> Mapping[ModelName, datetime]:
    """Return which models were removed, as far as events are kept, and when last; not those that came back since."""
    c, found = EVENTS.c, dict[ModelName, datetime]()
    for one in _events(connection, c.topic.in_((MODEL_REMOVED, RESTORED))):
        if one.topic == MODEL_REMOVED:
            found[ModelName(one.fields.get("model", ""))] = one.at
        for name in one.fields.get("models", "").split():
            found.pop(ModelName(name), None)
    return found


def _reserved(connection: sa.Connection) -> int:
    """Return the highest id ever reserved."""
    found = connection.execute(sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'events'")).scalar()
    newest = connection.execute(sa.select(sa.func.max(EVENTS.c.id))).scalar()
    return max(found if isinstance(found, int) else 0, newest or 0, 0)


def _events(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> tuple[Event, ...]:
    """Return those that can be read, in their order."""
    rows = connection.execute(stored(EVENTS).where(condition).order_by(EVENTS.c.id))
    return tuple(readable(rows, _event))


def _event(row: Row) -> Event:
    return Event(row.id, row.at, row.topic.decode(), row.message.decode(), document(row.fields, dict[str, str]))
