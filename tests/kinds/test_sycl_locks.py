"""Locks of programs: what they hold stays theirs, whatever the clocks say and however late they come."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from xpucached.domain.defects import RepairAction
from xpucached.domain.stores import Entry, EntryId, EntryState, FoundStore, Store, StoreOrigin
from xpucached.domain.trash import Repair
from xpucached.kinds import sycl
from xpucached.kinds.sycl import locks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.builders import Slot, SyclStore

HOUR = 3600.0


def look(root: Path, writer_since: datetime | None = None) -> tuple[Entry, ...]:
    found = FoundStore(Store(sycl.NAME, root), StoreOrigin.FOUND, "test")
    return sycl.scanner.scan(found, datetime.now(UTC), {}, writer_since).entries


# -- a lock that appears while a slot moves down ----------------------------------------------------------------------


@pytest.mark.parametrize("doing", ["remove", "close-gap", "sweep"])
def test_the_lock_of_a_program_that_comes_meanwhile_stays(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch, doing: str
) -> None:
    slot, upper = sycl_store.add(), sycl_store.add(slot=1, without=("bin",))
    entries = look(sycl_store.root)
    if doing == "close-gap":
        slot.bin.unlink()
        slot.src.unlink()
        slot.access_time.unlink(missing_ok=True)
        entries = look(sycl_store.root)
    elif doing == "sweep":
        slot.bin.unlink()
        slot.lock.write_text("xpucached 999999999\n")
        os.utime(slot.lock, (1, 1))
    written: list[float] = []

    def write(seconds: float) -> None:
        # The source has moved down, its program is missing: a program that comes now writes it, under a lock.
        written.append(seconds)
        os.close(os.open(slot.lock, os.O_CREAT | os.O_EXCL))

    monkeypatch.setattr(time, "sleep", write)
    match doing:
        case "remove":
            assert sycl.remover.remove(entries[:1])[entries[0].id]
        case "close-gap":
            sycl.doctor.mend([Repair(entries[0], RepairAction.CLOSE_GAP)])
        case _:
            assert sycl.remover.sweep(EntryId(entries[0].id.store, entries[0].id.key))

    assert written
    assert slot.lock.exists()
    assert slot.src.exists()
    assert not upper.src.exists()


def test_what_a_program_wrote_into_a_gap_meanwhile_stays(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sycl_store.add()
    sycl_store.add(slot=2, size=300)
    (behind,) = (one for one in look(sycl_store.root) if one.id.key.endswith("/2"))
    take = locks.take
    written: list[Slot] = []

    def late(leaf: int, slot: str) -> bool:
        if not written:
            written.append(sycl_store.add(slot=1, size=400))
        return take(leaf, slot)

    monkeypatch.setattr(locks, "take", late)
    sycl.doctor.mend([Repair(behind, RepairAction.CLOSE_GAP)])

    assert len(written[0].bin.read_bytes()) >= 400
    assert written[0].src.exists()


# -- locks that were left behind --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size", "whole"),
    [("0.bin", None, True), ("0.bin", 16, False), ("0.bin", 0, False), ("0.src", 20, False), ("0.src", 0, False)],
)
def test_behind_a_lock_that_was_left_an_entry_is_whole_or_was_interrupted(
    sycl_store: SyclStore, name: str, size: int | None, *, whole: bool
) -> None:
    slot = sycl_store.add()
    slot.take_lock(age=HOUR)
    if size is not None:
        slot.cut(slot.leaf / name, size)
    (entry,) = look(sycl_store.root)
    assert entry.defect == (sycl.defects.STALE_LOCK if whole else sycl.defects.INTERRUPTED)


@pytest.mark.parametrize("without", ["src", "bin"])
def test_behind_a_lock_that_was_left_half_an_entry_was_interrupted(sycl_store: SyclStore, without: str) -> None:
    sycl_store.add(without=(without,)).take_lock(age=HOUR)
    (entry,) = look(sycl_store.root)
    assert entry.defect == sycl.defects.INTERRUPTED


# -- locks from the future --------------------------------------------------------------------------------------------


def from_the_future(store: SyclStore) -> Path:
    slot = store.add()
    slot.take_lock()
    then = time.time() + HOUR
    os.utime(slot.lock, (then, then))
    return slot.lock


def test_a_lock_from_the_future_may_be_held(sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from_the_future(sycl_store)
    writer = datetime.now(UTC) - timedelta(days=1)
    now = time.monotonic()

    (entry,) = look(sycl_store.root, writer)
    assert entry.state is EntryState.UNFINISHED
    monkeypatch.setattr(time, "monotonic", lambda: now + 599)
    (entry,) = look(sycl_store.root, writer)
    assert entry.state is EntryState.UNFINISHED
    monkeypatch.setattr(time, "monotonic", lambda: now + 602)
    (entry,) = look(sycl_store.root, writer)
    assert entry.defect == sycl.defects.STALE_LOCK


def test_a_lock_from_the_future_that_was_made_anew_stays(sycl_store: SyclStore) -> None:
    lock = from_the_future(sycl_store)
    (entry,) = look(sycl_store.root)
    assert entry.defect == sycl.defects.STALE_LOCK
    lock.unlink()
    lock.touch()
    then = time.time() + HOUR + 1
    os.utime(lock, (then, then))

    assert not sycl.doctor.mend([Repair(entry, RepairAction.UNLOCK)])[entry.id]
    assert not sycl.remover.remove([entry])[entry.id]
    assert lock.exists()
    (entry,) = look(sycl_store.root)
    assert sycl.doctor.mend([Repair(entry, RepairAction.UNLOCK)])[entry.id]
    assert not lock.exists()


def test_few_locks_from_the_future_are_remembered(sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_FIRST", 3)
    monkeypatch.setattr(locks, "_first", {})
    lock = from_the_future(sycl_store)
    for number in range(10):
        os.utime(lock, (time.time() + HOUR + number,) * 2)
        look(sycl_store.root)
    assert len(locks._first) <= 3


# -- a clock that is set forward --------------------------------------------------------------------------------------


class SetClock:
    """The clocks of this process, which a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed = 0.0
        self.set = 0.0
        wall, steady = time.time, time.clock_gettime
        monkeypatch.setattr(time, "time", lambda: wall() + self.passed + self.set)
        monkeypatch.setattr(time, "clock_gettime", lambda which: steady(which) + self.passed)
        monkeypatch.setattr(locks, "_offsets", type(locks._offsets)([locks._offset()]))

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(time.time(), UTC)

    def look(self, root: Path, writer: datetime | None) -> Entry:
        found = FoundStore(Store(sycl.NAME, root), StoreOrigin.FOUND, "test")
        (entry,) = sycl.scanner.scan(found, self.now, {}, writer).entries
        return entry


