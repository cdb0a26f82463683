"""An entry has a defect, where it had a flaw: the field's word for it, as everywhere else."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_ADD = (
    "INSERT INTO figures (store_id, environment_id, state, defect, entries, size, allocated)"
    " VALUES (NEW.store_id, coalesce(NEW.environment_id, 0), NEW.state, coalesce(NEW.defect, ''), 1, NEW.size,"
    " NEW.allocated) ON CONFLICT (store_id, environment_id, state, defect) DO UPDATE SET entries = entries + 1,"
    " size = size + excluded.size, allocated = allocated + excluded.allocated;"
)
_TAKE = (
    "UPDATE figures SET entries = entries - 1, size = size - OLD.size, allocated = allocated - OLD.allocated"
    " WHERE store_id = OLD.store_id AND environment_id = coalesce(OLD.environment_id, 0) AND state = OLD.state"
    " AND defect = coalesce(OLD.defect, '');"
)


def upgrade() -> None:
    """Rename the columns and the words that stand in rows; the triggers and indexes are made anew."""
    for trigger in ("entries_added", "entries_changed", "entries_gone"):
        op.execute(f"DROP TRIGGER {trigger}")
    op.drop_index("ix_entries_page", "entries")
    op.drop_index("ix_entries_worth", "entries")
    # What is drawn of a table's columns must not depend on which SQLite renames one: so the sums are made anew.
    op.drop_table("figures")
    op.execute("ALTER TABLE entries RENAME COLUMN flaw TO defect")
    op.execute("UPDATE entries SET state = 'defective' WHERE state = 'flawed'")
    op.execute("UPDATE events SET topic = 'runtime-checked' WHERE topic = 'runtime-assayed'")
    op.create_table(
        "figures",
        sa.Column("store_id", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("defect", sa.Text(), nullable=False),
        sa.Column("entries", sa.Integer(), nullable=False),
        sa.Column("size", sa.Float(), nullable=False),
        sa.Column("allocated", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["store_id"], ["stores.id"], name="fk_figures_store_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("store_id", "environment_id", "state", "defect", name="pk_figures"),
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO figures SELECT store_id, coalesce(environment_id, 0), state, coalesce(defect, ''), count(*),"
        " total(size), total(allocated) FROM entries GROUP BY 1, 2, 3, 4"
    )
    op.create_index("ix_entries_page", "entries", ["store_id", "environment_id", "state", "defect"])
    op.create_index(
        "ix_entries_worth",
        "entries",
        [
            "environment_id",
            "last_used",
            "created",
            "store_id",
            "state",
            "defect",
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
        "CREATE TRIGGER entries_changed AFTER UPDATE OF environment_id, state, defect, size, allocated ON entries"
        f" BEGIN {_TAKE} {_ADD} END"
    )
    op.execute(f"CREATE TRIGGER entries_gone AFTER DELETE ON entries BEGIN {_TAKE} END")
