"""What is no catalog of ours is found at the start, whichever row it is in; and how a catalog is opened."""

from __future__ import annotations

import errno
import sqlite3
import tracemalloc
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pytest
import sqlalchemy as sa

from tests.support import catalogs
from xpucached.catalog import Catalog, migrating, opening, soundness
from xpucached.catalog.moments import Moment, microseconds
from xpucached.catalog.soundness import Corrupt, is_damage, proven
from xpucached.catalog.tables import ENTRIES, METADATA
from xpucached.domain.stores import EntryState, ImageFormat
from xpucached.domain.targets import Origin
from xpucached.errors import CatalogError, RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "catalog.sqlite"


@pytest.fixture
def catalog(path: Path) -> Iterator[Catalog]:
    with closing(catalogs.fresh(path)) as opened:
        yield opened


def plain(column: sa.Column[object]) -> object:
    """Return what may stand in a column."""
    match column.type:
        case sa.JSON():
            return "[]"
        case sa.Float() | sa.Integer() | sa.Boolean():
            return 1
        case Moment():
            return 1_700_000_000_000_000
        case _:
            return "x"


def put(catalog: Catalog, table: str, **words: object) -> None:
    """Put a row into a table, as no program of ours would: each value is what may stand there, but for these."""
    columns = {one.name: plain(one) for one in METADATA.tables[table].c if one.computed is None} | words
    names = ", ".join(f'"{name}"' for name in columns)
    values = ", ".join("CAST(? AS TEXT)" if isinstance(one, bytes) else "?" for one in columns.values())
    with closing(sqlite3.connect(catalog.path)) as raw, raw:
        raw.execute(f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({values})", tuple(columns.values()))  # noqa: S608


CALENDAR: Final = (datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC))


RUN: Final = {"model": "x", "reason": "manual", "outcome": "warmed", "libraries": None}
ENTRY: Final = {
    "target_id": None,
    "facts": None,
    "state": "ok",
    "image": None,
    "binary": None,
    "origin": None,
    "kernels": "[]",
}
RECIPE: Final = {"parts": "{}", "facts": "{}"}


@pytest.mark.parametrize(
    ("table", "column", "words"),
    [
        ("changes", "stamp", {}),
        ("defects", "code", {"meaning": '{"code":"x","effect":"dead","message":"x"}'}),
        ("host", "document", {}),
        ("intents", "key", {}),
        ("models", "directory", {"exercise": None}),
        ("offers", "driver", {}),
        ("refusals", "stamp", {}),
        ("refusals", "tail", {}),
        ("runs", "output", RUN),
        ("runtime_checks", "build", {"safety": "safe"}),
        ("runtime_checks", "evidence", {"safety": "safe"}),
        ("stores", "via", {"origin": "found", "state": "ok"}),
        ("targets", "device", {}),
    ],
)
def test_what_a_start_needs_is_read_before_it(
    catalog: Catalog, table: str, column: str, words: dict[str, object]
) -> None:
    put(catalog, table, **words)
    catalog.read(soundness.check, growing=False)
    # Its type is right, so only who reads it notices.
    put(catalog, table, **(words | {column: b"1\xff"}))
    catalog.read(soundness.check_types, growing=True)
    with pytest.raises(CatalogError):
        catalog.read(soundness.check, growing=False)


@pytest.mark.parametrize(("table", "column", "words"), [("entries", "key", ENTRY), ("recipes", "lineage", RECIPE)])
def test_what_grows_is_read_only_where_all_is(
    catalog: Catalog, table: str, column: str, words: dict[str, object]
) -> None:
    put(catalog, "stores", origin="found", state="ok")
    put(catalog, table, **words)
    catalog.read(soundness.check, growing=True)
    put(catalog, table, **(words | {column: b"1\xff"}))
    catalog.read(soundness.check, growing=False)
    with pytest.raises(CatalogError):
        catalog.read(soundness.check, growing=True)


def test_the_last_run_of_a_model_is_read_however_many_came_after_it(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soundness, "_EVERY", 1)
    for number, name in ((1, "first"), (2, "second")):
        put(catalog, "models", name=name, exercise=None)
        put(catalog, "runs", **(RUN | {"id": number, "model": name}))
    catalog.read(soundness.check, growing=True)
    put(catalog, "runs", **(RUN | {"id": 1, "model": "first", "output": b"1\xff"}))
    catalog.read(soundness.check, growing=False)
    with pytest.raises(CatalogError):
        catalog.read(soundness.check, growing=True)


