"""Drivers that were here before: whose they are to go back to, and which of them comes first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from tests.unit.planning.test_planning import DAY, NEW, NOW, OTHER, env, host
from xpucached.domain.host import DriverInUse, Presence
from xpucached.planning.eviction import by_driver

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xpucached.domain.targets import Target

THEIRS = env("8")


def driver(*targets: Target, name: str = "/opt/a") -> DriverInUse:
    return DriverInUse({"LD_LIBRARY_PATH": name}, (), "stamp", environments=targets)


def offered(target: Target, *drivers: str) -> Presence:
    return Presence(target, NOW - 9 * DAY, NOW - DAY, present=False, drivers=frozenset(drivers))


def divided(
    drivers: tuple[DriverInUse, ...], presence: Iterable[Presence], *own: Target
) -> list[tuple[list[str], str]]:
    seen = {one.environment: one for one in presence}
    of = replace(host(*own), drivers=drivers)
    old = [env(name) for name in ("1", "3", "4", "5")]
    return [([one.toolchain for one in some], now) for some, now in by_driver(old, [NEW, THEIRS], of, seen)]


def test_each_driver_in_use_goes_back_to_what_it_offered_and_the_host_to_the_rest() -> None:
    theirs = driver(THEIRS)
    presence = [offered(env("1"), ""), offered(env("3"), theirs.id), offered(env("4"), "gone"), offered(NEW, "")]
    assert divided((theirs,), presence, NEW) == [(["1", "4", "5"], "2"), (["3"], "8")]
    both = [offered(env("3"), "", theirs.id)]
    assert divided((theirs,), both, NEW) == [(["1", "3", "4", "5"], "2"), (["3"], "8")]


def test_without_a_driver_of_its_own_the_host_s_first_other_one_has_the_rest() -> None:
    first, second = driver(NEW), driver(THEIRS, name="/opt/b")
    presence = [offered(env("1"), second.id), offered(env("3"), first.id)]
    assert divided((first, second), presence, OTHER) == [(["3", "4", "5"], "2"), (["1"], "8")]
    assert divided((), presence, OTHER) == []


def test_a_driver_that_offers_several_of_one_lineage_is_named_by_all() -> None:
    assert [now for _, now in divided((), [], THEIRS, NEW, OTHER)] == ["2, 8"]
