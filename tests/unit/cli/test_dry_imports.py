"""What a model's own Python would not find is said before anything runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import pytest

from xpucached.api.requests import AddModel
from xpucached.cli import dry_imports
from xpucached.domain.names import ModelName
from xpucached.domain.workloads import Loader, RunSpec

pytestmark = pytest.mark.flow

APP: Final = """
import json, absent_one.deeper as one
from helper import thing
from . import sibling
try:
    import absent_but_tried
except ImportError:
    pass
if absent_one:
    import absent_but_asked
def later():
    import absent_and_later
if __name__ == "__main__":
    from absent_main import it
open("ran", "w")
"""
HELPER: Final = "import contextlib\nwith contextlib.suppress(OSError):\n    import absent_two\nopen('ran', 'w')\n"


def said(place: Path, *command: str, **variables: str) -> list[str]:
    return [*dry_imports.notes(AddModel(name=ModelName("net"), command=command, directory=place, variables=variables))]


def names(notes: list[str]) -> list[str]:
    return [one.partition(" does not find ")[2].partition(";")[0] for one in notes]


def test_what_a_script_imports_whatever_comes_is_looked_for_and_nothing_is_run(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "helper.py").write_text(HELPER)
    found = [
        f"absent_one and absent_main, which {tmp_path}/app.py imports",
        f"absent_two, which {tmp_path}/helper.py imports",
    ]
    assert names(said(tmp_path, sys.executable, "-X", "dev", "-u", "app.py", "--once")) == found
    # The first line of a program says which Python it is.
    program = tmp_path / "program"
    for line in (f"{sys.executable} -u", f"/usr/bin/env {Path(sys.executable).name}"):
        program.write_text(f"#!{line}\nfrom absent_three import main\n")
        found = said(tmp_path, str(program), PATH=str(Path(sys.executable).parent))
        assert names(found) == [f"absent_three, which {program} imports"]
    assert not (tmp_path / "ran").exists()


def test_modules_and_texts_are_looked_for_too(tmp_path: Path) -> None:
    assert names(said(tmp_path, sys.executable, "-m", "absent.main", "import absent_two")) == [f"absent in {tmp_path}"]
    assert names(said(tmp_path, sys.executable, "-c", "import json, absent")) == [f"absent in {tmp_path}"]
    assert said(tmp_path, sys.executable, "-m", "json.tool") == []


def test_where_a_program_says_itself_where_modules_are_nothing_is_missed(tmp_path: Path) -> None:
    says = "import sys\nsys.path.append(str(sys.argv))\nimport elsewhere\n"
    (tmp_path / "app.py").write_text("import json, paths, elsewhere\n")
    (tmp_path / "paths.py").write_text(says)
    assert said(tmp_path, sys.executable, "app.py") == []
    assert said(tmp_path, sys.executable, "-c", says) == []
    assert names(said(tmp_path, sys.executable, "-m", "absent.main")) == [f"absent in {tmp_path}"]


@pytest.mark.parametrize(
    "command", [("/bin/true",), ("/no/such/program",), ("/bin/sh", "-c", "import absent"), ("/etc",)]
)
def test_what_is_no_python_is_not_asked(tmp_path: Path, command: tuple[str, ...]) -> None:
    assert said(tmp_path, *command) == []


def test_a_script_that_is_not_there_is_said(tmp_path: Path) -> None:
    missing = f"there is no {tmp_path}/nowhere.py; as it is, a run fails"
    assert said(tmp_path, sys.executable, "-u", "nowhere.py", "--once") == [missing]
    (tmp_path / "folder").mkdir()
    assert said(tmp_path, sys.executable, "folder") == []


def test_what_cannot_be_parsed_or_is_not_meant_is_no_finding(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import absent\nthis is no Python\n")
    assert said(tmp_path, sys.executable, "app.py") == []
    assert said(tmp_path, sys.executable) == []


def installed(place: Path, torch: str, built: str = "", extension: str = "") -> str:
    """Put a torch, and its extension, where modules are looked for; return that place."""
    for name, folder, version in (
        ("torch", "torch", torch),
        ("intel_extension_for_pytorch", "intel_extension_for_pytorch", extension),
    ):
        if version:
            (place / folder).mkdir()
            (place / folder / "__init__.py").write_text("raise SystemExit('it was imported')")
            (place / folder / "version.py").write_text(built)
            (place / f"{name}-{version}.dist-info").mkdir()
            (place / f"{name}-{version}.dist-info/METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    return str(place)


FOR_CPU: Final = "cuda: Optional[str] = None\nhip: Optional[str] = None\nxpu: Optional[str] = None\n"
FOR_XPU: Final = "cuda: Optional[str] = None\nxpu: Optional[str] = '20250301'\n"


@pytest.mark.parametrize(
    ("torch", "built", "extension", "device", "begin"),
    [
        ("2.9.0+cpu", FOR_CPU, "", "xpu:0", "its torch 2.9.0+cpu was built without xpu"),
        ("2.9.0+cpu", FOR_CPU, "", "cuda", "its torch 2.9.0+cpu was built without cuda"),
        ("2.9.0+cpu", FOR_CPU, "", "cpu", ""),
        ("2.9.0", "hip: Optional[str] = '6'\ncuda: Optional[str] = None\n", "", "cuda", ""),
        ("2.9.0+xpu", FOR_XPU, "", "xpu", ""),
        ("2.9.0+xpu", FOR_XPU, "2.8.10", "xpu", ""),
        (
            "2.9.0",
            "cuda = '13.0'\n",
            "2.8.10",
            "xpu",
            "intel-extension-for-pytorch 2.8.10 does not load beside torch 2.9.0",
        ),
        ("2.9.0", "cuda = '13.0'\n", "2.8.10", "cuda", ""),
        ("2.8.0", "", "2.8.10+xpu", "xpu", ""),
        ("2.3.1", "", "", "xpu", ""),  # it says nothing of it
    ],
)
def test_a_torch_that_cannot_use_the_device_is_named(
    tmp_path: Path, torch: str, built: str, extension: str, device: str, begin: str
) -> None:
    place = installed(tmp_path, torch, built, extension)
    exercise = RunSpec(
        loader=Loader.TORCHSCRIPT,
        python=sys.executable,
        target=str(tmp_path / "net.pt"),
        device=device,
        inputs="random",
    )
    order = AddModel(name=ModelName("net"), directory=tmp_path, exercise=exercise, variables={"PYTHONPATH": place})
    notes = [*dry_imports.notes(order)]
    assert [one[: len(begin)] for one in notes] == ([begin] if begin else [])


def test_a_program_that_imports_the_extension_beside_another_torch_hears_of_it(tmp_path: Path) -> None:
    place = installed(tmp_path, "2.9.0", "", "2.8.10")
    (notes,) = said(tmp_path, sys.executable, "-c", "import intel_extension_for_pytorch", PYTHONPATH=place)
    assert "does not load beside torch 2.9.0" in notes
    assert said(tmp_path, sys.executable, "-c", "import torch", PYTHONPATH=place) == []


def test_packages_of_the_loader_and_of_the_precision_are_looked_for(tmp_path: Path) -> None:
    exercise = RunSpec(
        loader=Loader.GPTQ,
        python=sys.executable,
        target=str(tmp_path),
        device="cpu",
        inputs="prompts",
        precisions=("bitsandbytes-int8",),
    )
    found = names([*dry_imports.notes(AddModel(name=ModelName("net"), directory=tmp_path, exercise=exercise))])
    assert found == [f"torch and transformers and gptqmodel and bitsandbytes in {tmp_path}"]


def test_a_pipe_in_the_place_of_a_program_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "program")
    assert said(tmp_path, str(tmp_path / "program")) == []


def test_a_python_that_looks_in_no_script_s_folder_finds_what_it_is_led_to(tmp_path: Path) -> None:
    (tmp_path / "led").mkdir()
    (tmp_path / "led" / "module_that_is_there.py").touch()
    (tmp_path / "app.py").write_text("import module_that_is_there")
    assert not said(tmp_path, sys.executable, "app.py", PYTHONPATH=str(tmp_path / "led"), PYTHONSAFEPATH="1")


@pytest.mark.parametrize(
    "answer",
    [
        b'{"missing":[["\xff",""]],"versions":{},"built_for":{},"extended":false}',
        b'{"x":' + b"[" * 100_000,
    ],
)
def test_what_no_python_would_answer_is_no_finding(tmp_path: Path, answer: bytes) -> None:
    (tmp_path / "answer").write_bytes(answer)
    program = tmp_path / "python3"
    program.write_text(f'#!/bin/bash\nwhile [ "$1" != --fd ]; do shift; done\ncat {tmp_path}/answer >&"$2"\n')
    program.chmod(0o755)
    (notes,) = said(tmp_path, str(program), "-c", "import json")
    assert notes == f"{program} was asked whether it finds what the model imports, and ended with status 0"
