"""Somebody sends a descriptor along whose closing takes as long as they like, which Linux lets all before 6.16."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING

import pytest

from tests.support.api_stub import running
from xpucached import sockets
from xpucached.api import requests
from xpucached.api.client import Client
from xpucached.errors import XpucachedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ASKED = b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(autouse=True)
def older_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what the kernel could refuse."""
    monkeypatch.setattr(sockets, "refuse_descriptors", lambda _one: None)


@pytest.fixture
def lingering() -> Iterator[socket.socket]:
    """Yield a connection whose closing waits 100 s for its peer, who reads nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as one:
        reader, _ = listener.accept()
        with reader:
            one.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                while True:
                    one.send(bytes(1 << 16))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 100))
            yield one


def send(end: socket.socket, data: bytes, sent: socket.socket) -> None:
    """Send it along, and keep nothing of it; who is at the other end may have gone."""
    try:
        socket.send_fds(end, [data], [sent.fileno()])
    except (BrokenPipeError, ConnectionResetError):
        # Then it is closed here.
        sent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sent.close()


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([(b"", True)], id="with the request"),
        pytest.param([(b"Connection: close\r\n\r\n", False), (b"more", True)], id="after a request that ends it"),
        pytest.param([(b"\r\n", False), (b"more", True)], id="after a request"),
        pytest.param([(b"Content-Length: 9\r\n\r\n", False), (b"a body", True)], id="with a body"),
        pytest.param([(b"nonsense\r\n\r\n", True)], id="with what is no request"),
    ],
)
def test_a_daemon_answers_others(short_dir: Path, lingering: socket.socket, parts: list[tuple[bytes, bool]]) -> None:
    with running(short_dir) as one, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(one.path))
        head = ASKED
        for part, sends in parts:
            if sends:
                send(client, head + part, lingering)
            else:
                client.sendall(head + part)
            head = b""
        with Client(one.path) as honest:
            honest.call(requests.GetStatus())
        # Nobody is answered who sends one: the connection ends.
        client.settimeout(60)
        with contextlib.suppress(ConnectionResetError):
            while client.recv(1 << 16):
                pass


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"])
def test_who_asks_a_daemon_of_somebody_else_goes_on(short_dir: Path, lingering: socket.socket, answer: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as listener, Client(short_dir / "s") as client:
        listener.bind(str(short_dir / "s"))
        listener.listen()

        def lie() -> None:
            one, _ = listener.accept()
            with one:
                one.recv(1 << 16)
                one.sendall(answer)
                send(one, b"more", lingering)
                one.settimeout(60)
                with contextlib.suppress(ConnectionResetError):
                    assert not one.recv(1)

        liar = threading.Thread(target=lie)
        liar.start()
        with pytest.raises(XpucachedError):
            client.call(requests.GetStatus())
        liar.join()
