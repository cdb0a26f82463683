"""The clock set forward and back while something goes on: nothing goes for it, nothing stops, and order stays order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tests import INSTANCE, REPOSITORY
from tests.flow.test_daemon import driven, switch
from tests.support.builders import sycl_target
from tests.system.test_faults import keys, old, problems, truth
from xpucached.catalog import Catalog
from xpucached.catalog.builds import count_built, forget_old_builds, record_build
from xpucached.catalog.entries import all_entries
from xpucached.catalog.tables import ENTRIES
from xpucached.domain.defects import CHANGED
from xpucached.domain.names import EntryKey, TrashRef
from xpucached.domain.plans import Built, EvictReason, Policy
from xpucached.domain.stores import EntryId, FoundStore, Store, StoreOrigin
from xpucached.domain.targets import Origin
from xpucached.domain.trash import Drop, DropReason, Trashed
from xpucached.domain.triggers import Started
from xpucached.host import process_table
from xpucached.kinds import sycl
from xpucached.kinds.sycl import locks
from xpucached.planning.trash import plan_trash
from xpucached.processes.supervised import ProcessStarter
from xpucached.service import Service, scan
from xpucached.service.context import Context
from xpucached.service.publish import forget_old
from xpucached.settings import loading

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests.support.builders import Slot, SyclStore
    from tests.support.daemons import Daemon
    from tests.support.faults import Faults
    from tests.support.runtimes import Runtime

NOW = datetime(2026, 6, 1, tzinfo=UTC)
WEEK = 7 * 86400
JUMPS = (400 * 86400, -400 * 86400, -56 * 365 * 86400)
"""Seconds: more than a year forward and back, and to when a machine without a battery begins."""


def trashed(name: str, at: datetime) -> Trashed:
    key = EntryKey(f"1/2/3/{name}/0")
    store = Store(sycl.NAME, Path("/s"))
    return Trashed(TrashRef(name), store, key, at, EvictReason.UNUSED, "", False, "d", "1", 4096, True)  # noqa: FBT003


def test_the_trash_goes_for_its_age_by_a_clock_that_is_right() -> None:
    policy = Policy(trash_keep=WEEK)
    items = [
        trashed("expired", NOW - timedelta(days=8)),
        trashed("kept", NOW - timedelta(days=6)),
        trashed("future", NOW + timedelta(days=400)),
    ]
    assert plan_trash(items, (), 0, policy, NOW) == (Drop(items[0], DropReason.EXPIRED),)
    assert plan_trash(items, (), 0, policy, None) == ()
    # A machine that starts in 1970 throws nothing away.
    assert plan_trash(items, (), 0, policy, datetime(1970, 1, 1, tzinfo=UTC)) == ()
    # But who wants nothing kept keeps nothing, whatever the time.
    assert len(plan_trash(items, (), 0, Policy(trash_keep=0), None)) == 3


@pytest.mark.parametrize("seconds", [-300, 300])
def test_when_a_process_began_is_told_by_the_clock_as_it_is_set_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    # What is remembered of this clock is no other test's business.
    monkeypatch.setattr(locks, "_offsets", type(locks._offsets)([locks._offset()]))
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as program:
        try:
            (before,) = [one for one in process_table.processes(os.getuid()) if one.pid == program.pid]
            clock = time.time
            monkeypatch.setattr(time, "time", lambda: clock() + seconds)
            (after,) = [one for one in process_table.processes(os.getuid()) if one.pid == program.pid]
        finally:
            program.kill()
    assert abs((after.started - before.started).total_seconds() - seconds) <= 1
    # So its lock, made after the clock was set, is its own: it is not older than the program.
    lock = tmp_path / "0.lock"
    lock.touch()
    os.utime(lock, (clock() + seconds, clock() + seconds))
    now = datetime.fromtimestamp(clock() + seconds + 10, UTC)
    assert locks.age(lock.stat(), now, after.started) is None


class SetClock:
    """A service for one store, on a clock that can be set."""

    def __init__(self, root: Path) -> None:
        self.offset = timedelta()
        self.root = root
        self.service: Service

    def now(self) -> datetime:
        return datetime.now(UTC) + self.offset

    def live(self, work: Callable[[], Awaitable[None]]) -> None:
        async def whole(catalog: Catalog) -> None:
            environ = {**os.environ, "XPUCACHED_STORES_FOUND": "false", "XPUCACHED_STORES_PATHS": str(self.root)}
            environ |= {"XPUCACHED_SCHEDULE_AHEAD": "false"}
            config = loading.load(None, user=True, environ=environ)
            self.service = Service(Context(config, catalog, {}, self.now), ProcessStarter({}, INSTANCE))
            try:
                await work()
            finally:
                await self.service.stop()

        with contextlib.closing(Catalog.open(self.root.parent / "catalog.sqlite")) as catalog:
            asyncio.run(whole(catalog))

    async def settled(self) -> None:
        while self.service.busy:  # noqa: ASYNC110 - what ends there has no event that all of it shares
            await asyncio.sleep(0.01)

    async def wait_and_set(self, kind: str) -> None:
        """Let a job of the daemon's own wait for its turn, and set the clock meanwhile."""
        async with self.service.context.locks.changing:
            await self.service.reconciler.reconcile([Started()])
            while kind not in {job.kind for job in self.service.context.jobs.all()}:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
            self.offset = timedelta(days=400)
        await self.settled()


