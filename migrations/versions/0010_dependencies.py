"""What a run needed that proved its model warm: the files by which a later change is noticed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "dependencies",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_dependencies_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", name="pk_dependencies"),
    )
