"""Sums that are kept instead of counted, when an entry was last used as one column, and indexes for plans and pages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_LAST_USED = (
    "max(created, coalesce(accessed, created), coalesce(run_used, created), coalesce(restored, created),"
    " coalesce(witnessed, created))"
)
_ADD = (
    "INSERT INTO figures (store_id, environment_id, state, flaw, entries, size, allocated)"
    " VALUES (NEW.store_id, coalesce(NEW.environment_id, 0), NEW.state, coalesce(NEW.flaw, ''), 1, NEW.size,"
    " NEW.allocated) ON CONFLICT (store_id, environment_id, state, flaw) DO UPDATE SET entries = entries + 1,"
    " size = size + excluded.size, allocated = allocated + excluded.allocated;"
)
_TAKE = (
    "UPDATE figures SET entries = entries - 1, size = size - OLD.size, allocated = allocated - OLD.allocated"
    " WHERE store_id = OLD.store_id AND environment_id = coalesce(OLD.environment_id, 0) AND state = OLD.state"
    " AND flaw = coalesce(OLD.flaw, '');"
)


def upgrade() -> None:
    """Make the table, fill it, and let triggers keep it; change the indexes."""
    op.create_table(
        "figures",
        sa.Column("store_id", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("flaw", sa.Text(), nullable=False),
        sa.Column("entries", sa.Integer(), nullable=False),
        sa.Column("size", sa.Float(), nullable=False),
        sa.Column("allocated", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["store_id"], ["stores.id"], name="fk_figures_store_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("store_id", "environment_id", "state", "flaw", name="pk_figures"),
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO figures SELECT store_id, coalesce(environment_id, 0), state, coalesce(flaw, ''), count(*),"
        " total(size), total(allocated) FROM entries GROUP BY 1, 2, 3, 4"
    )
    op.add_column("entries", sa.Column("last_used", sa.BigInteger(), sa.Computed(_LAST_USED, persisted=False)))
    op.drop_index("ix_entries_environment_id_state_allocated", "entries")
    op.drop_index("ix_entries_store_id_state_size_allocated", "entries")
    op.create_index("ix_entries_page", "entries", ["store_id", "environment_id", "state", "flaw"])
    op.create_index(
        "ix_entries_worth",
        "entries",
        [
            "environment_id",
            "last_used",
            "created",
            "store_id",
            "state",
            "flaw",
            "allocated",
            "image_size",
            "cost",
            "restored",
            "accessed",
            "run_used",
            "witnessed",
        ],
    )
    op.execute(f"CREATE TRIGGER entries_added AFTER INSERT ON entries BEGIN {_ADD} END")
    op.execute(
        "CREATE TRIGGER entries_changed AFTER UPDATE OF environment_id, state, flaw, size, allocated ON entries"
        f" BEGIN {_TAKE} {_ADD} END"
    )
    op.execute(f"CREATE TRIGGER entries_gone AFTER DELETE ON entries BEGIN {_TAKE} END")
