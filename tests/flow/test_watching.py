"""The ladder of watching with real writers and real runtimes, and what is made of what was seen."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests import INSTANCE
from tests.flow.test_watchd import OVERFLOWS, listens, rights
from tests.support.builders import SyclStore
from tests.support.daemons import Daemon, daemon
from tests.support.runtimes import told
from xpucached.catalog.entries import all_entries, note_uses
from xpucached.catalog.models import add_model
from xpucached.domain.activity import FileAct, FileEvent, Load, Program, WatchMode
from xpucached.domain.names import EntryKey
from xpucached.domain.triggers import EventsLost, StoreChanged
from xpucached.host import process_table, process_times
from xpucached.kinds import sycl
from xpucached.planning.activity import uses
from xpucached.service.activity import ActivityTracker
from xpucached.watch import fanotify_client
from xpucached.watch.watcher import Watcher, WatchOptions
from xpucached.watchd.server import WatchServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.runtimes import Runtime
    from xpucached.domain.triggers import Trigger

PATIENCE: Final = 90.0
BURST: Final = int(os.environ.get("BURST", "3000"))
NOWHERE: Final = Path("/nowhere/watch.sock")
LEAF: Final = "11/22/33/44"

MERE: Final = """
import os, sys
from tests.support import users
words = users.mere([sys.executable, "-m", "xpucached", *sys.argv[1:]])
os.execvp(words[0], words)
"""
"""A daemon that may not read what its user may not, whoever runs the tests."""

WRITER: Final = """
import os, sys
root, count = sys.argv[1], int(sys.argv[2])
for number in range(count):
    leaf = f"{root}/{number % 3}/{number}/33/44"
    os.makedirs(leaf)
    for name in ("0.bin", "0.src", "0_access_time.txt"):
        with open(f"{leaf}/{name}", "wb") as file:
            file.write(b"x")
"""
"""Writes entries as fast as it can, in the runtime's order."""


@dataclass(slots=True)
class Ears:
    """What a watcher said."""

    wakes: list[Trigger] = field(default_factory=list)
    touches: list[FileEvent] = field(default_factory=list)

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds."""
        end = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < end, (len(self.touches), self.wakes[-3:])
            time.sleep(0.02)


@contextlib.contextmanager
def watching(*roots: Path, loads: bool = False, watch_socket: Path | None = NOWHERE) -> Iterator[tuple[Watcher, Ears]]:
    """Watch stores; what is newly watched is not told."""
    ears = Ears()
    watcher = Watcher(ears.wakes.append, WatchOptions(watch_socket, loads=loads), ears.touches.append)
    try:
        watcher.watch(roots, [], [])
        ears.wakes.clear()
        yield watcher, ears
    finally:
        watcher.stop()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    place = tmp_path / "store"
    place.mkdir()
    return place


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Path]:
    """Return a store on overlayfs, which gives no names."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    # Below /dev/shm, for what is an overlay already cannot carry another.
    layers = Path("/dev/shm") / f"xpucached-{os.getpid()}"
    places = [layers / name for name in ("lower", "upper", "work", "merged")]
    for place in places:
        place.mkdir(parents=True)
    lower, upper, work, merged = map(str, places)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    done = subprocess.run(
        ["/bin/mount", "-t", "overlay", "overlay", "-o", options, merged], capture_output=True, check=False
    )
    try:
        if done.returncode:
            pytest.skip(f"no overlay can be mounted here: {done.stderr.decode().strip()}")
        (places[-1] / "store").mkdir()
        yield places[-1] / "store"
    finally:
        if not done.returncode:
            subprocess.run(["/bin/umount", merged], check=True)
        shutil.rmtree(layers)


@pytest.fixture
def shm() -> Iterator[Path]:
    """Return a store on tmpfs."""
    place = Path("/dev/shm") / f"xpucached-tmpfs-{os.getpid()}"
    place.mkdir()
    yield place
    shutil.rmtree(place)


