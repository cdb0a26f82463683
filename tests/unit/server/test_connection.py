"""`server.connection`: its time limits and its places, on real sockets and a clock that only the test moves."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVarTuple, cast

import pytest
from msgspec.structs import replace

from tests import REPOSITORY
from xpucached.server.connection import Connection, ConnectionLimits, ConnectionPool, Peer, configuration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextvars import Context

    from starlette.types import ASGIApp, Receive, Scope, Send

LIMITS: Final = ConnectionLimits(head_time=10.0, idle_time=30.0, write_time=20.0)
UID: Final = os.geteuid()
ANOTHER: Final = UID + 1

_PIECE: Final = 1 << 16
LONG: Final = 16 * _PIECE
"""Bytes of an answer that no socket's buffer takes at once."""


_Args = TypeVarTuple("_Args")


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time passes only when it is told so."""

    now = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.timers: list[asyncio.TimerHandle] = []

    def time(self) -> float:
        return self.now

    def call_at(
        self, when: float, callback: Callable[[*_Args], object], *args: *_Args, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = super().call_at(when, callback, *args, context=context)
        self.timers.append(timer)
        return timer

    @property
    def set_for(self) -> list[float]:
        """When something is still to happen."""
        return sorted(one.when() for one in self.timers if not one.cancelled() and one.when() > self.now)

    def settle(self) -> None:
        """Do all that can be done now."""
        for _ in range(20):
            self.run_until_complete(asyncio.sleep(0))

    def let(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.settle()


class Application:
    """Answers at once, when it is let (``/later``), or with as many bytes as the path says (``/4096``)."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.state: Scope = {}
        self.scheme = ""
        self.sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.state, self.scheme = scope["state"], scope["scheme"]
        while (await receive()).get("more_body"):
            pass
        if scope["path"] == "/later":
            await self.go.wait()
        size = int(scope["path"][1:]) if scope["path"][1:].isdigit() else 2
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
        self.sent = 0
        while self.sent < size:
            piece = b"x" * min(size - self.sent, _PIECE)
            self.sent += len(piece)
            await send({"type": "http.response.body", "body": piece, "more_body": self.sent < size})


@dataclass
class Client:
    """The other end of one connection."""

    clock: Clock
    socket: socket.socket
    connection: Connection

    def send(self, text: bytes) -> None:
        self.socket.sendall(text)
        self.clock.settle()

    def ask(self, path: str) -> None:
        self.send(b"GET %s HTTP/1.1\r\nHost:\r\n\r\n" % path.encode())

    def take_little(self) -> None:
        """Let the kernel keep little of what is not read."""
        end: socket.socket = self.connection.transport.get_extra_info("socket")
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    def read(self) -> bytes:
        """Read all that there is."""
        received = b""
        while True:
            try:
                chunk = self.socket.recv(1 << 16)
            except (BlockingIOError, ConnectionResetError):
                return received
            if not chunk:
                return received
            received += chunk
            self.clock.settle()

    def connected(self) -> bool:
        return not self.connection.transport.is_closing()

    def hang_up(self) -> None:
        self.socket.close()
        self.clock.settle()


@dataclass
class Door:
    """Where clients connect."""

    clock: Clock
    application: Application
    places: ConnectionPool
    clients: list[Client] = field(default_factory=list)

    def connect(self) -> Client:
        config = configuration(cast("ASGIApp", self.application), self.places.limits)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # noqa: FBT003 - as sockets have it
        theirs.setblocking(False)  # noqa: FBT003 - as sockets have it
        made = self.clock.connect_accepted_socket(lambda: Connection(config, self.places, {}, self.clock), ours)
        _, connection = self.clock.run_until_complete(made)
        self.clock.settle()
        self.clients.append(Client(self.clock, theirs, connection))
        return self.clients[-1]

    def limit(self, **limits: int) -> None:
        """Give those who connect from now on other limits."""
        self.places.limits = replace(self.places.limits, **limits)

    def give(self, client: Client, uid: int) -> None:
        """Let a connection be another user's."""
        self.places.held[client.connection.peer.uid] -= 1
        self.places.held[uid] += 1
        self.places.held = +self.places.held
        client.connection.peer = Peer(1, uid, 1)


