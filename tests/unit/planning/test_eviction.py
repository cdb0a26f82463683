"""At which moment exactly an entry goes, in which words, and what drivers in use have to do with each other."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import pytest
from msgspec.structs import replace

from tests.unit.planning.test_planning import (
    DAY,
    NEW,
    NEXT,
    NOW,
    OLD,
    OTHER,
    STORE,
    built_ahead,
    decided,
    entry,
    env,
    evict,
    host,
    model,
    presence,
)
from xpucached.domain.host import DriverInUse, Host, Presence
from xpucached.domain.names import ModelName
from xpucached.domain.plans import DiskSpace, EvictReason, IndexedEntry, Policy
from xpucached.domain.recipes import RecipeState
from xpucached.domain.stores import EntryState
from xpucached.domain.targets import Target
from xpucached.kinds import sycl
from xpucached.planning.eviction import plan_named
from xpucached.planning.eviction_context import EvictionContext
from xpucached.planning.ranking import Rank

TICK: Final = timedelta(microseconds=1)
LIMIT: Final = 90 * DAY
ABSENT: Final = 14 * DAY


def used(ago: timedelta, **facts: object) -> IndexedEntry:
    """Return an entry that was used last so long ago."""
    return replace(entry(created=300, **facts), last_used=NOW - ago)  # type: ignore[arg-type] # those of `entry`


@pytest.mark.parametrize(("ago", "detail"), [(LIMIT, ""), (LIMIT + TICK, "not used for 90 days, since 2026-03-03")])
def test_an_entry_goes_when_it_was_not_used_for_longer_than_it_may(ago: timedelta, detail: str) -> None:
    made = evict(used(ago))
    assert [(one.reason, one.detail) for one in made.evict] == ([(EvictReason.UNUSED, detail)] if detail else [])
    assert evict(used(ago), policy=Policy(max_unused=None)).evict == ()


@pytest.mark.parametrize(("ago", "goes"), [(ABSENT, False), (ABSENT + TICK, True)])
@pytest.mark.parametrize("by", ["device", "use"])
def test_what_is_for_a_device_goes_when_that_is_gone_for_long_enough(ago: timedelta, by: str, *, goes: bool) -> None:
    last, use = (ago, 80 * DAY) if by == "device" else (80 * DAY, ago)
    past = Presence(OTHER, NOW - 200 * DAY, NOW - last, present=False)
    made = evict(used(use, environment=OTHER), history=(past,))
    assert [(one.reason, one.detail) for one in made.evict] == (
        [(EvictReason.GONE, f"for {OTHER.device}, which this host has not had since {NOW - ago:%Y-%m-%d}")]
        if goes
        else []
    )


@pytest.mark.parametrize(("ago", "goes"), [(0 * DAY, False), (TICK, True)])
def test_what_was_compiled_ahead_waits_so_long_for_its_driver(ago: timedelta, *, goes: bool) -> None:
    policy = Policy(ahead_keep=20 * 86400.0)
    one = built_ahead(20)
    waited = replace(one, entry=replace(one.entry, created=NOW - 20 * DAY - ago), last_used=NOW - 20 * DAY - ago)
    made = evict(waited, policy=policy)
    day = f"{NOW - 20 * DAY - ago:%Y-%m-%d}"
    assert [(one.reason, one.detail) for one in made.evict] == (
        [(EvictReason.NEVER_CAME, f"compiled on {day} for driver {NEXT.toolchain}, never installed")] if goes else []
    )
    # A program in a container that has the driver used it, or it is here, or was.
    assert evict(replace(waited, last_used=NOW - DAY), policy=policy).evict == ()
    assert evict(waited, policy=policy, on=host(NEW, NEXT)).evict == ()
    assert (
        EvictReason.NEVER_CAME not in decided(evict(waited, policy=policy, history=(presence(NEXT, 60, 50),))).values()
    )
    assert evict(waited, policy=replace(policy, ahead_keep=None)).evict == ()


@pytest.mark.parametrize(
    ("created", "use", "asked", "goes"),
    [
        # When the driver changed it was there already.
        (10 * DAY, 10 * DAY, True, True),
        (10 * DAY - TICK, 10 * DAY - TICK, True, False),
        (200 * DAY, DAY, True, True),
        (200 * DAY, DAY, False, True),
    ],
)
def test_a_driver_that_made_something_after_another_took_its_place_is_in_use(
    created: timedelta, use: timedelta, *, asked: bool, goes: bool
) -> None:
    one = entry(environment=OLD)
    one = replace(one, entry=replace(one.entry, created=NOW - created), last_used=NOW - use)
    made = evict(one, policy=Policy(keep_driver_generations=0), asked=asked)
    assert decided(made) == ({"a": EvictReason.SUPERSEDED} if goes else {})


@pytest.mark.parametrize(("ago", "goes"), [(ABSENT - TICK, False), (ABSENT, True)])
def test_unasked_what_was_never_ours_goes_when_nobody_used_it_for_long_enough(ago: timedelta, *, goes: bool) -> None:
    foreign = env("0")
    policy = Policy(keep_driver_generations=0)
    one = used(ago, environment=foreign)
    assert decided(evict(one, policy=policy, asked=False)) == ({"a": EvictReason.SUPERSEDED} if goes else {})
    assert decided(evict(one, policy=policy)) == {"a": EvictReason.SUPERSEDED}


def test_of_two_drivers_in_use_either_may_go_back_and_the_first_of_them_is_named() -> None:
    theirs = env("8")
    beside = DriverInUse({"LD_LIBRARY_PATH": "/opt"}, (), "stamp", environments=(theirs,))
    on = replace(host(NEW), drivers=(beside,))

    def offered(target: Target, last: float, *drivers: str) -> Presence:
        return Presence(target, NOW - 200 * DAY, NOW - last * DAY, present=False, drivers=frozenset(drivers))

    def details(kept: int, *history: Presence) -> list[str]:
        policy = Policy(keep_driver_generations=kept)
        olds = [used(50 * DAY, environment=one.environment) for one in history]
        here = (presence(NEW, 10, 0), presence(theirs, 10, 0))
        return [one.detail for one in evict(*olds, on=on, history=(*history, *here), policy=policy).evict]

    both = offered(env("0"), 20, "", beside.id)
    assert details(0, both) == ["for driver 0; now it is 2, and none older is kept"]
    # For the host's own it is the second one back, for the other driver the first.
    own = offered(env("1"), 15, "")
    assert details(1, both, own) == []
    assert details(0, both, own) == [
        "for driver 0; now it is 8, and none older is kept",
        "for driver 1; now it is 2, and none older is kept",
    ]


def test_a_plan_counts_what_goes_and_what_stays() -> None:
    damaged = entry("b", defect=sycl.defects.BIN_EMPTY, size=500)
    made = evict(entry("a"), damaged, used(LIMIT + DAY, key="c"))
    assert (decided(made), made.frees, made.kept) == (
        {"b": EvictReason.DEFECTIVE, "c": EvictReason.UNUSED},
        1500,
        1,
    )


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (entry(state=EntryState.UNFINISHED), "a program is writing it"),
        (entry(state=EntryState.UNREAD), "it cannot be read now"),
        (entry("held"), "a process has it open"),
        (entry(models=("pinned",)), "a pinned model needs it"),
        (entry(created=0), "it is younger than the grace of 3600 s (policy.grace)"),
        (entry(created=0, models=("plain", "gone")), "it is younger than the grace of 3600 s (policy.grace)"),
        (entry(models=("plain",)), ""),
        # A pin keeps what the model can use.
        (entry(environment=OLD, models=("pinned",)), ""),
        (entry(models=("pinned",), defect=sycl.defects.BIN_EMPTY), ""),
    ],
)
def test_why_what_somebody_named_stays(one: IndexedEntry, why: str) -> None:
    models = {of.name: of for of in (model("plain"), model("pinned", pinned=True))}
    room = (DiskSpace(STORE, held=frozenset({entry("held").entry.id.key})),)
    made, kept = plan_named([one], host(NEW), models, Policy(grace=3600.0), NOW, room)
    assert kept == ({one.entry.id: why} if why else {})
    assert (len(made.evict), made.frees, made.kept) == ((0, 0, 1) if why else (1, 1000, 0))
    if made.evict:
        defect = one.entry.defect
        assert made.evict[0].detail == ("asked for by name" if defect is None else defect.message)


def context(on: Host | None = None, *, asked: bool = True, predicted: tuple[str, ...] = ()) -> EvictionContext:
    models = {one.name: one for one in (model("net"), model("held", pinned=True))}
    names = frozenset(map(ModelName, predicted))
    return EvictionContext(
        on or host(NEW), {}, frozenset(), models, Policy(), NOW, asked=asked, disk_space={}, predicted=names
    )


NEVER: Final = RecipeState.NEVER_AGAIN
KNOWN: Final = next(one for one in RecipeState if one is not NEVER)


@pytest.mark.parametrize(
    ("one", "predicted", "rank"),
    [
        (entry(), (), Rank.OTHER),
        (entry(models=("net",)), (), Rank.NEEDED),
        (entry(models=("gone",)), (), Rank.OTHER),
        (entry(models=("net",), environment=OLD), (), Rank.OTHER),
        (entry(models=("net",), environment=None), (), Rank.NEEDED),
        (replace(entry(models=("net",)), recipe=NEVER), (), Rank.NEVER_AGAIN),
        (replace(entry(models=("net",)), recipe=KNOWN), (), Rank.NEEDED),
        (replace(entry(environment=OLD), recipe=KNOWN), (), Rank.STALE),
        (replace(entry(environment=OLD), recipe=NEVER), (), Rank.STALE),
        (replace(entry(environment=OLD, models=("net",)), recipe=KNOWN), ("net",), Rank.NEEDED),
        (replace(entry(environment=OLD, models=("held",)), recipe=KNOWN), ("net",), Rank.STALE),
        (replace(entry(models=("net",)), recipe=NEVER), ("net",), Rank.NEVER_AGAIN),
    ],
)
def test_what_an_entry_is_to_those_that_want_room(one: IndexedEntry, predicted: tuple[str, ...], rank: Rank) -> None:
    on = context(predicted=predicted)
    # What was found of a target is remembered, and stays the same.
    assert [on.rank(one), on.rank(one)] == [rank, rank]
    assert not on.would_be_rewarmed(one)
    again = rank is Rank.NEEDED and on.usable(one)
    assert context(asked=False, predicted=predicted).would_be_rewarmed(one) is again


@pytest.mark.parametrize(("ago", "lately"), [(None, False), (7 * DAY - TICK, True), (7 * DAY, False), (0 * DAY, True)])
def test_what_came_back_stays_as_long_as_the_trash_would_have_kept_it(ago: timedelta | None, *, lately: bool) -> None:
    on = context()
    assert on.policy.trash_keep == 7 * 86400
    assert on.recently_restored(replace(entry(), restored=None if ago is None else NOW - ago)) is lately
