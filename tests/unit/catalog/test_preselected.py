"""Which rows a plan of what goes gets to see: for each reason exactly those that it may concern, the worst first."""

from __future__ import annotations

import gc
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from tests.support import catalogs
from tests.unit.catalog.test_catalog import HOUR, NEW, NOW, OLD, OTHER, STORE, THIRD, architecture, entry, host, scan
from xpucached.catalog import preselect, usage
from xpucached.catalog.defects import note_defects
from xpucached.catalog.entries import all_entries
from xpucached.catalog.models import add_model
from xpucached.catalog.preselect import measured_rate, preselect_entries, store_subtotals
from xpucached.catalog.recipe_tables import RECIPES
from xpucached.catalog.runs import begin_run, finish_run
from xpucached.catalog.scans import record_scan
from xpucached.catalog.surveys import record_survey
from xpucached.catalog.tables import ENTRIES, INHERITED, MODELS, STORES, TARGETS
from xpucached.domain.models import Attribution, Model, Outcome, WarmReason, Workload
from xpucached.domain.names import ModelName
from xpucached.domain.plans import Preselection, Subtotal
from xpucached.domain.stores import EntryState
from xpucached.domain.targets import Origin
from xpucached.errors import CatalogError
from xpucached.kinds import sycl

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from xpucached.catalog import Catalog
    from xpucached.domain.stores import Entry, Store

TICK: Final = timedelta(microseconds=1)
AGO: Final = NOW - 100 * HOUR
PAGE: Final = 4096
NET: Final = Model(ModelName("net"), Workload(("x",), STORE.root, {}, 1.0))
HARMLESS, HARMFUL = sycl.defects.BIN_TRAILING, sycl.defects.BIN_EMPTY
HERE: Final = Preselection(NOW, NOW, present=frozenset({NEW}))
WORST: Final = replace(HERE, worst=((frozenset({STORE}), 1.0),))


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    """Return a catalog that every test empties: to open one takes longer than a test."""
    one = catalogs.fresh(tmp_path_factory.mktemp("preselected") / "catalog.sqlite")
    one.write(record_survey, host(NEW, at=NOW))
    one.write(note_defects, sycl.defects.DEFECTS)
    yield one
    one.close()


@pytest.fixture
def catalog(opened: Catalog) -> Catalog:
    for table in (RECIPES, STORES, MODELS):
        opened.write(sa.Connection.execute, sa.delete(table))
    opened.write(add_model, NET)
    return opened


def put(
    catalog: Catalog,
    *some: Entry,
    store: Store = STORE,
    noted: Mapping[str, Mapping[str, object]] = MappingProxyType({}),
) -> None:
    """Put entries into a store, and by key what only others than a scan note of them."""
    catalog.write(record_scan, scan(*some, store=store), architecture)
    for key, values in noted.items():
        statement = sa.update(ENTRIES).where(ENTRIES.c.key == key).values(**values)
        catalog.write(sa.Connection.execute, statement)


def own(catalog: Catalog, *some: Entry, inherited: bool = False) -> None:
    """Let the model have used entries in a run, or have inherited them of one."""
    if inherited:
        rows = sa.select(ENTRIES.c.id, sa.literal(NET.name)).where(ENTRIES.c.key.in_([one.id.key for one in some]))
        catalog.write(sa.Connection.execute, sa.insert(INHERITED).from_select(["entry_id", "model"], rows))
        return
    run = catalog.write(begin_run, NET, WarmReason.NEVER, "", AGO)
    proof = Attribution(frozenset(), frozenset(one.id for one in some))
    catalog.write(finish_run, run.id, Outcome.WARMED, (), proof, (), "", "", AGO)


def tell(catalog: Catalog, key: str, seen: int, kind: str = "sycl") -> None:
    """Note that runs told how an entry is compiled, and how many of them."""

    def note(on: sa.Connection) -> None:
        target = on.scalars(sa.select(TARGETS.c.id).limit(1)).one()
        row = {"kind": kind, "key": key, "seen": seen, "target_id": target, "lineage": "", "parts": {}, "facts": {}}
        on.execute(sa.insert(RECIPES).values(**row, at=NOW))

    catalog.write(note)


