"""Record: what happened, so that a reader can go on after a restart; bounded, and ids are never reused."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

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
    return _reserved(connection), _after(connection, connection.execute(sa.select(before)).scalar() or 0)


def events_after(connection: sa.Connection, last: int) -> tuple[int | None, tuple[Event, ...]]:
    """Return the id of the oldest event that is kept, and all behind ``last``."""
    oldest: int | None = connection.execute(sa.select(sa.func.min(EVENTS.c.id))).scalar()
    return oldest, _after(connection, last)


def removed_models(connection: sa.Connection) -> Mapping[ModelName, datetime]:
    """Return which models were removed, as far as events are kept, and when last; not those that came back since."""
    c, found = EVENTS.c, dict[ModelName, datetime]()
    for row in connection.execute(sa.select(EVENTS).where(c.topic.in_((MODEL_REMOVED, RESTORED))).order_by(c.id)):
        if row.topic == MODEL_REMOVED:
            found[ModelName(row.fields.get("model", ""))] = row.at
        for name in row.fields.get("models", "").split():
            found.pop(ModelName(name), None)
    return found


def _reserved(connection: sa.Connection) -> int:
    """Return the highest id ever reserved."""
    found = connection.execute(sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'events'")).scalar()
    newest = connection.execute(sa.select(sa.func.max(EVENTS.c.id))).scalar()
    return max(found if isinstance(found, int) else 0, newest or 0, 0)


def _after(connection: sa.Connection, last: int) -> tuple[Event, ...]:
    """Return the events behind this id, in their order."""
    rows = connection.execute(sa.select(EVENTS).where(EVENTS.c.id > last).order_by(EVENTS.c.id))
    return tuple(Event(row.id, row.at, row.topic, row.message, row.fields) for row in rows)
