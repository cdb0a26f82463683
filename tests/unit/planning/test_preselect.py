"""A plan from what goes through the sieve is the plan made from everything; the sums stay what a count gives."""

from __future__ import annotations

import contextlib
import gc
import math
import random
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.builders import sycl_target
from xpucached.catalog import Catalog, preselect
from xpucached.catalog.entries import all_entries, entry_page, forget_entries, note_restored
from xpucached.catalog.figures import catalog_summary
from xpucached.catalog.models import add_model, all_models
from xpucached.catalog.preselect import preselect_entries, store_subtotals
from xpucached.catalog.recipe_tables import RECIPES
from xpucached.catalog.runs import begin_run, finish_run
from xpucached.catalog.scans import record_scan
from xpucached.catalog.stores import all_stores, forget_store
from xpucached.catalog.surveys import record_survey
from xpucached.catalog.tables import ENTRIES, TARGETS
from xpucached.catalog.targets import target_presence
from xpucached.domain.defects import CHANGED
from xpucached.domain.host import Host
from xpucached.domain.models import Attribution, Model, Outcome, Pass, WarmReason, Workload
from xpucached.domain.names import Architecture, EntryKey, KindName, ModelName
from xpucached.domain.plans import DiskSpace, EvictReason, Limits, Policy
from xpucached.domain.queries import EntryQuery
from xpucached.domain.stores import Entry, EntryId, EntryState, FoundStore, Kernel, Scan, Store, StoreOrigin, StoreState
from xpucached.domain.targets import Origin, Target
from xpucached.kinds import sycl
from xpucached.planning.eviction import plan_eviction
from xpucached.planning.preselect import plan_preselection
from xpucached.planning.ranking import ABSENT, HALF, RATE
from xpucached.service import evict_decision

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW: Final = datetime(2026, 5, 4, 12, tzinfo=UTC)
DAY: Final = timedelta(days=1)
EMPTY: Final = "empty.sqlite"
STORES: Final = tuple(Store(KindName("sycl"), Path(f"/var/cache/{name}")) for name in ("one", "two"))
ENVIRONMENTS: Final = tuple(
    sycl_target(platform, device, "1", driver)
    for platform, device in (("ze", "B580"), ("ze", "B770"), ("cl", "CPU"))
    for driver in ("1.1", "1.2", "1.3", "1.4")
)


def architecture(environment: Target) -> Architecture:
    return Architecture(environment.device.lower())


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    """Return a catalog that every example empties: to open one, and to write its statements, takes longer than one."""
    place = tmp_path_factory.mktemp("sifting")
    Catalog.open(place / EMPTY).close()
    one = Catalog.open(place / "catalog.sqlite")
    yield one
    one.close()


def empty(catalog: Catalog) -> None:
    """Make a catalog as it was when it was made."""
    with (
        contextlib.closing(sqlite3.connect(catalog.path.with_name(EMPTY))) as made,
        contextlib.closing(sqlite3.connect(catalog.path)) as there,
    ):
        made.backup(there)
    assert catalog.read(catalog_summary).entries == 0