def through(catalog: Catalog, preselection: Preselection) -> set[str]:
    """Return the keys of what goes through; the rest must be in the sums."""
    some, others, _ = catalog.read(preselect_entries, preselection, 2e-5, 86400.0, 0.1)
    every = catalog.read(all_entries)
    assert len(some) + sum(one.entries for one in others) == len(every)
    assert sum(one.entry.allocated for one in some) + sum(one.allocated for one in others) == sum(
        one.entry.allocated for one in every
    )
    return {one.entry.id.key for one in some}


def new(key: str, **facts: object) -> Entry:
    return replace(entry(key, environment=NEW), **facts)


@pytest.mark.parametrize(
    ("wanted", "keys"),
    [
        (HERE, set()),
        (replace(HERE, defective=True), {"damaged", "hidden"}),
        (replace(HERE, environments=frozenset({OLD})), {"old", "ahead", "damaged"}),
        (replace(HERE, environments=frozenset({OLD, THIRD})), {"old", "ahead", "damaged"}),
        (replace(HERE, never_here=frozenset({OLD})), {"ahead"}),
        (replace(HERE, never_here=frozenset({NEW, THIRD})), set()),
        (replace(HERE, defective=True, never_here=frozenset({OLD})), {"damaged", "hidden", "ahead"}),
    ],
)
def test_each_reason_lets_through_what_it_concerns_and_nothing_else(
    catalog: Catalog, wanted: Preselection, keys: set[str]
) -> None:
    put(
        catalog,
        *(entry("old"), entry("ahead"), new("new"), entry("nowhere", environment=None)),
        entry("damaged", state=EntryState.DEFECTIVE, defect=HARMFUL),
        new("hidden", state=EntryState.DEFECTIVE, defect=HARMLESS),
        noted={"ahead": {"origin": Origin.AHEAD.value}},
    )
    assert through(catalog, wanted) == keys


@pytest.mark.parametrize("kept", [True, False])
def test_unused_is_what_was_used_last_by_then_and_without_access_times_what_somebody_saw_used(
    catalog: Catalog, *, kept: bool
) -> None:
    put(
        catalog,
        *(entry("then", created=NOW), entry("later", created=NOW + TICK)),
        *(entry("nowhere", created=NOW, environment=None), new("read", accessed=NOW + TICK)),
        *(new("run"), new("restored"), new("witnessed"), new("witnessed later")),
        noted={
            "run": {"run_used": NOW},
            "restored": {"restored": NOW},
            "witnessed": {"witnessed": NOW},
            "witnessed later": {"witnessed": NOW + TICK},
        },
    )
    put(catalog, entry("elsewhere", OTHER, created=NOW), store=OTHER)
    seen = {"run", "restored", "witnessed"}
    found = through(catalog, replace(HERE, unused={STORE: (NOW, kept)}))
    assert found == (seen | {"then", "nowhere"} if kept else seen)


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        ({"cost": 1.0}, {"cost": 2.0}),
        ({"cost": 2.0, "allocated": 3 * PAGE}, {"cost": 1.0}),
        # What was not measured costs by its image, or where it has none by what it takes.
        ({"image_size": PAGE}, {"image_size": 2 * PAGE}),
        ({"image_size": PAGE // 2}, {}),
        ({}, {"image_size": PAGE + 1}),
        ({"cost": 2e-5 * PAGE - 1e-3}, {}),
        ({}, {"cost": 2e-5 * PAGE + 1e-3}),
        # A day without use halves it.
        ({"created": NOW - 23 * HOUR, "cost": 1.0}, {"created": NOW - 48 * HOUR, "cost": 2.1}),
        ({"created": NOW - 48 * HOUR, "cost": 1.9}, {"created": NOW - 24 * HOUR, "cost": 1.0}),
        ({"created": NOW + 24 * HOUR, "cost": 1.0}, {"created": NOW, "cost": 1.1}),
        ({"created": AGO, "run_used": NOW - 48 * HOUR}, {"created": AGO, "witnessed": NOW - 24 * HOUR}),
        # Without its driver it is worth a tenth.
        ({"environment": OLD, "cost": 9.0}, {"cost": 1.0}),
        ({"cost": 1.0}, {"environment": OLD, "cost": 11.0}),
        ({"environment": None, "cost": 1.0}, {"cost": 1.1}),
        ({"environment": OLD, "cost": 9.0}, {"environment": None, "cost": 1.0}),
    ],
)
def test_the_least_worth_goes_through_first(
    catalog: Catalog, worse: dict[str, object], better: dict[str, object]
) -> None:
    facts: dict[str, dict[str, object]] = {"worse": worse, "better": better}
    later = {"cost", "run_used", "witnessed"}
    put(
        catalog,
        *(new(key, **{name: one for name, one in of.items() if name not in later}) for key, of in facts.items()),
        noted={key: {"hits": 1, **{name: of[name] for name in later & of.keys()}} for key, of in facts.items()},
    )
    young = replace(WORST, young=NOW + 99 * HOUR)
    # What a byte costs is a setting here, so that one that is measured does not change the other.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preselect, "measured_rate", lambda _: None)
        assert through(catalog, young) == {"worse"}
        assert through(catalog, replace(young, worst=((frozenset({STORE}), 1e6),))) == {"worse", "better"}


