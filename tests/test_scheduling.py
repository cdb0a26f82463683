"""A run of the tests ends, whatever becomes of the processes in which they run."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final

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

HANGS: str = """\
import pathlib, threading

def test_hangs():
    before = pathlib.Path(__file__).with_name("before")
    if before.exists():
        threading.Event().wait()
    before.touch()
    raise AssertionError("the first try fails")
"""

TAKES_DOWN: str = """\
import pytest, threading

@pytest.fixture
def endless():
    yield
    threading.Event().wait()

def test_takes_down(endless):
    raise AssertionError("what is left then never ends")
"""

LEAVES: str = """\
import concurrent.futures, pytest, threading
from tests.support import leftovers

@pytest.fixture(autouse=True)
def left():
    before = set(threading.enumerate())
    yield
    leftovers.let_go(set(threading.enumerate()) - before)

def test_leaves():
    threading.Thread(target=threading.Event().wait).start()
    concurrent.futures.ThreadPoolExecutor(1).submit(threading.Event().wait)
    raise AssertionError("these threads are waited for at the end, and never end")
"""

SPREAD: Final = (
    "-p",
    "xdist",
    "-p",
    "tests.support.scheduling",
    "-n",
    "2",
    "--dist=loadfile",
    "--no-loadscope-reorder",
)


@pytest.mark.parametrize("told", ["1 rerun", "1 failed"], ids=["once", "whenever it is repeated"])
def test_a_process_that_dies_costs_one_test_at_the_most(tmp_path: Path, told: str) -> None:
    for number in range(6):
        (tmp_path / f"test_{number}.py").write_text("def test_one(): pass\ndef test_two(): pass\n")
    (tmp_path / "test_4.py").write_text(DIES.format(again=told == "1 failed"))
    run = nested(tmp_path, *SPREAD, "--reruns", "1")
    summary = run.stdout.splitlines()[-1]
    assert told in summary, run.stdout + run.stderr
    assert ("12 passed" if told == "1 failed" else "13 passed") in summary, run.stdout
    assert run.returncode == (told == "1 failed")


@pytest.mark.parametrize("what", [HANGS, TAKES_DOWN], ids=["the second try", "what a failed one takes down"])
def test_nothing_hangs_for_ever_after_a_test_has_failed(tmp_path: Path, what: str) -> None:
    (tmp_path / "test_it.py").write_text(what)
    run = nested(tmp_path, "-p", "pytest_timeout", "-p", "tests.support.timeouts", "--timeout", "1", "--reruns", "1")
    assert "Failed: Timeout" in run.stdout, run.stdout + run.stderr
    assert run.returncode == 1


def test_what_a_failed_test_left_running_is_not_waited_for_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(LEAVES)
    run = nested(tmp_path)
    assert "1 failed" in run.stdout, run.stdout + run.stderr
    assert run.returncode == 1


def nested(place: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the tests there in a pytest of their own."""
    plugins = ("-p", "pytest_rerunfailures", "-p", "no:cacheprovider", "-c", "/dev/null")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, *options, "--rootdir", place, place],
        env={"PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
