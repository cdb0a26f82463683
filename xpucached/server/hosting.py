"""Door: what is asked of the host's daemon, as answers.  Which of its two sockets one came through says what one may.

Who could open the administrators' socket is one: its mode is the check.  Through the public one each sees himself.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route

from xpucached import api
from xpucached.api import codec, host_requests, intake
from xpucached.errors import Denied, NotFound, XpucachedError
from xpucached.server.connection import ConnectionLimits, Peer
from xpucached.server.public_thread import here
from xpucached.server.routes import (
    Handler,
    check_origin,
    not_found,
    read_body,
    refusal,
    refuse,
    unanswered,
    unless_gone,
    wrong_method,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from xpucached.domain.jobs import Job
    from xpucached.domain.names import JobId, ModelName
    from xpucached.domain.users import HostStatus, UserSocket

log = logging.getLogger(__name__)

_FEATURES = ("host", "prewarm", "refresh", "users", "wake")


class HostService(Protocol):
    """What these answers need from below.  Refusals are raised as `XpucachedError`."""

    def find(self, name: str | int | None, caller: int) -> int:
        """Give the number of a user who is looked after; a number is that one, whatever others are called."""

    def status(self, only: int | None) -> HostStatus:
        """Tell how the host stands."""

    def look(self) -> None:
        """Hear that something may have changed."""

    def step_aside(self, uid: int) -> None:
        """Hear that a user runs a daemon himself."""

    def meaning(self, names: tuple[ModelName, ...], /) -> tuple[int, tuple[ModelName, ...]]:
        """Give the user whose models these are, and what that user calls them."""

    def own(self, name: ModelName, uid: int, /) -> ModelName:
        """Give what a user calls a model."""

    async def wake(self, uid: int) -> UserSocket:
        """See that a user's worker answers."""

    async def prewarm(self, uid: int, request: api.PrewarmModels) -> Job:
        """Let a worker warm models."""

    async def job(self, uid: int, request: api.GetJob | api.WaitJob) -> Job:
        """Give a worker's job."""

    async def tend(self, uid: int, request: api.Request[object], *, admin: bool) -> api.Json:
        """Pass a request on to a worker; for an administrator the answer may be longer."""

    def meant(self, name: JobId) -> tuple[int, JobId]:
        """Give the user and the job that a job's name here means."""


