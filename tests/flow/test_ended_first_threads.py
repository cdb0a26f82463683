"""Programs whose first thread has ended, and that work on: the kernel lists them as zombies, which have nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests import INSTANCE
from xpucached.domain.models import Outcome, Workload
from xpucached.domain.workloads import RunSpec
from xpucached.host import directory_users, process_table
from xpucached.host.roots import HERE
from xpucached.processes import signals
from xpucached.processes.output import Trace
from xpucached.processes.supervised import ProcessStarter

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROGRAM: Final = """
import ctypes, os, sys, threading, time
leader = threading.main_thread().native_id
def work():
    while open(f"/proc/self/task/{leader}/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    exec(sys.argv[1])
threading.Thread(target=work).start()
# As pthread_exit does in C's main.
ctypes.CDLL(None).syscall(60, 0)
"""


@contextmanager
def running(place: Path, work: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run it there until the end of its stdin."""
    words = [sys.executable, "-c", _PROGRAM, f"{work}; print('there', flush=True); sys.stdin.read(); os._exit(0)"]
    variables = {**os.environ, "SYCL_CACHE_DIR": str(place), signals.MARK: f"{INSTANCE}:leader_ended"}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=place, env=variables) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == b"there\n"
            yield program
        finally:
            program.kill()


def test_it_is_seen_with_all_that_it_has(tmp_path: Path) -> None:
    (tmp_path / "libze_fake.so").write_bytes(bytes(4096))
    (tmp_path / "0.lock").touch()
    work = "import mmap; held = open('0.lock'); f = open('libze_fake.so', 'rb'); m = mmap.mmap(f.fileno(), 0, access=1)"
    with running(tmp_path, work) as program:
        found = [one for one in process_table.processes(os.getuid()) if one.pid == program.pid]
        assert [(one.variables["SYCL_CACHE_DIR"], one.directory) for one in found] == [(str(tmp_path), tmp_path)]
        assert found[0].libraries == (tmp_path / "libze_fake.so",)
        assert f"(process {program.pid})" in directory_users.users({tmp_path}).get(tmp_path, "")
        assert "0.lock" in process_table.held(frozenset({tmp_path})).get(tmp_path, ())
        if process_table._sees_all(HERE):
            since = process_table.writer_since(found, ("libze",), lambda path: path.endswith("0.lock"))
            assert since == found[0].started
            assert process_table.writer_since(found, ("libze",), lambda _: False) is None


def test_it_is_ended_as_others_are(tmp_path: Path) -> None:
    with running(tmp_path, "pass") as program:
        assert signals.end_marked(f"{INSTANCE}:leader_ended") == 1
        assert program.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("work", ["import _sqlite3", "x = bytearray(600 << 20)"])
def test_what_a_model_s_program_has_mapped_then_and_takes_is_known(tmp_path: Path, work: str) -> None:
    command = (sys.executable, "-c", _PROGRAM, f"{work}; time.sleep(2)")
    exercise = RunSpec(memory=300 << 20)
    of = Workload(command, tmp_path, {"PATH": os.environ["PATH"]}, timeout=60, exercise=exercise)
    done = asyncio.run(ProcessStarter(os.environ, INSTANCE).execute(of, {}, Trace(), polite=False))
    if "sqlite" in work:
        assert done.outcome is None
        assert any("_sqlite3" in one for one in done.mapped)
    else:
        assert done.outcome is Outcome.OVER_MEMORY
