"""What the catalog is asked for before an eviction: each reason lets through what it may concern, and no more."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.unit.planning.test_planning import DAY, NEW, NOW, OTHER, STORE, env, host
from xpucached.domain.host import Presence
from xpucached.domain.models import Model, Workload
from xpucached.domain.names import EntryKey, KindName, ModelName
from xpucached.domain.plans import DiskSpace, EvictReason, Limits, Policy, Preselection, Subtotal
from xpucached.domain.stores import EntryId, Store
from xpucached.planning.preselect import plan_preselection

if TYPE_CHECKING:
    from datetime import datetime

    from xpucached.domain.host import Host
    from xpucached.domain.targets import Target

FIRST, SECOND, THIRD = (env(f"1.{number}") for number in range(3))
ELSEWHERE: Final = Store(KindName("neo"), Path("/cache/neo"))


def seen(target: Target, last: datetime | None) -> Presence:
    return Presence(target, last, last, present=False)


def preselected(
    *targets: Target,
    on: Host | None = None,
    presence: tuple[Presence, ...] = (),
    policy: Policy | None = None,
    reasons: frozenset[EvictReason] | None = None,
    room: tuple[DiskSpace, ...] = (),
    store: Store = STORE,
) -> Preselection:
    subtotals = [Subtotal(store, one, 10, 1000, NOW, NOW) for one in targets]
    now = host(NEW) if on is None else on
    return plan_preselection(subtotals, now, presence, {}, policy or Policy(), NOW, reasons=reasons, disk_space=room)


HISTORY: Final = tuple(seen(one, NOW - days * DAY) for one, days in ((FIRST, 3), (SECOND, 2), (THIRD, 1)))


@pytest.mark.parametrize(
    ("kept", "looked"), [(0, {FIRST, SECOND, THIRD}), (1, {FIRST, SECOND}), (2, {FIRST}), (3, set()), (4, set())]
)
def test_generations_beyond_those_that_are_kept_are_looked_at(kept: int, looked: set[Target]) -> None:
    policy = Policy(keep_driver_generations=kept)
    found = preselected(FIRST, SECOND, THIRD, NEW, OTHER, presence=HISTORY, policy=policy)
    assert found.environments == looked
    # Then those that stay are counted by when they were made and used.
    assert found.traced == ({FIRST, SECOND, THIRD} if looked else set())
    without = frozenset(EvictReason) - {EvictReason.SUPERSEDED}
    assert preselected(FIRST, SECOND, THIRD, presence=HISTORY, policy=policy, reasons=without).environments == set()


def test_where_history_does_not_say_which_came_last_all_are_looked_at() -> None:
    at_once = (HISTORY[0], seen(SECOND, HISTORY[0].last))
    for presence in (at_once, HISTORY[:1], (HISTORY[0], seen(SECOND, None))):
        assert preselected(FIRST, SECOND, NEW, presence=presence).environments == {FIRST, SECOND}
        # As many as are kept stay, whichever came last.
        assert (
            preselected(FIRST, SECOND, presence=presence, policy=Policy(keep_driver_generations=2)).environments
            == set()
        )


def test_the_store_that_keeps_least_decides_what_is_looked_at() -> None:
    policy = Policy(keep_driver_generations=3, stores=(Limits(store=STORE.root, keep_driver_generations=1),))
    assert preselected(FIRST, SECOND, presence=HISTORY, policy=policy).environments == {FIRST}
    assert preselected(FIRST, SECOND, presence=HISTORY, policy=policy, store=ELSEWHERE).environments == set()


def test_what_is_for_a_device_that_was_here_once_and_went_is_looked_at() -> None:
    once = (seen(OTHER, NOW - DAY),)
    assert preselected(OTHER, presence=once).environments == {OTHER}
    assert preselected(OTHER, presence=once).traced == set()
    assert preselected(NEW, presence=once).environments == set()
    assert preselected(OTHER, presence=(seen(OTHER, None),)).environments == set()
    assert preselected(OTHER).environments == set()
    # A host without any device is more likely broken, and of another kind's targets it says nothing.
    assert preselected(OTHER, presence=once, on=host()).environments == set()
    assert preselected(OTHER, presence=once, on=host(replace(NEW, kind=KindName("neo")))).environments == set()
    without = frozenset(EvictReason) - {EvictReason.GONE}
    assert preselected(OTHER, presence=once, reasons=without).environments == set()


def test_what_is_younger_than_the_longest_grace_may_be_protected() -> None:
    policy = Policy(grace=60.0, stores=(Limits(store=STORE.root, grace=300.0),))
    assert preselected(NEW, policy=policy).young == NOW - timedelta(seconds=300)
    assert preselected(NEW, policy=policy, store=ELSEWHERE).young == NOW - timedelta(seconds=60)
    assert preselected(policy=policy).young == NOW


@pytest.mark.parametrize("keeps", [True, False])
def test_unused_is_what_was_not_used_for_so_long(*, keeps: bool) -> None:
    room = (DiskSpace(STORE, keeps_access_times=keeps),)
    assert preselected(NEW, room=room).unused == {STORE: (NOW - 90 * DAY, keeps)}
    assert preselected(NEW).unused == {STORE: (NOW - 90 * DAY, True)}
    assert preselected(NEW, policy=Policy(max_unused=None)).unused == {}
    assert preselected(NEW, reasons=frozenset({EvictReason.DEFECTIVE})).unused == {}
    longest = preselected(NEW, policy=Policy(max_unused=1e12)).unused[STORE][0]
    assert longest.year == 1


def test_what_only_the_plan_decides_is_handed_on() -> None:
    pinned, plain = (
        Model(ModelName(name), Workload(("x",), Path("/"), {}, 1.0), pinned=name == "pinned")
        for name in ("pinned", "b")
    )
    models = {one.name: one for one in (pinned, plain)}
    room = DiskSpace(STORE, held=frozenset({EntryKey("a")}))
    subtotals = [Subtotal(STORE, NEW, 1, 1, NOW, NOW)]
    found = plan_preselection(
        *(subtotals, host(NEW, OTHER), (), models, Policy(), NOW),
        asked=False,
        disk_space=(room,),
        predicted=frozenset({plain.name}),
    )
    assert (found.now, found.upheld, found.defective) == (NOW, True, True)
    assert found.present == {NEW, OTHER}
    assert found.pinned == {"pinned"}
    assert found.predicted == {"b"}
    assert found.held == {EntryId(STORE, EntryKey("a"))}
    assert not plan_preselection(subtotals, host(NEW), (), models, Policy(), NOW).upheld
    assert not preselected(NEW, reasons=frozenset({EvictReason.UNUSED})).defective


@pytest.mark.parametrize(
    ("reasons", "policy", "worst"),
    [
        (None, Policy(max_bytes=400), ((frozenset({STORE}), 600),)),
        (frozenset({EvictReason.BUDGET}), Policy(max_bytes=400), ((frozenset({STORE}), 600),)),
        (frozenset({EvictReason.SPACE}), Policy(max_bytes=400), ()),
        (frozenset({EvictReason.UNUSED}), Policy(max_bytes=400), ()),
        (None, Policy(max_bytes=1000), ()),
        (None, Policy(max_bytes=999), ((frozenset({STORE}), 1),)),
        (None, Policy(), ()),
    ],
)
def test_of_the_least_worth_so_much_is_looked_at_as_there_is_too_much(
    reasons: frozenset[EvictReason] | None, policy: Policy, worst: object
) -> None:
    assert preselected(NEW, policy=policy, reasons=reasons).worst == worst