def test_a_start_asks_each_table_for_what_cannot_be_there(catalog: Catalog) -> None:
    # Nothing else that a start reads looks into this one.
    put(catalog, "shifts", before="one")
    with pytest.raises(CatalogError, match="a row of the table shifts holds what cannot be there"):
        catalog.read(soundness.check, growing=False)


@pytest.mark.parametrize(("table", "column", "grows"), [("changes", "at", False), ("predicted", "target_id", True)])
def test_a_row_that_holds_what_cannot_be_there_is_found_in_its_table(
    catalog: Catalog, table: str, column: str, *, grows: bool
) -> None:
    put(catalog, table, **{column: "one"})
    if grows:
        catalog.read(soundness.check_types, growing=False)
    with pytest.raises(CatalogError, match=f"a row of the table {table} holds what cannot be there"):
        catalog.read(soundness.check_types, growing=grows)


def is_wrong(table: sa.Table, **words: object) -> bool:
    """Return what is said of a row of which each value is what may stand there, but for these."""
    row = {one.name: plain(one) for one in table.c if one.computed is None}
    if table is ENTRIES:
        row |= {"state": "ok", "image": None, "binary": None, "origin": None}
    columns = ", ".join(f'? AS "{name}"' for name in row)
    with closing(sqlite3.connect(":memory:")) as raw:
        asked = f"SELECT {soundness.wrong(table)} FROM (SELECT {columns})"  # noqa: S608 - all names are our own
        return bool(raw.execute(asked, tuple((row | words).values())).fetchone()[0])


@pytest.mark.parametrize("table", METADATA.sorted_tables, ids=lambda one: one.name)
def test_a_value_of_another_type_is_wrong_in_any_column(table: sa.Table) -> None:
    assert not is_wrong(table)
    for column in table.c:
        if column.computed is not None:
            continue
        number = isinstance(column.type, sa.Float | sa.Integer | sa.Boolean | Moment)
        for value in ("one", b"1") if number else (1, 1.5, b"x"):
            assert is_wrong(table, **{column.name: value}), (column.name, value)
        assert is_wrong(table, **{column.name: 1.5}) is not isinstance(column.type, sa.Float)
        # What is null compares with nothing, so no word and no time is asked of it.
        assert is_wrong(table, **{column.name: None}) is not column.nullable
        if isinstance(column.type, Moment):
            ends = [microseconds(one) for one in CALENDAR]
            assert not any(is_wrong(table, **{column.name: one}) for one in ends)
            assert is_wrong(table, **{column.name: ends[0] - 1})
            assert is_wrong(table, **{column.name: ends[1] + 1})


def test_what_is_not_known_is_null_and_no_text_that_says_so() -> None:
    columns = [(one, one.type) for table in METADATA.sorted_tables for one in table.c]
    assert [str(one) for one, kind in columns if isinstance(kind, sa.JSON) and kind.none_as_null != one.nullable] == []


@pytest.mark.parametrize("column", ["state", "image", "binary", "origin"])
def test_a_word_of_an_entry_is_one_of_a_few(column: str) -> None:
    words = {"state": EntryState, "image": ImageFormat, "binary": ImageFormat, "origin": Origin}[column]
    assert [is_wrong(ENTRIES, **{column: word}) for word in (*(one.value for one in words), "another")] == [
        *([False] * len(words)),
        True,
    ]


def failed(code: int, words: str = "it failed") -> sqlite3.Error:
    error = sqlite3.OperationalError(words)
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "damage", "proof"),
    [
        (failed(sqlite3.SQLITE_CORRUPT), True, False),
        (failed(sqlite3.SQLITE_CORRUPT_INDEX), True, False),
        (failed(sqlite3.SQLITE_NOTADB), True, True),
        (failed(sqlite3.SQLITE_ERROR), True, False),
        (failed(sqlite3.SQLITE_ERROR, "no such table: entries"), True, True),
        (failed(sqlite3.SQLITE_ERROR, 'foreign key mismatch - "runs" referencing "models"'), True, True),
        (sqlite3.OperationalError("Could not decode to UTF-8 column"), True, True),
        (sqlite3.OperationalError("closed"), True, False),
        (failed(sqlite3.SQLITE_FULL, "no such table: entries"), False, False),
        (failed(sqlite3.SQLITE_IOERR_READ), False, False),
        (failed(sqlite3.SQLITE_BUSY_SNAPSHOT), False, False),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), True, True),
        (sa.exc.OperationalError("SELECT", {}, failed(sqlite3.SQLITE_CORRUPT)), True, False),
        (sa.exc.OperationalError("SELECT", {}, failed(sqlite3.SQLITE_BUSY)), False, False),
        (OSError(errno.EISDIR, "x"), True, False),
        (OSError(errno.EPERM, "x"), True, False),
        (OSError(errno.ENOSPC, "x"), False, False),
        (Corrupt("it is none"), True, False),
        (ValueError("x"), True, False),
        (MemoryError(), False, False),
        (ImportError("x"), False, False),
        (RequestError("x"), False, False),
        (KeyboardInterrupt(), False, False),
        (None, False, False),
    ],
    ids=repr,
)
def test_what_may_pass_is_told_from_damage_and_only_some_of_that_is_proven(
    error: BaseException | None, *, damage: bool, proof: bool
) -> None:
    assert (is_damage(error), proven(error) is not None) == (damage, proof)


