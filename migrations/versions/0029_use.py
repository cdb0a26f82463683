"""Whether runs used a GPU."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; of earlier runs it is not known."""
    op.add_column("trials", sa.Column("use", sa.JSON()))
