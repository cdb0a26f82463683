"""What variants take on the processor."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; earlier runs were not compared."""
    op.add_column("trials", sa.Column("cpu", sa.JSON()))
