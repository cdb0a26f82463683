"""`server.http_listener`: what ends, and in which order, when a daemon takes no more requests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from xpucached.server.connection import ConnectionLimits
from xpucached.server.http_listener import HttpListener

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from starlette.types import ASGIApp, Receive, Scope, Send

GET = b"GET %s HTTP/1.1\r\nHost:\r\n\r\n"


class Answers:
    """Answers at once, or (``/later``) when it is let; notes what was asked and what was cut off."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.cut: list[str] = []
        self.go = asyncio.Event()
        self.at_the_end: Callable[[], object] = lambda: None

    @property
    def application(self) -> ASGIApp:
        return self._answer

    def stop(self) -> None:
        self.at_the_end()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(scope["path"])
        await receive()
        if scope["path"] == "/later":
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cut.append(scope["path"])
                raise
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def path(short_dir: Path) -> Path:
    return short_dir / "s"


def listening(path: Path) -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    one.bind(str(path))
    one.listen()
    return one


def client(path: Path, asks: str) -> socket.socket:
    """Return who has connected and asked; whether that is taken, the loop decides later."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        one.connect(str(path))
        one.send(GET % asks.encode())
    except OSError:
        one.close()
        raise
    return one


def said(one: socket.socket) -> bytes:
    """Return what came until now."""
    with contextlib.suppress(BlockingIOError, ConnectionResetError):
        return one.recv(1 << 16)
    return b""


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - nothing else tells
        await asyncio.sleep(0)


def test_who_asks_while_the_end_begins_is_not_answered_any_more(path: Path) -> None:
    async def play() -> list[str]:
        answers = Answers()
        door = HttpListener(answers)
        with listening(path) as one, contextlib.ExitStack() as clients:
            await door.start([one])
            clients.enter_context(client(path, "/before"))
            await until(lambda: answers.asked)
            answers.at_the_end = lambda: clients.enter_context(client(path, "/after"))
            await door.stop()
            await asyncio.sleep(0)
        return answers.asked

    assert asyncio.run(play()) == ["/before"]


def test_what_runs_has_so_long_to_end_and_is_cut_off_then(path: Path) -> None:
    async def play(path: Path, *, ends: bool) -> tuple[bytes, tuple[str, ...]]:
        answers = Answers()
        door = HttpListener(answers, ConnectionLimits(stop_time=60.0 if ends else 0.0))
        with listening(path) as one:
            await door.start([one])
            with client(path, "/later") as asking:
                await until(lambda: answers.asked)
                assert door.busy
                if ends:
                    answers.at_the_end = answers.go.set
                await door.stop()
                return said(asking), tuple(answers.cut)

    text, cut = asyncio.run(play(path, ends=True))
    assert text.endswith(b"ok")
    assert cut == ()
    assert asyncio.run(play(path.with_name("t"), ends=False)) == (b"", ("/later",))


def test_who_waits_for_nothing_is_sent_away_at_once(path: Path) -> None:
    async def play() -> None:
        answers = Answers()
        door = HttpListener(answers, ConnectionLimits(stop_time=60.0))
        with listening(path) as one:
            await door.start([one])
            with client(path, "/before") as asking:
                await until(lambda: answers.asked and not door.busy)
                assert said(asking).endswith(b"ok")
                await door.stop()
                assert asking.recv(1) == b""
            with pytest.raises(ConnectionRefusedError):
                client(path, "/after")

    asyncio.run(play())
