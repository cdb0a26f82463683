"""What a replay notes while it goes on: where the catalog fails, that costs the note and not the replay."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import closing, nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast

import pytest

from tests import INSTANCE
from tests.support import catalogs
from xpucached.catalog.builds import count_built
from xpucached.catalog.recipes import recipe_lineages
from xpucached.catalog.refusals import refused_by
from xpucached.domain.host import OtherDriver
from xpucached.domain.names import EntryKey
from xpucached.domain.plans import IndexedEntry, Rebuild, Recipe, ReplayReason
from xpucached.domain.recipes import RecordedRecipe
from xpucached.domain.stores import Entry, EntryId, Store
from xpucached.domain.targets import Origin, Target
from xpucached.errors import CatalogError
from xpucached.kinds import table
from xpucached.kinds.neo.targets import NAME
from xpucached.processes.supervised import ProcessStarter
from xpucached.service import publish, rebuild
from xpucached.service.context import Context
from xpucached.service.publish import Publisher
from xpucached.service.replay import ReplayRequest
from xpucached.settings import loading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import sqlalchemy as sa

    from xpucached.catalog.recipes import Recipes
    from xpucached.service.jobs import Handle

NOW: Final = datetime(2026, 5, 4, 12, tzinfo=UTC)
OLD: Final = Target(NAME, "Level Zero", "B580", "1")
NEW: Final = Target(NAME, "Level Zero", "B580", "2")


class House:
    """A replay of entries of one store."""

    def __init__(self, context: Context, store: Path) -> None:
        self.context = context
        self._store = Store(NAME, store)
        self.results = Publisher(context, ReplayRequest(), (OtherDriver((NEW,), "stamp", {}),))

    def recipe(self, number: int) -> RecordedRecipe:
        return RecordedRecipe(EntryKey(f"0/0/{number:016x}.l0_cache"), OLD, f"lineage {number}", {}, {})

    def rebuild(self, number: int) -> Rebuild:
        id_ = EntryId(self._store, self.recipe(number).key)
        entry = Entry(id_, "s", 1, 1, NOW, None, OLD)
        return Rebuild(IndexedEntry(entry, None, None, (), NOW, NOW, "run"), NEW, ReplayReason.USED)

    def tell(self, *numbers: int) -> None:
        """Note how these were compiled."""
        for number in numbers:
            entry = self.rebuild(number).entry.entry
            self.results._note_recipe(NAME, Recipe(entry.id, b"", b"", made=self.recipe(number)))

    def kept(self) -> int:
        return len(self.context.catalog.read(recipe_lineages))

    def refused(self) -> set[str]:
        return {tail for _, tail, _ in self.context.catalog.read(refused_by, "stamp")}


@pytest.fixture
def house(home: Path, tmp_path: Path) -> Iterator[House]:
    settings = loading.load(None, user=True, environ={**os.environ, "HOME": str(home)})
    with closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        made = House(Context(settings, catalog, {}, lambda: NOW), tmp_path / "store")
        yield made
        made.results.close()


def failing(times: int, works: Callable[..., object]) -> Callable[..., object]:
    """Return what fails so often before it works."""
    left = [times]

    def called(*given: object, **named: object) -> object:
        left[0] -= 1
        if left[0] >= 0:
            raise CatalogError("the catalog failed")
        return works(*given, **named)

    return called


def test_what_stays_of_keys_is_read_once_for_all_that_is_refused(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[None] = []

    def counted(connection: sa.Connection) -> Recipes:
        asked.append(None)
        return recipe_lineages(connection)

    monkeypatch.setattr(publish, "recipe_lineages", counted)
    house.context.recipes.keep(NAME, [house.recipe(number) for number in range(3)], NOW, proven=True)
    for number in range(3):
        house.results.failed(house.rebuild(number), "no", blamed=True)
    assert house.refused() == {"lineage 0", "lineage 1", "lineage 2"}
    assert len(asked) == 1


@pytest.mark.parametrize("what", ["read", "write"])
def test_a_refusal_that_cannot_be_noted_ends_no_replay(
    house: House, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.context.recipes.keep(NAME, [house.recipe(0), house.recipe(1)], NOW, proven=True)
    monkeypatch.setattr(house.context.catalog, what, failing(1, getattr(house.context.catalog, what)))
    house.results.failed(house.rebuild(0), "no", blamed=True)
    house.results.failed(house.rebuild(1), "no", blamed=True)
    assert (len(house.results.failures), house.refused()) == (2, {"lineage 1"})


def test_a_replay_that_is_cancelled_again_and_again_waits_for_its_compilers(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work_off(job: rebuild.RebuildJob) -> None:
        going.set()
        job.cancel.wait(60)
        may_end.wait(60)
        ended.set()

    monkeypatch.setattr(rebuild.RebuildJob, "work_off", work_off)
    job = rebuild.RebuildJob(house.context, ProcessStarter({}, INSTANCE), [], (), house.results)

    async def cancel() -> None:
        task = asyncio.create_task(job.run(cast("Handle", SimpleNamespace(progress=lambda *_: None)), 1))
        try:
            assert await asyncio.to_thread(going.wait, 60)
            for _ in range(3):
                task.cancel()
                await asyncio.wait({task}, timeout=0.01)
                assert not task.done()
        finally:
            may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(cancel())


class Death(BaseException):
    """What no code of ours survives."""


@pytest.mark.parametrize("how", ["killed", "full", "another", "full after"])
def test_what_is_put_into_a_store_is_known_as_ours_whenever_we_are_killed(
    house: House, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, catalog, put = house.rebuild(1), house.context.catalog, list[bytes]()
    entry, key = one.entry.entry, EntryKey("0/0/made.l0_cache")
    made = EntryId(entry.id.store, key)

    def publish_(_recipe: Recipe, _to: Target, binary: bytes, _into: object) -> EntryKey | None:
        put.append(binary)
        if how == "killed":
            raise Death
        if how == "full after":
            monkeypatch.setattr(catalog, "write", failing(1, catalog.write))
        return None if how == "another" else key

    rebuilder = SimpleNamespace(expected_key=lambda *_: key, publish=publish_)
    monkeypatch.setattr(table, "rebuilder", lambda _entry: rebuilder)
    if how == "full":
        monkeypatch.setattr(catalog, "write", failing(1, catalog.write))
    expected = {"killed": Death, "full": CatalogError}.get(how)
    with pytest.raises(expected) if expected is not None else nullcontext():
        driver = OtherDriver((NEW,), "stamp", {})
        recipe = Recipe(entry.id, b"", b"")
        found = rebuild.publish(house.context, one, (recipe, b"made"), 1.0, Origin.REBUILT, (driver,), ())
        assert found == (None if how == "another" else key)
    # Of which it cannot be said whose it is, nothing is put there.
    assert put == ([] if how == "full" else [b"made"])
    assert catalog.read(count_built, frozenset({made})) == (how in {"killed", "full after"})


def test_recipes_that_cannot_be_kept_are_kept_with_the_next_ones(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    many = publish._MOST_TOLD
    monkeypatch.setattr(house.context.recipes, "keep", failing(2, house.context.recipes.keep))
    house.tell(*range(2 * many - 1))
    assert house.kept() == 0
    house.tell(2 * many - 1)
    assert house.kept() == 0
    house.results.close()
    assert house.kept() == 2 * many


def test_a_catalog_that_keeps_nothing_neither_ends_a_replay_nor_fills_the_memory(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "_MOST_HELD", publish._MOST_TOLD)
    monkeypatch.setattr(house.context.recipes, "keep", failing(1000, house.context.recipes.keep))
    house.tell(*range(3 * publish._MOST_TOLD))
    house.results.close()
    assert (house.kept(), len(house.results._told)) == (0, publish._MOST_HELD)