def held(store: SyclStore, seconds_ago: float) -> Path:
    slot = store.add()
    slot.take_lock()
    then = time.time() - seconds_ago
    os.utime(slot.lock, (then, then))
    return slot.lock


def test_a_lock_that_looks_old_since_the_clock_was_set_forward_is_still_held(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SetClock(monkeypatch)
    lock = held(sycl_store, 2)
    clock.set = HOUR
    # The program began an hour ago, by a clock that was wrong then.
    writer = clock.now - timedelta(hours=0.9)

    assert clock.look(sycl_store.root, writer).state is EntryState.UNFINISHED
    assert clock.look(sycl_store.root, None).state is EntryState.UNFINISHED
    assert locks.young(lock.stat())
    clock.passed = 590
    assert clock.look(sycl_store.root, writer).state is EntryState.UNFINISHED
    clock.passed = 601
    assert clock.look(sycl_store.root, writer).defect == sycl.defects.STALE_LOCK
    assert not locks.young(lock.stat())


def test_a_lock_from_the_future_is_young_again_when_the_clock_is_set_beyond_it(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SetClock(monkeypatch)
    lock = from_the_future(sycl_store)
    clock.look(sycl_store.root, None)
    assert not locks.young(lock.stat())
    clock.set = HOUR + 60
    assert locks.passed_since(lock.stat().st_mtime_ns, clock.now) == timedelta()
    assert locks.young(lock.stat())


def test_when_the_clock_was_set_is_known_no_better_than_between_two_looks(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SetClock(monkeypatch)
    clock.passed, clock.set = 10 * HOUR, HOUR
    held(sycl_store, HOUR + 2)

    assert clock.look(sycl_store.root, clock.now - timedelta(hours=5)).state is EntryState.UNFINISHED


def test_a_lock_that_is_older_than_the_clock_was_set_forward_by_is_left_behind(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SetClock(monkeypatch)
    lock = held(sycl_store, 2 * HOUR)
    clock.set = HOUR

    assert clock.look(sycl_store.root, clock.now - timedelta(hours=24)).defect == sycl.defects.STALE_LOCK
    assert not locks.young(lock.stat())


def test_a_clock_that_was_set_forward_and_back_ages_nothing(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SetClock(monkeypatch)
    clock.set = HOUR
    locks._ahead()
    clock.set = 0
    held(sycl_store, 2)
    clock.passed = 60
    writer = clock.now - timedelta(days=1)

    assert clock.look(sycl_store.root, writer).state is EntryState.UNFINISHED
    clock.passed = 601
    assert clock.look(sycl_store.root, writer).defect == sycl.defects.STALE_LOCK


def test_the_clocks_end_breaks_nothing(sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SetClock(monkeypatch)
    held(sycl_store, 2)
    clock.set = datetime(9990, 1, 1, tzinfo=UTC).timestamp() - time.time()

    assert clock.look(sycl_store.root, clock.now).state is EntryState.UNFINISHED


def test_few_times_at_which_the_clock_was_set_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SetClock(monkeypatch)
    for number in range(2000):
        clock.passed, clock.set = number, number * 10
        locks._ahead()
    assert len(locks._offsets) <= 610
    assert locks._ahead() == pytest.approx(timedelta(seconds=6000), abs=timedelta(seconds=20))