# -- the ladder -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "mode"),
    [("store", WatchMode.FANOTIFY), ("shm", WatchMode.FANOTIFY), ("overlay", WatchMode.CLASSIC)],
)
def test_in_a_burst_nothing_is_lost(where: str, mode: WatchMode, request: pytest.FixtureRequest) -> None:
    rights()
    root: Path = request.getfixturevalue(where)
    if where == "store" and watched_as(root) is WatchMode.CLASSIC:
        mode = WatchMode.CLASSIC  # the tests themselves run on an overlay
    with watching(root) as (watcher, ears):
        assert watcher.mode is mode
        assert bool(watcher.better) is (mode is WatchMode.CLASSIC)
        subprocess.run([sys.executable, "-c", WRITER, str(root), str(BURST)], check=True)
        wanted = {f"{number % 3}/{number}/33/44/0.src" for number in range(BURST)}
        ears.until(lambda: wanted <= {one.path for one in ears.touches})

        assert watcher.mode is mode
        assert StoreChanged(root) in ears.wakes
        assert EventsLost() not in ears.wakes


def test_a_fifo_on_an_overlay_holds_nobody_up(overlay: Path) -> None:
    rights()
    (overlay / LEAF).mkdir(parents=True)
    os.mkfifo(overlay / LEAF / "0.src")
    with watching(overlay, loads=True) as (watcher, ears):
        assert watcher.mode is WatchMode.CLASSIC
        os.close(os.open(overlay / LEAF / "0.src", os.O_RDWR))
        (overlay / LEAF / "1.src").write_bytes(b"")

        ears.until(lambda: f"{LEAF}/1.src" in {one.path for one in ears.touches})


def watched_as(root: Path) -> WatchMode:
    with watching(root) as (watcher, _):
        return watcher.mode


