"""What can be found out of entries of which no run told is found out once, for a while, and what cannot is noted."""

from __future__ import annotations

import asyncio
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, NoReturn, cast

import pytest
from msgspec.structs import replace

from tests.support import catalogs
from tests.unit.catalog.test_predicted import KIND, NEW, NOW, OLD, Place
from xpucached.catalog.entries import all_entries
from xpucached.catalog.recipes import recipe_lineages
from xpucached.domain.names import EntryKey
from xpucached.domain.recipes import RecordedRecipe
from xpucached.errors import CatalogError
from xpucached.service import deriving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from xpucached.domain.stores import EntryId
    from xpucached.service.context import Context


class House:
    """A catalog with two recipes and some entries without, and a kind that takes four seconds for each."""

    COMMON = "driver"

    def __init__(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        self.now = 0.0
        self.asked: list[str] = []
        self.alike: list[tuple[str, ...]] = []
        self.unreadable: set[str] = set()
        monkeypatch.setattr(deriving, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(deriving, "KINDS", {KIND: SimpleNamespace(recorder=self)})
        self.tell("a", b"one")
        self.tell("b", b"other")
        self.tell("c", b"one")

    def tell(self, key: str, common: bytes, times: int = 2, **parts: bytes) -> None:
        told = RecordedRecipe(EntryKey(key), OLD, f"of {key}", {"driver": common, **parts}, {})
        for _ in range(times):
            self.place.recipes.keep(KIND, [told], NOW)

    def derive(self, entry: EntryId, alike: Sequence[RecordedRecipe]) -> RecordedRecipe | None:
        self.asked.append(entry.key)
        self.alike.append(tuple(one.key for one in alike))
        self.now += 4
        if entry.key in self.unreadable:
            raise OSError(5, "Input/output error")
        return replace(alike[0], key=entry.key, lineage="found") if entry.key.startswith("x") else None

    def look(self) -> tuple[bool, str]:
        """Return whether nothing is left, and what the kind was asked for."""
        self.asked.clear()
        context = SimpleNamespace(catalog=self.place.catalog, recipes=self.place.recipes, clock=lambda: NOW)
        return deriving._look(cast("Context", context)), " ".join(self.asked)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    with closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as opened:
        yield House(Place(opened, tmp_path / "recipes"), monkeypatch)


def test_what_is_found_out_is_a_recipe_like_any_other_and_the_rest_is_tried_once(house: House) -> None:
    house.place.look("a", "b", "x1", "y1", spirv=True)
    assert [house.look(), house.look()] == [(True, "x1 y1"), (True, "")]
    # One for each driver's part, and what most have in common first.
    assert set(house.alike) == {("a", "b")}
    rows = {one.entry.id.key: one.entry.environment for one in house.place.catalog.read(all_entries)}
    assert rows == {"a": OLD, "b": OLD, "x1": OLD, "y1": None}
    assert house.place.catalog.read(recipe_lineages)[KIND, EntryKey("x1")] == "found"
    # Under another driver it is tried once more, when something is told of that.
    house.place.survey(NEW)
    assert house.look() == (True, "")


def test_what_was_compiled_from_something_else_or_is_damaged_is_not_tried(house: House) -> None:
    house.place.look("x1", "x2", damaged="x1")
    assert house.look() == (True, "")
    house.place.look("x1", "x2", damaged="x1", spirv=True)
    assert house.look() == (True, "x2")


def test_nothing_is_tried_with_what_one_pass_told_alone(house: House) -> None:
    house.place.survey(NEW)
    told = RecordedRecipe(EntryKey("n"), NEW, "of n", {"driver": b"new"}, {})
    house.place.recipes.keep(KIND, [told], NOW)
    house.place.look("x1", spirv=True)
    assert house.look() == (True, "")
    house.place.recipes.keep(KIND, [told], NOW)
    assert house.look() == (True, "x1")


def test_after_some_time_the_rest_waits_and_what_cannot_be_read_is_tried_later(house: House) -> None:
    house.place.look("x1", "x2", "y1", "y2", "y3", spirv=True)
    house.unreadable = {"x2"}
    assert [house.look(), house.look()] == [(False, "x1 x2 y1"), (False, "x2 y2 y3")]
    # Nothing but that is left: no look follows the other for it.
    assert house.look() == (True, "x2")
    house.unreadable = set()
    assert [house.look(), house.look()] == [(True, "x2"), (True, "")]


def test_a_full_disk_ends_the_look_at_entries_and_nothing_else(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.place.look("x1", spirv=True)
    context = SimpleNamespace(catalog=house.place.catalog, recipes=house.place.recipes, clock=lambda: NOW)
    for place, method, error in (
        (house.place.recipes, "keep", OSError(28, "No space left on device")),
        (house.place.catalog, "write", CatalogError("the catalog cannot be written")),
    ):
        with monkeypatch.context() as full:
            full.setattr(place, method, raising(error))
            asyncio.run(deriving.look(cast("Context", context)))
    # It is tried again.
    assert house.look() == (True, "x1")


def raising(error: Exception) -> Callable[..., NoReturn]:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail
