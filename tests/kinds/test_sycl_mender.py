"""What is mended in its place, and what is not: judged anew, under the runtime's lock, and only files that are ours."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from tests.kinds.test_sycl_damage import look
from tests.support.builders import Slot, SyclStore
from xpucached.domain.defects import RepairAction
from xpucached.domain.stores import EntryState
from xpucached.domain.trash import Repair
from xpucached.kinds import folders, fs, removal, sycl
from xpucached.kinds.sycl import exchange, locks
from xpucached.planning.repair import plan_mending

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from xpucached.domain.stores import Entry

OLD = 3600.0


def entry_of(store: SyclStore, slot: Slot) -> Entry:
    key = str(slot.bin.relative_to(store.root).with_suffix(""))
    return next(one for one in look(store.root).entries if one.id.key == key)


def mended(entry: Entry, action: RepairAction, other: Entry | None = None) -> bool:
    return sycl.doctor.mend([Repair(entry, action, other)])[entry.id]


# -- a lock that was left behind --------------------------------------------------------------------------------------


def test_the_lock_of_a_dead_program_goes_and_its_slot_stays(sycl_store: SyclStore) -> None:
    slot = sycl_store.add()
    slot.take_lock(age=OLD)
    entry = entry_of(sycl_store, slot)
    assert entry.defect == sycl.defects.STALE_LOCK
    assert mended(entry, RepairAction.UNLOCK)
    assert not slot.lock.exists()
    assert slot.bin.exists()
    # There is nothing left to do, which is what was wanted.
    assert mended(entry, RepairAction.UNLOCK)


def test_a_slot_that_was_written_anew_keeps_its_lock(sycl_store: SyclStore) -> None:
    slot = sycl_store.add()
    slot.take_lock(age=OLD)
    entry = entry_of(sycl_store, slot)
    slot.bin.write_bytes(slot.bin.read_bytes() + b"more")
    assert not mended(entry, RepairAction.UNLOCK)
    assert slot.lock.exists()


def test_a_lock_that_a_program_took_meanwhile_stays(sycl_store: SyclStore) -> None:
    slot = sycl_store.add()
    slot.take_lock(age=OLD)
    entry = entry_of(sycl_store, slot)
    slot.lock.unlink()
    slot.take_lock()
    assert not mended(entry, RepairAction.UNLOCK)
    assert slot.lock.exists()


def test_what_cannot_be_mended_keeps_its_neighbours_from_nothing(sycl_store: SyclStore) -> None:
    slots = [sycl_store.add("_ZTS1k", slot=number) for number in range(3)]
    for slot in slots:
        slot.take_lock(age=OLD)
    # A directory that is not empty does not go.
    slots[1].lock.unlink()
    slots[1].lock.mkdir()
    (slots[1].lock / "file").touch()
    os.utime(slots[1].lock, (0, 0))
    repairs = [Repair(entry_of(sycl_store, slot), RepairAction.UNLOCK) for slot in slots]
    for some in (repairs, repairs[::-1]):
        assert [sycl.doctor.mend(some)[one.entry.id] for one in repairs] == [True, False, True]
    assert [slot.lock.exists() for slot in slots] == [False, True, False]


def test_where_its_program_has_another_slot_by_now_the_locked_one_goes(sycl_store: SyclStore) -> None:
    slots = [sycl_store.add("_ZTS1k", slot=number) for number in range(2)]
    slots[0].take_lock(age=OLD)

    def planned() -> list[RepairAction]:
        return [one.action for one in plan_mending(look(sycl_store.root).entries) if one.action != RepairAction.LEAVE]

    assert planned() == [RepairAction.TRASH]
    for file in (slots[1].src, slots[1].bin, slots[1].access_time):
        file.unlink()
    assert planned() == [RepairAction.UNLOCK]


# -- what may not be read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("leaf", "file"), [(0o700, 0o400), (0o755, 0o444), (0o750, 0o440)])
def test_who_may_list_the_directory_may_read_the_file_again_and_nobody_else(
    sycl_store: SyclStore, leaf: int, file: int
) -> None:
    slot = sycl_store.add()
    slot.leaf.chmod(leaf)
    slot.src.chmod(0o604)
    slot.bin.chmod(0)
    entry = entry_of(sycl_store, slot)
    slot.bin.chmod(0o001)
    assert mended(entry, RepairAction.READABLE)
    # What it had stays, and what can be read is left as it is.
    assert slot.bin.stat().st_mode & 0o777 == file | 0o001
    assert slot.src.stat().st_mode & 0o777 == 0o604


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_mode_of_a_file_that_is_not_ours_stays(sycl_store: SyclStore) -> None:
    slot = sycl_store.add()
    entry = entry_of(sycl_store, slot)
    slot.bin.chmod(0)
    os.chown(slot.bin, 4711, -1)
    assert not mended(entry, RepairAction.READABLE)
    assert slot.bin.stat().st_mode & 0o777 == 0


def test_the_mode_of_a_file_with_another_name_stays(sycl_store: SyclStore, tmp_path: Path) -> None:
    slot = sycl_store.add()
    entry = entry_of(sycl_store, slot)
    slot.bin.chmod(0)
    os.link(slot.bin, tmp_path / "another name")
    assert not mended(entry, RepairAction.READABLE)
    assert slot.bin.stat().st_mode & 0o777 == 0


def test_a_link_is_not_followed_and_a_pipe_is_no_file(tmp_path: Path) -> None:
    secret, pipe = tmp_path / "secret", tmp_path / "pipe"
    secret.touch(0o400)
    os.mkfifo(pipe, 0o400)
    (tmp_path / "link").symlink_to(secret)
    with fs.folder(str(tmp_path)) as directory:
        assert not folders.allow(directory, "link", 0o044)
        assert not folders.allow(directory, "pipe", 0o044)
        assert [path.stat().st_mode & 0o777 for path in (secret, pipe)] == [0o400, 0o400]
        assert folders.allow(directory, "secret", 0o044)
    assert secret.stat().st_mode & 0o777 == 0o444


@pytest.mark.parametrize("unreadable", ["0.bin", "0.src"])
def test_what_still_cannot_be_read_was_not_mended(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch, unreadable: str
) -> None:
    slot = sycl_store.add()
    entry = entry_of(sycl_store, slot)
    opening = fs._open

    def refuses(name: str, flags: int, directory: int) -> int:
        if name == unreadable:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opening(name, flags, directory)

    monkeypatch.setattr(fs, "_open", refuses)
    assert not mended(entry, RepairAction.READABLE)


# -- two programs in each other's place -------------------------------------------------------------------------------


def swapped(store: SyclStore) -> tuple[Slot, Slot]:
    first, second = store.add("_ZTS1a", size=300), store.add("_ZTS1b", size=900)
    aside = store.root.parent / "aside"
    first.bin.rename(aside)
    second.bin.rename(first.bin)
    aside.rename(second.bin)
    return first, second


def test_two_programs_change_places_once(sycl_store: SyclStore) -> None:
    first, second = swapped(sycl_store)
    before = first.bin.read_bytes(), second.bin.read_bytes()
    entries = entry_of(sycl_store, first), entry_of(sycl_store, second)
    both = [Repair(one, RepairAction.SWAP_BACK, other) for one, other in (entries, entries[::-1])]
    assert sycl.doctor.mend(both) == {entries[0].id: True, entries[1].id: True}
    assert (second.bin.read_bytes(), first.bin.read_bytes()) == before
    assert not list(sycl_store.root.rglob("*.lock"))


@pytest.mark.parametrize(
    "meanwhile",
    [lambda slot: slot.take_lock(), lambda slot: slot.src.write_bytes(slot.src.read_bytes() + b"more")],
    ids=["locked", "written anew"],
)
@pytest.mark.parametrize("which", [0, 1])
def test_programs_stay_where_one_of_them_is_at_work(
    sycl_store: SyclStore, meanwhile: Callable[[Slot], object], which: int
) -> None:
    slots = swapped(sycl_store)
    entries = [entry_of(sycl_store, slot) for slot in slots]
    before = [slot.bin.read_bytes() for slot in slots]
    meanwhile(slots[which])
    locked = [slot.lock.exists() for slot in slots]
    assert not mended(entries[0], RepairAction.SWAP_BACK, entries[1])
    assert [slot.bin.read_bytes() for slot in slots] == before
    # The locks of others stay, and ours do not.
    assert [slot.lock.exists() for slot in slots] == locked


def test_a_disk_that_lets_no_programs_change_places_is_named(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = swapped(sycl_store)
    first, second = (entry_of(sycl_store, slot) for slot in slots)

    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(exchange, "exchange", read_only)
    failed: list[tuple[Path, int | None]] = []
    repair = Repair(first, RepairAction.SWAP_BACK, second)
    done = sycl.doctor.mend([repair], lambda root, error: failed.append((root, error.errno)))
    assert done == {first.id: False, second.id: False}
    assert failed == [(sycl_store.root, errno.EROFS)] * 2
    assert not list(sycl_store.root.rglob("*.lock"))


# -- a gap ------------------------------------------------------------------------------------------------------------


def test_a_gap_stays_while_a_program_writes_there(sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch) -> None:
    upper = sycl_store.add("_ZTS1k", slot=1)
    entry = entry_of(sycl_store, upper)
    assert entry.defect == sycl.defects.BEHIND_GAP
    lower = Slot(upper.leaf, 0)
    lower.take_lock()
    # What is being written there is no gap in a moment.
    assert mended(entry, RepairAction.CLOSE_GAP)
    assert upper.bin.exists()
    lower.lock.unlink()
    with monkeypatch.context() as program:
        program.setattr(locks, "take", lambda *_: False)
        assert not mended(entry, RepairAction.CLOSE_GAP)
    assert upper.bin.exists()
    assert mended(entry, RepairAction.CLOSE_GAP)
    assert lower.bin.exists()
    assert not upper.bin.exists()
    assert not list(sycl_store.root.rglob("*.lock"))
    assert [one.state for one in look(sycl_store.root).entries] == [EntryState.OK]


@pytest.mark.parametrize(("number", "told"), [(errno.EROFS, True), (errno.ELOOP, False)])
@pytest.mark.parametrize("action", [RepairAction.UNLOCK, RepairAction.SWAP_BACK])
def test_what_the_disk_refuses_is_told(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch, action: RepairAction, number: int, *, told: bool
) -> None:
    first, second = sycl_store.add("_ZTS1a"), sycl_store.add("_ZTS1b")
    one, other = entry_of(sycl_store, first), entry_of(sycl_store, second)
    failed: list[tuple[Path, int | None]] = []

    def refuse(*_: object) -> object:
        raise OSError(number, "refused")

    monkeypatch.setattr(removal, "opened", refuse)
    repairs = [Repair(one, action, other if action is RepairAction.SWAP_BACK else None)]
    done = sycl.doctor.mend(repairs, lambda root, error: failed.append((root, error.errno)))
    assert set(done.values()) == {False}
    assert set(failed) == ({(sycl_store.root, number)} if told else set())
