"""What is taken in of a bundle, and that a killed import leaves whole entries only."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.support import forks
from tests.support.bundles import HOW, TARGET, facts, forge, good, leaf, packed, tar
from xpucached.bundle import members
from xpucached.bundle.trust import SignatureVerdict
from xpucached.bundling import importing
from xpucached.bundling.drivers import UsedDriver
from xpucached.bundling.inspecting import programs
from xpucached.bundling.rebuilding import Shard
from xpucached.domain.bundles import CompilerLibrary, ImportBundle, RecipeLine
from xpucached.domain.host import Host, OtherDriver
from xpucached.domain.imports import EntriesCame, together
from xpucached.domain.names import KindName
from xpucached.errors import BadBundle, DiskError
from xpucached.host import compiler_files
from xpucached.kinds.sycl import recipes
from xpucached.planning.imports import Taken, Taking

if TYPE_CHECKING:
    from xpucached.bundle.members import Bundle

KILLS: Final = 50
LIBRARY: Final = CompilerLibrary("libigc.so", "build-id:00")


def test_each_recipe_is_in_one_part() -> None:
    lines = [RecipeLine(KindName("sycl"), "P", f"{number}/0/1", "", 0) for number in range(100)]
    parts = [[line for line in lines if Shard(index, 3).has(line)] for index in range(3)]

    assert sorted(line for part in parts for line in part) == sorted(lines)
    assert all(parts)


def begun(place: Path, more: UsedDriver, into: Path) -> importing._Import:
    """Begin to take in a bundle with one entry, as if a trusted key had signed it."""
    plain = tar(good())
    told = facts(plain, compiler=(LIBRARY,), isa="cpu:0")
    bundle = members.opened(forge(place, packed(plain), told))
    return importing._Import(ImportBundle(place, into), bundle, more)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> UsedDriver:
    """Return a driver whose compiler is that of the bundle, unless a test says otherwise."""
    monkeypatch.setattr(importing, "verdict", lambda *_: SignatureVerdict("key", ""))
    monkeypatch.setattr(compiler_files, "compiler_files", lambda *_: (LIBRARY,))
    monkeypatch.setattr(UsedDriver, "isa", lambda *_: "cpu:0")
    here = Host(surveyed=datetime.now(UTC), boot="", kernel="", stamp="")
    return UsedDriver(OtherDriver((TARGET,), "", {}), here, {})


def test_room_is_asked_for_what_is_taken_in_as_it_is(
    installed: UsedDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "_ROOM", 1 << 60)
    with begun(tmp_path / "fits", installed, tmp_path / "store") as todo, pytest.raises(DiskError, match="less room"):
        todo.judge_all(lambda *_: None)

    monkeypatch.setattr(compiler_files, "compiler_files", lambda *_: (CompilerLibrary("libigc.so", "build-id:01"),))
    with begun(tmp_path / "other", installed, tmp_path / "store") as todo:
        todo.judge_all(lambda *_: None)

    assert [taken.taking for _, taken in todo.taken] == [Taking.REBUILD]
    assert not (tmp_path / "store").exists()


def test_what_is_there_already_needs_no_room(
    installed: UsedDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, _ = thirty(tmp_path / "bundle", compiler=(LIBRARY,), isa="cpu:0")
    all_ = ImportBundle(bundle.layout.path, tmp_path / "store")

    def taken(order: ImportBundle) -> tuple[int, int]:
        with importing._Import(order, bundle, installed) as todo:
            todo.judge_all(lambda *_: None)
            todo.publish(lambda *_: None)
            return len(todo.published), todo.present

    with bundle.layout:
        assert taken(replace(all_, seconds=0.0)) == (1, 0)
        with monkeypatch.context() as full:
            full.setattr(importing, "_ROOM", 1 << 60)
            with pytest.raises(DiskError, match="less room"):
                taken(all_)
        assert taken(all_) == (29, 1)
        monkeypatch.setattr(importing, "_ROOM", 1 << 60)
        assert taken(all_) == (0, 30)
        assert taken(replace(all_, seconds=0.0)) == (0, 30)


def test_room_is_asked_for_all_images_before_one_is_written(
    installed: UsedDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each try would write, and remove, all that there is room for, without end."""
    bundle, files = thirty(tmp_path / "bundle", compiler=(LIBRARY,), isa="cpu:0")
    one = sum(map(len, files.values()))
    monkeypatch.setattr(importing, "_lacks_room", lambda _, size: "less room" if size > one else "")
    bundle.members *= 2
    order = ImportBundle(bundle.layout.path, tmp_path / "store", seconds=60.0)
    with (
        bundle.layout,
        importing._Import(order, bundle, installed) as todo,
        pytest.raises(DiskError, match="less room"),
    ):
        todo.judge_all(lambda *_: None)
    assert not (tmp_path / "store").exists()


