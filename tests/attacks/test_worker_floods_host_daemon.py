"""A user's own worker answers the host's daemon with as much as it can, to take its memory and its time."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import tracemalloc
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests.support import api_stub
from tests.unit.hostd.test_hostd import OURS, WorkerUnitsStub, go, http, liar, make
from xpucached import codec, messages
from xpucached.api import requests
from xpucached.domain.host_overview import HostOverview, host_overview
from xpucached.domain.status import StatusSummary
from xpucached.domain.users import HostStatus, UserStatus, WorkerState
from xpucached.errors import XpucachedError
from xpucached.hostd import user_client

if TYPE_CHECKING:
    from pathlib import Path

    from xpucached.messages import Json


def status(**more: object) -> bytes:
    """Write the status of a worker that says more than it should."""
    data = json.loads(codec.dumps(codec.to_json(codec.brief_status(asyncio.run(api_stub.Standin().status())))))
    data["models"][0].update(more)
    return codec.dumps({"api": 1, "data": data})


def nested(depth: int) -> Json:
    """Return objects that lie in each other."""
    return {"": nested(depth - 1)} if depth else {}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        # Each is a value of its own, or a path: minutes of work in eight megabytes.
        (status(changes=[""] * 400_000), "more than 1048576 bytes"),
        (status(changes=[""] * 100_000), "more than 87381 values"),
        # What nobody knows is not read, but it has to be taken apart.
        (status(unknown=[0] * 100_000), "more than 87381 values"),
        # Each takes 200 bytes of memory, and holds one value alone.
        (status(unknown=[nested(30)] * 3_000), "more than 87381 values"),
    ],
    ids=["bytes", "values", "unknown", "nested"],
)
def test_an_answer_with_too_much_in_it_is_refused_unread(
    tmp_path: Path, short_dir: Path, answer: bytes, reason: str
) -> None:
    host_daemon = make(tmp_path, WorkerUnitsStub(), short_dir / "s")

    async def work() -> None:
        host_daemon._workers.follow(OURS, urgent=True)
        await asyncio.wait({host_daemon._workers._following[OURS]}, timeout=30)
        assert host_daemon._workers._following[OURS].done()

    hello = http(b'{"api": 1, "data": {"api": 1, "version": "1"}}')
    with liar(short_dir / "s", lambda request: hello if request.startswith(b"GET /v1 ") else http(answer)):
        go(host_daemon, work)
    said = host_daemon._known.said[OURS]
    assert said.state is WorkerState.FAILED
    assert reason in said.sentence


@pytest.mark.parametrize("more", [{"changes": [""] * 80_000, "warmth": "tepid"}, {"unknown": [0] * 80_000, "why": 7}])
def test_answers_that_cannot_be_read_are_kept_by_nobody(
    tmp_path: Path, short_dir: Path, more: dict[str, object]
) -> None:
    host_daemon = make(tmp_path, WorkerUnitsStub(), short_dir / "s")
    refusals: list[XpucachedError] = []

    async def ask() -> None:
        for _ in range(10):
            try:
                await host_daemon._user_clients.ask(OURS, requests.GetStatus())
            except XpucachedError as error:
                refusals.append(error)

    with liar(short_dir / "s", http(status(**more))):
        # As somebody who asks faster than the collector comes.
        gc.disable()
        tracemalloc.start()
        try:
            go(host_daemon, ask)
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()

    assert len(refusals) == 10
    assert all("cannot be read" in one.message for one in refusals)
    assert kept < 5 << 20


def test_what_nobody_can_have_hides_no_other_user() -> None:
    now = datetime.now(UTC)
    largest = 10**20 - 1  # of as many digits as a reader takes
    one = asyncio.run(api_stub.Standin().status())
    said = replace(StatusSummary.of(one), entries=largest, allocated=largest, warm=largest, cold=largest)
    users = tuple(user_client.digest(UserStatus(name, uid), said, now) for uid, name in enumerate(("alice", "bob")))
    host = host_overview(HostStatus("1", now, "", None, (), users, now), "host", now)

    read = messages.parse(codec.dumps(codec.to_json(host)), largest=1 << 20)
    assert codec.from_json(HostOverview, read) == host


def test_what_is_passed_on_is_kept_as_it_is_written(tmp_path: Path, short_dir: Path) -> None:
    host_daemon = make(tmp_path, WorkerUnitsStub(), short_dir / "s")
    kept: list[bytes] = []

    async def ask() -> None:
        kept.append(await host_daemon.tend(OURS, requests.GetStatus(), admin=True))

    answer = status(unknown=[nested(1)] * 80_000)
    hello = http(b'{"api": 1, "data": {"api": 1, "version": "1"}}')
    with liar(short_dir / "s", lambda request: hello if request.startswith(b"GET /v1 ") else http(answer)):
        go(host_daemon, ask)
    assert codec.dumps({"api": 1, "data": json.loads(kept[0])}) == answer


def test_answers_are_read_beside_the_loop(tmp_path: Path, short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = set()
    read = codec.from_json

    def noted(kind: type[object], value: Json) -> object:
        readers.add(threading.current_thread())
        return read(kind, value)

    with api_stub.running(short_dir) as there:
        host_daemon = make(tmp_path, WorkerUnitsStub(), there.path)
        monkeypatch.setattr(codec, "from_json", noted)

        async def work() -> None:
            await host_daemon.wake(OURS)
            await host_daemon._workers._quiet(OURS)

        go(host_daemon, work)
    assert readers
    assert threading.current_thread() not in readers
