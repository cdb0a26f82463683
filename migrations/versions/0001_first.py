"""The first catalog: environments, stores, entries, models, runs, the host, removals under way.

Times are microseconds since 1970 in UTC, sizes are bytes.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make all tables."""
    op.create_table(
        "changes",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("stamp", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_changes"),
    )
    op.create_table(
        "environments",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("driver", sa.Text(), nullable=False),
        sa.Column("architecture", sa.Text(), nullable=True),
        sa.Column("first", sa.BigInteger(), nullable=True),
        sa.Column("last", sa.BigInteger(), nullable=True),
        sa.Column("present", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_environments"),
        sa.UniqueConstraint("fingerprint", name="uq_environments_fingerprint"),
    )
    op.create_table(
        "host",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("surveyed", sa.BigInteger(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_host"),
    )
    op.create_table(
        "intents",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("root", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "root", "key", name="pk_intents"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "models",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("command", sa.JSON(), nullable=False),
        sa.Column("directory", sa.Text(), nullable=False),
        sa.Column("variables", sa.JSON(), nullable=False),
        sa.Column("timeout", sa.Float(), nullable=False),
        sa.Column("workload", sa.Text(), nullable=False),
        sa.Column("store", sa.Text(), nullable=True),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_models"),
    )
    op.create_table(
        "stores",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("root", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("via", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("owner", sa.Integer(), nullable=True),
        sa.Column("foreign_files", sa.Integer(), nullable=False),
        sa.Column("scanned", sa.BigInteger(), nullable=False),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_stores"),
        sa.UniqueConstraint("kind", "root", name="uq_stores_kind_root"),
    )
    op.create_table(
        "change_environments",
        sa.Column("change_id", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("appeared", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["change_id"], ["changes.id"], name="fk_change_environments_change_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["environment_id"], ["environments.id"], name="fk_change_environments_environment_id"),
        sa.PrimaryKeyConstraint("change_id", "environment_id", name="pk_change_environments"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "entries",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("store_id", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("stamp", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("flaw", sa.Text(), nullable=True),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("allocated", sa.BigInteger(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("accessed", sa.BigInteger(), nullable=True),
        sa.Column("first_seen", sa.BigInteger(), nullable=False),
        sa.Column("run_used", sa.BigInteger(), nullable=True),
        sa.Column("environment_id", sa.Integer(), nullable=True),
        sa.Column("origin", sa.Text(), nullable=True),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("constants", sa.Text(), nullable=False),
        sa.Column("image", sa.Text(), nullable=True),
        sa.Column("image_size", sa.BigInteger(), nullable=False),
        sa.Column("binary", sa.Text(), nullable=True),
        sa.Column("digest", sa.Text(), nullable=True),
        sa.Column("trusted", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("kernels", sa.Text(), nullable=False),
        sa.Column("kernel_names", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["environment_id"], ["environments.id"], name="fk_entries_environment_id"),
        sa.ForeignKeyConstraint(["store_id"], ["stores.id"], name="fk_entries_store_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_entries"),
        sa.UniqueConstraint("store_id", "key", name="uq_entries_store_id_key"),
    )
    op.create_index(
        "ix_entries_environment_id_state_allocated", "entries", ["environment_id", "state", "allocated"], unique=False
    )
    op.create_index("ix_entries_ref", "entries", ["ref"], unique=False)
    op.create_index(
        "ix_entries_store_id_state_size_allocated", "entries", ["store_id", "state", "size", "allocated"], unique=False
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("workload", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("started", sa.BigInteger(), nullable=False),
        sa.Column("finished", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("passes", sa.JSON(), nullable=False),
        sa.Column("attributed", sa.Integer(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("output", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["model"], ["models.name"], name="fk_runs_model", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_runs_model_id", "runs", ["model", "id"], unique=False)
    op.create_table(
        "attributions",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("entry_id", sa.Integer(), nullable=False),
        sa.Column("created", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["entry_id"], ["entries.id"], name="fk_attributions_entry_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_attributions_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "entry_id", name="pk_attributions"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_attributions_entry_id", "attributions", ["entry_id"], unique=False)
    op.create_table(
        "run_environments",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["environment_id"], ["environments.id"], name="fk_run_environments_environment_id"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_run_environments_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "position", name="pk_run_environments"),
        sqlite_with_rowid=False,
    )
