"""Limits of single stores, users and file systems, what is worth keeping, and what leaves the trash."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.planning.test_planning import NEW, NOW, OLD, STORE, decided, entry, evict, host, model
from xpucached.domain.names import EntryKey, TrashRef
from xpucached.domain.plans import DiskSpace, EvictReason, IndexedEntry, Limits, Policy
from xpucached.domain.recipes import RecipeState
from xpucached.domain.stores import EntryId, Store
from xpucached.domain.trash import DropReason, Trashed
from xpucached.planning.eviction import plan_eviction
from xpucached.planning.ranking import RATE, measured_rate, worth
from xpucached.planning.trash import SCARCE, plan_trash

if TYPE_CHECKING:
    from xpucached.domain.plans import EvictionPlan

OTHER = Store(STORE.kind, Path("/other"))
LONG = Policy(max_unused=None)


def at(one: IndexedEntry, store: Store) -> IndexedEntry:
    name = EntryId(store, one.entry.id.key)
    return replace(one, entry=replace(one.entry, id=name))


def planned(*some: IndexedEntry, policy: Policy, disk_space: tuple[DiskSpace, ...] = ()) -> EvictionPlan:
    return plan_eviction(some, host(), (), frozenset(), {}, policy, NOW, disk_space=disk_space)


def test_the_budget_keeps_what_takes_longest_to_make() -> None:
    slow = replace(entry("slow", used=20), cost=100.0)
    cheap = replace(entry("cheap", used=1), cost=0.1)
    large = replace(entry("large", used=1, size=5000), cost=1.0)

    assert list(decided(evict(slow, cheap, large, policy=Policy(max_bytes=6000)))) == ["cheap"]
    assert list(decided(evict(slow, cheap, large, policy=Policy(max_bytes=5500)))) == ["cheap", "large"]


def test_an_entry_of_one_byte_counts_and_an_empty_one_does_not() -> None:
    empty, tiny = (replace(entry(str(size), used=20, size=size), cost=7.0) for size in (0, 1))

    assert measured_rate([tiny]) == 7.0
    assert measured_rate([empty]) == RATE
    assert list(decided(evict(empty, tiny, policy=Policy(max_bytes=0, max_unused=None)))) == ["1"]


def test_what_takes_no_room_is_worth_what_it_took_to_compile() -> None:
    none, one, two = (replace(entry(str(size), used=0, size=size), cost=6.0) for size in (0, 1, 2))
    value = worth(none.last_used, lambda _: True, RATE)

    assert (value(none), value(one), value(two)) == (6.0, 6.0, 3.0)


def test_what_is_not_used_loses_its_worth() -> None:
    slow = replace(entry("slow", used=80), cost=10.0)
    cheap = replace(entry("cheap", used=1), cost=1.0)

    assert list(decided(evict(slow, cheap, policy=Policy(max_bytes=1000)))) == ["slow"]


def test_for_want_of_room_what_nobody_asks_for_again_goes_first_whatever_it_is_worth() -> None:
    """By what runs told of how it is compiled: of what it is not known, a driver that is not here makes less worth."""
    dear = {"cost": 1000.0}
    stale = replace(entry("stale", environment=OLD), recipe=RecipeState.RECORDED, **dear)
    once = replace(entry("once", environment=OLD), recipe=RecipeState.ONCE, **dear)
    litter = replace(entry("litter", models=("net",)), recipe=RecipeState.NEVER_AGAIN, **dear)
    unknown = replace(entry("unknown", environment=OLD, used=5))
    cheap = replace(entry("cheap", used=1), recipe=RecipeState.RECORDED, cost=0.1)
    needed = replace(entry("needed", models=("net",), used=40), recipe=RecipeState.RECORDED)
    pinned = replace(entry("pinned", models=("pin",), used=40), recipe=RecipeState.NEVER_AGAIN)
    some = (pinned, needed, cheap, unknown, litter, once, stale)

    def gone(limit: int, *, asked: bool = True) -> list[tuple[str, str]]:
        models = (model(), model("pin", pinned=True))
        made = evict(*some, on=host(NEW), models=models, policy=Policy(max_bytes=limit), asked=asked)
        kept = {one.entry.entry.id.key: one.detail.partition(";")[0] for one in made.evict}
        return [(key, kept[key]) for key in kept]

    assert [len(gone(limit)) for limit in (7000, 6000, 5000, 4000, 3000, 2000, 1000, 0)] == [0, 1, 2, 3, 4, 5, 6, 6]
    words = "stale: the driver or compiler that it was made with is not here"
    assert dict(gone(5000)) == {"stale": words, "once": words}
    again = "its program has another key for it at each start, so nobody will look for this one"
    assert dict(gone(4000)).items() - dict(gone(5000)).items() == {("litter", again)}
    assert dict(gone(2000)).keys() - dict(gone(4000)).keys() == {"cheap", "unknown"}
    assert dict(gone(2000))["cheap"] == "least worth keeping"
    # What the daemon takes by itself it must not only make again: a model never asks for that one.
    assert dict(gone(0, asked=False)).keys() == {"stale", "once", "litter", "unknown", "cheap"}


def test_what_proves_a_model_that_is_warm_by_what_was_predicted_is_taken_only_for_want_of_room_and_last() -> None:
    """An earlier compiler's entries are counted: without them the model would be cold, whatever its programs find."""
    old = replace(entry("old", environment=OLD, models=("net",), used=40), recipe=RecipeState.RECORDED)
    stale = replace(entry("stale", environment=OLD, used=1), recipe=RecipeState.RECORDED, cost=1000.0)
    other = entry("other", used=1)

    def gone(policy: Policy, *, predicted: bool = True) -> list[str]:
        named = ("net",) if predicted else ()
        made = evict(old, stale, other, models=(model(),), warm=("net",), policy=policy, predicted=named)
        return sorted(decided(made))

    for policy in (Policy(keep_driver_generations=0), Policy(max_unused=30 * 86400.0), Policy(max_bytes=2000)):
        assert "old" in gone(policy, predicted=False)
        assert "old" not in gone(policy)
    assert gone(Policy(max_bytes=2000)) == ["stale"]
    assert gone(Policy(max_bytes=1000)) == ["other", "stale"]
    assert gone(Policy(max_bytes=0)) == ["old", "other", "stale"]


