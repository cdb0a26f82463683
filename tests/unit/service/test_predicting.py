"""Predicting looks at all that can be read, for a while, and takes for told only what was."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from tests.support import catalogs
from tests.unit.catalog.test_predicted import KIND, NEW, Place
from xpucached.domain.names import EntryKey
from xpucached.service import predicting

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from xpucached.domain.names import KindName
    from xpucached.domain.recipes import RecordedRecipe
    from xpucached.domain.stores import EntryId
    from xpucached.domain.targets import Target
    from xpucached.service.context import Context


class House:
    """A catalog with five recipes under another compiler, and a kind that takes nine seconds for each."""

    def __init__(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        self._place = place
        self.now = 0.0
        self.asked: list[str] = []
        self.unreadable: set[str] = set()
        self.lost: set[str] = set()
        place.warmed(*"abcde", told=tuple("abcde"))
        place.survey(NEW)
        monkeypatch.setattr(predicting, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(predicting, "KINDS", {KIND: SimpleNamespace(recorder=self)})

    def predict(self, entry: EntryId, _told: RecordedRecipe, _target: Target) -> EntryKey:
        self.asked.append(entry.key)
        self.now += 9
        if entry.key in self.unreadable:
            raise OSError(5, "Input/output error")
        return EntryKey(f"{entry.key}2")

    def recorded(self, kind: KindName, key: EntryKey) -> RecordedRecipe | None:
        return None if key in self.lost else self._place.recipes.recorded(kind, key)

    def look(self) -> tuple[bool, str]:
        """Return whether nothing is left, and what the kind was asked for."""
        self.asked.clear()
        context = SimpleNamespace(catalog=self._place.catalog, recipes=self)
        return predicting._look(cast("Context", context)), "".join(self.asked)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    with closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as opened:
        yield House(Place(opened, tmp_path / "recipes"), monkeypatch)


def test_after_some_time_the_rest_waits_and_what_is_done_is_noted(house: House) -> None:
    assert [house.look(), house.look(), house.look()] == [(False, "abc"), (True, "de"), (True, "")]


def test_what_cannot_be_read_just_now_is_predicted_later(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicting, "_SECONDS", 1000.0)
    monkeypatch.setattr(predicting, "_BATCH", 1)
    house.unreadable, house.lost = {"a", "d"}, {"b"}
    assert [house.look(), house.look()] == [(True, "acde"), (True, "ad")]
    house.unreadable, house.lost = set(), set()
    assert [house.look(), house.look()] == [(True, "abd"), (True, "")]


def test_what_cannot_be_read_makes_no_look_follow_the_other(house: House) -> None:
    house.unreadable = set("abcde")
    assert house.look() == (True, "abc")
