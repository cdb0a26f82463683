"""The tool that installs runtimes, and the commands that the README promises."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import mutants
import pytest
import runtimes as tool

from tests import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable

RECIPE: Final = tool.RECIPES["rt2024.2"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory that looks like a finished environment."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    (tmp_path / tool.MARKER).write_text(RECIPE.marker, encoding="utf-8")
    return tmp_path


def test_a_finished_runtime_is_left_alone(place: Path) -> None:
    assert tool.is_finished(place, RECIPE)


@pytest.mark.parametrize("text", ["", "null", "{}", tool.RECIPES["rt2025.1"].marker, RECIPE.marker[:-10]])
def test_a_half_made_runtime_or_one_with_other_pins_is_made_again(place: Path, text: str) -> None:
    (place / tool.MARKER).write_text(text, encoding="utf-8")

    assert not tool.is_finished(place, RECIPE)


def test_a_runtime_whose_python_is_gone_is_made_again(place: Path) -> None:
    (place / "bin" / "python").unlink()
    (place / "bin" / "python").symlink_to("/nonexistent/python3.11")

    assert not tool.is_finished(place, RECIPE)


def test_the_first_python_that_fits_is_taken() -> None:
    new, fitting = tool.Interpreter("python3.13", (3, 13)), tool.Interpreter("python3.11", (3, 11))

    assert tool.choose("rt2024.2", RECIPE, [new, fitting]) == fitting
    with pytest.raises(tool.Failure, match=r"exists for Python 3\.11 only.*\n.*python3\.13 is 3\.13"):
        tool.choose("rt2024.2", RECIPE, [new])


def test_this_python_is_found() -> None:
    assert sys.version_info[:2] in [one.version for one in tool.interpreters()]


def test_equal_files_become_one(tmp_path: Path) -> None:
    (tmp_path / "libx.so").write_bytes(b"same")
    (tmp_path / "libx.so.1").write_bytes(b"same")
    (tmp_path / "liby.so").write_bytes(b"else")
    (tmp_path / "libz.so").symlink_to("libx.so")

    tool.share_doubles(tmp_path)

    assert (tmp_path / "libx.so").samefile(tmp_path / "libx.so.1")
    assert (tmp_path / "liby.so").stat().st_nlink == 1
    assert (tmp_path / "libx.so.1").read_bytes() == b"same"
    assert (tmp_path / "libz.so").is_symlink()


@pytest.mark.parametrize("arguments", [["DIR"], ["DIR", "rt1999"]])
def test_a_wrong_call_is_refused(arguments: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, REPOSITORY / "tools" / "runtimes.py", *arguments],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )

    assert done.returncode == 2
    assert list(tmp_path.glob("DIR")) == []


def test_the_commands_in_the_readme_are_there_and_checked() -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    check = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")

    assert set(re.findall(r"^make (\w+)$", readme, re.MULTILINE)) == {"demo", "test"}
    assert {"demo", "test"} <= targets
    assert check.endswith("\nmake test\n")
    assert os.access(REPOSITORY / ".ci" / "run", os.X_OK)


def test_each_fault_changes_what_the_code_does(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text(
        "log = print\n"
        "def told(a: int = 3) -> list[int]:\n"
        "    found = []\n"
        "    if a < 4 and not a == 2:\n"
        "        found.append(7)\n"
        "    return found\n"
        "from dataclasses import dataclass, field\n"
        "@dataclass(frozen=True, slots=True, kw_only=True)\n"
        "class Made:\n"
        "    found: list[int] = field(default_factory=list)\n"
    )
    faults = mutants.faults(file)

    assert [one.words for one in faults] == [
        *("3", "a < 4 and (not a == 2)", "found.append(7)", "a < 4", "not a == 2", "4", "a == 2", "7", "2"),
    ]
    for one in faults:
        module: dict[str, Callable[..., list[int]]] = {}
        exec(mutants.code(one), module)  # noqa: S102 - it stands above
        told = module["told"]
        assert [told(), *(told(a) for a in range(8))] != [[7], [7], [7], [], [7], [], [], [], []], one


def test_what_a_room_makes_while_it_is_loaded_is_looked_at_by_all_of_its_tests(tmp_path: Path) -> None:
    file, module = tmp_path / "some.py", dict[str, object]()
    file.write_text("def made(): return 7\ndef asked(): return 7\nMADE = made()\n")
    source = compile(file.read_text(), file, "exec")
    callers = mutants._Callers(tmp_path, tmp_path / "told")
    tracing = sys.gettrace(), threading.gettrace()
    try:
        callers.pytest_load_initial_conftests()
        exec(source, module)  # noqa: S102 - it stands above
        callers.pytest_collection_finish()
        for test in ("one", "two"):
            callers.pytest_runtest_setup()
            if test == "one":
                exec("asked()", module)  # noqa: S102 - the same
            callers.pytest_runtest_logreport(pytest.TestReport(test, ("", 0, ""), {}, "passed", None, "teardown"))
        callers.pytest_unconfigure()
    finally:
        sys.settrace(tracing[0])
        threading.settrace(tracing[1])
    called, _ = json.loads((tmp_path / "told").read_text())
    assert called == {f"{file}:1": ["one", "two"], f"{file}:2": ["one"]}


@pytest.mark.parametrize("room", mutants.ROOMS)
def test_each_room_s_faults_are_looked_for_by_tests_that_are_there(room: str) -> None:
    assert list((mutants.REPOSITORY / mutants.PACKAGE / room).glob("*.py"))
    for pattern in mutants.ROOMS[room]:
        assert list(mutants.REPOSITORY.glob(pattern)), pattern
