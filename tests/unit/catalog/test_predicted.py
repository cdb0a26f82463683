"""Where programs will look under another compiler: what was predicted is known for it, and counts when it is whole."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from tests.support import catalogs
from xpucached.catalog import predicted
from xpucached.catalog.coverage import model_coverage
from xpucached.catalog.entries import all_entries
from xpucached.catalog.models import add_model
from xpucached.catalog.recipe_tables import PREDICTED
from xpucached.catalog.recipes import PROVEN, RecipeStore, recipe_lineages
from xpucached.catalog.runs import begin_run, finish_run
from xpucached.catalog.scans import record_scan
from xpucached.catalog.surveys import record_survey
from xpucached.catalog.tables import INHERITED
from xpucached.domain.defects import Defect, Effect
from xpucached.domain.host import Host
from xpucached.domain.models import Attribution, Model, Outcome, WarmReason, Workload
from xpucached.domain.names import Architecture, EntryKey, KindName, ModelName
from xpucached.domain.plans import Policy
from xpucached.domain.recipes import RecordedRecipe, Unpredicted
from xpucached.domain.stores import (
    Entry,
    EntryId,
    EntryState,
    FoundStore,
    ImageFormat,
    Scan,
    Store,
    StoreOrigin,
    StoreState,
)
from xpucached.domain.targets import Target
from xpucached.planning.prewarm import plan_prewarm, rests_on_successors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xpucached.catalog import Catalog

NOW: Final = datetime(2026, 5, 4, 12, tzinfo=UTC)
KIND: Final = KindName("full")
OLD: Final = Target(KIND, "P", "D", "1", (("compiler", "a"),))
NEW: Final = replace(OLD, facts=(("compiler", "b"),))
NET: Final = Model(ModelName("net"), Workload(("/bin/true",), Path("/"), {}, 1.0))
STORE: Final = Store(KIND, Path("/store"))
DAMAGED: Final = Defect("full-damaged", Effect.ONCE, "it is damaged")


class Place:
    """A catalog with a model whose two entries have recipes, before and after its compiler changed."""

    def __init__(self, catalog: Catalog, folder: Path) -> None:
        self.catalog = catalog
        self.recipes = RecipeStore(catalog, folder)
        self.survey(OLD)
        catalog.write(add_model, NET)

    def survey(self, *targets: Target) -> None:
        self.host = Host(NOW, "boot", "6", "stamp", environments=targets)
        self.catalog.write(record_survey, self.host)

    def look(self, *keys: str, damaged: str = "", spirv: bool = False) -> None:
        entries = [
            replace(
                Entry(EntryId(STORE, EntryKey(key)), "s", 1, 4096, NOW, None, None),
                state=EntryState.DEFECTIVE if key == damaged else EntryState.OK,
                defect=DAMAGED if key == damaged else None,
                image=ImageFormat.SPIRV if spirv else None,
            )
            for key in keys
        ]
        scan = Scan(FoundStore(STORE, StoreOrigin.FOUND, "test"), NOW, StoreState.OK, 0, tuple(entries))
        self.catalog.write(record_scan, scan, lambda _: Architecture("x"))

    def warmed(self, *keys: str, told: tuple[str, ...]) -> None:
        """Let a run warm the model with these entries, of which so many told how they are compiled."""
        self.look(*keys)
        for _ in range(2):
            self.recipes.keep(KIND, [RecordedRecipe(EntryKey(key), OLD, f"of {key}", {}, {}) for key in told], NOW)
        run = self.catalog.write(begin_run, NET, WarmReason.NEVER, self.host.signature, NOW)
        used = frozenset(EntryId(STORE, EntryKey(key)) for key in keys)
        self.catalog.write(finish_run, run.id, Outcome.WARMED, (), Attribution(used, frozenset()), (OLD,), "", "", NOW)

    def predict(self, *unknown: str) -> list[str]:
        """Predict all but those; give of what."""
        some = self.catalog.read(predicted.unpredicted, PROVEN, 10)
        told = [(one, None if one.entry.key in unknown else EntryKey(f"{one.entry.key}2")) for one in some]
        self.catalog.write(predicted.note, told)
        return [one.entry.key for one in some]

    def warm(self) -> bool:
        coverage = self.catalog.read(model_coverage)
        return bool(plan_prewarm([NET], coverage, self.host, Policy(), NOW + timedelta(days=1)).covered)

    def rests(self) -> bool:
        """Return whether the model's proof counts only by what was predicted."""
        (coverage,) = self.catalog.read(model_coverage)
        return rests_on_successors(coverage, self.host)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as opened:
        yield Place(opened, tmp_path / "recipes")