def test_what_was_met_is_told_in_one_short_line() -> None:
    assert soundness.describe(Corrupt("two\n  lines")) == "two lines"
    assert soundness.describe(sa.exc.OperationalError("SELECT", {}, failed(1, "words"))) == "words"
    assert soundness.describe(KeyError("x")) == "KeyError('x')"
    assert soundness.describe(Corrupt()) == "Corrupt()"
    assert len(soundness.describe(Corrupt("x" * 300))) == len(soundness.describe(ValueError("x" * 300))) == 200


def test_an_error_that_is_not_the_file_s_is_raised_as_it_is(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise failed(sqlite3.SQLITE_FULL)

    monkeypatch.setattr("xpucached.catalog.stores.all_stores", full)
    with pytest.raises(CatalogError) as caught:
        catalog.read(soundness.check, growing=False)
    assert not isinstance(caught.value.__cause__, Corrupt)


def test_each_connection_keeps_what_it_wrote_and_its_bounds(catalog: Catalog) -> None:
    wanted = {
        "journal_mode": "wal",
        "synchronous": 1,
        "foreign_keys": 1,
        # In memory: a full /tmp stops no plan.
        "temp_store": 2,
        "journal_size_limit": 64 * 1024 * 1024,
    }

    def found(connection: sa.Connection) -> dict[str, object]:
        return {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in wanted}

    assert catalog.read(found) == catalog.write(found) == wanted


@pytest.mark.parametrize("home", [catalogs.MIGRATIONS, None], ids=["migrated", "made"])
def test_nobody_else_writes_while_a_catalog_is_migrated(path: Path, home: Path | None) -> None:
    if home is None:
        path.touch()
    else:
        catalogs.put(path)
    engine = opening.connections(path)
    others: list[str] = []

    def another(_: object, __: object, statement: str, *___: object) -> None:
        if statement.startswith("BEGIN") or others:
            return
        with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                others.append(str(error))

    try:
        with engine.connect() as connection:
            sa.event.listen(engine, "before_cursor_execute", another)
            migrating.migrate(connection, home)
    finally:
        engine.dispose()
    assert others == ["database is locked"]


@pytest.mark.parametrize(("versions", "refused"), [(b"\x03\x02", True), (b"\x02\x02", False), (b"\x01\x01", False)])
def test_a_file_that_nobody_may_write_is_no_catalog(path: Path, versions: bytes, *, refused: bool) -> None:
    catalogs.put(path)
    with path.open("r+b") as file:
        # With which versions of the format it may be written, and read.
        file.seek(18)
        file.write(versions)
    with closing(Catalog.open(path)) as opened:
        assert opened.rebuilt is None if not refused else "nobody may write to it" in (opened.rebuilt or "")


def test_a_start_has_few_runs_in_memory_at_a_time(catalog: Catalog) -> None:
    """Ten thousand are looked at, each with 16 KiB of what it printed, and as much again for each variant."""
    put(catalog, "models", before=None, exercise=None)
    size, count = 1 << 14, 1500
    row = ("x", "x", "never-run", 1, "x", "[]", 0, "", "y" * size)
    with closing(sqlite3.connect(catalog.path)) as raw, raw:
        names = "model, workload, reason, started, host, passes, attributed, detail, output"
        raw.executemany(f"INSERT INTO runs ({names}) VALUES ({', '.join('?' * len(row))})", [row] * count)  # noqa: S608
    tracemalloc.start()
    try:
        catalog.read(soundness.check, growing=False)
        assert tracemalloc.get_traced_memory()[1] < count * size / 2
    finally:
        tracemalloc.stop()
