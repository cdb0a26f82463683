"""What an entry is for is a target, and what was found out about a runtime is a check, as everywhere else."""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_NEW = "replace(replace({0}, 'environment', 'target'), 'assays', 'runtime_checks')"


def upgrade() -> None:
    """Rename tables, columns, indexes, triggers and constraints, where the schema stands: no row is touched.

    ``ALTER TABLE`` would leave the constraints their names, and a catalog may have a million entries.
    """
    connection = op.get_bind()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    names = ", ".join(f"{column} = {_NEW.format(column)}" for column in ("name", "tbl_name", "sql"))
    connection.exec_driver_sql(f"UPDATE sqlite_master SET {names}")  # noqa: S608 - ours
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    # So that every other connection reads the schema anew, and then this one.
    connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = RESET")
