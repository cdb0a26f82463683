"""Attacks of a neighbour on a daemon at work: whatever he does, no file of others is touched, and `status` answers."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import resource
import shutil
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import REPOSITORY
from tests.support import many_files
from tests.support.builders import SyclStore, framed, native, spirv
from tests.support.daemons import Daemon, daemon
from xpucached.domain.plans import Recipe
from xpucached.domain.stores import FoundStore, Scan, Store, StoreOrigin
from xpucached.kinds import fs, sycl
from xpucached.kinds.sycl import recipes, remover

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OLD = "2024.18.7.0.11_160000"
ROOT = os.geteuid() == 0


@pytest.fixture
def host(home: Path, short_dir: Path, sycl_store: SyclStore) -> Iterator[Daemon]:
    """Return a daemon that looks after one store, and evicts what is old when asked."""
    with daemon(home, short_dir) as one:
        one.configure(
            f"[stores]\npaths = ['{sycl_store.root}']\n[policy]\ngrace = '0s'\nmax_unused = '1d'\n"
            "[schedule]\nsettle = '0.1s'\nevict = false\n"
        )
        yield one


@pytest.fixture
def precious(tmp_path: Path) -> Iterator[Path]:
    """Return somebody else's directory with a store in it, of which nothing may change."""
    place = tmp_path / "precious"
    store = SyclStore(place / "store")
    for number in range(3):
        aged(store, f"_ZTS{number}")
    (place / "letter").write_text("dear")
    before = photograph(place)
    yield place
    assert photograph(place) == before


def photograph(place: Path) -> dict[str, str]:
    """Return everything below a directory and a digest of each file."""
    return {
        str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "directory"
        for path in sorted(place.rglob("*"))
    }


def aged(store: SyclStore, kernel: str, slot: int = 0) -> Path:
    """Add an entry that may go; give its leaf."""
    made = store.add(kernel, driver=OLD, age=9e5, slot=slot)
    for path in (made.bin, made.src, made.access_time):
        os.utime(path, (time.time() - 9e5, time.time() - 9e5))
    return made.leaf


def look(root: Path) -> Scan:
    return sycl.scanner.scan(FoundStore(Store(sycl.NAME, root), StoreOrigin.FOUND, "test"), datetime.now(UTC), {}, None)


# -- links that are swapped -------------------------------------------------------------------------------------------


