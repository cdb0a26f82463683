"""The bounds of what is read of a SYCL store, each at its edge: a stranger's bytes cost no more than they say."""

from __future__ import annotations

import math
import os
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.kinds.test_sycl_damage import look
from tests.kinds.test_sycl_runtimes import NOWHERE, found, library, marked
from tests.kinds.test_sycl_structure import SYMBOLS, content, field, program
from tests.unit.catalog.test_catalog import entry
from xpucached.domain.activity import FileAct, FileEvent, Program
from xpucached.domain.defects import RepairAction
from xpucached.domain.models import Workload
from xpucached.domain.names import EntryKey
from xpucached.domain.plans import EvictReason
from xpucached.domain.stores import FoundStore, Store, StoreOrigin
from xpucached.domain.trash import Repair, TrashLabel
from xpucached.kinds import fs, sycl
from xpucached.kinds.known_cursor import KnownCursor
from xpucached.kinds.sycl import (
    activity,
    blocking,
    entry_format,
    following,
    locks,
    preflight,
    remover,
    structure,
    trash_files,
)
from xpucached.kinds.sycl import runtimes as installed
from xpucached.kinds.sycl.scan_state import ScanState
from xpucached.kinds.sycl.slots import Slot, SlotNumbers, slot_in
from xpucached.kinds.trash_labels import Label, label_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.builders import SyclStore

NOW: Final = datetime(2026, 5, 4, 12, tzinfo=UTC)
KEY: Final = "1/2/3/4"


@pytest.fixture
def leaf(tmp_path: Path) -> Iterator[int]:
    with fs.folder(os.fspath(tmp_path)) as descriptor:
        yield descriptor


