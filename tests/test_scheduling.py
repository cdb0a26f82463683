"""A run of the tests ends, whatever becomes of the processes in which they run."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

DIES: str = """\
import os, pathlib

def test_before(): pass

def test_dies():
    died = pathlib.Path(__file__).with_name("died")
    if {again} or not died.exists():
        died.touch()
        os._exit(9)

def test_after(): pass
"""


@pytest.mark.parametrize("told", ["1 rerun", "1 failed"], ids=["once", "whenever it is repeated"])
def test_a_process_that_dies_costs_one_test_at_the_most(tmp_path: Path, told: str) -> None:
    for number in range(6):
        (tmp_path / f"test_{number}.py").write_text("def test_one(): pass\ndef test_two(): pass\n")
    (tmp_path / "test_4.py").write_text(DIES.format(again=told == "1 failed"))
    options = (
        "-p",
        "xdist",
        "-p",
        "pytest_rerunfailures",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--reruns",
        "1",
    )
    spread = ("-p", "tests.support.scheduling", "-n", "2", "--dist=loadfile", "--no-loadscope-reorder")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *spread, "--rootdir", tmp_path, tmp_path],
        env={"PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    summary = run.stdout.splitlines()[-1]
    assert told in summary, run.stdout + run.stderr
    assert ("12 passed" if told == "1 failed" else "13 passed") in summary, run.stdout
    assert run.returncode == (told == "1 failed")
