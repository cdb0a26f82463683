"""A daemon that runs as root works in stores of others only as they themselves, and believes them only about these."""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.builders import SyclStore
from tests.daemons import daemon
from xpucached import hands
from xpucached.api import codec
from xpucached.domain import EntryId, EntryKey, FoundStore, Scan, Seen, Store, StoreOrigin, StoreState
from xpucached.kinds import sycl

if TYPE_CHECKING:
    from collections.abc import Iterator

UID = 12345

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@pytest.fixture(scope="module", autouse=True)
def _others_can_run_this() -> None:
    command = [sys.executable, "-I", "-c", "import xpucached.hands"]
    try:
        done = subprocess.run(command, user=UID, group=UID, extra_groups=[], cwd="/", capture_output=True, check=False)
    except PermissionError:
        pytest.skip("other users may not run this Python")
    if done.returncode:
        pytest.skip("other users may not read this Python's packages")


@pytest.fixture
def theirs() -> Iterator[SyclStore]:
    """Give a store of another user, in a directory that he can reach."""
    place = Path(tempfile.mkdtemp(prefix="xpu-"))
    place.chmod(0o755)
    store = SyclStore(place / "theirs" / "store")
    for number in range(3):
        made = store.add(f"_ZTS{number}", driver="2024.18", age=9e5)
        for path in (made.bin, made.src, made.access_time):
            os.utime(path, (time.time() - 9e5, time.time() - 9e5))
    give_away(place / "theirs")
    yield store
    shutil.rmtree(place)


def give_away(place: Path) -> None:
    for path in (place, *place.rglob("*")):
        os.chown(path, UID, UID, follow_symlinks=False)
        if path.is_dir():
            path.chmod(0o700)


def found(store: SyclStore) -> FoundStore:
    return FoundStore(Store(sycl.NAME, store.root), StoreOrigin.CONFIGURED, "test")


def look(store: SyclStore) -> Scan:
    return hands.scan(found(store), datetime.now(UTC), {}, None)


def test_root_itself_opens_no_store_of_others(theirs: SyclStore) -> None:
    scan = sycl.scan(found(theirs), datetime.now(UTC), {}, None)
    assert scan.state is StoreState.UNREADABLE
    assert f"user {UID}" in scan.notes[0]
    entries = look(theirs).entries
    assert len(entries) == 3
    assert not any(sycl.remove(entries).values())
    assert not any(sycl.sweep(entry.id) for entry in entries)
    assert sycl.recipe(entries[0]) == "unreadable"
    assert len(look(theirs).entries) == 3


def test_their_store_is_looked_at_and_evicted_from_as_they(theirs: SyclStore) -> None:
    scan = look(theirs)
    assert scan.state is StoreState.OK
    assert scan.owner == UID
    assert all(entry.kernels for entry in scan.entries)
    known = {entry.id.key: entry.stamp for entry in scan.entries}
    assert len(hands.scan(found(theirs), datetime.now(UTC), known, None).unchanged) == 3
    # Only he himself could do this, and only where he may.
    leaf = next(theirs.root.glob("*/*/*/*"))
    leaf.chmod(0o500)
    gone = hands.remove(scan.entries)
    assert sorted(gone.values()) == [False, True, True]
    leaf.chmod(0o700)
    assert all(hands.remove(look(theirs).entries).values())
    assert look(theirs).entries == ()


def test_what_a_dead_daemon_left_there_is_finished(theirs: SyclStore) -> None:
    lock = next(theirs.root.glob("*/*/*/*")) / "0.lock"
    lock.write_bytes(b"xpucached 999999999\n")
    os.chown(lock, UID, UID)
    (key,) = look(theirs).ours
    assert hands.sweep(EntryId(found(theirs).store, key))
    assert not lock.exists()
    assert len(look(theirs).entries) == 2


def test_a_link_to_a_file_of_roots_leads_nowhere(theirs: SyclStore, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of root alone")
    secret.chmod(0o600)
    leaf = next(theirs.root.glob("*/*/*/*"))
    for suffix in (".src", ".bin"):
        (leaf / f"0{suffix}").unlink()
        (leaf / f"0{suffix}").hardlink_to(secret)
    for entry in look(theirs).entries:
        assert "alone" not in str(entry)
    hands.remove(look(theirs).entries)
    assert secret.read_text() == "of root alone"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_what_they_say_is_believed_only_about_their_store(theirs: SyclStore) -> None:
    scan = look(theirs)
    entry = scan.entries[0]
    forged = dataclasses.replace(
        scan,
        found=FoundStore(Store(sycl.NAME, Path("/root/store")), StoreOrigin.MANAGED, ""),
        owner=0,
        entries=(
            dataclasses.replace(entry, id=EntryId(Store(sycl.NAME, Path("/root/store")), entry.id.key)),
            dataclasses.replace(entry, id=EntryId(entry.id.store, EntryKey("../../../etc/0"))),
        ),
        unchanged=(Seen(EntryKey("1/../2"), None),),
        ours=(EntryKey("/etc/passwd"), EntryKey(".xpucached")),
    )
    kept = hands._about(found(theirs), UID, forged)
    assert kept.found == found(theirs)
    assert kept.owner == UID
    assert [one.id for one in kept.entries] == [EntryId(found(theirs).store, entry.id.key)]
    assert kept.unchanged == ()
    assert kept.ours == (EntryKey(".xpucached"),)


@pytest.mark.parametrize("words", ["exit 1", "echo {", "echo '{\"scan\": 5}'", "echo '{}'", "kill -9 $$"])
def test_a_child_that_lies_or_dies_changes_nothing(
    theirs: SyclStore, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    liar = Path(tempfile.mkdtemp(prefix="xpu-"))
    liar.chmod(0o755)
    script = liar / "python"
    script.write_text(f"#!/bin/sh\n{words}\n")
    script.chmod(0o755)
    entries = look(theirs).entries
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(script))
        assert look(theirs).state is StoreState.UNREADABLE
        assert not any(hands.remove(entries).values())
        assert not hands.sweep(entries[0].id)
    shutil.rmtree(liar)
    assert len(look(theirs).entries) == 3


def test_the_child_refuses_to_be_root() -> None:
    done = subprocess.run([sys.executable, "-m", "xpucached.hands"], input=b"{}", capture_output=True, check=False)
    assert done.returncode == 77


def test_every_job_travels() -> None:
    job = hands._Job(sweep=EntryId(Store(sycl.NAME, Path("/s")), EntryKey("1/2/3/4/0")), now=datetime.now(UTC))
    assert codec.from_json(hands._Job, codec.to_json(job)) == job


def test_a_root_daemon_warms_nothing_there_and_evicts_as_they(theirs: SyclStore, home: Path, short_dir: Path) -> None:
    with daemon(home, short_dir) as one:
        one.configure(
            f"[stores]\npaths = ['{theirs.root}']\n[policy]\ngrace = '0s'\nmax_unused = '1d'\n"
            "[schedule]\nsettle = '0.1s'\nevict = false\n"
        )
        one.start()
        assert len(one.rows("ls")) == 3
        assert [row["owner"] for row in one.rows("stores") if row["store"] == str(theirs.root)] == [UID]
        one.ctl("evict")
        assert one.rows("ls") == []
        owners = {path.stat().st_uid for path in theirs.root.parent.rglob("*")}
        assert owners <= {UID}
        assert "Traceback" not in one.log.read_text()
