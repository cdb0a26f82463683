"""Whoever comes after a catalog was set aside takes over what it tells: the one before may not have come to it."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Connection, Engine, insert

from tests.support import catalogs
from tests.unit.catalog.test_catalog import NOW, model
from xpucached.catalog import Catalog, models, opening, salvage, setting_aside
from xpucached.catalog.days import warmth_changes
from xpucached.catalog.events import MODEL_REMOVED, record_events
from xpucached.catalog.history_tables import WARMTH
from xpucached.catalog.models import add_model, all_models, remove_model
from xpucached.domain.jobs import Event
from xpucached.domain.names import ModelName
from xpucached.errors import CatalogError

if TYPE_CHECKING:
    from collections.abc import Callable


class Killed(BaseException):
    """What stands for a kill: nobody catches it."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a catalog is that is corrupt, with two models, as a kill left it: one stands in its journal only."""
    place, before = tmp_path / "state/catalog.sqlite", tmp_path / "before/catalog.sqlite"
    with closing(catalogs.fresh(before)) as opened:
        opened.write(add_model, model())
    with closing(sqlite3.connect(before)) as raw:
        (root,) = raw.execute("SELECT rootpage FROM sqlite_master WHERE name = 'entries'").fetchone()
        (size,) = raw.execute("PRAGMA page_size").fetchone()
    with closing(Catalog.open(before)) as opened:
        opened.write(add_model, model("second"))
        place.parent.mkdir(0o700)
        for side in ("", "-wal"):
            shutil.copy(f"{before}{side}", f"{place}{side}")
    with place.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * 8)
    return place


def names(path: Path) -> list[str]:
    with closing(Catalog.open(path)) as opened:
        return [one.name for one in opened.read(all_models)]


def left(path: Path) -> set[str]:
    """Return what lies beside a catalog, without the time in its name."""
    return {one.name.partition(".corrupt-")[2].partition("Z")[2] for one in path.parent.glob("*.corrupt-*")}


def refused(*_: object) -> object:
    raise CatalogError("the disk is full")


def dies(*_: object) -> object:
    raise Killed


