"""The worker in a real interpreter with a real torch, on the CPU: every loader, every precision, every proof."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import asdict, replace

from tests.support.torches import APPLICATION, COMPILING, Torch, run
from xpucached.domain.models import Outcome, RanOn
from xpucached.domain.workloads import FORMS, Loader, RunSpec, Variant
from xpucached.libexec import evidence, model_runner, run_order
from xpucached.libexec.loaders import table

if TYPE_CHECKING:
    from xpucached.processes.results import RunResult


PACKAGES: Final = os.environ.get("XPUCACHED_LOADERS", "")


def plain(target: str, **more: object) -> RunSpec:
    """Exercise a function that needs no torch, with the interpreter of the tests."""
    return RunSpec(
        loader=Loader.PYTHON,
        python=sys.executable,
        target=f"plain:{target}",
        device="cpu",
        **more,  # type: ignore[arg-type] # fields of it
    )


def good(done: RunResult) -> RunResult:
    assert done.outcome is None, (done.detail, done.output)
    assert done.told is not None
    assert done.told.figures is not None
    return done


@pytest.mark.parametrize("program", ["compiler", "driver_probe", "model_runner", "supervisor", "sycl_check"])
def test_it_needs_nothing_but_what_lies_beside_it(program: str, tmp_path: Path) -> None:
    folder = Path(model_runner.__file__).parent
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    code = f"import runpy; runpy.run_path({str(tmp_path / f'{program}.py')!r})"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], cwd="/", capture_output=True, check=False)

    assert done.returncode == 0, done.stderr


def test_it_is_for_old_interpreters_too() -> None:
    others = [Path(module.__file__ or "") for module in (model_runner, run_order, evidence)]
    for file in [*others, *Path(table.__file__).parent.glob("*.py")]:
        ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 9))


def test_every_loader_has_its_function_and_its_row() -> None:
    assert set(table.LOADERS) == set(Loader) - {Loader.COMMAND}
    assert set(FORMS) == set(Loader)


def test_what_it_is_made_of_takes_no_name_and_leaves_no_file(tmp_path: Path) -> None:
    """The application's modules have any names, also those of our files; and processes that it spawns load it anew."""
    shutil.copytree(
        Path(model_runner.__file__).parent, tmp_path / "libexec", ignore=shutil.ignore_patterns("__pycache__")
    )
    (tmp_path / "application").mkdir()
    for name in ("loaders", "evidence", "run_order"):
        (tmp_path / "application" / f"{name}.py").write_text("mine = True\n")
    (tmp_path / "application" / "spawning.py").write_text("""
import concurrent.futures, multiprocessing, sys
import evidence, loaders, run_order
def make():
    assert loaders.mine and evidence.mine and run_order.mine
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(abs, -3).result() == 3
    return lambda: None
""")
    order = {
        "token": "t",
        "exercise": {**asdict(plain("add")), "target": "spawning:make"},
        "variant": {"device": "cpu", "precision": "", "shape": ""},
    }
    command = [sys.executable, str(tmp_path / "libexec" / "model_runner.py"), "--fd", "2"]
    told = subprocess.run(
        command,
        input=json.dumps(order, default=str).encode(),
        cwd=tmp_path / "application",
        capture_output=True,
        check=False,
    )

    assert told.returncode == 0, told.stderr
    assert not list((tmp_path / "libexec").rglob("__pycache__"))


# -- the application's own functions --------------------------------------------------------------------------------


def test_a_function_is_used_so_often(tmp_path: Path) -> None:
    done = good(run(plain("add", steps=4)))

    assert done.told is not None
    assert done.told.ran_on is RanOn.UNKNOWN
    assert done.exit_status == 0


def test_a_function_is_told_what_it_asks_for() -> None:
    exercise = plain("known", precisions=("float16",), shapes=("1x2,3",), options={"greeting": "hello"})

    assert good(run(exercise)).output == "cpu float16 ((1, 2), (3,)) hello"


