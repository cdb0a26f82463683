"""Door: from the table in `api` to calls of the service, and from values and refusals to answers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, assert_never, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from xpucached import api, render
from xpucached.api import codec, host_requests, intake, openapi
from xpucached.domain.jobs import Job
from xpucached.domain.models import ModelStatus
from xpucached.domain.queries import EntryPage
from xpucached.domain.status import Status
from xpucached.errors import Busy, Conflict, Denied, HostError, NotFound, RequestError, Unavailable, XpucachedError
from xpucached.incidents import unexpected
from xpucached.render.text import TextStyle
from xpucached.server.connection import ConnectionLimits, Peer, refusal_bytes
from xpucached.server.redact import redact, redact_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from xpucached.domain.jobs import Event
    from xpucached.server import RequestHandlers

log = logging.getLogger(__name__)


class _TooLarge(RequestError):
    """The body is too large."""


class _TooSlow(RequestError):
    """The body does not arrive."""


_STATUSES: Final[Mapping[type[XpucachedError], int]] = {
    _TooLarge: 413,
    _TooSlow: 408,
    RequestError: 400,
    Denied: 403,
    NotFound: 404,
    Conflict: 409,
    HostError: 409,
    Busy: 503,
    Unavailable: 503,
}
_LOCALHOST: Final = re.compile(r"(?:localhost(?::\d{1,5})?)?", re.IGNORECASE)
_CLOSE: Final = {"Connection": "close"}


class Routes:
    """Everything that is answered, as an ASGI application."""

    def __init__(
        self,
        service: RequestHandlers,
        allowed: Callable[[int, api.Right], bool],
        version: str,
        limits: ConnectionLimits,
        tends: Callable[[int], bool] | None = None,
    ) -> None:
        """``tends`` tells who may do what `host_requests.is_tending` names, though nothing else."""
        self._service = service
        self._allowed = allowed
        self._tends = tends or (lambda _uid: False)
        self.last_asked = -math.inf
        """When somebody last asked for something that did not only look in, by the loop's clock."""
        self._version = version
        self._limits = limits
        self._stopping = asyncio.Event()
        paths: dict[str, dict[str, api.Endpoint]] = {}
        for row in api.ENDPOINTS:
            paths.setdefault(row.path, {})[row.method] = row
        self.application = Starlette(
            routes=[
                # One route per path that takes every method, so that a wrong one is refused in our own words.
                Route(path, Handler(functools.partial(self._answer, rows)))
                for path, rows in paths.items()
            ],
            exception_handlers={HTTPException: not_found},
        )
        self.application.router.redirect_slashes = False

    def stop(self) -> None:
        """End the streams and the waits."""
        self._stopping.set()

    async def _answer(self, rows: Mapping[str, api.Endpoint], request: Request) -> Response:
        try:
            # What HEAD gets is what GET would get; uvicorn leaves the body out.
            row = rows.get("GET" if request.method == "HEAD" else request.method)
            if row is None:
                return wrong_method(request, rows)
            return await self._perform(row, request)
        except XpucachedError as error:
            return refuse(error)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:  # noqa: BLE001 - one answer that fails is no reason to fail the others
            return unanswered(request, error)

    async def _perform(self, row: api.Endpoint, request: Request) -> Response:
        peer: Peer = request.state.peer
        # First of all the body: to refuse without having read it, we would have to hang up on the client.
        body = await read_body(row, request, self._limits)
        check_origin(request)
        tends = self._tends(peer.uid)
        allowed = self._allowed(peer.uid, row.right)
        if not (allowed or tends):
            raise _denied(row, peer)
        query = cast("bytes", request.scope["query_string"]).decode("latin-1")
        asked = intake.read(row, cast("Mapping[str, str]", request.path_params), query, body)
        if not allowed and not host_requests.is_tending(asked):
            raise _denied(row, peer)
        if allowed or row.right is api.Right.CHANGE:
            self.last_asked = asyncio.get_running_loop().time()
        if isinstance(asked, api.GetOpenApi):
            return Response(await asyncio.to_thread(self._openapi), media_type="application/json")
        if isinstance(asked, api.ListEvents) and asked.follow and request.method == "GET":
            private = self._allowed(peer.uid, api.Right.CHANGE)
            return self._stream(asked.since, cast("Callable[[], None]", request.state.abort), private=private)
        # A change is brought to its end even if nobody waits for the answer any more.
        call = self._call(cast("api.AnyRequest", asked))
        value = await (unless_gone(request, call) if row.method == "GET" else call)
        shown = _shown(asked, value, private=self._allowed(peer.uid, api.Right.CHANGE))
        if isinstance(shown, Status) and "text/plain" in request.headers.get("accept", ""):
            return _written(shown, request.headers.get("xpucached-look", ""))
        # A page of entries may take a while to write; nobody else should wait for it.
        data = await asyncio.to_thread(codec.to_json, shown) if isinstance(value, EntryPage) else codec.to_json(shown)
        headers = {}
        if row.location is not None and isinstance(data, dict):
            headers["Location"] = row.location.format_map(data)
        content = codec.dumps({"api": api.VERSION, "data": data})
        return Response(content, row.status, headers, "application/json")

    async def _call(self, asked: api.AnyRequest) -> object:  # noqa: C901, PLR0911, PLR0912 - one line per request
        service = self._service
        match asked:
            case api.GetHello():
                return api.Hello(api.VERSION, self._version)
            case api.GetStatus():
                return await service.status()
            case api.ListDevices():
                return await service.devices()
            case api.ListStores():
                return await service.stores()
            case api.ListEntries():
                return await service.entries(asked.query)
            case api.GetEntry():
                return await service.entry(asked.ref)
            case api.ListModels():
                return await service.models()
            case api.GetModel():
                return await service.model(asked.name)
            case api.GetWhy():
                return await service.why(asked.name)
            case api.GetHistory():
                return await service.history(asked.name)
            case api.AddModel():
                return await service.add_model(asked)
            case api.RemoveModel():
                return await service.remove_model(asked.name)  # type: ignore[func-returns-value] # null on the wire
            case api.ListRuns():
                return await service.runs(asked.model, asked.limit)
            case api.PrewarmModels():
                return await service.prewarm(asked)
            case api.EvictEntries():
                return await service.evict(asked)
            case api.ReplayEntries():
                return await service.replay(asked)
            case api.VerifyStores():
                return await service.verify(asked)
            case api.ListTrash():
                return await service.trash()
            case api.RestoreTrash():
                return await service.restore(asked)
            case api.EmptyTrash():
                return await service.empty(asked)
            case api.ScanStores():
                return await service.scan(asked)
            case api.Refresh():
                return await service.look_again()  # type: ignore[func-returns-value] # null on the wire
            case api.ListJobs():
                return await service.jobs()
            case api.GetJob():
                return await service.job(asked.id)
            case api.WaitJob():
                return await self._wait(asked)
            case api.CancelJob():
                return await service.cancel(asked.id)
            case api.ListEvents():
                return await service.events_since(asked.since)
            case api.GetConfig():
                return await service.config()
            case api.GetEnv():
                return await service.env(asked.model)
            case api.GetOpenApi():
                message = "answered before"
                raise AssertionError(message)
            case _ as unreachable:
                assert_never(unreachable)

    async def _wait(self, asked: api.WaitJob) -> Job:
        waiting = asyncio.ensure_future(self._service.wait(asked.id, asked.timeout))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else await self._service.job(asked.id)
        finally:
            for one in (waiting, stopping):
                one.cancel()
            await asyncio.gather(waiting, stopping, return_exceptions=True)

    def _stream(self, since: int, abort: Callable[[], None], *, private: bool) -> Response:
        return StreamingResponse(
            self._lines(since, abort, private=private), media_type="application/x-ndjson", headers=_CLOSE
        )

    async def _lines(self, since: int, abort: Callable[[], None], *, private: bool) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[Event | None] = asyncio.Queue(self._limits.backlog)
        pump = asyncio.create_task(self._pump(since, queue, abort))
        try:
            # At once, so that the client knows that it is connected.
            yield b"\n"
            while True:
                try:
                    async with asyncio.timeout(self._limits.heartbeat):
                        event = await queue.get()
                except TimeoutError:
                    yield b"\n"
                    continue
                if event is None:
                    return
                yield codec.dumps(codec.to_json(event if private else redact(event))) + b"\n"
        finally:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)

    async def _pump(self, since: int, queue: asyncio.Queue[Event | None], abort: Callable[[], None]) -> None:
        """Bring events to one client; one who does not keep up is dropped, and may come back with ``since``."""
        source = asyncio.create_task(self._fill(since, queue))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({source, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if source.done() and not source.cancelled() and (error := source.exception()) is not None:
                if not isinstance(error, TimeoutError):
                    unexpected(log, "while streaming events", error)
                abort()
            try:
                queue.put_nowait(None)
            except asyncio.QueueFull:
                abort()
        finally:
            for one in (source, stopping):
                one.cancel()
            await asyncio.gather(source, stopping, return_exceptions=True)

    async def _fill(self, since: int, queue: asyncio.Queue[Event | None]) -> None:
        events = self._service.subscribe(since)
        async with contextlib.AsyncExitStack() as stack:
            close: Callable[[], Awaitable[None]] | None = getattr(events, "aclose", None)
            if close is not None:
                stack.push_async_callback(close)
            async for event in events:
                # Full means that the client does not read.  Meanwhile nothing is kept for him but what is in the queue.
                async with asyncio.timeout(self._limits.write_time):
                    await queue.put(event)

    @functools.cache  # noqa: B019 - there is one, and it lives as long as the process
    def _openapi(self) -> bytes:
        return codec.dumps(openapi.document(self._version))


async def read_body(row: api.Endpoint, request: Request, limits: ConnectionLimits) -> bytes:
    """Read what came with a request, within the limits."""
    announced = request.headers.get("content-length", "0")
    if row.method != "POST":
        if announced != "0":
            message = "this request takes no body"
            raise _TooLarge(message)
        return b""
    if not announced.isdecimal() or int(announced) > limits.body:
        message = f"the body is larger than {limits.body} bytes"
        raise _TooLarge(message)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_time):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limits.body:
                    message = f"the body is larger than {limits.body} bytes"
                    raise _TooLarge(message)
    except TimeoutError:
        message = "the body did not arrive in time"
        raise _TooSlow(message) from None
    return bytes(body)


class Handler:
    """A handler as an ASGI application: only those get every method of a route."""

    def __init__(self, answer: Callable[[Request], Awaitable[Response]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)


def _denied(row: api.Endpoint, peer: Peer) -> Denied:
    log.info("refused: %s %s for uid %d", row.method, row.path, peer.uid)
    if row.right is api.Right.READ:
        return Denied("what is here is another user's", hint="ask for your own: xpucachectl status")
    message = "you may look, but not change anything here"
    return Denied(message, hint="that is for the daemon's own user and root; start your own: xpucached --user")


async def unless_gone(request: Request, call: Awaitable[object]) -> object:
    """Give what the call gives; end it if the client hangs up."""
    task = asyncio.ensure_future(call)
    gone = asyncio.ensure_future(_hang_up(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def check_origin(request: Request) -> None:
    """Refuse what comes through a browser."""
    # No browser reaches a unix socket by itself; one that comes through a proxy has no business here.
    if "origin" in request.headers:
        message = "requests from web pages are not answered"
        raise Denied(message)
    if not _LOCALHOST.fullmatch(request.headers.get("host", "")):
        message = "the Host header must be localhost or empty"
        raise Denied(message, hint="curl --unix-socket PATH http://localhost/v1/status")


def _written(status: Status, look: str) -> Response:
    """Write the status as xpucachectl does.  ``look`` is ``plain`` or ``colour``, and the terminal's columns if any."""
    how, _, columns = look.partition(",")
    width = int(columns) if columns.strip().isdecimal() and len(columns) < _LONG_NUMBER else None
    text = render.status(status, TextStyle(datetime.now(UTC), width, how.strip() == "colour"))
    return Response(f"{text}\n", media_type="text/plain")


_LONG_NUMBER: Final = 8


def _shown(asked: api.Request[object], value: object, *, private: bool) -> object:
    """Leave out what lists do not show, and what is not for everybody."""
    match value:
        case Status():
            value = codec.brief_status(value)
        case Job():
            value = codec.without_kernels(value)
        case tuple() if isinstance(asked, api.ListModels):
            value = tuple(codec.brief_model(one) for one in cast("tuple[ModelStatus, ...]", value))
        case tuple() if isinstance(asked, api.ListJobs):
            value = tuple(codec.brief_job(one) for one in cast("tuple[Job, ...]", value))
    if private:
        return value
    return redact_settings(cast("Mapping[str, str]", value)) if isinstance(asked, api.GetConfig) else redact(value)


def unanswered(request: Request, error: Exception) -> Response:
    """Answer that this request cannot be answered, for a reason that nobody expected."""
    where = f"while answering: {request.method} {request.url.path}"
    return refuse(unexpected(log, where, error, affected="this request was not answered, others are"))


def refuse(error: XpucachedError) -> Response:
    """Answer with what was refused."""
    status = next((_STATUSES[kind] for kind in type(error).__mro__ if kind in _STATUSES), 500)
    return refusal(status, error.code, error.message, error.hint)


def refusal(status: int, code: str, message: str, hint: str = "", headers: Mapping[str, str] | None = None) -> Response:
    """Answer with a code and a sentence."""
    # Of these we have not read what was sent, so what comes next could be anything.
    close = _CLOSE if status in {405, 408, 413} else {}
    return Response(refusal_bytes(code, message, hint), status, {**close, **(headers or {})}, "application/json")


def wrong_method(request: Request, rows: Mapping[str, api.Endpoint]) -> Response:
    """Say which methods there are."""
    known = ", ".join(sorted({*rows, *(["HEAD"] if "GET" in rows else [])}))
    message = f"{request.method[:20]} does not work here; these do: {known}"
    return refusal(405, RequestError.code, message, headers={"Allow": known})


async def not_found(request: Request, _error: Exception) -> Response:
    """Say that there is nothing."""
    message = f"there is nothing at {request.url.path[:200]}"
    return refusal(404, NotFound.code, message, "GET /v1/openapi.json lists every path", headers=_CLOSE)
