"""A disk that fails for a moment, or lastingly: SQLite calls the catalog malformed then, and it is kept."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests import REPOSITORY
from tests.unit.catalog.test_catalog import filled, model
from xpucached.catalog import Catalog
from xpucached.catalog.entries import all_entries
from xpucached.catalog.models import add_model, all_models
from xpucached.errors import CatalogError

if TYPE_CHECKING:
    from pathlib import Path

    import sqlalchemy as sa

    from tests.support.faults import Faults

pytestmark = pytest.mark.flow

BEGINNING = """
import errno, os, sys
from contextlib import closing
from pathlib import Path
from tests.support import faults
from tests.support.faults import Calls
from xpucached.catalog import Catalog
from xpucached.catalog.entries import all_entries
from xpucached.catalog.models import all_models
from xpucached.errors import CatalogError

path = Path(sys.argv[1])
strike = faults.shared(Path(os.environ["LD_PRELOAD"]), Path(os.environ["FAULTS_PAGE"]))
"""

AT_A_START = """
number = 1
while True:
    strike.fail(path, errno.EIO, Calls.READS, first=number, last=number)
    try:
        with closing(Catalog.open(path)) as opened:
            told = opened.rebuilt or f"{len(opened.read(all_models))} models"
    except CatalogError as error:
        told = error.message.rpartition(": ")[2]
    if strike.stop() < number:
        break
    print(told)
    number += 1
"""

BAD_BLOCKS = """
for block in range(1, path.stat().st_size // 4096):
    strike.fail(path, errno.EIO, Calls.READS, block=block)
    try:
        with closing(Catalog.open(path)) as opened:
            print(opened.rebuilt)
    except CatalogError as error:
        print(error.message.rpartition(": ")[2])
    strike.stop()
"""

AT_WORK = """
number = 1
while True:
    with closing(Catalog.open(path)) as opened:
        opened._engine.dispose()  # and with it what it remembers of the file
        strike.fail(path, errno.EIO, Calls.READS, first=number, last=number)
        try:
            opened.read(all_entries)
            told = "read"
        except CatalogError as error:
            told = error.message.rpartition(": ")[2]
        if strike.stop() < number:
            break
        print(f"{told}: {opened.corrupt} {opened.mend()} {opened.rebuilt}, {len(opened.read(all_models))} models")
    number += 1
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "catalog.sqlite"
    filled(place)
    with closing(Catalog.open(place)) as opened:
        opened.write(add_model, model())
    return place


def lines(strike: Faults, script: str, path: Path) -> list[str]:
    command = [sys.executable, "-c", BEGINNING + script, str(path)]
    variables = {**os.environ, **strike.variables, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_disk_that_fails_once_at_a_start_costs_no_catalog(strike: Faults, path: Path) -> None:
    """Most reads that failed once cost it, and with it all proofs."""
    told = lines(strike, AT_A_START, path)
    assert len(told) > 100
    assert set(told) == {"1 models", "disk I/O error", "unable to open database file"}
    assert told.count("1 models") > 0.8 * len(told)
    assert [one.name for one in path.parent.glob("catalog*")] == [path.name]


def test_nor_does_one_of_which_a_block_cannot_be_read_any_more(strike: Faults, path: Path) -> None:
    assert set(lines(strike, BAD_BLOCKS, path)) <= {"[Errno 5] Input/output error", "disk I/O error"}
    assert [one.name for one in path.parent.glob("catalog*")] == [path.name]


def test_nor_does_one_that_fails_once_at_work(strike: Faults, path: Path) -> None:
    told = lines(strike, AT_WORK, path)
    assert "database disk image is malformed: True False None, 1 models" in told
    assert {one.partition(": ")[2] for one in told} <= {"True False None, 1 models", "False False None, 1 models"}
    assert [one.name for one in path.parent.glob("catalog*")] == [path.name]


def test_an_index_that_does_not_fit_its_table_is_found_once_it_is_met(path: Path) -> None:
    """What looks as if a disk had failed is looked at more closely than a start does it, which passes this."""
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("PRAGMA writable_schema = ON")
        (row,) = raw.execute("SELECT * FROM sqlite_master WHERE name = 'ix_entries_ref'").fetchall()
        raw.execute("DELETE FROM sqlite_master WHERE name = 'ix_entries_ref'")
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("PRAGMA foreign_keys = ON")
        raw.execute("DELETE FROM entries WHERE id = (SELECT min(id) FROM entries)")
        raw.execute("PRAGMA writable_schema = ON")
        raw.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", row)

    def by_index(connection: sa.Connection) -> object:
        return connection.exec_driver_sql("SELECT sum(size) FROM entries INDEXED BY ix_entries_ref").all()

    with closing(Catalog.open(path)) as opened:
        assert (opened.rebuilt, len(opened.read(all_entries))) == (None, 499)
        with pytest.raises(CatalogError, match="malformed"):
            opened.read(by_index)
        assert opened.corrupt
        assert opened.mend()
        assert "1 registered models were taken over" in (opened.rebuilt or "")
        assert [one.name for one in opened.read(all_models)] == ["net"]
