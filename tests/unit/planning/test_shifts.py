"""What became slower or faster with a change: tables of runs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests.support.api_stub import NOW, OPENCL, make_run
from xpucached.domain.diagnosis import Figure
from xpucached.domain.libraries import Libraries, SyclRuntime
from xpucached.domain.models import Outcome, Pass
from xpucached.planning.shifts import between, sentence, shifts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xpucached.domain.models import Run

OLD, NEW, NEWER = "25.18", "25.40", "25.44"


def run(
    number: int,
    warm: float,
    driver: str = OLD,
    *,
    cold: float = 0.0,
    created: int = 10,
    outcome: Outcome = Outcome.WARMED,
    changes: Sequence[str] = (),
) -> Run:
    """Return a run of one variant; with ``cold``, its first pass compiled."""
    passes = (Pass(cold, 1.0, 1, 0, created, 0),) if cold else ()
    return replace(
        make_run(),
        id=number,
        started=NOW + timedelta(hours=number),
        host=f"host with {driver}",
        environments=(replace(OPENCL, toolchain=driver),),
        outcome=outcome,
        passes=(*passes, Pass(warm, 1.0, 1, 0, 0, 10)),
        trials=(),
        changes=tuple(changes),
    )


def runs(*series: tuple[str, Sequence[float]]) -> list[Run]:
    """Return runs with these warm passes, with one driver after the other."""
    flat = [(driver, warm) for driver, values in series for warm in values]
    return [run(number, warm, driver) for number, (driver, warm) in enumerate(flat, 1)]


STILL = (4.1, 4.0, 4.15, 4.1, 4.2)


def test_what_is_slower_with_another_driver_is_told_with_before_and_after_and_the_change() -> None:
    (one,) = shifts(runs((OLD, STILL), (NEW, (9.8,))))

    assert (one.figure, one.before, one.after, one.before_runs, one.after_runs) == (Figure.WARM, 4.1, 9.8, 5, 1)
    assert (one.run, one.slower) == (6, True)
    assert one.changed == (f"{OPENCL.device}: driver {OLD} → {NEW}",)
    assert sentence(one).startswith("default, warm pass: slower, 4.1 s → 9.8 s (1 run; before, the median of 5 and")


def test_what_is_faster_is_told_as_well() -> None:
    (one,) = shifts(runs((OLD, STILL), (NEW, (2.0, 2.1))))

    assert (one.slower, one.after, one.after_runs) == (False, 2.05, 2)
    assert "faster" in sentence(one)


@pytest.mark.parametrize(
    "given",
    [
        runs((OLD, STILL[:3]), (NEW, (9.8,))),  # too few to know their unrest
        runs((OLD, STILL), (NEW, (4.3,))),  # within what any host adds
        runs((OLD, (4.0, 9.0, 2.0, 7.0, 5.0)), (NEW, (9.8,))),  # they are never the same
        runs((OLD, (*STILL, 9.8))),  # nothing changed: that is for the figures of one environment
        runs((OLD, STILL), (NEW, (9.8, 4.1, 4.0))),  # one run of three
        runs((OLD, STILL), (NEW, (9.8,)), (NEWER, (4.1,))),  # it was so, and is over
        [],
    ],
)
def test_what_chance_explains_or_nobody_knows_is_not_told(given: Sequence[Run]) -> None:
    assert shifts(given) == ()


def test_what_came_with_one_change_is_not_blamed_on_the_next() -> None:
    found = shifts(runs((OLD, STILL), (NEW, (9.8,)), (NEWER, (9.9, 9.7))))

    assert [(one.run, one.changed) for one in found] == [(6, (f"{OPENCL.device}: driver {OLD} → {NEW}",))]


def test_drivers_with_a_run_each_tell_together_what_is_usual() -> None:
    found = shifts(runs(("1", [4.0]), ("2", [4.1]), ("3", [4.05]), ("4", [4.1]), ("5", [8.0])))

    assert [(one.run, one.before_runs, one.changed) for one in found] == [(5, 4, (f"{OPENCL.device}: driver 4 → 5",))]


def test_cold_passes_are_compared_with_those_that_compiled_as_much() -> None:
    # With the second driver replay had compiled most of it: that is quicker, not better.
    eager = [run(number, 4.0, str(number), cold=60.0 + number % 2) for number in range(1, 6)]

    assert shifts([*eager, run(6, 4.0, "6", cold=9.0, created=2)]) == ()
    nine = [run(number, 4.0, str(number), cold=60.0, created=9) for number in range(1, 6)]
    for created, alike in ((10, True), (11, False)):
        # A tenth more or less is as much.
        assert bool(shifts([*nine, run(6, 4.0, "6", cold=150.0, created=created)])) is alike
    (one,) = shifts([*eager, run(6, 4.0, "6", cold=150.0, created=10)])
    assert (one.figure, one.after) == (Figure.COLD, 150.0)


def test_what_was_not_measured_in_between_may_have_come_with_either_change() -> None:
    cold = [run(number, 4.0, "1", cold=60.0) for number in range(1, 6)]

    (one,) = shifts([*cold, run(6, 4.0, "2"), run(7, 4.0, "3", cold=150.0)])

    assert one.changed == (f"{OPENCL.device}: driver 1 → 2", f"{OPENCL.device}: driver 2 → 3")


def test_runs_that_failed_and_those_of_another_workload_count_for_nothing() -> None:
    given = runs((OLD, STILL), (NEW, (9.8,)))

    assert shifts([replace(one, outcome=Outcome.FAILED) if one.id == 6 else one for one in given]) == ()
    assert shifts([replace(one, workload="another") if one.id < 6 else one for one in given]) == ()
    # What counts is the workload of the newest.
    assert len(shifts([replace(one, workload="another") if one.id == 5 else one for one in given])) == 1


def test_between_two_runs_packages_runtimes_and_the_kernel_may_change() -> None:
    one = replace(run(1, 4.0), kernel="6.8.0", libraries=Libraries((SyclRuntime(Path("/a/libsycl.so.8"), "b1", 3),)))
    other = replace(
        run(2, 4.0, changes=["torch 2.9.0 → 2.9.1"]),
        kernel="6.11.0",
        libraries=Libraries((SyclRuntime(Path("/a/libsycl.so.8"), "b2", 3),)),
    )

    assert between(one, other) == (
        "Linux 6.8.0 → 6.11.0",
        "the SYCL runtime is another build (libsycl.so.8)",
        "torch 2.9.0 → 2.9.1",
    )
    # Of who was not seen to load one nothing is known.
    assert between(replace(one, libraries=None, kernel=""), replace(other, changes=())) == ()


def on(host: str, *drivers: tuple[str, str]) -> Run:
    """Return a run on a host with these devices and drivers."""
    environments = (replace(OPENCL, device=device, toolchain=driver) for device, driver in drivers)
    return replace(run(1, 4.0), host=host, environments=tuple(environments))


HOST = "the devices, their drivers, or the variables that all programs get are others"


@pytest.mark.parametrize(
    ("earlier", "later", "told"),
    [
        (on("h", ("a", "1")), on("h", ("a", "1")), ()),
        (on("h", ("a", "1")), on("i", ("a", "1")), (HOST,)),
        (on("h", ("a", "1")), on("i", ("a", "2")), ("a: driver 1 → 2",)),
        (on("h", ("a", "1"), ("b", "1")), on("i", ("a", "2"), ("b", "3")), ("a: driver 1 → 2", "b: driver 1 → 3")),
        # Of what an earlier run did not use, nobody knows which driver it had.
        (on("h", ("a", "1")), on("i", ("a", "1"), ("b", "3")), (HOST,)),
        (on("h", ("a", "1"), ("b", "1")), on("i", ("b", "1")), (HOST,)),
        (on("h"), on("h", ("a", "1")), ()),
    ],
)
def test_a_change_of_the_host_is_told_by_its_drivers_and_else_as_one(
    earlier: Run, later: Run, told: tuple[str, ...]
) -> None:
    assert between(earlier, later) == told


def with_runtimes(**builds: str) -> Run:
    found = tuple(SyclRuntime(Path(f"/a/{name}"), build, 3) for name, build in builds.items())
    return replace(run(1, 4.0), libraries=Libraries(found))


@pytest.mark.parametrize(
    ("earlier", "later", "named"),
    [
        (with_runtimes(a="1"), with_runtimes(a="1"), ""),
        (with_runtimes(a="1"), with_runtimes(a="2"), "a"),
        (with_runtimes(a="1", b="1"), with_runtimes(a="1", b="2"), "b"),
        (with_runtimes(a="1"), with_runtimes(a="1", c="1", b="1"), "b, c"),
        (with_runtimes(a="1", c="1", b="1"), with_runtimes(a="1"), "b, c"),
        (with_runtimes(a="1"), with_runtimes(), ""),
        (with_runtimes(), with_runtimes(a="1"), ""),
        (replace(with_runtimes(), libraries=None), with_runtimes(a="1"), ""),
        (with_runtimes(a="1"), replace(with_runtimes(), libraries=None), ""),
    ],
)
def test_another_build_of_a_runtime_is_told_where_both_runs_were_seen_to_use_one(
    earlier: Run, later: Run, named: str
) -> None:
    assert between(earlier, later) == ((f"the SYCL runtime is another build ({named})",) if named else ())


@pytest.mark.parametrize(("was", "now"), [("", "6.8"), ("6.8", ""), ("6.8", "6.8")])
def test_a_kernel_that_is_not_known_is_no_other(was: str, now: str) -> None:
    assert between(replace(run(1, 4.0), kernel=was), replace(run(2, 4.0), kernel=now)) == ()


@pytest.mark.parametrize(
    ("series", "found"),
    [
        # Four runs are enough, and three are not; those of an earlier driver help out.
        ([(OLD, STILL[:4]), (NEW, [9.8])], [(5, 4, 1)]),
        ([("1", STILL[:2]), (OLD, STILL[2:4]), (NEW, [9.8])], [(5, 4, 1)]),
        ([("1", [9.0] * 4), (OLD, STILL[:4]), (NEW, [9.8])], [(9, 4, 1)]),
        # Slower than with the driver before, and as with those before that: it came with neither.
        ([("1", STILL), (OLD, [9.8]), (NEW, [9.8])], [(6, 5, 1)]),
        # Half of the difference is gone, and so is all that is beyond chance.
        ([(OLD, STILL), (NEW, [9.8]), (NEWER, [4.4])], []),
        ([(OLD, STILL), (NEW, [2.0]), (NEWER, [2.2])], [(6, 5, 1)]),
        ([(OLD, STILL), (NEW, [2.0]), (NEWER, [9.0])], []),
    ],
)
def test_a_driver_is_compared_with_those_before_it(
    series: list[tuple[str, Sequence[float]]], found: list[tuple[int, int, int]]
) -> None:
    assert [(one.run, one.before_runs, one.after_runs) for one in shifts(runs(*series))] == found


def test_runs_are_told_apart_by_their_numbers_and_those_that_go_on_do_not_count() -> None:
    given = runs((OLD, STILL), (NEW, (9.8,)))
    assert shifts(given[::-1]) == shifts(given) != ()
    assert shifts([*given[:-1], replace(given[-1], finished=None)]) == ()


def test_a_change_that_a_run_proved_nothing_of_is_not_another_one_in_the_next() -> None:
    unproven = run(6, 4.1, outcome=Outcome.UNPROVEN, changes=["app.py was modified"])
    given = [*runs((OLD, STILL)), unproven, run(7, 9.8, changes=["app.py was modified"])]

    assert between(given[-2], given[-1]) == ()
    # Together they are a run at 4.1 and one at 9.8, half of which is beyond chance.
    assert [(one.run, one.after_runs) for one in shifts(given)] == [(6, 2)]
