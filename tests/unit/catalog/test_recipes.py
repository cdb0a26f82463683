"""Recipes that runs told: kept once a second pass asked for them, each part once, in bounds, and for us alone."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import zlib
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest
import sqlalchemy as sa

from tests import REPOSITORY
from tests.support import catalogs
from tests.support.users import mere_user
from xpucached.catalog import Catalog, recipes, soundness
from xpucached.catalog.blobs import LARGEST, Blobs
from xpucached.catalog.entries import all_entries
from xpucached.catalog.recipe_tables import RECIPES
from xpucached.catalog.recipes import RecipeStore, recipe_lineages
from xpucached.catalog.scans import record_scan
from xpucached.catalog.surveys import record_survey
from xpucached.catalog.tables import METADATA
from xpucached.domain.host import Host
from xpucached.domain.names import Architecture, EntryKey, KindName
from xpucached.domain.recipes import RecordedRecipe
from xpucached.domain.stores import Entry, EntryId, FoundStore, Scan, Store, StoreOrigin, StoreState
from xpucached.domain.targets import Origin, Target
from xpucached.errors import CatalogError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

NOW: Final = datetime(2026, 5, 4, 12, tzinfo=UTC)
KIND: Final = KindName("full")
TARGET: Final = Target(KIND, "P", "D", "1")


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "recipes"


@pytest.fixture
def store(catalog: Catalog, folder: Path) -> RecipeStore:
    return RecipeStore(catalog, folder)


def recipe(key: str = "a", source: bytes = b"kernel", target: Target = TARGET) -> RecordedRecipe:
    return RecordedRecipe(EntryKey(key), target, "line", {"source": source, "table": b"same"}, {"options": "-O2"})


def twice(store: RecipeStore, *some: RecordedRecipe, now: datetime = NOW) -> None:
    for _ in range(2):
        assert store.keep(KIND, some, now) == 0


def test_what_a_second_pass_asked_for_comes_back_as_it_was_told(catalog: Catalog, store: RecipeStore) -> None:
    store.keep(KIND, [recipe()], NOW)
    assert store.recorded(KIND, EntryKey("a")) is None
    assert catalog.read(recipe_lineages) == {}

    store.keep(KIND, [recipe()], NOW)
    assert store.recorded(KIND, EntryKey("a")) == recipe()
    assert store.recorded(KindName("other"), EntryKey("a")) is None
    assert catalog.read(recipe_lineages) == {(KIND, EntryKey("a")): "line"}


def test_who_tells_something_else_of_a_key_begins_anew(store: RecipeStore) -> None:
    twice(store, recipe())
    other = RecordedRecipe(EntryKey("a"), TARGET, "another", {"source": b"forged"}, {})
    store.keep(KIND, [other], NOW)
    assert store.recorded(KIND, EntryKey("a")) is None
    store.keep(KIND, [other], NOW)
    assert store.recorded(KIND, EntryKey("a")) == other


def test_a_program_that_asks_for_something_else_each_time_pushes_out_nothing_that_counts(
    store: RecipeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "MOST", 5)
    twice(store, recipe("proven"))
    store.keep(KIND, [recipe(str(number)) for number in range(5)], NOW + timedelta(hours=1))
    assert store.recorded(KIND, EntryKey("proven")) == recipe("proven")


def test_a_part_that_many_have_is_kept_once_small_and_for_us_alone(store: RecipeStore, folder: Path) -> None:
    source = b"__kernel void f() {}\n" * 10_000
    twice(store, *(recipe(str(number), source) for number in range(50)))

    found = [path.stat() for path in folder.iterdir()]
    assert len(found) == 2
    assert {stat.S_IMODE(one.st_mode) for one in found} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sum(one.st_size for one in found) < len(source) // 50


def test_what_is_too_large_is_not_kept(store: RecipeStore, folder: Path) -> None:
    large = recipe("large", bytes(LARGEST + 1))
    chatty = RecordedRecipe(EntryKey("chatty"), TARGET, "line", {}, {"options": "x" * (65 << 10)})
    assert store.keep(KIND, [large, chatty, recipe()], NOW) == 2
    assert len(list(folder.iterdir())) == 2


def test_beyond_the_bounds_the_oldest_go_with_their_parts(
    store: RecipeStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "MOST", 2)
    for number in range(4):
        twice(store, recipe(str(number), b"%d" % number), now=NOW + timedelta(hours=number))
    assert [store.recorded(KIND, EntryKey(str(one))) is not None for one in range(4)] == [False, False, True, True]
    assert len(list(folder.iterdir())) == 3

    monkeypatch.setattr(recipes, "ROOM", 6000)
    twice(store, recipe("random", os.urandom(2800)), now=NOW + timedelta(hours=9))
    assert [store.recorded(KIND, EntryKey(one)) is not None for one in ("2", "3", "random")] == [False, True, True]
    twice(store, recipe("random", os.urandom(5990)), now=NOW + timedelta(hours=10))
    assert [store.recorded(KIND, EntryKey(one)) is not None for one in ("3", "random")] == [True, False]
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("damage", ["gone", "cut", "changed", "endless", "link", "pipe"])
def test_a_recipe_whose_parts_are_damaged_is_none(store: RecipeStore, folder: Path, damage: str) -> None:
    twice(store, recipe())
    path = max(folder.iterdir(), key=lambda one: one.name)
    match damage:
        case "gone":
            path.unlink()
        case "cut":
            path.write_bytes(path.read_bytes()[:8])
        case "changed":
            path.write_bytes(Blobs(folder / "x").put(b"another")[0].encode())
        case "link":
            path.rename(folder / "elsewhere")
            path.symlink_to(folder / "elsewhere")
        case "pipe":
            path.unlink()
            os.mkfifo(path)
        case "endless":
            path.write_bytes(zlib.compress(bytes(LARGEST * 4)))
    assert store.recorded(KIND, EntryKey("a")) is None
    # The next pass that tells it keeps it anew.
    store.keep(KIND, [recipe()], NOW)
    assert store.recorded(KIND, EntryKey("a")) == recipe()


def test_a_text_whose_rights_somebody_changed_is_not_lost(folder: Path) -> None:
    texts = Blobs(folder)
    digest, _ = texts.put(b"a text")
    path = folder / digest
    path.chmod(0o664)
    assert texts.get(digest) == b"a text"
    path.chmod(0)
    with mere_user() if os.geteuid() == 0 else contextlib.nullcontext():
        assert texts.get(digest) is None
    path.chmod(0o600)
    assert texts.get(digest) == b"a text"


def test_a_disk_that_is_full_keeps_no_half_of_a_text(
    store: RecipeStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.keep(KIND, [recipe()], NOW)
    assert list(folder.iterdir()) == []


PARTS: Final = "UPDATE recipes SET parts = ? WHERE key = 'b'"
FORGED: Final = {
    PARTS: ("", "[]", '{"a": 1}', '{"a": [1, 2]}', '{"a": ["d", "2"]}', '{"a": ["d", -1]}'),
    "UPDATE recipes SET facts = ? WHERE key = 'b'": ("{", "[]", '{"a": 1}'),
}


@pytest.mark.parametrize(("how", "text"), [(how, text) for how, texts in FORGED.items() for text in texts])
def test_a_forged_row_is_found_before_a_run_meets_it(catalog: Catalog, store: RecipeStore, how: str, text: str) -> None:
    twice(store, recipe("a"), recipe("b"))
    assert catalog.read(recipes.read_all) == 2
    catalog.read(soundness.check, growing=True)
    catalog.write(lambda connection: connection.exec_driver_sql(how, (text,)))
    with pytest.raises(CatalogError):
        catalog.read(soundness.check, growing=True)


def test_a_part_that_a_crash_left_empty_makes_no_catalog_unsound(catalog: Catalog, store: RecipeStore) -> None:
    twice(store, recipe("b"))
    catalog.write(lambda connection: connection.exec_driver_sql(PARTS, ('{"a": ["d", 0]}',)))
    assert catalog.read(recipes.read_all) == 1


def test_what_hangs_on_rows_that_grow_with_the_stores_grows_with_them() -> None:
    for table in METADATA.sorted_tables:
        parents = {key.column.table.name for column in table.c for key in column.foreign_keys}
        if parents & soundness.GROWING:
            assert table.name in soundness.GROWING


def test_what_a_killed_daemon_half_wrote_goes_with_the_next_recipe(store: RecipeStore, folder: Path) -> None:
    twice(store, recipe())
    (folder / f"{'a' * 64}.17").write_bytes(b"half")
    (folder / "notes").write_bytes(b"not ours")
    twice(store, recipe("b"))
    assert sorted(len(path.name) for path in folder.iterdir()) == [5, 64, 64]


def kept(catalog: Catalog) -> set[str]:
    """Return the keys of all recipes, also of those that do not count yet."""
    return set(catalog.read(lambda connection: connection.execute(sa.select(RECIPES.c.key)).scalars().all()))


def test_the_bounds_are_those_that_the_documentation_names() -> None:
    said = (REPOSITORY / "docs/kinds.md").read_text("utf-8").replace("\n", " ")
    assert f"At most {recipes.MOST:,} recipes and {recipes.ROOM >> 20} MiB of texts are kept" in said
    assert f"a text of more than {LARGEST >> 20} MiB is not kept" in said


def test_what_is_just_small_enough_is_kept(
    catalog: Catalog, store: RecipeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "LARGEST", 100)
    monkeypatch.setattr(recipes, "_FACTS", 100)
    facts = {"options": "x" * (100 - len('{"options": ""}'))}
    fits = RecordedRecipe(EntryKey("fits"), TARGET, "line", {"source": bytes(100)}, facts)
    bare = RecordedRecipe(EntryKey("bare"), TARGET, "line", {}, {})
    chatty = RecordedRecipe(EntryKey("chatty"), TARGET, "line", {}, {"options": facts["options"] + "x"})
    assert store.keep(KIND, [fits, bare, chatty, recipe("large", bytes(101))], NOW) == 2
    assert kept(catalog) == {"fits", "bare"}


def test_one_pass_tells_no_more_than_is_kept_of_all(
    catalog: Catalog, store: RecipeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "MOST", 2)
    assert store.keep(KIND, [recipe("a"), recipe("b"), recipe("c")], NOW, proven=True) == 1
    assert kept(catalog) == {"a", "b"}


def test_of_what_does_not_count_yet_the_newest_half_stays(
    catalog: Catalog, store: RecipeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "MOST", 4)
    for number in range(3):
        store.keep(KIND, [recipe(str(number))], NOW + timedelta(hours=number))
    assert kept(catalog) == {"1", "2"}
    # Those that count take all of it.
    for number in range(5):
        store.keep(KIND, [recipe(f"counts{number}")], NOW + timedelta(hours=4 + number), proven=True)
    assert kept(catalog) == {"counts1", "counts2", "counts3", "counts4"}


@pytest.mark.parametrize(("proven", "share"), [(True, 1), (False, 2)])
def test_recipes_fill_their_room_to_the_last_byte(
    catalog: Catalog, store: RecipeStore, folder: Path, monkeypatch: pytest.MonkeyPatch, *, proven: bool, share: int
) -> None:
    def keep(key: str, at: int, parts: Mapping[str, bytes]) -> None:
        told = RecordedRecipe(EntryKey(key), TARGET, "line", parts, {})
        store.keep(KIND, [told], NOW + timedelta(hours=at), proven=proven)

    keep("first", 0, {"source": b"one"})
    keep("second", 1, {"source": b"another"})
    room = sum(path.stat().st_size for path in folder.iterdir())
    monkeypatch.setattr(recipes, "ROOM", room * share)
    keep("third", 2, {})
    assert kept(catalog) == {"first", "second", "third"}
    monkeypatch.setattr(recipes, "ROOM", room * share - 1)
    keep("fourth", 3, {})
    assert kept(catalog) == {"second", "third", "fourth"}


def test_what_goes_for_want_of_room_goes_of_its_own_kind(
    catalog: Catalog, store: RecipeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "MOST", 2)
    other = KindName("other")
    store.keep(KIND, [recipe()], NOW, proven=True)
    for hour in (1, 2):
        store.keep(other, [recipe("ab"[hour - 1])], NOW + timedelta(hours=hour), proven=True)
    assert store.recorded(KIND, EntryKey("a")) is None
    assert store.recorded(other, EntryKey("a")) == recipe()


def test_what_is_never_asked_for_again_counts_only_after_two_more_passes(
    catalog: Catalog, store: RecipeStore, tmp_path: Path
) -> None:
    twice(store, recipe("a"), recipe("b"))
    other = KindName("other")
    store.keep(other, [recipe("a")], NOW, proven=True)
    catalog.write(recipes.note_never_again, [EntryId(Store(KIND, tmp_path), EntryKey("a"))])
    assert store.recorded(KIND, EntryKey("a")) is None
    assert store.recorded(KIND, EntryKey("b")) == recipe("b")
    assert store.recorded(other, EntryKey("a")) == recipe("a")
    store.keep(KIND, [recipe("a")], NOW)
    assert store.recorded(KIND, EntryKey("a")) is None
    store.keep(KIND, [recipe("a")], NOW)
    assert store.recorded(KIND, EntryKey("a")) == recipe("a")


def scanned(catalog: Catalog, root: Store, targets: Mapping[str, Target | None]) -> dict[str, tuple[object, object]]:
    """Look at a store anew; give what each of its entries is for, and who says so."""
    entries = [
        Entry(EntryId(root, EntryKey(key)), "s", 1, 4096, NOW, None, environment)
        for key, environment in targets.items()
    ]
    found = FoundStore(root, StoreOrigin.FOUND, "test")
    catalog.write(record_scan, Scan(found, NOW, StoreState.OK, 0, tuple(entries)), lambda _: Architecture("x"))
    return {one.entry.id.key: (one.entry.environment, one.origin) for one in catalog.read(all_entries)}


@pytest.mark.parametrize("present", [True, False])
def test_an_entry_that_does_not_say_what_it_is_for_is_for_what_its_recipe_says(
    catalog: Catalog, store: RecipeStore, tmp_path: Path, *, present: bool
) -> None:
    catalog.write(record_survey, Host(NOW, "boot", "6", "stamp", environments=(TARGET,) if present else ()))
    twice(store, recipe("a"))
    said = Target(KIND, "P", "D", "2")
    kept = scanned(catalog, Store(KIND, tmp_path), {"a": None, "b": None, "c": said})
    # The driver of a recipe has gone, and the entry may be the next one's.
    first = (TARGET, Origin.OBSERVED) if present else (None, None)
    assert kept == {"a": first, "b": (None, None), "c": (said, Origin.DECLARED)}


def test_what_a_later_pass_cannot_say_is_not_taken_from_an_earlier_one(
    catalog: Catalog, store: RecipeStore, tmp_path: Path
) -> None:
    catalog.write(record_survey, Host(NOW, "boot", "6", "stamp", environments=(TARGET,)))
    twice(store, recipe("a"), recipe("b"))
    root = Store(KIND, tmp_path)
    scanned(catalog, root, {"a": None, "b": None, "c": TARGET})
    catalog.write(record_survey, Host(NOW, "boot", "6", "stamp"))
    store.keep(KIND, [recipe("b")], NOW, {EntryKey("a"), EntryKey("b"), EntryKey("c")})
    kept = {one.entry.id.key: one.entry.environment for one in catalog.read(all_entries)}
    assert kept == {"a": None, "b": TARGET, "c": TARGET}


def test_what_was_compiled_by_a_recipe_that_counts_counts_at_once(catalog: Catalog, store: RecipeStore) -> None:
    store.keep(KIND, [recipe()], NOW, proven=True)
    assert store.recorded(KIND, EntryKey("a")) == recipe()
    assert catalog.read(recipe_lineages) == {(KIND, EntryKey("a")): "line"}


def test_an_entry_is_for_the_driver_under_which_it_was_asked_for_last(
    catalog: Catalog, store: RecipeStore, tmp_path: Path
) -> None:
    later, declared = Target(KIND, "P", "D", "2"), Target(KIND, "P", "D", "3")
    catalog.write(record_survey, Host(NOW, "boot", "6", "stamp", environments=(TARGET, later)))
    other = KindName("other")
    for kind in (KIND, other):
        store.keep(kind, [recipe("a"), recipe("b")], NOW, proven=True)
    scanned(catalog, Store(other, tmp_path), {"a": None})
    scanned(catalog, Store(KIND, tmp_path), {"a": None, "b": None, "c": declared, "new": None})
    told = [recipe("a", target=later), recipe("c", target=later), recipe("new", target=later)]
    store.keep(KIND, told, NOW)
    found = {
        (one.entry.id.store.kind, one.entry.id.key): (one.entry.environment, one.origin)
        for one in catalog.read(all_entries)
    }
    assert found == {
        (KIND, "a"): (later, Origin.OBSERVED),
        (KIND, "b"): (TARGET, Origin.OBSERVED),
        # What an entry says of itself counts more.
        (KIND, "c"): (declared, Origin.DECLARED),
        (KIND, "new"): (later, Origin.OBSERVED),
        (other, "a"): (TARGET, Origin.OBSERVED),
    }


def test_what_was_not_asked_for_stays_what_it_was_said_to_be(
    catalog: Catalog, store: RecipeStore, tmp_path: Path
) -> None:
    catalog.write(record_survey, Host(NOW, "boot", "6", "stamp", environments=(TARGET,)))
    twice(store, recipe("a"), recipe("b"))
    root = Store(KIND, tmp_path)
    scanned(catalog, root, {"a": None, "b": None})
    store.keep(KIND, [], NOW, {EntryKey("a")})
    assert {one.entry.id.key: one.entry.environment for one in catalog.read(all_entries)} == {"a": None, "b": TARGET}
