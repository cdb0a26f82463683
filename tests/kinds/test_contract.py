"""What every cache kind promises (`xpucached.kinds.Kind`), asked of each in the table.

A new kind needs one line here: how a store of its own is made.  What its bytes mean is tested beside it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest

from tests.builders import SyclStore, native
from xpucached.domain.host import Process
from xpucached.domain.names import CACHE_VARIABLES, EntryKey, TrashRef
from xpucached.domain.plans import EvictReason, Recipe
from xpucached.domain.stores import FoundStore, KnownEntry, Scan, Store, StoreOrigin, StoreState
from xpucached.domain.targets import Target
from xpucached.domain.trash import TrashLabel
from xpucached.kinds import KINDS, Kind, sycl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _sycl(root: Path) -> None:
    store = SyclStore(root)
    for kernel in ("_ZTS1a", "_ZTS1b", "_ZTS1c"):
        store.add(kernel)


STORES: Final[dict[Kind, Callable[[Path], None]]] = {sycl: _sycl}
"""For each kind, what fills an empty directory with at least two sound entries."""

NOW: Final = datetime.now(UTC) + timedelta(hours=1)


@dataclass(frozen=True)
class Filled:
    """A store of a kind, and what asks the kind about it."""

    kind: Kind
    root: Path

    @property
    def store(self) -> Store:
        return Store(self.kind.NAME, self.root)

    @property
    def found(self) -> FoundStore:
        return FoundStore(self.store, StoreOrigin.FOUND, "test")

    def look(self) -> Scan:
        return self.kind.scan(self.found, NOW, {}, None)

    def files(self) -> dict[str, bytes]:
        """Give every file that lies where the kind finds entries."""
        every = (path for path in self.root.rglob("*") if path.is_file())
        found = {str(path.relative_to(self.root)): path.read_bytes() for path in every}
        return {name: content for name, content in found.items() if self.kind.key(name) is not None}


@pytest.fixture(params=[*KINDS.values()], ids=[*KINDS])
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Filled:
    kind: Kind = request.param
    root = tmp_path / "store"
    STORES[kind](root)
    return Filled(kind, root)


def process(variables: dict[str, str], home: Path) -> Process:
    return Process(4711, os.getuid(), NOW, "app", home, {"HOME": str(home), **variables})


LABEL: Final = TrashLabel(NOW, EvictReason.UNUSED, "not used")


def test_every_kind_is_asked() -> None:
    assert {kind.NAME: kind for kind in STORES} == KINDS


# -- programs ---------------------------------------------------------------------------------------------------------


def test_the_variables_lead_to_the_store_and_are_on_the_list(filled: Filled, tmp_path: Path) -> None:
    on = dict(filled.kind.enable(filled.root))

    assert set(on) | set(filled.kind.OFF) <= set(CACHE_VARIABLES)
    led = process(on, tmp_path)
    place = filled.kind.locate(led)
    assert place is not None
    assert place[0] == filled.root
    assert filled.kind.enabled(led)
    assert not filled.kind.enabled(process({**on, **filled.kind.OFF}, tmp_path))


# -- scanning ---------------------------------------------------------------------------------------------------------


def test_a_sound_store_is_read_without_a_complaint(filled: Filled) -> None:
    before = filled.files()
    scan = filled.look()

    assert scan.state is StoreState.OK
    assert len(scan.entries) > 1
    assert [one.defect for one in scan.entries if one.defect is not None] == []
    assert len({one.id for one in scan.entries}) == len(scan.entries)
    assert scan.faults == filled.kind.faults(filled.found, NOW, None) == ()
    assert filled.files() == before


def test_what_did_not_change_is_not_read_again(filled: Filled) -> None:
    first = filled.look()
    again = filled.kind.scan(filled.found, NOW, {one.id.key: one.stamp for one in first.entries}, None)

    assert again.entries == ()
    assert {one.key for one in again.unchanged} == {one.id.key for one in first.entries}


def test_a_look_bit_by_bit_finds_the_same(filled: Filled) -> None:
    parts = list(filled.kind.parts(filled.found, NOW, (), None))

    assert {one for part in parts for one in part.entries} == set(filled.look().entries)


def test_each_file_of_an_entry_belongs_to_it(filled: Filled) -> None:
    keys = {one.id.key for one in filled.look().entries}

    assert {filled.kind.key(name) for name in filled.files()} == keys
    for stranger in (
        "",
        "x",
        "../x",
        "/",
        "a/b/c/d",
        "\udcff",
        "0",
        ".xpucached/1/0.bin",
        ".xpucached.trash/1/leaf/0.bin",
    ):
        assert filled.kind.key(stranger) is None


@pytest.mark.parametrize("what", ["nothing", "file", "pipe", "loop", "strangers", "far"])
def test_a_scan_never_raises(filled: Filled, tmp_path: Path, what: str) -> None:
    root = tmp_path / "other"
    match what:
        case "file":
            root.write_bytes(b"x")
        case "pipe":
            os.mkfifo(root)
        case "loop":
            root.symlink_to(root)
        case "strangers":
            root.mkdir()
            os.mkfifo(root / "0")
            (root / "1").symlink_to(root)
            (root / "2" / "3").mkdir(parents=True)
            (root / "2" / "\udcff").write_bytes(b"x")
        case "far":
            root = tmp_path / "/".join(["long" * 50] * 30)
        case _:
            pass
    other = replace(filled.found, store=Store(filled.kind.NAME, root))

    assert filled.kind.scan(other, NOW, {}, None).entries == ()
    assert [one for part in filled.kind.parts(other, NOW, (), None) for one in part.entries] == []
    assert filled.kind.trash(other.store) == ()
    filled.kind.faults(other, NOW, None)


# -- taking out, and giving back ---------------------------------------------------------------------------------------


def test_what_is_removed_is_gone_and_nothing_else(filled: Filled) -> None:
    going, *staying = sorted(filled.look().entries, key=lambda one: one.id.key, reverse=True)

    assert filled.kind.remove([going]) == {going.id: True}
    left = filled.look()
    assert {one.id.key for one in left.entries} == {one.id.key for one in staying}
    assert (left.faults, left.ours, left.state) == ((), (), StoreState.OK)
    assert filled.kind.trash(filled.store) == ()


def test_what_changed_since_the_look_stays(filled: Filled) -> None:
    going = filled.look().entries[0]

    assert filled.kind.remove([replace(going, stamp=f"{going.stamp}0")]) == {going.id: False}
    assert going in filled.look().entries


def test_what_goes_into_the_trash_comes_back_as_it_was(filled: Filled) -> None:
    before = filled.files()
    going = filled.look().entries
    assert all(filled.kind.remove(going, {one.id: LABEL for one in going}).values())

    assert filled.files() == {}
    inside = filled.kind.trash(filled.store)
    assert {one.key for one in inside} == {one.id.key for one in going}
    assert {(one.reason, one.detail, one.whole) for one in inside} == {(LABEL.reason, LABEL.detail, True)}
    assert [one.state for one in [filled.look()]] == [StoreState.OK]

    told = filled.kind.restore(filled.store, tuple(one.ref for one in inside))
    assert {one.ref for one in told if one.key is not None} == {one.ref for one in inside}
    assert filled.kind.trash(filled.store) == ()
    assert sorted(filled.files().values()) == sorted(before.values())


def test_what_is_discarded_does_not_come_back(filled: Filled) -> None:
    going = filled.look().entries[:1]
    assert all(filled.kind.remove(going, {one.id: LABEL for one in going}).values())
    (item,) = filled.kind.trash(filled.store)

    assert filled.kind.discard(filled.store, (item.ref, TrashRef("nothing"))) >= {item.ref}
    assert filled.kind.trash(filled.store) == ()
    assert [one.key for one in filled.kind.restore(filled.store, (item.ref,))] == [None]


def test_where_nothing_of_ours_was_left_there_is_nothing_to_sweep(filled: Filled) -> None:
    before = filled.files()

    assert [filled.kind.sweep(one.id) for one in filled.look().entries] == [False] * len(filled.look().entries)
    assert filled.files() == before


# -- compiling again ---------------------------------------------------------------------------------------------------


def test_what_is_compiled_again_is_found_by_the_next_look(filled: Filled) -> None:
    made = [filled.kind.recipe(one) for one in filled.look().entries]
    recipes = [one for one in made if isinstance(one, Recipe)]
    target = Target("P", "D", "V", "another driver")
    for recipe in recipes:
        binary = native(500)
        assert filled.kind.unusable(target, binary) is None
        key = filled.kind.publish(recipe, target, binary)
        assert key is not None
        # A program may have been quicker: that one stays.
        assert filled.kind.publish(recipe, target, native(600)) in {None, key}
    found = {one.id.key: one for one in filled.look().entries}

    assert len(found) >= len(made)
    assert {one.environment for one in found.values()} >= ({target} if recipes else set())
    assert [one.defect for one in found.values() if one.defect is not None] == []


def test_a_known_entry_that_is_gone_is_named(filled: Filled) -> None:
    entries = sorted(filled.look().entries, key=lambda one: one.id.key)
    known = [KnownEntry(one.id.key, one.stamp, None) for one in entries]
    assert filled.kind.remove(entries[-1:])
    parts = list(filled.kind.parts(filled.found, NOW, known, None))
    left = {one.key for part in parts for one in part.unchanged}

    assert left == {one.id.key for one in entries[:-1]}
    assert EntryKey(entries[-1].id.key) not in left
    assert entries[-1].id.key in {key for part in parts for key in part.vanished or ()} or parts[-1].vanished is None