@pytest.fixture(params=["openat2", "step by step"])
def opening(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let directories be opened in each of the two ways."""
    if request.param == "openat2":
        if not fs._has_openat2():
            pytest.skip("this kernel has no openat2")
    else:
        monkeypatch.setattr(fs, "_has_openat2", lambda: False)
    return str(request.param)


@pytest.mark.parametrize("above", [0, 1], ids=["the root", "its parent"])
def test_a_root_that_became_a_link_ends_the_work(opening: str, tmp_path: Path, precious: Path, above: int) -> None:
    """The link leads to a store of the same shape, with the same entries."""
    place = tmp_path / "place"
    store = SyclStore(place / "store")
    for number in range(3):
        aged(store, f"_ZTS{number}")
    scan = look(store.root)
    assert len(scan.entries) == 3
    recipe = sycl.recipes.recipe(scan.entries[0])
    assert isinstance(recipe, Recipe)
    swapped = (store.root, place)[above]
    swapped.rename(tmp_path / "away")
    swapped.symlink_to((precious / "store", precious)[above])
    # Even for entries that look the same behind the link.
    entries = look(store.root).entries
    assert len(entries) == 3
    assert not any(sycl.remover.remove(entries).values())
    assert not any(sycl.remover.sweep(entry.id) for entry in entries)
    assert recipe.entry.store.root == store.root
    environment = scan.entries[0].environment
    assert environment is not None
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        sycl.recipes.publish(recipe, environment, native())
    assert not recipes.clear_staging(os.fspath(store.root))


@pytest.mark.parametrize("level", range(1, 5))
def test_a_directory_that_becomes_a_link_between_two_steps(
    opening: str, level: int, tmp_path: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SyclStore(tmp_path / "store")
    leaf = aged(store, "_ZTS0")
    for slot in (1, 2):
        aged(store, "_ZTS0", slot)
    scan = look(store.root)
    swapped: list[str] = []

    def swap(step: str) -> None:
        if not swapped:
            swapped.append(step)
            victim = next((precious / "store").glob("/".join("*" * level)))
            directory = store.root.joinpath(*leaf.relative_to(store.root).parts[:level])
            directory.rename(tmp_path / "away")
            directory.symlink_to(victim)

    monkeypatch.setattr(remover, "pause", swap)
    with contextlib.suppress(OSError):
        sycl.remover.remove(scan.entries)
    assert swapped
    look(store.root)
    sycl.remover.remove(scan.entries)


def test_links_that_are_swapped_all_the_time(host: Daemon, sycl_store: SyclStore, precious: Path) -> None:
    """Directories become links to somebody's store and back, while the daemon scans and evicts."""
    for number in range(20):
        aged(sycl_store, f"_ZTS{number}")
    host.start()
    stop = threading.Event()
    still = threading.Lock()
    swaps = [0]
    exchange = exchanger()
    device = next(path for path in sycl_store.root.iterdir() if path.name.isdigit())
    other = sycl_store.root.parent / "other"
    other.symlink_to(next(path for path in (precious / "store").iterdir()))

    def swap() -> None:
        while not stop.is_set():
            with still, contextlib.suppress(FileNotFoundError):
                exchange(device, other)
                swaps[0] += 1

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for round_ in range(4):
            with still:
                # The test itself follows links.
                if device.is_symlink():
                    exchange(device, other)
                for number in range(20):
                    aged(sycl_store, f"_ZTS{number}round{round_}")
            host.ctl("scan", "--full", check=None)
            host.ctl("evict", check=None)
            assert host.ask("status")
    finally:
        stop.set()
        thread.join()
    assert swaps[0] > 100
    assert "Traceback" not in host.log.read_text()


def exchanger() -> Callable[[Path, Path], None]:
    """Return what exchanges two names in one step, as only the kernel can."""
    library = ctypes.CDLL(None, use_errno=True)

    def exchange(one: Path, other: Path) -> None:
        if library.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2):
            raise OSError(ctypes.get_errno(), "renameat2")

    return exchange


def test_a_root_of_somebody_else_inside_a_store_is_not_entered(tmp_path: Path) -> None:
    if not ROOT:
        pytest.skip("only root can give files away")
    store = SyclStore(tmp_path / "store")
    leaf = aged(store, "_ZTS1mine")
    theirs = aged(store, "_ZTS1theirs")
    for path in (theirs, *theirs.iterdir()):
        os.chown(path, 12345, 12345)
    before = photograph(theirs)
    scan = look(store.root)
    assert [entry.id.key.split("/")[1] for entry in scan.entries] == [leaf.relative_to(store.root).parts[1]]
    assert scan.foreign == 1
    sycl.remover.remove(scan.entries)
    assert photograph(theirs) == before


# -- what lies in a store ---------------------------------------------------------------------------------------------


def test_hard_links_to_foreign_files_cost_only_a_name(host: Daemon, sycl_store: SyclStore, precious: Path) -> None:
    """Any file on the same file system can be given a slot's names by who may link to it."""
    leaf = aged(sycl_store, "_ZTS1a")
    for suffix in (".src", ".bin", "_access_time.txt", ".lock", "_access_time.txt.lock"):
        (leaf / f"1{suffix}").hardlink_to(precious / "letter")
    (sycl_store.root / "cache_size.txt").hardlink_to(precious / "letter")
    (sycl_store.root / "cache_size.txt.lock").hardlink_to(precious / "letter")
    (sycl_store.root / ".xpucached").mkdir()
    (sycl_store.root / ".xpucached" / "1-letter").hardlink_to(precious / "letter")
    host.start()
    host.ctl("scan", "--full")
    host.ctl("evict")
    assert (precious / "letter").read_text() == "dear"
    assert host.ask("status")
    assert "Traceback" not in host.log.read_text()