def test_modules_of_the_application_come_before_ours() -> None:
    # There is a module of that name beside the model runner, too.
    assert (Path(model_runner.__file__).parent / "supervisor.py").exists()
    done = run(RunSpec(loader=Loader.PYTHON, python=sys.executable, target="supervisor:nothing", device="cpu"))

    assert done.outcome is Outcome.FAILED
    assert "No module named 'supervisor'" in done.detail


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nothing", "gave NoneType, which cannot be called"),
        ("missing", "has no attribute 'missing'"),
        ("leave", "left the process before its end was told"),
    ],
)
def test_a_function_that_is_no_use(target: str, words: str) -> None:
    done = run(plain(target))

    assert done.outcome is Outcome.FAILED
    assert words in done.detail


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"precisions": ("float16",)}, "takes no precision"),
        ({"shapes": ("1x1",)}, "takes no shape"),
        ({"options": {"colour": "red"}}, "takes no colour"),
    ],
)
def test_a_function_that_would_ignore_the_variant_is_refused(more: dict[str, object], words: str) -> None:
    done = run(plain("add", **more))

    assert done.outcome is Outcome.FAILED
    assert words in done.detail


def test_tokens_are_timed_between_the_first_and_the_last() -> None:
    done = good(run(plain("words", options={"count": "5"}, new_tokens=5, min_output_tokens=5)))

    figures = done.told and done.told.figures
    assert figures
    assert figures.tokens == 5
    assert figures.token_seconds is not None
    assert figures.token_seconds >= 0.01
    assert figures.token_seconds_p95 is not None
    assert figures.token_seconds_p95 >= figures.token_seconds
    assert figures.first_token_seconds is not None


def test_one_token_has_no_time_per_token() -> None:
    figures = good(run(plain("words", options={"count": "1"}))).told

    assert figures
    assert figures.figures
    assert figures.figures.tokens == 1
    assert figures.figures.token_seconds is None


@pytest.mark.parametrize(("target", "options"), [("silence", {}), ("words", {"count": "0"})])
def test_empty_outputs_are_invalid_and_have_no_times(target: str, options: dict[str, str]) -> None:
    done = run(plain(target, options=options))

    assert done.outcome is Outcome.INVALID
    assert "5 of 5 uses gave fewer than 1 tokens" in done.detail
    assert done.told
    assert done.told.figures
    assert done.told.figures.token_seconds is None
    assert done.told.figures.first_token_seconds is None


# -- what it must bear ----------------------------------------------------------------------------------------------


def test_a_missing_interpreter() -> None:
    done = run(RunSpec(loader=Loader.PYTHON, python="/nowhere/python", target="plain:add", device="cpu"))

    assert done.outcome is Outcome.FAILED
    assert done.exit_status is None
    assert "/nowhere/python could not be started" in done.detail


def test_an_interpreter_that_is_none() -> None:
    done = run(RunSpec(loader=Loader.PYTHON, python="/bin/true", target="plain:add", device="cpu"))

    assert done.outcome is Outcome.FAILED
    assert "before its end was told" in done.detail


def test_nonsense_on_every_descriptor_hides_nothing() -> None:
    good(run(plain("garbage", steps=2)))


def test_a_model_cannot_pretend_to_report() -> None:
    done = good(run(plain("lie")))

    assert done.told is not None
    assert done.told.ran_on is RanOn.UNKNOWN


def test_who_takes_all_memory_is_ended() -> None:
    done = run(plain("devour", memory=300 << 20))

    assert done.outcome is Outcome.OVER_MEMORY
    assert "314572800 are allowed" in done.detail
    assert done.peak_rss > 300 << 20


def test_a_file_has_a_bound() -> None:
    done = run(plain("one_large_file", disk=20 << 20))

    assert done.outcome is Outcome.OVER_DISK
    assert "20971520 bytes to one file" in done.detail


