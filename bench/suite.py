"""How fast we are at 10,000, 100,000 and a million entries, beside what others take for the same files.

Usage: ``python bench/suite.py [--sizes N,N…] [--rounds N] [--parts …] [--place FOLDER] [--write]``

Every measurement of one size runs in turns with the others, on the same files, so that what else the machine does hits
all alike: look at the ratios.  The stores stay in the folder (``.bench``) and are used again.  With ``--write`` the
tables and drawings go into ``docs/performance.md`` and ``docs/performance-*.svg``.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import platform
import shutil
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

REPOSITORY: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from bench import drawing, neighbours, stores  # noqa: E402 - found beside us
from tests.support.daemons import Daemon  # noqa: E402 - as above
from xpucached.catalog import Catalog  # noqa: E402 - as above
from xpucached.catalog.figures import catalog_summary  # noqa: E402 - as above
from xpucached.catalog.scans import known_entries, record_scan  # noqa: E402 - as above
from xpucached.domain.host import Host  # noqa: E402 - as above
from xpucached.domain.plans import EvictReason, Policy  # noqa: E402 - as above
from xpucached.domain.stores import Delta, FoundStore, Store, StoreOrigin  # noqa: E402 - as above
from xpucached.domain.trash import TrashLabel  # noqa: E402 - as above
from xpucached.kinds import sycl  # noqa: E402 - as above
from xpucached.service import evict_decision as eviction  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xpucached.domain.plans import EvictionPlan

Times = dict[str, list[float]]

FIND: Final = "find -printf"
DELETE: Final = "find -delete"
HEADER: Final = 256
COPIED: Final = 10_000
"""Larger stores are not copied for each tool that removes: deleting 300,000 files takes minutes, whoever does it."""
OWN: Final = 16
"""Files that a tool may leave for itself: ccache counts in one for each of its folders."""
ASKED: Final = 25
"""Times that a daemon at rest is asked each question."""
FEW: Final = 50
RESTED: Final = 25.0
"""Entries, and seconds after its first look, with which a daemon is seen at rest."""
IDLE: Final = 5
"""Times that a daemon at rest is watched: the look every ten minutes falls into two of them at most."""
STARTS: Final = (
    *("--version", "status", "status --check", "env", "ls", "stores", "devices", "model list", "trash list", "jobs"),
    *("runs", "events", "version", "metrics", "df", "usage", "config show", "ls --limit 9", "ls --sort size"),
    "scan --no-wait",
)
"""Commands whose start is measured; the last two are none that the daemon writes the answer of."""
WATCHED: Final = 12
"""Rounds of what is measured with and without a watcher: a few hundredths are at stake."""


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that something takes, with nothing left to be written before."""
    os.sync()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def command(words: list[str], *, well: int = 0, **variables: str) -> Callable[[], object]:
    """Return a run of another tool, which ends with ``well`` at most."""

    def run() -> None:
        done = subprocess.run(words, env={**os.environ, **variables}, check=False, capture_output=True)
        if not 0 <= done.returncode <= well:
            raise RuntimeError(f"{words} ended with {done.returncode}: {done.stderr.decode()}")

    return run


def turns(works: dict[str, Callable[[], object]], rounds: int) -> Times:
    """Measure all of them so many times, in turns."""
    times: Times = {name: [] for name in works}
    for number in range(rounds):
        for name, work in works.items():
            times[name].append(timed(work))
            print(f"  round {number + 1}: {name}: {times[name][-1]:.2f} s", flush=True)
    return times


# -- looking ----------------------------------------------------------------------------------------------------------


def walk(root: Path, *, headers: bool) -> int:
    """Do what any Python program must: list every directory, look at every file, perhaps read its head."""
    seen = 0
    stack = [os.fspath(root)]
    while stack:
        with os.scandir(stack.pop()) as found:
            for one in found:
                if one.is_dir(follow_symlinks=False):
                    stack.append(one.path)
                    continue
                seen += one.stat(follow_symlinks=False).st_size
                if headers and one.name.endswith(".src"):
                    descriptor = os.open(one.path, os.O_RDONLY | os.O_NOATIME)
                    os.read(descriptor, HEADER)
                    os.close(descriptor)
    return seen


