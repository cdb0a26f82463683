"""What a variant takes on the GPU and on the processor: what may be said of both."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.api_stub import make_model, make_run
from tests.unit.planning.test_diagnosis import LOOK, ask
from xpucached.domain.beside_cpu import CpuComparison, TimedUnit
from xpucached.domain.diagnosis import Cause
from xpucached.domain.models import Figures, Outcome, Pass, RanOn, Trial, Workload
from xpucached.domain.workloads import RunSpec, Variant
from xpucached.planning.beside_cpu import comparison, ran
from xpucached.render import diagnosis
from xpucached.render.trials import trials
from xpucached.server.redact import redact

PASSES = (Pass(5.0, 1.0, 1, 0, 3, 0), Pass(2.0, 1.0, 1, 0, 0, 3))
SLOW = CpuComparison(TimedUnit.STEP, 0.41, 0.0121, gpu_shown=True, cpu_shown=True)


def tried(*figures: Figures, place: RanOn = RanOn.MEANT) -> Trial:
    return Trial(Variant("xpu:0"), Outcome.WARMED, PASSES, place, figures=figures)


def test_only_the_times_of_what_came_to_its_end_say_something() -> None:
    whole = {Outcome.WARMED, Outcome.UNPROVEN, Outcome.UNCACHED}
    assert {one for one in Outcome if ran(replace(tried(), outcome=one))} == whole
    assert not ran(replace(tried(), passes=()))


@pytest.mark.parametrize(
    ("trial", "seconds", "figures", "place", "detail", "words"),
    [
        (
            tried(Figures(steady_seconds=9.0), Figures(steady_seconds=0.0121)),
            50.0,
            Figures(steady_seconds=0.41),
            RanOn.MEANT,
            "",
            "GPU 12.1 ms, CPU 410.0 ms per step (82.6 and 2.44 steps a second): the GPU is 33.9 times as fast",
        ),
        (
            tried(Figures(steady_seconds=1.0, token_seconds=0.05)),
            50.0,
            Figures(steady_seconds=0.5, token_seconds=0.05),
            RanOn.MEANT,
            "",
            "GPU 50.0 ms, CPU 50.0 ms per token (20 and 20 tokens a second): the GPU is not faster than the CPU",
        ),
        (
            tried(),
            8.0,
            None,
            RanOn.UNKNOWN,
            "",
            "GPU 2 s, CPU 8 s per pass; nothing shows that the second ran on the CPU alone",
        ),
        (
            tried(place=RanOn.UNKNOWN),
            1.0,
            None,
            RanOn.MEANT,
            "",
            "GPU 2 s, CPU 1 s per pass; nothing shows that the first ran on a GPU",
        ),
        # What measures only one of both is not compared with the time of a whole process.
        (
            tried(Figures(first_seconds=1.0)),
            123.4,
            Figures(steady_seconds=1.0),
            RanOn.MEANT,
            "",
            "GPU unknown, CPU 1 s per step (unknown and 1 steps a second)",
        ),
        (
            tried(),
            None,
            None,
            RanOn.UNKNOWN,
            "on the CPU: exit status 1",
            "GPU 2 s, CPU unknown per pass; on the CPU: exit status 1",
        ),
    ],
)
def test_both_times_stand_side_by_side_and_a_verdict_only_where_both_are_shown(
    trial: Trial, seconds: float | None, figures: Figures | None, place: RanOn, detail: str, words: str
) -> None:
    found = comparison(trial, seconds, figures, place, detail)
    assert found.sentence == words
    assert found.not_faster is ("not faster" in words)


@pytest.mark.parametrize("slower", [True, False])
def test_why_and_show_give_both_and_why_names_a_gpu_that_is_not_faster(*, slower: bool) -> None:
    found = SLOW if slower else replace(SLOW, gpu_seconds=None, detail="on the CPU: secret")
    given = make_model("net")
    trial = replace(make_run().trials[0], cpu=found)
    status = replace(given, run=replace(make_run(), workload=given.workload, trials=(trial,)))
    asked = ask(status)
    assert [one.cause for one in asked.explanations if one.cause is Cause.NOT_FASTER] == [Cause.NOT_FASTER] * slower
    assert found.sentence[:30] in diagnosis.why(asked, LOOK)
    shown = " ".join(trials([trial], LOOK).split())
    assert found.sentence[:30] in shown
    assert ("the GPU is not faster than the CPU: see why" in shown) is slower
    assert "secret" not in repr(redact((asked, trial)))
    # Of an older workload nothing is said.
    assert not ask(replace(status, run=replace(make_run(), workload="older", trials=(trial,)))).compared


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (RunSpec(compare="cpu"), "name the device"),
        (RunSpec(compare="cpu", device="cpu"), "it runs on the CPU"),
        (RunSpec(compare="gpu", device="xpu"), "expected cpu"),
        (RunSpec(compare="cpu", device="xpu:*"), ""),
    ],
)
def test_what_cannot_be_compared_is_refused(spec: RunSpec, said: str) -> None:
    assert [key for key, words in spec.mistakes() if said in words] == ["compare"] * bool(said)


def test_a_model_that_is_not_compared_is_the_one_that_it_was() -> None:
    one = Workload(("a",), Path("/"), {}, 1.0, RunSpec(device="xpu"))
    assert one.digest == "e344ec114849cb4f"
    assert one.digest != replace(one, exercise=RunSpec(device="xpu", compare="cpu")).digest