@pytest.fixture
def door() -> Iterator[Door]:
    clock = Clock()
    one = Door(clock, Application(), ConnectionPool(LIMITS))
    yield one
    one.application.go.set()
    for client in one.clients:
        client.socket.close()
        client.connection.abort()
    clock.settle()
    held, idle, timers = one.places.held, one.places.idle, clock.set_for
    clock.close()
    # Whatever a test did: nothing holds a place, and no timer keeps a connection that is gone.
    assert (held, idle, timers) == ({}, {}, [])


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", answer)]


def refused(answer: bytes) -> tuple[int, str]:
    """Return status and message of a refusal, of which every byte is counted."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"Content-Length: %d\r\n" % len(body) in head
    assert b"Connection: close" in head
    (status,) = statuses(answer)
    return status, json.loads(body)["error"]["message"]


# -- the head -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", [b"", b"GET /", b"GET / HTTP/1.1\r\nHost:\r\n"])
def test_a_head_that_does_not_come_is_waited_for_so_long(door: Door, head: bytes) -> None:
    client = door.connect()
    client.send(head)
    door.clock.let(9.9)
    assert (client.read(), client.connected()) == (b"", True)

    door.clock.let(0.1)
    assert refused(client.read()) == (408, "the request did not arrive in time")
    assert not client.connected()
    assert (door.places.held, door.places.idle) == ({}, {})


def test_a_head_in_pieces_has_no_more_time(door: Door) -> None:
    client = door.connect()
    for piece in (b"GET / ", b"HTTP/1.1\r\n", b"Ho"):
        door.clock.let(3)
        client.send(piece)
    door.clock.let(1)

    assert refused(client.read())[0] == 408


def test_who_has_asked_is_not_sent_away_while_the_answer_is_made(door: Door) -> None:
    client = door.connect()
    door.clock.let(9)
    client.ask("/later")
    assert door.clock.set_for == []
    door.clock.let(1000)
    assert (client.read(), client.connected()) == (b"", True)

    door.application.go.set()
    door.clock.settle()
    assert statuses(client.read()) == [200]


def test_who_asked_may_be_silent_for_longer(door: Door) -> None:
    client = door.connect()
    client.ask("/")
    assert statuses(client.read()) == [200]
    door.clock.let(29.9)
    assert client.connected()
    assert door.clock.set_for == [30]

    door.clock.let(0.1)
    assert (client.read(), client.connected()) == (b"", False)


def test_every_head_has_its_time(door: Door) -> None:
    client = door.connect()
    door.clock.let(5)
    for _ in range(3):
        client.ask("/")
        assert statuses(client.read()) == [200]
        door.clock.let(15)
    client.send(b"GET ")
    door.clock.let(9.9)
    assert client.connected()

    door.clock.let(0.1)
    assert refused(client.read())[0] == 408


def test_who_hangs_up_leaves_no_timer(door: Door) -> None:
    silent, idle = door.connect(), door.connect()
    idle.ask("/")
    assert len(door.clock.set_for) == 2

    silent.hang_up()
    assert door.clock.set_for == [30]
    idle.hang_up()
    assert door.clock.set_for == []


def test_after_goodbye_nothing_more_is_read_or_said(door: Door) -> None:
    client = door.connect()
    client.connection.transport.pause_reading()
    client.send(b"GET /")
    door.clock.let(10)
    said = client.read()
    client.connection.data_received(b" HTTP/1.1\r\nHost:\r\n\r\n")
    door.clock.let(1000)

    assert (refused(said)[0], client.read(), door.places.total_requests) == (408, b"", 0)


def test_who_is_closed_to_already_is_told_nothing(door: Door) -> None:
    client = door.connect()
    client.connection.transport.close()
    client.connection._head_late()
    door.clock.settle()

    assert client.read() == b""


# -- who does not read --------------------------------------------------------------------------------------------


def test_who_does_not_read_is_waited_for_so_long(door: Door) -> None:
    client = door.connect()
    client.ask(f"/{LONG}")
    assert door.clock.set_for == [20]
    door.clock.let(19.9)
    assert client.connected()
    # What makes the answer waits with it.
    assert 0 < door.application.sent < LONG

    door.clock.let(0.1)
    assert not client.connected()
    assert len(client.read()) < LONG
    assert (door.places.held, door.places.idle) == ({}, {})


def test_who_reads_again_is_not_cut_off(door: Door) -> None:
    client = door.connect()
    for _ in range(3):
        client.ask(f"/{LONG}")
        door.clock.let(15)
        answer = client.read()
        assert (statuses(answer[:99]), len(answer) > LONG) == ([200], True)
        # What is left is the time in which to ask again.
        assert door.clock.set_for == [door.clock.now + 30]
        door.clock.let(10)
        assert client.connected()


def test_every_pause_has_its_time(door: Door) -> None:
    client = door.connect()
    client.ask(f"/{LONG}")
    door.clock.let(15)
    client.read()
    client.ask(f"/{LONG}")
    door.clock.let(19.9)
    assert client.connected()

    door.clock.let(0.1)
    assert not client.connected()


def test_a_second_pause_gives_no_more_time(door: Door) -> None:
    client = door.connect()
    client.ask(f"/{LONG}")
    door.clock.let(15)
    client.connection.pause_writing()

    assert door.clock.set_for == [20]


@pytest.mark.parametrize("end", ["nonsense", "late"])
def test_who_did_not_read_before_goodbye_keeps_nothing_of_ours_open(door: Door, end: str) -> None:
    client = door.connect()
    transport = client.connection.transport
    client.take_little()
    client.ask(f"/{_PIECE}")
    assert transport.get_write_buffer_size() > 0
    if end == "nonsense":
        client.send(b"\0\r\n\r\n")
    else:
        client.send(b"GET")
        door.clock.let(60)

    assert not client.connected()
    assert transport.get_write_buffer_size() == 0
    assert door.places.held == {}


@pytest.mark.parametrize(
    ("head", "half"),
    [
        pytest.param(b"", False, id="it is idle"),
        pytest.param(b"Connection: close\r\n", False, id="it asked for it"),
        pytest.param(b"", True, id="it says no more"),
    ],
)
def test_who_is_closed_to_and_never_reads_is_cut_off(door: Door, head: bytes, *, half: bool) -> None:
    client = door.connect()
    client.take_little()
    client.send(b"GET /%d HTTP/1.1\r\nHost:\r\n%s\r\n" % (_PIECE // 2, head))
    if half:
        client.socket.shutdown(socket.SHUT_WR)
        door.clock.settle()
    # As long as the descriptor is ours, so is the place.
    door.clock.let(19.9)
    assert (door.places.connections, door.places.held) == ({client.connection}, {UID: 1})

    door.clock.let(0.1)
    assert (door.places.connections, door.places.held) == (set(), {})
    assert len(client.read()) < _PIECE // 2


def test_who_reads_late_what_was_said_before_the_close_gets_all_of_it(door: Door) -> None:
    client = door.connect()
    client.take_little()
    client.send(b"GET /%d HTTP/1.1\r\nHost:\r\nConnection: close\r\n\r\n" % (_PIECE // 2))
    door.clock.let(19.9)
    answer = client.read()

    assert (statuses(answer[:99]), len(answer) > _PIECE // 2) == ([200], True)
    assert (door.places.connections, door.places.held, door.clock.set_for) == (set(), {}, [])


def test_who_hangs_up_unread_leaves_no_timer(door: Door) -> None:
    client = door.connect()
    client.ask(f"/{LONG}")
    assert door.clock.set_for == [20]

    client.hang_up()
    assert door.clock.set_for == []


@pytest.mark.parametrize(
    ("uid", "less", "stays"),
    [
        pytest.param(UID, 0, True, id="as much as may wait"),
        pytest.param(UID, 1, False, id="more"),
        pytest.param(ANOTHER, 1, True, id="more, for another user"),
    ],
)
def test_so_much_may_wait_for_one_user(door: Door, uid: int, less: int, *, stays: bool) -> None:
    first = door.connect()
    first.ask(f"/{LONG}")
    door.limit(unread=first.connection.transport.get_write_buffer_size() - less)
    second = door.connect()
    door.give(first, uid)
    second.ask(f"/{LONG}")

    assert (first.connected(), second.connected()) == (True, stays)


def test_where_too_much_waits_for_all_together_who_lets_most_wait_is_cut_off(door: Door) -> None:
    few, *many = (door.connect() for _ in range(3))
    for one, uid in ((few, ANOTHER + 1), *((one, ANOTHER) for one in many)):
        one.ask(f"/{LONG}")
        door.give(one, uid)
    waits = [one.connection.transport.get_write_buffer_size() for one in (few, *many)]
    for room, stay in ((sum(waits), [True, True, True]), (sum(waits) - 1, [True, False, True])):
        door.limit(unread_of_all=room)
        last = door.connect()
        last.ask(f"/{LONG}")
        assert last.connected()
        connected = [one.connected() for one in (few, *many)]
        assert sorted(connected) == sorted(stay)
        assert connected[0]
        last.hang_up()


def test_what_waits_for_oneself_alone_is_not_counted(door: Door) -> None:
    door.limit(unread=0, unread_of_all=0)
    client = door.connect()
    client.ask(f"/{LONG}")

    assert client.connected()


# -- pieces, and what is not HTTP ---------------------------------------------------------------------------------


def test_every_request_may_come_in_so_many_pieces(door: Door) -> None:
    door.limit(pieces=3)
    client = door.connect()
    for _ in range(3):
        for piece in (b"GET / ", b"HTTP/1.1\r\n", b"Host:\r\n\r\n"):
            client.send(piece)
        assert statuses(client.read()) == [200]
    for piece in (b"GET / ", b"HTTP/1.1\r\n", b"Host:\r\n", b"\r\n"):
        client.send(piece)

    assert refused(client.read()) == (400, "the request is not HTTP/1.1, or its head is too large")
    assert (client.connected(), door.places.held) == (False, {})


def test_a_body_in_too_many_pieces_is_cut_off(door: Door) -> None:
    door.limit(pieces=3)
    client = door.connect()
    client.send(b"POST / HTTP/1.1\r\nHost:\r\nContent-Length: 9\r\n\r\n")
    for _ in range(2):
        client.send(b"x")
    assert client.connected()
    client.send(b"x")

    assert (client.read(), client.connected()) == (b"", False)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost:\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nHost:\r\nContent-Length: many\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost:\r\nContent-Length: %b\r\n\r\n" % (b"9" * 5000), 400),
    ],
)
def test_what_is_not_taken_is_refused_in_our_own_form(
    door: Door, monkeypatch: pytest.MonkeyPatch, request_: bytes, status: int
) -> None:
    # As h11 before 0.15, which reads numbers of any length.
    monkeypatch.setattr("h11._headers.CONTENT_LENGTH_MAX_DIGITS", 10_000, raising=False)
    client = door.connect()
    client.send(request_)

    assert refused(client.read())[0] == status
    assert (client.connected(), door.places.held, door.places.idle) == (False, {}, {})


# -- places -------------------------------------------------------------------------------------------------------


def test_a_connection_holds_a_place_until_it_ends(door: Door) -> None:
    first, second = door.connect(), door.connect()
    assert (door.places.held, list(door.places.idle)) == ({UID: 2}, [first.connection, second.connection])

    first.hang_up()
    assert (door.places.held, list(door.places.idle)) == ({UID: 1}, [second.connection])
    second.hang_up()
    assert (door.places.held, door.places.idle) == ({}, {})


def test_what_is_asked_for_keeps_its_place_when_the_client_has_left(door: Door) -> None:
    client = door.connect()
    client.ask("/later")
    assert client.connection.busy
    assert len(door.places.tasks) == 1
    client.hang_up()
    assert (door.places.held, len(door.places.tasks)) == ({UID: 1}, 1)

    door.application.go.set()
    door.clock.settle()
    assert (door.places.held, door.places.tasks) == ({}, set())


def test_an_answer_knows_its_peer_and_can_cut_it_off(door: Door) -> None:
    client = door.connect()
    client.ask("/")
    assert door.application.state["peer"] == Peer(os.getpid(), UID, os.getegid())

    door.application.state["abort"]()
    assert not client.connected()


@pytest.mark.skipif(UID != 0, reason="only root can be many users")
def test_a_number_that_has_no_room_beside_a_sign_is_a_user_s_as_well(door: Door) -> None:
    door.connect()  # all that is to be loaded is
    os.seteuid(3_000_000_000)  # who makes a pair of sockets is noted
    try:
        client = door.connect()
    finally:
        os.seteuid(UID)
    assert client.connection.peer.uid == 3_000_000_000


def test_who_waits_is_idle_and_who_is_waited_for_is_not(door: Door) -> None:
    silent, asking, half, done = (door.connect() for _ in range(4))
    done.ask("/")
    asking.ask("/later")
    half.send(b"POST /later HTTP/1.1\r\nHost:\r\nContent-Length: 9\r\n\r\n{")

    # Those who were heard of last come last.
    assert list(door.places.idle) == [silent.connection, done.connection, half.connection]
    assert [one.connection.busy for one in (silent, asking, half, done)] == [False, True, True, False]


def test_a_user_s_oldest_idle_connection_gives_way(door: Door) -> None:
    door.limit(per_user=3)
    theirs = door.connect()
    door.give(theirs, ANOTHER)
    asking, first, second = (door.connect() for _ in range(3))
    asking.ask("/later")
    third = door.connect()
    assert [one.connected() for one in (theirs, asking, first, second, third)] == [True, True, False, True, True]

    door.connect()
    assert [one.connected() for one in (theirs, asking, first, second, third)] == [True, True, False, False, True]
    assert (door.places.held, second.read()) == ({UID: 3, ANOTHER: 1}, b"")


def test_who_is_busy_gives_no_way(door: Door) -> None:
    door.limit(per_user=2)
    busy = [door.connect(), door.connect()]
    for one in busy:
        one.ask("/later")
    late = door.connect()

    assert refused(late.read()) == (503, "too many connections")
    assert (late.connected(), door.places.held) == (False, {UID: 2})
    assert late.connection not in door.places.connections
    # What it sends is not looked at.
    late.connection.data_received(b"GET / HTTP/1.1\r\nHost:\r\n\r\n")
    assert (late.connection.busy, len(door.places.idle)) == (False, 0)


def test_where_all_places_are_held_who_holds_most_gives_way(door: Door) -> None:
    door.limit(total=4)
    mine, *theirs, third = (door.connect() for _ in range(4))
    for one in theirs:
        door.give(one, ANOTHER)
    door.give(third, UID + 2)

    assert door.places.make_room(UID)
    assert [one.connected() for one in (mine, *theirs, third)] == [True, False, True, True]
    # Now there is room.
    assert door.places.make_room(UID)
    assert [one.connected() for one in (mine, *theirs, third)] == [True, False, True, True]


def test_if_who_holds_most_is_busy_the_next_one_gives_way(door: Door) -> None:
    door.limit(total=3)
    mine, *theirs = (door.connect() for _ in range(3))
    for one in theirs:
        one.ask("/later")
        door.give(one, ANOTHER)

    assert door.places.make_room(UID + 2)
    assert [one.connected() for one in (mine, *theirs)] == [False, True, True]


def test_where_all_are_busy_there_is_no_place_for_another_user(door: Door) -> None:
    door.limit(total=1)
    door.connect().ask("/later")

    assert not door.places.make_room(ANOTHER)


def test_who_only_reads_gives_way_to_who_holds_less_and_a_change_does_not(door: Door) -> None:
    door.limit(total=3)
    reading, changing, mine = (door.connect() for _ in range(3))
    for one in (reading, changing):
        door.give(one, ANOTHER)
    for one in (reading, mine):
        one.ask("/later")
    changing.send(b"POST /later HTTP/1.1\r\nHost:\r\nContent-Length: 0\r\n\r\n")

    assert not door.places.make_room(UID)
    assert door.places.make_room(UID + 2)
    assert [one.connected() for one in (reading, changing, mine)] == [False, True, True]


def test_what_hostile_clients_send_fills_no_journal(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    client = door.connect()
    with caplog.at_level(logging.INFO):
        client.send(b"hello\r\n\r\n")
    assert refused(client.read())[0] == 400
    assert caplog.messages == []


def test_an_answer_has_no_head_but_ours_and_what_proxies_say_is_not_believed(door: Door) -> None:
    client = door.connect()
    client.send(b"GET / HTTP/1.1\r\nHost:\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: https\r\n\r\n")
    assert client.read() == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nxx"
    assert door.application.scheme == "http"
    config = configuration(cast("ASGIApp", door.application), LIMITS)
    # What each client asks is no news, and nobody else answers here.
    assert (config.access_log, config.ws_protocol_class, config.lifespan_class.__name__) == (False, None, "LifespanOff")
    assert (config.timeout_keep_alive, config.h11_max_incomplete_event_size) == (LIMITS.idle_time, LIMITS.head)


def test_the_limits_are_those_that_the_manual_promises() -> None:
    limits = ConnectionLimits()
    protocol, security = ((REPOSITORY / "docs" / name).read_text("utf-8") for name in ("protocol.md", "security.md"))
    table = protocol.partition("## Limits")[2]
    promised = (
        f"| {limits.head // 1024} KiB, {limits.head_time:.0f} s |",
        f"| body of a request | {limits.body >> 20} MiB (128 KiB at the host's daemon), {limits.body_time:.0f} s |",
        f"| reads that bring one request | {limits.pieces} |",
        f"| idle connection | {limits.idle_time:.0f} s |",
        f"| {limits.write_time:.0f} s, and {limits.unread // (1 << 20)} MiB for all of one user |",
        f"when the daemon ends | {limits.stop_time:.0f} s |",
        f"| connections of one user | {limits.per_user} |",
        f"| connections of all | {limits.total} |",
    )
    assert [one for one in promised if one not in table] == []
    assert f"are the heartbeat, at least every {limits.heartbeat:.0f} seconds." in protocol
    assert f"| Of answers that nobody reads {limits.unread_of_all >> 20} MiB may wait for all users" in security


def test_one_user_holds_as_many_places_as_the_threat_model_says() -> None:
    places = ConnectionPool(ConnectionLimits())
    places.held[UID] = 63
    assert places.make_room(UID)
    places.held[UID] = 64

    assert not places.make_room(UID)
    assert places.make_room(ANOTHER)


def test_who_is_not_welcome_is_told_so_unread(door: Door) -> None:
    door.places.admits = lambda uid: uid != UID
    client = door.connect()

    assert refused(client.read()) == (403, "this is another user's daemon")
    assert (client.connected(), door.places.held, door.places.connections) == (False, {}, set())
    client.connection.data_received(b"GET / HTTP/1.1\r\nHost:\r\n\r\n")
    assert (client.connection.busy, door.clock.set_for) == (False, [])


def test_what_comes_after_a_connection_was_dropped_is_not_read(door: Door) -> None:
    client = door.connect()
    client.send(b"POST / HTTP/1.1\r\nHost:\r\nContent-Length: 2\r\n\r\n{")
    client.connection.drop()
    client.connection.data_received(b"}")

    # The first half was handed on already.
    assert client.connection.cycle.body == b""


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(Connection.drop, id="dropped"),
        pytest.param(Connection._head_late, id="too late"),
        pytest.param(lambda one: one.data_received(b"hello\r\n\r\n"), id="not HTTP"),
    ],
)
def test_who_is_sent_away_gives_the_place_back_at_once(door: Door, end: Callable[[Connection], None]) -> None:
    client = door.connect()
    end(client.connection)

    assert (client.connected(), door.places.held, door.places.idle) == (False, {}, {})