def test_a_temporary_directory_has_a_bound_and_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "home"))
    done = run(plain("many_files", disk=20 << 20))

    assert done.outcome is Outcome.OVER_DISK
    assert "20971520 are allowed" in done.detail
    assert not list((tmp_path / "home").glob("xpucached-*"))


# -- with torch -----------------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_no_such_device(torch: Torch) -> None:
    done = run(torch.exercise(Loader.PYTHON, "networks:attention", device="xpu"))

    assert done.outcome is Outcome.FAILED
    done = run(torch.exercise(Loader.TRAIN, "networks:training", device="cuda"))
    assert done.outcome is Outcome.FAILED
    assert "sees no device cuda" in done.detail


@pytest.mark.torch
@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16", "int8", "as-saved", "autocast-bfloat16"])
def test_a_language_model_speaks(torch: Torch, precision: str) -> None:
    exercise = torch.exercise(
        Loader.TRANSFORMERS,
        torch.models / "speaking",
        inputs=torch.models / "text.txt",
        precisions=(precision,),
        shapes=("2x9",),
        new_tokens=6,
    )
    done = good(run(exercise))

    assert done.told
    assert done.told.figures
    assert done.told.ran_on is RanOn.MEANT
    assert done.told.figures.tokens
    assert done.told.figures.first_token_seconds is not None
    assert any("bytes of parameters live on cpu" in one for one in done.told.evidence)


@pytest.mark.torch
def test_a_language_model_takes_its_texts_as_they_are(torch: Torch) -> None:
    known = {"inputs": torch.models / "text.txt", "fresh": True, "min_output_tokens": 0}
    exercise = torch.exercise(Loader.TRANSFORMERS, torch.models / "speaking", **known)  # type: ignore[arg-type] # named

    done = good(run(exercise, variant=Variant("cpu")))
    assert done.told
    assert done.told.figures
    assert done.told.figures.prompts == 2


@pytest.mark.torch
def test_a_model_that_says_the_same_word_without_end_is_invalid(torch: Torch) -> None:
    exercise = torch.exercise(Loader.TRANSFORMERS, torch.models / "speaking", inputs=torch.models / "text.txt")
    done = run(exercise, variant=Variant("cpu"))

    assert done.outcome is Outcome.INVALID
    assert "repeats the same few tokens without end in " in done.detail


@pytest.mark.torch
def test_each_prompt_that_comes_with_us_is_asked(torch: Torch) -> None:
    exercise = torch.exercise(Loader.TRANSFORMERS, torch.models / "mute", inputs="prompts")
    done = run(exercise, variant=Variant("cpu"))

    assert done.outcome is Outcome.INVALID
    assert "answered nothing to 6 of 6 prompts" in done.detail


@pytest.mark.torch
def test_a_model_that_says_nothing_is_invalid_and_not_slow(torch: Torch) -> None:
    exercise = torch.exercise(
        Loader.TRANSFORMERS, torch.models / "mute", inputs="random", shapes=("1x9",), precisions=("float32",)
    )
    done = run(exercise)

    assert done.outcome is Outcome.INVALID
    assert "3 of 3 uses gave fewer than 1 tokens" in done.detail
    assert done.told
    assert done.told.figures
    assert done.told.figures.token_seconds is None


@pytest.mark.torch
def test_a_pipeline_draws(torch: Torch) -> None:
    exercise = torch.exercise(
        Loader.DIFFUSERS,
        torch.models / "pipeline",
        inputs="random",
        options={"num_inference_steps": "2"},
        fresh=True,
    )
    done = good(run(exercise))

    assert done.told
    assert done.told.ran_on is RanOn.MEANT


@pytest.mark.torch
def test_speech_is_written_down(torch: Torch) -> None:
    exercise = torch.exercise(
        Loader.WHISPER, torch.models / "listener", inputs=torch.models / "tone.pt", new_tokens=4, shapes=("2x8000",)
    )
    done = run(exercise)

    assert done.outcome is None, (done.detail, done.output)
    assert done.told is not None
    assert done.told.ran_on is RanOn.MEANT
    assert done.told.figures is not None
    assert done.told.figures.tokens


