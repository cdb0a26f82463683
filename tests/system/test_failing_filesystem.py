"""A file system that really fails (FUSE): at EIO nothing is lost, and what the disk does not give is not judged."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests import INSTANCE, REPOSITORY
from tests.support.builders import SyclStore
from tests.support.daemons import Daemon, daemon
from tests.support.failing_filesystem import CHANGES
from tests.support.faults import with_store
from tests.support.store_actions import look
from tests.system.test_faults import keys, old, problems, truth
from xpucached.domain.models import Outcome, Workload
from xpucached.domain.plans import EvictReason, Policy
from xpucached.domain.stores import Store
from xpucached.domain.trash import TrashLabel
from xpucached.kinds import sycl
from xpucached.planning.trash import plan_trash
from xpucached.processes import conversation
from xpucached.processes.output import Trace
from xpucached.processes.supervised import ProcessStarter

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM: Final = REPOSITORY / "tests" / "support" / "failing_filesystem.py"


@dataclass(frozen=True, slots=True)
class Disk:
    """A directory on a file system that fails when it is told to."""

    place: Path
    backing: Path
    control: Path
    server: subprocess.Popen[str]

    def stands_still(self) -> None:
        """Let it answer nothing from now on."""
        self.server.send_signal(signal.SIGSTOP)

    def goes_on(self) -> None:
        """Let it answer, also what was asked meanwhile."""
        self.server.send_signal(signal.SIGCONT)

    def fails(self, error: int, calls: tuple[str, ...], below: str = "") -> None:
        """Let calls fail from now on; with error 0 they wait for ever."""
        beside = self.control.with_suffix(".new")
        beside.write_text(json.dumps({"errno": error, "calls": calls, "below": below}))
        beside.replace(self.control)

    def heals(self) -> None:
        """Let everything be well again."""
        self.control.unlink(missing_ok=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Mount it, or skip with the reason."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("a file system of one's own takes root and /dev/fuse")
    places = (tmp_path / "disk", tmp_path / "backing", tmp_path / "control")
    for place in places[:2]:
        place.mkdir()
    server = subprocess.Popen(
        [sys.executable, PROGRAM, *places], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    one = Disk(*places, server)
    assert server.stdout is not None
    if server.stdout.readline() != "mounted\n":
        _, reason = server.communicate()
        pytest.skip(reason.strip()[-200:])
    try:
        yield one
    finally:
        one.heals()
        one.goes_on()
        subprocess.run(["/usr/bin/umount", "--lazy", one.place], check=True)
        try:
            server.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.communicate()


@pytest.fixture
def store(disk: Disk) -> SyclStore:
    """Return a store on it."""
    return SyclStore(disk.place / "store")


@pytest.fixture
def host(home: Path, short_dir: Path, store: SyclStore) -> Iterator[Daemon]:
    """Return a daemon that looks after that store."""
    with daemon(home, short_dir) as one:
        with_store(one, store)
        yield one


MAKING: Final = tuple(call for call in CHANGES if call not in ("UNLINK", "RMDIR", "RENAME", "RENAME2"))
"""What takes room: a full disk, or a quota that is spent, refuses no more than that."""


def test_what_mends_a_store_takes_back_that_it_is_full(host: Daemon, disk: Disk, store: SyclStore) -> None:
    store.add("_ZTS1a")
    next(store.root.rglob("*.bin")).write_bytes(b"")
    host.start()
    disk.fails(errno.EDQUOT, MAKING, "store")
    host.ctl("verify", "--fix", check=None)
    assert "store-full" in problems(host)
    disk.heals()
    host.ctl("verify", "--fix")
    assert "store-full" not in problems(host)


def test_what_a_failing_disk_keeps_goes_later(host: Daemon, disk: Disk, store: SyclStore) -> None:
    for kernel in ("_ZTS1a", "_ZTS1b"):
        store.add(kernel)
    host.start()
    before = truth(store)
    refs = [str(row["ref"]) for row in host.rows("ls")]
    for error, calls, code in (
        (errno.EIO, CHANGES, "store-failing"),
        (errno.EROFS, CHANGES, "store-failing"),
        (errno.ENOSPC, MAKING, "store-full"),
        (errno.EDQUOT, MAKING, "store-full"),
    ):
        disk.fails(error, calls, "store")
        host.ctl("evict", *refs, check=None)
        assert truth(store) == before == keys(host)
        assert problems(host) & {"store-full", "store-failing"} == {code}, os.strerror(error)
        disk.heals()
        host.ctl("evict", *refs)
        assert truth(store) == keys(host) == set()
        assert not problems(host) & {"store-full", "store-failing"}
        assert not list(store.root.rglob("*.lock"))
        host.ctl("trash", "restore", "--all")
        assert truth(store) == before
    host.ctl("evict", *refs)
    disk.fails(errno.EROFS, CHANGES, "store")
    host.ctl("trash", "empty", check=None)
    assert len(host.rows("trash", "list")) == 2
    assert "store-failing" in problems(host)
    disk.heals()
    host.ctl("trash", "empty")
    assert not host.rows("trash", "list")
    assert "store-failing" not in problems(host)
    assert "Traceback" not in host.log.read_text()


def test_a_trash_that_cannot_be_read_just_now_is_no_debris(disk: Disk, store: SyclStore) -> None:
    """Debris has no date, and so goes at once: what the disk does not give must not be taken for it."""
    for kernel in ("_ZTS1a", "_ZTS1b"):
        old(store, kernel)
    before = truth(store)
    going = look(store.root).entries
    note = TrashLabel(datetime.now(UTC), EvictReason.UNUSED, "test")
    assert all(sycl.remover.remove(going, {one.id: note for one in going}).values())
    there = Store(sycl.NAME, store.root)
    everything = sycl.trash_files.trash(there)
    assert len(everything) == 2
    assert all(one.whole for one in everything)
    policy = Policy()
    for error in (errno.EIO, errno.EACCES):
        for calls in (("READ",), ("OPEN",), ("OPENDIR", "READDIR"), ("LOOKUP", "GETATTR")):
            for below in ("store/.xpucached.trash", f"store/.xpucached.trash/{everything[0].ref}"):
                disk.fails(error, calls, below)
                seen = sycl.trash_files.trash(there)
                drops = plan_trash(seen, (), 0, policy, datetime.now(UTC))
                sycl.trash_files.discard(there, tuple(one.item.ref for one in drops))
                disk.heals()
                assert drops == (), (error, calls, below)
                assert {one.key for one in sycl.trash_files.trash(there) if one.whole} == before
    assert {one.key for one in sycl.trash_files.restore(there, tuple(one.ref for one in everything))} == before
    assert truth(store) == before


@pytest.mark.parametrize("where", ["directory", "program"])
def test_a_model_that_lies_where_the_answer_comes_too_late_is_not_run_after_its_time(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    ran = tmp_path / "ran"
    place = disk.place / "work"
    place.mkdir()
    program = (place if where == "program" else tmp_path) / "app"
    program.write_text(f"#!/bin/sh\ntouch {ran}\nsleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(conversation, "GRACE", 0.5)
    monkeypatch.setattr(conversation, "LAST", 1.0)
    workload = Workload((str(program),), place if where == "directory" else tmp_path, {}, 1)
    disk.stands_still()
    done = asyncio.run(ProcessStarter(os.environ, INSTANCE).execute(workload, {}, Trace(), polite=False))
    disk.goes_on()

    assert done.outcome is Outcome.TIMED_OUT
    # Who was waited for there answers now.
    assert list(place.iterdir()) == ([program] if where == "program" else [])
    time.sleep(1)
    assert not ran.exists()
