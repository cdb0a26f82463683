"""How entries are compiled of which no run told is found out from recipes of others, once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table of what was tried."""
    op.create_table(
        "derived",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], "fk_derived_target_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("kind", "key", "target_id", name="pk_derived"),
        sqlite_with_rowid=False,
    )
