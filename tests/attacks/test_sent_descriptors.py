"""Somebody sends a descriptor along whose closing takes as long as they like, which Linux lets all before 6.16."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.api_stub import running
from xpucached import guarded, sockets
from xpucached.api import requests
from xpucached.api.client import Client
from xpucached.errors import XpucachedError
from xpucached.processes import polling
from xpucached.server import unix_sockets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ASKED: Final = b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n"

SENDER: Final = """
import contextlib, os, socket, struct, sys
verb, path, port, urgent, *parts = sys.argv[1:]
flags = socket.MSG_OOB if urgent else 0
end = socket.socket(socket.AF_UNIX)
if verb == "connect":
    end.connect(path)
else:
    end.bind(path)
    end.listen()
    print(flush=True)
    end = end.accept()[0]
if not os.fork():
    lingering = socket.create_connection(("127.0.0.1", int(port)))
    lingering.settimeout(0)
    with contextlib.suppress(BlockingIOError):
        while True:
            lingering.send(bytes(1 << 16))
    lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 100))
    with contextlib.suppress(ConnectionError):
        for part in parts[:-1]:
            end.sendall(part.encode())
        rights = socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", lingering.fileno())
        end.sendmsg([parts[-1].encode()], [rights], flags)
    os._exit(0)
assert os.wait()[1] == 0
print(flush=True)
sys.stdin.readline()
# Nobody is answered who sends one: the connection ends, and nothing of it stays open.
with contextlib.suppress(ConnectionError):
    while end.recv(1 << 16):
        pass
"""
"""Sends, with the last of its parts, a connection whose closing waits 100 s for a peer who reads nothing.

A process does so that ends at once: what waits is the last that holds it, and a process's end waits for nothing.
"""


@pytest.fixture(autouse=True)
def older_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what the kernel could refuse."""
    monkeypatch.setattr(sockets, "refuse_descriptors", lambda _one: None)


@contextlib.contextmanager
def sender(verb: str, path: Path, *parts: bytes, urgent: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Run it; each empty line that it writes says that it has come as far as it can alone.

    With ``urgent`` the last part, which is one byte then, goes as such (``MSG_OOB``).
    """
    with socket.create_server(("127.0.0.1", 0)) as never_reads:
        port, how = str(never_reads.getsockname()[1]), "urgent" * urgent
        words = [verb, str(path), port, how, *(part.decode() for part in parts)]
        one = subprocess.Popen(
            [sys.executable, "-c", SENDER, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with one:
            try:
                assert one.stdout is not None
                assert one.stdout.readline() == "\n"
                yield one
            finally:
                one.kill()


def ended(one: subprocess.Popen[str]) -> bool:
    """Return whether its connection ended."""
    one.communicate("\n", timeout=90)
    return one.returncode == 0


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([ASKED], id="with the request"),
        pytest.param([ASKED + b"Connection: close\r\n\r\n", b"more"], id="after a request that ends it"),
        pytest.param([ASKED + b"\r\n", b"more"], id="after a request"),
        pytest.param([ASKED + b"Content-Length: 9\r\n\r\n", b"a body"], id="with a body"),
        pytest.param([b"nonsense\r\n\r\n"], id="with what is no request"),
    ],
)
@pytest.mark.parametrize("urgent", [False, True])
def test_a_daemon_answers_others(short_dir: Path, parts: list[bytes], *, urgent: bool) -> None:
    sent = threading.Event()
    parts = [*parts, b"!"] if urgent else parts
    with running(short_dir) as one:
        # It reads when nobody else holds what was sent.
        one.loop.call_soon_threadsafe(sent.wait, 60)
        with sender("connect", one.path, *parts, urgent=urgent) as attacker:
            sent.set()
            with Client(one.path) as honest:
                honest.call(requests.GetStatus())
            assert ended(attacker)


@pytest.mark.parametrize("answer", [[], [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"]])
@pytest.mark.parametrize("urgent", [False, True])
def test_who_asks_a_daemon_of_somebody_else_goes_on(short_dir: Path, answer: list[bytes], *, urgent: bool) -> None:
    with sender("listen", short_dir / "s", *answer, b"!" if urgent else b"more", urgent=urgent) as attacker:
        with Client(short_dir / "s") as client:
            client._connection.connect()
            assert attacker.stdout is not None
            assert attacker.stdout.readline() == "\n"
            with pytest.raises(XpucachedError):
                client.call(requests.GetStatus())
        assert ended(attacker)


def test_an_urgent_byte_is_read_as_others_are_and_wakes_nobody_again() -> None:
    theirs, ours = socket.socketpair(socket.AF_UNIX)
    with theirs, guarded.GuardedConnection(fileno=ours.detach()) as one:
        one.settimeout(0)
        theirs.send(b"x")
        theirs.send(b"y", socket.MSG_OOB)
        theirs.send(b"z", socket.MSG_OOB)
        heard = b""
        while polling.readable(one.fileno(), seconds=0):
            heard += one.recv(100)

    assert heard == b"xyz"


def test_a_daemon_ends_that_has_not_let_its_sender_in(short_dir: Path) -> None:
    listener = unix_sockets.bind(short_dir / "s", 0o600)
    with sender("connect", short_dir / "s", ASKED) as attacker:
        listener.close()
        assert ended(attacker)


def test_where_no_thread_can_be_had_who_sends_a_descriptor_is_let_go_all_the_same(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def none_left(thread: threading.Thread) -> None:
        if thread.name == "closing":
            raise RuntimeError("can't start new thread")
        start(thread)

    with running(short_dir) as one, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_left)
        with sender("connect", one.path, ASKED) as attacker:
            assert ended(attacker)
        with Client(one.path) as honest:
            honest.call(requests.GetStatus())
        assert len(guarded._left) == 1
        patch.undo()
        # Who comes next finds one.
        with Client(one.path) as honest:
            honest.call(requests.GetStatus())
        assert not guarded._left
