"""`server.hosting`, `server.public_thread`, and sockets of systemd's: who is meant, and in whose loop it is done."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import pytest
from msgspec.structs import replace
from starlette.requests import Request as HttpRequest

from xpucached.api import host_requests, requests
from xpucached.api.client import Client
from xpucached.domain.jobs import Job, JobState
from xpucached.domain.names import JobId, ModelName
from xpucached.domain.plans import Deferred
from xpucached.domain.reports import PrewarmReport
from xpucached.errors import Denied, NotFound, SettingsError
from xpucached.server import unix_sockets
from xpucached.server.connection import ConnectionLimits, Peer
from xpucached.server.hosting import HostRoutes, HostService
from xpucached.server.http_listener import HttpListener
from xpucached.server.public_thread import PublicListener, across

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from xpucached.api.endpoints import Request

US = os.getuid()
ALICE, BOB = US + 1, US + 2


class Service:
    """A host's daemon that only notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.threads: set[int] = set()
        self.declared = {"net"}
        self.late: set[str] = set()
        self.users = {"alice": ALICE, "bob": BOB}
        self.new: dict[str, int] = {}

    def find(self, user: str | int | None, uid: int) -> int:
        """Tell who is meant."""
        if not isinstance(user, str):
            return uid if user is None else user
        if user not in self.users:
            raise NotFound("nobody")
        return self.users[user]

    def status(self, uid: int | None) -> tuple[str, int | None]:
        """Tell of one, or of all."""
        self.threads.add(threading.get_ident())
        return "status", uid

    def look(self) -> None:
        """Look again."""
        self.asked.append(("look",))

    def step_aside(self, uid: int) -> None:
        """Let a worker end."""
        self.asked.append(("aside", uid))

    def own(self, name: ModelName, uid: int) -> ModelName:
        """Return a user's own name of a model."""
        return ModelName(f"{uid}/{name}")

    async def meet(self) -> None:
        """See what was declared meanwhile."""
        self.asked.append(("meet",))
        self.declared |= self.late
        self.users |= self.new

    def meaning(self, names: tuple[ModelName, ...]) -> tuple[int, tuple[ModelName, ...]]:
        """Tell whose these are."""
        if not self.declared.issuperset(names):
            raise NotFound("nobody declares it")
        return BOB, names

    def meant(self, name: JobId) -> tuple[int, JobId]:
        """Tell whose job that is."""
        return ALICE, JobId(f"inner-{name}")

    async def wake(self, uid: int) -> tuple[str, int]:
        """Wake a worker."""
        return "woken", uid

    async def prewarm(self, uid: int, request: requests.PrewarmModels) -> tuple[int, tuple[ModelName, ...]]:
        """Let a worker warm."""
        return uid, request.models

    async def job(self, uid: int, request: Request[object]) -> tuple[int, Request[object]]:
        """Return a job."""
        return uid, request

    async def tend(self, uid: int, request: Request[object], *, admin: bool) -> tuple[int, object, bool]:
        """Pass it on."""
        return uid, request, admin


def ask(asked: Request[object], uid: int, *, admin: bool = False, service: Service | None = None) -> object:
    """Return what a user is answered."""
    one = HostRoutes(cast("HostService", service or Service()), "1", ConnectionLimits(), admin=admin)
    return asyncio.run(one._call(asked, Peer(1, uid, uid)))


def test_who_may_only_ask_for_himself_sees_himself() -> None:
    assert ask(host_requests.GetHost(), ALICE) == ("status", ALICE)
    for uid in {0, US}:
        assert ask(host_requests.GetHost(), uid) == ("status", None)
    assert ask(host_requests.GetHost(), ALICE, admin=True) == ("status", None)


def test_a_worker_is_woken_by_its_user_and_by_those_who_are_trusted() -> None:
    assert ask(host_requests.WakeWorker(), ALICE) == ("woken", ALICE)
    assert ask(host_requests.WakeWorker(user="alice"), ALICE) == ("woken", ALICE)
    assert ask(host_requests.WakeWorker(user="bob"), 0) == ("woken", BOB)
    # Who is not there, and who is another, get the same answer.
    for name in ("bob", "nobody"):
        with pytest.raises(Denied, match="for root and administrators"):
            ask(host_requests.WakeWorker(user=name), ALICE)
    with pytest.raises(NotFound):
        ask(host_requests.WakeWorker(user="nobody"), 0)


