"""A worker: until when it is needed."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from typing import TYPE_CHECKING

import pytest

from xpucached.daemon import worker
from xpucached.daemon.worker import WorkerNeed
from xpucached.errors import RunningError
from xpucached.threads import renew

if TYPE_CHECKING:
    from pathlib import Path

NEVER = -math.inf


def test_who_was_started_only_to_look_leaves_when_that_is_done() -> None:
    need = WorkerNeed(100.0)
    assert need.end(900.0, NEVER, NEVER) == 103.0

    need.work(160.0)
    assert need.end(900.0, NEVER, NEVER) == 163.0


def test_who_was_asked_stays_for_a_while() -> None:
    need = WorkerNeed(100.0)

    assert need.end(900.0, 120.0, NEVER) == 1020.0
    assert need.end(900.0, NEVER, 120.0) == 150.0
    assert need.end(1.0, 120.0, 110.0) == 140.0


def test_programs_that_work_in_the_stores_keep_it_and_its_own_work_does_not() -> None:
    need = WorkerNeed(100.0)
    need.work(200.0)
    need.note_activity(200.5)
    assert need.end(900.0, NEVER, NEVER) == 203.0

    need.note_activity(201.5)
    assert need.end(900.0, NEVER, NEVER) == 1101.5


def test_whose_account_is_gone_for_good_goes() -> None:
    need = WorkerNeed(100.0)
    need.know(200.0, local=True)
    need.know(205.0, local=False)
    need.know(206.0, local=True)
    assert need.end(None, NEVER, NEVER) == math.inf

    need.know(300.0, local=False)
    need.know(305.0, local=None)
    assert need.end(None, 304.0, 304.0) == 310.0


def test_whose_account_a_directory_service_has_is_never_taken_for_deleted() -> None:
    need = WorkerNeed(100.0)
    for now, local in ((200.0, False), (300.0, None), (400.0, False)):
        need.know(now, local=local)

    assert need.end(None, NEVER, NEVER) == math.inf


def test_this_process_s_account_is_looked_for_in_the_host_s_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "passwd"
    monkeypatch.setattr(worker, "_ACCOUNTS", listed)
    assert worker.is_local() is None
    listed.write_text(f"short\nother:x:{os.getuid() + 1}:{os.getuid()}::/:/bin/sh\n")
    assert worker.is_local() is False
    listed.write_text(f"we:x:{os.getuid()}:1::/:/bin/sh\n")
    assert worker.is_local() is True


def test_who_shall_stay_stays() -> None:
    assert WorkerNeed(100.0).end(None, NEVER, NEVER) == math.inf


def test_where_no_thread_is_to_be_had_a_worker_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def look() -> bool | None:
        renew(asyncio.get_running_loop())
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", full)
            return await worker.seen()

    assert asyncio.run(look()) is None


def test_a_worker_ends_for_a_daemon_of_its_user_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def other() -> None:
        raise RunningError("this user runs a daemon of their own")

    monkeypatch.setattr(worker, "step_aside", other)
    with pytest.raises(RunningError):
        asyncio.run(worker.seen())