def test_a_store_and_a_user_have_limits_of_their_own() -> None:
    mine = [entry(name, used=used) for name, used in (("a", 3), ("b", 2), ("c", 1))]
    theirs = [at(one, OTHER) for one in mine]
    disk_space = (DiskSpace(STORE, 1000), DiskSpace(OTHER, 1001))
    by_store = replace(LONG, stores=(Limits(STORE.root, max_bytes=2000),))
    by_user = replace(LONG, users=(Limits(user=1001, max_bytes=1000),))
    quota = replace(LONG, quota=2000, users=(Limits(user=1001, max_bytes=3000),))

    def gone(policy: Policy) -> list[tuple[str, str]]:
        made = planned(*mine, *theirs, policy=policy, disk_space=disk_space)
        assert {one.reason for one in made.evict} == {EvictReason.BUDGET}
        return [(str(one.entry.entry.id.store.root), one.entry.entry.id.key) for one in made.evict]

    assert gone(by_store) == [(str(STORE.root), "a")]
    assert gone(by_user) == [("/other", "a"), ("/other", "b")]
    assert gone(quota) == [(str(STORE.root), "a")]


def test_a_stores_own_rules_come_before_its_users() -> None:
    some = [entry("a", used=10), at(entry("a", used=10), OTHER)]
    disk_space = (DiskSpace(STORE, 1000), DiskSpace(OTHER, 1000))
    stores, its_user = Limits(OTHER.root, max_unused=float("inf")), Limits(user=1000, max_unused=86400.0)
    made = planned(*some, policy=Policy(stores=(stores,), users=(its_user,)), disk_space=disk_space)

    assert [one.entry.entry.id.store for one in made.evict] == [STORE]


def test_a_disk_that_fills_is_made_room_on_and_the_trash_counts() -> None:
    some = [entry(str(number), used=number + 1) for number in range(9)]
    policy = replace(LONG, min_free_bytes=5000)

    def gone(free: int, trash: int) -> int:
        made = planned(*some, policy=policy, disk_space=(DiskSpace(STORE, 0, 1, free, trash),))
        assert {one.reason for one in made.evict} <= {EvictReason.SPACE}
        return len(made.evict)

    assert [gone(5000, 0), gone(3000, 0), gone(3000, 2000), gone(3000, 500)] == [0, 2, 0, 2]
    policy = replace(policy, low_water=50)
    assert [gone(5000, 0), gone(3000, 0)] == [0, 7]