@pytest.mark.torch
@pytest.mark.parametrize("loader", [Loader.GPTQ, Loader.AWQ])
def test_a_folder_that_another_method_quantized_is_refused(torch: Torch, loader: Loader) -> None:
    done = run(torch.exercise(loader, torch.models / "speaking", inputs=torch.models / "text.txt"))

    assert done.outcome is Outcome.FAILED
    assert f"was quantized by nothing, says its config.json; the loader is for {loader}" in done.detail


@pytest.fixture
def packages() -> str:
    """Return an interpreter that has packages that are too large for every machine that runs the tests."""
    if not PACKAGES:
        pytest.skip("XPUCACHED_LOADERS names no interpreter with transformers, torchao and bitsandbytes")
    return PACKAGES


@pytest.mark.torch
@pytest.mark.parametrize("precision", ["torchao-int8", "bitsandbytes-int8"])
def test_layers_are_quantized_while_loading(torch: Torch, packages: str, precision: str) -> None:
    exercise = RunSpec(
        loader=Loader.TRANSFORMERS,
        python=packages,
        target=str(torch.models / "speaking"),
        inputs=str(torch.models / "text.txt"),
        device="cpu",
        steps=2,
        new_tokens=4,
    )
    done = run(exercise, variant=Variant("cpu", precision))

    assert done.outcome is None, (done.detail, done.output)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("loader", "file", "shape", "precision"),
    [
        (Loader.TORCHSCRIPT, "classifier.ts", "", ""),
        (Loader.TORCHSCRIPT, "classifier.ts", "4x3x24x94", "bfloat16"),
        (Loader.EXPORT, "classifier.pt2", "", "as-saved"),
        (Loader.EXPORT, "classifier.pt2", "1x3x24x94", "autocast-bfloat16"),
    ],
)
def test_saved_programs(torch: Torch, loader: Loader, file: str, shape: str, precision: str) -> None:
    exercise = torch.exercise(loader, torch.models / file, inputs=torch.models / "picture.pt", fresh=not shape)
    done = good(run(exercise, variant=Variant("cpu", precision, shape)))

    assert done.told
    assert done.told.figures
    assert done.told.ran_on is RanOn.MEANT
    assert done.told.figures.first_seconds is not None
    assert done.told.figures.steady_seconds is not None


@pytest.mark.torch
@pytest.mark.parametrize("target", ["training", "step"])
def test_a_training_step(torch: Torch, target: str) -> None:
    done = good(run(torch.exercise(Loader.TRAIN, f"networks:{target}", fresh=target == "step")))

    assert done.told
    assert done.told.ran_on is RanOn.MEANT


@pytest.mark.torch
def test_a_training_that_trains_nothing_is_invalid(torch: Torch) -> None:
    done = run(torch.exercise(Loader.TRAIN, "networks:detached"))

    assert done.outcome is Outcome.INVALID
    assert "no parameter got a gradient" in done.detail


@pytest.mark.torch
def test_outputs_that_are_not_finite_are_invalid(torch: Torch) -> None:
    done = run(torch.exercise(Loader.PYTHON, "networks:infinite"))

    assert (done.outcome, done.detail) == (Outcome.INVALID, "its outputs are not finite")


@pytest.mark.torch
@pytest.mark.parametrize(("target", "outcome"), [("attention", None), ("coarse", Outcome.INVALID)])
def test_a_low_precision_is_compared_with_float32(torch: Torch, target: str, outcome: Outcome | None) -> None:
    exercise = torch.exercise(Loader.PYTHON, f"networks:{target}", precisions=("bfloat16",), tolerance=0.05)
    done = run(exercise, compare=True)

    assert done.outcome is outcome, done.detail
    if outcome is None:
        assert done.told
        assert done.told.figures
        assert done.told.figures.error is not None
        assert 0 < done.told.figures.error < 0.05
    else:
        assert "0.5 from those of float32" in done.detail


