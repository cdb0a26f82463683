"""A user stops his worker, or the user database does not answer: it costs that user's row, and says so."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import threading
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.support import api_stub
from xpucached.domain.users import UserStatus, WorkerState
from xpucached.errors import NotFound, Unavailable
from xpucached.hostd import units, user_client
from xpucached.hostd.supervisor import HostDaemon
from xpucached.hostd.supervisor import __name__ as host_daemon
from xpucached.hostd.worker_follower import __name__ as worker_follower
from xpucached.processes import child
from xpucached.settings import loading

if TYPE_CHECKING:
    from pathlib import Path

OURS: Final = os.getuid()

LISTENS: Final = """
import os, signal, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
os.kill(os.getpid(), signal.SIGSTOP)
"""


class Running:
    """What stands in for systemd: every worker runs."""

    async def start(self, uid: int, /) -> None:
        """Do nothing."""

    async def stop(self, uid: int, /) -> None:
        """Do nothing."""

    async def unit_state(self, _uid: int, /) -> units.UnitState:
        """Say that it runs."""
        return units.UnitState(active=True, failed=False, running=True)


def make(tmp_path: Path, place: Path) -> HostDaemon:
    config = loading.load(None, user=False, environ={"XPUCACHED_SCHEDULE_SETTLE": "0"})
    (tmp_path / "state").mkdir()
    paths = replace(config.paths, state=tmp_path / "state", socket=tmp_path / "s", models=tmp_path / "models.d")
    config = replace(config, paths=paths)
    made = HostDaemon(config, Running(), lambda _uid: place, lambda: api_stub.NOW, runtime=tmp_path)
    made._people = {OURS: "me", OURS + 1: "other"}
    made._known.said = {uid: UserStatus(name, uid) for uid, name in made._people.items()}
    return made


def test_a_stopped_worker_is_told_and_holds_nobody(
    tmp_path: Path, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_client, "_PATIENCE", 1.0)
    monkeypatch.setattr(f"{worker_follower}._ANSWER", 2.0)
    monkeypatch.setattr(f"{worker_follower}._ENDING", 0.1)
    script, place = tmp_path / "listens.py", short_dir / "s"
    script.write_text(LISTENS)
    worker = child.start([*child.python(script), str(place)], variables={})
    try:
        os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)
        one = make(tmp_path, place)

        async def work() -> None:
            try:
                with pytest.raises(Unavailable, match="the worker of me does not answer"):
                    await one.wake(OURS)
            finally:
                await one.stop()

        asyncio.run(work())
    finally:
        os.kill(worker.pid, signal.SIGCONT)
        child.end(worker)
    assert one._known.said[OURS].state is WorkerState.FAILED
    (problem,) = one.status(None).problems
    assert (problem.code, problem.subject) == ("worker-failing", "me")
    assert f"the worker of me fails since {api_stub.NOW:%Y-%m-%d %H:%M} UTC" in problem.message
    assert "is it stopped, or stuck?" in problem.message
    assert f"systemctl stop xpucached-worker@{OURS}.service" in problem.hint
    assert one.status(OURS + 1).problems == ()


def test_a_user_database_that_does_not_answer_holds_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def silent(*_: object) -> list[pwd.struct_passwd]:
        answered.wait()
        return []

    monkeypatch.setattr(f"{host_daemon}._CENSUS", 0.2)
    for name in ("getpwall", "getpwnam", "getpwuid"):
        monkeypatch.setattr(pwd, name, silent)
    one = make(tmp_path, tmp_path / "nobody")

    async def work() -> None:
        try:
            for _ in range(6):
                await one.meet()
            # Nor does anybody who asks for somebody make us ask.
            assert one.find("other", OURS) == OURS + 1
            with pytest.raises(NotFound):
                one.find("nobody-of-that-name", OURS)
        finally:
            answered.set()
            await one.stop()

    asyncio.run(work())
    assert [problem.code for problem in one.status(None).problems] == ["names-silent"]
    assert one._people == {OURS: "me", OURS + 1: "other"}
