"""What the flows share: what is done in a thread keeps what is locked for it, whoever is cancelled."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime

import pytest

from xpucached.domain.jobs import JobState
from xpucached.domain.reports import TrashReport
from xpucached.errors import Busy
from xpucached.processes.outlasting import to_its_end
from xpucached.service import jobs


def test_who_is_cancelled_waits_for_the_thread_however_often() -> None:
    going, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        going.set()
        may_end.wait(10)
        ended.set()

    async def cancel() -> None:
        lock = asyncio.Lock()

        async def locked() -> None:
            async with lock:
                await to_its_end(work)

        task = asyncio.create_task(locked())
        await asyncio.to_thread(going.wait, 10)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.01)
            assert lock.locked()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()
        assert not lock.locked()

    asyncio.run(cancel())


def test_what_it_gives_or_raises_is_given_and_raised() -> None:
    async def ask() -> None:
        assert await to_its_end(int, "7") == 7
        with pytest.raises(ValueError, match="invalid literal"):
            await to_its_end(int, "seven")

    asyncio.run(ask())


def test_only_so_many_jobs_wait_for_others_but_what_the_daemon_does_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_MOST_WAITING", 3)

    async def work() -> None:
        begun, turn = jobs.Jobs(lambda: datetime.now(UTC)), asyncio.Event()

        async def waiting(_handle: jobs.Handle) -> TrashReport:
            await turn.wait()
            return TrashReport()

        some = [begun.start("empty", waiting) for _ in range(3)]
        with pytest.raises(Busy, match="3 jobs go on or wait"):
            begun.start("empty", waiting)
        some.append(begun.start("evict", waiting, asked=False))
        turn.set()
        states = [(await begun.wait(one.id, 60.0)).state for one in (*some, begun.start("scan", waiting, asked=False))]
        assert states == [JobState.DONE] * 5
        begun.start("empty", waiting)
        await begun.stop()

    asyncio.run(work())
