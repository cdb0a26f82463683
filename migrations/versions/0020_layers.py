"""What an entry was compiled from is known by its digest, which joins the caches of one program."""

from __future__ import annotations

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; each entry that was compiled from SPIR-V is read once more, for its digest."""
    connection = op.get_bind()
    for statement in (
        "ALTER TABLE entries ADD COLUMN input TEXT",
        "ALTER TABLE entries ADD COLUMN facts TEXT",
        "CREATE INDEX ix_entries_input ON entries (input) WHERE input IS NOT NULL",
        "UPDATE entries SET stamp = '', place = NULL WHERE image = 'spirv'",
    ):
        connection.exec_driver_sql(statement)
