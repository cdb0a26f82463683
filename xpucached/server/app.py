"""Door: the one way of a request, to either daemon: find its row, read it, see who may, do it, and write the answer."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import re
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, cast

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router

from xpucached import answers, codec
from xpucached.api import endpoints, intake
from xpucached.api.endpoints import VERSION, Endpoint
from xpucached.errors import (
    Busy,
    Conflict,
    Denied,
    HostError,
    NotFound,
    RequestError,
    TooLarge,
    Unavailable,
    XpucachedError,
)
from xpucached.incidents import unexpected
from xpucached.messages import Json
from xpucached.server.connection import ConnectionLimits, Peer, refusal_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from starlette.types import Receive, Scope, Send

    Rows = Mapping[str, Endpoint]

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
    TooLarge: 502,
    Busy: 503,
    Unavailable: 503,
}
# Of a socket there is no port: who names one came by TCP.  Some clients name the socket's path, percent-encoded, which
# no browser takes for a host.
_LOCALHOST: Final = re.compile(r"(?:localhost|%2F[\w.~%-]*)?", re.IGNORECASE | re.ASCII)
_SITES: Final = "sec-fetch-"
CLOSE: Final = {"Connection": "close"}


def by_path(table: Iterable[Endpoint]) -> Mapping[str, Rows]:
    """Return the rows of each path by their methods."""
    paths: dict[str, dict[str, Endpoint]] = {}
    for row in table:
        paths.setdefault(row.path, {})[row.method] = row
    return paths


class HttpApplication(ABC):
    """What a daemon answers, as an ASGI application."""

    def __init__(self, table: Iterable[Endpoint], limits: ConnectionLimits, *further: Route) -> None:
        self._limits = limits
        self._stopping = asyncio.Event()
        # One route per path that takes every method, so that a wrong one is refused in our own words.
        routes = [Route(path, Handler(functools.partial(self._answer, rows))) for path, rows in by_path(table).items()]
        # Not starlette's `Starlette`, whose pages for errors take memory and are never shown.
        default = Handler(self._not_found)
        self.application = Router([*routes, *further], redirect_slashes=False, default=default)

    def stop(self) -> None:
        """End the streams and the waits."""
        self._stopping.set()

    def _check_origin(self, request: Request) -> None:
        """Raise `Denied` for what comes by way of a browser."""
        check_origin(request)

    async def _not_found(self, request: Request) -> Response:
        """Say that there is nothing."""
        message = f"there is nothing at {request.scope['path'][:200]}"
        return refusal(404, NotFound.code, message, "GET /v1/openapi.json lists every path", headers=CLOSE)

    @abstractmethod
    def _admit(self, row: Endpoint, peer: Peer) -> None:
        """Raise `Denied` for who may not do this, whatever exactly it is; it is read only then."""

    @abstractmethod
    async def _respond(self, row: Endpoint, asked: endpoints.Request[object], request: Request, user: str) -> Response:
        """See who may, and answer.  ``user`` is whose worker shall answer instead."""

    async def _answer(
        self, rows: Rows, request: Request, places: Mapping[str, str] | None = None, user: str = ""
    ) -> Response:
        try:
            # What HEAD gets is what GET would get; uvicorn leaves the body out.
            row = rows.get("GET" if request.method == "HEAD" else request.method)
            if row is None:
                return wrong_method(request, rows)
            # First of all the body: to refuse without having read it, we would have to hang up on the client.
            body = await read_body(row, request, self._limits)
            self._check_origin(request)
            self._admit(row, request.state.peer)
            query = cast("bytes", request.scope["query_string"]).decode("latin-1")
            placeholders = cast("Mapping[str, str]", request.path_params) if places is None else places
            asked = intake.read(row, placeholders, query, body)
            return await self._respond(row, asked, request, user)
        except XpucachedError as error:
            return refuse(error)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:  # noqa: BLE001 - one answer that fails is no reason to fail the others
            return unanswered(request, error)


async def done(row: Endpoint, request: Request, call: Awaitable[object]) -> object:
    """Return what the call gives.  A change is brought to its end even if nobody waits for the answer any more."""
    return await (unless_gone(request, call) if row.method == "GET" else call)


def respond(row: Endpoint, value: object, request: Request) -> Response:
    """Write an answer as JSON, or as text for who asks for that; ``Xpucached-Look`` says in which form."""
    if "text/plain" in request.headers.get("accept", ""):
        text = answers.written(row.request, value, request.headers.get("xpucached-look", ""), datetime.now(UTC))
        if text is not None:
            # There are names of files that are no UTF-8.
            content = f"{text}\n".encode("utf-8", "backslashreplace") if text else b""
            return Response(content, row.status, media_type="text/plain")
    return written(row, codec.to_json(value))


def written(row: Endpoint, data: Json, headers: Mapping[str, str] | None = None) -> Response:
    """Write an answer."""
    headers = dict(headers or {})
    if row.location is not None and isinstance(data, dict):
        headers["Location"] = row.location.format_map(data)
    content = codec.dumps({"api": VERSION, "data": data})
    return Response(content, row.status, headers, "application/json")


def passed_on(row: Endpoint, data: bytes) -> Response:
    """Answer with what is written already."""
    return Response(b'{"api":%d,"data":%b}' % (VERSION, data), row.status, media_type="application/json")


def tagged(row: Endpoint, value: object, request: Request) -> Response:
    """Write an answer with an ``ETag``, which stays the same while all but ``at`` does; 304 for who has it already."""
    data = codec.to_json(value)
    lasting = {name: one for name, one in data.items() if name != "at"} if isinstance(data, dict) else data
    tag = f'W/"{hashlib.blake2b(codec.dumps(lasting), digest_size=12).hexdigest()}"'
    known = request.headers.get("if-none-match", "")
    if tag in (one.strip() for one in known.split(",")):
        return Response(status_code=304, headers={"ETag": tag})
    return written(row, data, {"ETag": tag})


async def read_body(row: Endpoint, request: Request, limits: ConnectionLimits) -> bytes:
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


async def unless_gone(request: Request, call: Awaitable[object]) -> object:
    """Return what the call gives; end it if the client hangs up."""
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


def check_origin(
    request: Request,
    hosts: re.Pattern[str] = _LOCALHOST,
    expected: str = "the Host header must be localhost without a port, or empty",
    hint: str = "curl --unix-socket PATH http://localhost/v1/status",
) -> None:
    """Refuse what comes through a browser; ``hosts`` are the names by which we are asked."""
    # No browser reaches a unix socket by itself; one that comes through a proxy has no business here.  To a name that
    # was made to mean this host it sends no Sec-Fetch, and with a GET no Origin: then the Host tells.
    if "origin" in request.headers or any(name.startswith(_SITES) for name in request.headers):
        message = "requests from web pages are not answered"
        raise Denied(message)
    if not hosts.fullmatch(request.headers.get("host", "")):
        raise Denied(expected, hint=hint)


def unanswered(request: Request, error: Exception) -> Response:
    """Answer that this request cannot be answered, for a reason that nobody expected."""
    where = f"while answering: {request.method} {request.scope['path']}"
    return refuse(unexpected(log, where, error, affected="this request was not answered, others are"))


def refuse(error: XpucachedError) -> Response:
    """Answer with what was refused."""
    status = next((_STATUSES[kind] for kind in type(error).__mro__ if kind in _STATUSES), 500)
    return refusal(status, error.code, error.message, error.hint)


def refusal(status: int, code: str, message: str, hint: str = "", headers: Mapping[str, str] | None = None) -> Response:
    """Answer with a code and a sentence."""
    # Of these we have not read what was sent, so what comes next could be anything.
    close = CLOSE if status in {405, 408, 413} else {}
    return Response(refusal_bytes(code, message, hint), status, {**close, **(headers or {})}, "application/json")


def wrong_method(request: Request, rows: Mapping[str, Endpoint]) -> Response:
    """Return which methods there are."""
    known = ", ".join(sorted({*rows, *(["HEAD"] if "GET" in rows else [])}))
    message = f"{request.method[:20]} does not work here; these do: {known}"
    return refusal(405, RequestError.code, message, headers={"Allow": known})
