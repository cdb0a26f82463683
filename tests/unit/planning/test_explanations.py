"""What an explanation counts and leaves out, which figures runs give, and what programs did in a store."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.unit.planning.test_diagnosis import NOW, ask, entry, figure, ran, run, status
from xpucached.domain.activity import Load, Program
from xpucached.domain.diagnosis import Cause, Figure
from xpucached.domain.libraries import Libraries
from xpucached.domain.models import Figures, Outcome, Pass, Trial, WarmReason, Warmth
from xpucached.domain.names import EntryKey
from xpucached.domain.workloads import Variant
from xpucached.planning.activity import uses
from xpucached.planning.baselines import baselines
from xpucached.planning.diagnosis import mapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xpucached.domain.diagnosis import Baseline
    from xpucached.domain.models import Run

HOUR: Final = timedelta(hours=1)


# -- what programs did ------------------------------------------------------------------------------------------------


def test_loads_of_an_entry_are_added_up_and_the_last_program_is_named() -> None:
    store, key = Path("/store"), EntryKey("1/2/3/4/0")
    first, other = Program(7, NOW, 1, "app", "app"), Program(8, NOW, 2, "tool", "tool")
    made = uses({}, [(first, store, key, NOW)])
    assert made == {(store, key): Load(store, key, NOW, 1, "app", 1)}
    made = uses(made, [(other, store, key, NOW - HOUR), (other, Path("/other"), key, NOW)])
    assert made == {
        (store, key): Load(store, key, NOW, 2, "tool", 2),
        (Path("/other"), key): Load(Path("/other"), key, NOW, 1, "tool", 2),
    }
    assert uses(made, [(first, store, key, NOW + HOUR)])[store, key] == Load(store, key, NOW + HOUR, 3, "app", 1)


# -- figures of runs --------------------------------------------------------------------------------------------------


def figures(*made: Baseline) -> dict[Figure, float]:
    return {one.figure: one.newest for one in made}


def with_passes(*passes: Pass) -> dict[Figure, float]:
    return figures(*baselines([replace(run(1, warm=1), passes=passes)]))


def test_a_pass_that_compiled_is_the_cold_one_and_one_that_did_not_the_warm_one() -> None:
    cold, warm = Pass(60.0, 50.0, 9, 0, 17, 0), Pass(2.0, 1.0, 7, 0, 0, 17)
    both = {Figure.COLD: 60.0, Figure.WARM: 2.0, Figure.CPU: 1.0, Figure.MEMORY: 7.0}
    assert with_passes(cold, warm) == both
    assert with_passes(cold) == {Figure.COLD: 60.0}
    del both[Figure.COLD]
    assert with_passes(warm) == both
    assert with_passes() == {}


def test_a_pass_that_failed_gives_no_figure() -> None:
    failed, warm = Pass(60.0, 50.0, 9, 1, 17, 0), Pass(2.0, 1.0, 7, 0, 0, 17)
    assert Figure.COLD not in with_passes(failed, warm)
    assert with_passes(warm, failed)[Figure.WARM] == 2.0
    assert with_passes(failed) == {}


def test_a_run_that_goes_on_gives_no_figure() -> None:
    assert baselines([replace(run(1, warm=1), finished=None)]) == ()


def test_of_a_variant_the_last_figures_count_as_far_as_there_are_some() -> None:
    def made(*measured: Figures) -> dict[Figure, float]:
        trial = Trial(Variant("xpu:0"), Outcome.WARMED, (), figures=measured)
        return figures(*baselines([replace(run(1, warm=1), trials=(trial,))]))

    assert made(Figures(steady_seconds=1.0), Figures(steady_seconds=2.0)) == {Figure.STEADY: 2.0}
    assert made(Figures(device_memory=8)) == {Figure.DEVICE_MEMORY: 8.0}
    assert made(Figures()) == {}
    failed = Trial(Variant("xpu:0"), Outcome.FAILED, (), figures=(Figures(device_memory=8),))
    assert baselines([replace(run(1, warm=1), trials=(failed,))]) == ()


def test_one_run_alone_is_no_worse_than_any() -> None:
    alone = figure(baselines([run(1, warm=1)]), Figure.WARM)
    assert (alone.median, alone.deviation, alone.samples, alone.worse) == (None, None, 1, False)


def test_four_runs_before_are_enough_to_tell() -> None:
    runs = [run(number, warm=1.0) for number in range(4)]
    assert figure(baselines([*runs, run(5, warm=100.0)]), Figure.WARM).worse
    assert not figure(baselines([*runs[1:], run(5, warm=100.0)]), Figure.WARM).worse


@pytest.mark.parametrize(("newest", "worse"), [(11.0, False), (11.001, True)])
def test_a_tenth_more_than_usual_is_not_worse_yet(newest: float, *, worse: bool) -> None:
    runs = [*(run(number, warm=10.0) for number in range(4)), run(5, warm=newest)]
    assert figure(baselines(runs), Figure.WARM).worse == worse


# -- explanations -----------------------------------------------------------------------------------------------------


def test_only_what_makes_a_model_slow_and_is_worse_is_explained() -> None:
    found = baselines([run(number, warm=1.0) for number in range(5)])
    usual = figure(found, Figure.WARM)
    assert ask(figures=found).explanations == ()
    assert ask(figures=[replace(usual, worse=True, figure=Figure.MEMORY)]).explanations == ()
    assert ask(figures=[replace(usual, worse=True, median=None)]).explanations == ()
    (slower,) = ask(figures=[replace(usual, worse=True)]).explanations
    assert slower.cause is Cause.SLOWER
    assert "1 in the newest run, 1 (median of 4) before" in slower.message


def test_programs_in_other_stores_are_counted_store_by_store() -> None:
    mine = [entry(f"1/2/3/4/{slot}", models=["net"]) for slot in range(2)]
    there, elsewhere = Path("/there"), Path("/elsewhere")
    others = [entry(f"1/2/3/4/{slot}", root=there) for slot in range(3)] + [entry("1/2/3/4/0", root=elsewhere)]
    first, second = ask(entries=[*mine, *others]).explanations
    assert first.message.startswith("1 of its programs were compiled in /elsewhere too")
    assert second.message.startswith("3 of its programs were compiled in /there too")


def test_programs_under_other_options_are_counted_together() -> None:
    mine = entry("1/2/3/4/0", models=["net"], options="-g")
    others = [entry(f"1/2/3/{number}/0", options=words) for number, words in ((7, "-a"), (8, "-a"), (9, ""))]
    (found,) = ask(entries=[mine, *others]).explanations
    assert found.message.startswith("3 of its programs were compiled by somebody else under another key")
    assert "build options '-a', 'none', but '-g' when it was warmed" in found.message


@pytest.mark.parametrize(("outcome", "told"), [(Outcome.UNCACHED, True), (Outcome.WARMED, False), (None, False)])
def test_what_a_run_told_of_a_program_that_cannot_cache_is_said(outcome: Outcome | None, *, told: bool) -> None:
    of = status(Warmth.UNCACHED, WarmReason.NEVER)
    run_of = None if of.run is None or outcome is None else replace(of.run, outcome=outcome, detail="it is off")
    (found,) = ask(replace(of, run=run_of)).explanations
    assert found.cause is Cause.UNCACHED
    assert (": it is off; what its program keeps itself" in found.message) == told


@pytest.mark.parametrize(
    ("runs", "build"),
    [
        ([], None),
        ([ran(build="b2"), ran(build="b1")], "b2"),
        ([ran(build="b2", workload="another"), ran(build="b1")], "b1"),
        ([replace(ran(), libraries=None), ran(build="b1")], "b1"),
        ([ran(workload="another")], None),
    ],
)
def test_runtimes_are_those_of_the_newest_run_of_the_model_as_it_is(runs: Sequence[Run], build: str | None) -> None:
    found = mapped(status().model, runs)
    assert (None if found is None else [one.build for one in found]) == (None if build is None else [build])


def test_a_run_that_mapped_no_runtime_tells_so() -> None:
    assert mapped(status().model, [replace(ran(), libraries=Libraries())]) == ()
