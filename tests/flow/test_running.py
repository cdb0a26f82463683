"""`xpucachectl run`: the program itself, with the variables that make it find what was warmed."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from tests import REPOSITORY
from tests.support.api_stub import Running
from xpucached.errors import Busy, CatalogError, XpucachedError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.flow

PRINT: Final = "import json, os; print(json.dumps(dict(os.environ)))"
CACHED: Final = {"SYCL_CACHE_PERSISTENT": "1", "SYCL_CACHE_DIR": "/var/cache/it's resnet"}


def ctl(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Call ``xpucachectl``."""
    line = [sys.executable, "-m", "xpucached.cli", *words]
    return subprocess.run(
        line, env={**os.environ, **variables}, capture_output=True, text=True, check=False, timeout=60
    )


def test_a_program_finds_what_was_warmed_and_is_the_same_process(served: Running) -> None:
    plain = ctl("run", "--", sys.executable, "-c", PRINT)
    assert (plain.returncode, plain.stderr) == (0, "")
    found = json.loads(plain.stdout)
    assert found["SYCL_CACHE_DIR"] == "/var/cache/it's ours"
    assert found["XPUCACHED_SOCKET"] == str(served.path), "its own variables stay"
    named = ctl("run", "resnet", "--user", "--socket", str(served.path), "--", sys.executable, "-c", PRINT)
    assert json.loads(named.stdout).items() >= CACHED.items()

    # Arguments that look like ours are the program's, and so are signals, statuses and what Python ignores.
    told = "import sys; print(sys.argv[1:]); sys.exit(7)"
    done = ctl("run", "resnet", "--", sys.executable, "-c", told, "--json", "--help", "--", "x y")
    assert (done.returncode, done.stdout) == (7, "['--json', '--help', '--', 'x y']\n")
    ignored = ctl("run", "--", "grep", "SigIgn", "/proc/self/status")
    assert not int(ignored.stdout.split()[1], 16) & (1 << (signal.SIGPIPE - 1))
    killed = ctl("run", "--", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")
    assert killed.returncode == -signal.SIGKILL
    child = subprocess.Popen(
        [sys.executable, "-m", "xpucached.cli", "run", "--", sys.executable, "-c", "import os; print(os.getpid())"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert int(child.communicate(timeout=60)[0]) == child.pid


def test_why_the_cache_is_off_is_said_before_a_program_begins(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async def env(_model: object) -> Mapping[str, str]:
        return {"SYCL_CACHE_PERSISTENT": "0"}

    async def why(_name: object) -> None:
        raise Busy("not now")

    monkeypatch.setattr(served.service, "env", env)
    words = ("run", "resnet", "--", "printenv", "SYCL_CACHE_PERSISTENT")
    told = ctl(*words)
    assert (told.returncode, told.stdout) == (0, "0\n")
    assert "Until resnet was seen to run with it, the cache is off here, and each start compiles all" in told.stderr
    monkeypatch.setattr(served.service, "why", why)
    silent = ctl(*words)
    assert (silent.returncode, silent.stdout, silent.stderr) == (0, "0\n", "")


def test_a_program_keeps_its_terminal(served: Running) -> None:
    main, end = pty.openpty()
    code = "import sys; print(sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty())"
    child = subprocess.Popen(
        [sys.executable, "-m", "xpucached.cli", "run", "--", sys.executable, "-c", code],
        stdin=end,
        stdout=end,
        stderr=end,
    )
    os.close(end)
    assert child.wait(60) == 0
    assert os.read(main, 100).decode().strip() == "True True True"
    os.close(main)


def test_what_cannot_be_run_is_said_as_shells_do(served: Running, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    for words, status in ((("no-such-program-here",), 127), ((str(tmp_path / "text"),), 126), ((str(tmp_path),), 126)):
        done = ctl("run", "--", *words)
        assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
        assert f"{words[0]!r} cannot be started" in done.stderr
    refused: tuple[tuple[tuple[str, ...], str], ...] = (
        (("run",), "hint: xpucachectl run -- python3 app.py"),
        (("run", "resnet"), "hint: xpucachectl run resnet -- python3 app.py"),
        (("run", "python3", "app.py"), "hint: xpucachectl run -- python3 app.py"),
        (("run", "--of", "alice", "--", "true"), "run starts a program of yours, and --of names another user"),
    )
    for line, said in refused:
        done = ctl(*line)
        assert (done.returncode, said in done.stderr) == (64, True), done.stderr


def test_without_a_daemon_the_program_runs_and_that_is_said(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.delenv("SYCL_CACHE_DIR", raising=False)
    done = ctl("run", "resnet", "--", sys.executable, "-c", PRINT, XPUCACHED_SOCKET=str(short_dir / "nobody"))
    assert done.returncode == 0
    assert "SYCL_CACHE_DIR" not in json.loads(done.stdout)
    assert "runs without the variables of the cache, and may compile what is kept" in done.stderr


@pytest.mark.parametrize("trouble", [Busy("too much to do"), CatalogError("the catalog cannot be read")])
def test_a_daemon_that_cannot_answer_now_keeps_no_program_from_running(
    served: Running, monkeypatch: pytest.MonkeyPatch, trouble: XpucachedError
) -> None:
    async def env(_model: object) -> None:
        raise trouble

    monkeypatch.setattr(served.service, "env", env)
    done = ctl("run", "resnet", "--", "echo", "it runs")
    assert (done.returncode, done.stdout) == (0, "it runs\n")
    assert f"{trouble.message}; echo runs without the variables of the cache" in done.stderr


def test_variables_that_could_load_foreign_code_are_left_out(
    served: Running, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_dir.chmod(0o755)
    values = {
        "SYCL_CACHE_DIR": "/c",
        "LD_PRELOAD": "/tmp/evil.so",
        "TRITON_CACHE_DIR": "/tmp/evil",
        "LD_LIBRARY_PATH": f"{short_dir}:/usr/lib",
    }

    async def env(_model: object) -> Mapping[str, str]:
        return values

    monkeypatch.setattr(served.service, "env", env)
    done = ctl("run", "--", sys.executable, "-c", PRINT, LD_LIBRARY_PATH="/usr/lib:/opt")
    found = json.loads(done.stdout)
    assert found["LD_LIBRARY_PATH"] == f"{short_dir}:/usr/lib:/opt", "what was warmed with comes first"
    assert found["SYCL_CACHE_DIR"] == "/c"
    assert not {"LD_PRELOAD", "TRITON_CACHE_DIR"} & found.keys()
    assert done.stderr.splitlines() == [
        "xpucachectl: left out, as no cache needs it: LD_PRELOAD",
        "xpucachectl: left out, as others may write where it leads: TRITON_CACHE_DIR",
    ]
    shell = ctl("env")
    assert (
        shell.stdout == f"export LD_LIBRARY_PATH={shlex.quote(values['LD_LIBRARY_PATH'])}\nexport SYCL_CACHE_DIR=/c\n"
    )
    assert json.loads(ctl("env", "--json").stdout)["data"].keys() == {"SYCL_CACHE_DIR", "LD_LIBRARY_PATH"}
    assert ctl("env", "--podman").stdout == f"LD_LIBRARY_PATH={short_dir}:/usr/lib\nSYCL_CACHE_DIR=/c\n"
