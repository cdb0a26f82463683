"""The server on a real socket: answers, rights, hostile clients, streams, and the making of sockets."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import http.client
import json
import math
import os
import re
import socket
import stat
import subprocess
import sys
import termios
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from starlette.applications import Starlette

from tests.support import histories
from tests.support.api_stub import NASTY, NOW, Running, Standin, make_entry, running
from xpucached import __version__, sockets
from xpucached.api import requests
from xpucached.api.client import Client
from xpucached.api.endpoints import Right
from xpucached.domain.jobs import Event
from xpucached.domain.names import ModelName
from xpucached.domain.stores import Kernel
from xpucached.errors import Denied, RunningError, SettingsError, Unavailable
from xpucached.server import app, http_listener, routes, unix_sockets
from xpucached.server.connection import ConnectionLimits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from xpucached.domain.overview import Overview

HASTY = ConnectionLimits(head_time=0.1, body_time=0.1, idle_time=0.1, write_time=0.2, heartbeat=0.05, stop_time=0.2)


@pytest.fixture
def served(short_dir: Path) -> Iterator[Running]:
    with running(short_dir) as one:
        yield one


@pytest.fixture
def hasty(short_dir: Path) -> Iterator[Running]:
    with running(short_dir, limits=HASTY) as one:
        yield one


def read_all(client: socket.socket) -> bytes:
    """Read until the server closes."""
    received = b""
    while True:
        try:
            chunk = client.recv(65536)
        except ConnectionResetError:
            return received
        if not chunk:
            return received
        received += chunk


def ask(running_: Running, text: bytes) -> tuple[int, dict[str, object]]:
    """Send bytes as they are; give status and body of the answer."""
    with running_.connect() as client:
        # Who is refused at once may find the door closed while he still speaks; the refusal is there to be read.
        with contextlib.suppress(BrokenPipeError):
            client.sendall(text)
        response = http.client.HTTPResponse(client)
        response.begin()
        return response.status, json.loads(response.read())


def get(path: str, *extra: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *extra, "", ""]).encode()


def post(path: str, body: bytes, *extra: str) -> bytes:
    return get(path, f"Content-Length: {len(body)}", *extra, method="POST") + body


def error_of(body: dict[str, object]) -> tuple[str, str]:
    error = body["error"]
    assert isinstance(error, dict)
    assert set(error) == {"code", "message", "hint"}
    return error["code"], error["message"]


# -- answers --------------------------------------------------------------------------------------------------------


def test_an_answer_is_wrapped(served: Running) -> None:
    status, body = ask(served, get("/v1"))

    assert (status, body["api"]) == (200, 1)
    assert body["data"] == {"api": 1, "version": __version__, "features": list(requests.FEATURES)}


def test_an_answer_says_no_more_of_us_than_it_must(served: Running) -> None:
    with served.connect() as client:
        client.sendall(get("/v1", "Connection: close"))
        head = read_all(client).partition(b"\r\n\r\n")[0].lower()
    assert sorted(re.findall(rb"\n([a-z-]+):", head)) == [b"connection", b"content-length", b"content-type"]


def test_a_connection_is_used_again(served: Running) -> None:
    with served.connect() as client:
        for _ in range(3):
            client.sendall(get("/v1/stores"))
            response = http.client.HTTPResponse(client)
            response.begin()
            assert response.status == 200
            response.read()


def test_pipelined_requests_are_answered_in_order(served: Running) -> None:
    with served.connect() as client:
        client.sendall(get("/v1") + get("/v1/nothing") + get("/v1/stores", "Connection: close"))
        answers = read_all(client)

    # The refusal in between closes the connection: what came behind it is not answered.
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"404"]


def test_who_has_the_overview_already_gets_it_again_only_when_it_changed(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = histories.make_overview()

    async def overview() -> Overview:
        return shown

    monkeypatch.setattr(served.service, "overview", overview)

    def look(known: str) -> tuple[int, str, bytes]:
        with served.connect() as client:
            client.sendall(get("/v1/overview", f"If-None-Match: {known}", "Connection: close"))
            head, _, body = read_all(client).partition(b"\r\n\r\n")
        tag = re.search(rb"(?i)^etag: (.*)\r$", head, re.MULTILINE)
        assert tag is not None
        return int(head.split()[1]), tag[1].decode(), body

    status, tag, body = look("")
    assert (status, json.loads(body)["data"]["host"]) == (200, "example")
    # That it was asked at another time is no news.
    shown = replace(shown, at=histories.NOW + timedelta(days=7))
    assert look(tag) == look(f'"other", {tag}') == (304, tag, b"")
    shown = replace(shown, sentence="Cold: since a moment")
    status, other, body = look(tag)
    assert (status, json.loads(body)["data"]["sentence"]) == (200, "Cold: since a moment")
    assert other != tag


@pytest.mark.parametrize(
    ("path", "accept", "kind"),
    [
        ("/v1/metrics", "*/*", "text/plain; version=0.0.4; charset=utf-8"),
        (
            "/v1/metrics",
            "application/openmetrics-text;version=1.0.0,*/*",
            "application/openmetrics-text; version=1.0.0",
        ),
        ("/v1/metrics?format=openmetrics", "*/*", "application/openmetrics-text; version=1.0.0"),
        ("/v1/metrics", "application/json", "application/json"),
    ],
)
def test_metrics_come_in_the_form_that_is_asked_for(served: Running, path: str, accept: str, kind: str) -> None:
    with served.connect() as client:
        client.sendall(get(path, f"Accept: {accept}"))
        response = http.client.HTTPResponse(client)
        response.begin()
        assert (response.status, response.headers["Content-Type"].startswith(kind)) == (200, True)


def test_a_job_is_accepted_and_says_where_it_is(served: Running) -> None:
    with served.connect() as client:
        client.sendall(post("/v1/scan", b'{"full": true}'))
        response = http.client.HTTPResponse(client)
        response.begin()
        assert (response.status, response.headers["Location"]) == (202, "/v1/jobs/1")
        response.read()
    assert served.service.asked == [requests.ScanStores(full=True)]


def test_an_empty_body_means_all_defaults(served: Running) -> None:
    status, _ = ask(served, post("/v1/scan", b""))

    assert status == 202


@pytest.mark.parametrize(("path", "in_the_loop"), [("/v1/trash", False), ("/v1/entries", False), ("/v1/devices", True)])
def test_a_long_answer_is_written_where_nobody_else_waits(
    served: Running, monkeypatch: pytest.MonkeyPatch, path: str, *, in_the_loop: bool
) -> None:
    respond, seen = app.respond, list[bool]()

    def noting(*given: object) -> object:
        seen.append(asyncio._get_running_loop() is not None)
        return respond(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(routes, "respond", noting)
    monkeypatch.setattr(routes, "_FEW", 0)
    assert ask(served, get(path))[0] == 200
    assert seen == [in_the_loop]


def test_text_that_is_no_text_still_travels(served: Running) -> None:
    with Client(served.path) as client:
        kernels = (Kernel(NASTY, NASTY, NASTY),)
        served.service.known = [make_entry(1, kernels=kernels)]
        page = client.call(requests.ListEntries()).value

    assert page.entries[0].entry.kernels == kernels


@pytest.mark.parametrize(
    ("target", "status", "code", "needle"),
    [
        ("/v1/nothing", 404, "not-found", "/v1/nothing"),
        ("/", 404, "not-found", "nothing at /"),
        ("/v1/status/", 404, "not-found", "/v1/status/"),
        ("/v1/status?verbose=1", 400, "bad-request", "verbose: unknown key; known are: none"),
        ("/v1/entries?limit=many", 400, "bad-request", "limit: expected a valid integer"),
        ("/v1/entries?limit=0", 400, "bad-request", "limit: expected at least 1"),
        ("/v1/entries?limit=1&limit=2", 400, "bad-request", "limit: given twice"),
        ("/v1/entries?state=good", 400, "bad-request", "state: expected 'ok', 'defective', 'unfinished' or 'unread'"),
        ("/v1/entries?colour=red", 400, "bad-request", "colour: unknown key; known are: ref, kind"),
        ("/v1/entries/xyz", 400, "bad-request", "hex digits"),
        ("/v1/entries/abc?ref=abc", 400, "bad-request", "ref: stands in the path"),
        ("/v1/entries/0123456789ab", 404, "not-found", "no entry"),
        ("/v1/jobs/9", 404, "not-found", "no job 9"),
        ("/v1/jobs/9/wait?timeout=1e9", 400, "bad-request", "timeout: expected 0 to 300"),
        ("/v1/jobs/9/wait?timeout=nan", 400, "bad-request", "timeout: expected"),
        ("/v1/events?" + "&" * 64, 400, "bad-request", "more than 64 fields"),
        ("/v1/events?follow=perhaps", 400, "bad-request", "follow: expected a valid boolean"),
    ],
)
def test_a_refusal_names_what_is_wrong(served: Running, target: str, status: int, code: str, needle: str) -> None:
    found, body = ask(served, get(target))

    assert (found, error_of(body)[0]) == (status, code)
    assert needle in error_of(body)[1]


def test_of_a_long_path_a_refusal_names_the_beginning(served: Running) -> None:
    _, body = ask(served, get("/" + 300 * "x"))
    assert error_of(body)[1] == "there is nothing at /" + 199 * "x"


@pytest.mark.parametrize(
    ("path", "body", "needle"),
    [
        ("/v1/evict", b'{"dry_run": "yes"}', "dry_run: expected a valid boolean"),
        ("/v1/evict", b'{"dry": true}', "dry: unknown key; known are: dry_run, refs, reasons"),
        ("/v1/evict", b"[]", "object"),
        ("/v1/evict", b"{", "brackets do not match"),
        ("/v1/evict", b"[" * 100_000, "nested deeper"),
        ("/v1/prewarm", b'{"models": [' + b"1," * 400_000 + b"1]}", "more than 10000 values"),
        ("/v1/evict?dry_run=true", b"{}", "no query string"),
        ("/v1/models", b"{}", "name: is required"),
        ("/v1/models", b'{"name": "../x", "command": ["/bin/true"], "directory": "/"}', "name: expected"),
        ("/v1/models", b'{"name": "x", "command": ["true"], "directory": "/"}', "absolute path to the program"),
        ("/v1/models", b'{"name": "x", "command": [], "directory": "/"}', "command: expected a program"),
        ("/v1/models", b'{"name": "x", "command": ["/bin/true"], "directory": "/", "timeout": -1}', "timeout"),
        ("/v1/models", b'{"name": "x", "command": ["/bin/true"], "directory": "/", "variables": {"A=B": ""}}', "A=B"),
        ("/v1/prewarm", b"{}", "exactly one of"),
    ],
)
def test_a_body_is_checked(served: Running, path: str, body: bytes, needle: str) -> None:
    status, answer = ask(served, post(path, body))

    assert (status, error_of(answer)[0]) == (400, "bad-request")
    assert needle in error_of(answer)[1]
    assert not served.service.asked


@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_another_method_is_refused(served: Running, method: str) -> None:
    status, body = ask(served, get("/v1/status", method=method))

    assert (status, error_of(body)[0]) == (405, "bad-request")
    assert "GET, HEAD" in error_of(body)[1]


def test_head_is_get_without_a_body(served: Running) -> None:
    with served.connect() as client:
        client.sendall(get("/v1/status", "Connection: close", method="HEAD"))
        head, _, body = read_all(client).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 200")
    assert body == b""


def test_what_breaks_is_logged_once_and_told_without_details(served: Running, caplog: pytest.LogCaptureFixture) -> None:
    served.service.breaks = ZeroDivisionError("a secret")

    status, body = ask(served, get("/v1/status"))

    assert (status, error_of(body)[0]) == (500, "internal")
    assert "secret" not in json.dumps(body)
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.exc_info is not None
    # What people are told leads to what stands in the log.
    told = re.search(r"reference ([0-9a-f]{8})\)", error_of(body)[1])
    assert told is not None
    assert told[1] in record.getMessage()
    assert told[1] in json.dumps(body).partition("hint")[2]


@pytest.mark.parametrize(
    ("extra", "status"),
    [
        ("Host: localhost", 200),
        ("Host:", 200),
        ("Host: LOCALHOST", 200),
        ("Host: %2Frun%2Fuser%2F1000%2Fxpucached%2Fxpucached.sock", 200),
        # Who names a port came by TCP, through a proxy: a page may be behind it, whatever it calls this host.
        ("Host: localhost:80", 403),
        ("Host: localhost:9090", 403),
        ("Host: %2Frun:80", 403),
        ("Host: 127.0.0.1", 403),
        ("Host: example.com", 403),
        ("Host: localhost\r\nOrigin: http://localhost", 403),
        ("Host: localhost\r\nOrigin: null", 403),
        ("Host: localhost\r\nSec-Fetch-Site: same-origin", 403),
        ("Host: localhost\r\nsec-fetch-mode: cors", 403),
    ],
)
def test_only_local_requests_are_answered(served: Running, extra: str, status: int) -> None:
    found, _ = ask(served, f"GET /v1 HTTP/1.1\r\n{extra}\r\n\r\n".encode())

    assert found == status


# -- rights ---------------------------------------------------------------------------------------------------------


def test_who_may_not_change_is_refused(short_dir: Path) -> None:
    with running(short_dir, allowed=lambda _uid, right: right is Right.READ) as one, Client(one.path) as client:
        assert client.call(requests.GetStatus()).value.pid == 4711
        with pytest.raises(Denied):
            client.call(requests.ScanStores())
        with pytest.raises(Denied):
            client.call(requests.RemoveModel(name=ModelName("resnet")))
        with pytest.raises(Denied):
            client.call(requests.EvictEntries(dry_run=True))
        assert not one.service.asked


def test_the_peer_is_who_the_kernel_says(short_dir: Path) -> None:
    asked: list[tuple[int, Right]] = []

    def allowed(uid: int, right: Right) -> bool:
        asked.append((uid, right))
        return True

    with running(short_dir, allowed=allowed) as one, Client(one.path) as client:
        client.call(requests.ScanStores())

    assert {uid for uid, _ in asked} == {os.geteuid()}
    assert Right.CHANGE in {right for _, right in asked}


def test_nobody_is_sent_a_descriptor_which_it_may_take_for_ever_to_close(short_dir: Path) -> None:
    with running(short_dir) as one, socket.socket(socket.AF_UNIX) as client, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_dir / "another"))
        listener.listen()
        with sockets.connect(short_dir / "another"), listener.accept()[0] as answering:
            client.connect(str(one.path))
            try:
                client.getsockopt(socket.SOL_SOCKET, sockets._PASS_RIGHTS)
            except OSError:
                pytest.skip("this kernel is older than 6.16, and lets everybody")
            for end in (client, answering):
                with pytest.raises(PermissionError):
                    socket.send_fds(end, [b"x"], [listener.fileno()])


def test_who_may_only_read_sees_no_secrets(short_dir: Path) -> None:
    with running(short_dir, allowed=lambda _uid, right: right is Right.READ) as one:
        for path in ("/v1/status", "/v1/models", "/v1/models/resnet", "/v1/runs"):
            _, body = ask(one, get(path))
            assert "geheim" not in json.dumps(body)
            assert "epoch" not in json.dumps(body)


def test_who_may_change_sees_them(served: Running) -> None:
    _, body = ask(served, get("/v1/models/resnet"))

    assert "geheim" in json.dumps(body)
    assert "epoch" in json.dumps(body)


# -- bad clients ----------------------------------------------------------------------------------------------------


def test_who_sends_nothing_is_sent_away(hasty: Running) -> None:
    with hasty.connect() as client:
        assert read_all(client).startswith(b"HTTP/1.1 408")


def test_who_sends_half_a_head_is_sent_away(hasty: Running) -> None:
    with hasty.connect() as client:
        client.sendall(b"GET /v1/status HTTP/1.1\r\nHost: local")
        assert read_all(client).startswith(b"HTTP/1.1 408")


def test_who_sends_half_a_second_head_is_sent_away(hasty: Running) -> None:
    with hasty.connect() as client:
        client.sendall(get("/v1"))
        response = http.client.HTTPResponse(client)
        response.begin()
        response.read()
        client.sendall(b"GET ")
        assert b"408" in read_all(client)


def test_who_idles_is_sent_away(hasty: Running) -> None:
    with hasty.connect() as client:
        client.sendall(get("/v1"))
        answer = read_all(client)

    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1") == 1


def test_who_sends_half_a_body_is_sent_away(hasty: Running) -> None:
    with hasty.connect() as client:
        client.sendall(get("/v1/scan", "Content-Length: 100", method="POST") + b"{")
        assert read_all(client).startswith(b"HTTP/1.1 408")
    assert not hasty.service.asked


def test_a_gigabyte_is_refused_unread(served: Running) -> None:
    status, body = ask(served, get("/v1/scan", "Content-Length: 1073741824", method="POST"))

    assert (status, error_of(body)[0]) == (413, "bad-request")


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_body_in_chunks_is_refused_at_its_head(served: Running, method: str) -> None:
    """One of single bytes would cost us ten thousand times what it costs who sends it."""
    with served.connect() as client:
        client.sendall(get("/v1/scan", "Transfer-Encoding: chunked", method=method))
        answer = read_all(client)

    assert answer.startswith(b"HTTP/1.1 411")
    assert b"bad-request" in answer
    assert b"Content-Length" in answer.partition(b"\r\n\r\n")[2]


def test_who_sends_byte_by_byte_is_sent_away(served: Running) -> None:
    """Each piece is sent when the one before was read, so that none of them are read together."""
    with served.connect() as client:
        client.sendall(get("/v1/scan", "Content-Length: 100000", method="POST"))
        sent = 0
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while sent < 100_000:
                client.sendall(b" ")
                sent += 1
                while fcntl.ioctl(client, termios.TIOCOUTQ, bytes(4)) != bytes(4):
                    time.sleep(0.0001)

    assert sent < 10_000
    assert ask(served, get("/v1"))[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"stores": 1e999}',
        b'{"stores": NaN}',
        b'{"stores": [], "stores": []}',
        b'{"stores": %s}' % (b"9" * 5000),
        b"\xff\xfe",
        b'{"\\ud800": 1}',
    ],
)
def test_a_body_that_no_json_should_be_is_refused_in_a_sentence(served: Running, body: bytes) -> None:
    with served.connect() as client:
        client.sendall(get("/v1/scan", f"Content-Length: {len(body)}", "Connection: close", method="POST") + body)
        answer = read_all(client)

    assert answer.startswith(b"HTTP/1.1 400")
    assert b"bad-request" in answer


def test_a_get_with_a_body_is_refused(served: Running) -> None:
    status, _ = ask(served, get("/v1/status", "Content-Length: 5"))

    assert status == 413


def test_an_endless_head_is_refused(served: Running) -> None:
    with served.connect() as client:
        client.sendall(b"GET /v1/status HTTP/1.1\r\nX: " + b"y" * 20_000)
        assert read_all(client).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "garbage",
    [b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"hello\r\n\r\n", b"\r\n" * 9000, b"GET /v1\r\n\r\n"],
)
def test_garbage_is_refused(hasty: Running, garbage: bytes) -> None:
    with hasty.connect() as client:
        client.sendall(garbage)
        answer = read_all(client)

    assert b"bad-request" in answer
    assert ask(hasty, get("/v1"))[0] == 200


def test_garbage_behind_a_request_does_not_spoil_its_answer(served: Running) -> None:
    with served.connect() as client:
        client.sendall(get("/v1/stores") + b"\x00\x01garbage\r\n\r\n")
        answer = read_all(client)

    assert answer.startswith(b"HTTP/1.1 200")
    assert b"/var/cache/xpucached/sycl" in answer


def test_an_upgrade_is_not_followed(served: Running) -> None:
    status, _ = ask(served, get("/v1", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"))

    assert status == 200


def test_two_hundred_connections_do_not_stop_status(served: Running) -> None:
    hoard = [served.connect() for _ in range(200)]
    try:
        for one in hoard[::2]:
            # The first ones have lost their places to the last ones already.
            with contextlib.suppress(BrokenPipeError):
                one.send(b"GET /v1/sta")
        status, _ = ask(served, get("/v1/status"))
        assert status == 200
    finally:
        for one in hoard:
            one.close()


def test_who_holds_all_his_places_busy_is_told_so(short_dir: Path) -> None:
    with running(short_dir, limits=ConnectionLimits(per_user=2)) as one:
        streams = [one.connect() for _ in range(2)]
        for stream in streams:
            stream.sendall(get("/v1/events?follow=true"))
            assert stream.recv(4096).startswith(b"HTTP/1.1 200")

        status, body = ask(one, get("/v1/status"))
        assert (status, error_of(body)[0]) == (503, "busy")

        for stream in streams:
            stream.close()
        while ask(one, get("/v1/status"))[0] != 200:
            pass


HALF_A_BODY: bytes = b"POST /v1/scan HTTP/1.1\r\nHost:\r\nContent-Length: 9\r\n\r\n{"


@pytest.mark.flow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize(
    "sent", [b"", HALF_A_BODY, get("/v1/events?follow=true")], ids=["idle", "half a body", "an answer without end"]
)
def test_another_user_finds_a_place(short_dir: Path, sent: bytes) -> None:
    short_dir.chmod(0o755)
    with running(short_dir, limits=ConnectionLimits(per_user=4, total=4)) as one:
        one.path.parent.chmod(0o755)
        one.path.chmod(0o666)
        hoard = [one.connect() for _ in range(4)]
        for client in hoard:
            client.sendall(sent)
        while sent and not all(held.busy for held in one.connections()):
            time.sleep(0.01)
        program = (
            "import os, socket, sys\n"
            "os.setuid(12345)\n"
            "s = socket.socket(socket.AF_UNIX)\n"
            "s.connect(sys.argv[1])\n"
            "s.sendall(b'GET /v1 HTTP/1.1\\r\\nHost:\\r\\n\\r\\n')\n"
            "print(s.recv(4096).decode())\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(one.path)], capture_output=True, text=True, check=True
        )
        for client in hoard:
            client.close()

    assert done.stdout.startswith("HTTP/1.1 200")


def test_what_waits_for_one_user_s_readers_is_bounded(short_dir: Path) -> None:
    service = Standin(known=[make_entry(number, kernels=(Kernel("x" * 4096, "x"),)) for number in range(500)])
    with running(short_dir, service=service, limits=ConnectionLimits(unread=1 << 20)) as one:
        waiting = [one.connect() for _ in range(4)]
        for client in waiting:
            client.sendall(get("/v1/entries?limit=500"))
        # One may wait, however long its answer is; of the others some are cut off, though there is time enough.
        while len(service.asked) < len(waiting) or len(one.connections()) == len(waiting):
            time.sleep(0.01)
        left = len(one.connections())
        for client in waiting:
            client.close()
    assert left


def test_who_does_not_read_a_long_answer_is_cut_off(short_dir: Path) -> None:
    service = Standin(known=[make_entry(number, kernels=(Kernel("x" * 4096, "x"),)) for number in range(1000)])
    with running(short_dir, limits=HASTY, service=service) as one, one.connect() as client:
        client.sendall(get("/v1/entries?limit=1000"))
        while not one.service.asked or one.server._places.held.total():
            one.do(lambda: None)
        assert len(read_all(client)) < 1000 * 4096


# -- waiting and events ---------------------------------------------------------------------------------------------


def test_who_hangs_up_waits_no_longer(served: Running) -> None:
    served.service.hold = True
    with Client(served.path) as client:
        job = client.call(requests.ScanStores()).value
    with served.connect() as waiting:
        waiting.sendall(get(f"/v1/jobs/{job.id}/wait?timeout=300"))
    while not served.service.cut:
        served.do(lambda: None)


def test_a_wait_ends_when_the_server_does(short_dir: Path) -> None:
    with running(short_dir) as one, one.connect() as waiting:
        one.service.hold = True
        with Client(one.path) as client:
            client.call(requests.ScanStores())
        waiting.sendall(get("/v1/jobs/1/wait?timeout=300"))
        while not one.server._places.tasks:
            one.do(lambda: None)
        one.stop()
        assert read_all(waiting).startswith(b"HTTP/1.1 200")


def test_events_come_as_they_happen(served: Running) -> None:
    served.do(lambda: served.service.happen("before"))
    served.do(lambda: served.service.happen("between"))
    with Client(served.path) as client:
        lines = client.follow(1)
        assert json.loads(next(lines))["message"] == "between"
        served.do(lambda: served.service.happen("after"))
        event = json.loads(next(lines))
    assert event == {
        "id": 3,
        "at": "2026-03-04T05:06:07.089000Z",
        "topic": "evicted",
        "message": "after",
        "fields": {"store": "/a b"},
    }


def test_a_quiet_stream_still_beats(hasty: Running) -> None:
    with hasty.connect() as client:
        client.sendall(get("/v1/events?follow=true"))
        received = b""
        while received.count(b"1\r\n\n\r\n") < 3:
            received += client.recv(4096)


def test_a_look_at_the_events_alone_does_not_begin_to_follow(served: Running) -> None:
    with served.connect() as client:
        client.sendall(get("/v1/events?follow=true", method="HEAD"))
        response = http.client.HTTPResponse(client, method="HEAD")
        response.begin()
        assert (response.status, response.headers["Content-Type"]) == (200, "application/json")


def test_a_stream_that_breaks_is_cut_and_logged(
    served: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def subscribe(_since: int) -> AsyncIterator[Event]:
        yield Event(1, NOW, "evicted", "first", {})
        raise ZeroDivisionError

    monkeypatch.setattr(served.service, "subscribe", subscribe)
    with served.connect() as client:
        client.sendall(get("/v1/events?follow=true"))
        # A stream that just ended would look as if the daemon had.
        assert not read_all(client).endswith(b"0\r\n\r\n")
    assert "while streaming events" in caplog.text


def test_a_slow_reader_of_events_is_dropped(short_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(short_dir, limits=ConnectionLimits(backlog=8, write_time=0.2)) as one, one.connect() as slow:
        slow.sendall(get("/v1/events?follow=true"))
        assert slow.recv(64)
        while not one.service.subscribers:
            one.do(lambda: None)
        while one.service.subscribers:
            one.do(lambda: one.service.happen("x" * 10_000))
        # What the kernel had taken may still be read; then it ends, without the end of the stream.
        assert not read_all(slow).endswith(b"0\r\n\r\n")
        assert ask(one, get("/v1"))[0] == 200
    # That is no news.
    assert "while streaming events" not in caplog.text


def test_all_that_is_remembered_comes(short_dir: Path) -> None:
    with running(short_dir, limits=ConnectionLimits(backlog=2)) as one, Client(one.path) as client:
        one.service.log = [Event(number + 1, NOW, "evicted", str(number)) for number in range(3000)]
        lines = client.follow(0)
        assert [json.loads(next(lines))["message"] for _ in range(3000)] == [str(number) for number in range(3000)]


def test_a_stream_ends_when_the_server_does(short_dir: Path) -> None:
    with running(short_dir) as one, one.connect() as client:
        client.sendall(get("/v1/events?follow=true"))
        assert client.recv(1)
        while not one.service.subscribers:
            one.do(lambda: None)
        one.stop()
        assert read_all(client).endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("then", [b"", get("/v1/jobs/1/wait?timeout=300")], ids=["idle", "waiting"])
def test_the_end_waits_for_no_reader(short_dir: Path, then: bytes) -> None:
    service = Standin(known=[make_entry(number, kernels=(Kernel("x" * 4096, "x"),)) for number in range(60)])
    with running(short_dir, service=service, limits=ConnectionLimits(stop_time=0.2)) as one, one.connect() as client:
        service.hold = True
        with Client(one.path) as other:
            other.call(requests.ScanStores())
        client.sendall(get("/v1/entries?limit=60") + then)
        while not any(held.transport.get_write_buffer_size() for held in one.connections()):
            one.do(lambda: None)
        one.stop()
        # It ends while the client still is there, and reads nothing.
        while not one.loop.is_closed():
            time.sleep(0.01)
        assert one.connections() == []


@pytest.mark.filterwarnings("error")
def test_who_was_accepted_as_the_server_ends_is_closed(short_dir: Path) -> None:
    """It is asyncio that forgets, and leaves open, whom it accepted for a listener that is closed a moment later."""

    class Silent:
        application = Starlette()

        def stop(self) -> None:
            """Have nothing to end."""

    async def ends_at_once(path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as client:
            listening.bind(str(path))
            listening.listen()
            listener = http_listener.HttpListener(Silent())
            await listener.start([listening])
            client.connect(str(path))
            # In these turns of the loop it is accepted, and no more.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await listener.stop()
            client.settimeout(10)
            assert client.recv(1) == b""

    asyncio.run(ends_at_once(short_dir / "s"))
    gc.collect()


# -- sockets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
@pytest.mark.parametrize("mask", [0o077, 0o000])
def test_the_socket_has_the_mode_that_was_asked_for(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, mode: int, mask: int
) -> None:
    seen, chmod = list[int](), Path.chmod

    def noting(path: Path, to: int) -> None:
        seen.append(stat.S_IMODE(path.stat().st_mode))
        chmod(path, to)

    monkeypatch.setattr(Path, "chmod", noting)
    before = os.umask(mask)
    try:
        with unix_sockets.bind(short_dir / "new" / "s", mode):
            assert stat.S_IMODE((short_dir / "new" / "s").stat().st_mode) == mode
        # Who may connect gets through its directory, and nobody else.
        assert stat.S_IMODE((short_dir / "new").stat().st_mode) == (0o700 if mode == 0o600 else 0o755) & ~mask
    finally:
        os.umask(before)
    # At no moment it was open to more than that.
    assert seen == [mode & ~mask]


def test_a_dead_daemons_socket_is_replaced(short_dir: Path) -> None:
    unix_sockets.bind(short_dir / "s", 0o600).close()

    unix_sockets.bind(short_dir / "s", 0o600).close()


def test_a_living_daemons_socket_is_not(short_dir: Path) -> None:
    with unix_sockets.bind(short_dir / "s", 0o600), pytest.raises(RunningError, match="already answers"):
        unix_sockets.bind(short_dir / "s", 0o600)


def test_a_busy_daemons_socket_is_not(short_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX) as deaf, socket.socket(socket.AF_UNIX) as waiting:
        deaf.bind(str(short_dir / "s"))
        deaf.listen(0)
        waiting.connect(str(short_dir / "s"))
        with pytest.raises(RunningError):
            unix_sockets.bind(short_dir / "s", 0o600)


def test_a_socket_of_another_kind_is_left_alone(short_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(str(short_dir / "s"))
        with pytest.raises(SettingsError, match="cannot tell who owns"):
            unix_sockets.bind(short_dir / "s", 0o600)


def test_at_the_end_only_the_socket_that_we_made_is_removed(short_dir: Path) -> None:
    path = short_dir / "s"
    unix_sockets.bind(path, 0o600).close()
    made = unix_sockets.identity(path)
    path.rename(short_dir / "ours")
    unix_sockets.bind(path, 0o600).close()
    for one in (made, None):
        unix_sockets.remove(path, one)
        assert path.exists()
    unix_sockets.remove(short_dir / "ours", made)
    assert not (short_dir / "ours").exists()
    # Nor is it missed.
    assert unix_sockets.identity(short_dir / "ours") is None
    unix_sockets.remove(short_dir / "ours", None)


def test_what_was_opened_to_see_the_directory_is_closed(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = os.open(short_dir, os.O_RDONLY)
    held = fcntl.fcntl(folder, fcntl.F_DUPFD_CLOEXEC, 700)
    os.close(folder)
    monkeypatch.setattr(sockets, "enter", lambda *_: (held, ""))
    unix_sockets._check_directory(short_dir, 0o600)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(held)


def test_what_is_no_socket_is_left_alone(short_dir: Path) -> None:
    (short_dir / "s").write_text("precious", encoding="ascii")

    with pytest.raises(SettingsError, match="not a socket"):
        unix_sockets.bind(short_dir / "s", 0o600)
    assert (short_dir / "s").read_text(encoding="ascii") == "precious"


def test_a_link_to_a_socket_is_left_alone(short_dir: Path) -> None:
    (short_dir / "s").symlink_to("elsewhere")

    with pytest.raises(SettingsError, match="not a socket"):
        unix_sockets.bind(short_dir / "s", 0o600)


def test_a_directory_for_everybody_is_refused(short_dir: Path) -> None:
    short_dir.chmod(0o1777)

    with pytest.raises(SettingsError, match="everybody may write"):
        unix_sockets.bind(short_dir / "s", 0o600)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give away a directory")
def test_anothers_directory_is_refused(short_dir: Path) -> None:
    (short_dir / "theirs").mkdir(mode=0o700)
    os.chown(short_dir / "theirs", 12345, 12345)
    (short_dir / "link").symlink_to("theirs")

    for name in ("theirs", "link"):
        with pytest.raises(SettingsError, match="belongs to user 12345"):
            unix_sockets.bind(short_dir / name / "s", 0o600)


@pytest.mark.parametrize(("length", "fits"), [(107, True), (108, False)])
def test_a_long_path_is_refused_clearly(short_dir: Path, length: int, *, fits: bool) -> None:
    path = short_dir / ("é" * 100)
    name = "s" * (length - len(os.fsencode(short_dir)) - 1)

    if fits:
        unix_sockets.bind(short_dir / name, 0o600).close()
    else:
        with pytest.raises(SettingsError, match="has 108 bytes"):
            unix_sockets.bind(short_dir / name, 0o600)
        with pytest.raises(SettingsError, match="more than the 107"):
            unix_sockets.bind(path, 0o600)


def test_a_missing_parent_is_refused(short_dir: Path) -> None:
    with pytest.raises(SettingsError, match="cannot use"):
        unix_sockets.bind(short_dir / "a" / "b" / "s", 0o600)


ACTIVATION = """
import os, sys
os.environ["LISTEN_PID"] = str(os.getpid())
from xpucached.server import http_listener, unix_sockets
taken = unix_sockets.activated()
print([one.getsockname() for one in taken], os.get_inheritable(3), sorted(k for k in os.environ if "LISTEN" in k))
"""


def activate(one: socket.socket, **more: str) -> subprocess.CompletedProcess[str]:
    """Start a program as systemd would, with one socket as descriptor 3."""
    starter = (
        "import os, sys; os.dup2(int(sys.argv[1]), 3); os.execv(sys.executable, [sys.executable, '-c', sys.argv[2]])"
    )
    return subprocess.run(
        [sys.executable, "-c", starter, str(one.fileno()), ACTIVATION],
        pass_fds=[one.fileno()],
        env={**os.environ, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "api", **more},
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(unix_sockets.__file__).parents[2],
    )


@pytest.mark.flow
def test_systemds_sockets_are_taken(short_dir: Path) -> None:
    with unix_sockets.bind(short_dir / "s", 0o600) as one:
        done = activate(one)

    assert done.stdout == f"['{short_dir}/s'] False []\n", done.stderr


@pytest.mark.flow
def test_another_kind_of_socket_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        done = activate(one)

    assert "not a listening unix stream socket" in done.stderr


def test_anothers_sockets_are_not_taken() -> None:
    environ = {"LISTEN_PID": str(os.getpid() + 1), "LISTEN_FDS": "1"}

    assert unix_sockets.activated(environ) == []
    assert environ == {}


def test_nobody_answers_after_the_end(short_dir: Path) -> None:
    with running(short_dir) as one:
        path = one.path
    with Client(path, hint="start it") as client, pytest.raises(Unavailable, match="no daemon answers") as caught:
        client.call(requests.GetStatus())

    assert caught.value.hint == "start it"


def test_who_only_looks_in_for_others_wakes_nobody_and_who_changes_something_does(short_dir: Path) -> None:
    """A worker ends when it has long not been asked: who tends the host asks all the time how things stand."""
    with running(short_dir, allowed=lambda _uid, _right: False, tends=lambda _uid: True) as one:
        assert ask(one, get("/v1/summary"))[0] == 200
        assert ask(one, post("/v1/refresh", b"{}"))[0] == 202
        assert (one.server.last_asked, one.server.last_passed_on) == (-math.inf, -math.inf)
        # Who is woken is waited for.
        assert ask(one, get("/v1"))[0] == 200
        assert one.server.last_asked == -math.inf
        assert one.server.last_passed_on > 0
        assert ask(one, post("/v1/prewarm", b'{"all": true}'))[0] == 202
        assert one.server.last_asked > 0
    with running(short_dir) as own:
        assert ask(own, get("/v1/status"))[0] == 200
        assert own.server.last_asked > 0