@pytest.mark.parametrize("mode", ["auto", "inotify", "polling"])
def test_after_a_burst_every_entry_is_known(mode: str, home: Path, short_dir: Path, store: Path) -> None:
    look = {"XPUCACHED_SCHEDULE_SCAN_INTERVAL": "1s"} if mode == "polling" else {}
    variables = {"XPUCACHED_WATCH_MODE": mode, "XPUCACHED_SCHEDULE_SETTLE": "500ms", **look}
    with daemon(home, short_dir, **variables) as one:
        one.configure(f'[stores]\npaths = ["{store}"]\n')
        one.start()
        one.until(lambda: stores_of(one) == {str(store): 0})
        writer = "import sys\nfrom pathlib import Path\nfrom tests.support.builders import SyclStore\n"
        writer += "store = SyclStore(Path(sys.argv[1]))\nfor number in range(int(sys.argv[2])):\n"
        writer += "    store.add(f'_ZTS{number}k', device=str(number % 3), age=0)\n"
        subprocess.run([sys.executable, "-c", writer, str(store), str(BURST // 10)], check=True)
        one.until(lambda: stores_of(one) == {str(store): BURST // 10})

        # What was lost is said while it is looked for, and who wrote is told some seconds later.
        modes = {"auto": {"fanotify", "fanotify-classic", "inotify"}}.get(mode, {mode})
        one.until(lambda: one.ask("status")["watching"]["mode"] in modes)  # type: ignore[index]
        said = one.ask("status")["watching"]
        assert isinstance(said, dict)
        assert said["reason"] or said["mode"] == "fanotify"
        one.until(lambda: one.ask("doctor")["report"]["watching"] == one.ask("status")["watching"])  # type: ignore[index]
        assert f"watching: {'not everything' if mode == 'polling' else 'by '}" in one.ctl("doctor").stdout


def stores_of(one: Daemon) -> dict[object, object]:
    """Return the entries of each store that is there."""
    return {row["store"]: row["entries"] for row in one.rows("stores") if row["state"] == "ok"}


def test_without_rights_it_is_inotify_and_says_so(store: Path) -> None:
    setpriv = shutil.which("setpriv")
    if os.geteuid() == 0 and setpriv is None:
        pytest.skip("setpriv is not installed (Debian: apt-get install util-linux)")
    program = (
        "import sys\nfrom pathlib import Path\nfrom xpucached.watch.watcher import WatchOptions, Watcher\n"
        "watcher = Watcher(lambda wake: None, WatchOptions(Path('/nowhere/sock')))\n"
        "watcher.watch([Path(sys.argv[1])], [], [])\nprint(watcher.mode, watcher.better)\nwatcher.stop()\n"
    )
    without = [setpriv or "", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*without, sys.executable, "-c", program, str(store)], capture_output=True, text=True, check=True
    )

    assert done.stdout.startswith("inotify no xpucached-watch at /nowhere/sock")
    assert "we lack CAP_DAC_READ_SEARCH and CAP_SYS_ADMIN" in done.stdout


def test_what_the_kernel_lost_is_looked_for(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rights()
    most = int(OVERFLOWS.read_text())
    if most > 50_000:
        pytest.skip(f"{OVERFLOWS} is {most}: to fill it takes too long")
    gate = threading.Event()
    gate.set()
    slow = functools.partial(WatchServer, turn=lambda: gate.wait(PATIENCE))
    monkeypatch.setattr(fanotify_client, "WatchServer", slow)
    (store / LEAF).mkdir(parents=True)
    with watching(store) as (watcher, ears):
        gate.clear()
        for number in range(most + 100):
            os.close(os.open(store / LEAF / f"{number}.src", os.O_WRONLY | os.O_CREAT))
        gate.set()
        ears.until(lambda: EventsLost() in ears.wakes)

        assert str(watcher.mode) == WatchMode.POLLING
        assert "lost" in watcher.better
        watcher.watch([store], [], [])
        assert str(watcher.mode) in {WatchMode.FANOTIFY, WatchMode.CLASSIC}


def test_a_watcher_that_goes_away_is_replaced(store: Path, short_dir: Path) -> None:
    rights()
    place = short_dir / "sock"
    (store / LEAF).mkdir(parents=True)
    command = [sys.executable, "-m", "xpucached.watchd", "--socket", str(place)]
    service = subprocess.Popen(command)
    try:
        Ears().until(lambda: listens(place))
        with watching(store, watch_socket=place) as (watcher, ears):
            # It is the host's that serves us: of a watcher of our own there would be a thread.
            assert "watcher" not in {thread.name for thread in threading.enumerate()}
            (store / LEAF / "0.src").write_bytes(b"")
            ears.until(lambda: bool(ears.touches))
            assert ears.touches[0].pid == os.getpid()

            service.send_signal(signal.SIGKILL)
            service.wait()
            ears.until(lambda: EventsLost() in ears.wakes)
            assert str(watcher.mode) == WatchMode.POLLING
            assert "went away" in watcher.better

            watcher.watch([store], [], [])
            ears.touches.clear()
            assert "watcher" in {thread.name for thread in threading.enumerate()}
            (store / LEAF / "1.src").write_bytes(b"")
            ears.until(lambda: bool(ears.touches))
    finally:
        service.kill()
        service.wait()


def test_other_means_hold_from_the_next_look_on(store: Path) -> None:
    rights()
    with watching(store) as (watcher, _):
        best = watcher.mode
        for means, mode in (
            (WatchOptions(None), WatchMode.INOTIFY),
            (WatchOptions(NOWHERE, inotify=False), WatchMode.POLLING),
            (WatchOptions(NOWHERE), best),
        ):
            watcher.use(means)
            watcher.watch([store], [], [])
            assert watcher.mode is mode
            if mode is not best:
                assert watcher.better == "the configuration asks for it"


def test_a_store_that_another_directory_replaced_is_heard(store: Path) -> None:
    rights()
    with watching(store) as (watcher, ears):
        store.rename(store.with_name("old"))
        (store / LEAF).mkdir(parents=True)
        watcher.watch([store], [], [])
        ears.touches.clear()
        (store / LEAF / "0.src").write_bytes(b"")

        ears.until(lambda: [one.path for one in ears.touches] == [f"{LEAF}/0.src"])


# -- real programs --------------------------------------------------------------------------------------------------

PROGRAM: Final = """
import os, sys
import dpctl.tensor as t
x = t.ones(64, dtype="f4")
for name in sys.argv[1:]:
    getattr(t, name)(x)
print("done", flush=True)
sys.stdin.read()
os._exit(0)
"""
"""Lives on until its input ends, as programs do: who is gone within milliseconds cannot be looked at."""


def begun(there: Runtime, store: Path, *names: str) -> subprocess.Popen[str]:
    """Start a program."""
    return subprocess.Popen(
        [there.python, "-c", PROGRAM, *names],
        env=there.environment(store, trace=True),
        cwd=store,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def is_done(program: subprocess.Popen[str]) -> bool:
    """Wait until a program has done all that it does with the store."""
    assert program.stdout is not None
    return program.stdout.readline() == "done\n"


@pytest.mark.runtime
@pytest.mark.parametrize("name", ["rt2025.1", "rt2025.3"])
def test_who_made_and_who_loaded_is_what_the_runtimes_own_traces_say(
    name: str, runtime: Callable[[str], Runtime], store: Path
) -> None:
    rights()
    there = runtime(name)
    who: dict[int, Program | None] = {}
    seen: list[tuple[FileEvent, Program]] = []
    with watching(store, loads=True) as (watcher, ears):
        assert watcher.loads

        def heard(touch: FileEvent) -> None:
            program = who.setdefault(touch.pid, process_table.program(touch.pid, touch.at, ("libsycl",)))
            if program is not None:
                seen.append((touch, program))
            ears.touches.append(touch)

        watcher._on_event = heard
        used_last: dict[int, frozenset[EntryKey]] = {}
        sets = [("exp", "sqrt", "abs"), ("tanh", "sin", "exp")]
        for _ in range(2):
            # Two at a time, the first time they compile and the second time they load.
            seen.clear()
            running = [begun(there, store, *names) for names in sets]
            assert all(is_done(one) for one in running)
            (store / LEAF).mkdir(parents=True, exist_ok=True)
            (store / LEAF / "7.src").write_bytes(b"")
            ears.until(lambda: f"{LEAF}/7.src" in {one.path for one in ears.touches})
            traces = {one.pid: told(store, one.communicate(timeout=PATIENCE)[1].splitlines()) for one in running}
            subprocess.run(["/bin/grep", "-r", "nothing", str(store)], check=False)
            (store / LEAF / "7.src").unlink()
            # All that was heard before is there once this is.  What is removed, the classic way cannot name.
            (store / LEAF / "8.src").write_bytes(b"")
            ears.until(lambda: (f"{LEAF}/8.src", FileAct.WRITTEN) in {(one.path, one.act) for one in ears.touches})
            if watcher.mode is WatchMode.FANOTIFY:
                assert (f"{LEAF}/7.src", FileAct.GONE) in {(one.path, one.act) for one in ears.touches}
            (store / LEAF / "8.src").unlink()
            ears.touches.clear()

            found = sycl.activity.interpret(seen, datetime.now(UTC))
            for pid, (created, used) in traces.items():
                assert {key for program, _, key, _ in found.loaded if program.pid == pid} == used - created
                made = [key for program, keys in found.made.items() if program.pid == pid for _, key, _ in keys]
                # Where both compile the same at once, the later one's is a further slot of which no trace tells.
                assert created <= set(made) or created == set()
            assert {program.pid for program, *_ in found.loaded} <= traces.keys()
            assert {program.pid for program in found.made} <= traces.keys()
            used_last = {pid: used for pid, (_, used) in traces.items()}
        assert all(used_last.values())


def test_what_is_written_into_a_file_in_its_place_is_heard_of(
    home: Path, short_dir: Path, sycl_store: SyclStore
) -> None:
    rights()
    slot = sycl_store.add()
    # A binary alone wakes nobody, for it is half an entry; the next look knows of it.
    schedule = {"XPUCACHED_SCHEDULE_SCAN_INTERVAL": "1s", "XPUCACHED_SCHEDULE_EVICT": "false"}
    with daemon(home, short_dir, **schedule) as one:
        one.configure(f'[stores]\npaths = ["{sycl_store.root}"]\n')
        one.start()
        one.until(lambda: trusted(one) == 1)
        assert {row["state"] for row in one.rows("ls")} == {"ok"}
        slot.cut(slot.bin, 3)
        with slot.bin.open("ab"):
            pass
        one.until(lambda: {row["state"] for row in one.rows("ls")} == {"defective"})


def test_a_store_that_is_moved_with_what_is_above_it_is_noticed_at_once(
    home: Path, short_dir: Path, tmp_path: Path
) -> None:
    store = SyclStore(tmp_path / "above/below/store")
    store.add()
    with daemon(home, short_dir) as one:
        one.configure(f'[stores]\npaths = ["{store.root}"]\n')
        one.start()
        one.until(lambda: len(one.rows("ls")) == 1)
        # The next look by itself is ten minutes away.
        (tmp_path / "above").rename(tmp_path / "elsewhere")
        one.until(lambda: one.rows("ls") == [])


def test_a_directory_that_may_be_read_later_is_noticed_at_once(
    home: Path, short_dir: Path, sycl_store: SyclStore
) -> None:
    """As `cp -a` of root's makes one in a user's store: root's alone, until all is in it."""
    sycl_store.add()
    (device,) = (one for one in sycl_store.root.iterdir() if one.is_dir())
    device.chmod(0)
    try:
        with daemon(home, short_dir) as one:
            one.words = ("-c", MERE)
            one.configure(f'[stores]\npaths = ["{sycl_store.root}"]\n')
            one.start()
            one.until(lambda: "permission denied" in one.log.read_text())
            assert one.rows("ls") == []
            # The next look by itself is ten minutes away.
            device.chmod(0o755)
            one.until(lambda: len(one.rows("ls")) == 1)
    finally:
        device.chmod(0o755)


def test_a_directory_that_may_be_read_later_is_noticed_where_the_host_s_watcher_hears_all_else(
    home: Path, short_dir: Path, shm: Path
) -> None:
    rights()
    store = SyclStore(shm)
    store.add()
    (device,) = (one for one in shm.iterdir() if one.is_dir())
    device.chmod(0)
    place = short_dir / "sock"
    service = subprocess.Popen([sys.executable, "-m", "xpucached.watchd", "--socket", str(place)])
    try:
        Ears().until(lambda: listens(place))
        with daemon(home, short_dir, XPUCACHED_WATCH_SOCKET=str(place)) as one:
            one.words = ("-c", MERE)
            one.configure(f'[stores]\npaths = ["{shm}"]\n')
            one.start()
            # Of this directory nothing is lost but its rights.
            one.until(lambda: one.ask("status")["watching"]["mode"] == "fanotify")  # type: ignore[index]
            one.until(lambda: one.ask("status")["look_due"] is False)
            assert one.rows("ls") == []
            device.chmod(0o755)
            one.until(lambda: len(one.rows("ls")) == 1)
    finally:
        device.chmod(0o755)
        service.kill()
        service.wait()


def test_every_file_is_looked_at_once_a_day(home: Path, short_dir: Path, sycl_store: SyclStore) -> None:
    slot = sycl_store.add()
    schedule = {"XPUCACHED_SCHEDULE_SCAN_INTERVAL": "1s", "XPUCACHED_SCHEDULE_EVICT": "false"}
    with daemon(home, short_dir, XPUCACHED_WATCH_MODE="polling", **schedule) as one:
        one.configure(f'[stores]\npaths = ["{sycl_store.root}"]\n')
        one.start()
        time.sleep(2.1)  # so long directories are too young to be trusted
        one.until(lambda: trusted(one) == 1)
        slot.cut(slot.bin, 3)
        sycl_store.add("_ZTS5other")
        one.until(lambda: len(one.rows("ls")) == 2)
        assert {row["state"] for row in one.rows("ls")} == {"ok"}
        one.end()

        with contextlib.closing(sqlite3.connect(one.state / "catalog.sqlite")) as catalog:
            catalog.execute("UPDATE stores SET thorough = thorough - 86400000000")
            catalog.commit()
        one.start()
        one.until(lambda: sorted(str(row["state"]) for row in one.rows("ls")) == ["defective", "ok"])


def trusted(one: Daemon) -> int:
    """Count the entries whose files a look need not see."""
    with contextlib.closing(sqlite3.connect(one.state / "catalog.sqlite")) as catalog:
        return int(catalog.execute("SELECT count(*) FROM entries WHERE place IS NOT NULL").fetchone()[0])


@pytest.mark.runtime
def test_a_daemon_tells_what_was_loaded_by_whom(
    runtime: Callable[[str], Runtime], home: Path, short_dir: Path, store: Path
) -> None:
    rights()
    there = runtime("rt2025.3")
    with daemon(home, short_dir, XPUCACHED_WATCH_LOADS="true", XPUCACHED_SCHEDULE_SETTLE="200ms") as one:
        one.configure(f'[stores]\npaths = ["{store}"]\n')
        one.start()
        one.until(lambda: stores_of(one) == {str(store): 0})
        first = begun(there, store, "exp")
        assert is_done(first)
        one.until(lambda: bool(one.rows("ls")))
        before = {row["key"] for row in one.rows("ls")}
        # It loads first: once it is known to have compiled, its loads are.
        second = begun(there, store, "exp", "sqrt")
        assert is_done(second)
        said = one.ask("status")["watching"]
        assert isinstance(said, dict)
        assert said["loads"] is True
        one.until(lambda: [row["topic"] for row in one.rows("events")].count("compiled") == 2)
        # What is not written down yet is, when it ends.
        one.end()
        for program in (first, second):
            program.communicate()
            assert program.returncode == 0
        one.start()
        rows = [row for row in one.rows("ls") if row["key"] in before]

        assert {row["last_used_by"] for row in rows} == {"observed-loads"}
        assert all(row["hits"] for row in rows)
        assert {row["program"] for row in rows} == {there.python.name}


# -- what it means --------------------------------------------------------------------------------------------------

STARTED: Final = datetime(2026, 1, 1, tzinfo=UTC)
APP: Final = Program(7, STARTED, 1000, "python3", "python3 serve.py", "app.service", libraries=("libsycl.so.8",))


def touch(path: str, act: FileAct, at: float = 5.0, pid: int = 7) -> FileEvent:
    return FileEvent(Path("/s"), path, act, pid, at)


def test_loads_of_a_minute_are_added_up() -> None:
    key = EntryKey(f"{LEAF}/0")
    loaded = [(APP, Path("/s"), key, STARTED), (replace(APP, unit="b.service"), Path("/s"), key, STARTED)]
    found = uses(uses({}, loaded), loaded[:1])

    assert found == {(Path("/s"), key): Load(Path("/s"), key, STARTED, 3, "app.service", 1000)}


def test_only_a_service_is_named_by_its_unit() -> None:
    assert APP.label == "app.service"
    assert replace(APP, unit="session-3.scope").label == "python3"
    assert not replace(APP, unit="user@1000.service").serves


def test_a_process_that_began_later_only_got_the_number() -> None:
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    found = process_table.program(os.getpid(), now)

    assert found is not None
    assert (found.uid, found.pid, found.libraries) == (os.getuid(), os.getpid(), ())
    assert found.command.split()[0] == Path("/proc/self/cmdline").read_text().split("\0")[0]
    began = process_times.started(os.getpid())
    assert began is not None
    assert began <= now
    assert process_table.program(os.getpid(), began - 1) is None
    assert process_table.program(2**22 + 1, now) is None


class Ground:
    """As much of `Context` and `StoreScanner` as a witness needs that writes nothing down."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, dict[str, str]]] = []
        self.notes: dict[str, str] = {}


def test_a_number_that_is_used_again_is_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    # The one thing that is pretended: which number a process gets, the kernel decides.
    alive: dict[int, float] = {7: 1.0}
    monkeypatch.setattr(process_times, "started", alive.get)
    monkeypatch.setattr(
        process_table,
        "program",
        lambda pid, at, _: replace(APP, pid=pid, unit=f"{alive[pid]}.service") if alive.get(pid, 1e9) <= at else None,
    )
    witness = ActivityTracker(Ground(), Ground())  # type: ignore[arg-type]

    def label(at: float) -> str | None:
        found = witness._program(7, at)
        return found.label if found else None

    assert label(2.0) == "1.0.service"
    alive[7] = 5.0
    # What was heard of before the new one began was the old one's.
    assert label(4.0) == "1.0.service"
    assert label(6.0) == "5.0.service"
    del alive[7]
    assert label(7.0) == "5.0.service"
    alive[8] = 9.0
    assert witness._program(8, 8.0) is None


def test_a_service_that_compiles_is_an_alarm_once_for_each_start(
    home: Path, short_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import asyncio  # noqa: PLC0415 - only here

    from xpucached.catalog import Catalog  # noqa: PLC0415
    from xpucached.domain.models import Model, Workload  # noqa: PLC0415
    from xpucached.domain.names import ModelName  # noqa: PLC0415
    from xpucached.processes.supervised import ProcessStarter  # noqa: PLC0415
    from xpucached.service import Service  # noqa: PLC0415
    from xpucached.service.context import Context  # noqa: PLC0415
    from xpucached.settings import loading  # noqa: PLC0415

    async def work() -> None:
        catalog = Catalog.open(short_dir / "catalog.sqlite")
        try:
            service = Service(
                Context(loading.load(None, user=True, environ=os.environ), catalog, {}), ProcessStarter({}, INSTANCE)
            )
            witness = service.tracker
            # No test can be in a service: who it was is said here.
            monkeypatch.setattr(witness, "_program", lambda pid, _: replace(APP, pid=pid))
            now = time.clock_gettime(time.CLOCK_BOOTTIME)
            for number in range(3):
                service.tracker.take(touch(f"{LEAF}/{number}.src", FileAct.WRITTEN, now))
            await service.tracker.digest()
            service.tracker.take(touch(f"{LEAF}/9.src", FileAct.WRITTEN, now))
            await service.tracker.digest()

            events = await service.context.events.since(0)
            assert [one.topic for one in events] == ["compiling-while-serving"]
            assert {name: events[0].fields[name] for name in ("unit", "entries", "pid", "uid")} == {
                "unit": "app.service",
                "entries": "3",
                "pid": "7",
                "uid": "1000",
            }
            assert "xpucachectl model add NAME --before app.service -- COMMAND" in events[0].fields["hint"]
            status = await service.status.get()
            (problem,) = [one for one in status.problems if one.code == "compiling-while-serving"]
            assert "app.service wrote 4 new entries" in problem.message
            assert status.watching.compiled == 4
            assert [one.entries for one in status.watching.compiling] == [4]

            catalog.write(
                add_model, Model(ModelName("net"), Workload(("/bin/true",), Path("/")), before=("app.service",))
            )
            service.tracker.take(touch(f"{LEAF}/0.src", FileAct.WRITTEN, now, pid=8))
            await service.tracker.digest()
            assert len(await service.context.events.since(0)) == 2
            assert (await service.context.events.since(0))[1].fields["hint"] == "see: xpucachectl why net"
            await service.stop()
        finally:
            catalog.close()

    asyncio.run(work())
    assert sum("compiles and makes its users wait" in one.message for one in caplog.records) >= 2


def test_entries_of_a_catalog_remember_who_loaded_them(sycl_store: SyclStore, home: Path, short_dir: Path) -> None:
    sycl_store.add(age=10 * 86400)
    with daemon(home, short_dir) as one:
        one.configure(f'[stores]\npaths = ["{sycl_store.root}"]\n')
        one.start()
        one.end()
        from xpucached.catalog import Catalog  # noqa: PLC0415 - only here

        catalog = Catalog.open(one.state / "catalog.sqlite")
        try:
            (known,) = catalog.read(all_entries)
            now = datetime.now(UTC).replace(microsecond=0)
            use = Load(sycl_store.root, known.entry.id.key, now, 2, "app.service", 0)
            catalog.write(note_uses, (use, replace(use, last=now - timedelta(days=1))))
            catalog.write(note_uses, (replace(use, key=EntryKey("1/2/3/4/0")), replace(use, store=Path("/nowhere"))))
            # A program may name its files as it likes.
            catalog.write(note_uses, (replace(use, key=EntryKey("1/\udcff/0")), replace(use, hits=3)))
            catalog.write(note_uses, (replace(use, key=EntryKey("1/\udcff/0")),))
            (known,) = catalog.read(all_entries)
            assert (known.last_used, known.last_used_by) == (now, "observed-loads")
            assert (known.hits, known.program) == (7, "app.service")
        finally:
            catalog.close()
        one.start()
        assert "7 times, last by app.service" in one.ctl("show", known.entry.id.ref).stdout
        # Another look changes nothing of it.
        one.ctl("scan")
        (row,) = one.rows("ls")
        assert (row["hits"], row["program"], row["last_used_by"]) == (7, "app.service", "observed-loads")


@pytest.mark.parametrize("luck", ["a look fails", "too many to remember"])
def test_what_was_written_in_its_place_is_not_forgotten(
    home: Path, short_dir: Path, sycl_store: SyclStore, luck: str
) -> None:
    from xpucached.catalog import Catalog  # noqa: PLC0415
    from xpucached.domain.stores import EntryState, FoundStore, Store, StoreOrigin  # noqa: PLC0415
    from xpucached.service.context import Context  # noqa: PLC0415
    from xpucached.service.scan import StoreScanner  # noqa: PLC0415
    from xpucached.service.store_finder import StoreFinder  # noqa: PLC0415
    from xpucached.settings import loading  # noqa: PLC0415 - only here

    def clock() -> datetime:
        # The directories of a second ago are trusted by then.
        return datetime.now(UTC) + timedelta(minutes=1)

    slot = sycl_store.add()
    root = sycl_store.root
    found = FoundStore(Store(sycl.NAME, root), StoreOrigin.FOUND, "test")
    catalog = Catalog.open(short_dir / "catalog.sqlite")
    try:
        context = Context(loading.load(None, user=True, environ=os.environ), catalog, {}, clock)
        scanner = StoreScanner(context, StoreFinder(context))
        scanner.scan(found, None)
        slot.cut(slot.bin, 5)
        if luck == "too many to remember":
            for number in range(10_000):
                scanner.take_touch(FileEvent(root, f"1/2/3/{number}/0.src", FileAct.WRITTEN, 7, 1.0))
        path = os.fspath(slot.bin.relative_to(root))
        scanner.take_touch(FileEvent(root, path, FileAct.WRITTEN, 7, 1.0))
        if luck == "a look fails":
            root.rename(root.with_name("away"))
            root.touch()
            scanner.scan(found, None)
            root.unlink()
            root.with_name("away").rename(root)

        scanner.scan(found, None)

        assert [one.entry.state for one in catalog.read(all_entries)] == [EntryState.DEFECTIVE]
    finally:
        catalog.close()
