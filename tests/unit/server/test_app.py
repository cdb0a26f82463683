"""`server.app` and `server.routes`: what answers look like, how much is read, and where a long one is written."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, cast

import pytest
from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import ClientDisconnect, Request

from tests.support import api_stub
from xpucached import errors
from xpucached.api import looking, requests
from xpucached.api.endpoints import row
from xpucached.domain.jobs import Event, Job, JobState
from xpucached.domain.names import JobId
from xpucached.domain.queries import EntryPage
from xpucached.server import app, routes
from xpucached.server.connection import ConnectionLimits, Peer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Message

    from xpucached.server.http_listener import RequestHandlers

JOB = Job(id=JobId("3"), kind="scan", state=JobState.DONE, created=api_stub.NOW)
LIMITS = ConnectionLimits(body=9)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.RequestError, 400),
        (errors.Denied, 403),
        (errors.NotFound, 404),
        (errors.Conflict, 409),
        (errors.HostError, 409),
        (errors.TooLarge, 502),
        (errors.Busy, 503),
        (errors.Unavailable, 503),
        (errors.Restarted, 503),
        (errors.XpucachedError, 500),
        (app._TooLarge, 413),
        (app._TooSlow, 408),
    ],
)
def test_each_refusal_has_its_status_and_closes_where_not_all_was_read(
    kind: type[errors.XpucachedError], status: int
) -> None:
    answer = app.refuse(kind("so", hint="wait"))
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
    assert (answer.headers.get("connection") == "close") == (status in {408, 413})


def test_a_wrong_method_is_told_shortly_with_the_right_ones() -> None:
    for rows, known in ((("GET", "POST"), "GET, HEAD, POST"), (("DELETE",), "DELETE")):
        table = dict.fromkeys(rows, row(requests.GetHello))
        answer = app.wrong_method(Request({"type": "http", "method": 30 * "X", "headers": []}), table)
        assert (answer.status_code, answer.headers["allow"]) == (405, known)
        assert answer.headers["connection"] == "close"
        assert f'"{20 * "X"} does not work here; these do: {known}"'.encode() in answer.body


def body(method: type[requests.ScanStores | requests.GetHello], *chunks: bytes, length: int) -> bytes:
    """Read a body that comes in these pieces."""
    messages: list[Message] = [{"type": "http.request", "body": one, "more_body": True} for one in chunks]
    messages.append({"type": "http.request", "body": b""})

    async def receive() -> Message:
        return messages.pop(0)

    scope = {"type": "http", "method": "POST", "headers": [(b"content-length", b"%d" % length)]}
    return asyncio.run(app.read_body(row(method), Request(scope, receive), LIMITS))


def test_a_body_is_read_to_its_last_byte_and_no_further_whatever_was_announced() -> None:
    assert body(requests.ScanStores, b"01234", b"5678", length=9) == b"012345678"
    with pytest.raises(app._TooLarge, match="larger than 9 bytes"):
        body(requests.ScanStores, b"01234", b"56789", length=9)
    # What is announced is refused before any of it was read.
    with pytest.raises(app._TooLarge, match="larger than 9 bytes"):
        body(requests.ScanStores, length=10)
    assert body(requests.GetHello, length=0) == b""
    with pytest.raises(app._TooLarge, match="takes no body"):
        body(requests.GetHello, length=1)


def test_where_a_thing_is_that_was_made_is_told_and_else_nothing() -> None:
    made = app.written(row(requests.ScanStores), {"id": "3"}, {"ETag": "x"})
    assert (made.status_code, made.headers["location"], made.headers["etag"]) == (202, "/v1/jobs/3", "x")
    assert "location" not in app.written(row(requests.ScanStores), None).headers
    assert "location" not in app.written(row(requests.GetHello), {"id": "3"}).headers


def test_a_body_that_does_not_say_how_long_it_is_in_digits_is_not_read() -> None:
    for length in (b"-1", b"1.0", b"", "²".encode("latin-1")):
        scope = {"type": "http", "method": "POST", "headers": [(b"content-length", length)]}
        with pytest.raises(app._TooLarge):
            asyncio.run(app.read_body(row(requests.ScanStores), Request(scope), LIMITS))


def test_a_body_that_does_not_come_is_waited_for_so_long() -> None:
    async def receive() -> Message:
        await asyncio.Event().wait()
        return {}

    scope = {"type": "http", "method": "POST", "headers": [(b"content-length", b"1")]}
    with pytest.raises(app._TooSlow, match="did not arrive in time"):
        asyncio.run(app.read_body(row(requests.ScanStores), Request(scope, receive), replace(LIMITS, body_time=0.0)))


def asked_of(**headers: str) -> Request:
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": given})


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"host": "localhost"}, ""),
        ({"host": "LocalHost"}, ""),
        ({"host": ""}, ""),
        ({}, ""),
        ({"host": "localhost:80"}, "without a port"),
        ({"host": "evil.example"}, "without a port"),
        ({"host": "localhost.evil"}, "without a port"),
        ({"host": "localhost", "origin": "http://localhost"}, "web pages"),
        ({"host": "localhost", "sec_fetch_site": "none"}, "web pages"),
        ({"host": "localhost", "sec_fetch_mode": "cors"}, "web pages"),
    ],
)
def test_what_comes_through_a_browser_is_refused(headers: dict[str, str], why: str) -> None:
    with pytest.raises(errors.Denied, match=why) if why else contextlib.nullcontext():
        app.check_origin(asked_of(**headers))


class Stamped(Struct, frozen=True):
    """An answer that tells when it was given."""

    at: int
    what: str


def test_an_answer_is_another_one_when_more_than_its_moment_is() -> None:
    table = row(requests.GetHello)

    def tag(value: object) -> str:
        return app.tagged(table, value, asked_of()).headers["etag"]

    first = app.tagged(table, Stamped(1, "x"), asked_of())
    assert (first.status_code, json.loads(bytes(first.body))["data"]) == (200, {"at": 1, "what": "x"})
    assert tag(Stamped(2, "x")) == tag(Stamped(1, "x")) != tag(Stamped(1, "y"))
    assert tag((1, 2)) != tag((1, 3))
    for known in (tag(Stamped(1, "x")), f'"other", {tag(Stamped(1, "x"))}'):
        again = app.tagged(table, Stamped(3, "x"), asked_of(if_none_match=known))
        assert (again.status_code, again.body, again.headers["etag"]) == (304, b"", tag(Stamped(1, "x")))
    assert app.tagged(table, Stamped(3, "x"), asked_of(if_none_match='"other"')).status_code == 200


def test_who_asks_for_text_gets_text_where_there_is_some() -> None:
    table = row(requests.GetHello)
    text = app.respond(row(requests.ListStores), (), asked_of(accept="text/plain"))
    assert text.headers["content-type"].startswith("text/plain")
    assert app.respond(table, requests.Hello(1, "7"), asked_of()).headers["content-type"] == "application/json"


async def waits_for(end: asyncio.Event, ends: list[str]) -> str:
    try:
        await end.wait()
    except asyncio.CancelledError:
        ends.append("cancelled")
        raise
    return "done"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_who_hangs_up_ends_what_he_asked_and_nothing_that_he_changed(method: str) -> None:
    ends: list[str] = []

    async def hang_up() -> None:
        end = asyncio.Event()
        messages: list[Message] = [{"type": "http.request"}, {"type": "http.disconnect"}]

        async def receive() -> Message:
            return messages.pop(0)

        request = Request({"type": "http", "method": method, "path": "/", "headers": []}, receive)
        asking = asyncio.ensure_future(
            app.done(row(requests.GetHello if method == "GET" else requests.ScanStores), request, waits_for(end, ends))
        )
        for _ in range(10):
            await asyncio.sleep(0)
        end.set()
        if method == "GET":
            with pytest.raises(ClientDisconnect):
                await asking
        else:
            assert await asking == "done"

    asyncio.run(hang_up())
    assert ends == (["cancelled"] if method == "GET" else [])


def test_what_is_answered_while_the_client_waits_comes_and_leaves_nobody_listening() -> None:
    async def answered() -> object:
        async def receive() -> Message:
            await asyncio.Event().wait()
            return {}

        request = Request({"type": "http", "method": "GET", "path": "/", "headers": []}, receive)
        end = asyncio.Event()
        end.set()
        given = await app.unless_gone(request, waits_for(end, []))
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return given

    assert asyncio.run(answered()) == "done"


def test_who_reads_no_more_events_leaves_nobody_who_follows_them() -> None:
    ended: list[str] = []

    class Service:
        async def subscribe(self, _since: int) -> AsyncIterator[Event]:
            try:
                for number in range(3):
                    yield Event(number, api_stub.NOW, "run-finished", "so")
            finally:
                ended.append("followed")

    async def follow() -> None:
        made = routes.Routes(cast("RequestHandlers", Service()), lambda *_: True, LIMITS)
        queue: asyncio.Queue[Event | None] = asyncio.Queue(1)
        filling = asyncio.create_task(made._fill(0, queue))
        while not queue.full():  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0)
        # The second one waits for room.
        await asyncio.sleep(0)
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)
        assert ended == ["followed"]

    asyncio.run(follow())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1", 200),
        ("HEAD", "/v1", 200),
        ("GET", "/v1/", 404),
        ("GET", "/v1/nothing", 404),
        ("DELETE", "/v1", 405),
        ("GET", "/v1/stores?kind=a&kind=b", 400),
    ],
)
def test_each_path_is_answered_by_its_own_words_only(method: str, path: str, status: int) -> None:
    class Service:
        async def answer(self, _asked: object) -> object:
            return requests.Hello(1, "7")

    sent: list[Message] = []

    async def receive() -> Message:
        if not sent:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    place, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "path": place,
        "root_path": "",
        "query_string": query.encode(),
        "headers": [],
        "state": {"peer": Peer(1, 2, 3), "abort": lambda: None},
    }
    made = routes.Routes(cast("RequestHandlers", Service()), lambda *_: True, LIMITS)
    asyncio.run(made.application(scope, receive, send))
    assert sent[0]["status"] == status
    assert (b"connection", b"close") in sent[0]["headers"] or status not in {404, 405}


@pytest.mark.parametrize(
    ("value", "long"),
    [
        (tuple(range(1000)), False),
        (tuple(range(1001)), True),
        (EntryPage((), 0, 0, None), True),
        (JOB, False),
        (replace(JOB, report=api_stub.make_eviction(dry_run=False)), True),
        (replace(JOB, mended=api_stub.make_verification()), True),
        (looking.GetUsage(), False),
    ],
    ids=["few", "many", "page", "job", "report", "mended", "other"],
)
def test_what_may_take_long_to_write_is_known(value: object, *, long: bool) -> None:
    assert routes._is_long(value) is long
