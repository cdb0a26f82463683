"""By what the entries of a bundle are revoked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table and the column; of what came earlier only the bundle's digest is known."""
    op.create_table(
        "vouchers",
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("stamp", "signing_key", "digest")),
        sa.PrimaryKeyConstraint("stamp", "signing_key", "digest", name="pk_vouchers"),
        sqlite_with_rowid=False,
    )
    op.add_column("builds", sa.Column("signing_key", sa.Text(), nullable=True))
