"""What the client makes of answers: those of a daemon, of one that is stuck, and of whoever listens in its place."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from xpucached import deadlines, errors, sockets
from xpucached.api import client, requests
from xpucached.api.client import Client
from xpucached.domain.names import JobId, ModelName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OK = b'{"api": 1, "data": {"api": 1, "version": "7"}}'
HELLO = requests.Hello(1, "7")


def answer(body: bytes, status: str = "200 OK", length: int | None = None) -> bytes:
    """Write an answer as a daemon does."""
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), length or len(body), body)


@dataclass
class Listener:
    """Listens in a thread, and says what a test gave it: an answer for each request, over one connection or more."""

    path: Path
    answers: list[bytes]
    slowly: float = 0.0  #: before each answer
    each: int = 1 << 30  #: so many bytes of an answer at once, with that pause between them
    heard: list[bytes] = field(default_factory=list)
    connections: int = 0
    drop: bool = False  #: end a connection after each answer without a word of it

    def __enter__(self) -> Self:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.path))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while self.answers:
                peer, _ = self._socket.accept()
                self.connections += 1
                with peer, contextlib.suppress(OSError):
                    self._talk(peer)

    def _talk(self, peer: socket.socket) -> None:
        while self.answers and (head := peer.recv(1 << 16)):
            self.heard.append(head)
            said = self.answers.pop(0)
            for start in range(0, len(said), self.each):
                time.sleep(self.slowly)
                peer.sendall(said[start : start + self.each])
            if self.drop:
                return
        if not self.answers:
            # What is left to be said is nothing, and whoever waits for more is to notice that by itself.
            peer.recv(1 << 16)


@pytest.fixture
def path(short_dir: Path) -> Path:
    """Where it listens."""
    return short_dir / "s"


def test_an_answer_comes_as_the_value_that_it_is(path: Path) -> None:
    with Listener(path, [answer(OK)] * 3) as there, Client(path) as asks:
        assert asks.call(requests.GetHello()).value == HELLO
        assert asks.call(requests.GetHello()).data == {"api": 1, "version": "7"}
        assert there.connections == 1
        # The daemon may close an old connection at any moment, and a change must not be sent twice.
        asks.call(requests.ScanStores())
        assert there.connections == 2
        asks.close()
    assert there.heard[0].startswith(b"GET /v1 HTTP/1.1\r\n")
    assert b"Content-Type" not in there.heard[0]


@pytest.mark.parametrize(
    ("said", "kind", "why"),
    [
        (b'{"error": {"code": "conflict", "message": "so", "hint": "wait"}}', errors.Conflict, "so"),
        (b'{"error": {"code": "never-heard", "message": "so"}}', errors.XpucachedError, "so"),
        (b'{"error": []}', errors.Unavailable, "the answer is not xpucached's"),
        (b'{"datum": 1}', errors.Unavailable, "the answer is not xpucached's"),
        (b"[1]", errors.Unavailable, "the answer is not xpucached's"),
        (b"<html>", errors.Unavailable, "the answer is not xpucached's"),
    ],
)
def test_what_is_no_answer_is_a_refusal_or_another_program(
    path: Path, said: bytes, kind: type[errors.XpucachedError], why: str
) -> None:
    with Listener(path, [answer(said)]), Client(path) as asks, pytest.raises(errors.XpucachedError) as caught:
        asks.call(requests.GetHello())
    assert (type(caught.value), caught.value.message) == (kind, why)
    assert (caught.value.hint == "wait") == (kind is errors.Conflict)


def test_an_answer_of_another_version_says_so(path: Path) -> None:
    with Listener(path, [answer(b'{"data": {"api": "x"}}')]), Client(path) as asks:
        given = asks.call(requests.GetHello())
    with pytest.raises(errors.XpucachedError, match="cannot be read") as caught:
        _ = given.value
    assert "different versions" in caught.value.hint


def test_an_answer_is_bounded_to_its_last_byte_and_value(path: Path) -> None:
    with Listener(path, [answer(OK)]), Client(path, largest=len(OK)) as asks:
        assert asks.call(requests.GetHello()).value == HELLO
    path.unlink()
    with (
        Listener(path, [answer(OK)]),
        Client(path, largest=len(OK) - 1) as asks,
    ):
        with pytest.raises(errors.XpucachedError, match=f"more than {len(OK) - 1} bytes"):
            asks.call(requests.GetHello())
        # What is left of it would be taken for the beginning of the next.
        assert asks._connection.sock is None
    path.unlink()
    with Listener(path, [answer(OK)]), Client(path, most=3) as asks:
        assert asks.call(requests.GetHello()).value == HELLO
    path.unlink()
    with (
        Listener(path, [answer(OK)]),
        Client(path, most=2) as asks,
        pytest.raises(errors.XpucachedError, match="more than 2 values"),
    ):
        asks.call(requests.GetHello())


def test_an_answer_may_be_so_deep_and_name_files_that_are_no_text(path: Path) -> None:
    asks = Client(path)
    for depth, fits in ((39, True), (40, False)):
        text = b'{"data": %s%s}' % (depth * b"[", depth * b"]")
        with contextlib.nullcontext() if fits else pytest.raises(errors.Unavailable, match="not xpucached's"):
            asks.read(requests.GetHello(), text)
    named = asks.read(requests.GetHello(), b'{"data": {"api": 1, "version": "\\udcff"}}')
    assert named.value.version == "\udcff"


def test_so_much_may_come_until_so_long_whatever_http_says() -> None:
    ours, theirs = socket.socketpair()
    with client._Socket(fileno=ours.detach()) as one, theirs:
        one.left = 3
        theirs.sendall(b"abcd")
        assert one.recv_into(bytearray(3)) == 3
        with pytest.raises(OSError, match="more came than an answer may have"):
            one.recv_into(bytearray(3))
        one.left, one.end = 3, 0.0
        # It is there already, as it is of who sends without a pause.
        theirs.sendall(b"e")
        with pytest.raises(TimeoutError):
            one.recv_into(bytearray(3))


def test_besides_an_answer_a_head_may_come_and_each_question_has_its_own_patience(path: Path) -> None:
    said = answer(OK)
    with Listener(path, [said] * 3), Client(path, largest=1000) as asks:
        asks.call(requests.GetHello())
        stream = asks._connection.stream
        assert stream is not None
        assert (stream.gettimeout(), stream.left) == (60, 1000 + (64 << 10) - len(said))
        asks.call(requests.WaitJob(id=JobId("3"), timeout=7.0))
        assert stream.gettimeout() == 67
        asks.call(requests.GetHello())
        assert (stream.gettimeout(), stream.left) == (60, 1000 + (64 << 10) - len(said))


def test_who_is_silent_over_an_old_connection_is_asked_once(path: Path) -> None:
    with Listener(path, [answer(OK), b"", answer(OK)]), Client(path) as asks:
        asks.call(requests.GetHello())
        asks._patience = 0.05
        with pytest.raises(errors.Unavailable, match="does not answer"):
            asks.call(requests.GetHello())


def test_what_is_left_of_an_answer_that_did_not_come_is_not_taken_for_the_next(path: Path) -> None:
    with Listener(path, [answer(OK, length=len(OK) + 1)]), Client(path, patience=0.2) as asks:
        with pytest.raises(errors.Unavailable, match="does not answer"):
            asks.call(requests.GetHello())
        assert asks._connection.sock is None


def test_the_way_to_a_socket_is_waited_for_where_another_may_have_laid_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, float]] = []

    def ask(place: object, question: Callable[[], socket.socket], seconds: float) -> socket.socket:
        asked.append((place, seconds))
        return question()

    monkeypatch.setattr(deadlines, "ask", ask)
    with Listener(path, [answer(OK)] * 3):
        client.connect(path).close()
        with Client(path) as asks:
            asks.call(requests.GetHello())
        assert asked == []
        with Client(path, owner=os.geteuid(), strict=True) as asks:
            asks.call(requests.GetHello())
        # Not by the path, whose links would be gone after first.
        assert asked == [(f"the socket of user {os.geteuid()}", 10)]


@pytest.mark.parametrize(("owner", "bounded"), [("nobody", False), ("self", False), ("other", True)])
def test_what_another_user_answers_is_bounded_more_tightly(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: str,
    bounded: bool,  # noqa: FBT001 - a parameter
) -> None:
    us = os.geteuid()
    with monkeypatch.context() as patched:
        if owner == "other":
            patched.setattr(os, "geteuid", lambda: us + 1)
        asks = Client(path, owner=None if owner == "nobody" else us)
        assert (asks._largest, asks._most) == ((32 << 20, 1_000_000) if bounded else (256 << 20, None))
        # All of it has to come in time, too.
        assert (asks._end(1.0) is not None) == bounded
    monkeypatch.setattr(client, "_LARGEST_OF_OTHERS", len(OK) - 1)
    with Listener(path, [answer(OK)]):
        if owner == "other":
            # Who listens is who runs this test; so it is the caller that is another.
            monkeypatch.setattr(os, "geteuid", lambda: us + 1)
        with Client(path, owner=None if owner == "nobody" else us) as asks:
            if bounded:
                with pytest.raises(errors.XpucachedError, match=f"more than {len(OK) - 1} bytes"):
                    asks.call(requests.GetHello())
            else:
                assert asks.call(requests.GetHello()).value == HELLO
    path.unlink()
    monkeypatch.setattr(client, "_LARGEST_OF_OTHERS", 1 << 20)
    monkeypatch.setattr(client, "_MOST_OF_OTHERS", 2)
    if owner == "other":
        with (
            Listener(path, [answer(OK)]),
            Client(path, owner=us) as asks,
            pytest.raises(errors.XpucachedError, match="more than 2 values"),
        ):
            asks.call(requests.GetHello())


def test_more_than_an_answer_may_have_is_not_read_whatever_its_length_says(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_HEAD", 1000)
    endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n" + b"x" * 100_000
    with (
        Listener(path, [endless], each=500) as there,
        Client(path, largest=1000) as asks,
        pytest.raises(errors.XpucachedError),
    ):
        asks.call(requests.GetHello())
    assert there.heard


def test_a_silent_daemon_is_given_up_and_a_wait_is_waited_for(path: Path) -> None:
    with (
        Listener(path, [answer(OK)], slowly=0.4),
        Client(path, patience=0.1) as asks,
        pytest.raises(errors.Unavailable, match="does not answer") as caught,
    ):
        asks.call(requests.GetHello())
    assert "stuck" in caught.value.hint
    path.unlink()
    with Listener(path, [answer(b'{"data": null}')], slowly=0.4), Client(path, patience=0.1) as asks:
        assert asks.call(requests.WaitJob(id=JobId("3"), timeout=5.0)).data is None


def test_who_sends_a_byte_now_and_then_is_not_waited_for_where_all_has_to_come_in_time(path: Path) -> None:
    with Listener(path, [answer(OK)], slowly=0.05, each=2), Client(path, patience=2.0) as asks:
        assert asks.call(requests.GetHello()).value == HELLO
    path.unlink()
    with (
        Listener(path, [answer(OK)], slowly=0.05, each=2),
        Client(path, patience=0.2, all_in_time=True) as asks,
        pytest.raises(errors.Unavailable, match="does not answer"),
    ):
        asks.call(requests.GetHello())


def test_a_question_is_asked_again_where_the_daemon_had_closed_and_a_change_goes_over_a_new_connection(
    path: Path,
) -> None:
    with Listener(path, [answer(OK)] * 3, drop=True) as there, Client(path) as asks:
        asks.call(requests.GetHello())
        asks.call(requests.GetHello())
        asks.call(requests.ScanStores())
        asks.close()
    assert there.connections == 3
    assert [one.split()[0] for one in there.heard] == [b"GET", b"GET", b"POST"]
    assert b"Content-Type: application/json" in there.heard[2]


def test_what_is_no_http_over_an_old_connection_is_asked_again_over_a_new_one(path: Path) -> None:
    with Listener(path, [answer(OK), b"no HTTP\r\n", answer(OK)]) as there, Client(path) as asks:
        asks.call(requests.GetHello())
        assert asks.call(requests.GetHello()).value == HELLO
        asks.close()
    assert there.connections == 2


def test_a_new_connection_is_not_tried_twice(path: Path) -> None:
    with (
        Listener(path, [b"", b""], drop=True) as there,
        Client(path) as asks,
        pytest.raises(errors.Unavailable, match=r"ended before it answered"),
    ):
        asks.call(requests.GetHello())
    assert there.connections <= 2
    assert len(there.heard) == 1


def test_who_asks_for_another_user_asks_the_host_daemon(path: Path) -> None:
    with Listener(path, [answer(OK)]) as there, Client(path, of="a/b") as asks:
        asks.call(requests.GetModel(name=ModelName("net")))
        asks.close()
    assert there.heard[0].startswith(b"GET /v1/users/a%2Fb/models/net HTTP/1.1\r\n")


def test_who_does_not_answer_is_told_with_what_helps(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whoever asks again is told the same.
    asks = Client(path, hint="start it", source="from a variable")
    for _ in range(2):
        with pytest.raises(errors.Unavailable, match=r"^no daemon answers on ") as absent:
            asks.call(requests.GetHello())
        assert absent.value.hint == "start it"

    with (
        Listener(path, [b"SSH-2.0\r\n"], drop=True),
        Client(path) as other,
        pytest.raises(errors.Unavailable, match="is not xpucached: BadStatusLine"),
    ):
        other.call(requests.GetHello())

    def raises(error: OSError) -> None:
        def connect(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(sockets, "connect", connect)

    for _ in range(2):
        raises(PermissionError())
        with pytest.raises(errors.Denied, match="you may not open"):
            asks.call(requests.GetHello())
    for _ in range(2):
        raises(sockets.UntrustedPeer("another's", "remove it"))
        with pytest.raises(errors.Untrusted, match="another's") as untrusted:
            asks.call(requests.GetHello())
        assert untrusted.value.hint == "from a variable; remove it"
    raises(OSError(5, "broken"))
    with pytest.raises(errors.Unavailable, match=r"no daemon answers on .*broken"):
        asks.call(requests.GetHello())


def stream(*lines: bytes) -> bytes:
    """Write an endless answer that ends."""
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(line), line) for line in lines)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def events(path: Path, *lines: bytes) -> Iterator[str]:
    """Follow such a stream."""
    with Listener(path, [stream(*lines)]) as there, Client(path, patience=5) as asks:
        yield from asks.follow(4)
        asks.close()
    assert b"since=4&follow=true" in there.heard[0]


def test_events_come_line_by_line_without_the_heartbeat(path: Path) -> None:
    assert list(events(path, b'{"a": 1}\n', b"\n", b"  \n", b'{"b": 2}\n')) == ['{"a": 1}', '{"b": 2}']


def test_each_event_may_have_so_many_bytes(path: Path) -> None:
    with Listener(path, [stream(b"1\n", b"2\n")]), Client(path) as asks:
        lines = asks.follow(0)
        for line in ("1", "2"):
            assert next(lines) == line
            assert asks._connection.stream is not None
            # All of it came with the head.
            assert asks._connection.stream.left == (4 << 20) + (64 << 10)


@pytest.mark.parametrize("line", [b'{"a": "\xc3\xa4"}\n', b"x" * 40 + b"\n"])
def test_what_is_no_event_ends_the_stream(path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes) -> None:
    monkeypatch.setattr(client, "_LONGEST_LINE", 40)
    found = events(path, b"x" * 39 + b"\n", line)
    assert next(found) == "x" * 39
    with pytest.raises(errors.Unavailable, match="what came is no event"):
        next(found)


def test_a_stream_that_is_refused_says_why(path: Path) -> None:
    refused = answer(b'{"error": {"code": "denied", "message": "not you"}}', "403 Forbidden")
    with (
        Listener(path, [refused]),
        Client(path) as asks,
        pytest.raises(errors.Denied, match="not you"),
    ):
        next(asks.follow(0))


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"command": ("/x", "\udcff")}, "command.1"),
        ({"command": ("/x",), "variables": {"\udcff": "a"}}, "variables.\udcff"),
        ({"command": ("/x",), "variables": {"A": "\udcff"}}, "variables.A"),
    ],
)
def test_what_is_no_text_is_named_with_its_place(values: dict[str, object], place: str) -> None:
    with pytest.raises(errors.RequestError) as caught:
        client.compose(requests.AddModel(name=ModelName("n"), directory=Path("/"), **values))  # type: ignore[arg-type] # texts
    assert caught.value.message.startswith(f"{place}: this is not UTF-8 text: ")


def test_what_is_unset_is_not_said_in_a_query() -> None:
    assert client.compose(requests.ListRuns(limit=3)) == ("GET", "/v1/runs?limit=3", None)
    assert client.compose(requests.GetHello()) == ("GET", "/v1", None)
    assert client.compose(requests.RemoveModel(name=ModelName("ä/b"))) == ("DELETE", "/v1/models/%C3%A4%2Fb", None)
