"""What is noticed of a model while it is registered."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from tests.support import api_stub
from xpucached.api.requests import AddModel
from xpucached.cli import registration
from xpucached.domain.models import Model, ModelStatus, Warmth, Workload
from xpucached.domain.names import ModelName
from xpucached.domain.workloads import Loader, RunSpec

HOST: Final = api_stub.make_host()
PLAIN: Final = RunSpec()


def asked(place: Path, *command: str, exercise: RunSpec = PLAIN, store: Path | None = None) -> AddModel:
    return AddModel(name=ModelName("net"), directory=place, command=command, exercise=exercise, store=store)


def loaded(place: Path, target: str, python: str = sys.executable) -> AddModel:
    exercise = RunSpec(loader=Loader.PYTHON, python=python, target=target, device="cpu")
    return asked(place, exercise=exercise)


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("xpu:0", None),
        ("cuda:3", None),
        ("xpu", None),
        ("xpu:1", "it is meant for xpu:1, and this host has one GPU, xpu:0"),
    ],
)
def test_a_device_that_is_not_here(tmp_path: Path, device: str, said: str | None) -> None:
    order = asked(tmp_path, "/bin/true", "{device}", exercise=RunSpec(device=device))
    assert [*registration.notes(order, HOST, own=True)] == ([said] if said else [])


def test_a_command_that_is_not_told_its_device_and_a_store_that_is_not_there(tmp_path: Path) -> None:
    order = asked(tmp_path, "/bin/true", exercise=RunSpec(device="cuda"), store=tmp_path / "sycl")
    found = [*registration.notes(order, None, own=True)]
    assert [one.split(",")[0] for one in found] == [
        f"there is no directory {tmp_path}/sycl yet; the first run makes the store there",
        "no word of its command holds {device}",
    ]
    assert [*registration.notes(asked(tmp_path, "/bin/true", exercise=RunSpec(device="cpu")), None, own=True)] == []
    (tmp_path / "sycl").mkdir()
    assert [*registration.notes(asked(tmp_path, "/bin/true", store=tmp_path / "sycl"), HOST, own=True)] == []


@pytest.mark.flow
def test_the_models_own_python_is_asked_for_what_will_be_imported(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert [*registration.notes(loaded(tmp_path, "app:warm"), HOST, own=True)] == []
    assert not (tmp_path / "ran").exists(), "nothing of it is run"
    missing = loaded(tmp_path, "not_here.deeper:warm")
    (said,) = registration.notes(missing, HOST, own=True)
    assert said.startswith(f"{sys.executable} does not find not_here in {tmp_path}; as it is, a run fails")
    assert [*registration.notes(missing, HOST, own=False)] == [], "another user's programs are not started"
    (said,) = registration.notes(loaded(tmp_path, "app:warm", "/no/python"), HOST, own=True)
    assert said.startswith("/no/python cannot be started: ")
    (said,) = registration.notes(loaded(tmp_path, "app:warm", "/bin/false"), HOST, own=True)
    assert said == "/bin/false was asked whether it finds what the model imports, and ended with status 1"


@pytest.mark.flow
@pytest.mark.parametrize("loader", [Loader.TRANSFORMERS, Loader.PYTHON, Loader.COMMAND])
def test_what_lies_where_somebody_stands_is_not_run(tmp_path: Path, loader: Loader) -> None:
    place, own = tmp_path / "place", tmp_path / "own"
    place.mkdir()
    (own / "bin").mkdir(parents=True)
    # An environment without packages: in others some of these modules are loaded at the start.
    (own / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\ninclude-system-site-packages = false\n")
    (own / "bin/python").symlink_to(Path(sys.executable).resolve())
    for name in (
        "ast",
        "contextlib",
        "email",
        "functools",
        "json",
        "linecache",
        "types",
        "warnings",
        "importlib",
        "torch",
        "transformers",
        "app",
    ):
        (place / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    target = "app:warm" if loader is Loader.PYTHON else str(tmp_path / "model")
    python = str(own / "bin/python")
    if loader is Loader.COMMAND:
        (place / "main.py").write_text("import json, torch, app\n'\\ '")
        order = asked(place, python, "main.py")
    else:
        exercise = RunSpec(loader=loader, python=python, target=target, inputs="random", device="cpu")
        order = asked(place, exercise=exercise)
    said = [*registration.notes(order, HOST, own=True)]
    assert not (tmp_path / "ran").exists()
    assert bool(said) is (loader is Loader.TRANSFORMERS), "what lies there is no library"


def test_a_driver_of_the_environment_is_found_and_the_lines_that_lead_there(tmp_path: Path) -> None:
    program = str(tmp_path / "bin" / "python")
    assert registration.brought_driver(program, {}) == {}
    libraries = tmp_path / "lib"
    libraries.mkdir()
    for name in ("libOpenCL.so.1", "libintelocl.so"):
        (libraries / name).touch()
    found = registration.brought_driver(program, {"LD_LIBRARY_PATH": "/opt/lib"})
    driver = f"{libraries}/libintelocl.so"
    assert found == {"LD_LIBRARY_PATH": f"{libraries}:/opt/lib", "OCL_ICD_FILENAMES": driver}
    assert registration.brought_driver(program, {"OCL_ICD_FILENAMES": "/x.so"}) == {}
    way = registration.leads_to_a_device(cold(program), {}, [program, "my app.py"]).splitlines()
    assert way[0] == f"its environment brings a driver, {driver}, and nothing leads its programs there. For this model:"
    variables = f"--env LD_LIBRARY_PATH={libraries} --env OCL_ICD_FILENAMES={driver}"
    assert way[1] == f"  xpucachectl model add net --replace {variables} -- {program} 'my app.py'"
    assert way[2].startswith("or for all programs, in ~/.config/xpucached/xpucached.toml, which is read again after ")
    assert way[5].strip() == f'variables = {{ LD_LIBRARY_PATH = "{libraries}", OCL_ICD_FILENAMES = "{driver}" }}'
    assert registration.leads_to_a_device(cold(program), {}).splitlines()[1].endswith(" …  # the rest as before")

    (libraries / "libintelocl.so").unlink()
    needs_none = registration.leads_to_a_device(cold(program), {}, [program]).splitlines()[-1]
    assert needs_none == f"  xpucachectl model add net --replace --device cpu -- {program}"
    assert registration.leads_to_a_device(cold(program, RunSpec(device="xpu")), {}) == "", "it says that it needs one"
    led = replace(cold(program), variables={"ZE_ENABLE_ALT_DRIVERS": "/opt/libze_intel_gpu.so.1"})
    assert registration.leads_to_a_device(led, {}) == "", "it is led to one, which has no device now"


def cold(program: str, exercise: RunSpec = PLAIN) -> ModelStatus:
    work = Workload((program,), Path("/"), {}, 60.0, exercise)
    return ModelStatus.of(Model(ModelName("net"), work), Warmth.COLD, "no device to warm it on")


def test_a_program_whose_directory_leads_to_itself_brings_no_driver(tmp_path: Path) -> None:
    (tmp_path / "bin").symlink_to("bin")
    assert registration.brought_driver(f"{tmp_path}/bin/python", {}) == {}