def test_low_water() -> None:
    some = [entry(str(number), used=number + 1) for number in range(10)]

    assert len(planned(*some, policy=Policy(max_bytes=10000, low_water=50)).evict) == 0
    assert len(planned(*some, policy=Policy(max_bytes=9999, low_water=50)).evict) == 6


def test_what_a_process_has_open_stays() -> None:
    room = DiskSpace(STORE, held=frozenset({EntryKey("a")}))
    made = planned(entry("a", used=300), entry("b", used=300), policy=Policy(), disk_space=(room,))

    assert list(decided(made)) == ["b"]


@pytest.mark.parametrize("known", ["run", "restored", "created", "access-time"])
def test_where_no_access_times_are_kept_they_decide_nothing(known: str) -> None:
    old = replace(entry("a", used=300), last_used_by=known)
    made = planned(old, policy=Policy(), disk_space=(DiskSpace(STORE, keeps_access_times=False),))

    assert bool(made.evict) == (known in {"run", "restored"})
    assert planned(old, policy=Policy(), disk_space=(DiskSpace(STORE),)).evict


def test_what_was_brought_back_stays_for_a_while() -> None:
    back = replace(entry("a", used=300), restored=NOW - timedelta(days=3))

    assert not evict(back).evict
    assert evict(back, policy=Policy(trash_keep=86400.0)).evict


def test_a_plans_id_changes_with_what_would_go() -> None:
    one, two = entry("a", used=300), entry("b", used=300)
    changed = replace(one, entry=replace(one.entry, stamp="other"))

    assert evict(one, two).id == evict(two, one, entry("c")).id
    assert len({evict(one, two).id, evict(one).id, evict(changed).id, evict().id}) == 4


trashed = st.builds(
    lambda number, days, size, store, whole: Trashed(
        TrashRef(f"{number:012x}"),
        store,
        EntryKey("1/2/3/4/0"),
        NOW - timedelta(days=days),
        EvictReason.UNUSED,
        "",
        quarantined=False,
        device="",
        driver="",
        allocated=size,
        whole=whole,
    ),
    st.integers(0, 40),
    st.floats(-2, 20),
    st.integers(0, 5000),
    st.sampled_from([STORE, OTHER]),
    st.booleans(),
)


@settings(deadline=None, database=None)
@given(
    items=st.lists(trashed, max_size=30, unique_by=lambda one: (one.store, one.ref)),
    bound=st.integers(1, 20000),
    budget=st.one_of(st.none(), st.integers(1, 30000)),
    allocated=st.integers(0, 30000),
    wanted=st.one_of(st.none(), st.integers(1, 20000)),
    free=st.integers(0, 20000),
)
def test_the_trash_keeps_its_bounds(
    items: list[Trashed], bound: int, budget: int | None, allocated: int, wanted: int | None, free: int
) -> None:
    policy = Policy(trash_max_bytes=bound, max_bytes=budget, min_free_bytes=wanted)
    drops = plan_trash(items, [DiskSpace(STORE, free=free)], allocated, policy, NOW)
    # A store that was copied with its trash has the same names in it.
    gone = {(one.item.store, one.item.ref) for one in drops}
    left = [one for one in items if (one.store, one.ref) not in gone]
    freed = sum(one.item.allocated for one in drops if one.item.store == STORE)

    assert plan_trash(left, [DiskSpace(STORE, free=free + freed)], allocated, policy, NOW) == ()
    for store in (STORE, OTHER):
        assert sum(one.allocated for one in left if one.store == store) <= bound
    assert not left or budget is None or allocated + sum(one.allocated for one in left) <= budget
    assert wanted is None or free + freed >= wanted or not any(one.store == STORE for one in left)
    for one in drops:
        if one.reason is DropReason.EXPIRED:
            assert abs(NOW - one.item.at) >= timedelta(seconds=policy.trash_keep)
        elif one.reason is DropReason.DEBRIS:
            assert not one.item.whole
            assert one.item.allocated == 0


