"""A user stops his worker, asks for it again and again, and hangs up each time: what waits is bounded, and his own."""

from __future__ import annotations

import asyncio
import functools
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests.support import api_stub
from tests.unit.hostd.test_hostd import OURS, WorkerUnitsStub, go, make
from xpucached.api import requests
from xpucached.api.endpoints import Request
from xpucached.domain.names import JobId, ModelName
from xpucached.domain.status import StatusSummary, Verdict
from xpucached.domain.users import UserSocket, UserStatus
from xpucached.errors import Busy, Unavailable
from xpucached.hostd import user_client
from xpucached.hostd.worker_follower import __name__ as worker_follower
from xpucached.server import http_listener, unix_sockets
from xpucached.server.connection import ConnectionLimits
from xpucached.server.hosting import HostRoutes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WAKE = b"POST /v1/wake HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.001)


def test_who_hangs_up_keeps_his_place_until_the_work_is_done(
    tmp_path: Path, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = ConnectionLimits(per_user=4)
    host_daemon = make(tmp_path, WorkerUnitsStub(), short_dir / "nobody")
    path = short_dir / "d" / "s"
    wakes: list[int] = []

    def more_than(already: int) -> bool:
        return len(wakes) > already

    async def work() -> None:
        awake = asyncio.Event()

        async def wake(uid: int) -> UserSocket:
            wakes.append(uid)
            await awake.wait()
            return UserSocket("me", uid, path)

        async def ask() -> bytes:
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(WAKE)
            line = await reader.readline()
            writer.close()
            return line

        monkeypatch.setattr(host_daemon, "wake", wake)
        listener = http_listener.HttpListener(HostRoutes(host_daemon, "1", limits, admin=False), limits)
        await listener.start([unix_sockets.bind(path, 0o600)])
        try:
            while len(wakes) < limits.per_user:
                already = len(wakes)
                _, writer = await asyncio.open_unix_connection(path)
                writer.write(WAKE)
                await until(functools.partial(more_than, already))
                writer.transport.abort()
                await until(lambda: not listener._places.connections)
            assert [b" 503 " in await ask() for _ in range(3)] == [True] * 3
            assert len(wakes) == limits.per_user
            # Done, the places are free again.
            awake.set()
            await until(lambda: not listener._places.held)
            assert b" 200 " in await ask()
        finally:
            awake.set()
            await listener.stop()

    go(host_daemon, work)


def silent(monkeypatch: pytest.MonkeyPatch, uids: set[int]) -> tuple[threading.Event, list[Request[object]]]:
    """Let the workers of these users keep silent until the event; others are not there.  Gives what was asked."""
    end, asked = threading.Event(), list[Request[object]]()

    def ask(uid: int, request: Request[object], *_: object, **__: object) -> object:
        asked.append(request)
        if uid in uids:
            end.wait()
        raise Unavailable("nobody answers")

    monkeypatch.setattr(user_client, "ask", ask)
    return end, asked


def test_requests_to_a_silent_worker_are_bounded_and_hold_nothing_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, asked = silent(monkeypatch, {OURS})
    monkeypatch.setattr(user_client, "_WAITING", 8)
    host_daemon = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")

    async def work() -> None:
        waiting = [
            asyncio.create_task(host_daemon.tend(OURS, requests.WaitJob(id=JobId("1")), admin=False)) for _ in range(12)
        ]
        try:
            # A question of our own is asked all the same ...
            host_daemon._known.owed.add([OURS])
            host_daemon._workers.follow(OURS)
            await until(lambda: len(asked) == 5)
            assert sorted(type(one).__name__ for one in asked) == [*["GetHello"] * 4, "GetSummary"]
            # ... and people are told when there are too many.
            with pytest.raises(Busy, match="8 requests to the worker"):
                await host_daemon.wake(OURS)
        finally:
            end.set()
            await asyncio.wait(waiting)

    go(host_daemon, work)


def test_silent_workers_give_up_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet, other = {OURS + 1, OURS + 2}, OURS + 3
    end, _ = silent(monkeypatch, quiet)
    monkeypatch.setattr(f"{worker_follower}._BUSY", 0.1)
    worker_units = WorkerUnitsStub()
    host_daemon = make(tmp_path, worker_units, tmp_path / "nobody")
    host_daemon._known.said |= {uid: UserStatus(str(uid), uid) for uid in (*quiet, other)}

    async def work() -> None:
        try:
            for uid in (*quiet, other):
                host_daemon._workers.follow(uid)
            await until(lambda: other in worker_units.started)
        finally:
            end.set()

    go(host_daemon, work)


def test_workers_that_never_end_their_work_keep_others_waiting_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = range(OURS + 1, OURS + 21)

    async def ask(_uid: int, request: Request[object], **_: object) -> object:
        # It answers at once, and is for ever about to begin.
        said = StatusSummary.of(replace(api_stub.make_status(), verdict=Verdict.STARTING))
        asked.setdefault(_uid, request)
        return SimpleNamespace(value=said)

    asked: dict[int, Request[object]] = {}
    monkeypatch.setattr("xpucached.hostd.work_turns._LONG", 0.05)
    host_daemon = make(tmp_path, WorkerUnitsStub(), tmp_path / "nobody")
    host_daemon._known.said |= {uid: UserStatus(str(uid), uid) for uid in busy}
    monkeypatch.setattr(host_daemon._user_clients, "ask", ask)

    async def work() -> None:
        for uid in busy:
            host_daemon._workers.follow(uid)
        await asyncio.sleep(0)
        await until(lambda: len(asked) == 2)
        # Two hold up nobody for long, and it takes many to hold up all.
        await until(lambda: len(asked) == 16)
        await asyncio.sleep(0.2)
        assert len(asked) == 16

    go(host_daemon, work)


@pytest.mark.parametrize("names", [["m"] * 1001, ["m" * 201]], ids=["many", "long"])
@pytest.mark.parametrize("request_", [requests.PrewarmModels, requests.ReplayEntries])
def test_a_request_names_a_bounded_number_of_models(
    request_: type[requests.PrewarmModels | requests.ReplayEntries], names: list[str]
) -> None:
    with pytest.raises(ValueError, match="models: "):
        request_(models=tuple(map(ModelName, names)))
    request_(models=(ModelName("m" * 200),) * 1000)
