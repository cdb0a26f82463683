"""The trash, plans by their id, verify and doctor: a real daemon on a real store, as a person sees it."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.daemons import Daemon, daemon
from tests.support.runtimes import Runtime
from xpucached.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.builders import Slot, SyclStore

DAY = 86400


def files(root: Path) -> dict[str, bytes]:
    """Return everything where a runtime looks, and leave no trace of looking: to read an entry is to use it."""
    return {str(path.relative_to(root)): content(path) for path in root.glob("[0-9]*/**/*") if path.is_file()}


def content(path: Path) -> bytes:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOATIME), "rb") as stream:
        return stream.read()


def aged(slot: Slot, days: float) -> Slot:
    moment = time.time() - days * DAY
    for path in slot.leaf.iterdir():
        os.utime(path, (moment, moment))
    return slot


@pytest.fixture
def host(home: Path, short_dir: Path, sycl_store: SyclStore) -> Iterator[Daemon]:
    with daemon(home, short_dir) as one:
        one.configure(
            f"[stores]\npaths = ['{sycl_store.root}']\n[policy]\ngrace = 0\nmax_unused = '30d'\n"
            "[schedule]\nevict = false\nreplay = false\nscrub = 'unlimited'\n"
        )
        yield one


def add_models(host: Daemon, store: SyclStore) -> tuple[str, str]:
    """Register a model of each sort in a store; without a device neither can run."""
    return host.add_models(Runtime("none", host.home), "--pinned", "--store", str(store.root))


def assert_untouched(host: Daemon, names: tuple[str, str]) -> None:
    """See that models that cannot run are called cold, were not run, and failed nothing."""
    assert [host.ask("model", "show", name)["warmth"] for name in names] == ["cold", "cold"]
    assert host.rows("runs") == []
    assert host.failed() == []


def test_what_was_evicted_comes_back_and_stays(host: Daemon, sycl_store: SyclStore) -> None:
    slots = [sycl_store.add(f"_ZTS1{letter}", age=40 * DAY) for letter in "abcd"]
    before = files(sycl_store.root)
    for slot in slots:
        # To read it was to use it.
        aged(slot, 40)
    host.start()
    names = add_models(host, sycl_store)

    host.ctl("evict")
    assert files(sycl_store.root) == {}
    rows = host.rows("trash", "list")
    assert len(rows) == 4
    assert {row["reason"] for row in rows} == {"unused"}
    assert not any(row["quarantined"] for row in rows)

    host.ctl("trash", "restore", "--all")
    assert files(sycl_store.root) == before
    assert host.rows("trash", "list") == []
    assert not (sycl_store.root / ".xpucached.trash").exists()
    assert {row["last_used_by"] for row in host.rows("ls")} == {"restored"}
    # It is not evicted by itself again; only by name.
    host.ctl("evict")
    assert files(sycl_store.root) == before
    ref = str(host.rows("ls")[0]["ref"])
    host.ctl("evict", ref)
    assert len(host.rows("trash", "list")) == 1
    # By the name that evict showed, too, and it is called so again.
    assert host.ctl("trash", "restore", ref).stdout.split()[:2] == ["back", ref]
    assert ref in {row["ref"] for row in host.rows("ls")}
    assert_untouched(host, names)


def test_of_two_that_are_called_alike_in_a_copied_store_none_is_guessed(
    host: Daemon, sycl_store: SyclStore, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    host.configure(
        f"[stores]\npaths = ['sycl:{sycl_store.root}', 'sycl:{copy}']\n[policy]\ngrace = 0\nmax_unused = '30d'\n"
        "[schedule]\nevict = false\nreplay = false\nscrub = 'unlimited'\n"
    )
    slots = [sycl_store.add(f"_ZTS1{letter}", age=40 * DAY) for letter in "ab"]
    before = files(sycl_store.root)
    for slot in slots:
        aged(slot, 40)
    host.start()
    host.ctl("evict")
    shutil.copytree(sycl_store.root, copy)
    host.ctl("scan")
    refs = [str(row["ref"]) for row in host.rows("trash", "list")]
    ref = refs[0]
    assert sorted(refs) == sorted([*set(refs)] * 2)

    found: dict[str, str] = {}
    for command in ("restore", "empty"):
        done = host.ctl("trash", command, ref, check=NotFound.exit)
        told = done.stdout + done.stderr
        assert f"several things in the trash begin with '{ref}'" in told
        found = dict(re.findall(r"([0-9a-f]+) \(of ([^)]+)\)", " ".join(told.split())))
        assert set(found.values()) == {str(sycl_store.root), str(copy)}
    assert (files(sycl_store.root), files(copy), len(host.rows("trash", "list"))) == ({}, {}, 4)

    (theirs,) = (name for name, root in found.items() if root == str(copy))
    assert host.ctl("trash", "restore", theirs).stdout.split()[:2] == ["back", theirs]
    assert (files(sycl_store.root), len(files(copy))) == ({}, len(before) // 2)
    host.ctl("trash", "restore", "--all")
    assert files(sycl_store.root) == files(copy) == before
    # Each is noted where it is: neither goes again by itself.
    assert {(row["store"], row["last_used_by"]) for row in host.rows("ls")} == {
        (root, "restored") for root in (str(sycl_store.root), str(copy))
    }


def test_what_a_program_has_made_again_stays(host: Daemon, sycl_store: SyclStore) -> None:
    aged(sycl_store.add("_ZTS1k", age=40 * DAY), 40)
    host.start()
    host.ctl("evict")
    fresh = sycl_store.add("_ZTS1k", size=999)
    content = files(sycl_store.root)

    told = host.ctl("trash", "restore", str(host.rows("trash", "list")[0]["ref"]))

    assert "made it again" in told.stdout
    assert files(sycl_store.root) == content
    assert fresh.bin.exists()


def test_another_source_in_the_leaf_gets_the_next_slot(host: Daemon, sycl_store: SyclStore) -> None:
    slot = sycl_store.add("_ZTS1k", age=40 * DAY)
    source = slot.src.read_bytes()
    aged(slot, 40)
    host.start()
    host.ctl("evict")
    other = sycl_store.add("_ZTS1k")
    other.src.write_bytes(source + b"more")

    host.ctl("trash", "restore", "--all")

    assert (slot.leaf / "1.src").read_bytes() == source
    assert not list(slot.leaf.glob("*.lock"))


def test_what_comes_back_can_be_read_where_only_an_access_time_was_left(host: Daemon, sycl_store: SyclStore) -> None:
    slot = sycl_store.add("_ZTS1k", age=40 * DAY)
    aged(slot, 40)
    host.start()
    host.ctl("evict")
    slot.leaf.mkdir(parents=True)
    slot.access_time.write_text("1700000000000000000")

    host.ctl("trash", "restore", "--all")

    # In slot 1 it would be behind a gap: no program looks there.
    assert {path.name for path in slot.leaf.iterdir()} >= {"0.bin", "0.src"}
    assert [row["defect"] for row in host.rows("ls")] == [None]


def test_nothing_comes_back_behind_a_lock_without_files(host: Daemon, sycl_store: SyclStore) -> None:
    slot = sycl_store.add("_ZTS1k", age=40 * DAY)
    aged(slot, 40)
    host.start()
    host.ctl("evict")
    slot.leaf.mkdir(parents=True)
    slot.take_lock(age=3600)

    told = host.ctl("trash", "restore", "--all", check=65)

    assert "has left its lock there" in told.stdout
    assert len(host.rows("trash", "list")) == 1
    host.ctl("verify", "--fix")
    host.ctl("trash", "restore", str(next(r["ref"] for r in host.rows("trash", "list") if not r["quarantined"])))
    assert slot.bin.exists()


def test_what_was_damaged_in_the_trash_stays_there(host: Daemon, sycl_store: SyclStore) -> None:
    slot = sycl_store.add("_ZTS1k", age=40 * DAY)
    aged(slot, 40)
    host.start()
    host.ctl("evict")
    (row,) = host.rows("trash", "list")
    os.truncate(sycl_store.root / ".xpucached.trash" / str(row["ref"]) / "leaf" / "0.bin", 20)

    told = host.ctl("trash", "restore", str(row["ref"]), check=65)

    assert "not the one that was put here" in told.stdout
    assert files(sycl_store.root) == {}


def test_a_good_one_in_the_trash_outlives_a_damaged_one_in_its_place(host: Daemon, sycl_store: SyclStore) -> None:
    slot = sycl_store.add("_ZTS1k", age=40 * DAY)
    aged(slot, 40)
    host.start()
    host.ctl("evict")
    ref = str(host.rows("trash", "list")[0]["ref"])
    # A program that compiles it again on a full disk leaves it cut short.
    again = sycl_store.add("_ZTS1k", age=40 * DAY)
    again.cut(again.bin, 20)

    told = host.ctl("trash", "restore", ref, check=65)

    assert "verify --fix" in told.stdout
    host.ctl("verify", "--fix")
    host.ctl("trash", "restore", ref)
    assert [row["defect"] for row in host.rows("ls")] == [None]


def test_an_access_time_alone_is_no_intermediate_code(host: Daemon, sycl_store: SyclStore) -> None:
    place = sycl_store.add_intermediate(age=40 * DAY)
    content = (place / "ir.bin").read_bytes()
    host.start()
    host.ctl("evict", str(host.rows("ls")[0]["ref"]))
    place.mkdir(parents=True)
    (place / "ir_access_time.txt").write_text("1700000000000000000")

    host.ctl("trash", "restore", "--all")

    assert (place / "ir.bin").read_bytes() == content


def test_a_plan_is_carried_out_as_it_was_shown_or_not_at_all(host: Daemon, sycl_store: SyclStore) -> None:
    old = aged(sycl_store.add("_ZTS1a", age=40 * DAY), 40)
    host.start()
    shown = host.ctl("evict", "--dry-run").stdout
    plan = shown.split("--plan ")[1].split()[0]
    newer = aged(sycl_store.add("_ZTS1b", age=40 * DAY), 40)

    refused = host.ctl("evict", "--plan", plan, check=65)

    assert "something changed" in refused.stderr + refused.stdout
    assert old.bin.exists()
    assert newer.bin.exists()
    plan = host.ctl("evict", "--dry-run").stdout.split("--plan ")[1].split()[0]
    host.ctl("evict", "--plan", plan)
    assert files(sycl_store.root) == {}


def test_verify_mends_and_quarantines(host: Daemon, sycl_store: SyclStore) -> None:
    whole = sycl_store.add("_ZTS1a")
    locked = sycl_store.add("_ZTS1b")
    locked.take_lock(age=3600)
    cut = sycl_store.add("_ZTS1c")
    cut.cut(cut.bin, 20)
    gap = sycl_store.add("_ZTS1d", slot=1)
    content = locked.bin.read_bytes()
    (sycl_store.root / "cache_size.txt").write_text("nonsense")
    host.start()
    names = add_models(host, sycl_store)

    found = host.ctl("verify", check=1)
    assert "mend it: --fix" in found.stdout
    assert cut.bin.exists()
    assert locked.lock.exists()
    host.ctl("verify", "--fix")

    assert not cut.bin.exists()
    assert not locked.lock.exists()
    assert locked.bin.read_bytes() == content
    assert (gap.leaf / "0.bin").exists()
    assert not gap.bin.exists()
    assert whole.bin.exists()
    assert not (sycl_store.root / "cache_size.txt").exists()
    assert "nothing is wrong" in host.ctl("verify").stdout
    assert_untouched(host, names)
    (row,) = host.rows("trash", "list")
    assert row["quarantined"]
    refused = host.ctl("trash", "restore", str(row["ref"]), check=65)
    assert "quarantine" in refused.stderr + refused.stdout
    host.ctl("trash", "empty")
    assert host.rows("trash", "list") == []


def test_what_was_hidden_by_what_is_mended_is_not_left(host: Daemon, sycl_store: SyclStore) -> None:
    cut = sycl_store.add("_ZTS1a")
    cut.cut(cut.bin, 20)
    sycl_store.add("_ZTS1a", slot=1)
    host.start()

    found = host.ctl("verify", "--fix")

    assert "1 found, 1 mended" in found.stdout
    assert "shadowed" not in found.stdout


def test_a_program_that_changed_is_an_alarm(host: Daemon, sycl_store: SyclStore) -> None:
    slot = sycl_store.add("_ZTS1a", size=4000)
    host.start()
    content = slot.bin.read_bytes()
    status = slot.bin.stat()
    slot.bin.write_bytes(content[:-40] + b"\7" + content[-39:])
    os.utime(slot.bin, ns=(status.st_atime_ns, status.st_mtime_ns))

    host.ctl("verify", check=1)

    assert "digest-changed" in host.ctl("status").stdout
    host.ctl("verify", "--fix")
    assert "digest-changed" not in host.ctl("status").stdout
    assert not slot.bin.exists()


def test_the_doctor_clears_what_makes_programs_hang(host: Daemon, sycl_store: SyclStore) -> None:
    sycl_store.add()
    lock = sycl_store.root / "cache_size.txt.lock"
    barrier = sycl_store.root.with_name(sycl_store.root.name + "_eviction_in_progress")
    lock.touch()
    os.utime(lock, (time.time() - 3600, time.time() - 3600))
    barrier.touch()
    os.utime(barrier, (time.time() - 3600, time.time() - 3600))
    host.start()

    told = host.ctl("doctor", check=1).stdout
    assert "size-lock" in told
    assert "eviction-barrier" in told
    assert lock.exists()
    host.ctl("doctor", "--fix")

    assert not lock.exists()
    assert not barrier.exists()
    assert "no file in them makes programs hang" in host.ctl("doctor").stdout


def test_the_doctor_tells_of_entries_that_are_known_to_be_damaged(host: Daemon, sycl_store: SyclStore) -> None:
    damaged, dead = sycl_store.add("_ZTS1a"), sycl_store.add("_ZTS1b")
    damaged.bin.write_bytes(b"")
    dead.src.write_bytes(b"")
    host.start()

    assert "1 damaged entry known to make programs hang" in host.ctl("doctor", "--fix", check=1).stdout
    assert json.loads(host.ctl("doctor", "--json", check=1).stdout)["data"]["report"]["damaged"] == 1
    assert host.ctl("doctor", "-q", check=1).stdout == ""
    host.ctl("verify", "--fix")

    assert "no file in them makes programs hang" in host.ctl("doctor").stdout


def test_the_doctor_moves_aside_what_blocks_programs(host: Daemon, sycl_store: SyclStore) -> None:
    leaf = sycl_store.add().bin.parent
    blocking = leaf.with_name("12345678901234567890")
    blocking.write_text("mine")
    host.start()

    assert "stands where programs need one" in host.ctl("stores").stdout
    status = host.ctl("status").stdout
    assert "stands where programs need one" in status
    assert "doctor --fix" in status
    assert "blocked" in host.ctl("verify", check=1).stdout
    assert "blocked" in host.ctl("doctor", check=1).stdout
    assert blocking.exists()
    host.ctl("doctor", "--fix")

    (aside,) = sycl_store.root.glob(".xpucached.trash/blocking-*")
    assert aside.read_text() == "mine"
    assert not blocking.exists()
    assert leaf.exists()
    host.ctl("verify")
    after = [host.ctl(verb).stdout for verb in ("stores", "doctor", "status")]
    assert "stands where" not in "".join(after)


def test_the_doctor_says_the_same_in_json(host: Daemon, tmp_path: Path) -> None:
    models = host.config.with_name("models.d")
    models.mkdir()
    (models / "broken.toml").write_text("what is this")
    host.start()

    shown = host.ask("status")["problems"]
    assert isinstance(shown, list)
    assert [one["subject"] for one in shown if one["code"] == "bad-settings"] == [str(models / "broken.toml")]
    report = host.ask("doctor")["report"]
    assert isinstance(report, dict)
    assert report["problems"] == shown
    told = host.ctl("doctor").stdout
    assert all(f"({one['code']})" in told for one in shown)


def test_the_trash_is_bounded(host: Daemon, sycl_store: SyclStore) -> None:
    host.configure(host.config.read_text().replace("grace = 0\n", "grace = 0\ntrash_max_bytes = '64KiB'\n"))
    for number in range(12):
        aged(sycl_store.add(f"_ZTS2{number:02}", age=40 * DAY, size=8000), 40 + number)
    host.start()
    host.ctl("evict")

    rows = host.rows("trash", "list")
    assert 0 < sum(int(str(row["allocated"])) for row in rows) <= 64 << 10
    assert len(rows) < 12
