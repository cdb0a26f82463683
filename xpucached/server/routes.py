"""Door: what a user's daemon answers, from the table in `api` to calls of the service."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from typing import TYPE_CHECKING, Final, cast

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from xpucached import codec
from xpucached.api import endpoints, host_requests, looking, requests
from xpucached.api.endpoints import Endpoint, Right
from xpucached.domain.jobs import Job
from xpucached.domain.models import ModelStatus
from xpucached.domain.queries import EntryPage
from xpucached.domain.status import Status, StatusSummary
from xpucached.errors import Denied
from xpucached.incidents import unexpected
from xpucached.render import metrics
from xpucached.server.app import CLOSE, HttpApplication, done, respond, tagged
from xpucached.server.connection import ConnectionLimits, Peer
from xpucached.server.redact import redact, redact_environment, redact_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from xpucached.domain.jobs import Event
    from xpucached.server.http_listener import RequestHandlers

log = logging.getLogger(__name__)

_FEW: Final = 1000
"""So many things in a list are written at once."""


class Routes(HttpApplication):
    """Everything that a user's daemon answers, as an ASGI application."""

    def __init__(
        self,
        service: RequestHandlers,
        allowed: Callable[[int, Right], bool],
        limits: ConnectionLimits,
        tends: Callable[[int], bool] | None = None,
    ) -> None:
        """``tends`` tells who may do what `host_requests.is_tending` names, though nothing else."""
        super().__init__(requests.ENDPOINTS, limits)
        self._service = service
        self._allowed = allowed
        self._tends = tends or (lambda _uid: False)
        self.last_asked = -math.inf
        """When its user or root last asked for something, or somebody for work, by the loop's clock."""
        self.last_passed_on = -math.inf
        """The same of what the host's daemon passed on for an administrator who looks."""

    def _admit(self, row: Endpoint, peer: Peer) -> None:
        if not (self._allowed(peer.uid, row.right) or self._tends(peer.uid)):
            raise _denied(row, peer)

    async def _respond(self, row: Endpoint, asked: endpoints.Request[object], request: Request, _user: str) -> Response:
        peer: Peer = request.state.peer
        allowed = self._allowed(peer.uid, row.right)
        if not allowed and not host_requests.is_tending(asked):
            raise _denied(row, peer)
        now = asyncio.get_running_loop().time()
        if allowed or (row.right is Right.CHANGE and not host_requests.is_polling(asked)):
            self.last_asked = now
        elif not host_requests.is_polling(asked):
            self.last_passed_on = now
        private = self._allowed(peer.uid, Right.CHANGE)
        if isinstance(asked, looking.ListEvents) and asked.follow and request.method == "GET":
            return self._stream(asked.since, cast("Callable[[], None]", request.state.abort), private=private)
        if isinstance(asked, looking.GetMetrics) and "openmetrics" in request.headers.get("accept", ""):
            asked = looking.GetMetrics(format=looking.MetricsFormat.OPENMETRICS)
        call = self._wait(asked) if isinstance(asked, requests.WaitJob) else self._service.answer(asked)
        value = await done(row, request, call)
        if isinstance(asked, looking.GetMetrics) and request.headers.get("accept", "") != "application/json":
            media = metrics.OPENMETRICS if asked.format is looking.MetricsFormat.OPENMETRICS else metrics.TEXT
            return Response(cast("str", value).encode(), headers={"Content-Type": media})
        if isinstance(asked, requests.GetOpenApi):
            # The one answer without an envelope, because generators expect the bare document.
            return Response(cast("bytes", value), media_type="application/json")

        if isinstance(asked, looking.GetOverview) and "text/plain" not in request.headers.get("accept", ""):
            return await asyncio.to_thread(tagged, row, _shown(asked, value, private=private), request)

        def write() -> Response:
            return respond(row, _shown(asked, value, private=private), request)

        return await asyncio.to_thread(write) if _is_long(value) else write()

    async def _wait(self, asked: requests.WaitJob) -> object:
        waiting = asyncio.ensure_future(self._service.answer(asked))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else await self._service.answer(requests.GetJob(id=asked.id))
        finally:
            for one in (waiting, stopping):
                one.cancel()
            await asyncio.gather(waiting, stopping, return_exceptions=True)

    def _stream(self, since: int, abort: Callable[[], None], *, private: bool) -> Response:
        return StreamingResponse(
            self._lines(since, abort, private=private), media_type="application/x-ndjson", headers=CLOSE
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


def _denied(row: Endpoint, peer: Peer) -> Denied:
    log.info("refused: %s %s for uid %d", row.method, row.path, peer.uid)
    if row.right is Right.READ:
        return Denied("what is here is another user's", hint="ask for your own: xpucachectl status")
    message = "you may look, but not change anything here"
    return Denied(message, hint="that is for the daemon's own user and root; start your own: xpucached --user")


def _is_long(value: object) -> bool:
    """Return whether an answer may take a while to write: nobody else should wait for it."""
    if isinstance(value, tuple):
        return len(value) > _FEW
    return isinstance(value, EntryPage) or (isinstance(value, Job) and (value.report or value.mended) is not None)


def _shown(asked: endpoints.Request[object], value: object, *, private: bool) -> object:
    """Leave out what lists do not show, and what is not for everybody."""
    match value:
        case Status():
            value = codec.brief_status(value)
        case Job():
            value = codec.without_kernels(value)
        case tuple() if isinstance(asked, requests.ListModels):
            value = tuple(codec.brief_model(one) for one in cast("tuple[ModelStatus, ...]", value))
        case tuple() if isinstance(asked, requests.ListJobs):
            value = tuple(codec.brief_job(one) for one in cast("tuple[Job, ...]", value))
    if isinstance(asked, requests.GetSummary):
        # Its sentence may quote a problem whose words are the owner's alone.
        return StatusSummary.of(cast("Status", value if private else redact(value)))
    if private:
        return value
    if isinstance(asked, requests.GetEnv):
        return redact_environment(cast("Mapping[str, str]", value))
    return redact_settings(cast("Mapping[str, str]", value)) if isinstance(asked, requests.GetConfig) else redact(value)
