"""What became slower or faster after a change, and whether somebody has seen it; what runs met."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table and the columns; of earlier runs it is not known."""
    op.add_column("runs", sa.Column("kernel", sa.Text()))
    op.add_column("runs", sa.Column("changes", sa.JSON()))
    op.create_table(
        "shifts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("variant", "figure")),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.Float(), nullable=False) for name in ("before", "spread", "after")),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in ("before_runs", "after_runs")),
        sa.Column("changed", sa.JSON(), nullable=False),
        sa.Column("seen", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_shifts"),
        sa.ForeignKeyConstraint(["model"], ["models.name"], name="fk_shifts_model", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_shifts_run_id", ondelete="CASCADE"),
        sa.UniqueConstraint("model", "variant", "figure", "run_id", name="uq_shifts_model_variant_figure_run_id"),
        sqlite_autoincrement=True,
    )