STEPS = (
    (setting_aside, "mark", 1),
    (Path, "rename", 1),
    (Path, "rename", 2),
    (opening, "_prepare", 2),
    (opening, "_migrated", 1),
    (salvage, "salvage_models", 1),
    (models, "add_model", 1),
    (models, "add_model", 2),
    (setting_aside, "unmark", 1),
)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("where", "what", "time"), STEPS, ids=lambda one: getattr(one, "__name__", one))
def test_models_of_a_catalog_that_was_set_aside_are_taken_over_whoever_was_killed(
    path: Path, monkeypatch: pytest.MonkeyPatch, where: object, what: str, time: int, *, after: bool
) -> None:
    do: Callable[..., object] = getattr(where, what)
    calls = 0

    def killed(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls == time and not after:
            raise Killed
        done = do(*args, **kwargs)
        if calls == time:
            if isinstance(done, Engine):
                done.dispose()  # whoever is killed closes all
            raise Killed
        return done

    with monkeypatch.context() as patch:
        patch.setattr(where, what, killed)
        with pytest.raises(Killed):
            Catalog.open(path)
    assert names(path) == ["net", "second"]
    assert left(path) >= {"", "-wal"}
    assert not any(one.endswith(".unread") for one in left(path))
    assert names(path) == ["net", "second"]


def fails_once(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Let a step of opening find the disk full, once."""
    do: Callable[..., object] = getattr(opening, what)

    def full(*args: object) -> object:
        monkeypatch.setattr(opening, what, do)
        raise OSError(errno.ENOSPC, "No space left on device", str(args[0]))

    monkeypatch.setattr(opening, what, full)


def test_they_are_taken_over_as_soon_as_the_disk_has_room_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails_once(monkeypatch, "_migrated")
    with pytest.raises(CatalogError, match="No space left"):
        Catalog.open(path)
    assert names(path) == ["net", "second"]


@pytest.mark.parametrize("when", ["made anew", "taken over"])
def test_a_daemon_that_finds_its_catalog_corrupt_at_work_comes_to_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    path = tmp_path / "catalog.sqlite"
    with closing(catalogs.fresh(path)) as opened:
        for one in ("net", "second"):
            opened.write(add_model, model(one))
        with closing(sqlite3.connect(path)) as raw, raw:
            raw.execute("DROP TABLE recipes")
        with pytest.raises(CatalogError):
            opened.read(lambda connection: connection.exec_driver_sql("SELECT * FROM recipes"))
        if when == "made anew":
            fails_once(monkeypatch, "_migrated")
        else:
            monkeypatch.setattr(salvage, "take_over", refused)
        with pytest.raises(CatalogError):
            opened.mend()
        monkeypatch.undo()
        if when == "taken over":
            # What somebody has registered meanwhile stays.
            opened.write(add_model, model("second", command="other"))
        assert opened.mend()
        assert not opened.mend()
        assert [one.name for one in opened.read(all_models)] == ["net", "second"]
        other = opened.read(all_models)[1].workload.command != model("second").workload.command
        assert other is (when == "taken over")
        opened.write(remove_model, ModelName("net"))
    assert names(path) == ["second"]


def test_nothing_is_taken_over_from_who_had_the_account_before(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Catalog.open(path, account="first").close()
    with closing(Catalog.open(path, account="first")) as opened:
        opened.write(add_model, model("third"))
    setting_aside.set_aside(path, setting_aside.CORRUPT)
    setting_aside.mark(path)
    with closing(Catalog.open(path, account="second", other=path.parents[1] / "before/catalog.sqlite")) as opened:
        assert {one.name for one in opened.read(all_models)} == {"net", "second"}
    setting_aside.set_aside(path, setting_aside.CORRUPT)
    with closing(Catalog.open(path, account="third")) as opened:
        assert opened.read(all_models) == ()


def test_what_was_registered_with_the_other_daemon_is_taken_over_whoever_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "catalog.sqlite", tmp_path / "other.sqlite"
    with closing(catalogs.fresh(other)) as opened:
        opened.write(add_model, model())
    with monkeypatch.context() as patch:
        patch.setattr(salvage, "salvage_models", dies)
        with pytest.raises(Killed):
            Catalog.open(path, other=other)
    with closing(Catalog.open(path, other=other)) as opened:
        assert [one.name for one in opened.read(all_models)] == ["net"]
        opened.write(remove_model, ModelName("net"))
    # Once: what is removed here stays so.
    with closing(Catalog.open(path, other=other)) as opened:
        assert opened.read(all_models) == ()


@pytest.mark.parametrize("what", ["its directory", "the file"])
def test_what_was_registered_with_the_other_daemon_is_taken_over_when_it_can_be_read(tmp_path: Path, what: str) -> None:
    path, other = tmp_path / "catalog.sqlite", tmp_path / "home" / "catalog.sqlite"
    with closing(catalogs.fresh(other)) as opened:
        opened.write(add_model, model())
    # Root may enter any directory and read any file, but gets through no link to itself.
    closed = other if what == "the file" else other.parent
    aside = closed.rename(tmp_path / "aside")
    closed.symlink_to(closed)
    for _start in range(2):
        with closing(Catalog.open(path, other=other)) as opened:
            assert opened.read(all_models) == ()
    closed.unlink()
    aside.rename(closed)
    with closing(Catalog.open(path, other=other)) as opened:
        assert [one.name for one in opened.read(all_models)] == ["net"]
        opened.write(remove_model, ModelName("net"))
    with closing(Catalog.open(path, other=other)) as opened:
        assert opened.read(all_models) == ()


def test_what_is_taken_over_late_stands_behind_what_came_to_be_here(tmp_path: Path) -> None:
    path, other = tmp_path / "catalog.sqlite", tmp_path / "other.sqlite"

    def changed(name: str, *years: int) -> Callable[[Connection], object]:
        rows = [
            {"at": datetime(year, 1, 1, tzinfo=UTC), "model": name, "now": "cold", "why": str(year)} for year in years
        ]
        return lambda connection: connection.execute(insert(WARMTH), rows)

    with closing(catalogs.fresh(other)) as opened:
        for name in ("net", "removed"):
            opened.write(add_model, model(name))
        opened.write(changed("net", 2024, 2025, 2026))
    other.rename(tmp_path / "aside")
    other.symlink_to(other)
    with closing(Catalog.open(path, other=other)) as opened:
        opened.write(changed("net", 2027))
        removed = Event(1, NOW, MODEL_REMOVED, "removed", {"model": "removed"})
        opened.write(record_events, [removed], 1)
    other.unlink()
    (tmp_path / "aside").rename(other)
    with closing(Catalog.open(path, other=other)) as opened:
        assert [one.name for one in opened.read(all_models)] == ["net"]
        assert [one.why for one in opened.read(warmth_changes)] == ["2027"]


def test_of_several_that_were_set_aside_each_is_told_and_the_newest_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    asides = [path.with_name(f"{path.name}.{setting_aside.CORRUPT}-{number}") for number in (1, 2)]
    for aside, command in zip(asides, ("before", "since"), strict=True):
        with closing(catalogs.fresh(aside)) as opened:
            opened.write(add_model, model(command=command))
            opened.write(add_model, model(command))
        setting_aside.mark(aside)
    with closing(sqlite3.connect(asides[0])) as raw, raw:
        raw.execute("UPDATE models SET command = '[\"/bin/evil\"]' WHERE name = 'before'")
    with closing(Catalog.open(path)) as opened:
        found = {one.name: one.workload.command[0] for one in opened.read(all_models)}
        assert found == {"net": "since", "since": "python3"}
        told = (opened.rebuilt or "").split(". ")
    assert [str(aside) in one for aside, one in zip(reversed(asides), told, strict=True)] == [True, True]
    assert "2 registered models were taken over" in told[0]
    assert "1 registered models were taken over, and others may be missing: damaged models: 1" in told[1]


def test_a_command_beside_a_daemon_sets_nothing_aside(path: Path) -> None:
    before = {one: one.read_bytes() for one in path.parent.iterdir()}
    with pytest.raises(CatalogError, match="the catalog failed") as caught:
        Catalog.open(path, guest=True)
    assert "restart the daemon" in caught.value.hint
    assert {one: one.read_bytes() for one in before} == before
    assert names(path) == ["net", "second"]


def test_a_command_that_comes_just_then_takes_no_mark_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def slow(one: Path, to: Path) -> object:
        with pytest.raises(CatalogError):
            Catalog.open(path, guest=True)
        rename(one, to)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", slow)
        with pytest.raises(Killed):
            Catalog.open(path)
    assert names(path) == ["net", "second"]


def test_a_mark_of_what_somebody_has_removed_goes(path: Path) -> None:
    aside = path.with_name(f"{path.name}.{setting_aside.CORRUPT}-1")
    setting_aside.mark(aside)
    assert setting_aside.unread(path) == ()
    assert not setting_aside.is_marked(aside)