def fill(catalog: Catalog, chance: random.Random) -> None:
    """Fill an emptied catalog with a history, some models, and entries of every sort."""
    empty(catalog)
    for ago in sorted(chance.sample(range(120), k=chance.randint(0, 4)), reverse=True):
        offered = tuple(chance.sample(ENVIRONMENTS, k=2))
        catalog.write(record_survey, Host(NOW - ago * DAY, "", "", str(ago), environments=offered))
    for store in STORES:
        entries = tuple(made(store, number, chance) for number in range(chance.randint(0, 60)))
        found = FoundStore(store, StoreOrigin.CONFIGURED, "test")
        catalog.write(record_scan, Scan(found, NOW, StoreState.OK, 0, entries), architecture)
    catalog.write(compiled_ahead, chance)
    ids = [one.entry.id for one in catalog.read(all_entries)]
    for name in ("a", "b"):
        model = Model(ModelName(name), Workload(("x",), Path("/"), {}, 1.0), None, 50, pinned=chance.random() < 0.4)
        catalog.write(add_model, model)
        some = frozenset(chance.sample(ids, k=min(len(ids), 8)))
        run = catalog.write(begin_run, model, WarmReason.NEVER, "", NOW - 50 * DAY)
        passes = (Pass(chance.uniform(1, 50), 0.0, 0, 0, 1, 0), Pass(1.0, 0.0, 0, 0, 0, 1))
        ended = NOW - chance.randint(0, 100) * DAY
        catalog.write(finish_run, run.id, Outcome.WARMED, passes, Attribution(some, frozenset()), (), "", "", ended)
    catalog.write(recorded, [one for one in ids if chance.random() < 0.3], chance)
    if ids:
        catalog.write(note_restored, chance.sample(ids, k=len(ids) // 10), NOW - chance.randint(0, 20) * DAY)


def recorded(connection: sa.Connection, some: list[EntryId], chance: random.Random) -> None:
    """Note of some that runs told how they are compiled."""
    target = connection.scalar(sa.select(TARGETS.c.id).limit(1))
    what: dict[str, object] = {"target_id": target, "lineage": "", "parts": {}, "facts": {}, "at": NOW}
    for one in some if target is not None else ():
        row = {"kind": one.store.kind, "key": one.key, "seen": chance.randint(0, 2), **what}
        connection.execute(sa.insert(RECIPES).prefix_with("OR IGNORE").values(**row))


def compiled_ahead(connection: sa.Connection, chance: random.Random) -> None:
    """Note of some that we compiled them for a driver that was not here."""
    some = [number for (number,) in connection.execute(sa.select(ENTRIES.c.id)) if chance.random() < 0.2]
    connection.execute(sa.update(ENTRIES).where(ENTRIES.c.id.in_(some)).values(origin=Origin.AHEAD.value))


def made(store: Store, number: int, chance: random.Random) -> Entry:
    """Make an entry."""
    created = NOW - chance.choice((-1, 0, 0.001, 5, 30, 200)) * DAY - timedelta(seconds=chance.randint(0, 5))
    used = None if chance.random() < 0.2 else created + chance.choice((0, 1, 3, 25)) * DAY
    defect = chance.choice((CHANGED, *sycl.defects.DEFECTS)) if chance.random() < 0.1 else None
    state = EntryState.UNFINISHED if chance.random() < 0.05 else EntryState.DEFECTIVE if defect else EntryState.OK
    size = chance.choice((0, 100, 4096, 50_000))
    return Entry(
        EntryId(store, EntryKey(f"{chance.randint(0, 10**6)}/{number}/0")),
        str(number),
        size,
        chance.choice((0, 4096, 8192, 65536)),
        created,
        used,
        None if chance.random() < 0.1 else chance.choice(ENVIRONMENTS),
        image_size=chance.choice((0, size // 2)),
        state=state,
        defect=defect,
    )


def wanted(chance: random.Random, allocated: int) -> Policy:
    """Make a policy."""
    plain = Policy(
        keep_driver_generations=chance.randint(0, 2),
        max_unused=chance.choice((None, 10 * 86400.0, 90 * 86400.0)),
        max_bytes=chance.choice((None, allocated // 2, allocated - 1)),
        min_free_bytes=chance.choice((None, 300_000)),
        quota=chance.choice((None, allocated // 3)),
        low_water=chance.choice((100, 80)),
    )
    limits = (
        Limits(STORES[1].root, None, 0, chance.choice((None, 86400.0)), chance.choice((None, 40_000)), grace=0.0),
    )
    return replace(plain, stores=chance.choice(((), limits)))


@pytest.mark.flow
@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 1 << 32), asked=st.booleans())
def test_the_plan_is_the_same_whether_all_is_looked_at_or_what_went_through_the_sieve(
    catalog: Catalog, seed: int, *, asked: bool
) -> None:
    chance = random.Random(seed)  # noqa: S311 - not a secret
    fill(catalog, chance)
    every = catalog.read(all_entries)
    models = {one.name: one for one in catalog.read(all_models)}
    warm = frozenset(chance.sample(sorted(models), k=1))
    on = Host(NOW, "", "", "", environments=tuple(chance.sample(ENVIRONMENTS, k=chance.randint(0, 3))))
    presence = catalog.read(target_presence)
    policy = wanted(chance, sum(one.entry.allocated for one in every))
    open_now = [one.entry.id for one in every if chance.random() < 0.1]
    disk_space = tuple(
        DiskSpace(
            store,
            owner=chance.choice((0, 1000)),
            free=chance.choice((None, 100_000)),
            held=frozenset(one.key for one in open_now if one.store == store),
            keeps_access_times=chance.random() < 0.7,
        )
        for store in STORES
    )
    reasons = chance.choice((None, frozenset({EvictReason.BUDGET}), frozenset({EvictReason.SUPERSEDED})))
    predicted = frozenset(chance.sample(sorted(models), k=chance.randint(0, 2)))
    whole = plan_eviction(
        *(every, on, presence, warm, models, policy, NOW),
        reasons=reasons,
        asked=asked,
        disk_space=disk_space,
        predicted=predicted,
    )
    preselection = plan_preselection(
        catalog.read(store_subtotals),
        on,
        presence,
        models,
        policy,
        NOW,
        reasons=reasons,
        asked=asked,
        disk_space=disk_space,
        predicted=predicted,
    )
    with pytest.MonkeyPatch.context() as patch:
        # A store is large from here on; and what a sample says may be far too little.
        patch.setattr(preselect, "_SAMPLE", chance.choice((preselect._SAMPLE, 8)))
        patch.setattr(preselect, "_SPARE", chance.choice((preselect._SPARE, -3)))
        some, others, rate = catalog.read(preselect_entries, preselection, RATE, HALF, ABSENT)
    assert len(some) + sum(one.entries for one in others) == len(every)
    preselected = plan_eviction(
        some,
        on,
        presence,
        warm,
        models,
        policy,
        NOW,
        reasons=reasons,
        asked=asked,
        disk_space=disk_space,
        others=others,
        rate=rate,
        predicted=predicted,
    )
    assert preselected == whole


def test_what_proves_a_model_by_what_was_predicted_goes_after_the_others(catalog: Catalog) -> None:
    empty(catalog)
    old, new = ENVIRONMENTS[:2]
    on = Host(NOW, "", "", "", environments=(new,))
    catalog.write(record_survey, on)
    born = NOW - 9 * DAY
    entries = [Entry(EntryId(STORES[0], EntryKey(f"{number}/0")), "s", 1, 4096, born, None, new) for number in range(5)]
    entries[0] = replace(entries[0], environment=old)
    found = FoundStore(STORES[0], StoreOrigin.CONFIGURED, "test")
    catalog.write(record_scan, Scan(found, NOW, StoreState.OK, 0, tuple(entries)), architecture)
    net = Model(ModelName("net"), Workload(("x",), Path("/"), {}, 1.0))
    catalog.write(add_model, net)
    run = catalog.write(begin_run, net, WarmReason.NEVER, "", NOW)
    proof = Attribution(frozenset({entries[0].id}), frozenset())
    catalog.write(finish_run, run.id, Outcome.WARMED, (), proof, (), "", "", NOW)
    catalog.write(recorded, [entries[0].id], random.Random(1))  # noqa: S311

    def gone(limit: int, *predicted: ModelName) -> list[bool]:
        """Return of each that goes whether it is the one."""
        models, policy = {net.name: net}, Policy(max_unused=None, max_bytes=limit * 4096)
        plan = evict_decision.decided(
            catalog, on, frozenset(models), models, policy, NOW, predicted=frozenset(predicted)
        )
        return sorted(one.entry.entry.id == entries[0].id for one in plan.evict)

    assert (gone(4), gone(4, net.name)) == ([True], [False])
    assert gone(1, net.name) == [False] * 4
    assert gone(0, net.name) == [False] * 4 + [True]


@pytest.mark.flow
def test_of_a_large_store_little_more_is_looked_at_than_goes(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(1)  # noqa: S311 - not a secret
    empty(catalog)
    entries = tuple(
        Entry(
            EntryId(STORES[0], EntryKey(f"{number}/0")),
            "s",
            1,
            4096 * chance.randint(1, 9),
            NOW - chance.uniform(1, 60) * DAY,
            None,
            ENVIRONMENTS[number % 3 * 4],
            image_size=chance.randint(1000, 20_000),
            kernels=(Kernel("a", "a"),),
        )
        for number in range(20_000)
    )
    found = FoundStore(STORES[0], StoreOrigin.CONFIGURED, "test")
    catalog.write(record_scan, Scan(found, NOW, StoreState.OK, 0, entries), architecture)
    asked: list[tuple[str, object]] = []
    collecting: list[bool] = []

    def note(_: object, __: object, statement: str, parameters: object, *___: object) -> None:
        asked.append((statement, parameters))
        collecting.append(gc.isenabled())

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        monkeypatch.setattr(preselect, "_SAMPLE", 2000)
        on = Host(NOW, "", "", "", environments=ENVIRONMENTS[:1])
        policy = Policy(max_unused=None, max_bytes=sum(one.allocated for one in entries) * 9 // 10)
        plan = evict_decision.decided(catalog, on, frozenset(), {}, policy, NOW)
        assert (any(collecting), gc.isenabled()) == (False, True)
        preselection = plan_preselection(
            catalog.read(store_subtotals), on, catalog.read(target_presence), {}, policy, NOW
        )
        some, _, _ = catalog.read(preselect_entries, preselection, RATE, HALF, ABSENT)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert len(plan.evict) <= len(some) < 1.5 * len(plan.evict) < len(entries) / 2
    whole = plan_eviction(catalog.read(all_entries), on, catalog.read(target_presence), frozenset(), {}, policy, NOW)
    # The plan is the same, without the kernels.
    assert [one.entry.entry.kernels for one in plan.evict] == [()] * len(plan.evict)
    assert plan.id == whole.id
    assert [(one.entry.entry.id, one.reason, one.detail) for one in plan.evict] == [
        (one.entry.entry.id, one.reason, one.detail) for one in whole.evict
    ]
    # Of what does not go no row is read: an index has all that is asked of every entry.
    sums = [one for one in asked if "exp2" in one[0]]
    taken = [one for one in asked if "INTO preselected" in one[0]]
    with contextlib.closing(sqlite3.connect(catalog.path)) as raw:
        raw.create_function("exp2", 1, math.exp2)
        raw.execute("CREATE TEMPORARY TABLE worst (id INTEGER PRIMARY KEY, frees INTEGER)")
        raw.execute("CREATE TEMPORARY TABLE preselected (id INTEGER PRIMARY KEY)")

        def steps(some: list[tuple[str, object]]) -> list[set[str]]:
            """Return for each question which rows of entries it goes through."""
            rows = [
                raw.execute(f"EXPLAIN QUERY PLAN {statement}", cast("tuple[int]", parameters))
                for statement, parameters in some
            ]
            return [{str(row[3]) for row in one if " entries " in row[3]} for one in rows]

        assert sums
        assert all("SCAN entries USING COVERING INDEX ix_entries_worth" in one for one in steps(sums))
        found_by = set().union(*steps(taken))
    assert any("ix_entries_page" in one for one in found_by), "the defective ones"
    assert any("ix_entries_ahead" in one for one in found_by), "those that were compiled ahead"
    assert not any(one.startswith("SCAN") for one in found_by)


def test_what_nobody_can_want_gone_is_not_looked_at(catalog: Catalog) -> None:
    empty(catalog)
    kept = tuple(
        Entry(EntryId(STORES[0], EntryKey(f"{number}/0")), "s", 1, 4096, NOW - DAY, None, ENVIRONMENTS[0])
        for number in range(50)
    )
    found = FoundStore(STORES[0], StoreOrigin.CONFIGURED, "test")
    catalog.write(record_scan, Scan(found, NOW, StoreState.OK, 0, kept), architecture)
    on = Host(NOW, "", "", "", environments=(ENVIRONMENTS[0],))
    policy = Policy(max_bytes=45 * 4096)
    subtotals, presence = catalog.read(store_subtotals), catalog.read(target_presence)
    preselection = plan_preselection(subtotals, on, presence, {}, policy, NOW)
    some, others, _ = catalog.read(preselect_entries, preselection, RATE, HALF, ABSENT)
    # All are of one worth, so any of them could be among the five.
    assert (len(some), others) == (50, ())
    preselection = plan_preselection(
        catalog.read(store_subtotals), on, catalog.read(target_presence), {}, Policy(), NOW
    )
    some, others, _ = catalog.read(preselect_entries, preselection, RATE, HALF, ABSENT)
    assert some == ()
    assert [(one.entries, one.allocated) for one in others] == [(50, 50 * 4096)]


@pytest.mark.flow
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_the_sums_are_what_a_count_gives(catalog: Catalog, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - not a secret
    fill(catalog, chance)
    for step in range(4):
        every = catalog.read(all_entries)
        assert catalog.read(catalog_summary).entries == len(every)
        assert catalog.read(catalog_summary).defective == sum(one.entry.state is EntryState.DEFECTIVE for one in every)
        assert catalog.read(catalog_summary).allocated == sum(one.entry.allocated for one in every)
        for status in catalog.read(all_stores):
            mine = [one.entry for one in every if one.entry.id.store == status.id]
            assert (status.entries, status.size) == (len(mine), sum(one.size for one in mine))
        for query in (EntryQuery(limit=3, driver="1.2"), EntryQuery(limit=3, state=EntryState.DEFECTIVE)):
            fit = [
                one
                for one in every
                if (one.entry.environment is not None and one.entry.environment.toolchain == query.driver)
                or one.entry.state is query.state
            ]
            page = catalog.read(entry_page, query, present=(), now=NOW)
            assert (page.entries, page.total) == (tuple(fit[:3]), len(fit))
        if step == 0:
            catalog.write(forget_entries, [one.entry.id for one in every if chance.random() < 0.3])
        elif step == 1:
            # The same keys again, other sizes and states: what was there is changed, and the rest is gone.
            fresh = tuple(
                replace(made(STORES[0], number, chance), id=one.entry.id)
                for number, one in enumerate(every)
                if one.entry.id.store == STORES[0] and chance.random() < 0.7
            )
            found = FoundStore(STORES[0], StoreOrigin.CONFIGURED, "test")
            catalog.write(record_scan, Scan(found, NOW, StoreState.OK, 0, fresh), architecture)
        elif step == 2:
            catalog.write(forget_store, STORES[1])
