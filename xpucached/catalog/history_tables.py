"""Record: the tables of what was over time, beside those in `tables`; `salvage` brings them over."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from xpucached.catalog.moments import Moment
from xpucached.catalog.tables import METADATA

# Bytes are floats, as in `figures`: two forged files together may leave 64 bits.
DAYS: Final = sa.Table(
    "days",
    METADATA,
    sa.Column("day", sa.Text, primary_key=True),  # 2026-11-22, in UTC
    *(
        sa.Column(name, sa.Integer, nullable=False)
        for name in ("replayed", "prewarmed", "warmed", "failed", "evicted", "changes")
    ),
    *(
        sa.Column(name, sa.Float, nullable=False)
        for name in ("replay_seconds", "spared_seconds", "prewarm_seconds", "freed")
    ),
    # Null where nobody watched, or looked.
    *(sa.Column(name, sa.Integer) for name in ("compiled", "loads", "entries")),
    *(sa.Column(name, sa.Float) for name in ("avoided_seconds", "estimated_seconds", "allocated")),
    sqlite_with_rowid=False,
)

WARMTH: Final = sa.Table(
    "warmth",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("at", Moment, nullable=False),
    sa.Column("model", sa.Text, nullable=False),  # by its name: it may be gone
    sa.Column("before", sa.Text),
    *(sa.Column(name, sa.Text, nullable=False) for name in ("now", "why")),
    sqlite_autoincrement=True,
)
sa.Index(None, WARMTH.c.model, WARMTH.c.id)