def test_recipes_are_left_to_be_compiled_unless_all_their_programs_came(installed: UsedDriver, tmp_path: Path) -> None:
    with begun(tmp_path / "bundle", installed, tmp_path / "store") as todo:
        todo.judge_all(lambda *_: None)
        todo._lines = [RecipeLine(KindName("sycl"), TARGET.family, leaf()[0].partition("/")[2], "", 0)]
        assert not todo.is_complete()

        todo.publish(lambda *_: None)
        assert todo.is_complete()

        todo._lines.append(replace(todo._lines[0], at="1/2/3"))
        assert not todo.is_complete()
    # What is there already counts as well.
    with begun(tmp_path / "again", installed, tmp_path / "store") as todo:
        todo.judge_all(lambda *_: None)
        todo._lines = [RecipeLine(KindName("sycl"), TARGET.family, leaf()[0].partition("/")[2], "", 0)]
        assert todo.is_complete()


def test_unattended_what_nobody_signed_is_not_read(tmp_path: Path) -> None:
    told = facts(tar(good()), compiler=(LIBRARY,), isa="cpu:0")
    bundle = members.opened(forge(tmp_path / "bundle", packed(b"no archive"), told))
    here = Host(surveyed=datetime.now(UTC), boot="", kernel="", stamp="")
    used = UsedDriver(OtherDriver((TARGET,), "", {}), here, {})
    order = ImportBundle(tmp_path / "bundle", tmp_path / "store")
    with bundle.layout, importing._Import(order, bundle, used) as todo, pytest.raises(BadBundle):
        todo.judge_all(lambda *_: None)
    bundle = members.opened(tmp_path / "bundle")
    with bundle.layout, importing._Import(replace(order, unattended=True), bundle, used) as todo:
        todo.judge_all(lambda *_: None)
    assert [(taken.taking, taken.why) for _, taken in todo.taken] == [(Taking.REBUILD, "it is not signed")]
    assert not todo.checked


def thirty(place: Path, **more: object) -> tuple[Bundle, dict[str, bytes]]:
    files: dict[str, bytes] = {}
    for number in range(30):
        path, program, source = leaf(f"_ZTS{number}")
        files |= {f"sycl/{path}/0.bin": program, f"sycl/{path}/0.src": source}
    plain = tar(files)
    told = facts(plain, entries=30, bytes=sum(map(len, files.values())), **more)
    return members.opened(forge(place, packed(plain, HOW), told)), files


def published(bundle: Bundle, order: ImportBundle) -> tuple[int, int, int]:
    now = Host(surveyed=datetime.now(UTC), boot="", kernel="", stamp="")
    used = UsedDriver(OtherDriver((TARGET,), "", {}), now, {})
    with importing._Import(order, bundle, used) as todo:
        todo.stage(bundle.members[0], SignatureVerdict("key"), lambda *_: None)
        todo.taken = [(bundle.members[0], Taken(Taking.PUBLISH))]
        todo.publish(lambda *_: None)
    return len(todo.published), todo.present, todo.later


def test_programs_too_are_published_by_turns(tmp_path: Path) -> None:
    """In turns that have no time, each of which sees to one of them, all of them come."""
    bundle, _ = thirty(tmp_path / "bundle")
    (tmp_path / "store").mkdir()
    with bundle.layout:
        turn = ImportBundle(bundle.layout.path, tmp_path / "store", seconds=0.0)
        assert [published(bundle, turn) for _ in range(30)] == [(1, there, 29 - there) for there in range(30)]
        assert published(bundle, turn) == (0, 30, 0)


