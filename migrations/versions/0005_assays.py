"""Assays: with which builds of the SYCL runtime the cache may be switched on; and the units that wait for a model."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table, and the column."""
    op.create_table(
        "assays",
        sa.Column("build", sa.Text(), nullable=False),
        sa.Column("library", sa.Text(), nullable=False),
        sa.Column("safety", sa.Text(), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("build", name="pk_assays"),
        sqlite_with_rowid=False,
    )
    op.add_column("models", sa.Column("before", sa.JSON(), nullable=True))
