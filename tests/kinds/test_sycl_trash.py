"""The trash of a SYCL store at every moment: a daemon that dies, a disk that is full, a neighbour who writes labels."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import struct
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import pytest
from msgspec.structs import replace

from tests.kinds.test_sycl_damage import look
from tests.support.descriptors import leaving
from xpucached.domain.plans import EvictReason
from xpucached.domain.stores import EntryId, Store
from xpucached.domain.trash import TrashLabel
from xpucached.kinds import folders, fs, sycl, trash
from xpucached.kinds.sycl import entry_format, slots

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.support.builders import Slot, SyclStore
    from xpucached.domain.names import EntryKey

T = TypeVar("T")

NOTE = TrashLabel(datetime(2026, 1, 1, tzinfo=UTC), EvictReason.UNUSED, "not used")


class Killed(BaseException):
    """Stands for the end of the process: nothing of ours catches it."""


def live(root: Path) -> dict[str, bytes]:
    """Return everything where a runtime looks."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.glob("[0-9]*/**/*") if path.is_file()}


def put_away(store: SyclStore) -> None:
    entries = look(store.root).entries
    assert all(sycl.remover.remove(entries, {one.id: NOTE for one in entries}).values())


def of(store: SyclStore) -> Store:
    return Store(sycl.NAME, store.root)


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("death", ["taking", "restoring"])
@pytest.mark.parametrize("rename", range(6))
def test_a_death_between_two_moves_loses_nothing(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch, slots: int, death: str, rename: int
) -> None:
    for number in range(slots):
        made = sycl_store.add("_ZTS1k", slot=number, size=300 + number)
        # Each slot with a source of its own, as several programs with one hash would be.
        made.src.write_bytes(made.src.read_bytes() + bytes(number))
    before = live(sycl_store.root)
    if death == "restoring":
        put_away(sycl_store)
    calls, dead = 0, False
    real_rename, real_unlink = os.rename, folders.unlink

    def rename_or_die(*args: object, **more: object) -> None:
        nonlocal calls, dead
        if calls == rename:
            dead = True
            raise Killed
        calls += 1
        real_rename(*args, **more)  # type: ignore[arg-type]

    def unlink_or_die(directory: int, name: str) -> None:
        nonlocal dead
        if dead:
            # Python cleans up behind itself; a process that is killed does not.
            return
        if calls == rename:
            dead = True
            raise Killed
        real_unlink(directory, name)

    monkeypatch.setattr(os, "rename", rename_or_die)
    monkeypatch.setattr(folders, "unlink", unlink_or_die)
    try:
        if death == "taking":
            put_away(sycl_store)
        else:
            sycl.trash_files.restore(of(sycl_store), tuple(one.ref for one in sycl.trash_files.trash(of(sycl_store))))
    except Killed:
        pass
    monkeypatch.undo()

    # What a successor does, until nothing of ours is left.
    scan = look(sycl_store.root)
    for key in scan.ours:
        sycl.remover.sweep(EntryId(scan.found.store, key))
    assert not list(sycl_store.root.rglob("*.lock"))
    sycl.trash_files.restore(
        of(sycl_store), tuple(one.ref for one in sycl.trash_files.trash(of(sycl_store)) if one.whole)
    )

    assert sorted(live(sycl_store.root).values()) == sorted(before.values())
    assert not list(sycl_store.root.rglob("*.lock"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_on_a_full_disk_it_goes_for_good(sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    sycl_store.add()

    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fs, "make", full)
    put_away(sycl_store)

    assert live(sycl_store.root) == {}
    assert sycl.trash_files.trash(of(sycl_store)) == ()


def test_it_lies_where_no_scan_and_no_other_count_looks(sycl_store: SyclStore) -> None:
    sycl_store.add("_ZTS1a")
    sycl_store.add_intermediate()
    put_away(sycl_store)
    scan = look(sycl_store.root)

    assert (scan.entries, scan.foreign) == ((), 0)
    assert len(sycl.trash_files.trash(of(sycl_store))) == 2
    back = sycl.trash_files.restore(of(sycl_store), tuple(one.ref for one in sycl.trash_files.trash(of(sycl_store))))
    assert all(one.key is not None for one in back)
    assert len(look(sycl_store.root).entries) == 2
    assert not (sycl_store.root / entry_format.TRASH).exists()


@pytest.mark.parametrize(
    "change",
    [
        {"key": "../../../../etc/0"},
        {"key": "1/2/3/../0"},
        {"key": "1/2/3/4/../../0"},
        {"key": 7},
        {"files": {"/../../x": [1, 2]}},
        {"files": {".lock": [0, 0]}},
        {"files": 3},
        {"at": "never"},
        {"reason": "because"},
        {"mode": "rwx"},
    ],
    ids=str,
)
def test_a_forged_label_leads_nowhere(sycl_store: SyclStore, tmp_path: Path, change: dict[str, object]) -> None:
    sycl_store.add()
    put_away(sycl_store)
    (about,) = (sycl_store.root / entry_format.TRASH).glob("*/about.json")
    about.write_text(json.dumps({**json.loads(about.read_text()), **change}))
    outside = sorted(path for path in tmp_path.rglob("*") if not path.is_relative_to(sycl_store.root))
    (item,) = sycl.trash_files.trash(of(sycl_store))

    assert not item.whole
    (told,) = sycl.trash_files.restore(of(sycl_store), (item.ref,))
    assert told.key is None
    assert live(sycl_store.root) == {}
    assert sycl.trash_files.discard(of(sycl_store), (item.ref,)) == {item.ref}
    assert sorted(path for path in tmp_path.rglob("*") if not path.is_relative_to(sycl_store.root)) == outside


def test_half_a_character_in_a_label_makes_no_answer_unreadable(sycl_store: SyclStore) -> None:
    sycl_store.add()
    put_away(sycl_store)
    (about,) = (sycl_store.root / entry_format.TRASH).glob("*/about.json")
    about.write_text(json.dumps({**json.loads(about.read_text()), "device": "\ud800", "detail": "\udcff"}))
    (item,) = sycl.trash_files.trash(of(sycl_store))

    assert (item.device, item.detail) == ("\\ud800", "\\udcff")


def test_a_label_of_an_earlier_version_is_read(sycl_store: SyclStore) -> None:
    sycl_store.add()
    put_away(sycl_store)
    (about,) = (sycl_store.root / entry_format.TRASH).glob("*/about.json")
    about.write_text(json.dumps({**json.loads(about.read_text()), "reason": "flawed"}))
    (item,) = sycl.trash_files.trash(of(sycl_store))

    assert (item.whole, item.reason) == (True, EvictReason.DEFECTIVE)


def test_links_and_pipes_in_the_trash_are_not_followed(sycl_store: SyclStore, tmp_path: Path) -> None:
    sycl_store.add()
    put_away(sycl_store)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "0.bin").write_text("mine")
    (place,) = (sycl_store.root / entry_format.TRASH).iterdir()
    for path in (place / "leaf").iterdir():
        path.unlink()
    (place / "leaf").rmdir()
    (place / "leaf").symlink_to(precious)
    os.mkfifo(place.with_name("0" * 12))
    (item,) = sycl.trash_files.trash(of(sycl_store))

    sycl.trash_files.restore(of(sycl_store), (item.ref,))
    sycl.trash_files.discard(of(sycl_store), (item.ref,))

    assert (precious / "0.bin").read_text() == "mine"


def test_a_program_at_work_keeps_its_slot(sycl_store: SyclStore) -> None:
    slot = sycl_store.add()
    entries = look(sycl_store.root).entries
    slot.take_lock()

    assert not any(sycl.remover.remove(entries, {one.id: NOTE for one in entries}).values())
    assert sycl.trash_files.trash(of(sycl_store)) == ()


@pytest.mark.parametrize("shared", [False, True], ids=["a leaf of its own", "a leaf with a neighbour"])
def test_what_cannot_be_moved_leaves_no_label(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch, *, shared: bool
) -> None:
    sycl_store.add("_ZTS1k")
    if shared:
        sycl_store.add("_ZTS1k", slot=1)
    entry = look(sycl_store.root).entries[0]

    def refuses(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "rename", refuses)
    assert not sycl.remover.remove([entry], {entry.id: NOTE})[entry.id]
    assert sycl.trash_files.trash(of(sycl_store)) == ()
    assert list((sycl_store.root / entry_format.TRASH).iterdir()) == []


def test_a_label_that_names_no_files_brings_nothing_back_and_loses_nothing(sycl_store: SyclStore) -> None:
    sycl_store.add()
    put_away(sycl_store)
    (label,) = sycl_store.root.glob(f"{entry_format.TRASH}/*/about.json")
    label.write_text(json.dumps(json.loads(label.read_text()) | {"files": {}}))
    (one,) = sycl.trash_files.trash(of(sycl_store))
    (result,) = sycl.trash_files.restore(of(sycl_store), (one.ref,))

    assert not one.whole
    assert (result.key, result.detail) == (None, "its label names no files")
    assert (label.parent / "leaf" / "0.bin").exists()


@pytest.mark.parametrize("zeros", [False, True])
def test_a_damaged_program_in_its_place_costs_no_good_one(sycl_store: SyclStore, *, zeros: bool) -> None:
    made = sycl_store.add()
    put_away(sycl_store)
    again = sycl_store.add()
    if zeros:
        # As long as before, and framed: what a power failure leaves.
        content = again.bin.read_bytes()
        again.bin.write_bytes(content[:16] + bytes(len(content) - 16))
    (item,) = sycl.trash_files.trash(of(sycl_store))
    (told,) = sycl.trash_files.restore(of(sycl_store), (item.ref,))
    assert ("a damaged one is in its place" in told.detail) is zeros
    assert [one.ref for one in sycl.trash_files.trash(of(sycl_store))] == ([item.ref] if zeros else [])
    assert made.bin.exists()


def damaged_one(store: SyclStore, second: int, kernel: str = "_ZTS1k") -> tuple[EntryKey, bytes]:
    """Put a damaged entry away, a source alone, and give what its source was."""
    made = store.add(kernel, without=("bin",))
    made.src.write_bytes(made.src.read_bytes() + bytes(second))
    (entry,) = look(store.root).entries
    source = made.src.read_bytes()
    note = replace(NOTE, at=NOTE.at + timedelta(seconds=second), reason=EvictReason.DEFECTIVE)
    assert sycl.remover.remove([entry], {entry.id: note})[entry.id]
    return entry.id.key, source


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2), (2, 3, 1)])
def test_of_what_was_damaged_the_newest_source_comes_back(sycl_store: SyclStore, order: tuple[int, ...]) -> None:
    _, other = damaged_one(sycl_store, 9, "_ZTS5other")
    sources = {second: damaged_one(sycl_store, second) for second in order}
    key, newest = sources[3]
    assert sycl.trash_files.take_up(of(sycl_store), {key: NOTE.at}) == 1
    assert live(sycl_store.root) == {f"{key.rpartition('/')[0]}/0.src": newest}
    assert newest != other
    # What is there stays.
    assert sycl.trash_files.take_up(of(sycl_store), {key: NOTE.at}) == 0
    assert live(sycl_store.root) == {f"{key.rpartition('/')[0]}/0.src": newest}
    assert sycl.trash_files.take_up(of(sycl_store), {}) == 0


