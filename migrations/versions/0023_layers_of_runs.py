"""Of each run it is known how many entries of each kind of cache it created or used."""

from __future__ import annotations

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; of earlier runs it is not known."""
    op.execute("ALTER TABLE runs ADD COLUMN layers JSON")
