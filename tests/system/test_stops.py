"""A daemon that is told to stop stops, whatever does not answer: what matters is saved, and nobody has to kill it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tests.support.daemons import Daemon

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.builders import SyclStore

# A look at a store that never comes back, as on a file system that stops to answer in the middle of it.
_STUCK_IN_A_STORE = """
import pathlib, sys, threading
from xpucached.daemon import main, user_daemon
from xpucached.kinds.sycl import scanner
def stuck(*given, **more):
    pathlib.Path(sys.argv.pop()).touch()
    threading.Event().wait()
scanner.parts = stuck
main._ENDING = user_daemon._STOPPING = 0.5
sys.exit(main.main(["--user"]))
"""

# The same, and nobody has a thread left, either.
_STUCK_IN_ALL_THREADS = """
import asyncio, pathlib, sys, threading
from xpucached import threads
from xpucached.daemon import main, user_daemon
from xpucached.service.reconcile import Reconciler
async def stuck(*given):
    for _ in range(100):
        asyncio.ensure_future(asyncio.to_thread(threading.Event().wait))
    await asyncio.sleep(0.5)
    pathlib.Path(sys.argv.pop()).touch()
    await asyncio.Event().wait()
Reconciler.reconcile = stuck
main._ENDING = user_daemon._STOPPING = 0.5
sys.exit(main.main(["--user"]))
"""

_STUCK_IN_THE_USER_DATABASE = """
import pathlib, sys, threading
from xpucached.daemon import main
from xpucached.hostd import supervisor
def stuck(*given, **more):
    pathlib.Path(sys.argv.pop()).touch()
    threading.Event().wait()
supervisor.read_users = stuck
main._ENDING = 0.5
sys.exit(main.main(["--system"]))
"""


def wait_for(file: Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while not file.exists():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)


def stop(code: str, file: Path, environ: dict[str, str]) -> str:
    """Start a daemon, tell it to stop once it is stuck, and give its log."""
    command = [sys.executable, "-c", code, str(file)]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE) as process:
        try:
            wait_for(file, process)
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 0, log
    return log.decode()


def test_a_daemon_stops_though_a_look_at_a_store_never_ends(
    tmp_path: Path, short_dir: Path, sycl_store: SyclStore
) -> None:
    sycl_store.add()
    one = Daemon(tmp_path, short_dir, {"XPUCACHED_STORES_PATHS": str(sycl_store.root)})
    (short_dir / "xpucached").mkdir(mode=0o700, exist_ok=True)
    log = stop(_STUCK_IN_A_STORE, tmp_path / "stuck", {**one.environment, "HOME": str(tmp_path)})
    assert "is left as it is" in log
    assert "Traceback" not in log
    # Its socket is gone, as after any stop.
    assert not list((short_dir / "xpucached").iterdir())


def test_a_daemon_saves_what_matters_though_none_of_its_threads_ever_ends(tmp_path: Path, short_dir: Path) -> None:
    one = Daemon(tmp_path, short_dir, {})
    (short_dir / "xpucached").mkdir(mode=0o700, exist_ok=True)
    log = stop(_STUCK_IN_ALL_THREADS, tmp_path / "stuck", {**one.environment, "HOME": str(tmp_path)})
    assert "is left as it is" in log
    assert "not written down" not in log
    assert "Traceback" not in log


def test_the_host_s_daemon_stops_though_the_user_database_never_answers(tmp_path: Path, short_dir: Path) -> None:
    environ = {
        **os.environ,
        "XPUCACHED_PATHS_STATE": str(tmp_path / "state"),
        "XPUCACHED_PATHS_SOCKET": str(short_dir / "xpucached.sock"),
        "RUNTIME_DIRECTORY": str(tmp_path),
    }
    log = stop(_STUCK_IN_THE_USER_DATABASE, tmp_path / "stuck", environ)
    assert "is left as it is" in log
    assert "Traceback" not in log
    assert (tmp_path / "state/users.json").exists()