def test_what_cannot_come_back_keeps_nothing_else_away(sycl_store: SyclStore) -> None:
    made = [damaged_one(sycl_store, 1, f"_ZTS1{letter}") for letter in "abcdef"]
    # Programs cannot make a leaf there either.
    device, image, *_ = made[2][0].split("/")
    (sycl_store.root / device).mkdir()
    (sycl_store.root / device / image).touch()
    assert sycl.trash_files.take_up(of(sycl_store), {key: NOTE.at for key, _ in made}) == 5


def test_of_what_was_damaged_and_had_no_source_nothing_comes_back(sycl_store: SyclStore) -> None:
    sycl_store.add(without=("src",))
    (entry,) = look(sycl_store.root).entries
    assert sycl.remover.remove([entry], {entry.id: replace(NOTE, reason=EvictReason.DEFECTIVE)})[entry.id]
    assert sycl.trash_files.take_up(of(sycl_store), {entry.id.key: NOTE.at}) == 0
    assert live(sycl_store.root) == {}


def test_where_an_eviction_was_cut_short_what_was_damaged_before_does_not_come_back(sycl_store: SyclStore) -> None:
    key, _ = damaged_one(sycl_store, 1)
    sycl_store.add("_ZTS1k")
    (entry,) = look(sycl_store.root).entries
    assert entry.id.key == key
    assert sycl.remover.remove([entry], {entry.id: replace(NOTE, at=NOTE.at + timedelta(seconds=2))})[entry.id]
    assert sycl.trash_files.take_up(of(sycl_store), {key: NOTE.at}) == 0
    assert live(sycl_store.root) == {}


