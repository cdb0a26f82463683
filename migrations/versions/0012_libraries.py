"""Which libraries the processes of a run had mapped."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; of runs from before it is not known."""
    op.add_column("runs", sa.Column("libraries", sa.JSON()))