def recorded(catalog: Catalog, found: FoundStore, now: datetime, *, quick: bool = False) -> tuple[Delta, int]:
    """Look at a store as the daemon does; give what the last part said, and how many changes all of them did."""
    changes = 0
    for part in sycl.scanner.parts(found, now, known_entries(catalog, found.store), None, quick=quick):
        delta = catalog.write(record_scan, part, sycl.scanner.architecture)
        changes += delta.added + delta.changed + delta.vanished
    return delta, changes


def looking(root: Path, state: Path, entries: int, rounds: int) -> Times:
    """Measure first looks and looks at what has not changed."""
    found = FoundStore(Store(sycl.NAME, root), StoreOrigin.CONFIGURED, "bench")
    now = datetime.now(UTC)
    kept: list[Catalog] = []

    def look() -> None:
        assert sum(len(part.entries) for part in sycl.scanner.parts(found, now, (), None)) == entries

    def index() -> None:
        if kept:
            kept.pop().close()
        (state / "kept.sqlite").unlink(missing_ok=True)
        kept.append(Catalog.open(state / "kept.sqlite"))
        recorded(kept[0], found, now)

    def again(*, quick: bool) -> None:
        delta, changes = recorded(kept[0], found, datetime.now(UTC), quick=quick)
        assert (changes, delta.entries) == (0, entries), delta

    inserted = range(entries if entries < stores.LARGE else 0)
    rows = [(number, f"{number}/1/2/3/0", "stamp", 23_000, 45_056, number, None, 1) for number in inserted]

    def insert() -> None:
        (state / "raw.sqlite").unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(state / "raw.sqlite")) as raw:
            raw.execute("PRAGMA journal_mode = WAL")
            raw.execute("CREATE TABLE e (a INTEGER PRIMARY KEY, b TEXT UNIQUE, c, d, e, f, g, h)")
            raw.executemany("INSERT INTO e VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            raw.commit()

    works: dict[str, Callable[[], object]] = {
        FIND: command(["find", os.fspath(root), "-printf", "%p %s %T@ %b\n"]),
        "du -s": command(["du", "-s", os.fspath(root)]),
        "os.scandir": lambda: walk(root, headers=False),
        "os.scandir and headers": lambda: walk(root, headers=True),
        "sqlite3, raw insert": insert,
        "xpucached, first look": look,
    }
    if entries >= stores.LARGE:
        # Nothing of so many stays in memory, and each walk takes minutes: the others' slopes are seen below.
        works = {FIND: works[FIND]}
    works |= {
        # The two below use the catalog of the last one.
        "xpucached, first index": index,
        "xpucached, look again": lambda: again(quick=True),
        "xpucached, look at every file again": lambda: again(quick=False),
    }
    if shutil.which("ccache") and entries < stores.LARGE:
        other = stores.ccache(root.with_name(f"ccache-{entries}"), entries)
        works["ccache --cleanup"] = command(["ccache", "--cleanup"], CCACHE_DIR=os.fspath(other))
    if entries < stores.LARGE:
        # Warm for everybody: names, and what is in the files.
        works[FIND]()
        look()
    times = turns(works, rounds)
    kept.pop().close()
    return times


# -- deciding and evicting --------------------------------------------------------------------------------------------


def deciding(state: Path, rounds: int) -> Times:
    """Measure plans, with the reading of the catalog."""
    catalog = Catalog.open(state / "kept.sqlite")
    now = datetime.now(UTC) + timedelta(minutes=1)
    on = Host(now, "", "", "")
    total = catalog.read(catalog_summary).allocated

    def plan(policy: Policy) -> EvictionPlan:
        return decided(catalog, on, policy, now)

    times = turns(
        {
            "plan: nothing unused": lambda: plan(Policy()),
            "plan: 1 % over a budget": lambda: plan(Policy(max_unused=None, max_bytes=int(total * 0.99))),
            "plan: 10 % over a budget": lambda: plan(Policy(max_unused=None, max_bytes=int(total * 0.9))),
        },
        rounds,
    )
    catalog.close()
    return times


def decided(catalog: Catalog, on: Host, policy: Policy, now: datetime) -> EvictionPlan:
    """Decide as the daemon does."""
    return eviction.decided(catalog, on, frozenset(), {}, policy, now)


def evicting(root: Path, place: Path, entries: int, rounds: int) -> Times:
    """Measure how every tool removes what is older than 30 days: half of the store."""
    times: Times = {}

    def measure(name: str, prepared: Path, work: Callable[[], object], left: int) -> None:
        times.setdefault(name, []).append(timed(work))
        assert abs(stores.count(prepared) - left) <= left // 100 + OWN, (name, stores.count(prepared), left)
        print(f"  {name}: {times[name][-1]:.2f} s", flush=True)
        shutil.rmtree(prepared)

    half = 3 * ((entries + 1) // 2)
    for _ in range(rounds):
        copied = stores.copy(root, place / "copy")
        old = ["find", os.fspath(copied), "-type", "f", "-mtime", "+30", "-delete"]
        empty = ["find", os.fspath(copied), "-mindepth", "1", "-type", "d", "-empty", "-delete"]
        measure(DELETE, copied, lambda old=old, empty=empty: (command(old)(), command(empty)()), half)  # type: ignore[misc]
        if shutil.which("systemd-tmpfiles"):
            copied = stores.copy(root, place / "copy")
            rules = place / "rules.conf"
            rules.write_text(f"e {copied} - - - m:30d\n")
            measure("systemd-tmpfiles", copied, command(["systemd-tmpfiles", "--clean", os.fspath(rules)]), half)
        if shutil.which("ccache"):
            other = stores.ccache(place / "ccache", entries)
            words = ["ccache", "--evict-older-than", "30d"]
            measure("ccache --evict-older-than", other, command(words, CCACHE_DIR=os.fspath(other)), half)
        for name, trashing in (("xpucached, for good", False), ("xpucached, into the trash", True)):
            copied = stores.copy(root, place / "copy")
            found = FoundStore(Store(sycl.NAME, copied), StoreOrigin.CONFIGURED, "bench")
            now = datetime.now(UTC)
            (place / "evict.sqlite").unlink(missing_ok=True)
            catalog = Catalog.open(place / "evict.sqlite")
            recorded(catalog, found, now)
            plan = decided(catalog, Host(now, "", "", ""), Policy(max_unused=30 * stores.DAY, grace=0.0), now)
            catalog.close()
            victims = [one.entry.entry for one in plan.evict]
            notes = {one.id: TrashLabel(now, EvictReason.UNUSED, "unused") for one in victims} if trashing else {}
            measure(name, copied, lambda victims=victims, notes=notes: sycl.remover.remove(victims, notes), half)  # type: ignore[misc]
    return times


# -- the daemon -------------------------------------------------------------------------------------------------------


def memory(pid: int, what: str = "Rss") -> float:
    """Return what a process holds in memory, in MB; as ``Pss`` what is shared is divided by those who share it."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.partition(f"\n{what}:")[2].split()[0]) * 1024 / 1e6


def ticks(pid: int) -> int:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def answer(path: Path, target: str) -> bytes:
    """Ask a daemon, and give what it says."""
    with contextlib.closing(http.client.HTTPConnection("localhost")) as connection:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(os.fspath(path))
        connection.request("GET", target)
        reply = connection.getresponse()
        text = reply.read()
        if reply.status != 200:  # noqa: PLR2004 - all is well
            raise RuntimeError(text.decode())
        return text


@contextlib.contextmanager
def running(root: Path, place: Path) -> Iterator[Daemon]:
    """Let a daemon look after a store."""
    home = place / "home"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    daemon = Daemon(home, Path(tempfile.mkdtemp(prefix="xb")), {"HOME": os.fspath(home), "XDG_CONFIG_HOME": "",
                    "XDG_STATE_HOME": "", "XDG_CACHE_HOME": "", "PYTHONWARNINGS": ""})  # fmt: skip
    # Started as people start it, with no catalog: a copy of the tests' process holds what they loaded.
    daemon.words = ("-m", "xpucached")
    daemon.state.mkdir(parents=True)
    daemon.configure(f'[stores]\npaths = ["{root}"]\n[schedule]\nevict = false\n')
    try:
        yield daemon
    finally:
        if daemon.process is not None:
            daemon.process.terminate()
            daemon.process.wait(120)
        shutil.rmtree(daemon.run)


def living(root: Path, place: Path, entries: int) -> dict[str, float]:
    """Measure a daemon: its start, its memory, its answers."""
    facts: dict[str, float] = {}
    with running(root, place) as daemon:
        began = time.perf_counter()
        daemon.start(ready=False)
        assert daemon.process is not None
        pid = daemon.process.pid
        while True:
            status = daemon.ask("status")
            if status:
                facts.setdefault("first answer, s", time.perf_counter() - began)
            if status.get("entries") == entries and status.get("verdict") != "starting":
                break
            time.sleep(0.2)
        facts["all indexed, s"] = time.perf_counter() - began
        facts["memory after the first scan, MB"] = memory(pid)
        for number in range(1, 4 if entries < stores.LARGE else 2):
            daemon.ctl("scan", "--wait", check=None, timeout=None)
            facts[f"memory after scan {number}, MB"] = memory(pid)
        time.sleep(5)
        facts["idle processor, %"] = statistics.median(idle(pid) for _ in range(IDLE))
        for name, path in (
            ("status", "/v1/status"),
            ("ls, first page", "/v1/entries?limit=50"),
            ("ls by driver, first page", "/v1/entries?limit=50&driver=25.9.33578"),
            ("ls by state, first page", "/v1/entries?limit=50&state=defective"),
            ("ls by device, first page", "/v1/entries?limit=50&device=Arc"),
            ("ls by kernel, first page", "/v1/entries?limit=50&kernel=00042"),
        ):
            asked = [
                timed(lambda path=path: answer(daemon.run / "xpucached" / "xpucached.sock", path)) for _ in range(ASKED)
            ]  # type: ignore[misc]
            facts[f"{name}, ms"] = statistics.median(asked) * 1000
        facts |= starting(daemon)
        daemon.process.terminate()
        daemon.process.wait(120)
        began = time.perf_counter()
        daemon.start(ready=False)
        while daemon.ask("status").get("entries") != entries:
            time.sleep(0.02)
        facts["status after a restart, s"] = time.perf_counter() - began
        asked = list(looking_in(daemon))
        facts["all looked at after a restart, s"] = time.perf_counter() - began
        if asked:
            facts["status during that look, ms"] = statistics.median(asked) * 1000
        facts["memory after a restart, MB"] = memory(daemon.process.pid)
    return facts


def resting(place: Path) -> dict[str, float]:
    """Measure what a daemon holds in memory that has little to look after, and nothing to do."""
    with running(stores.store(place / f"sycl-{FEW}", FEW), place) as daemon:
        daemon.start()
        assert daemon.process is not None
        time.sleep(RESTED)
        found = {what: memory(daemon.process.pid, what) for what in ("Rss", "Pss")}
    return {f"memory at rest with {FEW} entries, MB": found["Rss"], "its share of it (PSS), MB": found["Pss"]}


_CLIENT: Final = "import sys; from xpucached.cli import main; sys.exit(main())"
"""What an installed xpucachectl is."""


def starting(daemon: Daemon) -> dict[str, float]:
    """Measure what commands that print one answer cost: each in turns with an empty program of Python."""
    facts = {}
    for verb in STARTS:
        words = [sys.executable, "-c", _CLIENT, *verb.split(), *(["--user"] if verb != "--version" else [])]
        plain, whole = [], []
        for _ in range(15):
            plain.append(timed(command([sys.executable, "-c", "pass"])))
            # A check ends with what it says of the host, up to 3.
            whole.append(timed(command(words, well=3 if "--check" in words else 0, **daemon.environment)))
        facts[f"xpucachectl {verb} / python -c pass"] = statistics.median(whole) / statistics.median(plain)
    return facts


def idle(pid: int) -> float:
    """Return the percentage of a core that a process takes for some time."""
    before = ticks(pid)
    time.sleep(20)
    return (ticks(pid) - before) / os.sysconf("SC_CLK_TCK") / 20 * 100


def looking_in(daemon: Daemon) -> Iterator[float]:
    """Ask a daemon for its status until its first look is over; give the seconds that each answer took."""
    while True:
        began = time.perf_counter()
        status = json.loads(answer(daemon.run / "xpucached" / "xpucached.sock", "/v1/status"))["data"]
        if status["verdict"] != "starting":
            return
        yield time.perf_counter() - began
        time.sleep(0.05)


# -- all together -----------------------------------------------------------------------------------------------------


def machine() -> str:
    """Return where and how busy."""
    gigabytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    kind = subprocess.run(["stat", "-f", "-c", "%T", "."], capture_output=True, text=True, check=False).stdout.strip()
    words = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout.strip()
    return (
        f"{os.cpu_count()} cores, {gigabytes:.0f} GB, {kind}, Linux {platform.release().partition('-')[0]}, Python "
        f"{platform.python_version()}; commit {commit}, {datetime.now(UTC):%Y-%m-%d}"
    )


def measured(
    entries: int, place: Path, rounds: int, parts: str, before: dict[str, object]
) -> Iterator[dict[str, object]]:
    """Measure at one size; give what is known after each part, with what was measured of the others before."""
    print(f"{entries} entries", flush=True)
    root = stores.store(place / f"sycl-{entries}", entries)
    state = place / f"state-{entries}"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir()
    load = os.getloadavg()[0]
    times = dict(before.get("times") or {})  # type: ignore[call-overload]
    facts = dict(before.get("facts") or {})  # type: ignore[call-overload]
    for part in parts.split(","):
        if part == "looking":
            times |= looking(root, state, entries, rounds) | deciding(state, rounds)
        elif part == "evicting" and entries <= COPIED:
            times |= evicting(root, state, entries, max(1, rounds // 2))
        elif part == "living":
            facts |= (resting(place) if entries <= COPIED else {}) | living(root, state, entries)
            print(json.dumps(facts, indent=1), flush=True)
        elif part == "watching" and entries <= COPIED:
            try:
                facts |= neighbours.watching(root, state, WATCHED)
            except PermissionError as error:
                print(f"  what watching costs others is not measured: {error}", flush=True)
        yield {"times": times, "facts": facts, "load": [load, os.getloadavg()[0]], "machine": machine()}
    shutil.rmtree(state)


def main() -> int:
    """Measure, print, and perhaps write."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--sizes", default="10000,100000", help="entries, with commas (10000,100000)")
    options.add_argument(
        "--parts", default="looking,evicting,living,watching", help="some of these, others as they were"
    )
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--place", type=Path, default=REPOSITORY / ".bench")
    options.add_argument("--write", action="store_true", help="into docs/performance.md")
    given = options.parse_args()
    given.place.mkdir(parents=True, exist_ok=True)
    kept = given.place / "results.json"
    results: dict[str, dict[str, object]] = json.loads(kept.read_text()) if kept.exists() else {}
    for text in given.sizes.split(","):
        entries = int(text)
        rounds = max(1, given.rounds if entries < stores.LARGE else given.rounds // 3)
        for result in measured(entries, given.place, rounds, given.parts, results.get(text, {})):
            results[text] = result
            kept.write_text(json.dumps(results))
    tables, pictures = drawing.report(results)
    print(tables)
    if given.write:
        page = REPOSITORY / "docs" / "performance.md"
        page.write_text(drawing.between(page.read_text(), tables))
        for name, picture in pictures.items():
            (page.parent / name).write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
