"""What happened each day, and when models came to stand otherwise."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

_DAY = "date(at / 1000000, 'unixepoch')"
_COUNTED = ("replayed", "prewarmed", "warmed", "failed", "evicted", "changes")
_SUMMED = ("replay_seconds", "spared_seconds", "prewarm_seconds", "freed")


def upgrade() -> None:
    """Make the tables; what builds, runs and changes still tell of the past is what the days begin with."""
    op.create_table(
        "days",
        sa.Column("day", sa.Text(), nullable=False),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in _COUNTED),
        *(sa.Column(name, sa.Float(), nullable=False) for name in _SUMMED),
        *(sa.Column(name, sa.Integer()) for name in ("compiled", "loads", "entries")),
        *(sa.Column(name, sa.Float()) for name in ("avoided_seconds", "estimated_seconds", "allocated")),
        sa.PrimaryKeyConstraint("day", name="pk_days"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "warmth",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("before", sa.Text()),
        sa.Column("now", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_warmth"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_warmth_model_id", "warmth", ["model", "id"])
    _fill("builds", _DAY, {"replayed": "count(*)", "replay_seconds": "sum(seconds)"}, "origin = 'rebuilt'")
    finished = "date(finished / 1000000, 'unixepoch')"
    neither = "('warmed', 'uncached', 'cancelled', 'lost')"
    ended = {"warmed": "sum(outcome = 'warmed')", "failed": f"sum(outcome NOT IN {neither})"}
    _fill("runs", finished, ended, "outcome IS NOT NULL")
    _fill("changes", _DAY, {"changes": "count(*)"}, "1")


def _fill(table: str, day: str, sums: dict[str, str], where: str) -> None:
    """Add what a table tells of each day."""
    names = (*_COUNTED, *_SUMMED)
    values = ", ".join(sums.get(name, "0") for name in names)
    update = ", ".join(f"{name} = excluded.{name}" for name in sums)
    # All of it is our own text.
    op.execute(
        f"INSERT INTO days (day, {', '.join(names)}) SELECT {day}, {values} FROM {table}"  # noqa: S608
        f" WHERE {where} AND {day} IS NOT NULL GROUP BY {day} ON CONFLICT (day) DO UPDATE SET {update}"
    )