RANKED: Final = ("stale", "again", "free", "used", "inherited", "proof")


@pytest.mark.parametrize("first", range(1, 1 + len(RANKED)))
def test_what_is_stale_or_asked_for_once_goes_before_the_rest_and_what_models_need_last(
    catalog: Catalog, first: int
) -> None:
    cost = {key: {"cost": float(len(RANKED) - number)} for number, key in enumerate(RANKED)}
    # By worth alone they would go the other way round; the two that are needed, and what proves, are of one rank.
    cost["used"], cost["inherited"], cost["proof"] = {"cost": 0.1}, {"cost": 0.2}, {"cost": 3.0}
    names = {key: entry(key, environment=OLD if key in {"stale", "proof"} else NEW) for key in RANKED}
    put(catalog, *names.values(), noted=cost)
    own(catalog, names["used"], names["proof"], names["again"])
    own(catalog, names["inherited"], inherited=True)
    for key, seen in (("stale", 2), ("again", 0), ("proof", 1), ("free", 1)):
        tell(catalog, key, seen)
    tell(catalog, "used", 0, "neo")
    wanted = replace(WORST, worst=((frozenset({STORE}), (first - 1) * PAGE + 1.0),), predicted=frozenset({NET.name}))
    assert through(catalog, wanted) == set(RANKED[:first])


def test_what_nothing_predicts_is_stale_though_a_model_used_it(catalog: Catalog) -> None:
    proof, other = entry("proof"), new("other")
    put(catalog, proof, other, noted={"proof": {"cost": 99.0}})
    own(catalog, proof)
    tell(catalog, "proof", 1)
    assert through(catalog, WORST) == {"proof"}
    assert through(catalog, replace(WORST, predicted=frozenset({NET.name}))) == {"other"}
    assert through(catalog, replace(WORST, predicted=frozenset({ModelName("another")}))) == {"proof"}


@pytest.mark.parametrize("inherited", [True, False])
def test_what_is_pinned_goes_through_only_where_it_is_of_no_use(catalog: Catalog, *, inherited: bool) -> None:
    unsound = {"state": EntryState.DEFECTIVE}
    some = (
        *(new("sound"), entry("old"), entry("nowhere", environment=None)),
        *(new("damaged", **unsound, defect=HARMFUL), new("harmless", **unsound, defect=HARMLESS)),
        new("unnamed", **unsound),
    )
    put(catalog, *some, new("free"))
    own(catalog, *some, inherited=inherited)
    every = replace(HERE, worst=((frozenset({STORE}), 1e9),), pinned=frozenset({NET.name}))
    assert through(catalog, every) == {*(one.id.key for one in some), "free"}
    catalog.write(add_model, replace(NET, pinned=True))
    # What is damaged stays, too, unless things go for that.
    assert through(catalog, every) == {"free", "old"}
    assert through(catalog, replace(every, defective=True)) == {"free", "old", "damaged", "harmless", "unnamed"}


