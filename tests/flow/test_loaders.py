"""The loader of llama.cpp, with a stand-in for its programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.torches import run
from xpucached.domain.models import Outcome, RanOn
from xpucached.domain.workloads import Loader, RunSpec

if TYPE_CHECKING:
    from xpucached.processes.results import RunResult

# It stands in for llama.cpp, whose builds for SYCL and Vulkan cannot be had here: it prints what the real one does.
LLAMA = """#!/bin/sh
case "$*" in *--list-devices*)
    printf 'Available devices:\\n  {device}: Intel(R) Arc(TM) A770 Graphics (15473 MiB, 15473 MiB free)\\n'; exit;;
esac
echo "$*" >> "$0.asked"
cat >&2 <<'END'
load_tensors: offloaded 25/25 layers to GPU
load_tensors:   CPU_Mapped model buffer size =    12.00 MiB
load_tensors:  {device} model buffer size =   380.43 MiB
common_perf_print: prompt eval time =      20.00 ms /     5 tokens (    4.00 ms per token,   250.00 tokens per second)
common_perf_print:        eval time =      90.00 ms /     9 runs   (   10.00 ms per token,   100.00 tokens per second)
END
{last}
"""


def told_by_llama(tmp_path: Path, card: str = "SYCL0", last: str = "echo a b c", **more: object) -> RunResult:
    program = tmp_path / "llama-cli"
    program.write_text(LLAMA.format(device=card, last=last))
    program.chmod(0o755)
    (tmp_path / "model.gguf").touch()
    (tmp_path / "prompts.txt").write_text("one\ntwo\n")
    known: dict[str, object] = {"device": "xpu", "options": {"program": str(program), "ctx-size": "64"}, **more}
    exercise = RunSpec(
        loader=Loader.LLAMA_CPP,
        python=sys.executable,
        target=str(tmp_path / "model.gguf"),
        inputs=str(tmp_path / "prompts.txt"),
        steps=2,
        **known,  # type: ignore[arg-type] # fields of it
    )
    return run(exercise)


@pytest.mark.parametrize("device", ["SYCL0", "Vulkan0"])
def test_llama_cpp_runs_on_the_device_of_its_build(tmp_path: Path, device: str) -> None:
    done = told_by_llama(tmp_path, device)

    assert done.outcome is None, (done.detail, done.output)
    assert done.told is not None
    assert done.told.figures is not None
    assert done.told.ran_on is RanOn.MEANT
    assert done.told.figures.tokens == 3
    assert done.told.figures.first_token_seconds == pytest.approx(0.02, abs=1e-3)
    assert done.told.figures.token_seconds == pytest.approx(0.01, abs=1e-3)
    first, second = (tmp_path / "llama-cli.asked").read_text().splitlines()
    assert f"--device {device} -ngl 99 --ctx-size 64" in first
    assert (first[-6:], second[-6:]) == ("-p one", "-p two")


@pytest.mark.parametrize(
    ("more", "outcome", "words"),
    [
        ({"device": "xpu:1"}, Outcome.FAILED, "sees no device xpu:1; it lists: SYCL0 (Intel(R) Arc(TM) A770"),
        ({"device": "cuda"}, Outcome.FAILED, "sees no device cuda"),
        ({"last": "echo no model >&2; exit 1"}, Outcome.FAILED, "ended with 1: no model"),
        ({"last": "true"}, Outcome.INVALID, "answered nothing to 2 of 2 prompts"),
        ({"options": {"program": "/nowhere/llama-cli"}}, Outcome.FAILED, "llama.cpp is not there: /nowhere/llama-cli"),
        ({"options": {}, "precisions": ("float16",)}, Outcome.FAILED, "use as-saved"),
    ],
)
def test_llama_cpp_that_cannot_do_it(tmp_path: Path, more: dict[str, object], outcome: Outcome, words: str) -> None:
    done = told_by_llama(tmp_path, **more)  # type: ignore[arg-type] # as they are named there

    assert done.outcome is outcome
    assert words in done.detail
