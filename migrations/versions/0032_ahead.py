"""An index of what was compiled ahead."""

from __future__ import annotations

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the index."""
    op.execute("CREATE INDEX ix_entries_ahead ON entries (target_id) WHERE origin = 'built-ahead'")