def test_what_a_model_needs_goes_through_only_if_somebody_asked(catalog: Catalog) -> None:
    used, again, old = new("used"), new("again"), entry("old")
    put(catalog, used, again, old, new("free"))
    every = replace(HERE, worst=((frozenset({STORE}), 1e9),))
    upheld = replace(every, upheld=True)
    assert through(catalog, upheld) == {"used", "again", "old", "free"}
    own(catalog, used, again, old)
    tell(catalog, "again", 0)
    assert through(catalog, every) == {"used", "again", "old", "free"}
    assert through(catalog, upheld) == {"again", "old", "free"}


def test_what_may_be_protected_goes_through_and_does_not_count(catalog: Catalog) -> None:
    made = {"first": NOW - HOUR, "young": NOW - HOUR + TICK}
    names = ("held", "young", "back", "first", "second")
    some = {key: new(key, created=made.get(key, NOW - 2 * HOUR)) for key in names}
    costs: dict[str, dict[str, object]] = {key: {"cost": cost} for cost, key in enumerate(names, 1)}
    costs["back"]["restored"] = NOW - 10 * HOUR
    put(catalog, *some.values(), noted=costs)
    wanted = replace(WORST, young=NOW - HOUR, held=frozenset({some["held"].id, entry("nothing").id}))
    assert through(catalog, wanted) == {"held", "young", "back", "first"}


def test_what_is_not_settled_or_takes_no_room_frees_none(catalog: Catalog) -> None:
    put(
        catalog,
        *(new(state, state=state) for state in (EntryState.UNFINISHED, EntryState.UNREAD)),
        *(new("empty", allocated=0), new("plain")),
    )
    assert through(catalog, replace(WORST, worst=((frozenset({STORE}), 1e9),))) == {"plain"}


def test_of_each_pool_so_much_goes_through_as_it_has_too_much(catalog: Catalog) -> None:
    for store, name in ((STORE, "here"), (OTHER, "there")):
        some = [f"{name} {number}" for number in range(3)]
        put(
            catalog,
            *(entry(key, store, environment=NEW) for key in some),
            store=store,
            noted={key: {"cost": cost} for cost, key in enumerate(some, 2 if store is OTHER else 1)},
        )
    here, there = ((frozenset({store}), float(bytes_)) for store, bytes_ in ((STORE, 2 * PAGE), (OTHER, PAGE)))
    assert through(catalog, replace(HERE, worst=(here,))) == {"here 0", "here 1"}
    assert through(catalog, replace(HERE, worst=(here, there))) == {"here 0", "here 1", "there 0"}
    both = ((frozenset({STORE, OTHER}), 3.0 * PAGE),)
    assert through(catalog, replace(HERE, worst=both)) == {"here 0", "here 1", "there 0"}


@pytest.mark.parametrize(("spare", "taken", "rounds"), [(0, 97, 1), (-3, 151, 3)])
def test_a_sample_of_a_pool_tells_up_to_which_worth_to_take_and_if_that_is_too_little_half_as_much_again(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, spare: int, taken: int, rounds: int
) -> None:
    put(
        catalog,
        *(new(str(number)) for number in range(200)),
        noted={str(number): {"cost": 1.0 + number} for number in range(200)},
    )
    monkeypatch.setattr(preselect, "_SAMPLE", 50)
    monkeypatch.setattr(preselect, "_SPARE", spare)
    asked: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        asked.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        found = through(catalog, replace(HERE, worst=((frozenset({STORE}), 97.0 * PAGE),)))
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    # Nothing is left to chance here: with these rows, one in four of them tells it to the row.
    assert (len(found), sum("INSERT INTO worst" in one for one in asked)) == (taken, rounds)
    assert found == {str(number) for number in range(taken)}


def sampled(*frees: int) -> list[preselect._Sampled]:
    return [preselect._Sampled(number, one, 2, float(number)) for number, one in enumerate(frees, 1)]


