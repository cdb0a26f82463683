"""What making an entry took, where that was measured, and when somebody brought it back from the trash."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.add_column("entries", sa.Column("cost", sa.Float()))
    op.add_column("entries", sa.Column("restored", sa.BigInteger()))
