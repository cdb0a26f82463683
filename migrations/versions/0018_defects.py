"""What the codes of defects mean is told by the cache kinds, and stands in a table of its own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table; the daemon fills it when it starts."""
    op.create_table(
        "defects",
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("meaning", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("code", name="pk_defects"),
        sqlite_with_rowid=False,
    )
