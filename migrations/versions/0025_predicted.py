"""What was foretold is called predicted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table anew under its name, and keep its rows."""
    op.create_table(
        "predicted",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("predicted_key", sa.Text()),
        sa.Column("passed_on", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["kind", "key"], ["recipes.kind", "recipes.key"], "fk_predicted_kind_key", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], "fk_predicted_target_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("kind", "key", "target_id", name="pk_predicted"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_predicted_predicted_key", "predicted", ["predicted_key"])
    op.execute("INSERT INTO predicted SELECT kind, key, target_id, foretold, bequeathed FROM foretold")
    op.drop_table("foretold")
