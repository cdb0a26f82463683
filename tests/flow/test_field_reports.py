"""The five reports from the field: each documented model file is in order, and its mechanism holds on the CPU."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests import REPOSITORY
from tests.support.daemons import daemon
from tests.support.torches import APPLICATION, COMPILING, Torch, run
from xpucached.domain.models import Model, Outcome, RanOn, Workload
from xpucached.domain.workloads import Loader, RunSpec, Variant
from xpucached.kinds.sycl.runtimes import folders
from xpucached.settings import model_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.daemons import Daemon
    from tests.support.runtimes import Runtime

EXAMPLES: Final = REPOSITORY / "docs" / "examples"


@pytest.fixture
def host(home: Path, short_dir: Path) -> Iterator[Daemon]:
    """Return a daemon that is not started yet."""
    with daemon(home, short_dir) as one:
        yield one


def example(name: str, models: Path) -> Model:
    """Read a documented model file as the daemon would."""
    models.mkdir(exist_ok=True)
    shutil.copy(EXAMPLES / f"{name}.toml", models)
    found, problems = model_files.models(models)
    assert problems == ()
    return next(model for model in found if model.name == name)


def here(exercise: RunSpec, torch: Torch, target: str, **changes: object) -> RunSpec:
    """Return the same of a small model that this machine has."""
    known: dict[str, object] = {"python": str(torch.loaded), "target": target, "device": "cpu", "steps": 3, **changes}
    if exercise.inputs:
        known.setdefault("inputs", str(torch.models / "text.txt"))
    return replace(exercise, **known)


def test_all_examples_are_in_order_and_in_the_manual(tmp_path: Path) -> None:
    manual = (EXAMPLES.parent / "models.md").read_text(encoding="utf-8")
    names = sorted(path.stem for path in EXAMPLES.iterdir())

    assert names == sorted(set(re.findall(r"\(examples/(\w+)\.toml\)", manual)))
    for name in names:
        assert not list(example(name, tmp_path / "models.d").workload.exercise.mistakes())


@pytest.mark.parametrize("name", [*sorted(path.stem for path in EXAMPLES.iterdir()), "command"])
def test_the_runtime_of_each_sort_of_model_is_found_beside_its_interpreter(name: str, tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    (tmp_path / "venv" / "lib").mkdir(parents=True)
    (tmp_path / "venv" / "lib" / "libur_loader.so.0").touch()
    if name == "command":
        workload = Workload((str(python), "app.py"), tmp_path)
    else:
        workload = example(name, tmp_path / "models.d").workload
        workload = replace(workload, exercise=replace(workload.exercise, python=str(python)))

    assert folders([Workload((), tmp_path), workload], {})[0] == tmp_path / "venv" / "lib"


def prewarmed(host: Daemon, name: str) -> dict[str, object]:
    """Warm a model, however long that takes on a machine that is busy, and give the run."""
    host.ctl("prewarm", name, "--no-wait")
    for _ in range(5):
        with contextlib.suppress(AssertionError):
            host.until(lambda: bool(host.rows("runs", name)[0]["finished"]))
            break
    (last,) = host.rows("runs", name)
    return last


# -- the first attention --------------------------------------------------------------------------------------------


@pytest.mark.runtime
def test_what_the_first_call_compiles_the_second_process_finds(
    host: Daemon, tmp_path: Path, runtime: Callable[[str], Runtime]
) -> None:
    found = runtime("rt2025.2")
    variables = {"LD_LIBRARY_PATH": str(found.lib), "OCL_ICD_FILENAMES": str(found.driver)}
    host.configure(
        "[schedule]\nprewarm = false\nsettle = '0.2s'\n[driver]\nvariables = "
        "{ " + ", ".join(f"{name} = '{text}'" for name, text in variables.items()) + " }\n"
    )
    host.start()
    host.ctl(
        *("model", "add", "first", "--loader", "python", "--python", str(found.python), "--device", "cpu"),
        *("--target", "products:attention", "--directory", str(APPLICATION), "--shape", "4", "--shape", "8"),
        *("--require-device", "--store", "default"),
    )
    last = prewarmed(host, "first")

    assert last["outcome"] == "warmed", (last["detail"], last["output"])
    trials = last["trials"]
    assert isinstance(trials, list)
    assert [one["variant"]["shape"] for one in trials] == ["4", "8"]
    first = trials[0]
    assert first["passes"][0]["created"] > 0
    assert first["passes"][1]["created"] == 0
    assert first["passes"][1]["used"] > 0
    assert first["figures"][1]["first_seconds"] < first["figures"][0]["first_seconds"]
    assert first["ran_on"] == "meant"
    assert any("entries are for" in one for one in first["evidence"])
    assert first["use"]["cpu_entries"] > first["use"]["gpu_entries"] == first["use"]["unplaced_entries"] == 0
    assert "ran on the CPU: no kernel for a GPU was used" in host.ctl("model", "show", "first").stdout
    # Meant for a GPU, it runs on the processor here as there: both times, and no verdict.
    host.ctl(
        *("model", "add", "beside", "--loader", "python", "--python", str(found.python), "--device", "xpu"),
        *("--target", "products:attention", "--directory", str(APPLICATION), "--shape", "4"),
        *("--compare", "cpu", "--store", "default"),
    )
    entries = {row["ref"] for row in host.rows("ls")}
    trials = prewarmed(host, "beside")["trials"]
    assert isinstance(trials, list)
    beside = trials[0]["cpu"]
    assert (beside["unit"], beside["gpu_shown"], beside["cpu_shown"], beside["detail"]) == ("step", False, True, "")
    assert beside["gpu_seconds"] > 0 < beside["cpu_seconds"]
    assert "per step" in host.ctl("why", "beside").stdout
    assert {row["ref"] for row in host.rows("ls")} == entries
    # There was nothing compiled ahead of time for this device: each was made from SPIR-V (the second report).
    assert {row["image"] for row in host.rows("ls", "--model", "first")} == {"spirv"}


# -- no kernels for this card ---------------------------------------------------------------------------------------


@pytest.mark.torch
def test_as_saved_is_what_the_files_say(torch: Torch, tmp_path: Path) -> None:
    exercise = example("gptq", tmp_path / "models.d").workload.exercise
    saved = tmp_path / "saved"
    shutil.copytree(torch.models / "speaking", saved)
    told = json.loads((saved / "config.json").read_text())
    told["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    (saved / "config.json").write_text(json.dumps(told))

    done = run(here(exercise, torch, str(saved), shapes=("1x8",)))

    # Its library is asked for, which this interpreter lacks; it was not quietly loaded as something else.
    assert done.outcome is Outcome.FAILED
    assert re.search(r"(?i)optimum|gptq", done.detail)


# -- a training that never used the GPU ------------------------------------------------------------------------------


@pytest.mark.torch
def test_a_torch_without_the_device_is_told(torch: Torch, tmp_path: Path) -> None:
    exercise = example("lprnet", tmp_path / "models.d").workload.exercise
    done = run(here(exercise, torch, "networks:training", device="xpu"), variant=Variant("xpu", "float32"))

    assert done.outcome is Outcome.FAILED
    assert "sees no device xpu" in done.detail


@pytest.mark.torch
def test_a_training_elsewhere_is_seen(torch: Torch) -> None:
    done = run(torch.exercise(Loader.TRAIN, "networks:elsewhere"))

    assert done.told is not None, done.output
    assert (done.told.ran_on, done.told.device) == (RanOn.OTHER, "meta")


# -- random prompts and empty outputs -------------------------------------------------------------------------------


def test_random_prompts_must_be_asked_for_by_name(tmp_path: Path) -> None:
    models = tmp_path / "models.d"
    exercise = example("qwq", models).workload.exercise

    (key, words), *others = replace(exercise, inputs="").mistakes()
    assert (key, others) == ("inputs", [])
    assert 'inputs = "random"' in words
    assert not list(replace(exercise, inputs="random").mistakes())


@pytest.mark.torch
def test_a_model_that_answers_with_nothing_has_no_time_per_token(torch: Torch, tmp_path: Path) -> None:
    exercise = example("qwq", tmp_path / "models.d").workload.exercise
    done = run(here(exercise, torch, str(torch.models / "mute"), shapes=("1x8",), memory=None))

    assert done.outcome is Outcome.INVALID
    assert done.told
    assert done.told.figures
    assert done.told.figures.token_seconds is None


# -- every precision ------------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.timeout(600)
def test_every_precision_has_its_own_outcome_and_times(host: Daemon, torch: Torch, tmp_path: Path) -> None:
    models = tmp_path / "models.d"
    exercise = example("precisions", models).workload.exercise
    text = (models / "precisions.toml").read_text()
    small = here(exercise, torch, str(torch.models / "speaking"))
    for key in ("python", "target", "inputs", "device"):
        text = re.sub(rf"^{key} = .*$", f'{key} = "{getattr(small, key)}"', text, flags=re.MULTILINE)
    text = re.sub(r"^precisions = .*$", 'precisions = ["float32", "bfloat16"]', text, flags=re.MULTILINE)
    (models / "precisions.toml").write_text(text + "steps = 2\nnew_tokens = 3\n")
    host.configure(f"[paths]\nmodels = '{models}'\n[schedule]\nprewarm = false\nsettle = '0.2s'\n")
    host.start()
    last = prewarmed(host, "precisions")

    trials = last["trials"]
    assert isinstance(trials, list)
    assert [one["variant"]["precision"] for one in trials] == ["float32", "bfloat16"]
    for one in trials:
        # On the CPU it needs no compiler, so there is nothing to be warm: it runs, and claims no more than that.
        assert one["outcome"] == "uncached", (one["detail"], one["output"])
        assert one["ran_on"] == "meant"
        assert one["figures"][0]["token_seconds"] is not None
    assert trials[1]["figures"][0]["error"] < 0.1
    shown = host.ctl("model", "show", "precisions").stdout
    assert "cpu bfloat16 1x64" in shown


# -- what is compiled elsewhere -------------------------------------------------------------------------------------


COMPILED: Final = """
import torch
torch.manual_seed(0)
network = torch.compile(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU()))
network(torch.ones(2, 16))
print("compiled anew", torch._dynamo.utils.counters["inductor"]["fxgraph_cache_miss"])
"""


@pytest.mark.torch
@pytest.mark.timeout(600)
def test_a_compiled_model_is_warm_when_its_second_process_adds_no_file_and_starts_warm(
    host: Daemon, torch: Torch
) -> None:
    host.configure("[schedule]\nprewarm = false\nsettle = '0.2s'\n")
    host.start()
    source = host.home / "compiled.py"
    source.write_text(COMPILED)
    program = [str(torch.compiling), str(source)]
    more = [word for item in COMPILING.items() for word in ("--env", "=".join(item))]
    host.ctl("model", "add", "program", "--device", "cpu", *more, "--", *program, "{device}")
    last = prewarmed(host, "program")
    assert last["outcome"] == "warmed", (last["detail"], last["output"])
    assert "files written to its own caches" in str(last["detail"])
    # No SYCL driver is needed for it, and it is warm without one.
    assert host.ask("model", "show", "program")["warmth"] == "warm"
    place = host.home / ".cache/xpucached/models/program"
    assert f"TORCHINDUCTOR_CACHE_DIR={place}/inductor" in host.ctl("env", "program").stdout
    # In a shell that knows nothing of it.
    bare = {name: host.environment[name] for name in ("PATH", "XDG_RUNTIME_DIR")} | COMPILING
    bare |= {"HOME": str(host.home), "TMPDIR": str(host.run), "PYTHONPATH": str(REPOSITORY)}
    forms = [
        [sys.executable, "-m", "xpucached.cli", "--user", "run", "program", "--", *program],
        ["/bin/sh", "-c", f"{host.ctl('env', 'program').stdout}\n{shlex.join(program)}"],
    ]
    said = [subprocess.run(one, env=bare, capture_output=True, text=True, check=True).stdout for one in forms]
    assert said == ["compiled anew 0\n"] * 2
    # All of it is told of, and goes with the model.
    (used,) = (one["further"] for one in host.ask("df")["models"])  # type: ignore[attr-defined]
    assert used > 0
    host.ctl("model", "remove", "program")
    assert not place.exists()
