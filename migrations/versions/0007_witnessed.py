"""That programs were seen to load an entry: when last, how often, and which one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.add_column("entries", sa.Column("witnessed", sa.BigInteger()))
    op.add_column("entries", sa.Column("hits", sa.Integer()))
    op.add_column("entries", sa.Column("program", sa.Text()))
