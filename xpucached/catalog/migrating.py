"""Record: how a catalog of an earlier version is brought to the newest revision."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import sqlalchemy as sa

from xpucached.catalog import tables
from xpucached.catalog.soundness import Corrupt
from xpucached.errors import CatalogError

_INSTALL: Final = "it stays as it is: start again when xpucached is installed whole"

_VERSION: Final = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Where Alembic keeps the revision, as it makes that."""


def _home() -> Path:
    """Where the migrations lie: beside the package in a checkout, inside it once installed."""
    package = Path(__file__).parents[1]
    inside = package / "migrations"
    return inside if inside.is_dir() else package.parent / "migrations"


def every_revision(home: Path | None = None) -> list[str]:
    """Return the revisions that there are.  Raises `CatalogError` where some of ours are not there, or not whole.

    A package may be half unpacked, and is nothing that a catalog is to blame for.
    """
    place = home or _home()
    try:
        from alembic.script import ScriptDirectory  # noqa: PLC0415 - slow to load, and seldom needed

        found = [one.revision for one in ScriptDirectory(str(place)).walk_revisions()]
    except Exception as error:
        raise CatalogError(f"the migrations in {place} cannot be read: {error}", hint=_INSTALL) from error
    if home is None and tables.REVISION not in found:
        raise CatalogError(f"in {place} the migration {tables.REVISION} is missing", hint=_INSTALL)
    return found


def migrate(connection: sa.Connection, home: Path | None = None) -> None:
    """Bring the catalog to the newest revision, wholly or not at all; ``home`` is where the revisions lie."""
    if home is None and (_revision(connection) == tables.REVISION or _made(connection)):
        return
    every_revision(home)
    from alembic import command  # noqa: PLC0415 - slow to load, and seldom needed
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(home or _home()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    # A migration may make a table anew and drop the old one, and with foreign keys on that would delete its children.
    # (Said to the driver: whatever goes through SQLAlchemy begins a transaction, in which this has no effect.)
    driver = connection.connection.cursor()
    driver.execute("PRAGMA foreign_keys = OFF")
    connection.execution_options(immediate=True)
    try:
        with connection.begin():
            command.upgrade(config, "head")
            broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchone()
            if broken is not None:
                raise Corrupt(f"a migration left a row without its parent in: {broken[0]}")
    finally:
        driver.execute("PRAGMA foreign_keys = ON")


def _made(connection: sa.Connection) -> bool:
    """Make all tables at once where there are none yet, as the migrations would one after the other; tell whether."""
    connection.execution_options(immediate=True)
    with connection.begin():
        if connection.exec_driver_sql("SELECT 1 FROM sqlite_master").first() is not None:
            return False
        tables.METADATA.create_all(connection, checkfirst=False)
        _VERSION.create(connection, checkfirst=False)
        connection.execute(sa.insert(_VERSION).values(version_num=tables.REVISION))
        return True


def _revision(connection: sa.Connection) -> str | None:
    with connection.begin():
        if connection.exec_driver_sql("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").first() is None:
            return None
        return connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
