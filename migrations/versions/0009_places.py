"""What a quick look compares: a number for the directories of each entry, and when a store was looked at thoroughly."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.add_column("entries", sa.Column("place", sa.BigInteger()))
    op.add_column("stores", sa.Column("thorough", sa.BigInteger()))