def test_whose_account_is_new_is_met_when_somebody_who_is_trusted_asks_for_him() -> None:
    service = Service()
    service.new = {"carol": BOB + 1}
    with pytest.raises(Denied):
        ask(host_requests.WakeWorker(user="carol"), ALICE, service=service)
    assert service.asked == []
    assert ask(host_requests.WakeWorker(user="carol"), 0, service=service) == ("woken", BOB + 1)
    assert service.asked == [("meet",)]
    service.users.pop("carol")
    one = HostRoutes(cast("HostService", service), "1", ConnectionLimits(), admin=True)
    tended = asyncio.run(one._tend(requests.GetStatus(), "carol", Peer(1, ALICE, ALICE)))
    assert cast("tuple[int, object, bool]", tended)[0] == BOB + 1


def test_who_looks_again_and_who_steps_aside() -> None:
    service = Service()
    with pytest.raises(Denied):
        ask(requests.Refresh(), ALICE, service=service)
    assert service.asked == []
    ask(requests.Refresh(), 0, service=service)
    ask(host_requests.StepAside(), ALICE, service=service)
    assert service.asked == [("look",), ("aside", ALICE)]


def test_models_are_warmed_by_name_and_each_one_s_own_by_his_worker() -> None:
    net = (ModelName("net"),)
    assert ask(requests.PrewarmModels(models=net), ALICE) == (ALICE, (f"{ALICE}/net",))
    assert ask(requests.PrewarmModels(stale=True), ALICE) == (ALICE, ())
    assert ask(requests.PrewarmModels(models=net), 0) == (BOB, net)
    with pytest.raises(Denied, match="warms models by name"):
        ask(requests.PrewarmModels(stale=True), 0)


def test_a_model_whose_file_was_just_written_is_looked_for_once_more() -> None:
    service = Service()
    service.late = {"young"}
    ask(requests.PrewarmModels(models=(ModelName("net"),)), 0, service=service)
    assert service.asked == []
    young = (ModelName("young"),)
    assert ask(requests.PrewarmModels(models=young), 0, service=service) == (BOB, young)
    with pytest.raises(NotFound):
        ask(requests.PrewarmModels(models=(ModelName("none"),)), 0, service=service)
    assert service.asked == [("meet",), ("meet",)]


def test_a_job_is_asked_for_by_whose_it_is_and_waited_for_as_long() -> None:
    assert ask(requests.GetJob(id=JobId("3")), ALICE) == (ALICE, requests.GetJob(id=JobId("inner-3")))
    waited = requests.WaitJob(id=JobId("inner-3"), timeout=7.0)
    assert ask(requests.WaitJob(id=JobId("3"), timeout=7.0), 0) == (ALICE, waited)
    with pytest.raises(Denied):
        ask(requests.GetJob(id=JobId("3")), BOB)


def test_the_public_door_answers_in_its_thread_and_works_in_the_loop_that_started_it(short_dir: Path) -> None:
    service, path = Service(), short_dir / "s"

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        limits = ConnectionLimits()

        def listener() -> HttpListener:
            made.append(threading.get_ident())
            routes = HostRoutes(cast("HostService", service), "1", limits, admin=False, run=across(loop))
            return HttpListener(routes, limits)

        made: list[int] = []
        door = PublicListener(listener)
        one = unix_sockets.bind(path, 0o600)
        await door.start([one])
        # It listens as soon as it was started, and not a while later.
        assert len(made) == 1
        try:
            hello = await asyncio.to_thread(asked)
            assert cast("dict[str, object]", hello)["version"] == "1"
            with pytest.raises(TypeError):
                await across(loop)(fails())
        finally:
            await door.stop()
        assert made[0] != threading.get_ident()
        assert not door._thread.is_alive()
        # To stop it again, or one that never began, is nothing.
        await door.stop()
        idle = PublicListener(listener)
        await idle.stop()
        idle._loop.close()

    def asked() -> object:
        with Client(path) as client:
            return client.call(requests.GetHello()).data

    def fails() -> Coroutine[None, None, None]:
        async def raises() -> None:
            raise TypeError

        return raises()

    asyncio.run(serve())


