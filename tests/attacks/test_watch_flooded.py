"""A user makes what watches lose other people's events, or write without end, by what only this user does."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import itertools
import json
import os
import selectors
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast

import pytest

from tests.attacks.watching import LEAF, OWN, SPY, at_work, descriptors, store
from tests.flow.test_watchd import Client, rights
from xpucached import logs
from xpucached.daemon import user_daemon
from xpucached.domain.triggers import EventsLost, Periodic
from xpucached.settings import loading
from xpucached.watchd import kernel, ownership
from xpucached.watchd.server import WatchServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.users import User
    from xpucached.server.http_listener import Server
    from xpucached.server.metrics_port import MetricsPort
    from xpucached.service import Service

HAND_IN: Final = """
import json, os, socket, sys
watch = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
watch.settimeout(60)
watch.connect(sys.argv[1])
for number, place in enumerate(sys.argv[2:]):
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    socket.send_fds(watch, [json.dumps({"watch": number}).encode()], [directory])
    print(watch.recv(1 << 16).decode(), flush=True)
"""


def test_a_file_system_of_the_kernel_is_not_marked(attacker: User, victim: User, watch: Path) -> None:
    # A process's own directory is its user's, and there are files in it that not even the kernel opens for us.
    answers = [
        json.loads(line)
        for line in attacker.python(HAND_IN, watch, "/proc/self", "/proc/self/fd").stdout.split("\n")[:2]
    ]

    assert [answer.get("refused") for answer in answers] == [0, 1]
    assert all("is not watched" in answer["why"] for answer in answers)
    assert f'"{OWN}"' in victim.python(SPY, watch, store(victim, victim.home / "store"), OWN).stdout


def test_not_even_root_has_one_marked(common: Path) -> None:
    rights()
    watch_server = WatchServer(loads=False)
    client = Client(watch_server, 0)
    with at_work(watch_server):
        for name in ("/proc", "/sys", "/dev/pts", "/dev/mqueue", "/sys/fs/cgroup"):
            place = common.__class__(name)
            if kind(place) not in {None, kernel.TMPFS}:
                assert "is not watched" in client.watch(place)


def kind(place: Path) -> int | None:
    """Return the kind of a file system, if there is such a place."""
    try:
        opened = os.open(place, os.O_RDONLY)
    except OSError:
        return None
    try:
        return kernel.file_system(opened)
    finally:
        os.close(opened)


class Queue:
    """A queue of the kernel's, whose next events bring files that cannot be opened."""

    def __init__(self, number: int) -> None:
        self.names = True
        self.numbers = [number] * 5

    def read(self) -> list[kernel.KernelEvent]:
        """Fail once for each event."""
        if not self.numbers:
            return []
        number = self.numbers.pop()
        raise OSError(number, os.strerror(number))


@pytest.mark.parametrize(("number", "loses"), [(errno.EACCES, False), (errno.EPERM, False), (errno.EMFILE, True)])
def test_a_file_that_cannot_be_opened_is_no_loss_to_others(common: Path, number: int, *, loses: bool) -> None:
    client, turn = observer(common)
    queue = Queue(number)
    with at_work(client.watch_server):
        assert client.watch(common) == ""
        turn(lambda: client.watch_server._look(cast("kernel.Group", queue)))
        (common / LEAF / "0.src").write_bytes(b"")
        client.until(f"{LEAF}/0.src")

    assert queue.numbers == []
    assert client.lost is loses


@pytest.mark.parametrize(
    "call", ["open_handle", "open_below", "open_above", "open_below, known", "open_below, unnamed"]
)
@pytest.mark.parametrize(
    ("number", "loses"), [(errno.ESTALE, False), (errno.EIO, True), (errno.ENODEV, True), (errno.EMFILE, True)]
)
def test_where_a_disk_does_not_say_what_lies_where_its_user_is_told_and_it_is_asked_again(
    common: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, *, loses: bool
) -> None:
    client, turn = observer(common)
    call, _, how = call.partition(", ")
    really = getattr(kernel, call)
    failed: list[bool] = []

    def fails(*given: object, **named: object) -> object:
        if failed:
            return really(*given, **named)
        failed.append(True)
        raise OSError(number, os.strerror(number))

    with at_work(client.watch_server):
        with monkeypatch.context() as nameless:
            if how == "unnamed":
                nameless.setattr(kernel, "handle_of", refuse_handles)
            assert ("no names" in client.watch(common)) is (how == "unnamed")
        if how == "known":
            # Where it lies is remembered, and whether it still is there is asked at each event.
            (common / LEAF / "2.src").write_bytes(b"")
            client.until(f"{LEAF}/2.src")
        turn(lambda: monkeypatch.setattr(kernel, call, fails))
        (common / LEAF / "0.src").write_bytes(b"")
        while not failed or (loses and not client.lost):
            turn(lambda: None) if not failed else client.take()
        if not loses:
            # It was gone, and that is remembered.
            turn(client.watch_server._places.forget)
        (common / LEAF / "1.src").write_bytes(b"")
        client.until(f"{LEAF}/1.src")

    assert failed
    assert client.lost is loses


