"""`xpucachectl trace`: a program as it is, and what it compiled."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

import pytest

from tests import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.runtimes import Runtime

pytestmark = pytest.mark.flow

TRACE: Final = [sys.executable, "-m", "xpucached.cli", "trace"]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XPUCACHED_SOCKET", str(tmp_path / "nobody"))


@pytest.mark.runtime
def test_a_real_runtime_tells_what_it_compiled_where_and_for_how_long(
    runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    newer = runtime("rt2025.3")
    program = newer.program("add", "scale")

    def traced(**variables: str) -> dict[str, object]:
        into = tmp_path / "told.json"
        environment = {**newer.environment(tmp_path / "cache"), "PYTHONPATH": str(REPOSITORY), **variables}
        done = subprocess.run(
            [*TRACE, "--json", "-o", str(into), "--", *program],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "built 2\n", ""), "no line of the trace is passed on"
        value: dict[str, object] = json.loads(into.read_text())["data"]
        return value

    cold = traced()
    assert (cold["programs"], cold["kept"], cold["found"], cold["nowhere"], cold["at_least"]) == (2, 2, 0, 0, False)
    assert isinstance(cold["compiling"], float)
    assert isinstance(cold["seconds"], float)
    assert 0 < cold["compiling"] < cold["seconds"]
    stores = cold["stores"]
    assert isinstance(stores, list)
    assert stores[0]["root"] == str(tmp_path / "cache")
    assert cold["commands"]
    warm = traced()
    assert (warm["programs"], warm["kept"], warm["found"], warm["compiling"], warm["commands"]) == (2, 0, 2, 0.0, [])
    # A path that begins at the program's directory is told as the program was given it.
    there = traced(SYCL_CACHE_DIR="cache")
    assert (there["found"], there["nowhere"], there["compiling"], there["commands"]) == (2, 0, 0.0, [])
    stores = there["stores"]
    assert isinstance(stores, list)
    assert [one["root"] for one in stores] == ["cache"]
    off = traced(SYCL_CACHE_PERSISTENT="0")
    assert (off["programs"], off["nowhere"], off["compiling"], off["off"]) == (2, 2, None, True)


def test_a_program_ends_as_it_would_without_us(tmp_path: Path) -> None:
    told = "import sys; sys.stderr.write('no line end'); print(input(), sys.argv[1:]); sys.exit(7)"
    done = subprocess.run(
        [*TRACE, "--", sys.executable, "-c", told, "--json", "--", "x y"],
        input="given\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (7, "given ['--json', '--', 'x y']\n")
    assert done.stderr.startswith("no line endxpucachectl trace  of ")
    assert "it told of no cache" in done.stderr
    killed = subprocess.run(
        [*TRACE, "--", "sh", "-c", "kill -9 $$"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (killed.returncode, "by signal 9" in killed.stderr) == (-signal.SIGKILL, True)
    (tmp_path / "text").write_text("no program")
    for program, status in (("no-such-program-here", 127), (str(tmp_path / "text"), 126)):
        done = subprocess.run([*TRACE, "--", program], capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, f"{program!r} cannot be started" in done.stderr) == (status, True), done.stderr
    for words, said in (([], "trace -- python3 app.py"), (["-o", "/no/such", "--", "true"], "cannot be written")):
        done = subprocess.run([*TRACE, *words], capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, said in done.stderr) == (64, True), done.stderr


def test_what_its_file_does_not_take_is_told_all_the_same() -> None:
    """It is told once, after a run that may have taken hours."""
    command = [*TRACE, "--json", "--output", "/dev/full", "--", "sh", "-c", "exit 7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    said, told = done.stderr.splitlines()
    assert (done.returncode, said) == (7, "xpucachectl: /dev/full cannot be written: No space left on device")
    assert json.loads(told)["data"]["command"] == command[-3:]


def test_signals_reach_the_program_and_what_it_leaves_is_not_cut_off(tmp_path: Path) -> None:
    # Not pause(): a signal that comes just before it is waited for in vain.
    wait = "signal.pthread_sigmask(signal.SIG_BLOCK, [15]); print('ready', flush=True); signal.sigwait([15])"
    code = f"import signal, sys; {wait}; sys.exit(5)"
    child = subprocess.Popen(
        [*TRACE, "--", sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.terminate()
    assert child.wait(60) == 5
    child.communicate()

    # It goes to the background, and writes to its stderr when its first process has long ended.
    errors = tmp_path / "errors"
    later = f"(sleep 1.2; echo later >&2; echo done > {tmp_path}/done) & exit 3"
    with errors.open("w") as file:
        done = subprocess.run([*TRACE, "--", "sh", "-c", later], stderr=file, check=False, timeout=60)
    assert done.returncode == 3
    assert not (tmp_path / "done").exists(), "nobody waits for it"
    assert "what it started and left running" in errors.read_text()
    until = time.monotonic() + 30
    while not ((tmp_path / "done").exists() and errors.read_text().endswith("later\n")) and time.monotonic() < until:
        time.sleep(0.05)
    assert errors.read_text().endswith("later\n")


def test_who_reads_slowly_makes_nothing_run_on(tmp_path: Path) -> None:
    """As a pager does: the program has long ended when somebody reads its last words."""
    pipe = 1 << 16
    code = f"import os; os.write(2, bytes({2 * pipe + pipe // 2})); open('done', 'w')"
    child = subprocess.Popen([*TRACE, "--", sys.executable, "-c", code], stderr=subprocess.PIPE, cwd=tmp_path)
    assert child.stderr is not None
    until = time.monotonic() + 30
    while not (tmp_path / "done").exists() and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.5)
    os.read(child.stderr.fileno(), pipe)
    # What it wrote last is read now, and nobody takes it.
    time.sleep(1)
    said = child.stderr.read().strip(b"\0")
    child.stderr.close()
    assert child.wait(60) == 0
    assert b"ended              with exit status 0" in said
    assert b"goes on" not in said


def test_a_program_keeps_its_terminal() -> None:
    main, end = pty.openpty()
    code = "import os, sys; print(*map(os.isatty, (0, 1, 2)), os.getpgrp() == os.getpgid(os.getppid()))"
    child = subprocess.Popen(
        [*TRACE, "--json", "-o", "/dev/null", "--", sys.executable, "-c", code], stdin=end, stdout=end, stderr=end
    )
    os.close(end)
    assert child.wait(60) == 0
    assert os.read(main, 100).decode().strip() == "True True True True"
    os.close(main)


def test_a_program_runs_where_no_other_terminal_can_be_had() -> None:
    """As in a container without /dev/ptmx, or once there are as many as there may be."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare")
    main, end = pty.openpty()
    without = [unshare, "--map-root-user", "--mount", "sh", "-c", 'mount --bind /dev/null /dev/ptmx && exec "$@"', "sh"]
    program = [sys.executable, "-c", "import os; print(os.isatty(2))"]
    child = subprocess.Popen([*without, *TRACE, "--", *program], stdout=subprocess.PIPE, stderr=end)
    os.close(end)
    told = b""
    with contextlib.suppress(OSError):
        while piece := os.read(main, 1 << 16):
            told += piece
    os.close(main)
    output, _ = child.communicate(timeout=60)
    if b"unshare" in told or b"mount" in told:
        pytest.skip("no namespaces")
    assert (child.returncode, output) == (0, b"False\n"), told
    assert b"no other can be had" in told
    assert b"ended              with exit status 0" in told


@pytest.mark.parametrize("end", [True, False], ids=["at the end", "at once"])
def test_what_cannot_be_started_is_said(end: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter
    """Where this user has as many processes as he may, whoever is no root."""
    code = f"""
import os, resource, sys
from xpucached.cli import arguments, launching, program, tracing
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(54321); os.setuid(54321)
first = launching.start
def full():
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
def start(*words):
    try:
        return first(*words)
    finally:
        full()
if {end}:
    launching.start = start
else:
    full()
sys.exit(program.main(["trace", "--", "sh", "-c", "sleep 1 & exit 3"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path.anchor
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == (3 if end else 126), done.stderr
    assert end or "'sh' cannot be started: Resource temporarily unavailable" in done.stderr
