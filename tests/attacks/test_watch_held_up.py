"""A user hands xpucached-watch descriptors whose closing takes as long as that user likes, or much to look up."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import TYPE_CHECKING, Final

import pytest

from tests.attacks.watching import LEAF, at_work, descriptors
from tests.flow.test_watchd import SOMEBODY, Client, entry, rights
from xpucached.watchd import clients as watchd_clients
from xpucached.watchd import holder_threads
from xpucached.watchd import server as looking
from xpucached.watchd.server import WatchServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

VICTIM: Final = 23456
ASK: Final = b'{"watch": 1}'


class Lingering:
    """Connections that are closed only when their peer has read everything; and it reads nothing."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._peers: list[socket.socket] = []

    def one(self) -> socket.socket:
        """Return one, to be closed by its last holder."""
        connection = socket.create_connection(self._listener.getsockname())
        self._peers.append(self._listener.accept()[0])
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 10_000))
        connection.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                connection.send(bytes(1 << 16))
        return connection

    def __enter__(self) -> None:
        """Let a watcher that waits for them end, too, before somebody waits for that."""

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Let all of them go."""
        for one in (self._listener, *self._peers):
            one.close()


@pytest.fixture
def lingering() -> Iterator[Lingering]:
    """Return such connections; afterwards nobody waits for them."""
    rights()
    one = Lingering()
    yield one
    one.end()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a directory of another user's."""
    place = tmp_path / "store"
    (place / LEAF).mkdir(parents=True)
    return owned(place, VICTIM)


def owned(place: Path, uid: int) -> Path:
    """Return a directory to a user."""
    for one in (place, *place.rglob("*")):
        os.chown(one, uid, uid)
    return place


def hand_in(connection: socket.socket, lingering: Lingering, words: bytes = ASK, count: int = 1) -> None:
    """Pass such a connection, so often, and keep none; before the watcher runs, for who closes it last waits."""
    with lingering.one() as one:
        socket.send_fds(connection, [words], [one.fileno()] * count)


def after_nonsense(client: Client, lingering: Lingering) -> None:
    """Pass one in a message that nobody receives any more."""
    client.connection.send(b"nonsense")
    hand_in(client.connection, lingering)


def and_go(client: Client, lingering: Lingering) -> None:
    """Pass one, and hang up."""
    hand_in(client.connection, lingering)
    client.connection.close()


@pytest.mark.parametrize(
    "way",
    [
        lambda client, lingering: hand_in(client.connection, lingering),
        lambda client, lingering: hand_in(client.connection, lingering, count=2),
        lambda client, lingering: hand_in(client.connection, lingering, count=253),
        lambda client, lingering: hand_in(client.connection, lingering, b"nonsense"),
        lambda client, lingering: hand_in(client.connection, lingering, b'{"forget": 1}'),
        after_nonsense,
        and_go,
    ],
    ids=["no directory", "one more", "many more", "nonsense", "forget", "never received", "gone"],
)
def test_what_cannot_be_closed_holds_up_nobody_else(
    way: Callable[[Client, Lingering], object], lingering: Lingering, root: Path
) -> None:
    watch_server = WatchServer(loads=False)
    attacker, victim = Client(watch_server, SOMEBODY), Client(watch_server, VICTIM)
    way(attacker, lingering)
    with at_work(watch_server), lingering:
        assert victim.watch(root) == ""
        entry(root)
        victim.until(f"{LEAF}/0.src")
        while [holder.name for holder in tuple(watch_server._threads._lines)] != [str(SOMEBODY)]:
            os.sched_yield()
        lingering.end()


def test_who_is_one_too_many_is_not_waited_for(lingering: Lingering, root: Path) -> None:
    watch_server = WatchServer(loads=False)
    many = [Client(watch_server, SOMEBODY) for _ in range(16)]
    victim = Client(watch_server, VICTIM)
    os.seteuid(SOMEBODY)
    try:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    finally:
        os.seteuid(0)
    hand_in(ours, lingering)
    watch_server.take(its)
    with at_work(watch_server), ours, lingering:
        assert len(many) == 16
        assert victim.watch(root) == ""
        lingering.end()


def test_only_so_many_that_cannot_be_closed_are_received(lingering: Lingering, root: Path) -> None:
    before = descriptors()
    watch_server = WatchServer(loads=False)
    many = [Client(watch_server, SOMEBODY) for _ in range(16)]
    victim = Client(watch_server, VICTIM)
    for client in many:
        hand_in(client.connection, lingering, count=253)
    with at_work(watch_server), lingering:
        while not any(one.paused for one in tuple(watch_server._clients)):
            os.sched_yield()
        assert victim.watch(root) == ""
        assert watch_server._threads.held() <= watchd_clients._MOST_WAITING + 253 + 16
        lingering.end()
        # Who was not heard is heard again, and sent away.
        for client in many:
            assert client.connection.recv(100) == b""
    for client in (*many, victim):
        client.connection.close()
    assert descriptors(before) <= before


def test_who_is_refused_without_end_keeps_others_out_and_not_unserved(
    lingering: Lingering, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchd_clients, "_MOST_REFUSED", 5)
    watch_server = WatchServer(loads=False)
    victim = Client(watch_server, VICTIM)
    for _ in range(16):
        Client(watch_server, 0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(64)
        watch_server.listen(listener)
        for _ in range(10):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
                one.connect(str(tmp_path / "s"))
                hand_in(one, lingering)
        with at_work(watch_server), lingering:
            while not watch_server._acceptor.resting:
                os.sched_yield()
            assert victim.watch(root) == ""
            assert watch_server._threads.held() <= 6
            lingering.end()
            while watch_server._acceptor.resting or watch_server._threads.held():
                os.sched_yield()


def test_a_message_that_is_cut_off_is_closed_as_far_as_it_came(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rights()
    monkeypatch.setattr(looking, "_MOST_RECEIVED", 2)
    watch_server = WatchServer(loads=False)
    client, victim = Client(watch_server, SOMEBODY), Client(watch_server, VICTIM)
    with at_work(watch_server), (root / "file").open("wb") as file:
        before = descriptors()
        socket.send_fds(client.connection, [ASK], [file.fileno()] * 4)
        assert client.connection.recv(100) == b""
        assert victim.watch(root) == ""
        while watch_server._threads.held():
            os.sched_yield()
        # One is the victim's directory; the client's connection is gone.
        assert descriptors(before + 2) <= before + 2


def test_no_more_threads_wait_than_there_may_be(lingering: Lingering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holder_threads, "_MOST", 2)
    watch_server = WatchServer(loads=False)
    clients = [Client(watch_server, SOMEBODY + number) for number in range(4)]
    for client in clients:
        hand_in(client.connection, lingering, b"nonsense")
    with at_work(watch_server), lingering:
        while watch_server._threads.held() < len(clients):
            os.sched_yield()
        assert sum(line.thread is not None for line in tuple(watch_server._threads._lines.values())) == 2
        lingering.end()
        while watch_server._threads.held():
            watch_server._wake()