@pytest.mark.torch
@pytest.mark.parametrize(
    ("loader", "target", "inputs", "words"),
    [
        (Loader.TRANSFORMERS, "gone", "text.txt", "the model is not there"),
        (Loader.TRANSFORMERS, "pipeline", "text.txt", ""),
        (Loader.TORCHSCRIPT, "text.txt", "picture.pt", ""),
        (Loader.TORCHSCRIPT, "classifier.ts", "gone.pt", "the file with the inputs is not there"),
        (Loader.TORCHSCRIPT, "classifier.ts", "text.txt", ""),
        (Loader.DIFFUSERS, "speaking", "text.txt", ""),
    ],
)
def test_files_that_are_missing_or_something_else(
    torch: Torch, loader: Loader, target: str, inputs: str, words: str
) -> None:
    done = run(torch.exercise(loader, torch.models / target, inputs=torch.models / inputs))

    assert done.outcome is Outcome.FAILED
    assert words in done.detail
    assert done.detail != "exit status 1"


@pytest.mark.torch
def test_what_a_compiler_writes_is_written_once(torch: Torch, tmp_path: Path) -> None:
    variables = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
        **COMPILING,
    }
    exercise = replace(torch.exercise(Loader.PYTHON, "networks:compiled", compile=True), python=str(torch.compiling))

    good(run(exercise, variables=variables, timeout=140))
    first = {path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"}
    good(run(exercise, variables=variables, timeout=140))

    assert first
    assert {path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"} == first


class _Card:
    def __init__(self, name: str, driver: str) -> None:
        self.name, self.driver_version = name, driver


def test_one_device_of_each_environment_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [_Card("B580", "1.6"), _Card("B580", "1.6"), _Card("A770", "1.6"), _Card("B580", "1.7")]
    part = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: len(cards), get_device_properties=cards.__getitem__
    )
    # Cards are what no machine of ours has: this stands in for torch, as far as it knows of them.
    module = ModuleType("torch")
    module.xpu = part  # type: ignore[attr-defined] # it is made up
    module.__version__ = "0"  # type: ignore[attr-defined] # it is made up
    monkeypatch.setitem(sys.modules, "torch", module)
    exercise = RunSpec(loader=Loader.PYTHON, python="/p", target="a:b", device="xpu:*")
    job = run_order.RunOrder(
        {
            "token": "",
            "exercise": asdict(exercise),
            "variant": {"device": "xpu:*", "precision": "", "shape": ""},
        }
    )

    assert evidence.devices(job) == ["xpu:0", "xpu:2", "xpu:3"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import torch\ntorch.library.nothing", "does not load beside it (AttributeError: "),
        ("import no_such_module", "does not load beside it (ModuleNotFoundError: "),
        ("", "is a build for processors"),
        (None, "sees no device xpu"),
    ],
)
def test_what_is_wrong_with_the_archived_extension_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str | None, words: str
) -> None:
    module = ModuleType("torch")
    module.__version__ = "2.13.0"  # type: ignore[attr-defined] # it stands in for torch, which has no xpu here
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.delitem(sys.modules, "intel_extension_for_pytorch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    if source is not None:
        (tmp_path / "intel_extension_for_pytorch.py").write_text(source)
    exercise = RunSpec(loader=Loader.PYTHON, python="/p", target="a:b", device="xpu")
    variant = {"device": "xpu", "precision": "", "shape": ""}

    with pytest.raises(run_order.Unfit) as met:
        run_order.torch_of(run_order.RunOrder({"token": "", "exercise": asdict(exercise), "variant": variant}))
    assert words in str(met.value)
    assert ("extension" in str(met.value)) == (source is not None)
    sys.modules.pop("intel_extension_for_pytorch", None)


def test_the_application_is_not_in_our_package() -> None:
    assert not APPLICATION.is_relative_to(Path(model_runner.__file__).parent)
