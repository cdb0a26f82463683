"""What is noted of catalogs that were set aside, for whoever asks which models may be missing."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from alembic import command
from alembic.config import Config
from msgspec.structs import replace

from tests.support import catalogs
from tests.unit.catalog.test_catalog import NOW, model
from xpucached.catalog import days, migrating, opening, salvage
from xpucached.catalog.models import add_model
from xpucached.catalog.salvage import incomplete, note_incomplete, salvage_models

if TYPE_CHECKING:
    from xpucached.catalog.salvage import Salvaged


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "catalog.sqlite"


def aside(path: Path, name: str) -> Path:
    """Return a catalog that was set aside."""
    one = path.with_name(f"{path.name}.{name}")
    one.touch()
    return one


def test_what_is_missing_is_told_of_the_newest_that_is_still_there(path: Path) -> None:
    assert incomplete(path) == ""
    first, second = aside(path, "corrupt-1"), aside(path, "corrupt-2")
    note_incomplete(path, first, "damaged\n models:  1")
    note = path.with_name("catalog.sqlite.incomplete")
    assert stat.S_IMODE(note.stat().st_mode) == 0o600
    assert incomplete(path) == "damaged models: 1"
    note_incomplete(path, second, "damaged models: 2")
    assert incomplete(path) == "damaged models: 2"
    second.unlink()
    assert incomplete(path) == "damaged models: 1"
    first.unlink()
    # Who removes them has seen to it.
    assert (incomplete(path), note.exists()) == ("", False)


@pytest.mark.parametrize("name", ["another.sqlite", "../catalog.sqlite", "catalog.sqlite/../x", ""])
def test_a_note_of_what_is_no_catalog_of_ours_tells_nothing(path: Path, name: str) -> None:
    path.with_name("another.sqlite").touch()
    path.with_name("x").touch()
    path.with_name("catalog.sqlite.incomplete").write_text(f"{name}\twhy\n")
    assert incomplete(path) == ""


def test_a_note_is_read_to_its_bound_and_through_no_link(path: Path) -> None:
    one = aside(path, "corrupt-1")
    note = path.with_name("catalog.sqlite.incomplete")
    note.write_text(f"{one.name}\twhy\n" + "x" * (1 << 16) + f"\n{one.name}\tlater\n")
    assert incomplete(path) == "why"
    note.rename(path.with_name("elsewhere"))
    note.symlink_to("elsewhere")
    assert incomplete(path) == ""
    before = path.with_name("elsewhere").read_bytes()
    note_incomplete(path, one, "again")
    assert path.with_name("elsewhere").read_bytes() == before


def salvaged(path: Path) -> Salvaged:
    return salvage_models(path, path.with_name("new.sqlite"))


def test_models_and_history_are_taken_over_as_far_as_they_are_whole(path: Path) -> None:
    with closing(catalogs.fresh(path)) as opened:
        for one in (model(), model("second"), model("of a file", source="/etc/models.d/f.toml")):
            opened.write(add_model, one)
        opened.write(days.add, NOW, changes=2)
    found = salvaged(path)
    assert (found.models, found.incomplete_because) == ((model(), model("second")), "")
    assert {table: len(rows) for table, rows in found.history.items()} == {"days": 1, "warmth": 0}
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("UPDATE models SET command = '[\"/bin/evil\"]' WHERE name = 'second'")
        raw.execute("DROP TABLE warmth")
        raw.execute("UPDATE days SET changes = 'many'")
    found = salvaged(path)
    assert (found.models, found.incomplete_because) == ((model(),), "damaged models: 1")
    assert found.history == {"days": ()}
    assert [one.name for one in path.parent.glob("catalog*")] == [path.name]


def test_rows_of_history_that_nobody_can_read_are_left_behind(path: Path) -> None:
    with closing(catalogs.fresh(path)) as opened:
        for number in range(1, 4):
            opened.write(days.add, NOW.replace(day=number), freed=1.5)
    rows = [(1, b"warm", b"why"), (2, b"warmer", b"why"), (3, b"cold", b"\xff"), (4, b"cold", b"why")]
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("UPDATE days SET freed = 9e999 WHERE day LIKE '%01'")
        raw.execute("UPDATE days SET day = CAST(x'32ff' AS TEXT) WHERE day LIKE '%02'")
        insert = "INSERT INTO warmth (id, at, model, now, why) VALUES (?, 1, 'net', CAST(? AS TEXT), CAST(? AS TEXT))"
        raw.executemany(insert, rows)
    found = salvaged(path).history
    assert [row["day"] for row in found["days"]] == [NOW.replace(day=3).date().isoformat()]
    assert [(row["id"], row["now"], row["why"]) for row in found["warmth"]] == [(4, "cold", "why"), (1, "warm", "why")]


def test_what_stands_in_the_journal_is_taken_over_from_a_copy(path: Path) -> None:
    with closing(catalogs.fresh(path)) as opened:
        opened.write(add_model, model())
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA journal_mode = WAL")
        raw.execute("UPDATE models SET priority = 1")
        raw.commit()
        before = {one.name: one.stat().st_mtime_ns for one in path.parent.iterdir()}
        path.with_name("salvaging").mkdir()
        path.with_name("salvaging").joinpath("left").touch()
        found = salvaged(path)
        assert [one.priority for one in found.models] == [1]
        assert {one.name: one.stat().st_mtime_ns for one in path.parent.iterdir()} == before


def test_of_history_that_is_too_long_the_newest_is_taken_over(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salvage, "_MOST", 2)
    with closing(catalogs.fresh(path)), closing(sqlite3.connect(path)) as raw, raw:
        rows = ((number, number, "net", "warm", "why") for number in range(1, 6))
        raw.executemany("INSERT INTO warmth (id, at, model, now, why) VALUES (?, ?, ?, ?, ?)", rows)
    assert {row["id"] for row in salvaged(path).history["warmth"]} == {4, 5}


def of_revision(path: Path, revision: str) -> None:
    """Make a catalog as the migrations left it when this one was the newest."""
    path.touch()
    engine = opening.connections(path)
    config = Config()
    config.set_main_option("script_location", str(catalogs.MIGRATIONS))
    config.set_main_option("path_separator", "os")
    with engine.connect() as connection, connection.begin():
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()


@pytest.mark.parametrize("revision", sorted(migrating.every_revision(catalogs.MIGRATIONS)))
def test_models_of_each_earlier_version_are_taken_over(path: Path, revision: str) -> None:
    of_revision(path, revision)
    younger = path.with_name("younger.sqlite")
    with closing(catalogs.fresh(younger)) as opened:
        opened.write(add_model, model())
    with closing(sqlite3.connect(path)) as raw, raw:
        names = ", ".join(f'"{name}"' for _, name, *_ in raw.execute("PRAGMA table_info(models)"))
        raw.execute("ATTACH ? AS younger", (str(younger),))
        raw.execute(f"INSERT INTO models ({names}) SELECT {names} FROM younger.models")  # noqa: S608 - our names
    found = salvaged(path)
    expected = model() if "before" in names else replace(model(), before=())
    assert (found.models, found.incomplete_because) == ((expected,), "")
    assert found.history.keys() == ({"days", "warmth"} if revision >= "0026" else set())


@pytest.mark.parametrize("what", ["directory", "link", "nothing", "text"])
def test_of_what_is_no_catalog_nothing_is_taken_over_and_it_is_said(path: Path, what: str) -> None:
    match what:
        case "directory":
            path.mkdir()
        case "link":
            path.symlink_to("nowhere")
        case "text":
            path.write_bytes(b"no database at all" * 100)
        case _:
            pass
    found = salvaged(path)
    assert (found.models, found.history) == ((), {})
    why = "it is no file" if what in {"directory", "link"} else "it could not be read to its end: "
    assert found.incomplete_because.startswith(why)


def test_as_much_history_is_taken_over_as_is_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(catalogs.fresh(path)) as opened:
        for number in range(3):
            opened.write(days.add, NOW.replace(day=number + 1), changes=1)
    monkeypatch.setattr(salvage, "_MOST", 2)
    assert len(salvaged(path).history["days"]) == 2