def systemd(monkeypatch: pytest.MonkeyPatch, *some: socket.socket, **more: str) -> dict[str, str]:
    """Hand sockets over as systemd does, from a descriptor on that is free here."""
    monkeypatch.setattr(unix_sockets, "_FIRST_DESCRIPTOR", 700)
    for number, one in enumerate(some):
        os.dup2(one.fileno(), 700 + number)
    return {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(some)), **more}


def test_systemd_s_sockets_come_with_their_names_and_stay_with_us(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unix_sockets.bind(short_dir / "a", 0o600) as a, unix_sockets.bind(short_dir / "b", 0o600) as b:
        a.setblocking(True)  # noqa: FBT003 - the standard library's signature
        many = unix_sockets.activated_by_name(systemd(monkeypatch, a, b, LISTEN_FDNAMES="api:b:more"))
        assert [name for name, _ in many] == ["api", "b"]
        for _, one in many:
            one.close()
        variables = systemd(monkeypatch, a, b, LISTEN_FDNAMES="api")
        taken = unix_sockets.activated_by_name(variables)

    assert [(name, one.getsockname()) for name, one in taken] == [("api", f"{short_dir}/a"), ("", f"{short_dir}/b")]
    assert variables == {}
    for _, one in taken:
        assert (one.getblocking(), os.get_inheritable(one.fileno())) == (False, False)
        one.close()


def test_what_is_no_listening_unix_socket_is_refused_and_closed(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mute, other = socket.socketpair(socket.AF_UNIX)
    with (
        mute,
        other,
        socket.create_server(("127.0.0.1", 0)) as web,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as packets,
        unix_sockets.bind(short_dir / "a", 0o600) as good,
    ):
        packets.bind(str(short_dir / "p"))
        packets.listen()
        for bad in (mute, web, packets):
            with pytest.raises(SettingsError, match="descriptor 701 from systemd is not a listening unix stream"):
                unix_sockets.activated(systemd(monkeypatch, good, bad))
            for number in (700, 701):
                with pytest.raises(OSError, match="Bad file descriptor"):
                    os.fstat(number)
    with pytest.raises(SettingsError, match="descriptor 700 from systemd is not a socket"):
        unix_sockets.activated({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"})
    assert unix_sockets.activated({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "x"}) == []


def test_no_text_is_made_of_what_a_worker_says(monkeypatch: pytest.MonkeyPatch) -> None:
    # At a width of 16,000, 1 MiB of it would take five minutes; a table at one of millions, gigabytes.
    async def said(_uid: int, _request: Request[object]) -> Job:
        late = Deferred(ModelName("net"), "\N{LATIN SMALL LETTER E WITH ACUTE} " * 100, None)
        return Job(JobId("3"), "prewarm", JobState.DONE, datetime.now(UTC), report=PrewarmReport(deferred=(late,)))

    service = Service()
    for asks in ("job", "prewarm"):
        monkeypatch.setattr(service, asks, said)
    routes = HostRoutes(cast("HostService", service), "1", ConnectionLimits(), admin=True)
    headers = [(b"accept", b"text/plain"), (b"xpucached-look", b"plain,190")]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers, "state": {"peer": Peer(1, 0, 0)}}

    async def answer(asked: Request[object]) -> str:
        row = replace(next(one for one in host_requests.ENDPOINTS if one.request is type(asked)), method="POST")
        return (await routes._respond(row, asked, HttpRequest(scope), "")).headers["content-type"]

    job = JobId("3")
    asked = (requests.GetJob(id=job), requests.WaitJob(id=job), requests.PrewarmModels(models=(ModelName("net"),)))
    assert [asyncio.run(answer(one)) for one in asked] == ["application/json"] * 3


def test_what_no_worker_answers_is_not_found() -> None:
    routes = HostRoutes(cast("HostService", Service()), "1", ConnectionLimits(), admin=True)
    places = {"user": "alice", "rest": "nothing"}
    scope = {"type": "http", "method": "GET", "path": "/v1/users/alice/nothing", "headers": [], "path_params": places}
    answer = asyncio.run(routes._pass_on(HttpRequest(scope)))
    assert answer.status_code == 404
    assert b"there is nothing at /v1/users/alice/nothing" in bytes(answer.body)
