"""Which models' entries replay has rebuilt, apart from what their runs were seen to use."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table, and the column that fills it."""
    op.create_table(
        "inherited",
        sa.Column("entry_id", sa.Integer(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["entry_id"], ["entries.id"], name="fk_inherited_entry_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["model"], ["models.name"], name="fk_inherited_model", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("entry_id", "model", name="pk_inherited"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_inherited_model", "inherited", ["model"])
    op.add_column("builds", sa.Column("models", sa.JSON(), nullable=True))
