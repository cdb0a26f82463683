"""Which directories of models go, in which other compilers cache, and which stay."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.unit.planning.test_planning import DAY, NOW, STORE
from xpucached.domain.names import EntryRef, ModelName
from xpucached.domain.plans import CacheReason, DiskSpace, Policy
from xpucached.domain.stores import ModelCache, StoreState
from xpucached.planning.model_caches import plan_caches

if TYPE_CHECKING:
    from datetime import datetime

    from xpucached.domain.plans import EvictCache

GRACE: Final = timedelta(seconds=Policy().grace)
SECOND: Final = timedelta(seconds=1)


def cache(name: str, *, used: datetime | None = NOW - 10 * DAY, size: int = 100, named: str = "") -> ModelCache:
    place = Path("/models", name)
    return ModelCache(ModelName(name), place, named, EntryRef(name), StoreState.OK, 0, 1, size, used)


def plan(
    *caches: ModelCache,
    policy: Policy | None = None,
    held: int = 0,
    room: DiskSpace | None = None,
    removed: dict[str, datetime] | None = None,
    stay: str = "",
    asked: bool = True,
) -> tuple[EvictCache, ...]:
    gone = {ModelName(name): at for name, at in (removed or {}).items()}
    stays = frozenset({ModelName(stay)})
    return plan_caches(caches, stays, policy or Policy(), room, held, NOW, gone, asked=asked)


def taken(*caches: ModelCache, **given: object) -> dict[str, CacheReason]:
    return {one.cache.model: one.reason for one in plan(*caches, **given)}  # type: ignore[arg-type]


FORMER: Final = replace(cache("old"), registered=False)


@pytest.mark.parametrize(
    ("one", "removed", "goes"),
    [
        (FORMER, NOW - GRACE, True),
        (replace(FORMER, used=NOW - GRACE), NOW - GRACE, True),
        (replace(FORMER, used=None), NOW - GRACE, True),
        # It may be on its way back, or be written still.
        (FORMER, NOW - GRACE + SECOND, False),
        (replace(FORMER, used=NOW - GRACE + SECOND), NOW - GRACE, False),
        # Another daemon of this user may know the model.
        (FORMER, None, False),
        (replace(FORMER, registered=True), NOW - GRACE, False),
        (replace(FORMER, named="--cache"), NOW - GRACE, False),
        (replace(FORMER, shared=(ModelName("other"),)), NOW - GRACE, False),
        (replace(FORMER, note="more than was counted"), NOW - GRACE, False),
        (replace(FORMER, state=StoreState.MISSING), NOW - GRACE, False),
    ],
)
def test_what_is_left_of_a_model_that_was_removed_goes(
    one: ModelCache, removed: datetime | None, *, goes: bool
) -> None:
    known = {} if removed is None else {"old": removed}

    for asked in (True, False):
        found = taken(one, cache("kept"), removed=known, asked=asked)
        assert found == ({"old": CacheReason.GONE} if goes else {})


def test_over_budget_what_was_used_longest_ago_goes_and_no_more_than_must() -> None:
    three = [cache(f"{age}", used=NOW - age * DAY) for age in (2, 4, 3)]

    assert taken(*three, held=50, policy=Policy(max_bytes=350)) == {}
    assert taken(*three, held=50, policy=Policy(max_bytes=349)) == {"4": CacheReason.BUDGET}
    assert list(taken(*three, held=50, policy=Policy(max_bytes=250))) == ["4"]
    assert list(taken(*three, held=50, policy=Policy(max_bytes=249))) == ["4", "3"]
    assert list(taken(*three, held=50, policy=Policy(max_bytes=340, low_water=50))) == ["4", "3"]
    (told,) = plan(*three, held=50, policy=Policy(max_bytes=349))
    assert told.detail == "it was used longest ago; the stores and other caches hold 350 bytes, 349 may be"


@pytest.mark.parametrize(
    ("other", "goes"),
    [
        (cache("other", used=None), True),
        (cache("other", used=None, size=0), False),
        (cache("other", used=NOW - SECOND), False),
        (replace(cache("other", used=None), registered=False), False),
        (replace(cache("other", used=None), note="more than was counted"), False),
        (replace(cache("other", used=None), shared=(ModelName("net"),)), False),
        (cache("stays", used=None), False),
    ],
)
def test_over_budget_what_is_in_use_or_needed_or_not_wholly_known_stays(other: ModelCache, *, goes: bool) -> None:
    found = list(taken(cache("net"), other, held=200, policy=Policy(max_bytes=200 + other.allocated), stay="stays"))

    assert found == (["other"] if goes else ["net"])


def test_nothing_goes_for_want_of_room_that_nobody_asked_for() -> None:
    assert taken(cache("net"), held=200, policy=Policy(max_bytes=1), asked=False) == {}


def test_what_somebody_named_does_not_count_and_what_goes_anyway_counts_as_gone() -> None:
    some = (cache("net"), cache("led", named="--cache"), FORMER)
    removed = {"old": NOW - DAY}

    assert taken(*some, policy=Policy(max_bytes=100), removed=removed) == {"old": CacheReason.GONE}
    assert taken(*some, policy=Policy(max_bytes=99), removed=removed)["net"] is CacheReason.BUDGET
    room = DiskSpace(STORE, free=700, trash=200)
    assert taken(*some, policy=Policy(min_free_bytes=1000), removed=removed, room=room) == {"old": CacheReason.GONE}
    assert taken(*some, policy=Policy(min_free_bytes=1001), removed=removed, room=room)["net"] is CacheReason.SPACE


def test_where_little_is_free_so_much_goes_that_enough_is() -> None:
    three = [cache(f"{age}", used=NOW - age * DAY) for age in (2, 4, 3)]
    room = DiskSpace(STORE, free=800, trash=100)

    assert taken(*three, policy=Policy(min_free_bytes=900), room=room) == {}
    assert list(taken(*three, policy=Policy(min_free_bytes=1000), room=room)) == ["4"]
    assert list(taken(*three, policy=Policy(min_free_bytes=1001), room=room)) == ["4", "3"]
    assert list(taken(*three, policy=Policy(min_free_bytes=950, low_water=90), room=room)) == ["4", "3"]
    assert taken(*three, policy=Policy(min_free_bytes=1000), room=replace(room, free=None)) == {}
    assert taken(*three, policy=Policy(min_free_bytes=1000)) == {}
    (told,) = plan(*three, policy=Policy(min_free_bytes=1000), room=room)
    assert told.detail.endswith("; 900 bytes can be had on its file system, 1000 shall be free")
    # Of two limits the one that lacks more is told.
    both = Policy(min_free_bytes=1000, max_bytes=1)
    assert {one.reason for one in plan(*three, policy=both, room=room)} == {CacheReason.BUDGET}