@pytest.fixture
def set_clock(sycl_store: SyclStore) -> SetClock:
    return SetClock(sycl_store.root)


@pytest.mark.parametrize("kind", ["evict", "mend"])
def test_what_waited_for_its_turn_takes_nothing_by_a_clock_that_was_set_meanwhile(
    set_clock: SetClock, sycl_store: SyclStore, kind: str
) -> None:
    def damaged(slot: Slot) -> Slot:
        if kind == "mend":
            slot.cut(slot.bin, 30)
        return slot

    sooner = damaged(sycl_store.add("_ZTS1a", age=100 * 86400))
    later = damaged(sycl_store.add("_ZTS1b", age=1))

    async def work() -> None:
        await set_clock.wait_and_set(kind)
        assert sooner.bin.exists()
        assert later.bin.exists()
        assert "clock-jumped" in {one.code for one in (await set_clock.service.status.get()).problems}

    set_clock.live(work)


def test_the_trash_is_tidied_by_the_time_before_the_clock_was_asked_about(
    set_clock: SetClock, sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sycl_store.add("_ZTS1a", age=100 * 86400)

    async def work() -> None:
        service = set_clock.service
        await service.reconciler.reconcile([Started()])
        await set_clock.settled()
        assert len(await service.trash.all()) == 1

        def trusted() -> bool:
            # It is set as soon as that was asked.
            set_clock.offset = timedelta(days=400)
            return True

        monkeypatch.setattr(service.context, "trusts_the_clock", trusted)
        assert (await service.trash.tidy()).dropped == ()

    set_clock.live(work)


def test_what_was_compiled_lately_is_not_forgotten_by_a_clock_that_is_set(
    set_clock: SetClock, sycl_store: SyclStore
) -> None:
    one = EntryId(Store(sycl.NAME, sycl_store.root), EntryKey("1/2/3/4/0"))
    built = Built(one, sycl_target("P", "D", "1", "2"), Origin.REBUILT, "driver", 1, 2.0, "digest")

    async def work() -> None:
        service = set_clock.service
        await service.context.write(record_build, built, set_clock.now() - timedelta(days=1))
        await service.reconciler.reconcile([Started()])
        await set_clock.settled()
        set_clock.offset = timedelta(days=400)
        await forget_old(service.context)
        assert await service.context.read(count_built, frozenset({one})) == 1
        set_clock.offset = timedelta()
        await service.context.write(forget_old_builds, set_clock.now() + timedelta(days=400))
        assert await service.context.read(count_built, frozenset({one})) == 0

    set_clock.live(work)


def test_the_first_look_after_a_boot_is_at_every_file(
    set_clock: SetClock, sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not on the disk when the machine went down is empty, in a directory that is as it was."""
    slot = sycl_store.add()
    set_clock.offset = timedelta(minutes=1)

    async def work() -> None:
        scanner = set_clock.service.scanner
        await scanner.scan_stores()
        slot.cut(slot.bin, 0)
        assert (await scanner.scan_stores()).changed == 0
        monkeypatch.setattr(scan, "time", SimpleNamespace(**vars(time) | {"clock_gettime": lambda _clock: 0.0}))
        assert (await scanner.scan_stores()).changed == 1

    set_clock.live(work)


def test_what_came_just_before_a_boot_is_read_again(
    set_clock: SetClock, sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut leaves zeros also in a file of the right length, which has the times that were known of it."""
    slots = [sycl_store.add("_ZTS1a", size=4000), sycl_store.add("_ZTS1b", size=4000)]
    found = FoundStore(Store(sycl.NAME, sycl_store.root), StoreOrigin.FOUND, "")

    def pass_for_known(connection: sa.Connection) -> None:
        """Let what changed look as if it had not; the first one came long before."""
        early, late = sycl.scanner.scan(found, set_clock.now(), {}, None).entries
        long_ago = {"first_seen": NOW - timedelta(days=900), "created": NOW - timedelta(days=900)}
        for one, times in ((early, long_ago), (late, {})):
            its = ENTRIES.c.key == one.id.key
            connection.execute(sa.update(ENTRIES).where(its).values(stamp=one.stamp, **times))

    async def work() -> None:
        service = set_clock.service
        await service.scanner.scan_stores()
        for slot in slots:
            data = bytearray(slot.bin.read_bytes())
            data[len(data) // 2] ^= 1
            slot.bin.write_bytes(data)
        await service.context.write(pass_for_known)
        assert (await service.scanner.scan_stores(thorough=True)).changed == 0
        monkeypatch.setattr(scan, "time", SimpleNamespace(**vars(time) | {"clock_gettime": lambda _clock: 0.0}))
        await service.scanner.scan_stores()
        wrong = [one.entry.defect for one in await service.context.read(all_entries)]
        assert wrong == [None, CHANGED]

    set_clock.live(work)


@pytest.mark.parametrize("jump", JUMPS)
def test_what_is_in_the_trash_outlives_a_clock_that_is_set(
    struck: Daemon, strike: Faults, sycl_store: SyclStore, jump: int
) -> None:
    for kernel in ("_ZTS1a", "_ZTS1b"):
        old(sycl_store, kernel)
    before = truth(sycl_store)
    struck.start()
    struck.ctl("evict")
    assert truth(sycl_store) == set()
    for offset in (jump, 0):
        strike.set_clock(offset)
        # What somebody asks for tidies the trash, too.
        struck.ctl("evict")
        assert len(struck.rows("trash", "list")) == 2, offset
    # Nor does a daemon throw it away that starts with a clock of long ago.
    assert struck.end() == 0
    if jump < 0:
        strike.set_clock(jump)
    struck.start()
    struck.ctl("evict")
    struck.ctl("trash", "restore", "--all")
    assert truth(sycl_store) == before == keys(struck)
    assert "Traceback" not in struck.log.read_text()


def test_events_stay_in_order_and_jobs_end_while_the_clock_is_set(
    struck: Daemon, strike: Faults, sycl_store: SyclStore
) -> None:
    for number in range(40):
        sycl_store.add(f"_ZTS3k{number:02}")
    struck.start()
    for number, offset in enumerate((*JUMPS, 0)):
        made = sycl_store.add(f"_ZTS2j{number}")
        strike.set_clock(offset)
        for words in (("scan", "--full"), ("verify", "--fix")):
            done = struck.ctl(*words, check=None)
            assert done.returncode in (0, 1, 65, 69), (words, done.stderr)
        assert made.bin.exists()
        assert keys(struck) == truth(sycl_store)
        assert {row["state"] for row in struck.rows("ls")} == {"ok"}
    numbers = [row["id"] for row in struck.rows("events")]
    assert numbers == sorted(numbers)  # type: ignore[type-var]
    assert len(set(numbers)) == len(numbers)
    assert not [job for job in struck.rows("jobs") if job["state"] == "running"]
    assert "clock-jumped" in problems(struck)
    assert "Traceback" not in struck.log.read_text()


@contextlib.contextmanager
def restless(strike: Faults) -> Iterator[None]:
    """Set the clock forward and back all the time."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            for offset in (*JUMPS, 0):
                strike.set_clock(offset)
                stop.wait(0.03)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        strike.set_clock(0)


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_a_prewarm_and_a_replay_end_and_are_true_while_the_clock_is_set(
    struck: Daemon, strike: Faults, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    first, second = runtime("rt2025.2"), runtime("drv2025.3")
    link, root, here = tmp_path / "driver", tmp_path / "cache", REPOSITORY / "tests" / "support"
    driven(struck, first, link, f"[stores]\npaths = ['{root}']\n")
    with struck.config.open("a") as file:
        file.write("prewarm = false\nreplay = false\n")
    libraries = (str(REPOSITORY / "xpucached" / "libexec"), str(first.lib / "libsycl.so.8"))
    program = [sys.executable, "-I", "-S", "-B", str(here / "kernels.py"), *libraries]
    struck.start()
    struck.ctl("model", "add", "command", "--store", str(root), "--", *program, "a", "b")
    struck.ctl(
        *("model", "add", "loaded", "--store", str(root), "--loader", "python", "--python", sys.executable),
        *("--device", "cpu", "--target", "kernels:use", "--directory", str(here), "--steps", "1"),
        *("--option", f"directory={libraries[0]}", "--option", f"library={libraries[1]}"),
        *("--option", "names=c d"),
    )

    def stand() -> set[tuple[object, object]]:
        return {(row["name"], row["warmth"]) for row in struck.rows("model", "list")}

    warm = {("command", "warm"), ("loaded", "warm")}
    for step in ("first", "second"):
        if step == "second":
            switch(link, second)
            struck.until(lambda: "cold" in {str(warmth) for _, warmth in stand()})
        before = truth_of(root)
        with restless(strike):
            if step == "second":
                struck.ctl("replay", check=None)
            struck.ctl("prewarm", check=None)
        assert truth_of(root) >= before
        # What could not be proven meanwhile is said, and can be proven now.
        if step == "second":
            assert "nothing to rebuild" in struck.ctl("replay").stdout
        struck.ctl("prewarm")
        assert stand() == warm
        for kernels in ("ab", "cd"):
            variables = first.environment(root, driver=link / "libintelocl.so", trace=True)
            done = subprocess.run([*program, *kernels], env=variables, capture_output=True, text=True, check=True)
            assert "has been cached" not in done.stderr
            assert done.stderr.count("using cached") >= 2
    assert "clock-jumped" in problems(struck)
    assert not [job for job in struck.rows("jobs") if job["state"] in ("running", "queued")]
    assert "Traceback" not in struck.log.read_text()


def truth_of(root: Path) -> set[Path]:
    return {path.relative_to(root) for path in root.glob("[0-9]*/*/*/*/*.bin")}