@pytest.mark.parametrize("call", ["fstat", "close"])
def test_a_file_of_which_its_server_knows_no_more_keeps_no_other_open(
    common: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    client, turn = observer(common)
    names = [f"{number}.src" for number in range(3)]
    really = getattr(os, call)
    failed: list[bool] = []

    def fails(descriptor: int) -> object:
        first = ownership.path_of(descriptor)[-1] == names[0]
        told = really(descriptor)
        if first:
            failed.append(True)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return told

    def write() -> None:
        # All wait together, for nobody reads meanwhile.
        for name in names:
            (common / LEAF / name).write_bytes(b"")
        monkeypatch.setattr(os, call, fails)

    with at_work(client.watch_server):
        with monkeypatch.context() as nameless:
            nameless.setattr(kernel, "handle_of", refuse_handles)
            assert "no names" in client.watch(common)
        before = descriptors()
        turn(write)
        client.until(f"{LEAF}/{names[-1]}")
        monkeypatch.undo()
        turn(lambda: None)
        assert descriptors(before) <= before

    assert failed


def refuse_handles(_directory: int) -> bytes:
    """Say, as overlayfs may, that there are none."""
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def test_losses_are_told_once_in_a_while_and_none_is_left_untold(common: Path) -> None:
    now = 0.0
    client, turn = observer(common)
    client.watch_server._losses = logs.Allowance(1, 5.0, lambda: now)

    def lose() -> None:
        for group in client.watch_server._marks.groups.values():
            client.watch_server._lose(group, "the kernel's queue was full")

    def told() -> int:
        """Count how often a loss is told before the next event."""
        (common / LEAF / "0.src").write_bytes(b"")
        count, client.heard = 0, []
        while not client.heard:
            count += "lost" in client.take()
        return count

    with at_work(client.watch_server):
        assert client.watch(common) == ""
        found = []
        for _ in range(10):
            turn(lose)
            found.append(told())
        assert found == [1] + [0] * 9
        now = 5.0
        turn(lambda: None)
        assert told() == 1
        turn(lambda: None)
        assert told() == 0


def test_a_daemon_that_is_told_of_losses_without_end_looks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def looks(times: int) -> int:
        context, tracker = SimpleNamespace(notices=0), SimpleNamespace(take=None)
        verifier = SimpleNamespace(progress=SimpleNamespace(wait=None))
        service = cast("Service", SimpleNamespace(context=context, tracker=tracker, verifier=verifier))
        config = loading.load(None, user=True, environ={"XDG_RUNTIME_DIR": "/r", "HOME": "/h"})
        one = user_daemon.Daemon(argparse.Namespace(), config, service, cast("Server", None), cast("MetricsPort", None))
        found = 0
        for _ in range(times):
            one._take(EventsLost())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            found += Periodic() in one._triggers
            one._triggers.clear()
        return found

    assert asyncio.run(looks(50)) == 1
    monkeypatch.setattr(user_daemon, "_LOSSES", 0.0)
    assert asyncio.run(looks(50)) > 1


class Watching(Client):
    """A client, with the watcher that it asks."""

    watch_server: WatchServer


def observer(place: Path) -> tuple[Watching, Callable[[Callable[[], object]], None]]:
    """Return a client of a watcher, and a way to have something done in the watcher's own thread."""
    rights()
    (place / LEAF).mkdir(parents=True)
    waiting: list[Callable[[], object]] = []
    done: list[bool] = []

    def turn() -> None:
        while waiting:
            waiting.pop()()
            done.append(True)

    watch_server = WatchServer(loads=False, turn=turn)
    client = Watching(watch_server, 0)
    client.watch_server = watch_server

    def have(do: Callable[[], object]) -> None:
        waiting.append(do)
        watch_server._wake()
        while waiting or not done:
            os.sched_yield()
        done.clear()

    return client, have


@pytest.mark.parametrize("names", [True, False])
def test_what_an_event_costs_does_not_grow_with_the_directories_of_a_user(
    common: Path, monkeypatch: pytest.MonkeyPatch, *, names: bool
) -> None:
    client, turn = observer(common)
    places = [common / f"d{number}" for number in range(40)]
    for place in places:
        # Wherever one looks for the leaf there is something of its name.
        (place / "a/a/a/a").mkdir(parents=True)
    opened: list[bytes] = []
    really = kernel.open_below

    def counted(directory: int, name: bytes, *, file: bool = False) -> int:
        opened.append(name)
        return really(directory, name, file=file)

    def asked(name: str) -> int:
        return opened.count(name.encode())

    with at_work(client.watch_server):
        with monkeypatch.context() as nameless:
            if not names:
                nameless.setattr(kernel, "handle_of", refuse_handles)
            assert all(("no names" in client.watch(place, number)) is not names for number, place in enumerate(places))
        monkeypatch.setattr(kernel, "open_below", counted)
        (places[-1] / "a/a/a/a/4711.src").write_bytes(b"")
        client.until("a/a/a/a/4711.src")
        turn(lambda: None)
        if names:
            assert 0 < asked("a") < len(places)
            return
        assert asked("4711.src") == 1
        # It has another path now than it was handed in by: of what was not asked the user is told.
        places[-1].rename(common / "moved")
        (common / "moved/a/a/a/a/4712.src").write_bytes(b"")
        while not client.lost:
            client.take()
        while not asked("4712.src"):
            turn(lambda: None)
        turn(lambda: None)
        assert asked("4712.src") < len(places) * ownership.DEEPEST / 2


def test_one_directory_is_watched_only_so_often_for_one_user(common: Path) -> None:
    client, _ = observer(common)
    with at_work(client.watch_server):
        answers = [client.watch(common, number) for number in range(10)]
        (common / LEAF / "0.src").write_bytes(b"")
        heard = client.until(f"{LEAF}/0.src")

    assert answers[0] == ""
    assert "already" in answers[-1]
    assert len(heard) < len(answers)


def test_a_file_system_is_watched_at_so_many_mounts_only_for_one_user(
    common: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who makes mounts of his own makes each event be looked up at each of them."""
    rights()
    mounts = itertools.count()
    monkeypatch.setattr(kernel, "mount_of", lambda _directory: next(mounts))
    watch_server = WatchServer(loads=False)
    client = Client(watch_server, 4242)
    places = [common / f"d{number}" for number in range(20)]
    for place in places:
        place.mkdir()
        os.chown(place, 4242, 4242)
    with at_work(watch_server):
        answers = [client.watch(place, number) for number, place in enumerate(places)]

    assert answers[0] == ""
    assert "16 mounts" in answers[-1]


class Endless:
    """A queue of the kernel's that somebody fills without end."""

    def __init__(self, happening: kernel.KernelEvent, reads: int) -> None:
        self.names = True
        self.happening = happening
        self.left = reads

    def read(self) -> list[kernel.KernelEvent]:
        """Return many events."""
        self.left -= 1
        return [self.happening] * 2000 if self.left >= 0 else []


def test_the_watchdog_is_told_between_two_reads_and_events_that_wait_are_bounded(
    common: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, turn = observer(common)
    watch_server = client.watch_server
    with at_work(watch_server):
        assert client.watch(common) == ""
        (root,) = watch_server._owners
        leaf = os.open(common / LEAF, os.O_RDONLY)
        handle = kernel.handle_of(leaf)
        os.close(leaf)
        one = kernel.KernelEvent(kernel.CLOSE_WRITE, 1, root.system, handle, b"0.src", -1)
        monkeypatch.setattr("xpucached.watchd.server._MOST_EVENTS", 50)
        beats: list[int] = []
        waiting: list[int] = []
        queue = Endless(one, 5)
        told = watch_server._tell

        def tell() -> None:
            waiting.extend(len(client.events) for client in watch_server._clients)
            told()

        def look() -> None:
            monkeypatch.setattr(watch_server, "_turn", lambda: beats.append(queue.left))
            monkeypatch.setattr(watch_server, "_tell", tell)
            watch_server._look(cast("kernel.Group", queue))
            monkeypatch.undo()

        turn(look)
        while not client.lost:
            client.take()

    assert len(beats) == 6
    assert max(waiting) == 50


def test_who_reads_again_after_a_loss_leaves_the_watcher_at_rest(common: Path) -> None:
    client, turn = observer(common)
    (ours,) = client.watch_server._clients

    def lose_and_tell() -> None:
        while not ours.lost:
            client.watch_server._say(ours, {"events": []})
        client.connection.settimeout(0.0)
        with contextlib.suppress(BlockingIOError):
            while client.connection.recv(1 << 16):
                pass
        # It is said with what came meanwhile, before a socket that has room wakes the watcher.
        client.watch_server._tell()

    with at_work(client.watch_server):
        turn(lose_and_tell)
        turn(lambda: None)
        events: list[int] = []
        turn(lambda: events.append(client.watch_server._selector.get_key(ours.connection).events))

    assert events == [selectors.EVENT_READ]
