"""Where programs will look for what they had compiled when only the compiler is another is kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "foretold",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("foretold", sa.Text()),
        sa.Column("bequeathed", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["kind", "key"], ["recipes.kind", "recipes.key"], "fk_foretold_kind_key", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], "fk_foretold_target_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("kind", "key", "target_id", name="pk_foretold"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_foretold_foretold", "foretold", ["foretold"])
