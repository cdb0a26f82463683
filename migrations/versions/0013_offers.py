"""Which driver in use offered which environments; so far there was one, the host's own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table, and note what the host offered."""
    op.create_table(
        "offers",
        sa.Column("driver", sa.Text(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], "fk_offers_environment_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("driver", "environment_id", name="pk_offers"),
        sqlite_with_rowid=False,
    )
    op.execute("INSERT INTO offers (driver, environment_id) SELECT '', id FROM environments WHERE first IS NOT NULL")
