"""What an entry is for is told in the words of its kind, of which SYCL's are one."""

from __future__ import annotations

import hashlib
import json

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def _fingerprint(words: tuple[str, ...], between: str) -> str:
    return hashlib.blake2b(between.join(words).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def upgrade() -> None:
    """Divide targets into what stays with the device and what is the toolchain's; theirs were all of SYCL."""
    connection = op.get_bind()
    for statement in (
        "ALTER TABLE targets RENAME COLUMN platform TO family",
        "ALTER TABLE targets RENAME COLUMN driver TO toolchain",
        "ALTER TABLE targets ADD COLUMN kind TEXT NOT NULL DEFAULT 'sycl'",
        "ALTER TABLE targets ADD COLUMN facts JSON NOT NULL DEFAULT '[]'",
        "ALTER TABLE builds RENAME COLUMN platform TO family",
    ):
        connection.exec_driver_sql(statement)
    rows = connection.exec_driver_sql("SELECT id, family, device, version, toolchain FROM targets").fetchall()
    for number, family, device, version, toolchain in rows:
        before = _fingerprint((family, device, version, toolchain), "/")
        after = _fingerprint(("sycl", family, device, toolchain, "version", version), "\0")
        facts = json.dumps([["version", version]])
        connection.exec_driver_sql("UPDATE targets SET fingerprint = ?, facts = ? WHERE id = ?", (after, facts, number))
        connection.exec_driver_sql("UPDATE refusals SET fingerprint = ? WHERE fingerprint = ?", (after, before))
    connection.exec_driver_sql("ALTER TABLE targets DROP COLUMN version")
    # SQLite adds no column that must have a value without giving one; a new catalog has none for these.
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    connection.exec_driver_sql(
        "UPDATE sqlite_master SET sql = replace(replace(sql, ' DEFAULT ''sycl''', ''), ' DEFAULT ''[]''', '')"
        " WHERE name = 'targets'"
    )
    schema = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql(f"PRAGMA schema_version = {schema + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = RESET")
