"""The demo as a person runs it, only with a smaller program; it checks each of its steps itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.runtimes import Runtime


@pytest.mark.runtime
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("words", "needed", "shown", "times"),
    [
        (("demo.py", "--size", "small"), "drv2025.3", "kernels from the cache, 0 compiled, the same results", 2),
        (("gpu.py", "--last", "33"), "onednn3.7", "3 programs from the cache, 0 compiled", 2),
    ],
    ids=["the SYCL cache", "the GPU driver's cache"],
)
def test_a_demo_shows_what_it_says(
    words: tuple[str, ...],
    needed: str,
    shown: str,
    times: int,
    runtimes: Path,
    runtime: Callable[[str], Runtime],
    tmp_path: Path,
    short_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    runtime("rt2025.2")
    runtime(needed)
    if words[0] == "gpu.py":
        request.getfixturevalue("gpu")
    monkeypatch.setenv("TMPDIR", str(short_dir))

    done = subprocess.run(
        [sys.executable, REPOSITORY / "demo" / words[0], "--runtimes", runtimes, *words[1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(shown) == times
    assert list(short_dir.iterdir()) == []


@pytest.mark.usefixtures("terminal")
def test_a_recording_shows_text_and_colours(tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"
    code = r"print('\x1b[1m1. title\x1b[0m'); print('   \x1b[32m$\x1b[0m a < b & c')"

    done = subprocess.run(
        [sys.executable, REPOSITORY / "demo" / "record.py", "--output", picture, "--", sys.executable, "-c", code],
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )

    assert done.returncode == 0, done.stderr
    drawn = picture.read_text(encoding="utf-8")
    assert 'font-weight="bold">1. title</tspan>' in drawn
    assert ">a &lt; b &amp; c</tspan>" in drawn


@pytest.mark.usefixtures("terminal")
def test_a_recording_of_a_failure_leaves_no_picture(tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"

    done = subprocess.run(
        [sys.executable, REPOSITORY / "demo" / "record.py", "--output", picture, "--", "false"],
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )

    assert done.returncode == 1
    assert not picture.exists()