def test_where_an_eviction_without_trash_was_cut_short_what_was_damaged_before_it_does_not_come_back(
    sycl_store: SyclStore,
) -> None:
    key, _ = damaged_one(sycl_store, 1)
    evicted = NOTE.at + timedelta(seconds=1, microseconds=1)
    assert sycl.trash_files.take_up(of(sycl_store), {key: evicted}) == 0
    assert live(sycl_store.root) == {}
    # What a mending has put there has the time that is noted of it.
    assert sycl.trash_files.take_up(of(sycl_store), {key: evicted - timedelta(microseconds=1)}) == 1


def test_the_source_of_what_was_not_damaged_is_not_taken_up(sycl_store: SyclStore) -> None:
    sycl_store.add()
    keys = [one.id.key for one in look(sycl_store.root).entries]
    put_away(sycl_store)
    assert sycl.trash_files.take_up(of(sycl_store), dict.fromkeys(keys, NOTE.at)) == 0
    assert live(sycl_store.root) == {}


_FIEMAP = 0xC020660B
_ON_ITS_WAY = 0x4  # FIEMAP_EXTENT_DELALLOC


def test_a_label_is_on_its_way_to_the_disk_before_anything_moves(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power failure an empty label, with the files below it, would cost the entry."""
    sycl_store.add()
    rename, seen = os.rename, list[int]()

    def look_first(*given: object, **named: object) -> None:
        (label,) = sycl_store.root.glob(f"{entry_format.TRASH}/*/about.json")
        with label.open("rb") as file:
            answer = bytearray(struct.pack("=QQLLLL", 0, 1 << 20, 0, 0, 1, 0) + bytes(56))
            try:
                fcntl.ioctl(file, _FIEMAP, answer)
            except OSError:
                pytest.skip("this file system does not tell where its files are")
        seen.append(struct.unpack_from("=L", answer, 32 + 40)[0])
        rename(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", look_first)
    put_away(sycl_store)
    assert seen
    assert not any(flags & _ON_ITS_WAY for flags in seen)


def came_back(store: SyclStore) -> list[str | None]:
    """Bring all of it back; give the slots."""
    refs = tuple(one.ref for one in sycl.trash_files.trash(of(store)))
    return [one.key and one.key.rpartition("/")[2] for one in sycl.trash_files.restore(of(store), refs)]


@pytest.mark.parametrize("size", [0, 1])
def test_what_is_in_its_place_and_another_one_stays_there(sycl_store: SyclStore, size: int) -> None:
    sycl_store.add()
    put_away(sycl_store)
    other = sycl_store.add()
    content = bytearray(other.src.read_bytes()) + bytes(size)
    content[-1] ^= 1
    other.src.write_bytes(content)
    assert came_back(sycl_store) == ["1"]
    assert other.src.read_bytes() == content
    assert sycl.trash_files.trash(of(sycl_store)) == ()


def test_what_was_made_again_meanwhile_is_not_there_twice(sycl_store: SyclStore) -> None:
    sycl_store.add()
    put_away(sycl_store)
    again = sycl_store.add()
    assert came_back(sycl_store) == ["0"]
    assert sorted(path.name for path in again.leaf.iterdir()) == ["0.bin", "0.src", "0_access_time.txt"]


def test_a_slot_that_a_program_is_writing_is_passed_over_and_an_empty_one_is_not(sycl_store: SyclStore) -> None:
    sycl_store.add()
    put_away(sycl_store)
    writing = sycl_store.add()
    writing.take_lock()
    empty = sycl_store.add(slot=1, without=("bin", "src"))
    assert came_back(sycl_store) == ["1"]
    assert writing.lock.exists()
    assert empty.bin.exists()
    assert not (empty.leaf / "1.lock").exists()


@pytest.mark.parametrize("alone", [True, False])
def test_a_directory_in_the_place_of_a_program_leaves_the_trash_with_all_that_is_in_it(
    sycl_store: SyclStore, tmp_path: Path, *, alone: bool
) -> None:
    made = sycl_store.add("_ZTS1k", without=("bin",))
    if not alone:
        sycl_store.add("_ZTS1k", slot=1)
    (made.bin / "below").mkdir(parents=True)
    (made.bin / "below" / "file").touch()
    (tmp_path / "aside").touch()
    (made.bin / "link").symlink_to(tmp_path / "aside")
    entry = next(one for one in look(sycl_store.root).entries if one.id.key.endswith("/0"))
    assert sycl.remover.remove([entry], {entry.id: replace(NOTE, reason=EvictReason.DEFECTIVE)})[entry.id]
    (item,) = sycl.trash_files.trash(of(sycl_store))
    assert sycl.trash_files.discard(of(sycl_store), (item.ref,)) == {item.ref}
    assert not (sycl_store.root / entry_format.TRASH).exists()
    assert (tmp_path / "aside").exists()


def test_a_slot_with_a_directory_that_somebody_filled_stays_whole_where_nothing_goes_to_the_trash(
    sycl_store: SyclStore,
) -> None:
    made = sycl_store.add("_ZTS1k", without=("bin",))
    (made.bin / "below").mkdir(parents=True)
    before = sorted(made.leaf.iterdir())
    entry = next(one for one in look(sycl_store.root).entries if one.id.key.endswith("/0"))
    assert not sycl.remover.remove([entry])[entry.id]
    assert sorted(made.leaf.iterdir()) == before
    (made.bin / "below").rmdir()
    (entry,) = look(sycl_store.root).entries
    assert sycl.remover.remove([entry])[entry.id]


def several(store: SyclStore, count: int) -> Slot:
    """Put several entries of one leaf away, with sources of one length; give the last one."""
    made = [store.add("_ZTS1k", slot=number) for number in range(count)]
    for one in made:
        one.src.write_bytes(one.src.read_bytes() + bytes([one.number]))
    put_away(store)
    return made[-1]


def test_who_brings_many_back_walks_through_their_leaf_once(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = several(sycl_store, 9)
    (length, *_) = {one.stat().st_size for one in sycl_store.root.rglob("*.src")}
    made.leaf.mkdir(parents=True)
    for number in range(200):
        (made.leaf / f"{number}.src").write_bytes(bytes(length))
    looked: list[str] = []

    def counted(real: Callable[[int, str], T]) -> Callable[[int, str], T]:
        def called(leaf: int, slot: str) -> T:
            looked.append(slot)
            return real(leaf, slot)

        return called

    monkeypatch.setattr(sycl.trash_files, "slot_in", counted(slots.slot_in))
    monkeypatch.setattr(sycl.trash_files, "_content", counted(sycl.trash_files._content))
    assert sorted(came_back(sycl_store), key=str) == [str(number) for number in range(200, 209)]
    assert len(looked) < 500


def test_what_a_program_made_again_or_took_away_meanwhile_is_seen(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = several(sycl_store, 5)
    items = sorted(sycl.trash_files.trash(of(sycl_store)), key=lambda one: one.key)
    second = {path.name: path.read_bytes() for path in sycl_store.root.rglob(f"{items[1].ref}/leaf/1*")}
    dropping, dropped = trash.TrashFolder.drop, list[str]()

    def drop(self: trash.TrashFolder, folder: int, ref: str, device: int) -> bool:
        dropped.append(ref)
        if len(dropped) == 1:
            for name, content in second.items():
                (made.leaf / name).write_bytes(content)
        if len(dropped) == 2:
            for path in made.leaf.glob("0*"):
                path.unlink()
        # However fast that was.
        os.utime(made.leaf, ns=(0, len(dropped)))
        return dropping(self, folder, ref, device)

    monkeypatch.setattr(trash.TrashFolder, "drop", drop)
    told = sycl.trash_files.restore(of(sycl_store), tuple(one.ref for one in items))
    assert [one.key and one.key.rpartition("/")[2] for one in told] == ["0", "1", "0", "2", "3"]
    assert [one.ref for one in told if one.detail] == [items[1].ref]


@pytest.mark.parametrize("call", range(5))
def test_where_one_cannot_be_read_just_now_nothing_comes_back_beside_what_is_the_same(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    sycl_store.add("_ZTS1k")
    put_away(sycl_store)
    sycl_store.add("_ZTS1k")
    made_again = live(sycl_store.root)
    (one,) = sycl.trash_files.trash(of(sycl_store))
    really, calls = fs.regular_file, itertools.count()

    def regular_file(directory: int, name: str) -> AbstractContextManager[tuple[int, os.stat_result]]:
        # Others of this process had all descriptors for a moment.
        if next(calls) == call:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return really(directory, name)

    with monkeypatch.context() as short:
        short.setattr(fs, "regular_file", regular_file)
        (restored,) = sycl.trash_files.restore(of(sycl_store), (one.ref,))
    assert (restored.key, restored.detail) == (None, "Too many open files")
    assert live(sycl_store.root) == made_again
    (restored,) = sycl.trash_files.restore(of(sycl_store), (one.ref,))
    assert restored.detail == "a program has made it again meanwhile"


def test_what_is_back_is_told_though_its_place_in_the_trash_cannot_be_cleared(sycl_store: SyclStore) -> None:
    sycl_store.add("_ZTS1k")
    before = live(sycl_store.root)
    for free in range(14):
        put_away(sycl_store)
        one = next(one for one in sycl.trash_files.trash(of(sycl_store)) if one.whole)
        with leaving(free):
            (restored,) = sycl.trash_files.restore(of(sycl_store), (one.ref,))
        assert (restored.key is not None) == (live(sycl_store.root) == before), (free, restored)
        if restored.key is None:
            assert sycl.trash_files.restore(of(sycl_store), (one.ref,))[0].key is not None
