"""What compiling an entry takes, what an eviction would lose, and what programs were seen to load."""

from __future__ import annotations

from typing import Final

import pytest
from msgspec.structs import replace

from tests.unit.planning.test_planning import DAY, NEW, NOW, entry
from xpucached.domain.activity import Load, Program
from xpucached.domain.names import EntryKey
from xpucached.domain.plans import Evict, EvictionPlan, EvictReason, IndexedEntry
from xpucached.domain.stores import Kernel
from xpucached.domain.targets import Origin
from xpucached.domain.usage import Cost, CostSource, EvictableReason
from xpucached.planning.activity import uses
from xpucached.planning.usage import costly, estimated, evictable

RATE: Final = 0.5


def of_size(size: int, image: int = 0, cost: float | None = None) -> IndexedEntry:
    one = entry(size=size)
    return replace(one, entry=replace(one.entry, image_size=image), cost=cost)


@pytest.mark.parametrize(
    ("one", "estimate"),
    [
        (of_size(1000, image=10), 5.0),
        (of_size(1), 0.5),
        (of_size(0), None),
        (of_size(1000, cost=0.0), None),
    ],
)
def test_what_was_not_measured_is_estimated_by_its_size(one: IndexedEntry, estimate: float | None) -> None:
    assert estimated(one, RATE).estimated == estimate


def test_an_entry_that_is_dear_is_told_with_how_that_is_known() -> None:
    one = of_size(1000, image=10)
    named = replace(one, entry=replace(one.entry, kernels=(Kernel("_Z", "n" * 161), Kernel("_Y", "other"))))

    assert costly(one, RATE).cost == Cost(5.0, CostSource.ESTIMATE)
    assert costly(of_size(0), RATE).cost == Cost(0.0, CostSource.ESTIMATE)
    assert costly(replace(one, cost=7.0), RATE).cost == Cost(7.0, CostSource.RUN)
    assert costly(replace(one, cost=0.0, origin=Origin.REBUILT), RATE).cost == Cost(0.0, CostSource.REBUILD)
    assert (costly(named, RATE).kernel, costly(named, RATE).driver) == ("n" * 160, NEW.toolchain)
    unnamed = costly(replace(one, entry=replace(one.entry, environment=None)), RATE)
    assert (unnamed.kernel, unnamed.driver, unnamed.allocated) == ("", "", 1000)


def test_what_would_go_is_summed_by_reason_and_what_frees_most_is_told_first() -> None:
    measured, unmeasured = of_size(100, cost=3.0), of_size(100, image=10)
    plan = EvictionPlan(
        tuple(
            Evict(one, reason, "")
            for reason, one in (
                (EvictReason.UNUSED, measured),
                (EvictReason.SUPERSEDED, of_size(201, cost=1.0)),
                (EvictReason.UNUSED, unmeasured),
                (EvictReason.DEFECTIVE, of_size(200)),
            )
        ),
        601,
    )

    found = evictable(plan, RATE, NOW)

    assert (found.at, found.plan_id, found.entries, found.frees) == (NOW, plan.id, 4, 601)
    assert found.reasons == (
        EvictableReason(EvictReason.SUPERSEDED, 1, 201, 1.0, 1.0),
        EvictableReason(EvictReason.DEFECTIVE, 1, 200, 100.0, 0.0),
        EvictableReason(EvictReason.UNUSED, 2, 200, 8.0, 3.0),
    )


def test_loads_are_counted_and_the_last_program_and_the_latest_time_are_kept() -> None:
    store, key = entry().entry.id.store.root, EntryKey("a")
    first, second = (Program(7, NOW, uid, name, name) for uid, name in ((1, "one"), (2, "two")))

    once = uses({}, [(first, store, key, NOW)])
    assert once == {(store, key): Load(store, key, NOW, 1, "one", 1)}
    again = uses(once, [(second, store, key, NOW - DAY), (first, store, EntryKey("b"), NOW)])
    assert again[store, key] == Load(store, key, NOW, 2, "two", 2)
    assert again[store, EntryKey("b")].hits == 1
    assert once[store, key].hits == 1