class HostRoutes:
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
        self._run = run
        self._host_daemon = host_daemon
        self._version = version
        self._limits = limits
        self._admin = admin
        self._stopping = asyncio.Event()
        paths: dict[str, dict[str, api.Endpoint]] = {}
        for row in host_requests.ENDPOINTS:
            paths.setdefault(row.path, {})[row.method] = row
        routes = [Route(path, Handler(functools.partial(self._answer, rows))) for path, rows in paths.items()]
        self._theirs: dict[str, dict[str, api.Endpoint]] = {}
        for row in api.ENDPOINTS:
            self._theirs.setdefault(row.path, {})[row.method] = row
        self._inner = [Route(path, lambda _: None) for path in self._theirs]
        routes.append(Route(f"{host_requests.USERS}{{user}}", Handler(self._pass_on)))
        routes.append(Route(f"{host_requests.USERS}{{user}}/{{rest:path}}", Handler(self._pass_on)))
        self.application = Starlette(routes=routes, exception_handlers={HTTPException: not_found})
        self.application.router.redirect_slashes = False

    def stop(self) -> None:
        """End the waits."""
        self._stopping.set()

    async def _answer(self, rows: Mapping[str, api.Endpoint], request: Request) -> Response:
        row = rows.get("GET" if request.method == "HEAD" else request.method)
        if row is None:
            return wrong_method(request, rows)
        return await self._guarded(row, request, cast("Mapping[str, str]", request.path_params), None)

    async def _pass_on(self, request: Request) -> Response:
        """Find what is asked of a user's worker in the worker's own table."""
        rest = cast("str", request.path_params.get("rest", ""))
        scope = {"type": "http", "path": f"/v1/{rest}".rstrip("/"), "method": "GET", "root_path": ""}
        for route in self._inner:
            match, child = route.matches(scope)
            if match is Match.NONE:
                continue
            rows = self._theirs[route.path]
            row = rows.get("GET" if request.method == "HEAD" else request.method)
            if row is None:
                return wrong_method(request, rows)
            places = cast("Mapping[str, str]", child["path_params"])
            return await self._guarded(row, request, places, cast("str", request.path_params["user"]))
        return refusal(404, NotFound.code, f"there is nothing at {request.url.path[:200]}")

    async def _guarded(
        self, row: api.Endpoint, request: Request, places: Mapping[str, str], user: str | None
    ) -> Response:
        try:
            body = await read_body(row, request, self._limits)
            check_origin(request)
            query = cast("bytes", request.scope["query_string"]).decode("latin-1")
            asked = intake.read(row, places, query, body)
            peer: Peer = request.state.peer
            call = self._run(self._tend(asked, user, peer) if user is not None else self._call(asked, peer))
            data = await (unless_gone(request, call) if row.method == "GET" else call)
        except XpucachedError as error:
            return refuse(error)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:  # noqa: BLE001 - one answer that fails is no reason to fail the others
            return unanswered(request, error)
        content = codec.dumps({"api": api.VERSION, "data": cast("api.Json", data)})
        return Response(content, row.status, media_type="application/json")

    def _trusts(self, peer: Peer) -> bool:
        return self._admin or peer.uid in {0, os.getuid()}

    def _check(self, uid: int, peer: Peer) -> None:
        if uid != peer.uid and not self._trusts(peer):
            raise _denied()

    async def _tend(self, asked: api.Request[object], user: str, peer: Peer) -> object:
        return await self._host_daemon.tend(self._find(user, peer), asked, admin=self._trusts(peer))

    def _find(self, user: str, peer: Peer) -> int:
        """Give the number of who is meant; for who may only ask for himself others are not there, nor who is not."""
        try:
            uid = self._host_daemon.find(user, peer.uid)
        except XpucachedError:
            if self._trusts(peer):
                raise
            raise _denied() from None
        self._check(uid, peer)
        return uid

    async def _call(self, asked: api.Request[object], peer: Peer) -> object:
        host_daemon = self._host_daemon
        match asked:
            case api.GetHello():
                return codec.to_json(api.Hello(api.VERSION, self._version, _FEATURES))
            case host_requests.GetHost():
                return codec.to_json(host_daemon.status(None if self._trusts(peer) else peer.uid))
            case host_requests.WakeWorker():
                uid = host_daemon.find(None, peer.uid) if asked.user is None else self._find(asked.user, peer)
                return codec.to_json(await host_daemon.wake(uid))
            case host_requests.StepAside():
                return host_daemon.step_aside(host_daemon.find(None, peer.uid))  # type: ignore[func-returns-value] # null on the wire
            case api.Refresh():
                if not self._trusts(peer):
                    raise _denied()
                return host_daemon.look()  # type: ignore[func-returns-value] # null on the wire
            case api.PrewarmModels():
                uid, meant = self._meant(asked, peer)
                return codec.to_json(await host_daemon.prewarm(host_daemon.find(uid, peer.uid), meant))
            case api.GetJob() | api.WaitJob():
                uid, job = host_daemon.meant(asked.id)
                self._check(uid, peer)
                inner = api.GetJob(id=job) if isinstance(asked, api.GetJob) else _waiting(asked, job)
                return codec.to_json(await host_daemon.job(host_daemon.find(uid, peer.uid), inner))
            case _:
                message = f"no answer to {type(asked).__name__}"
                raise AssertionError(message)

    def _meant(self, asked: api.PrewarmModels, peer: Peer) -> tuple[int, api.PrewarmModels]:
        """Give whose worker this is for, and what it is asked."""
        if not self._trusts(peer):
            # Who asks for himself asks his own worker, whatever the name: what others have, no answer depends on.
            return peer.uid, replace(asked, models=tuple(self._host_daemon.own(one, peer.uid) for one in asked.models))
        if not asked.models:
            raise Denied("the host's daemon warms models by name", hint="say whose: --of USER, or which: prewarm NAME")
        uid, models = self._host_daemon.meaning(asked.models)
        return uid, replace(asked, models=models)


def _waiting(asked: api.WaitJob, job: JobId) -> api.WaitJob:
    return api.WaitJob(id=job, timeout=asked.timeout)


def _denied() -> Denied:
    message = "that is for root and administrators"
    return Denied(message, hint="administrators are in the group xpucached-admin; for yourself leave out --of")
