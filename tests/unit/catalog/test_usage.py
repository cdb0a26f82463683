"""What each change of the driver came to, moment by moment, and who has what."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import api_stub, catalogs
from tests.unit.catalog.test_catalog import CPU, NEW, NOW, OLD, OTHER, STORE, architecture, entry, host, model, scan
from xpucached.catalog import days, usage
from xpucached.catalog.builds import record_build
from xpucached.catalog.models import add_model
from xpucached.catalog.runs import begin_run, finish_run
from xpucached.catalog.scans import record_scan
from xpucached.catalog.surveys import record_survey
from xpucached.domain.models import Attribution, Outcome, Pass, WarmReason, Warmth
from xpucached.domain.names import KindName
from xpucached.domain.plans import Built
from xpucached.domain.stores import Store
from xpucached.domain.targets import Origin
from xpucached.domain.usage import Amount

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime
    from pathlib import Path

    from xpucached.catalog import Catalog

MINUTE: Final = timedelta(minutes=1)
TICK: Final = timedelta(microseconds=1)
FIRST: Final = NOW + MINUTE
SECOND: Final = NOW + 5 * MINUTE


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """Return a catalog of a host with two changes of the driver."""
    with closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as opened:
        for at, targets in ((NOW, (OLD,)), (FIRST, (NEW,)), (SECOND, (OLD, CPU))):
            opened.write(record_survey, host(*targets, at=at))
        yield opened


def costs(catalog: Catalog) -> list[tuple[object, ...]]:
    """Return of each change, the newest first, what was rebuilt, and the runs for it, with their seconds."""
    changes = catalog.read(usage.upgrade_costs, 5)
    return [(one.rebuilt, one.replay_seconds, one.runs, one.run_seconds) for one in changes]


@pytest.mark.parametrize(
    ("at", "of"),
    [(FIRST - TICK, None), (FIRST, 1), (SECOND - TICK, 1), (SECOND, 0), (SECOND + MINUTE, 0)],
)
def test_what_was_done_from_a_change_to_the_next_was_for_it(catalog: Catalog, at: datetime, of: int | None) -> None:
    catalog.write(add_model, model())
    for reason in (WarmReason.DRIVER, WarmReason.MANUAL):
        begun = catalog.write(begin_run, model(), reason, "host", at)
        passes = (Pass(11.0, 1.0, 1, 0, 1, 0), Pass(1.0, 1.0, 1, 0, 0, 1))
        # A day later, so that the other does not find it under way.
        ended = at + timedelta(days=1)
        catalog.write(finish_run, begun.id, Outcome.WARMED, passes, Attribution(), (NEW,), "", "", ended)
    for origin in (Origin.REBUILT, Origin.AHEAD):
        catalog.write(record_build, Built(entry(origin).id, NEW, origin, "stamp", 1000, 2.5, origin), at)
    expected: list[tuple[object, ...]] = [(0, 0.0, 0, 0), (0, 0.0, 0, 0)]
    if of is not None:
        expected[of] = (1, 2.5, 1, 12.0)
    assert costs(catalog) == expected


def test_a_run_that_goes_on_is_not_counted_yet(catalog: Catalog) -> None:
    catalog.write(add_model, model())
    catalog.write(begin_run, model(), WarmReason.DRIVER, "host", SECOND)
    assert costs(catalog) == [(0, 0.0, 0, 0), (0, 0.0, 0, 0)]


def test_a_change_names_what_came_and_went(catalog: Catalog) -> None:
    changes = catalog.read(usage.upgrade_costs, 5)
    old, new, cpu = (one.toolchain for one in (OLD, NEW, CPU))
    assert [(one.at, one.appeared, one.vanished) for one in changes] == [
        (SECOND, tuple(sorted((old, cpu))), (new,)),
        (FIRST, (new,), (old,)),
    ]
    assert catalog.read(usage.upgrade_costs, 1) == changes[:1]


C, W, F = Warmth.COLD, Warmth.WARM, Warmth.FAILED


@pytest.mark.parametrize(
    ("story", "cooled", "warm_at"),
    [
        ([(0, "a", W)], 0, None),
        ([(0, "a", W), (1, "a", C)], 1, None),
        ([(0, "a", W), (1, "a", C), (2, "a", F)], 1, None),
        ([(0, "a", W), (1, "a", C), (2, "a", W)], 1, 2),
        # It counts once, and it was warm again when it was for the first time.
        ([(0, "a", W), (1, "a", C), (2, "a", W), (3, "a", C)], 1, 2),
        ([(0, "a", W), (0, "b", W), (1, "a", C), (2, "b", C), (3, "a", W)], 2, None),
        ([(0, "a", W), (0, "b", W), (1, "a", C), (2, "b", C), (3, "a", W), (4, "b", W)], 2, 4),
        # What was never warm before did not cool, whatever it is afterwards.
        ([(1, "a", C), (2, "a", W)], 0, None),
        ([(0, "a", C), (1, "a", F), (2, "a", W)], 0, None),
        # From the next change on it is that one's.
        ([(0, "a", W), (5, "a", C)], 0, None),
        ([(0, "a", W), (1, "a", C), (5, "a", W)], 1, None),
    ],
)
def test_models_that_cooled_with_a_change_are_counted_until_all_are_warm_again(
    catalog: Catalog, story: Sequence[tuple[int, str, Warmth]], cooled: int, warm_at: int | None
) -> None:
    for minute, name, state in story:
        catalog.write(days.note_warmth, (api_stub.make_model(name, state),), NOW + minute * MINUTE)
    cost = catalog.read(usage.upgrade_costs, 5)[1]
    assert (cost.cooled, cost.warm_at) == (cooled, None if warm_at is None else NOW + warm_at * MINUTE)


def test_amounts_are_added_and_taken_away_and_none_is_below_nothing() -> None:
    one, other = Amount(1, 2, 3.0, 4.0), Amount(10, 20, 30.0, 40.0)
    assert usage.together([one, other]) == Amount(11, 22, 33.0, 44.0)
    assert usage.together([]) == Amount()
    assert usage.less(other, one) == Amount(9, 18, 27.0, 36.0)
    assert usage.less(one, other) == Amount()


def test_kinds_drivers_and_devices_come_with_the_largest_first_and_what_is_here(catalog: Catalog) -> None:
    neo = Store(KindName("neo"), STORE.root)
    catalog.write(record_scan, scan(entry("a"), entry("b", environment=NEW), entry("c", environment=CPU)), architecture)
    catalog.write(record_scan, scan(entry("d", neo, environment=NEW), store=neo), architecture)
    catalog.write(record_scan, scan(entry("e", OTHER, environment=None, allocated=0), store=OTHER), architecture)
    total, kinds, drivers, gpus, here = catalog.read(usage.totals, 0.5)
    assert (total.entries, total.allocated, total.seconds, total.measured) == (5, 4 * 4096, 2 * 4096, 0.0)
    assert [(one.kind, one.entries, one.allocated) for one in kinds] == [("sycl", 4, 3 * 4096), ("neo", 1, 4096)]
    assert [(one.driver, one.entries, one.present) for one in drivers] == [
        (NEW.toolchain, 2, False),
        *sorted([(OLD.toolchain, 1, True), (CPU.toolchain, 1, True)]),
        ("", 1, True),
    ]
    assert [(one.device, one.entries, one.present) for one in gpus] == [
        (OLD.device, 3, True),
        (CPU.device, 1, True),
        ("", 1, True),
    ]
    # What does not say what it is for may be for anything.
    assert (here.entries, here.allocated) == (3, 2 * 4096)
