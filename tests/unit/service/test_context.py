"""What the flows share: what is done in a thread keeps what is locked for it, whoever is cancelled."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime

import pytest

from xpucached.domain.jobs import JobState
from xpucached.domain.models import Outcome, Run, Trial, WarmReason
from xpucached.domain.names import ModelName, TrashRef
from xpucached.domain.reports import PrewarmReport, TrashReport
from xpucached.domain.workloads import Variant
from xpucached.errors import Busy, NotFound
from xpucached.processes.cancellation import to_its_end
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


def test_what_jobs_report_is_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_KEPT_ROWS", 25)

    async def work() -> None:
        begun = jobs.Jobs(lambda: datetime.now(UTC))

        async def last(number: int) -> str:
            async def emptying(_handle: jobs.Handle) -> TrashReport:
                return TrashReport(dropped=tuple(TrashRef(f"{one:012x}") for one in range(number)))

            return (await begun.wait(begun.start("empty", emptying).id, 60.0)).id

        ended = [await last(number) for number in (10, 0, 10, 10, 30, 40, 20, 10)]
        ended.append(await last(0))
        # Each of the three that ended last is there, whatever it reports, and what reports nothing costs nothing.
        assert [one.id for one in begun.all()] == [ended[8], ended[7], ended[6], ended[5], ended[1]]
        with pytest.raises(NotFound):
            begun.job(ended[4])

    asyncio.run(work())


def test_what_programs_printed_counts_for_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_KEPT_ROWS", 100)

    async def work() -> None:
        begun = jobs.Jobs(lambda: datetime.now(UTC))
        text = "x" * 20 * 1300
        trials = (Trial(Variant(), Outcome.WARMED, output=text),) * 2
        now = datetime.now(UTC)
        run = Run(1, ModelName("net"), "w", WarmReason.MANUAL, now, now, Outcome.WARMED, "h", output="", trials=trials)

        async def warming(_handle: jobs.Handle) -> PrewarmReport:
            return PrewarmReport((run,))

        ended = [(await begun.wait(begun.start("prewarm", warming).id, 60.0)).id for _ in range(6)]
        assert [one.id for one in begun.all()] == [ended[5], ended[4], ended[3], ended[2]]

    asyncio.run(work())


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
