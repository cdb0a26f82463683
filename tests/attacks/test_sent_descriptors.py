"""Somebody sends a descriptor along whose closing takes as long as they like, which Linux lets all before 6.16."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.api_stub import Standin, handlers, owner_only, running
from xpucached import guarded, sockets
from xpucached.api import requests
from xpucached.api.client import Client
from xpucached.errors import XpucachedError
from xpucached.processes import child, polling
from xpucached.server import unix_sockets
from xpucached.server.http_listener import HttpListener, Server
from xpucached.server.public_thread import PublicListener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
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
def older_kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave out what the kernel could refuse; no child that closed something is left."""
    monkeypatch.setattr(sockets, "refuse_descriptors", lambda _one: None)
    yield
    for one in guarded._closers:
        one.wait(60)
    guarded.close_left()
    assert not guarded._closers


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


def test_where_no_child_can_be_had_who_sends_a_descriptor_is_let_go_all_the_same(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_words: object, **_options: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    with running(short_dir) as one, monkeypatch.context() as patch:
        patch.setattr(child, "start", none_left)
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


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Have children whose ends take for ever, as the kernel lets them wait; gives what ends them."""
    start, started = child.start, []

    def stays(
        _command: Sequence[str], *, variables: Mapping[str, str], stdin: int, pipes: child.Pipes, shared: Sequence[int]
    ) -> child.Process:
        # It does not hear that what it has open is its own alone.
        words = ("sleep", "1000")
        started.append(start(words, variables=variables, stdin=stdin, pipes=pipes, shared=shared))
        return started[-1]

    def end() -> None:
        monkeypatch.undo()
        for one in started:
            child.end(one)

    monkeypatch.setattr(child, "start", stays)
    yield end
    end()
    guarded.close_left()
    assert not guarded._left


def send_one(path: Path) -> socket.socket:
    """Send a descriptor; give the end that hears of it as soon as nobody has it open any more."""
    heard, sent = socket.socketpair()
    with sent, socket.socket(socket.AF_UNIX) as one:
        one.connect(str(path))
        socket.send_fds(one, [b"x"], [sent.fileno()])
        with contextlib.suppress(ConnectionError):
            one.recv(1)  # until it ended
    return heard


def is_open(heard: socket.socket) -> bool:
    """Return whether somebody has what was sent."""
    return not polling.readable(heard.fileno(), seconds=0)


def test_many_whose_closing_never_ends_take_few_children_and_no_thread(
    short_dir: Path, endless: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    with running(short_dir) as one:
        with Client(one.path) as honest:
            honest.call(requests.GetStatus())
        before = {thread.name for thread in threading.enumerate()}
        heard = [send_one(one.path) for _ in range(guarded._MOST + 20)]
        with Client(one.path) as honest:
            honest.call(requests.GetStatus())

        assert len(guarded._closers) == guarded._MOST
        assert len(guarded._left) == 20
        new = {thread.name for thread in threading.enumerate()} - before
        assert not [name for name in new if not name.startswith("asyncio")]  # those answer
        assert [record.message for record in caplog.records if record.name == guarded.__name__] == [
            f"16 processes wait for descriptors of user {os.getuid()} to be closed, and more stay open"
        ]
        assert all(map(is_open, heard))

        endless()
        with Client(one.path) as honest:
            honest.call(requests.GetStatus())
        # All that was left went to one child, which may have ended by now.
        assert len(guarded._closers) <= 1
        # All that waited is closed by that one.
        for end in heard:
            assert end.recv(1) == b""
            end.close()


@pytest.mark.parametrize("apart", [True, False])
def test_where_too_much_cannot_be_closed_everybody_s_socket_rests_and_the_administrators_does_not(
    short_dir: Path,
    endless: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    apart: bool,
) -> None:
    """Whether it has a thread of its own, or is a user's daemon's whose ``socket_mode`` lets everybody in."""
    monkeypatch.setattr(guarded, "_MOST", 1)
    monkeypatch.setattr(guarded, "_MOST_OPEN", 5)

    def ask(path: Path) -> None:
        with Client(path) as honest:
            honest.call(requests.GetStatus())

    def rests() -> list[str]:
        while not (said := [one.message for one in caplog.records if one.message.startswith("nobody")]):
            time.sleep(0.01)
        return said

    def doors() -> HttpListener:
        return Server(handlers(Standin()), owner_only)

    async def serve() -> None:
        public, administrators = PublicListener(doors) if apart else doors(), doors()
        await public.start([unix_sockets.bind(short_dir / "p", 0o600 if apart else 0o666)])
        await administrators.start([unix_sockets.bind(short_dir / "a", 0o600)])
        try:
            heard = [await asyncio.to_thread(send_one, short_dir / "p") for _ in range(6)]
            asked = asyncio.create_task(asyncio.to_thread(ask, short_dir / "p"))
            said = await asyncio.to_thread(rests)
            await asyncio.to_thread(ask, short_dir / "a")
            assert not asked.done()
            assert all(map(is_open, heard))

            endless()
            await asked
            assert said == [
                f"nobody is let in: what was sent by user {os.getuid()} cannot be closed, and too much of it is open"
            ]
            assert "asyncio" not in {one.name for one in caplog.records if one.levelno >= logging.WARNING}
            for end in heard:
                assert end.recv(1) == b""
                end.close()
        finally:
            await public.stop()
            await administrators.stop()

    asyncio.run(serve())


def test_whose_descriptors_stay_open_is_asked_no_more(
    short_dir: Path, endless: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded, "_MOST", 1)
    monkeypatch.setattr(guarded, "_MOST_OF_ONE", 2)
    path, uid, heard = short_dir / "s", os.getuid(), []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        for _ in range(3):
            with sockets.connect(path, owner=uid) as asks:
                ours, theirs = socket.socketpair()
                with listening.accept()[0] as one, theirs:
                    socket.send_fds(one, [b"x"], [theirs.fileno()])
                with pytest.raises(ConnectionAbortedError):
                    asks.recv(1)
                heard.append(ours)
        with pytest.raises(OSError, match="cannot be closed"):
            sockets.connect(path, owner=uid)
        endless()
        guarded.close_left()
        sockets.connect(path, owner=uid).close()
    for end in heard:
        assert end.recv(1) == b""
        end.close()


def test_who_has_something_left_to_close_gives_it_away_at_the_end(short_dir: Path) -> None:
    program = """
import sys
from xpucached import guarded, sockets
from xpucached.processes import child
start = child.start
child.start = lambda words, **more: start(("sh", "-c", 'echo $0; exec $0', *words), **{**more, "stdout": 1})
sockets.refuse_descriptors = lambda one: None
guarded._MOST = 0
one = sockets.connect(sys.argv[1])
one.settimeout(60)
try:
    one.recv(1)
except ConnectionAbortedError:
    one.close()
print(len(guarded._left), flush=True)
"""
    with sender("listen", short_dir / "s", b"x") as attacker:
        words = [sys.executable, "-c", program, str(short_dir / "s")]
        asks = subprocess.run(words, stdout=subprocess.PIPE, timeout=60, check=False)
        assert (asks.returncode, asks.stdout) == (0, b"1\ncat\n")
        assert ended(attacker)
