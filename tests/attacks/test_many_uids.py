"""One person has 65,536 uids (/etc/subuid), or has the machine look where nothing ever answers."""

from __future__ import annotations

import errno
import os
import resource
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.attacks.watching import LEAF, at_work, descriptors
from tests.flow.test_watchd import Client, rights
from xpucached.watchd import acceptor, clients, holder_threads, ownership
from xpucached.watchd.server import WatchServer
from xpucached.watchd.uids import QuotaHolder, QuotaHolders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ACCOUNT: Final = 40_000
FIRST: Final = 300_000
HIGH: Final = 3_000_000_000
"""More than a number with a sign has room for."""


@pytest.fixture
def holders(tmp_path: Path) -> QuotaHolders:
    """Return a host with one account that has subordinate uids."""
    (tmp_path / "passwd").write_text(f"root:x:0:0::/root:/bin/sh\nada:x:{ACCOUNT}:100::/:/bin/sh\n+::::::\n")
    (tmp_path / "subuid").write_text(
        f"# a word\nada:{FIRST}:65536\nada:{HIGH}:65536\n{ACCOUNT + 1}:900000:10\nbad:x:y\nshort:1\n"
    )
    return QuotaHolders(tmp_path / "passwd", tmp_path / "subuid")


@pytest.fixture
def _root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be many users")
    rights()


def test_who_holds_what_a_uid_takes(holders: QuotaHolders, tmp_path: Path) -> None:
    assert holders.holder(0) == QuotaHolder("0", known=True)
    assert holders.holder(ACCOUNT) == QuotaHolder(str(ACCOUNT), known=True)
    assert holders.holder(ACCOUNT + 1) == QuotaHolder(str(ACCOUNT + 1), known=False)
    assert {holders.holder(uid) for uid in (FIRST, FIRST + 65535)} == {
        QuotaHolder("subordinate uids of ada", known=False)
    }
    assert holders.holder(900_009) == QuotaHolder(f"subordinate uids of {ACCOUNT + 1}", known=False)
    assert {holders.holder(uid).name for uid in (FIRST - 1, FIRST + 65536)} == {str(FIRST - 1), str(FIRST + 65536)}

    # Files change, or are not there.
    (tmp_path / "passwd").write_text(f"eve:x:{FIRST}:100::/:/bin/sh\nlonger than before\n")
    (tmp_path / "subuid").unlink()
    assert holders.holder(FIRST) == QuotaHolder(str(FIRST), known=True)
    assert holders.holder(FIRST + 1) == QuotaHolder(str(FIRST + 1), known=False)


def sent_away(client: Client) -> bool:
    """Return whether there was no place for a client."""
    client.connection.settimeout(0)
    try:
        return client.connection.recv(1) == b""
    except BlockingIOError:
        return False


@pytest.mark.usefixtures("_root")
@pytest.mark.parametrize("first", [FIRST, HIGH])
def test_the_uids_of_one_person_s_containers_count_as_one(holders: QuotaHolders, first: int) -> None:
    watch_server = WatchServer(loads=False, holders=holders)
    many = [Client(watch_server, first + number) for number in range(40)]
    person = Client(watch_server, ACCOUNT)
    with at_work(watch_server):
        assert sum(not sent_away(one) for one in many) == 16
        assert not sent_away(person)