def test_every_kind_of_file_under_every_name(host: Daemon, sycl_store: SyclStore, precious: Path) -> None:
    """FIFOs, sockets, links, directories, and names with newlines and bytes that are no UTF-8."""
    aged(sycl_store, "_ZTS1a")
    for number, suffix in enumerate((".src", ".bin", ".lock", "_access_time.txt", "_access_time.txt.lock")):
        for kind in range(4):
            leaf = aged(sycl_store, f"_ZTS5k{number}{kind}")
            path = leaf / f"0{suffix}"
            path.unlink(missing_ok=True)
            if kind == 0:
                os.mkfifo(path)
            elif kind == 1:
                path.symlink_to(precious / "letter")
            elif kind == 2:
                path.mkdir()
                (path / "inside").write_text("x")
            else:
                with socket.socket(socket.AF_UNIX) as one, contextlib.chdir(leaf):
                    one.bind(path.name)
    places = [sycl_store.root, *[path for path in sycl_store.root.rglob("*") if path.is_dir()]]
    for place in places:
        for name in (b"new\nline", b"\xff\xfe.bin", b"0\n.src", b"..\x1b[2J", b"12345678901234567890123", b"x" * 255):
            with contextlib.suppress(FileExistsError):
                os.close(os.open(os.fsencode(place) + b"/" + name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    (sycl_store.root / "1").symlink_to(precious / "store")
    os.mkfifo(sycl_store.root / "2")
    os.mkfifo(sycl_store.root / ".xpucached")
    host.start()
    for _ in range(2):
        host.ctl("scan", "--full")
        host.ctl("evict", check=None)
    assert len(host.rows("ls")) == len([1 for _ in host.rows("ls")])
    # Not ours, so still there.
    assert len(list(sycl_store.root.rglob("*line"))) > 4
    assert host.ask("status")
    assert "Traceback" not in host.log.read_text()


def test_lengths_of_two_to_the_sixty_second(host: Daemon, sycl_store: SyclStore) -> None:
    image = spirv("_ZTS1a")
    for number in range(4):
        made = sycl_store.add(f"_ZTS4k{number}00", age=7200)
        fields = [b"P/D/v/d", b"", b"", image]
        whole = [framed(one) for one in fields]
        whole[number] = struct.pack("<Q", 1 << 62) + fields[number]
        made.src.write_bytes(b"".join(whole))
        other = sycl_store.add(f"_ZTS4b{number}00", age=7200)
        other.bin.write_bytes(struct.pack("<QQ", *((1 << 62, 5), (1, 1 << 62), (1 << 62, 1 << 62), (0, 0))[number]))
    host.start()
    defects = {row["defect"] for row in host.rows("ls")}
    assert "src-length-absurd" in defects
    assert "bin-length-absurd" in defects
    host.ctl("evict")
    assert {row["state"] for row in host.rows("ls")} <= {"ok"}


@pytest.mark.timeout(600)
def test_a_hundred_thousand_slots_in_one_leaf(host: Daemon, sycl_store: SyclStore) -> None:
    """A program that stores anew at every start makes them in a year.  Status answers while they are looked at."""
    made = sycl_store.add("_ZTS1a", age=7200, access_time=False)
    many_files.add(made.leaf, (f"{number}.bin" for number in range(1, 100_000)))
    host.start(ready=False)
    host.until(lambda: bool(host.ask("status")))
    slowest = 0.0
    while True:
        began = time.monotonic()
        status = host.ask("status")
        slowest = max(slowest, time.monotonic() - began)
        if status["verdict"] != "starting":
            break
        # Who asks without a pause takes half of the time in which the look could end.
        time.sleep(0.5)
    assert status["entries"] == 100_000
    assert slowest < 30


# -- mounts -----------------------------------------------------------------------------------------------------------


BOUND = """
import subprocess, sys
from pathlib import Path
from tests.flow.test_neighbours import SyclStore, aged, look, photograph
from xpucached.kinds import sycl
from xpucached.kinds import fs
place = Path(sys.argv[1])
store, other = SyclStore(place / "store"), SyclStore(place / "other")
leaf, theirs = aged(store, "_ZTS1a"), aged(other, "_ZTS1a")
scan = look(store.root)
before = photograph(other.root)
subprocess.run(["mount", "--bind", theirs.parents[int(sys.argv[2])], leaf.parents[int(sys.argv[2])]], check=True)
for way in (fs._has_openat2, lambda: False):
    fs._has_openat2 = way
    entries = look(store.root).entries
    print(len(entries), any(sycl.remover.remove(scan.entries).values()), photograph(other.root) == before)
"""


@pytest.mark.parametrize("above", range(3))
def test_a_store_of_others_that_is_bound_into_ours(tmp_path: Path, above: int) -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare")
    done = subprocess.run(
        [unshare, "--map-root-user", "--mount", sys.executable, "-c", BOUND, tmp_path, str(above)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    if "unshare" in done.stderr or "mount" in done.stderr.splitlines()[-1:]:
        pytest.skip(f"no mounts here: {done.stderr}")
    assert done.stdout.splitlines() == ["0 False True"] * 2, done.stdout + done.stderr


# -- the socket -------------------------------------------------------------------------------------------------------


def connect(host: Daemon) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(20)
    client.connect(str(host.run / "xpucached" / "xpucached.sock"))
    return client


BEGUN = b"POST /v1/scan HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n{"


def test_a_thousand_connections(host: Daemon) -> None:
    """Half of them send nothing, half begin a request and never end it."""
    host.start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    hoard: list[socket.socket] = []
    try:
        for number in range(1000):
            client = connect(host)
            hoard.append(client)
            if number % 2:
                with contextlib.suppress(OSError):
                    client.sendall(BEGUN[: number % len(BEGUN)])
            if number % 100 == 0:
                assert host.ask("status")
        assert host.ask("status")
        assert host.ctl("ls").returncode == 0
    finally:
        for client in hoard:
            client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert host.ask("status")
    assert "Traceback" not in host.log.read_text()


def test_a_client_that_sends_a_gigabyte(host: Daemon) -> None:
    host.start()
    assert host.process is not None
    piece = bytes(1 << 20)
    for head in (
        b"POST /v1/scan HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1073741824\r\n\r\n",
        b"POST /v1/scan HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n40000000\r\n",
        b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nX-Long: ",
        b"",
    ):
        with connect(host) as client:
            sent = 0
            with contextlib.suppress(OSError):
                client.sendall(head)
                while sent < 1 << 30:
                    client.sendall(piece)
                    sent += len(piece)
            assert sent < 64 << 20, "it took all of it"
        assert host.ask("status")
    peak = int(Path(f"/proc/{host.process.pid}/status").read_text().split("VmHWM:")[1].split()[0])
    assert peak < 300_000, "kilobytes that it held"


def test_a_client_that_sends_nothing_is_sent_away(host: Daemon) -> None:
    host.start()
    with connect(host) as client:
        assert b"408" in client.recv(4096)
    assert host.ask("status")


@pytest.mark.skipif(not ROOT, reason="only root can be another user")
def test_another_user_may_look_and_not_touch(host: Daemon, sycl_store: SyclStore, short_dir: Path) -> None:
    aged(sycl_store, "_ZTS1a")
    host.configure(host.config.read_text() + "[paths]\nsocket_mode = '0666'\n")
    host.start()
    for place in (short_dir, short_dir / "xpucached"):
        place.chmod(0o755)
    script = textwrap.dedent("""
        import http.client, json, os, socket, sys
        os.setgroups([]); os.setresgid(12345, 12345, 12345); os.setresuid(12345, 12345, 12345)
        def ask(method, path, body=None):
            one = http.client.HTTPConnection("localhost")
            one.sock = socket.socket(socket.AF_UNIX)
            one.sock.connect(sys.argv[1])
            one.request(method, path, body)
            answer = one.getresponse()
            return answer.status, answer.read().decode()
        print(ask("GET", "/v1/status")[0])
        for path in ("/v1/evict", "/v1/scan", "/v1/prewarm", "/v1/replay"):
            print(ask("POST", path, "{}")[0])
        model = {"name": "m", "command": ["/usr/bin/touch", "/tmp/owned"], "directory": "/"}
        print(ask("POST", "/v1/models", json.dumps(model))[0])
        print(ask("DELETE", "/v1/models/m")[0])
        """)
    command = [sys.executable, "-I", "-c", script, str(short_dir / "xpucached" / "xpucached.sock")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["200", *["403"] * 6], done.stderr
    assert len(host.rows("ls")) == 1
    assert host.rows("model", "list") == []