def test_a_model_is_warm_again_when_all_that_was_predicted_is_there(place: Place) -> None:
    place.warmed("a", "b", told=("a", "b"))
    assert (place.warm(), place.rests(), place.predict()) == (True, False, [])
    place.survey(NEW)
    assert (place.warm(), place.predict(), place.predict()) == (False, ["a", "b"], [])
    place.look("a", "b", "a2")
    assert not place.warm()
    place.look("a", "b", "a2", "b2", "c2", damaged="b2")
    assert not place.warm()
    assert not place.rests()
    place.look("a", "b", "a2", "b2", "c2")
    assert (place.warm(), place.rests()) == (True, True)
    kept = {one.entry.id.key: (one.entry.environment, one.models) for one in place.catalog.read(all_entries)}
    assert kept == {
        "a": (None, ("net",)),
        "b": (None, ("net",)),
        "a2": (NEW, ("net",)),
        "b2": (NEW, ("net",)),
        "c2": (None, ()),
    }
    assert place.catalog.read(recipe_lineages)[KIND, EntryKey("a2")] == "of a"
    # With a third compiler none of that counts, and it is predicted anew.
    place.survey(replace(OLD, facts=(("compiler", "c"),)))
    assert (place.warm(), place.predict()) == (False, ["a", "b"])
    place.survey(OLD)
    assert (place.warm(), place.rests()) == (True, False)


def test_what_is_predicted_to_lie_where_it_lay_counts_once(place: Place) -> None:
    """One of two compilers has gone, and the other one makes of a what it made before."""
    place.warmed("a", "b", told=("a", "b"))
    place.survey(NEW)
    some = place.catalog.read(predicted.unpredicted, PROVEN, 10)
    keys = {"a": EntryKey("a"), "b": EntryKey("b2")}
    place.catalog.write(predicted.note, [(one, keys[one.entry.key]) for one in some])
    # When it is read anew, it is for the compiler that is here, too.
    place.look("a", "b")
    assert not place.warm()
    place.look("a", "b", "b2")
    assert place.warm()


def test_what_was_predicted_for_a_compiler_is_forgotten_when_another_one_is_here(place: Place) -> None:
    place.warmed("a", "b", told=("a", "b"))
    third = replace(OLD, facts=(("compiler", "c"),))
    for target in (NEW, third, NEW):
        place.survey(target)
        assert (place.predict(), place.predict()) == (["a", "b"], [])


def test_nothing_is_predicted_from_an_entry_that_is_damaged_until_it_is_mended(place: Place) -> None:
    place.warmed("a", "b", told=("a", "b"))
    place.survey(NEW)
    place.look("a", "b", damaged="a")
    assert (place.predict(), place.predict()) == (["b"], [])
    place.look("a", "b")
    assert (place.predict(), place.predict()) == (["a"], [])


@pytest.mark.parametrize("what", ["nothing", "untold", "unknown", "another driver"])
def test_what_is_not_known_to_be_there_makes_a_model_cold(place: Place, what: str) -> None:
    place.warmed("a", "b", told=("a",) if what == "untold" else ("a", "b"))
    place.survey(replace(NEW, toolchain="2") if what == "another driver" else NEW)
    told = place.predict(*("b" if what == "unknown" else ""))
    place.look("a", "b", "a2", "b2")
    assert told == {"untold": ["a"], "another driver": []}.get(what, ["a", "b"])
    assert place.warm() == (what == "nothing")


def test_what_a_later_run_does_not_use_is_not_inherited_again(place: Place) -> None:
    place.warmed("a", told=("a",))
    place.survey(NEW)
    place.predict()
    place.look("a", "a2")
    run = place.catalog.write(begin_run, NET, WarmReason.MANUAL, place.host.signature, NOW)
    place.look("a", "a2", "c2")
    used = Attribution(frozenset(), frozenset({EntryId(STORE, EntryKey("c2"))}))
    place.catalog.write(finish_run, run.id, Outcome.WARMED, (), used, (NEW,), "", "", NOW)
    place.look("a", "a2", "c2")
    kept = {one.entry.id.key: one.models for one in place.catalog.read(all_entries)}
    assert kept == {"a": ("net",), "a2": (), "c2": ("net",)}


def noted(place: Place) -> set[tuple[str, str | None]]:
    """Return of which keys it is noted where programs will look."""
    columns = sa.select(PREDICTED.c.key, PREDICTED.c.predicted_key)
    rows = place.catalog.read(lambda connection: connection.execute(columns).all())
    return {(key, predicted_key) for key, predicted_key in rows}