@pytest.mark.usefixtures("_root")
def test_half_of_all_places_are_kept_for_who_has_an_account(
    holders: QuotaHolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch_server = WatchServer(loads=False, holders=holders)
    room = (clients._RESERVE + 20, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: room)
    many = [Client(watch_server, 500_000 + number) for number in range(40)]
    person, root = Client(watch_server, ACCOUNT), Client(watch_server, 0)
    with at_work(watch_server):
        assert sum(not sent_away(one) for one in many) == 10
        assert not sent_away(person)
        assert not sent_away(root)


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let directories called ``silent`` never be looked at to the end, until this is set."""
    answer, judged = threading.Event(), ownership.judged

    def slow(uid: int, number: int, descriptor: int) -> ownership.Root:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("silent"):  # noqa: PTH115 - no path
            answer.wait()
            raise OSError(errno.EIO, "at last")
        return judged(uid, number, descriptor)

    monkeypatch.setattr(ownership, "judged", slow)
    yield answer
    answer.set()


@pytest.mark.usefixtures("_root")
def test_directories_that_do_not_answer_hold_their_own_user_only(
    silence: threading.Event, tmp_path: Path, holders: QuotaHolders
) -> None:
    silent, good = tmp_path / "silent", tmp_path / "good"
    silent.mkdir()
    (good / LEAF).mkdir(parents=True)
    watch_server = WatchServer(loads=False, holders=holders)
    threads = watch_server._threads
    many = [Client(watch_server, 600_000 + number) for number in range(holder_threads._MOST_UNKNOWN)]
    person = Client(watch_server, 0)
    with at_work(watch_server):
        for one in many:
            one.ask(silent)
        while threads.held() < len(many):
            os.sched_yield()
        threads._patience = 0.0
        watch_server._wake()
        assert ["does not answer" in one.answer(1) for one in many] == [True] * len(many)
        threads._patience = 1000.0
        # Their threads are still there, and are not waited for.
        assert "handed in before" in many[0].watch(silent, 2)
        assert len(threads._lines) == len(many)
        assert "do not answer" in Client(watch_server, 500_000).watch(good)
        assert person.watch(good) == ""

        silence.set()
        while threads.held():
            watch_server._wake()
        assert "at last" in many[0].watch(silent, 3)


@pytest.mark.usefixtures("_root")
def test_who_goes_while_what_was_asked_is_worked_on_leaves_nothing(
    silence: threading.Event, tmp_path: Path, holders: QuotaHolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, good = tmp_path / "silent", tmp_path / "good"
    silent.mkdir()
    (good / LEAF).mkdir(parents=True)
    todo: list[Callable[[], object]] = []
    watch_server = WatchServer(loads=False, holders=holders, turn=lambda: todo and todo.pop()())
    threads, give_up = watch_server._threads, watch_server._give_up
    other = Client(watch_server, 0)
    before = os.listdir("/proc/self/fd")
    client = Client(watch_server, 0)
    (gone,) = [one for one in watch_server._clients if one.connection.fileno() not in set(map(int, before))]
    went: list[bool] = []

    def ask_and_go() -> None:
        client.ask(good, 2)
        client.connection.close()
        threads._patience = 0.0

    def given_up() -> None:
        # That nobody waits any more is told to who has gone; and what was waited for answers before the next is asked.
        here = gone in watch_server._clients
        give_up()
        if here and gone not in watch_server._clients:
            went.append(2 not in gone.asked)
            threads._patience = 1000.0
            silence.set()
            while threads.held():
                os.sched_yield()

    with at_work(watch_server):
        client.ask(silent)
        while not gone.asked:
            os.sched_yield()
        monkeypatch.setattr(watch_server, "_give_up", given_up)
        todo.append(ask_and_go)
        watch_server._wake()
        while not went:
            os.sched_yield()
        # It is asked after whatever the other one left.
        assert "is not watched" in other.watch(Path("/proc"))
        while threads.held():
            os.sched_yield()
        assert went == [True]
        assert not watch_server._owners
        assert not watch_server._marks.groups
        assert (gone.asked, gone.roots) == ({}, {})
        assert descriptors(len(before)) <= len(before)


@pytest.mark.usefixtures("silence", "_root")
def test_many_who_do_not_answer_leave_a_place_for_who_is_new(tmp_path: Path, holders: QuotaHolders) -> None:
    """Before anybody is given up, and again and again: nobody's directory is looked at instead of another's."""
    silent, good = tmp_path / "silent", tmp_path / "good"
    silent.mkdir()
    (good / LEAF).mkdir(parents=True)
    for one in (good, *good.rglob("*")):
        os.chown(one, 500_000, 500_000)
    watch_server = WatchServer(loads=False, holders=holders)
    many = [Client(watch_server, 600_000 + number) for number in range(20)]
    with at_work(watch_server):
        for client in many:
            for number in range(3):
                client.ask(silent, number)
        assert Client(watch_server, 500_000).watch(good) == ""


@pytest.mark.usefixtures("_root")
def test_a_thread_that_cannot_begin_is_no_user_s_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, holders: QuotaHolders
) -> None:
    (tmp_path / LEAF).mkdir(parents=True)
    watch_server = WatchServer(loads=False, holders=holders)
    client = Client(watch_server, 0)
    with at_work(watch_server):
        with monkeypatch.context() as without:
            without.setattr(threading.Thread, "start", refuse)
            assert "no thread" in client.watch(tmp_path)
        assert client.watch(tmp_path) == ""


def test_what_cannot_be_closed_for_want_of_a_thread_wakes_nobody_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rung: list[None] = []
    threads: holder_threads.HolderThreads[None] = holder_threads.HolderThreads(lambda: rung.append(None))
    holder, end = QuotaHolder("1000", known=True), os.pipe()
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", refuse)
        threads.close(holder, *end)
        assert not list(threads.overdue())
        assert (rung, threads.of(holder)) == ([], 2)
    # As soon as there is one, they are closed.
    assert not list(threads.overdue())
    while not rung:
        os.sched_yield()
    assert threads.of(holder) == 0


def refuse(_: threading.Thread) -> None:
    """Start no thread."""
    raise RuntimeError("can't start new thread")


def test_who_cannot_be_let_in_for_want_of_descriptors_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(acceptor, "REST", 0.0)
    watch_server = WatchServer(loads=False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        watch_server.listen(listener)
        watch_server._acceptor.accept(Full(listener))  # type: ignore[arg-type] # what is used of a socket
        assert watch_server._acceptor.resting
        # It would wake us again and again.
        assert listener not in {key.fileobj for key in watch_server._selector.get_map().values()}
        watch_server._acceptor.resting = [listener]
        watch_server._acceptor.resume()
        assert listener in {key.fileobj for key in watch_server._selector.get_map().values()}
        watch_server._close()


class Full:
    """A listening socket of a process without descriptors."""

    def __init__(self, listener: socket.socket) -> None:
        self.fileno = listener.fileno

    def accept(self) -> None:
        """Find no number free."""
        raise OSError(errno.EMFILE, "Too many open files")
