"""`server.app` and `server.routes`: what answers look like, how much is read, and where a long one is written."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from starlette.requests import Request

from tests.support import api_stub
from xpucached import errors
from xpucached.api import looking, requests
from xpucached.api.endpoints import row
from xpucached.domain.jobs import Job, JobState
from xpucached.domain.names import JobId
from xpucached.domain.queries import EntryPage
from xpucached.server import app, routes
from xpucached.server.connection import ConnectionLimits

if TYPE_CHECKING:
    from starlette.types import Message

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
