"""What was known of entries that are not there now."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "departed",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("root", sa.Text(), nullable=False),
        sa.Column("leaf", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("trusted", sa.Text(), nullable=False),
        sa.Column("first_seen", sa.BigInteger(), nullable=False),
        sa.Column("run_used", sa.BigInteger()),
        sa.Column("cost", sa.Float()),
        sa.Column("restored", sa.BigInteger()),
        sa.Column("witnessed", sa.BigInteger()),
        sa.Column("hits", sa.Integer()),
        sa.Column("program", sa.Text()),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("runs", sa.Text(), nullable=False),
        sa.Column("models", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "root", "leaf", "source", name="pk_departed"),
        sqlite_with_rowid=False,
    )
