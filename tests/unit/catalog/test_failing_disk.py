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
from xpucached.catalog import Catalog, setting_aside, soundness
from xpucached.catalog.entries import all_entries
from xpucached.catalog.models import all_models
from xpucached.errors import CatalogError

soundness._LATER = 0.0
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

TAKES_NOTHING = """
import resource

resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
for block in range(1, path.stat().st_size // 4096):
    strike.fail(path, errno.EIO, Calls.READS, block=block)
    try:
        with closing(Catalog.open(path)) as opened:
            print(opened.rebuilt)
    except CatalogError as error:
        print(error.message.rpartition(": ")[2])
    strike.stop()
"""

MOVING = """
really = setting_aside.set_aside


def set_aside(path, why):
    aside = really(path, why)
    strike.fail(aside, errno.EIO, Calls.READS, block=block)  # the block goes with its file
    return aside


setting_aside.set_aside = set_aside
"""

BAD_BLOCKS = """
whole = path.read_bytes()
for block in range(1, len(whole) // 4096, 7):
    strike.fail(path, errno.EIO, Calls.READS, block=block)
    try:
        with closing(Catalog.open(path)) as opened:
            told = opened.rebuilt or ""
        with closing(Catalog.open(path)) as opened:
            print(told.partition(" (")[2].partition(")")[0], opened.rebuilt, len(opened.read(all_models)))
    except CatalogError as error:
        print(error.message.rpartition(": ")[2])
    strike.stop()
    for one in path.parent.glob("catalog*"):
        one.unlink()
    path.write_bytes(whole)
"""

BAD_BLOCK_AT_WORK = """
import sqlite3

with closing(sqlite3.connect(path)) as raw:
    block = raw.execute("SELECT rootpage FROM sqlite_master WHERE name = 'entries'").fetchone()[0] - 1
with closing(Catalog.open(path)) as opened:
    opened._engine.dispose()  # and with it what it remembers of the file
    strike.fail(path, errno.EIO, Calls.READS, block=block)
    try:
        opened.read(all_entries)
    except CatalogError as error:
        told = error.message.rpartition(": ")[2]
    print(f"{told}: {opened.mend()}, {len(opened.read(all_models))} models")
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


def test_nor_does_one_that_takes_nothing_any_more(strike: Faults, path: Path) -> None:
    """It is away as a whole: what can still be read of it is remembered."""
    assert set(lines(strike, TAKES_NOTHING, path)) <= {"[Errno 5] Input/output error", "disk I/O error"}
    assert [one.name for one in path.parent.glob("catalog*")] == [path.name]


def test_a_block_that_stays_unreadable_stops_no_daemon(strike: Faults, path: Path) -> None:
    """A bad sector, or a checksum of the file system that does not fit: each start would end with it."""
    told = lines(strike, MOVING + BAD_BLOCKS, path)
    assert len(told) > 5
    assert {one.rpartition(" ")[0] for one in told} == {"its disk does not give all of it any more None"}
    assert sum(one.endswith(" 1") for one in told) > 0.7 * len(told)


def test_nor_does_one_that_is_met_at_work(strike: Faults, path: Path) -> None:
    (told,) = lines(strike, MOVING + BAD_BLOCK_AT_WORK, path)
    assert told == "database disk image is malformed: True, 1 models"


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
