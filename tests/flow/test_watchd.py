"""`watch_server` on the real kernel: what is told, to whom, and what a client or a neighbour can spoil.  Needs root."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, cast

import pytest

from tests import REPOSITORY
from tests.support import leftovers
from xpucached.watchd import kernel
from xpucached.watchd.__main__ import _may
from xpucached.watchd.server import GONE, READ, WRITTEN, WatchServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PATIENCE: Final = 20.0
SOMEBODY: Final = 12345
LEAF: Final = "11/22/33/44"
OVERFLOWS: Final = Path("/proc/sys/fs/fanotify/max_queued_events")


def rights() -> None:
    """Skip where the kernel does not let us watch a file system."""
    try:
        _may()
    except OSError as error:
        pytest.skip(f"fanotify on a file system is refused here: {error}")


def listens(place: Path) -> bool:
    """Return whether somebody takes connections there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        return one.connect_ex(str(place)) == 0


@pytest.fixture(autouse=True)
def _rights() -> None:
    rights()


class Client:
    """One end of a connection, as a user's."""

    def __init__(self, watch_server: WatchServer, uid: int) -> None:
        # The kernel notes who makes a pair, by the effective user.
        os.seteuid(uid)
        try:
            self.connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        finally:
            os.seteuid(0)
        self.connection.settimeout(PATIENCE)
        leftovers.SOCKETS.append(self.connection)
        watch_server.take(other)
        self.heard: list[tuple[int, str, str, int]] = []
        self.lost = False

    def watch(self, place: Path, number: int = 1, *, loads: bool = False, flags: int = os.O_DIRECTORY) -> str:
        """Ask for a directory; give why it is refused or less than was asked for, or nothing."""
        self.ask(place, number, loads=loads, flags=flags)
        return self.answer(number)

    def ask(self, place: Path, number: int = 1, *, loads: bool = False, flags: int = os.O_DIRECTORY) -> None:
        """Ask for a directory."""
        descriptor = os.open(place, os.O_RDONLY | flags)
        try:
            socket.send_fds(self.connection, [json.dumps({"watch": number, "loads": loads}).encode()], [descriptor])
        finally:
            os.close(descriptor)

    def answer(self, number: int) -> str:
        """Wait for the answer: why it is refused or less than was asked for, or nothing."""
        while True:
            message = self.take()
            if message.get("refused") == number:
                return f"refused: {message['why']}"
            if message.get("watching") == number:
                return str(message["why"])

    def take(self) -> Mapping[str, object]:
        """Take the next packet; events are kept."""
        message: dict[str, object] = json.loads(self.connection.recv(1 << 16))
        events = message.get("events", [])
        assert isinstance(events, list)
        self.heard += [(number, path, act, pid) for number, path, act, pid in events]
        self.lost = self.lost or "lost" in message
        return message

    def until(self, path: str, act: str = WRITTEN) -> list[tuple[str, str]]:
        """Wait until something was heard; give all that was, up to now."""
        while (path, act) not in {(path, act) for _, path, act, _ in self.heard}:
            self.take()
        return [(path, act) for _, path, act, _ in self.heard]


@pytest.fixture
def running() -> Iterator[Callable[..., WatchServer]]:
    """Return a way to start a watcher in a thread; clients are to be taken in before."""
    with contextlib.ExitStack() as stack:

        def start(watch_server: WatchServer) -> WatchServer:
            thread = threading.Thread(target=watch_server.run)
            thread.start()
            stack.callback(thread.join)
            stack.callback(watch_server.stop)
            return watch_server

        yield start


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a directory to watch, with one leaf."""
    place = tmp_path / "store"
    (place / LEAF).mkdir(parents=True)
    return place


def entry(root: Path, number: int = 0) -> None:
    """Write an entry in the runtime's order."""
    for suffix in ("bin", "src"):
        (root / LEAF / f"{number}.{suffix}").write_bytes(b"x")