@pytest.mark.parametrize(
    ("every", "wanted", "last"),
    [
        (1, 1, 1),
        (1, 10, 1),
        (1, 10.5, 2),
        (1, 30, 3),
        (1, 30.5, None),
        (4, 5.3, 1),
        (4, 5.4, 2),
        (4, 31, 2),
        (4, 32, 3),
        (4, 60, 3),
        (4, 61, None),
    ],
)
def test_a_bound_is_where_the_sample_surely_has_enough(every: int, wanted: float, last: int | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Each of one in four tells of forty bytes, give or take: 40 - 34.6, 80 - 49.0, 120 - 60.
        patch.setattr(preselect, "_SPARE", 1)
        bound = preselect._bound(sampled(10, 10, 10), every, wanted)
    assert bound == (None if last is None else (2, last * (1 + 1e-9)))


def test_what_a_byte_cost_is_the_middle_one_of_what_was_measured(catalog: Catalog) -> None:
    assert (catalog.read(measured_rate), catalog.read(usage.rate, 5.0)) == (None, 5.0)
    sizes = {"1": 1000, "2": 0, "3": 1000, "4": 0}
    put(
        catalog,
        *(new(key, image_size=size, allocated=0 if key == "4" else PAGE) for key, size in sizes.items()),
        noted={"1": {"cost": 1.0}, "2": {"cost": 2.0 * PAGE}, "4": {"cost": 9.0}},
    )
    # 0.001 and 2 seconds a byte; the third was not measured, and the fourth has no bytes.
    assert catalog.read(measured_rate) == catalog.read(usage.rate, 5.0) == 2.0
    some, _, rate = catalog.read(preselect_entries, WORST, 5.0, 86400.0, 0.1)
    assert (len(some), rate) == (1, 2.0)
    assert catalog.read(preselect_entries, HERE, 5.0, 86400.0, 0.1)[2] == 5.0


def test_of_a_driver_that_is_traced_is_told_when_the_rest_was_made_and_used_last(catalog: Catalog) -> None:
    put(
        catalog,
        entry("first", created=NOW - 5 * HOUR, accessed=NOW - HOUR),
        entry("second", created=NOW - 4 * HOUR),
        entry("damaged", created=NOW - 3 * HOUR, accessed=NOW, state=EntryState.DEFECTIVE, defect=HARMFUL),
        new("new"),
        entry("nowhere", environment=None),
        entry("alone", environment=THIRD, state=EntryState.DEFECTIVE, defect=HARMFUL),
    )
    put(catalog, entry("elsewhere", OTHER, created=NOW - 9 * HOUR), store=OTHER)
    wanted = replace(HERE, defective=True, traced=frozenset({OLD, THIRD}))
    some, others, _ = catalog.read(preselect_entries, wanted, 2e-5, 86400.0, 0.1)
    assert [one.entry.id.key for one in some] == ["damaged", "alone"]
    times = (NOW - 4 * HOUR, NOW - HOUR)
    # A driver's times are those of all stores.
    assert set(others) == {
        Subtotal(STORE, OLD, 2, 2 * PAGE, *times),
        Subtotal(STORE, NEW, 1, PAGE),
        Subtotal(STORE, None, 1, PAGE),
        Subtotal(OTHER, OLD, 1, PAGE, *times),
    }
    assert set(catalog.read(store_subtotals)) == {
        Subtotal(STORE, OLD, 3, 3 * PAGE),
        Subtotal(STORE, THIRD, 1, PAGE),
        *(replace(one, created=None, used=None) for one in others if one != Subtotal(STORE, OLD, 2, 2 * PAGE, *times)),
    }


def test_a_question_that_fails_in_the_midst_leaves_no_table_and_proves_no_damage(catalog: Catalog) -> None:
    """SQLite takes the whole transaction back, its tables, too: that they were gone counted as a damaged catalog."""
    put(catalog, *(entry(f"{number}/0") for number in range(50)))
    left = 0

    def fail_once() -> bool:
        nonlocal left
        left -= 1
        return left == 0

    def ask(connection: sa.Connection) -> None:
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.set_progress_handler(fail_once, 1)
        try:
            preselect_entries(connection, WORST, 2e-5, 86400.0, 0.1)
        finally:
            driver.set_progress_handler(None, 0)

    told: set[str] = set()
    for steps in range(1, 100_000, 97):
        left = steps
        try:
            catalog.read(ask)
        except CatalogError as error:
            told.add(error.message.rpartition(": ")[2])
        assert not catalog.corrupt
        # The catalog keeps what failed, and with it what was being read, until something is written.
        catalog.write(note_defects, sycl.defects.DEFECTS)
        gc.collect()
        if left > 0:
            break
    assert left > 0
    assert told == {"interrupted"}
    assert len(through(catalog, WORST)) == 50
