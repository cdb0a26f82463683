"""Empty catalogs: of the newest revision, copied from one that was made once, and of the one before."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path

from tests import REPOSITORY
from xpucached.catalog import Catalog, migrating, opening, tables

MIGRATIONS = REPOSITORY / "migrations"


@functools.cache
def _made() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "catalog.sqlite")
        Catalog.open(path).close()
        return path.read_bytes()


def put(path: Path, content: bytes = b"") -> None:
    """Put one where there is none, as a first start would leave it, or with that content."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(0o600, exist_ok=False)
    path.write_bytes(content or _made())


def fresh(path: Path) -> Catalog:
    """Put one there, and open it."""
    put(path)
    return Catalog.open(path)


def migrated(path: Path, home: Path = MIGRATIONS) -> None:
    """Make a catalog by these migrations, one after the other, as one that grew with them was made."""
    path.parent.mkdir(exist_ok=True)
    path.touch(0o600)
    engine = opening.connections(path)
    with engine.connect() as connection:
        migrating.migrate(connection, home)
    engine.dispose()


def older(path: Path) -> None:
    """Make a catalog of the revision before the newest."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "older")
        shutil.copytree(MIGRATIONS, home, ignore=shutil.ignore_patterns("__pycache__"))
        (newest,) = home.glob(f"versions/{tables.REVISION}*.py")
        newest.unlink()
        migrated(path, home)
