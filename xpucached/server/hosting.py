"""Door: what is asked of the host's daemon, as answers.  Which of its two sockets one came through says what one may.

Who could open the administrators' socket is one: its mode is the check.  Through the public one each sees himself.
"""

from __future__ import annotations

import logging
import os
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, cast

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from xpucached import codec
from xpucached.api import endpoints, host_requests, requests
from xpucached.api.endpoints import VERSION, Endpoint
from xpucached.domain.host_overview import host_overview
from xpucached.domain.jobs import Job
from xpucached.errors import Denied, NotFound, XpucachedError
from xpucached.server.app import Handler, HttpApplication, by_path, done, passed_on, refusal, respond, tagged, written
from xpucached.server.connection import ConnectionLimits, Peer
from xpucached.server.public_thread import here

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from xpucached.domain.names import JobId, ModelName
    from xpucached.domain.users import HostStatus, UserSocket

log = logging.getLogger(__name__)

_FEATURES = ("host", "prewarm", "refresh", "users", "wake")


class HostService(Protocol):
    """What these answers need from below.  Refusals are raised as `XpucachedError`."""

    def find(self, name: str | int | None, caller: int) -> int:
        """Return the number of a user who is looked after; a number is that one, whatever others are called."""

    def status(self, only: int | None) -> HostStatus:
        """Return how the host stands."""

    def look(self) -> None:
        """Hear that something may have changed."""

    def step_aside(self, uid: int) -> None:
        """Hear that a user runs a daemon of their own."""

    async def meet(self) -> None:
        """See who is here, and whose models are whose."""

    def meaning(self, names: tuple[ModelName, ...], /) -> tuple[int, tuple[ModelName, ...]]:
        """Return the user whose models these are, and what that user calls them."""

    def own(self, name: ModelName, uid: int, /) -> ModelName:
        """Return what a user calls a model."""

    async def wake(self, uid: int) -> UserSocket:
        """See that a user's worker answers."""

    async def prewarm(self, uid: int, request: requests.PrewarmModels) -> Job:
        """Let a worker warm models."""

    async def job(self, uid: int, request: requests.GetJob | requests.WaitJob) -> Job:
        """Return a worker's job."""

    async def tend(self, uid: int, request: endpoints.Request[object], *, admin: bool) -> bytes:
        """Pass a request on to a worker; gives its answer as JSON, which for an administrator may be longer."""

    def meant(self, name: JobId) -> tuple[int, JobId]:
        """Return the user and the job that a job's name here means."""


