"""Runtimes that count what they find in a store are believed: the newest counts stand with it."""

from __future__ import annotations

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; the next look fills them."""
    connection = op.get_bind()
    for name in ("found", "missed"):
        connection.exec_driver_sql(f"ALTER TABLE stores ADD COLUMN {name} INTEGER")
