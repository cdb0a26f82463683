"""How the catalog's file is looked at, set aside and refused, step by step."""

from __future__ import annotations

import os
import runpy
import shutil
import sqlite3
import stat
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tests.support import catalogs
from tests.unit.catalog.test_catalog import model
from xpucached.catalog import Catalog, migrating, opening, setting_aside, tables
from xpucached.catalog.models import add_model, all_models
from xpucached.catalog.runs import newest_runs
from xpucached.catalog.soundness import Corrupt
from xpucached.errors import CatalogError
from xpucached.processes import child

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a catalog of the newest revision is."""
    place = tmp_path / "state" / "catalog.sqlite"
    catalogs.put(place)
    return place


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute(statement)


def test_a_name_of_whose_the_catalog_is_has_so_many_bytes(path: Path) -> None:
    note = path.with_name("owner")
    assert opening.owner(path.parent) == ""
    note.write_bytes(b" bob" + b" " * 4091 + b"\n")
    assert (note.stat().st_size, opening.owner(path.parent)) == (4096, "bob")
    note.write_bytes(b"b" * 4097)
    with pytest.raises(CatalogError, match="no regular file of ours"):
        opening.owner(path.parent)


NEXT = f"{int(tables.REVISION) + 1:04}"


@pytest.mark.parametrize(
    ("revisions", "kind"),
    [
        ([tables.REVISION], None),
        ([], None),
        (["0001"], None),
        (["0001", tables.REVISION], None),
        ([NEXT], CatalogError),
        ([NEXT, "9999"], CatalogError),
        ([tables.REVISION, NEXT], Corrupt),
        (["0000"], Corrupt),
        ([f"{NEXT}0"], Corrupt),
        (["x"], Corrupt),
    ],
)
def test_what_a_newer_version_wrote_is_refused_and_what_none_did_is_corrupt(
    path: Path, revisions: list[str], kind: type[Exception] | None
) -> None:
    if kind is None:
        opening.check_revisions(path, revisions)
        return
    with pytest.raises(kind) as caught:
        opening.check_revisions(path, revisions)
    assert ("a newer xpucached wrote this catalog" in str(caught.value)) is (kind is CatalogError)


@pytest.mark.parametrize("lack", ["all", "newest", "half", "shut"])
def test_a_catalog_is_not_to_blame_for_what_is_not_installed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lack: str
) -> None:
    path.unlink()
    catalogs.older(path)
    home = tmp_path / "installed"
    shutil.copytree(catalogs.MIGRATIONS, home, ignore=shutil.ignore_patterns("__pycache__"))
    (newest,) = home.glob(f"versions/{tables.REVISION}*.py")
    match lack:
        case "all":
            shutil.rmtree(home)
        case "newest":
            newest.unlink()
        case "half":
            newest.write_text(newest.read_text()[:-5] + "(")
        case _:
            newest.unlink()
            newest.mkdir()
    monkeypatch.setattr(migrating, "_home", lambda: home)
    before = path.read_bytes()
    with pytest.raises(CatalogError) as caught:
        Catalog.open(path)
    assert "installed whole" in caught.value.hint
    assert path.read_bytes() == before
    monkeypatch.undo()
    with closing(Catalog.open(path)) as opened:
        assert opened.rebuilt is None


def test_what_is_set_aside_takes_no_other_s_name_and_its_journal_along(path: Path) -> None:
    found = []
    for text in ("first", "second", "third"):
        path.write_text(text)
        path.with_name(path.name + "-wal").write_text(f"{text}'s")
        found.append(setting_aside.set_aside(path, "corrupt"))
    assert [one.read_text() for one in found] == ["first", "second", "third"]
    assert [one.with_name(one.name + "-wal").read_text() for one in found] == ["first's", "second's", "third's"]
    # Most often they have the same second in their names.
    assert not [one for one in path.parent.iterdir() if one.name in {path.name, f"{path.name}-wal", f"{path.name}-shm"}]
    assert setting_aside.set_aside(path, "corrupt") not in found


def test_of_those_of_one_second_the_later_ones_are_numbered(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Still:
        @staticmethod
        def now(_: object) -> Still:
            return Still()

        def strftime(self, _: str) -> str:
            return "then"

    monkeypatch.setattr(setting_aside, "datetime", Still)
    names = []
    for _ in range(3):
        path.touch()
        names.append(setting_aside.set_aside(path, "corrupt").name)
    assert names == [f"{path.name}.corrupt-then{end}" for end in ("", "-2", "-3")]


def failed(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("it failed")
    error.sqlite_errorcode = code
    return error


RESTART, CHECK = "restart the daemon", "check the permissions"


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (Corrupt("no"), RESTART),
        (sa.exc.OperationalError("x", {}, failed(sqlite3.SQLITE_CORRUPT)), RESTART),
        (sa.exc.OperationalError("x", {}, failed(sqlite3.SQLITE_FULL)), CHECK),
        (failed(sqlite3.SQLITE_CORRUPT), CHECK),
        (OSError("no"), CHECK),
        # Those are mistakes of ours.
        (sa.exc.IntegrityError("x", {}, failed(sqlite3.SQLITE_CONSTRAINT)), None),
        (sa.exc.ProgrammingError("x", {}, failed(sqlite3.SQLITE_ERROR)), None),
        (sa.exc.InterfaceError("x", {}, failed(sqlite3.SQLITE_ERROR)), None),
        (ValueError("no"), None),
    ],
    ids=repr,
)
def test_what_fails_is_told_with_what_helps(path: Path, error: Exception, hint: str | None) -> None:
    with pytest.raises(CatalogError if hint else type(error)) as caught, opening.refusing(path):
        raise error
    if isinstance(caught.value, CatalogError):
        assert caught.value.hint.startswith(hint or "")
        assert str(path) in caught.value.message


def test_only_a_catalog_of_an_older_revision_is_given_to_a_process_of_its_own(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: object) -> None:
        asked.append(command)
        raise OSError

    monkeypatch.setattr(child, "run", run)
    places = [path.with_name(name) for name in ("nothing", "directory", "text", "link")]
    places[1].mkdir()
    places[2].write_bytes(b"garbage" * 1000)
    for one in (path, *places):
        opening.migrate_apart(one)
    assert asked == []
    change(path, "UPDATE alembic_version SET version_num = '0001'")
    places[3].symlink_to(path)
    opening.migrate_apart(places[3])
    assert asked == []
    opening.migrate_apart(path)
    assert [one[-1] for one in asked] == [str(path)]


def test_that_process_brings_the_catalog_up_that_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "catalog.sqlite"
    monkeypatch.setattr(sys, "argv", ["xpucached.catalog", str(path)])
    runpy.run_module("xpucached.catalog", run_name="__main__")
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT version_num FROM alembic_version").fetchall() == [(tables.REVISION,)]


@pytest.mark.parametrize(("size", "whole", "read"), [(0, True, True), (0, False, False), (1 << 40, False, True)])
def test_a_large_file_is_not_read_whole_unless_it_is_to_be(
    path: Path, monkeypatch: pytest.MonkeyPatch, size: int, *, whole: bool, read: bool
) -> None:
    monkeypatch.setattr(opening, "LARGE", size)
    checked: list[str | None] = []
    monkeypatch.setattr(opening, "_check", lambda _, table=None, **_how: checked.append(table))
    assert opening._inspect(path, whole=whole) is read
    assert (checked == [None]) is read
    assert ("models" in checked, "entries" in checked) == (not read, False)
    checked.clear()
    # What is migrated is given whole, and so it is looked at.
    change(path, "UPDATE alembic_version SET version_num = '0001'")
    assert opening._inspect(path, whole=whole) is True
    assert checked == [None]


def test_just_as_large_is_not_larger(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "LARGE", path.stat().st_size)
    assert opening._inspect(path, whole=False)
    monkeypatch.setattr(opening, "LARGE", path.stat().st_size - 1)
    assert not opening._inspect(path, whole=False)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("DELETE FROM alembic_version", "not a catalog of xpucached"),
        ("DROP TABLE alembic_version", "not a catalog of xpucached"),
        ("UPDATE alembic_version SET version_num = 'x'", "there never was a revision"),
    ],
)
def test_what_is_no_catalog_is_corrupt(path: Path, statement: str, why: str) -> None:
    change(path, statement)
    with pytest.raises(Corrupt, match=why):
        opening._inspect(path, whole=True)


def test_a_reading_that_is_interrupted_is_not_done_and_damage_is_damage(path: Path) -> None:
    with opening.examining(path) as look:
        assert opening.examine(look)
        look.set_progress_handler(lambda: 1, 1)
        assert not opening.examine(look)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)
    with pytest.raises(Corrupt), opening.examining(path) as look:
        opening.examine(look)


def test_a_file_is_made_for_us_alone_and_what_lies_beside_it_is_looked_at(path: Path) -> None:
    path.chmod(0o666)
    opening._prepare(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    other = path.parent / "new" / "catalog.sqlite"
    opening._prepare(other)
    assert (stat.S_IMODE(other.parent.stat().st_mode), stat.S_IMODE(other.stat().st_mode)) == (0o700, 0o600)
    os.mkfifo(path.with_name("catalog.sqlite-shm"))
    with pytest.raises(Corrupt, match=r"catalog\.sqlite-shm is not a regular file"):
        opening._prepare(path)


NEWER = {
    "another column": "ALTER TABLE models RENAME priority TO importance",
    "another table": "ALTER TABLE runs RENAME TO passes_of",
    "other words": "UPDATE models SET source = 'SOCKET'",
    "other values": "UPDATE models SET command = 'none'",
}


@pytest.mark.parametrize("what", NEWER)
@pytest.mark.parametrize("installed", [False, True])
def test_what_a_newer_version_brings_along_beside_a_daemon_is_neither_written_nor_set_aside(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, *, installed: bool
) -> None:
    """It was taken for damaged: a new catalog was made in its place, and models, runs and proofs were lost."""
    home = tmp_path / "migrations"
    shutil.copytree(catalogs.MIGRATIONS, home, ignore=shutil.ignore_patterns("__pycache__"))
    head = f"from alembic import op\nrevision = {NEXT!r}\ndown_revision = {tables.REVISION!r}\n"
    (home / "versions" / "next.py").write_text(f"{head}def upgrade():\n    op.execute({NEWER[what]!r})\n")
    with closing(Catalog.open(path)) as running:
        running.write(add_model, model())
        catalogs.migrated(path, home)
        if installed:
            monkeypatch.setattr(migrating, "_home", lambda: home)
        told = []
        for ask in (all_models, newest_runs):
            try:
                running.read(ask)
            except CatalogError as error:
                told.append(error.message)
        with pytest.raises(CatalogError) as caught:
            running.write(add_model, model("second"))
        told.append(caught.value.message)
        assert {one.partition(":")[0] for one in told} == {f"a newer xpucached wrote this catalog (revision {NEXT})"}
        assert not running.mend()
        assert running.trouble is not None
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT name FROM models").fetchall() == [("net",)]


def test_nor_is_one_set_aside_that_was_brought_along_after_damage_was_met(path: Path) -> None:
    with closing(Catalog.open(path)) as running:
        with closing(sqlite3.connect(path)) as raw, raw:
            raw.execute("ALTER TABLE runs RENAME TO passes_of")
        with pytest.raises(CatalogError, match="no such table"):
            running.read(newest_runs)
        assert running.corrupt
        with closing(sqlite3.connect(path)) as raw, raw:
            raw.execute("ALTER TABLE passes_of RENAME TO runs")
            raw.execute("UPDATE alembic_version SET version_num = ?", (NEXT,))
        with pytest.raises(CatalogError, match="a newer xpucached wrote this catalog"):
            running.mend()
        assert not running.mend()
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_command_brings_no_older_catalog_along_beside_its_daemon(path: Path) -> None:
    path.unlink()
    catalogs.older(path)
    before = path.read_bytes()
    with pytest.raises(CatalogError, match="an older xpucached wrote this catalog") as caught:
        Catalog.open(path, guest=True)
    assert "restart the daemon" in caught.value.hint
    assert path.read_bytes() == before
    # Nor does it make one where an older daemon is about to.
    path.write_bytes(b"")
    with pytest.raises(CatalogError, match="nothing is in this catalog yet"):
        Catalog.open(path, guest=True)
    assert path.read_bytes() == b""
    Catalog.open(path).close()
    Catalog.open(path, guest=True).close()
