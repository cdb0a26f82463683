"""A worker that accepts and says nothing takes no more than its user's places, however often it is asked anew."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests.support import api_stub
from tests.unit.hostd.test_hostd import WorkerUnitsStub, make
from xpucached.api import requests
from xpucached.domain.jobs import Job, JobState
from xpucached.domain.names import JobId
from xpucached.hostd import user_client

if TYPE_CHECKING:
    from pathlib import Path


def test_users_whose_workers_are_silent_leave_a_turn_for_each_of_the_others(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()
    hostile = range(1000, 1016)

    def ask(uid: int, *_given: object, **_named: object) -> user_client.WorkerAnswer[int]:
        if uid in hostile:
            answer.wait()
        return user_client.WorkerAnswer(uid)

    monkeypatch.setattr(user_client, "ask", ask)

    async def asks() -> None:
        asking = user_client.UserClient(lambda _uid: short_dir)
        silent = [
            asyncio.create_task(asking.ask(uid, requests.GetStatus(), own=own))
            for uid in hostile
            for own in (False, False, False, False, True, True)
        ]
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(60):
                for own in (False, True):
                    assert (await asking.ask(2000, requests.GetHello(), own=own)).value is not None
        finally:
            answer.set()
            await asyncio.gather(*silent)
        assert not asking._turns[False]._held
        assert not asking._turns[True]._held

    asyncio.run(asks())


def test_a_job_is_waited_for_in_turns_and_no_thread_is_kept_for_it(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(JobId("3"), "scan", JobState.RUNNING, api_stub.NOW)
    states = [JobState.QUEUED, JobState.RUNNING, JobState.DONE]
    waited: list[float] = []

    def ask(_uid: int, request: requests.WaitJob, *_given: object, **_named: object) -> user_client.WorkerAnswer[Job]:
        waited.append(request.timeout)
        return user_client.WorkerAnswer(replace(job, state=states.pop(0)))

    monkeypatch.setattr(user_client, "ask", ask)
    monkeypatch.setattr(user_client, "_PAUSE", 0.0)
    asking = user_client.UserClient(lambda _uid: short_dir)

    answer = asyncio.run(asking.ask(os.getuid(), requests.WaitJob(id=job.id, timeout=300.0)))

    assert answer.value.state is JobState.DONE
    assert waited == [user_client._TURN] * 3


def test_a_turn_that_nobody_waits_for_any_more_is_the_next_one_s() -> None:
    async def turns() -> None:
        shared = user_client._Turns(2, 2)
        await shared.take(1)
        # More than half are taken, so the same user waits.
        waiting = [asyncio.create_task(shared.take(1)) for _ in range(2)]
        await asyncio.sleep(0)
        assert shared.waiting(1) == 2
        waiting[0].cancel()
        await asyncio.wait(waiting[:1])
        await shared.take(2)
        shared.give(1)
        # It was given, and is given up before it is known.
        waiting[1].cancel()
        await asyncio.wait(waiting)
        assert shared.waiting(1) == 0
        assert shared._held == {2: 1}

    asyncio.run(turns())


def test_who_is_asked_again_and_again_holds_no_more_threads(short_dir: Path) -> None:
    connected: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(short_dir / "listens"))
        server.listen(64)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connected.append(server.accept()[0])

        listening = threading.Thread(target=accept)
        listening.start()

        async def asks() -> None:
            host_daemon = make(short_dir, WorkerUnitsStub(), short_dir / "listens")
            # A question is given up and asked anew, as a wake does with the one before it.
            for _ in range(12):
                asking = asyncio.create_task(host_daemon._user_clients.ask(os.getuid(), requests.GetStatus()))
                await asyncio.sleep(0.05)
                asking.cancel()
                await asyncio.wait([asking])
            held = len(connected)
            for one in connected:
                one.close()
            server.shutdown(socket.SHUT_RDWR)
            await asyncio.to_thread(host_daemon._user_clients._threads.shutdown)
            assert 1 <= held <= 4, held

        try:
            asyncio.run(asks())
        finally:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            listening.join()