@pytest.mark.parametrize(("library", "later"), [(LIBRARY, 29), (CompilerLibrary("libigc.so", "build-id:01"), 0)])
def test_programs_that_are_compiled_here_wait_for_no_turn_to_be_published(
    installed: UsedDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: CompilerLibrary, later: int
) -> None:
    """Recipes are compiled when no program is left for a later turn: those of another compiler never come."""
    monkeypatch.setattr(compiler_files, "compiler_files", lambda *_: (library,))
    bundle, _ = thirty(tmp_path / "bundle", compiler=(LIBRARY,), isa="cpu:0")
    order = ImportBundle(bundle.layout.path, tmp_path / "store", seconds=0.0)
    with bundle.layout, importing._Import(order, bundle, installed) as todo:
        todo.judge_all(lambda *_: None)
        todo.publish(lambda *_: None)
    assert (len(todo.published), todo.later) == (int(later > 0), later)


def test_each_program_that_came_is_told_though_a_later_one_is_refused(tmp_path: Path) -> None:
    bundle, _ = thirty(tmp_path / "bundle")
    root = tmp_path / "store"
    root.mkdir()
    came: list[EntriesCame] = []
    used = UsedDriver(
        OtherDriver((TARGET,), "", {}), Host(surveyed=datetime.now(UTC), boot="", kernel="", stamp=""), {}
    )
    with bundle.layout, importing._Import(ImportBundle(bundle.layout.path, root), bundle, used, came.append) as todo:
        todo.stage(bundle.members[0], SignatureVerdict("key"), lambda *_: None)
        todo.taken = [(bundle.members[0], Taken(Taking.PUBLISH))]
        *_, (_, _, _, last) = programs(bundle, bundle.members[0], root)
        hindrance = (root / last).parent.parent
        hindrance.parent.mkdir(exist_ok=True)
        hindrance.write_text("no directory")
        with pytest.raises(OSError, match="Not a directory"):
            todo.publish(lambda *_: None)

    coming, one = together(came)
    # Whoever is killed in between has told of all before.
    assert (coming.coming, came[0].coming, len(coming.made)) == (True, True, 30)
    assert {each.key for each in coming.made} > {each.key for each in one.made}
    assert (one.bundle, one.source.signer) == (bundle.index.digest, "key")
    assert len(one.made) == 29
    assert {str(root / each.key.rpartition("/")[0]) for each in one.made} == {
        str(path.parent) for path in root.rglob("0.bin") if ".xpucached" not in path.parts
    }


@pytest.mark.flow
def test_a_killed_import_leaves_whole_entries_and_is_done_by_the_next(tmp_path: Path) -> None:
    bundle, files = thirty(tmp_path / "bundle")
    draw = random.Random(3)  # noqa: S311 - which moments
    with bundle.layout:

        def publish(root: Path) -> tuple[int, int]:
            return published(bundle, ImportBundle(bundle.layout.path, root))[:2]

        (tmp_path / "whole").mkdir()
        began = time.monotonic()
        assert publish(tmp_path / "whole") == (30, 0)
        whole = time.monotonic() - began
        root = tmp_path / "store"
        root.mkdir()
        kills = 0
        # All of a batch is published at its end, which on a busy machine few of them see.
        while kills < KILLS or not any(root.glob("[0-9]*/*/*/*")):
            pid = forks.copy(partial(publish, root))
            time.sleep(draw.uniform(0, whole * (1 + kills / KILLS)))
            kills += 1
            forks.kill(pid)
            for one in root.glob("[0-9]*/*/*/*"):
                there = {path.name: path.read_bytes() for path in one.iterdir()}
                name = f"sycl/{one.relative_to(root)}"
                assert there["0.bin"] == files[f"{name}/0.bin"]
                assert there["0.src"] == files[f"{name}/0.src"]
        done, present = publish(root)
    assert done + present == 30
    recipes.clear_staging(str(root))
    assert len(list(root.glob("[0-9]*/*/*/*"))) == 30
    assert [path.name for path in root.iterdir() if not path.name.isdigit()] == []