def test_what_is_written_removed_and_renamed_is_told_with_who_it_was(
    root: Path, running: Callable[..., WatchServer]
) -> None:
    watch_server = WatchServer(loads=False)
    client = Client(watch_server, 0)
    running(watch_server)
    assert client.watch(root) == ""

    entry(root)
    (root / LEAF / "0.bin").unlink()
    client.until(f"{LEAF}/0.bin", GONE)
    (root / "11").rename(root / "12")
    client.until("12", "c")

    assert (1, f"{LEAF}/0.src", WRITTEN, os.getpid()) in client.heard
    assert (1, f"{LEAF}/0.bin", WRITTEN, os.getpid()) in client.heard
    assert (1, f"{LEAF}/0.bin", GONE, os.getpid()) in client.heard
    assert (1, "11", GONE, os.getpid()) in client.heard
    (root / "12/22/33/44/1.src").write_bytes(b"")
    client.until("12/22/33/44/1.src")


def test_who_closes_many_files_beside_a_store_wakes_nobody_for_each(
    root: Path, tmp_path: Path, running: Callable[..., WatchServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch_server = WatchServer(loads=False)
    client = Client(watch_server, 0)
    running(watch_server)
    assert client.watch(root) == ""
    (group,) = watch_server._marks.groups.values()
    if not group.names:
        pytest.skip("events come without names on this file system, and are read at once")
    rests: list[float] = []
    rested = group.rested

    def noting() -> kernel.Group:
        rests.append(rested()._rested)
        return group

    monkeypatch.setattr(group, "rested", noting)
    for number in range(2000):
        (tmp_path / f"other-{number % 10}").write_bytes(b"")
    for number in range(2):
        entry(root, number)
        client.until(f"{LEAF}/{number}.src")
    assert len(rests) > 1
    assert all(second - first > 0.0199 for first, second in itertools.pairwise(rests))


def test_a_directory_of_somebody_else_is_refused(
    root: Path, tmp_path: Path, running: Callable[..., WatchServer]
) -> None:
    theirs = tmp_path / "theirs"
    (theirs / LEAF).mkdir(parents=True)
    for place in (theirs, *theirs.rglob("*")):
        os.chown(place, SOMEBODY, SOMEBODY)
    watch_server = WatchServer(loads=False)
    one, other = Client(watch_server, SOMEBODY), Client(watch_server, 0)
    running(watch_server)

    assert "somebody else" in one.watch(root)
    assert one.watch(theirs, 2) == ""
    assert other.watch(root) == ""
    entry(root)
    entry(theirs)
    one.until(f"{LEAF}/0.src")
    other.until(f"{LEAF}/0.src")

    assert {number for number, *_ in one.heard} == {2}
    assert {number for number, *_ in other.heard} == {1}


MOUNTED: Final = """
import os, subprocess, sys
from xpucached.watchd import ownership
place = sys.argv[1] + "/one\\rline"
os.mkdir(place)
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
print("mounted")
print(os.stat(place).st_dev in ownership._mounted())
"""


def test_whatever_a_place_is_called_where_somebody_mounted_something_all_mounts_are_seen(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare")
    # Process 1, which is asked, is the test's own there.
    apart = [unshare, "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc"]
    done = subprocess.run(
        [*apart, sys.executable, "-c", MOUNTED, tmp_path], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )

    if not done.stdout:
        pytest.skip(f"no mounts here: {done.stderr}")
    assert done.stdout.split() == ["mounted", "True"], done.stderr


def test_what_is_no_open_directory_is_refused(root: Path, running: Callable[..., WatchServer]) -> None:
    (root / "file").write_bytes(b"")
    watch_server = WatchServer(loads=False)
    client = Client(watch_server, 0)
    running(watch_server)

    assert "not an open directory" in client.watch(root, flags=os.O_PATH)
    assert "not an open directory" in client.watch(root / "file", flags=0)
    assert client.watch(root) == ""


def test_only_what_looks_like_a_cache_is_told(root: Path, tmp_path: Path, running: Callable[..., WatchServer]) -> None:
    odd = root / "11" / "a secret" / "33" / "44"
    deep = root / LEAF / "55"
    for place in (odd, deep, tmp_path / "beside" / LEAF, root.with_name("store2") / LEAF):
        place.mkdir(parents=True)
    watch_server = WatchServer(loads=True)
    client = Client(watch_server, 0)
    running(watch_server)
    assert client.watch(root, loads=True) == ""

    for place in (odd, deep, tmp_path / "beside" / LEAF, root.with_name("store2") / LEAF):
        (place / "0.src").write_bytes(b"")
        (place / "0.src").read_bytes()
    for name in ("secret.txt", "0.src.txt", "0.SRC", "x.src", "0.src\n", "0_access_time.txt"):
        (root / LEAF / name).write_bytes(b"")
    (root / "private thing").mkdir()
    (root / "private thing").rmdir()
    entry(root)

    assert client.until(f"{LEAF}/0.src") == [(f"{LEAF}/0.bin", WRITTEN), (f"{LEAF}/0.src", WRITTEN)]


@pytest.mark.parametrize(
    "words", [b"", b"x", b"[]", b'"watch"', b'{"watch": 1}', b'{"watch": "a"}', b'{"forget": null}', b"\xff" * 9000]
)
def test_who_talks_nonsense_is_sent_away(words: bytes, root: Path, running: Callable[..., WatchServer]) -> None:
    watch_server = WatchServer(loads=False)
    bad, good = Client(watch_server, SOMEBODY), Client(watch_server, 0)
    running(watch_server)

    bad.connection.send(words)
    assert bad.connection.recv(100) == b""
    assert good.watch(root) == ""
    entry(root)
    good.until(f"{LEAF}/0.src")


def test_one_user_has_a_bounded_number_of_connections(root: Path, running: Callable[..., WatchServer]) -> None:
    watch_server = WatchServer(loads=False)
    many = [Client(watch_server, SOMEBODY) for _ in range(20)]
    good = Client(watch_server, 0)
    running(watch_server)

    assert many[-1].connection.recv(100) == b""
    assert good.watch(root) == ""


def test_a_client_that_does_not_read_is_told_what_it_missed(root: Path, running: Callable[..., WatchServer]) -> None:
    watch_server = WatchServer(loads=False)
    slow = Client(watch_server, 0)
    # What one has not read yet counts where it was sent.
    (ours,) = watch_server._clients
    ours.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    quick = Client(watch_server, 0)
    running(watch_server)
    assert slow.watch(root) == ""
    assert quick.watch(root) == ""

    for number in range(200):
        (root / LEAF / f"{number}.src").write_bytes(b"")
        if number % 20 == 19:
            quick.until(f"{LEAF}/{number}.src")
    while not slow.lost:
        slow.take()
    (root / LEAF / "9999.src").write_bytes(b"")
    slow.until(f"{LEAF}/9999.src")

    assert not quick.lost


def test_without_leave_nobody_hears_of_reading(root: Path, running: Callable[..., WatchServer]) -> None:
    watch_server = WatchServer(loads=False)
    client = Client(watch_server, 0)
    running(watch_server)

    assert "--loads" in client.watch(root, loads=True)
    entry(root)
    (root / LEAF / "0.src").read_bytes()
    entry(root, 1)

    assert READ not in {act for _, act in client.until(f"{LEAF}/1.src")}


def test_with_leave_only_who_asks_hears_of_reading(root: Path, running: Callable[..., WatchServer]) -> None:
    watch_server = WatchServer(loads=True)
    asks, does_not = Client(watch_server, 0), Client(watch_server, 0)
    running(watch_server)
    assert asks.watch(root, loads=True) == ""
    assert does_not.watch(root) == ""

    entry(root)
    (root / LEAF / "0.src").read_bytes()
    asks.until(f"{LEAF}/0.src", READ)
    entry(root, 1)

    assert READ not in {act for _, act in does_not.until(f"{LEAF}/1.src")}


def test_a_fifo_under_the_name_of_an_entry_holds_nobody_up(root: Path, running: Callable[..., WatchServer]) -> None:
    os.mkfifo(root / LEAF / "0.src")
    watch_server = WatchServer(loads=True)
    client = Client(watch_server, 0)
    running(watch_server)
    assert client.watch(root, loads=True) == ""

    os.close(os.open(root / LEAF / "0.src", os.O_RDWR))
    entry(root, 1)

    client.until(f"{LEAF}/1.src")


def tool(name: str) -> str:
    """Return a program of btrfs's."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin:/bin")
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install btrfs-progs)")
    return found


@pytest.fixture
def btrfs(tmp_path: Path) -> Iterator[Path]:
    """Return a btrfs of our own."""
    image, place = tmp_path / "image", tmp_path / "btrfs"
    place.mkdir()
    with image.open("wb") as stream:
        stream.truncate(120 << 20)
    subprocess.run([tool("mkfs.btrfs"), "-q", image], check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run(["/bin/mount", "-o", "loop", image, place], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"btrfs cannot be mounted here: {done.stderr}")
    yield place
    subprocess.run(["/bin/umount", place], check=True)


def test_a_subvolume_that_is_forgotten_leaves_the_others_watched(
    btrfs: Path, running: Callable[..., WatchServer]
) -> None:
    one, other = btrfs / "one", btrfs / "other"
    for place in (one, other):
        subprocess.run([tool("btrfs"), "-q", "subvolume", "create", place], check=True)
        (place / LEAF).mkdir(parents=True)
    watch_server = WatchServer(loads=False)
    client = Client(watch_server, 0)
    running(watch_server)
    # The kernel tells no names there, and that is said.
    assert ["no names" in client.watch(place, number) for number, place in enumerate((one, other))] == [True, True]

    client.connection.send(b'{"forget": 0}')
    # An answer that marks nothing: the first was heard.
    assert "refused" in client.watch(Path("/proc"), 2)
    entry(other)
    client.until(f"{LEAF}/0.src")

    assert {number for number, *_ in client.heard} == {1}


def test_what_is_forgotten_is_told_no_longer(root: Path, tmp_path: Path, running: Callable[..., WatchServer]) -> None:
    other = tmp_path / "other"
    (other / LEAF).mkdir(parents=True)
    watch_server = WatchServer(loads=False)
    client = Client(watch_server, 0)
    running(watch_server)
    assert client.watch(root, 1) == client.watch(other, 2) == ""

    client.connection.send(b'{"forget": 1}')
    assert client.watch(tmp_path, 3) == ""
    entry(root)
    entry(other)
    client.until(f"{LEAF}/0.src")

    assert {number for number, *_ in client.heard} == {2}


def test_a_queue_that_is_full_is_told(root: Path, running: Callable[..., WatchServer]) -> None:
    most = int(OVERFLOWS.read_text())
    if most > 50_000:
        pytest.skip(f"{OVERFLOWS} is {most}: to fill it takes too long")
    gate = threading.Event()
    gate.set()
    watch_server = WatchServer(loads=False, turn=lambda: gate.wait(10 * PATIENCE))
    client = Client(watch_server, 0)
    running(watch_server)
    assert client.watch(root) == ""

    gate.clear()
    watch_server._ring.send(b"!")
    for number in range(most + 100):
        os.close(os.open(root / LEAF / f"{number}.src", os.O_WRONLY | os.O_CREAT))
    gate.set()
    while not client.lost:
        client.take()
    # It goes on: perhaps not with the first one, for what we have not read yet is full as well.
    fresh = {f"{LEAF}/{90_000 + number}.src" for number in range(10_000)}
    for path in sorted(fresh):
        (root / path).write_bytes(b"")
        client.take()
        if fresh & {path for _, path, _, _ in client.heard}:
            break
    else:
        pytest.fail("nothing came any more")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_the_log_says_why_events_were_lost(number: int, caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        names = True
        rest: ClassVar = [OSError(number, os.strerror(number))]

        def read(self) -> list[kernel.KernelEvent]:
            if self.rest:
                raise self.rest.pop()
            return []

    watch_server = WatchServer(loads=False)
    watch_server._look(cast("kernel.Group", Failing()))
    watch_server._close()

    assert [one.getMessage() for one in caplog.records] == [f"events were lost: {os.strerror(number)}"]


def test_records_that_are_cut_off_or_of_another_version_end_the_reading() -> None:
    good = kernel._EVENT.pack(24, 3, 0, 24, 8, -1, 7)

    assert [one.pid for one in kernel.kernel_events(good + good)] == [7, 7]
    assert [one.pid for one in kernel.kernel_events(good + good[:20])] == [7]
    assert kernel.kernel_events(kernel._EVENT.pack(24, 4, 0, 24, 8, -1, 7)) == []
    assert kernel.kernel_events(kernel._EVENT.pack(0, 3, 0, 24, 8, -1, 7)) == []


SETPRIV: Final = shutil.which("setpriv")


@contextlib.contextmanager
def process(place: Path, *words: str, caps: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Start ``xpucached-watch`` in a process, with these capabilities and no others."""
    command = [sys.executable, "-m", "xpucached.watchd", "--socket", str(place), *words]
    if caps is not None:
        if SETPRIV is None:
            pytest.skip("setpriv is not installed (Debian: apt-get install util-linux)")
        given = [f"--bounding-set=-all{caps}", f"--inh-caps=-all{caps}"]
        # As in the unit: another user, whose rights are ambient.
        command = [SETPRIV, f"--reuid={SOMEBODY}", "--clear-groups", *given, f"--ambient-caps=-all{caps}", *command]
    one = subprocess.Popen(command, stderr=subprocess.PIPE, cwd="/")
    try:
        yield one
    finally:
        one.kill()
        one.wait()
        assert one.stderr is not None
        one.stderr.close()


def test_the_process_needs_two_rights_and_no_more(root: Path, short_dir: Path) -> None:
    place = short_dir / "watch" / "sock"
    place.parent.mkdir()
    os.chown(place.parent, SOMEBODY, SOMEBODY)
    short_dir.chmod(0o711)
    with process(place, caps=",+sys_admin,+dac_read_search") as one:
        end = time.monotonic() + PATIENCE
        while not listens(place) and one.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        if one.poll() is not None and one.stderr is not None:
            said = one.stderr.read().decode()
            if "Permission denied" in said or "No module" in said:
                pytest.skip(f"this Python is not open to other users: {said[-100:]}")
            pytest.fail(said)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(str(place))
            descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
            socket.send_fds(connection, [b'{"watch": 1}'], [descriptor])
            os.close(descriptor)
            assert json.loads(connection.recv(1000)) == {"watching": 1, "names": True, "loads": False, "why": ""}
            (root / LEAF / "0.src").write_bytes(b"")
            assert json.loads(connection.recv(1000))["events"] == [[1, f"{LEAF}/0.src", WRITTEN, os.getpid()]]
            one.send_signal(signal.SIGTERM)
            assert one.wait(PATIENCE) == 0
        assert not place.exists()


@pytest.mark.parametrize("caps", [",+dac_read_search", ",+sys_admin"])
def test_the_process_says_which_right_it_lacks(caps: str, short_dir: Path) -> None:
    with process(short_dir / "sock", caps=caps) as one:
        _, said = one.communicate(timeout=PATIENCE)
        if one.returncode == 127 or b"No module" in said or b"execve" in said or b"failed to execute" in said:
            pytest.skip("this Python is not open to other users")

        assert one.returncode == 77
        assert b"CAP_SYS_ADMIN and CAP_DAC_READ_SEARCH" in said


def test_the_process_says_why_it_cannot_listen(short_dir: Path) -> None:
    with process(short_dir / ("s" * 150)) as one:
        _, said = one.communicate(timeout=PATIENCE)

        assert one.returncode == 71
        assert b"path too long" in said