@pytest.mark.parametrize(
    ("device", "old", "gone"),
    [
        pytest.param(0, 1.0, {"b", "c"}, id="of one file system no more goes than is wanted there, the oldest first"),
        pytest.param(7, 1.0, {"a", "b", "c"}, id="of two each for itself"),
        pytest.param(0, 99.0, {"d"}, id="what goes anyway counts"),
    ],
)
def test_no_more_of_the_trash_goes_than_makes_room(device: int, old: float, gone: set[str]) -> None:
    def item(ref: str, store: Store, days: float) -> Trashed:
        at, why, nowhere = NOW - timedelta(days=days), EvictReason.UNUSED, EntryKey("1")
        return Trashed(
            *(TrashRef(ref), store, nowhere, at, why, ""),
            quarantined=False,
            device="",
            driver="",
            allocated=100,
            whole=True,
        )

    items = [item("a", STORE, 1), item("b", STORE, 3), item("c", OTHER, 2), item("d", OTHER, old)]
    items[3] = replace(items[3], allocated=200 if old > 7 else 0)
    rooms = [
        DiskSpace(STORE, free=SCARCE - 200),
        DiskSpace(OTHER, device=device, free=SCARCE - (200 if not device else 100)),
    ]

    assert {str(one.item.ref) for one in plan_trash(items, rooms, 0, LONG, NOW)} == gone


@pytest.mark.parametrize(
    ("at", "keep", "now", "gone"),
    [
        (NOW - timedelta(days=7), 7 * 86400.0, NOW, DropReason.EXPIRED),
        (NOW - timedelta(days=7) + timedelta(seconds=1), 7 * 86400.0, NOW, None),
        # Without a clock that is to be trusted nothing goes for its age, nor what came at a time still to come.
        (NOW - timedelta(days=99), 7 * 86400.0, None, None),
        (NOW + timedelta(days=99), 7 * 86400.0, NOW, None),
        # Where nothing is kept, no clock is asked.
        (NOW - timedelta(days=99), 0.0, None, DropReason.EXPIRED),
        (NOW + timedelta(days=99), 0.0, NOW, DropReason.EXPIRED),
    ],
)
def test_what_was_in_the_trash_for_its_time_goes(
    at: datetime, keep: float, now: datetime | None, gone: DropReason | None
) -> None:
    why, nowhere = EvictReason.UNUSED, EntryKey("1")
    item = Trashed(
        TrashRef("1"), STORE, nowhere, at, why, "", quarantined=False, device="", driver="", allocated=50, whole=True
    )

    drops = plan_trash([item], [], 0, Policy(trash_keep=keep), now)
    assert [one.reason for one in drops] == ([] if gone is None else [gone])
    # What is left of one that is gone is of no use, however young; what still takes room may be.
    for rest, debris in ((replace(item, whole=False, allocated=0), True), (replace(item, allocated=0), False)):
        reasons = [one.reason for one in plan_trash([rest], [], 0, Policy(trash_keep=keep), now)]
        assert (reasons == [DropReason.DEBRIS]) is debris
    assert DropReason.DEBRIS not in {one.reason for one in plan_trash([replace(item, whole=False)], [], 0, LONG, now)}


@pytest.mark.parametrize(
    ("policy", "free", "device", "gone"),
    [
        (Policy(max_bytes=300), None, 0, 0),  # 100 are there, and 100 in the trash: 100 may come
        (Policy(max_bytes=299), None, 0, 1),
        (Policy(max_bytes=250), None, 0, 1),
        (Policy(max_bytes=249), None, 0, 2),
        (Policy(), SCARCE + 100, 0, 0),
        (Policy(), SCARCE + 99, 0, 1),
        (Policy(), SCARCE + 49, 0, 2),
        (Policy(min_free_bytes=SCARCE + 7), SCARCE + 107, 0, 0),
        (Policy(min_free_bytes=SCARCE + 7), SCARCE + 106, 0, 1),
        (Policy(), SCARCE + 99, 1, 0),  # it comes to another disk
    ],
)
def test_the_trash_makes_room_for_what_is_about_to_come(
    policy: Policy, free: int | None, device: int, gone: int
) -> None:
    why, nowhere = EvictReason.UNUSED, EntryKey("1")
    item = Trashed(
        TrashRef("1"), STORE, nowhere, NOW, why, "", quarantined=False, device="", driver="", allocated=50, whole=True
    )
    items = [item, replace(item, ref=TrashRef("2"))]
    rooms = [DiskSpace(STORE, free=free, trash=100), DiskSpace(OTHER, device=device, free=free)]

    assert len(plan_trash(items, rooms, 100, policy, NOW, {OTHER: 100})) == gone
    assert plan_trash(items, rooms, 100, policy, NOW) == ()