def test_what_has_no_recipe_any_more_is_not_noted_and_what_is_known_stays(place: Place) -> None:
    place.warmed("a", "b", told=("a", "b"))
    place.survey(NEW)
    elsewhere = Store(KindName("other"), STORE.root)
    told = [
        (Unpredicted(EntryId(STORE, EntryKey("a")), NEW), EntryKey("a2")),
        (Unpredicted(EntryId(STORE, EntryKey("b")), NEW), None),
        (Unpredicted(EntryId(STORE, EntryKey("c")), NEW), EntryKey("c2")),
        (Unpredicted(EntryId(elsewhere, EntryKey("a")), NEW), EntryKey("a3")),
    ]
    place.catalog.write(predicted.note, told)
    assert noted(place) == {("a", "a2"), ("b", None)}
    place.catalog.write(predicted.note, [(told[0][0], EntryKey("other"))])
    assert noted(place) == {("a", "a2"), ("b", None)}
    assert place.catalog.read(recipe_lineages)[KIND, EntryKey("a2")] == "of a"


def test_only_what_counts_and_so_many_are_to_be_predicted(place: Place) -> None:
    place.warmed("c", "a", "b", told=("b", "a", "c"))
    place.survey(NEW)
    some = place.catalog.read(predicted.unpredicted, PROVEN, 10)
    assert [(one.entry, one.target) for one in some] == [(EntryId(STORE, EntryKey(key)), NEW) for key in "abc"]
    assert place.catalog.read(predicted.unpredicted, PROVEN, 2) == some[:2]
    assert place.catalog.read(predicted.unpredicted, 3, 10) == ()
    # On a host with both compilers it is to be predicted for the other one only.
    place.survey(OLD, NEW)
    assert {one.target for one in place.catalog.read(predicted.unpredicted, PROVEN, 10)} == {NEW}


def test_two_that_need_it_inherit_it_and_who_has_it_does_not(place: Place) -> None:
    place.warmed("a", told=("a",))
    others = [replace(NET, name=ModelName(name)) for name in ("second", "third")]
    for one in others:
        place.catalog.write(add_model, one)
        run = place.catalog.write(begin_run, one, WarmReason.NEVER, place.host.signature, NOW)
        used = Attribution(frozenset({EntryId(STORE, EntryKey("a"))}), frozenset())
        place.catalog.write(finish_run, run.id, Outcome.WARMED, (), used, (OLD,), "", "", NOW)
    place.survey(NEW)
    place.look("a", "a2")
    run = place.catalog.write(begin_run, others[1], WarmReason.NEVER, place.host.signature, NOW)
    used = Attribution(frozenset(), frozenset({EntryId(STORE, EntryKey("a2"))}))
    place.catalog.write(finish_run, run.id, Outcome.WARMED, (), used, (NEW,), "", "", NOW)
    place.predict()
    kept = {one.entry.id.key: one.models for one in place.catalog.read(all_entries)}
    assert kept == {"a": ("net", "second", "third"), "a2": ("net", "second", "third")}
    rows = place.catalog.read(lambda connection: connection.scalars(sa.select(INHERITED.c.model)).all())
    assert sorted(rows) == ["net", "second"]


def test_what_was_inherited_is_handed_on_to_the_next_compiler(place: Place) -> None:
    place.warmed("a", told=("a",))
    other = replace(NET, name=ModelName("other"))
    place.catalog.write(add_model, other)
    place.look("a", "b")
    run = place.catalog.write(begin_run, other, WarmReason.NEVER, place.host.signature, NOW)
    used = Attribution(frozenset({EntryId(STORE, EntryKey("b"))}), frozenset())
    place.catalog.write(finish_run, run.id, Outcome.WARMED, (), used, (OLD,), "", "", NOW)
    for key in ("b", "a2"):
        recipe = RecordedRecipe(EntryKey(key), NEW if key == "a2" else OLD, f"of {key}", {}, {})
        for _ in range(2):
            place.recipes.keep(KIND, [recipe], NOW)
    place.survey(NEW)
    place.look("a", "b", "a2", "b2")
    assert place.predict() == ["a", "b"]
    place.survey(replace(OLD, facts=(("compiler", "c"),)))
    place.look("a", "b", "a2", "b2", "a22")
    told = [(one, EntryKey("a22")) for one in place.catalog.read(predicted.unpredicted, PROVEN, 10)]
    place.catalog.write(predicted.note, [one for one in told if one[0].entry.key == "a2"])
    kept = {one.entry.id.key: one.models for one in place.catalog.read(all_entries)}
    assert kept == {"a": ("net",), "b": ("other",), "a2": ("net",), "b2": ("other",), "a22": ("net",)}
