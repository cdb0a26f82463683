"""What a loader cannot do is refused, and not done in another way."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import pytest
from msgspec.structs import asdict

from xpucached.domain.workloads import QUANTIZERS, Loader, RunSpec
from xpucached.libexec import model_runner
from xpucached.libexec.loaders import diffusion, programs
from xpucached.libexec.run_order import RunOrder, Unfit

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("precision", ["int8", *QUANTIZERS])
def test_who_quantizes_nothing_takes_no_precision_that_is_quantized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    libraries = {name: MagicMock(float32="float32", bfloat16="bfloat16") for name in ("torch", "diffusers")}
    for name, library in libraries.items():
        monkeypatch.setitem(sys.modules, name, library)
    libraries["diffusers"].DiffusionPipeline.from_pretrained().to.return_value = SimpleNamespace(
        set_progress_bar_config=lambda **_: None, __call__=lambda: None
    )
    spec = asdict(RunSpec(loader=Loader.DIFFUSERS, target=str(tmp_path), device="cpu", inputs="random"))
    given = {"token": "1", "exercise": spec, "variant": {"device": "cpu", "precision": precision, "shape": ""}}
    job = RunOrder(given)
    for load in (diffusion.diffusers, programs.torchscript):
        with pytest.raises(Unfit, match=f"^{precision}: .* use as-saved$"):
            load(job)


def test_an_error_that_is_its_own_reason_is_told_all_the_same() -> None:
    last, first = RuntimeError("it failed"), ValueError("no room")
    last.__cause__ = first
    assert model_runner._in_words(last) == "RuntimeError: it failed (because of ValueError: no room)"
    # Each may be raised from the other, or from itself.
    first.__cause__ = last
    assert model_runner._in_words(last) == "RuntimeError: it failed (because of ValueError: no room)"
    last.__cause__ = last
    assert model_runner._in_words(last) == "RuntimeError: it failed"