class HostRoutes(HttpApplication):
    """Everything that the host's daemon answers, as an ASGI application."""

    def __init__(
        self,
        host_daemon: HostService,
        version: str,
        limits: ConnectionLimits,
        *,
        admin: bool,
        run: Callable[[Coroutine[None, None, object]], Awaitable[object]] = here,
    ) -> None:
        """``run`` does what is asked in the host's daemon's own loop, where that is another one."""
        users = (f"{host_requests.USERS}{{user}}", f"{host_requests.USERS}{{user}}/{{rest:path}}")
        super().__init__(host_requests.ENDPOINTS, limits, *(Route(path, Handler(self._pass_on)) for path in users))
        self._run = run
        self._host_daemon = host_daemon
        self._version = version
        self._admin = admin
        self._theirs = by_path(requests.ENDPOINTS)
        self._inner = [Route(path, lambda _: None) for path in self._theirs]

    def _admit(self, row: Endpoint, peer: Peer) -> None:
        """Everybody who is looked after may ask; what for, is seen when it is read."""

    async def _pass_on(self, request: Request) -> Response:
        """Find what is asked of a user's worker in the worker's own table."""
        rest = cast("str", request.path_params.get("rest", ""))
        scope = {"type": "http", "path": f"/v1/{rest}".rstrip("/"), "method": "GET", "root_path": ""}
        for route in self._inner:
            match, child = route.matches(scope)
            if match is not Match.NONE:
                places = cast("Mapping[str, str]", child["path_params"])
                user = cast("str", request.path_params["user"])
                return await self._answer(self._theirs[route.path], request, places, user)
        return refusal(404, NotFound.code, f"there is nothing at {request.scope['path'][:200]}")

    async def _respond(self, row: Endpoint, asked: endpoints.Request[object], request: Request, user: str) -> Response:
        peer: Peer = request.state.peer
        call = self._tend(asked, user, peer) if user else self._call(asked, peer)
        # Where the worker would have it is not where it can be found here.
        row = replace(row, location=None) if user else row
        value = await done(row, request, self._run(call))
        if isinstance(asked, host_requests.GetHostOverview) and "text/plain" not in request.headers.get("accept", ""):
            return tagged(row, value, request)
        # How long a text of what a worker says takes, and how large it is, its user would choose: who asked writes it.
        if isinstance(value, bytes):
            return passed_on(row, value)
        return written(row, codec.to_json(value)) if isinstance(value, Job) else respond(row, value, request)

    def _trusts(self, peer: Peer) -> bool:
        return self._admin or peer.uid in {0, os.getuid()}

    def _check(self, uid: int, peer: Peer) -> None:
        if uid != peer.uid and not self._trusts(peer):
            raise _denied()

    async def _tend(self, asked: endpoints.Request[object], user: str, peer: Peer) -> object:
        return await self._host_daemon.tend(await self._look_for(user, peer), asked, admin=self._trusts(peer))

    async def _look_for(self, user: str, peer: Peer) -> int:
        """Return the number of who is meant; of those who may ask for others it is heard that an account may be new."""
        try:
            return self._find(user, peer)
        except (Denied, NotFound):
            if not self._trusts(peer):
                raise
            await self._host_daemon.meet()
            return self._find(user, peer)

    def _find(self, user: str, peer: Peer) -> int:
        """Return the number of who is meant; for who may only ask for himself others are not there, nor who is not."""
        try:
            uid = self._host_daemon.find(user, peer.uid)
        except XpucachedError:
            if self._trusts(peer):
                raise
            raise _denied() from None
        self._check(uid, peer)
        return uid

    async def _call(self, asked: endpoints.Request[object], peer: Peer) -> object:
        host_daemon = self._host_daemon
        match asked:
            case requests.GetHello():
                return requests.Hello(VERSION, self._version, _FEATURES)
            case host_requests.GetHost():
                return host_daemon.status(None if self._trusts(peer) else peer.uid)
            case host_requests.GetHostOverview():
                status = host_daemon.status(None if self._trusts(peer) else peer.uid)
                return host_overview(status, socket.gethostname(), datetime.now(UTC))
            case host_requests.WakeWorker():
                uid = host_daemon.find(None, peer.uid) if asked.user is None else await self._look_for(asked.user, peer)
                return await host_daemon.wake(uid)
            case host_requests.StepAside():
                return host_daemon.step_aside(host_daemon.find(None, peer.uid))  # type: ignore[func-returns-value] # null on the wire
            case requests.Refresh():
                if not self._trusts(peer):
                    raise _denied()
                return host_daemon.look()  # type: ignore[func-returns-value] # null on the wire
            case requests.PrewarmModels():
                try:
                    uid, meant = self._meant(asked, peer)
                except NotFound:
                    # Its file may be newer than the last look.
                    await host_daemon.meet()
                    uid, meant = self._meant(asked, peer)
                return await host_daemon.prewarm(host_daemon.find(uid, peer.uid), meant)
            case requests.GetJob() | requests.WaitJob():
                uid, job = host_daemon.meant(asked.id)
                self._check(uid, peer)
                inner = requests.GetJob(id=job) if isinstance(asked, requests.GetJob) else _waiting(asked, job)
                return await host_daemon.job(host_daemon.find(uid, peer.uid), inner)
            case _:
                message = f"no answer to {type(asked).__name__}"
                raise AssertionError(message)

    def _meant(self, asked: requests.PrewarmModels, peer: Peer) -> tuple[int, requests.PrewarmModels]:
        """Return whose worker this is for, and what it is asked."""
        if not self._trusts(peer):
            # Who asks for himself asks his own worker, whatever the name: what others have, no answer depends on.
            return peer.uid, replace(asked, models=tuple(self._host_daemon.own(one, peer.uid) for one in asked.models))
        if not asked.models:
            raise Denied("the host's daemon warms models by name", hint="say whose: --of USER, or which: prewarm NAME")
        uid, models = self._host_daemon.meaning(asked.models)
        return uid, replace(asked, models=models)


def _waiting(asked: requests.WaitJob, job: JobId) -> requests.WaitJob:
    return requests.WaitJob(id=job, timeout=asked.timeout)


def _denied() -> Denied:
    message = "that is for root and administrators"
    return Denied(message, hint="administrators are in the group xpucached-admin; for yourself leave out --of")
