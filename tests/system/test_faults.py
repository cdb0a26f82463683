"""Whatever fails around the daemon: it says what, nothing is lost, and it goes on by itself when that is over."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests import REPOSITORY
from tests.support import forks
from tests.support.daemons import Daemon, daemon
from tests.support.faults import Calls, Faults, with_store
from tests.support.store_actions import KEPT, look
from xpucached import sockets
from xpucached.api import imports
from xpucached.api.client import Client
from xpucached.catalog import Catalog, opening
from xpucached.catalog.scans import record_scan
from xpucached.catalog.stores import all_stores, forget_store
from xpucached.domain.bundles import MadeEntry
from xpucached.domain.host import Problem
from xpucached.domain.names import EntryKey, KindName
from xpucached.domain.stores import EntryState, Store, StoreState
from xpucached.domain.trash import Trashed
from xpucached.errors import CatalogError
from xpucached.kinds import sycl
from xpucached.service.problems import ClockGuard, ProblemList

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.builders import SyclStore
    from tests.support.runtimes import Runtime

EVERY = bool(os.environ.get("XPUCACHED_STRESS_SECONDS"))
"""Whether each moment is tried (`make stress`), or a sample of them."""

MOMENTS = 3
"""So many moments at which a whole daemon is killed, in a sample."""

OLD = "2024.18.7.0.11_160000"


def old(store: SyclStore, kernel: str, slot: int = 0) -> None:
    """Add an entry that may go."""
    made = store.add(kernel, driver=OLD, age=9e5, slot=slot, size=300 + slot)
    for path in (made.bin, made.src, made.access_time):
        os.utime(path, (time.time() - 9e5, time.time() - 9e5))


def problems(one: Daemon) -> set[str]:
    found = one.ask("status").get("problems")
    assert isinstance(found, list)
    return {str(problem["code"]) for problem in found}


def keys(one: Daemon) -> set[object]:
    return {row["key"] for row in one.rows("ls")}


def truth(store: SyclStore) -> set[object]:
    return {str(path.relative_to(store.root).with_suffix("")) for path in store.root.glob("[0-9]*/*/*/*/*.bin")}


# -- the store's disk -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE], ids=["EIO", "ESTALE"])
def test_a_disk_that_cannot_be_read_loses_nothing(
    struck: Daemon, strike: Faults, sycl_store: SyclStore, number: int
) -> None:
    for kernel in ("_ZTS1a", "_ZTS1b", "_ZTS1c"):
        sycl_store.add(kernel)
    struck.start()
    before = keys(struck)
    assert len(before) == 3

    strike.fail(sycl_store.root, number, Calls.READS)
    struck.ctl("scan", "--full")
    assert "store-unreadable" in problems(struck)
    assert keys(struck) == before
    assert strike.stop() > 0

    struck.ctl("scan")
    assert "store-unreadable" not in problems(struck)
    assert {row["state"] for row in struck.rows("ls")} == {"ok"}
    assert "Traceback" not in struck.log.read_text()


@pytest.mark.parametrize("first", [3, 8, 14, 20])
def test_a_file_that_cannot_be_read_just_now_is_not_found_guilty(
    strike: Faults, sycl_store: SyclStore, first: int
) -> None:
    for kernel in ("_ZTS1a", "_ZTS1b"):
        sycl_store.add(kernel)
    strike.fail(sycl_store.root, errno.EIO, Calls.READS, first=first, last=first + 1)
    script = f"""
        from pathlib import Path
        from tests.support.store_actions import look
        scan = look(Path({str(sycl_store.root)!r}))
        print(scan.state, len(scan.entries), sorted({{str(entry.state) for entry in scan.entries}}))
        """
    shown = in_child(script, strike)
    assert strike.stop() >= first
    # Either the whole look failed, or all entries are known and what could not be read waits.
    assert shown in ("unreadable 0 []\n", "ok 2 ['ok', 'unread']\n", "ok 2 ['ok']\n", "ok 2 ['unread']\n"), shown


def in_child(script: str, strike: Faults, *, check: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, **strike.variables, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == check, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES])
def test_what_cannot_be_removed_stays_and_goes_later(
    struck: Daemon, strike: Faults, sycl_store: SyclStore, number: int
) -> None:
    for kernel in ("_ZTS1a", "_ZTS1b", "_ZTS1c"):
        old(sycl_store, kernel)
    struck.start()
    strike.fail(sycl_store.root, number, Calls.CHANGES)
    struck.ctl("evict", check=None)
    assert strike.stop() > 0
    assert keys(struck) == truth(sycl_store)
    assert all(row["state"] == "ok" for row in struck.rows("ls"))

    struck.ctl("evict")
    assert truth(sycl_store) == keys(struck) == set()
    assert not list(sycl_store.root.rglob("*.lock"))
    assert "Traceback" not in struck.log.read_text()


def test_what_cannot_be_written_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem_list = ProblemList()
    problem_list.failed(tmp_path, OSError(errno.EDQUOT, "Disk quota exceeded"))
    problem_list.failed(tmp_path / "other", OSError(errno.EIO, "Input/output error"))
    assert [(one.code, one.subject) for one in problem_list.all()] == [
        ("store-failing", f"{tmp_path}/other"),
        ("store-full", str(tmp_path)),
    ]
    # Looking does not tell whether the quota is still spent; writing does, and so does time.
    problem_list.look(tmp_path)
    assert len(problem_list.all()) == 2
    problem_list.worked(tmp_path)
    assert [one.code for one in problem_list.all()] == ["store-failing"]
    monkeypatch.setattr("xpucached.service.problems._REMEMBERED", 0.0)
    problem_list.look(tmp_path / "other")
    assert problem_list.all() == ()
    problem_list.unreadable(tmp_path, "")
    problem_list.forget(str(tmp_path))
    assert problem_list.all() == ()


@pytest.mark.runtime
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ENOSPC, "store-full"), (errno.EDQUOT, "store-full"), (errno.EIO, "store-failing")],
    ids=["full", "quota", "EIO"],
)
def test_a_replay_that_cannot_write_is_named_and_goes_on_later(
    struck: Daemon,
    strike: Faults,
    number: int,
    code: str,
    runtime: Callable[[str], Runtime],
    filled: Path,
    tmp_path: Path,
) -> None:
    first, second = runtime("rt2025.2"), runtime("drv2025.3")
    root = tmp_path / "cache"
    shutil.copytree(filled, root)
    before = len(list(root.glob("[0-9]*/*/*/*/0.bin")))
    drive = f"variables = {{ OCL_ICD_FILENAMES = '{second.driver}', LD_LIBRARY_PATH = '{second.lib}:{first.lib}' }}"
    struck.configure(f"[stores]\npaths = ['{root}']\n[schedule]\nreplay = false\nevict = false\n[driver]\n{drive}\n")
    struck.start()
    strike.fail(root, number, Calls.CHANGES)
    failed = struck.ctl("replay", check=None)
    assert strike.stop() > 0
    assert failed.returncode == 1
    assert "not everything was rebuilt" in failed.stderr
    assert code in problems(struck)
    assert len(list(root.glob("[0-9]*/*/*/*/0.bin"))) == before

    struck.ctl("replay")
    assert code not in problems(struck)
    assert len(list(root.glob("[0-9]*/*/*/*/0.bin"))) == 2 * before
    assert not (root / ".xpucached").exists()
    assert "Traceback" not in struck.log.read_text()


@pytest.mark.runtime
def test_a_place_of_its_own_that_is_full_is_told_once(
    struck: Daemon, strike: Faults, runtime: Callable[[str], Runtime], filled: Path, tmp_path: Path
) -> None:
    first, second = runtime("rt2025.2"), runtime("drv2025.3")
    root, into = tmp_path / "cache", tmp_path / "into"
    into.mkdir()
    shutil.copytree(filled, root)
    drive = f"variables = {{ OCL_ICD_FILENAMES = '{second.driver}', LD_LIBRARY_PATH = '{second.lib}:{first.lib}' }}"
    struck.configure(f"[stores]\npaths = ['{root}']\n[schedule]\nreplay = false\nevict = false\n[driver]\n{drive}\n")
    struck.start()
    strike.fail(into, errno.ENOSPC, Calls.CHANGES)
    report = struck.ask("replay", "--into", str(into))["report"]
    assert strike.stop() > 0

    # All that is wanted is missing, tried or not; and it is no store of ours, whose state the status would show.
    assert report["share"] == 0  # type: ignore[index]
    assert not {code for code in problems(struck) if code.startswith("store-")}


MOUNTED = """
import os, subprocess, sys, time
from pathlib import Path
from tests.support.builders import SyclStore
from tests.support.daemons import daemon
from tests.support.faults import with_store
from tests.system.test_faults import problems
disk, run, home = map(Path, sys.argv[1:4])
store = SyclStore(disk / "store")
store.add("_ZTS1a")
with daemon(home, run) as one:
    with_store(one, store)
    one.start()
    print("well", sorted(problems(one) & {"store-read-only", "store-full"}))
    subprocess.run(["mount", "-o", "remount,bind,ro", disk], check=True)
    one.ctl("scan")
    print("read-only", sorted(problems(one) & {"store-read-only", "store-full"}), len(one.rows("ls")))
    subprocess.run(["mount", "-o", "remount,bind,rw", disk], check=True)
    with (disk / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError as error:
            pass
    one.ctl("scan")
    print("full", sorted(problems(one) & {"store-read-only", "store-full"}), len(one.rows("ls")))
    (disk / "ballast").unlink()
    one.ctl("scan")
    print("well", sorted(problems(one) & {"store-read-only", "store-full"}), len(one.rows("ls")))
"""


@pytest.mark.timeout(600)
def test_a_disk_that_is_full_or_read_only_is_named(tmp_path: Path, short_dir: Path, home: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    script = (
        f"mount -t tmpfs -o size=4m none '{disk}' || exit 77; "
        f"exec '{sys.executable}' -c \"$0\" '{disk}' '{short_dir}' '{home}'"
    )
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare")
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [unshare, "--map-root-user", "--mount", "sh", "-c", script, MOUNTED],
        capture_output=True,
        text=True,
        check=False,
        env=variables,
    )
    if done.returncode in (1, 77) and not done.stdout and "Traceback" not in done.stderr:
        pytest.skip(f"no mounts here: {done.stderr}")
    assert done.stdout.splitlines() == [
        "well []",
        "read-only ['store-read-only'] 1",
        "full ['store-full'] 1",
        "well [] 1",
    ], done.stdout + done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_permission_that_is_taken_away_and_given_back(host: Daemon, sycl_store: SyclStore) -> None:
    sycl_store.add()
    host.start()
    sycl_store.root.chmod(0)
    host.ctl("scan")
    assert "store-unreadable" in problems(host)
    assert len(host.rows("ls")) == 1
    sycl_store.root.chmod(0o700)
    host.ctl("scan")
    assert "store-unreadable" not in problems(host)


def test_a_permission_that_the_kernel_takes_away(struck: Daemon, strike: Faults, sycl_store: SyclStore) -> None:
    """As above, for tests that run as root: the same error from the same calls."""
    sycl_store.add()
    struck.start()
    strike.fail(sycl_store.root, errno.EACCES, Calls.READS)
    struck.ctl("scan")
    strike.stop()
    assert "store-unreadable" in problems(struck)
    assert len(struck.rows("ls")) == 1
    struck.ctl("scan")
    assert "store-unreadable" not in problems(struck)


@pytest.fixture
def host(home: Path, short_dir: Path, sycl_store: SyclStore) -> Iterator[Daemon]:
    """Return a daemon with one store."""
    with daemon(home, short_dir) as one:
        with_store(one, sycl_store)
        yield one


def test_a_store_that_is_removed_and_made_again(host: Daemon, sycl_store: SyclStore) -> None:
    sycl_store.add("_ZTS1a")
    host.start()
    assert len(host.rows("ls")) == 1
    shutil.rmtree(sycl_store.root)
    host.until(lambda: host.rows("ls") == [])
    assert [row["state"] for row in host.rows("stores") if row["store"] == str(sycl_store.root)] == ["missing"]
    sycl_store.add("_ZTS1b")
    sycl_store.add("_ZTS1c")
    host.until(lambda: keys(host) == truth(sycl_store))
    assert [row["state"] for row in host.rows("stores") if row["store"] == str(sycl_store.root)] == ["ok"]


# -- the catalog ------------------------------------------------------------------------------------------------------


def test_a_catalog_on_a_full_disk_is_named_and_takes_up_again(
    struck: Daemon, strike: Faults, sycl_store: SyclStore
) -> None:
    sycl_store.add("_ZTS1a")
    struck.start()
    strike.fail(struck.state, errno.ENOSPC, Calls.CHANGES)
    sycl_store.add("_ZTS1b")
    struck.ctl("scan", check=None)
    assert "catalog-failing" in problems(struck)
    assert strike.stop() > 0
    # Nobody asks for it: the daemon tries again by itself.
    struck.until(lambda: "catalog-failing" not in problems(struck))
    struck.until(lambda: keys(struck) == truth(sycl_store))
    assert "Traceback" not in struck.log.read_text()


def test_what_is_told_of_models_and_that_a_run_begins_is_on_the_disk_before(
    struck: Daemon, strike: Faults, tmp_path: Path
) -> None:
    struck.variables = {**struck.variables, "XPUCACHED_SCHEDULE_PREWARM": "false"}
    struck.start()
    ran = tmp_path / "ran"
    add = ("model", "add", "net", "--device", "cpu", "--cache", str(tmp_path / "cc"), "--", "/usr/bin/touch", str(ran))
    warm, remove = ("prewarm", "net", "--force"), ("model", "remove", "net")
    for command, known, has_run in ((add, False, False), (warm, True, False), (remove, True, True)):
        # What the disk does not take now would be gone after a power failure.
        strike.fail(struck.state, errno.EIO, Calls.SYNCS)
        assert struck.ctl(*command, check=None).returncode != 0
        assert strike.stop() > 0
        assert ([row["name"] for row in struck.rows("model", "list")], ran.exists()) == (["net"] * known, has_run)
        struck.ctl(*command, check=None)
    assert struck.rows("model", "list") == []


def test_what_other_compilers_cached_is_on_the_disk_before_it_proves_a_model(
    struck: Daemon, strike: Faults, tmp_path: Path
) -> None:
    struck.variables = {**struck.variables, "XPUCACHED_SCHEDULE_PREWARM": "false"}
    struck.start()
    cache = tmp_path / "cc"
    compiles = f"mkdir -p {cache}; cd {cache}; for n in 1 2 3; do test -e $n || echo compiled >$n; done"
    struck.ctl("model", "add", "net", "--device", "cpu", "--cache", str(cache), "--", "/bin/sh", "-c", compiles)
    # What was there before is on the disk by now, or nobody can tell.
    for files in (3, 0):
        strike.count(cache, Calls.SYNCS)
        struck.ctl("prewarm", "net", "--force")
        assert (strike.stop(), struck.ask("model", "show", "net")["warmth"]) == (files, "warm")


def test_whose_it_is_that_comes_from_a_bundle_is_on_the_disk_before_it_comes(struck: Daemon, strike: Faults) -> None:
    """Without it, revoking a key would pass over what had come before a failure of the power."""
    struck.start()
    made = MadeEntry(KindName("sycl"), struck.home / "store", EntryKey("1"), "", "")
    asked = imports.NoteComing(bundle=f"sha256:{64 * '0'}", made=(made,))
    with Client(Path(sockets.socket_path(user=True, environ=struck.environment))) as client:
        strike.fail(struck.state, errno.EIO, Calls.SYNCS)
        with pytest.raises(CatalogError):
            client.call(asked)
        assert strike.stop() > 0
        client.call(asked)


def test_however_often_a_look_fails_it_is_tried_again_at_one_pace(
    struck: Daemon, strike: Faults, sycl_store: SyclStore
) -> None:
    def failed() -> int:
        return struck.log.read_text().count("own look at the stores failed")

    struck.variables = {**struck.variables, "XPUCACHED_LOG_LEVEL": "debug"}
    struck.start()
    struck.until(lambda: keys(struck) == truth(sycl_store))
    strike.fail(struck.state, errno.ENOSPC, Calls.CHANGES)
    for number in range(6):
        before = failed()
        sycl_store.add(f"_ZTS1k{number}")
        struck.until(lambda before=before: failed() > before)  # type: ignore[misc]
    before = failed()
    # After 5 s, 10 s, 20 s …, and not that for each of the six.
    time.sleep(11)
    assert failed() - before <= 4
    assert strike.stop() > 0
    sycl_store.add("_ZTS1after")
    struck.until(lambda: keys(struck) == truth(sycl_store))


@pytest.mark.parametrize("asked", [True, False])
def test_a_catalog_that_is_damaged_at_work_is_made_anew(host: Daemon, sycl_store: SyclStore, *, asked: bool) -> None:
    for number in range(50):
        sycl_store.add(f"_ZTS2k{number}")
    host.start()
    host.ctl("model", "add", "m", "--", "/bin/true")
    path = host.state / "catalog.sqlite"
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = path.stat().st_size
    with path.open("r+b") as file:
        for at in range(4096, size, 4096):
            file.seek(at)
            file.write(os.urandom(512))
    sycl_store.add("_ZTS5after")
    if asked:
        host.ctl("scan", check=None)
    host.until(lambda: "catalog-rebuilt" in problems(host))
    host.until(lambda: keys(host) == truth(sycl_store))
    assert len(keys(host)) == 51
    assert list(host.state.glob("catalog.sqlite.corrupt-*"))


@pytest.mark.parametrize("table", ["entries", "ix_entries_ref", "attributions"])
def test_a_large_catalog_that_is_damaged_is_made_anew_while_the_daemon_answers(
    host: Daemon, sycl_store: SyclStore, table: str
) -> None:
    for number in range(3):
        sycl_store.add(f"_ZTS2k{number}")
    with_store(host, sycl_store)
    path = host.state / "catalog.sqlite"
    with closing(Catalog.open(path)) as catalog:
        seen = look(sycl_store.root)
        padded = tuple(replace(one, detail="x" * 6_000_000) for one in seen.entries)
        catalog.write(record_scan, replace(seen, entries=padded), sycl.scanner.architecture)
    assert path.stat().st_size > opening.LARGE
    with closing(sqlite3.connect(path)) as raw:
        (root,) = raw.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        (size,) = raw.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * 8)
    host.start(ready=False)
    assert host.process is not None
    host.until(lambda: bool(host.ask("status")))
    host.until(lambda: "catalog-rebuilt" in problems(host))
    host.until(lambda: keys(host) == truth(sycl_store))
    assert host.process.poll() is None
    assert len(keys(host)) == 3
    assert len([one for one in host.state.glob("*.corrupt-*") if not one.name.endswith(("-wal", "-shm"))]) == 1


def test_a_locked_catalog_is_refused_and_then_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "BUSY", 0.05)
    catalog = Catalog.open(tmp_path / "catalog.sqlite")
    store = Store(sycl.NAME, tmp_path / "s")
    with closing(sqlite3.connect(tmp_path / "catalog.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(CatalogError, match="locked"):
            catalog.write(forget_store, store)
        assert "locked" in str(catalog.trouble)
        assert catalog.read(all_stores) == ()
        assert not catalog.mend()
        other.execute("ROLLBACK")
    catalog.write(forget_store, store)
    assert catalog.trouble is None
    catalog.close()


# -- the clock --------------------------------------------------------------------------------------------------------


def test_a_clock_that_is_set_forward_evicts_nothing_by_itself(
    struck: Daemon, strike: Faults, sycl_store: SyclStore
) -> None:
    for kernel in ("_ZTS1a", "_ZTS1b"):
        sycl_store.add(kernel)
    struck.configure(struck.config.read_text().replace("evict = false", "evict = true"))
    struck.start()
    strike.set_clock(400 * 86400)
    struck.ctl("scan")
    (sycl_store.root / "1").mkdir()  # a hint, after which it looks, and would evict
    struck.until(lambda: "clock-jumped" in problems(struck))
    assert len(truth(sycl_store)) == 2
    # Who asks is obeyed; and ages are what the clock says.
    struck.ctl("evict")
    assert truth(sycl_store) == set()


def test_a_clock_is_believed_again_after_an_hour_without_a_jump() -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    now = {"wall": 0.0, "steady": 1000.0}
    watch = ClockGuard(lambda: begin + timedelta(seconds=now["wall"]), lambda: now["steady"])

    def after(seconds: float, *, jump: float = 0) -> None:
        now["wall"] += seconds + jump
        now["steady"] += seconds

    assert watch.jumped() is None
    after(80, jump=20)
    assert watch.jumped() is None  # corrected by less than a minute
    for jump in (3 * 86400, -3 * 86400):
        after(1, jump=jump)
        assert watch.jumped() == pytest.approx(jump)
    assert watch.jumps == 2
    after(3599)
    assert watch.distrusted
    after(2)
    assert watch.jumped() is None
    believed = not watch.distrusted
    assert believed


# -- death between any two calls --------------------------------------------------------------------------------------


def filled(root: Path, store: SyclStore) -> SyclStore:
    """Fill a store: one leaf with slots that stay above one that goes, one whole leaf that goes, one that stays."""
    made = type(store)(root, store.defaults)
    old(made, "_ZTS1a", 0)
    image = "_ZTS1b"
    made.add(image, driver=OLD, slot=0)
    made.add("_ZTS1c")
    return made


@pytest.mark.parametrize("act", ["remove", "publish", "trash", "restore"])
@pytest.mark.timeout(3600 if EVERY else 300)
def test_killed_before_any_change_nothing_is_lost(
    act: str, tmp_path: Path, sycl_store: SyclStore, strike: Faults
) -> None:
    """However far it came: what stays is whole, what goes is whole or gone, and nothing of ours is left."""

    def run(root: Path, what: str, status: int) -> None:
        variables = {**os.environ, **strike.variables, "PYTHONWARNINGS": "error"}
        done = forks.run("tests.support.store_actions", [str(root), what], variables, None)
        assert done.returncode == status, done.stderr[-3000:]

    def prepared(root: Path) -> SyclStore:
        store = filled(root, sycl_store)
        if act == "restore":
            run(root, "trash", 0)
        return store

    def trashed(root: Path) -> list[Trashed]:
        return [one for one in sycl.trash_files.trash(Store(sycl.NAME, root)) if one.whole]

    root = tmp_path / "count"
    every = truth(prepared(root)) | {one.key for one in trashed(root)}
    strike.count(root)
    run(root, act, 0)
    changes = strike.stop()
    assert changes > 8
    whole = truth(type(sycl_store)(root))
    for at in range(1, changes + 1, 1 if EVERY else max(1, changes // 5)):
        root = tmp_path / str(at)
        store = prepared(root)
        strike.kill(root, at)
        run(root, act, -signal.SIGKILL)
        strike.stop()
        if look(root).ours:
            run(root, "sweep", 0)
        after = look(root)
        assert after.state is StoreState.OK
        assert {one.state for one in after.entries} == {EntryState.OK}, after.entries
        assert not [path for path in root.rglob("*") if path.name.endswith(".lock") or path.name == ".xpucached"]
        assert truth(store) <= every | whole
        if act in ("trash", "restore"):
            # What was to be kept is in the store or whole in the trash, and never only in part.
            assert truth(store) | {one.key for one in trashed(root)} >= every, at
        kept = [one for one in after.entries if one.environment and one.environment.toolchain == KEPT]
        assert len(kept) == 1


@pytest.mark.parametrize("what", ["store", "catalog"])
@pytest.mark.timeout(3600 if EVERY else 300)
def test_a_daemon_killed_before_any_of_its_changes_goes_on(
    what: str, struck: Daemon, strike: Faults, sycl_store: SyclStore
) -> None:
    """The whole daemon, store and catalog: a sample of the moments, for each costs two starts."""
    kept = sycl_store.add("_ZTS4kept").leaf

    place = sycl_store.root if what == "store" else struck.state
    for kernel in ("_ZTS1a", "_ZTS1b"):
        old(sycl_store, kernel)
    struck.start()
    strike.count(place)
    struck.ctl("evict", check=None)
    changes = strike.stop()
    assert changes > 5, what
    assert struck.end() == 0
    for at in range(1, changes + 1, 1 if EVERY else max(1, changes // MOMENTS)):
        for kernel in ("_ZTS1a", "_ZTS1b"):
            old(sycl_store, kernel)
        struck.start()
        strike.kill(place, at)
        struck.ctl("evict", check=None)
        assert struck.process is not None
        # The count may end a little earlier than when it was taken: then it is killed by us.
        if struck.process.poll() is None:
            struck.process.kill()
        struck.process.wait(30)
        strike.stop()
        struck.start()
        assert not list(sycl_store.root.rglob("*.lock"))
        assert keys(struck) == truth(sycl_store)
        assert {row["state"] for row in struck.rows("ls")} == {"ok"}
        assert (kept / "0.bin").exists()
        struck.ctl("evict")
        assert len(struck.rows("ls")) == 1
        assert struck.end() == 0


def test_the_faults_are_real(strike: Faults, tmp_path: Path) -> None:
    script = f"import os; os.mkdir({str(tmp_path / 'made')!r}); print('made')"
    strike.fail(tmp_path, errno.EDQUOT, Calls.CHANGES)
    assert in_child(script, strike, check=1) == ""
    assert strike.stop() >= 1
    strike.kill(tmp_path, 1)
    assert in_child(script, strike, check=-signal.SIGKILL) == ""
    strike.stop()
    assert in_child(script, strike) == "made\n"
    strike.set_clock(-86400)
    shown = float(in_child("import time; print(time.time())", strike))
    strike.set_clock(0)
    assert -90000 < shown - time.time() < -80000


def test_a_problem_is_shown_once_for_each_subject() -> None:
    problem_list = ProblemList()
    for message in ("first", "second"):
        problem_list.note(Problem("store-failing", message, "", "/a"))
    assert [one.message for one in problem_list.all()] == ["second"]
    problem_list.clear("store-failing", "/a")
    problem_list.clear("store-failing", "/a")
    assert problem_list.all() == ()