# -- compiled programs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [0, 1])
def test_of_a_table_65536_rows_are_looked_at(more: int) -> None:
    made = program()
    # A row has 16 bytes at least, a symbol 24; the last one lies in no section.
    symbols = (bytes(23) + b"\1") * ((1 << 16) * 16 // 24 + more) + bytes(6) + b"\7\0" + bytes(16)
    at = len(made)
    made += symbols
    for place, value in ((24, at), (32, len(symbols))):
        field(made, SYMBOLS, place, "Q", value)
    assert content(made, SYMBOLS) == at
    assert (structure.table_damage(bytes(made)) is None) == bool(more)


# -- the slots of a leaf ----------------------------------------------------------------------------------------------


def test_what_a_program_has_put_above_since_a_leaf_was_listed_is_its_highest(leaf: int, tmp_path: Path) -> None:
    (tmp_path / "0.src").touch()
    numbers = SlotNumbers.of(leaf)
    assert numbers.highest(0) is None
    (tmp_path / "1.src").touch()
    assert numbers.highest(0) == "1"


def test_64_slots_that_are_being_written_are_passed_over(leaf: int, tmp_path: Path) -> None:
    (tmp_path / "0.src").touch()
    for number in range(1, 64):
        (tmp_path / f"{number}.src").touch()
        (tmp_path / f"{number}.lock").touch()
    assert SlotNumbers.of(leaf).highest(-1) == "0"
    for name in ("64.src", "64.lock"):
        (tmp_path / name).touch()
    assert SlotNumbers.of(leaf).highest(-1) is None


def test_what_came_down_lies_in_both_places_for_a_moment(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = [sycl_store.add(slot=number, size=300 + number) for number in range(2)]
    program = slots[1].bin.read_bytes()
    moments: list[float] = []

    def sleep(seconds: float) -> None:
        moments.append(seconds)
        assert [slot.bin.read_bytes() for slot in slots] == [program] * 2

    monkeypatch.setattr(time, "sleep", sleep)
    lowest = min(look(sycl_store.root).entries, key=lambda one: one.id.key)
    assert remover.remove([lowest])[lowest.id]
    assert moments
    # A program needs microseconds; and whoever removes thousands waits as often.
    assert 0.001 < sum(moments) < 0.1


def test_200_gaps_of_a_leaf_are_closed_at_a_time(sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    place = sycl_store.add().leaf
    (entry,) = look(sycl_store.root).entries
    for number in range(1, 402):
        (place / f"{number * 2}.src").touch()
    assert not sycl.doctor.mend([Repair(entry, RepairAction.CLOSE_GAP)])[entry.id]
    numbers = {int(path.stem) for path in place.glob("*.src")}
    assert min(set(range(1000)) - numbers) == 401


@pytest.mark.parametrize(("count", "kept"), [(200, 200), (201, 200)])
def test_of_removals_that_were_cut_short_200_are_finished_after_a_look(tmp_path: Path, count: int, kept: int) -> None:
    store = FoundStore(Store(sycl.NAME, tmp_path), StoreOrigin.FOUND, "test")
    state = ScanState(store, NOW, KnownCursor(()), quick=False, root=-1, status=tmp_path.stat())
    for number in range(count):
        state.claim(EntryKey(f"{KEY}/{number}"))
    assert (state.left, len(state.ours), len(set(state.ours))) == (count, kept, kept)


@pytest.mark.parametrize(("seconds", "trusted"), [(1.9, False), (2.1, True)])
def test_a_directory_is_trusted_two_seconds_after_its_last_change(
    sycl_store: SyclStore, seconds: float, *, trusted: bool
) -> None:
    place = sycl_store.add().leaf
    changed = max(one.stat().st_ctime for one in (place, *place.parents[:3]))
    store = FoundStore(Store(sycl.NAME, sycl_store.root), StoreOrigin.FOUND, "test")
    every = sycl.scanner.parts(store, datetime.fromtimestamp(changed + seconds, UTC), [], None)
    assert [entry.place is not None for part in every for entry in part.entries] == [trusted]


@pytest.mark.parametrize("length", [4096, 4097])
def test_a_device_s_name_has_4096_bytes_at_most(sycl_store: SyclStore, length: int) -> None:
    others = sum(len(text) + 1 for name, text in sycl_store.defaults.items() if name != "device")
    sycl_store.add(device="x" * (length - others))
    (entry,) = look(sycl_store.root).entries
    assert (entry.environment is not None) == (length == 4096)


def test_what_an_entry_said_of_its_device_holds_for_what_is_compiled_from_source(sycl_store: SyclStore) -> None:
    damaged = sycl_store.add()
    sycl_store.add(slot=1, size=300)
    # Only the first slot would be asked again.
    damaged.src.write_bytes(b"")
    device = damaged.leaf.relative_to(sycl_store.root).parts[0]
    made = sycl_store.root / "ext_kernel_compiler" / device / "1" / "2"
    made.mkdir(parents=True)
    shutil.copy(damaged.bin, made)
    entries = {one.id.key.partition("/")[0]: one for one in look(sycl_store.root).entries if one.environment}
    assert entries["ext_kernel_compiler"].environment == entries[device].environment


def test_a_source_of_64_mib_is_read_and_no_larger_one(leaf: int, tmp_path: Path) -> None:
    (tmp_path / "0.src").touch()
    os.truncate(tmp_path / "0.src", (64 << 20) + 1)
    assert trash_files._content(leaf, "0") is None


# -- what stands in the way, and locks --------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "blocks"), [("1" * 11, False), ("1" * 12, True), ("ext_kernel_compiler", True)])
def test_a_file_blocks_that_has_as_many_digits_as_a_hash(leaf: int, tmp_path: Path, name: str, *, blocks: bool) -> None:
    (tmp_path / name).touch()
    assert blocking.stands(leaf, name, str(tmp_path)) is blocks


@pytest.mark.parametrize(("depth", "blocks"), [(1, True), (4, True), (5, False)])
def test_a_file_blocks_as_deep_as_programs_have_directories(tmp_path: Path, depth: int, *, blocks: bool) -> None:
    place = tmp_path.joinpath(*["1" * 12] * depth)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.touch()
    with fs.root_directory(os.fspath(tmp_path)) as (root, status):
        assert blocking.found(str(tmp_path), root, status) is blocks


def test_a_link_that_leads_nowhere_is_there(leaf: int, tmp_path: Path) -> None:
    for name in ("0.src", sycl.doctor.SIZE_LOCK):
        (tmp_path / name).symlink_to("nothing")
        os.utime(tmp_path / name, (0, 0), follow_symlinks=False)
    assert slot_in(leaf, "0").files.keys() == {".src"}
    store = Store(sycl.NAME, tmp_path)
    now = datetime.now(UTC)
    fault = sycl.defects.SIZE_LOCK
    assert fault in sycl.doctor.faults(FoundStore(store, StoreOrigin.FOUND, "test"), now, None)
    assert sycl.doctor.clear(store, fault, now, None)
    assert not (tmp_path / sycl.doctor.SIZE_LOCK).is_symlink()


def test_nobody_else_reads_what_was_moved_aside(tmp_path: Path) -> None:
    with fs.root_directory(os.fspath(tmp_path)) as (root, status):
        assert blocking.clear(str(tmp_path), root, status)
    assert (tmp_path / entry_format.TRASH).stat().st_mode & 0o7777 == 0o700


def test_4096_locks_from_the_future_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_first", {})
    for number in range(4100):
        locks._watched(os.stat_result((0, number, *[0] * 8)))
    assert [one[1] for one in locks._first] == list(range(4, 4100))


@pytest.mark.parametrize(("seconds", "ahead"), [(0.9, 0.0), (1.0, 1.0), (5.0, 5.0)])
def test_a_clock_is_set_forward_by_a_second_at_least(
    monkeypatch: pytest.MonkeyPatch, seconds: float, ahead: float
) -> None:
    monkeypatch.setattr(locks, "_offsets", type(locks._offsets)([(0.0, 0.0)]))
    monkeypatch.setattr(locks, "_offset", lambda: (seconds, 1.0))
    assert locks._ahead() == timedelta(seconds=ahead)


# -- the trash --------------------------------------------------------------------------------------------------------


def label() -> Label:
    return label_of(entry(f"{KEY}/0"), TrashLabel(NOW, EvictReason.UNUSED, "why"), 0o700, {".src": (1, 2)})


def test_of_slots_that_may_hold_the_same_64_mib_are_compared(leaf: int, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 1 << 20
    looked, compared = [0], [0]

    def slot_in(_: int, name: str) -> Slot:
        looked[0] += 1
        return Slot(name, {".src": os.stat_result((0, 0, 0, 0, 0, 0, size, 0, 0, 0))})

    def contents(_: int, name: str) -> bytes:
        compared[0] += 1
        return source if compared[0] == 1 else b"other"

    source = bytes(size)
    monkeypatch.setattr(trash_files, "slot_in", slot_in)
    monkeypatch.setattr(trash_files, "_content", contents)
    with pytest.raises(OSError, match="the leaf is full"):
        trash_files._free_slot(leaf, leaf, label(), trash_files._walk_of(leaf))
    assert looked == [1 << 16]
    assert compared == [1 + math.ceil((64 << 20) / (size + 4096))]


@pytest.mark.parametrize("count", [1000, 1001])
def test_among_1000_items_of_a_leaf_the_rest_of_an_entry_is_searched(
    leaf: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    (tmp_path / entry_format.TRASH).mkdir()
    status = (tmp_path / entry_format.TRASH).stat()
    stamp = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    names = [f"{number:012x}" for number in range(count)]
    monkeypatch.setattr(trash_files, "_indexed", {stamp: {KEY: names}})
    if count == 1000:
        assert trash_files._items_of(leaf, status.st_dev, KEY) == names
    else:
        with pytest.raises(OSError, match="holds too much"):
            trash_files._items_of(leaf, status.st_dev, KEY)
    assert trash_files._items_of(leaf, status.st_dev, "1/2/3/5") == []


# -- runtimes ---------------------------------------------------------------------------------------------------------


def test_a_library_is_read_in_pieces_of_1_mib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "_KNOWN", {})
    reads: list[int] = []
    read = os.read

    def counted(descriptor: int, size: int) -> bytes:
        reads.append(size)
        return read(descriptor, size)

    monkeypatch.setattr(os, "read", counted)
    place = library(tmp_path, content=bytes((1 << 20) + 1)).parent
    assert len(preflight.runtimes(NOWHERE, {"LD_LIBRARY_PATH": str(place)}, ())) == 1
    assert reads == [1 << 20, 1]


@pytest.mark.parametrize(("more", "opened"), [(0, True), (1, False)])
def test_a_library_has_256_mib_at_most(tmp_path: Path, more: int, *, opened: bool) -> None:
    path = library(tmp_path)
    os.truncate(path, (256 << 20) + more)
    if opened:
        with installed._opened(path) as (_, stamp):
            assert stamp[2] == 256 << 20
    else:
        with pytest.raises(OSError, match="too large"), installed._opened(path):
            pass


def test_a_program_finds_eight_runtimes_and_a_host_has_four_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [library(tmp_path / str(number), content=b"%d" % number).parent for number in range(9)]
    listed = {"LD_LIBRARY_PATH": ":".join(map(str, places))}
    assert [one.library.parent for one in preflight.runtimes(NOWHERE, listed, ())] == places[:8]
    monkeypatch.setattr(installed, "loader_cache", lambda _: {})
    host = [marked(tmp_path / f"host{number}") for number in range(5)]
    assert installed.folders([], {"LD_LIBRARY_PATH": ":".join(map(str, host))}) == tuple(host[:4])
    beside = [marked(tmp_path / f"lib/python3.{number}/site-packages/torch/lib") for number in range(5)]
    work = [Workload((str(tmp_path / "bin" / "python"),), tmp_path)]
    assert installed.folders(work, {}) == tuple(beside[:4])


def test_64_runtimes_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = library(tmp_path)
    for known, ask in (("_KNOWN", lambda: found(tmp_path)), ("_GENERATIONS", lambda: installed.generation(path))):
        for before, after in ((63, 64), (64, 1)):
            there = dict.fromkeys(range(before), "")
            monkeypatch.setattr(installed, known, there)
            ask()
            assert len(there) == after


@pytest.mark.parametrize(("depth", "kept"), [(8, True), (9, False)])
def test_a_program_is_looked_for_as_deep_as_one_can_be(tmp_path: Path, depth: int, *, kept: bool) -> None:
    place = tmp_path.joinpath(*map(str, range(depth)))
    place.mkdir(parents=True)
    (place / "0.bin").touch()
    assert preflight._keeps(str(tmp_path)) is kept


# -- what a runtime tells ---------------------------------------------------------------------------------------------


def test_of_a_line_16_paths_are_read_each_as_long_as_one_can_be() -> None:
    line = "[Persistent Cache]: using cached device binary: "
    paths = [f"/c/store{number}/{KEY}/0.bin" for number in range(17)]
    assert following._roots(line + ";".join(paths)) == [Path(f"/c/store{number}") for number in range(16)]
    for length in (4096, 4097):
        root = "/" + "x" * (length - 1)
        assert following._roots(f"{line}{root}/{KEY}/0.bin;") == ([Path(root)] if length == 4096 else [])


def test_a_thousand_stores_and_ten_thousand_threads_are_told_apart() -> None:
    follower = following.follow()
    for number in range(1001):
        follower.take(f"[Persistent Cache]: using cached device binary: /c/store{number}/{KEY}/0.bin;", 0.0)
    assert len(follower.told().stores) == 1000
    for number in range(10_001):
        follower.take(f"[In-Memory Cache][Thread Id:{number}]: Program inserted.", 0.0)
    assert len(follower._waiting) == 10_000


@pytest.mark.parametrize("count", [9_999, 10_000])
def test_ten_thousand_halves_of_loads_are_remembered(count: int) -> None:
    halves = frozenset((Path("/s"), EntryKey(str(number)), 7, NOW) for number in range(count))
    read = FileEvent(Path("/s"), f"{KEY}/0.src", FileAct.READ, 7, 0.0)
    app = Program(7, NOW, 1000, "app", "app", "", libraries=("libsycl.so.8",))
    assert len(activity.interpret([(read, app)], NOW, halves).halves) == 10_000
