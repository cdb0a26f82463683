"""A store of the GPU driver's: where it is, what is in it, what is wrong with it, and how entries go and come back."""

from __future__ import annotations

import fcntl
import hashlib
import os
import resource
import shutil
import struct
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests import REPOSITORY
from tests.kinds import fakes
from tests.support import silent_filesystem
from tests.support.builders import native
from tests.support.users import mere_user
from xpucached import deadlines
from xpucached.domain.defects import Effect
from xpucached.domain.host import Process
from xpucached.domain.names import EntryKey
from xpucached.domain.plans import EvictReason
from xpucached.domain.stores import (
    Entry,
    EntryState,
    FoundStore,
    KnownEntry,
    Lookups,
    Scan,
    Store,
    StoreOrigin,
    StoreState,
)
from xpucached.domain.trash import TrashLabel
from xpucached.kinds import fs, known_cursor
from xpucached.kinds.neo import counting, defects, discovery, doctor, layout, reader, remover, scanner, totals
from xpucached.kinds.neo import kind as neo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from xpucached.domain.defects import Defect, StoreFault

NOW = datetime.now(UTC) + timedelta(hours=1)
LABEL = TrashLabel(NOW, EvictReason.UNUSED, "not used")
CL, ZE = "2/5/25297eb0a9ff01c5.cl_cache", "f/d/fda88f9b82d687e4.l0_cache"


class CacheOfTheDriver:
    """A store with the entries that driver 26.27 wrote."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copytree(fakes.NEO / "recorded", root, ignore=shutil.ignore_patterns("*.trace", "*.input", "stats"))
        self.found = FoundStore(Store(neo.KIND.name, root), StoreOrigin.FOUND, "test")

    def parts(self, known: Iterable[Entry] = (), *, quick: bool = False) -> list[Scan]:
        rows = sorted((KnownEntry(one.id.key, one.stamp, one.place) for one in known), key=lambda row: row.key)
        return list(scanner.parts(self.found, NOW, rows, None, quick=quick))

    def entries(self) -> dict[str, Entry]:
        return {one.id.key: one for part in self.parts() for one in part.entries}

    def faults(self) -> tuple[StoreFault, ...]:
        return doctor.faults(self.found, NOW, None)

    @property
    def total(self) -> int:
        return totals.total((self.root / layout.TOTAL).read_bytes())

    @property
    def true_total(self) -> int:
        return sum(path.stat().st_size for path in self.root.rglob("*_cache"))

    def say(self, total: int) -> None:
        (self.root / layout.TOTAL).write_bytes(totals.total_bytes(total))


@pytest.fixture
def store(tmp_path: Path) -> CacheOfTheDriver:
    return CacheOfTheDriver(tmp_path / "neo_compiler_cache")


# -- where it is ------------------------------------------------------------------------------------------------------


def asked(variables: dict[str, str], directory: str | None = "/w") -> Path | None:
    place = None if directory is None else Path(directory)
    found = discovery.locate(Process(7, os.getuid(), NOW, "app", place, variables))
    return None if found is None else found[0]


@pytest.mark.parametrize(("pid", "via"), [(7, "process 7 (app)"), (0, "app")])
def test_who_keeps_it_there_is_named(pid: int, via: str) -> None:
    process = Process(pid, os.getuid(), NOW, "app", None, {"NEO_CACHE_DIR": "/c"})
    assert discovery.locate(process) == (Path("/c"), via)


@pytest.mark.parametrize(
    ("variables", "root"),
    [
        ({"HOME": "/h"}, "/h/.cache/neo_compiler_cache"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/neo_compiler_cache"),
        ({"HOME": "/h", "XDG_CACHE_HOME": ""}, "/h/.cache/neo_compiler_cache"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "x"}, "/w/x/neo_compiler_cache"),
        ({"HOME": "/h", "NEO_CACHE_DIR": "/d/"}, "/d"),
        ({"HOME": "/h", "NEO_CACHE_DIR": ""}, "/h/.cache/neo_compiler_cache"),
        ({"HOME": "/h", "NEO_CACHE_DIR": "rel"}, "/w/rel"),
        ({"HOME": "/h", "NEO_CACHE_DIR": "~/x"}, "/w/~/x"),
        ({"HOME": ""}, None),
        ({}, None),
        *(({"HOME": "/h", "NEO_CACHE_PERSISTENT": off}, None) for off in ("0", "", "yes", "false", "00")),
        *(
            ({"HOME": "/h", "NEO_CACHE_PERSISTENT": on}, "/h/.cache/neo_compiler_cache")
            for on in ("1", "2", "01", "-1", " 1x")
        ),
    ],
)
def test_a_program_caches_where_the_driver_was_seen_to(variables: dict[str, str], root: str | None) -> None:
    assert asked(variables) == (None if root is None else Path(root))
    if "NEO_CACHE_PERSISTENT" in variables:
        said = f"NEO_CACHE_PERSISTENT={variables['NEO_CACHE_PERSISTENT']}"
        asks = Process(7, 0, NOW, "app", None, variables)
        assert discovery.bounds(asks) == (said if root is None else "")


def test_a_relative_place_of_a_process_whose_directory_is_unknown_is_not_known() -> None:
    assert asked({"HOME": "/h", "NEO_CACHE_DIR": "rel"}, None) is None


def test_a_directory_with_a_total_and_an_entry_is_a_store(store: CacheOfTheDriver, tmp_path: Path) -> None:
    assert discovery.recognise(store.root)
    (store.root / layout.TOTAL).unlink()
    assert not discovery.recognise(store.root)
    flat = tmp_path / "flat"
    flat.mkdir()
    (flat / layout.TOTAL).write_bytes(b"")
    assert not discovery.recognise(flat)
    (flat / "25297eb0a9ff01c5.cl_cache").write_bytes(b"x")
    assert discovery.recognise(flat)


def test_who_writes_has_the_total_or_a_new_entry_open() -> None:
    for path in ("/s/config.file", "/s/cl_cache.AbC123", "/s/cl_cache.AbC123 (deleted)"):
        assert discovery.writes(path)
    for path in ("/s/config.file2", "/s/2/5/25297eb0a9ff01c5.cl_cache", "/s/cl_cache.AbC1234"):
        assert not discovery.writes(path)


# -- what is in it ----------------------------------------------------------------------------------------------------


def test_entries_are_read_and_their_access_times_stay(store: CacheOfTheDriver) -> None:
    before = {path: path.stat() for path in store.root.rglob("*") if path.is_file()}
    for path, status in before.items():
        os.utime(path, ns=(1, status.st_mtime_ns))
    found = store.entries()
    assert {one.state for one in found.values()} == {EntryState.OK}
    assert {one.environment for one in found.values()} == {None}
    assert found[CL].options == "-cl-fast-relaxed-math -DX=1"
    assert [one.name for one in found[CL].kernels] == ["noinc"]
    assert (found[ZE].image_size, found[ZE].binary) == (1424, "elf")
    assert (
        found[ZE].input == hashlib.sha256((fakes.NEO / "recorded" / f"{Path(ZE).stem}.input").read_bytes()).hexdigest()
    )
    gpu = ("gpu", "bmg-g21, IP version 20.1.0")
    assert found[CL].facts == (("interface", "OpenCL"), gpu, ("format", "zebin 1.73"))
    assert found[ZE].facts == (("interface", "Level Zero"), gpu, ("format", "zebin 1.73"))
    assert {path.stat().st_atime_ns for path in before} == {1}
    assert found[CL].accessed == datetime.fromtimestamp(0, UTC)


def test_both_layouts_are_walked_in_the_order_of_the_keys(store: CacheOfTheDriver) -> None:
    for path in list(store.root.rglob("*_cache")):
        shutil.copy(path, store.root / path.name)
    keys = [one.id.key for part in store.parts() for one in part.entries]
    assert len(keys) == 10
    assert keys == sorted(keys)
    known = store.entries().values()
    (again,) = store.parts(known)
    assert again.entries == ()
    assert [one.key for one in again.unchanged] == keys
    assert "entries of drivers up to 26.01, which later ones count and never read: 5" in again.notes


def test_what_went_is_named_and_a_quick_look_leaves_what_is_settled(
    store: CacheOfTheDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = store.entries().values()
    (quick,) = store.parts(known, quick=True)
    assert (quick.entries, quick.unchanged, quick.vanished, quick.foreign) == ((), (), (), None)
    (store.root / CL).unlink()
    os.utime(store.root / "2/5", None)
    monkeypatch.setattr(scanner, "_TICK", 0)
    shutil.rmtree(store.root / "1")
    for parts in (store.parts(known), store.parts(known, quick=True)):
        gone = {key for part in parts for key in part.vanished or ()}
        assert gone == {CL, "1/4/14393921d7ce9d06.cl_cache"}


def test_many_entries_come_in_parts_and_the_next_look_goes_there_again(
    store: CacheOfTheDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_cursor, "PART", 2)
    for number in range(5):
        shutil.copy(store.root / CL, store.root / f"2/5/25{number:014x}.cl_cache")
    parts = store.parts()
    found = [one for part in parts for one in part.entries]
    assert len(parts) > 3
    assert len(found) == len({one.id.key for one in found}) == 10
    assert all(one.place is None for one in found if one.id.key.startswith("2/5/"))
    assert sum(part.thorough for part in parts) == 1
    again = store.parts(found)
    assert sum(len(part.unchanged) for part in again) == 10


def test_a_quick_look_goes_by_all_directories_but_those_in_which_a_part_ended(
    store: CacheOfTheDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_cursor, "PART", 4)
    for number in range(12):
        (store.root / f"9/{number:x}").mkdir(parents=True)
        shutil.copy(store.root / CL, store.root / f"9/{number:x}/25{number:014x}.cl_cache")
    found = [one for part in store.parts() for one in part.entries]
    again = [one.key for part in store.parts(found, quick=True) for one in part.unchanged if one.key.startswith("9/")]
    assert len(again) == 12 // 4


def test_what_is_not_the_driver_s_is_counted_and_left(store: CacheOfTheDriver) -> None:
    (store.root / "stats").write_bytes(bytes(24))
    (store.root / "x.trace").write_bytes(b"")
    (store.root / "note.txt").write_bytes(b"")
    (store.root / "2" / "5" / "note.txt").write_bytes(b"")
    (store.root / "3").symlink_to(store.root / "2")
    (store.root / "01cdef0123456789.trace").write_bytes(b"")
    (scan,) = store.parts()
    assert scan.foreign == 4
    assert len(scan.entries) == 5
    assert any("traced runs" in note and note.endswith(": 1") for note in scan.notes)


def test_a_store_that_others_may_write_to_says_so(store: CacheOfTheDriver) -> None:
    store.root.chmod(0o775)
    assert "others may write here: programs load what they put there" in store.parts()[0].notes


def test_a_root_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for name, state in (("nothing", StoreState.MISSING), ("file", StoreState.NOT_A_DIRECTORY)):
        found = FoundStore(Store(neo.KIND.name, tmp_path / name), StoreOrigin.FOUND, "test")
        assert [one.state for one in scanner.parts(found, NOW, (), None)] == [state]


def test_what_the_driver_counts_is_told_once_and_nothing_else_is_believed(
    store: CacheOfTheDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_cursor, "PART", 2)
    stats = store.root / layout.STATS
    for content, told in (
        (None, Lookups(0, 0)),
        (struct.pack("<QQQ", 31, 2, 1), Lookups(31, 2)),
        (struct.pack("<QQQ", 1 << 63, 2, 1), Lookups(0, 0)),
        (b"\0" * 100_000, Lookups(0, 0)),
    ):
        if content is not None:
            stats.write_bytes(content)
        *parts, last = store.parts()
        assert ([one.lookups for one in parts], last.lookups) == ([None] * len(parts), told)
        assert parts
    stats.unlink()
    os.mkfifo(stats)
    assert store.parts()[-1].lookups == Lookups(0, 0)


# -- what is wrong with an entry --------------------------------------------------------------------------------------


def _link(to: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.rename(path.with_suffix(".kept"))
        path.symlink_to(to.format(path.with_suffix(".kept")))

    return make


def _link_to_nothing_in_it(path: Path) -> None:
    path.rename(path.with_suffix(".kept"))
    path.with_suffix(".empty").write_bytes(b"")
    path.symlink_to(path.with_suffix(".empty"))


def _given(mode: int, *, empty: bool = False) -> Callable[[Path], None]:
    def give(path: Path) -> None:
        if empty:
            path.write_bytes(b"")
        path.chmod(mode)
        os.chown(path, STRANGER, -1)

    return give


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _move(path: Path) -> None:
    other = path.parent.parent / ("0" if path.name[1] != "0" else "1")
    other.mkdir(exist_ok=True)
    path.rename(other / path.name)


def _notes(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = data.index(b"IntelGT\0") - 12
    struct.pack_into("<I", data, at, 0xFFFFFFFF)
    path.write_bytes(data)


DAMAGE: list[tuple[str, Callable[[Path], object], Defect]] = [
    ("empty", lambda path: path.write_bytes(b""), defects.EMPTY),
    ("short by one byte", lambda path: path.write_bytes(path.read_bytes()[:-1]), defects.DAMAGED),
    ("half", lambda path: path.write_bytes(path.read_bytes()[:2000]), defects.DAMAGED),
    ("zeros", lambda path: path.write_bytes(bytes(2000)), defects.DAMAGED),
    ("garbage", lambda path: path.write_bytes(b"\x13\x37" * 1000), defects.DAMAGED),
    ("pipe", _pipe, defects.FIFO),
    ("misplaced", _move, defects.MISPLACED),
    ("notes", _notes, defects.DAMAGED),
    ("link", _link("{}"), defects.LINK),
    ("link to nothing", _link("nothing"), defects.LINK_DANGLING),
    ("link to what is empty", _link_to_nothing_in_it, defects.EMPTY),
    ("link to a device", _link("/dev/null"), defects.LINK_AWAY),
]

STRANGER: Final = 4711

RIGHTS: list[tuple[str, Callable[[Path], object], Defect]] = [
    ("closed", lambda path: path.chmod(0), defects.UNREADABLE),
    ("closed by somebody else", _given(0o600), defects.UNREADABLE),
    ("somebody else's", _given(0o644), defects.FOREIGN),
    ("somebody else's and empty", _given(0o644, empty=True), defects.EMPTY),
]
"""What root may read all the same."""


@pytest.mark.parametrize(("how", "defect"), [row[1:] for row in DAMAGE], ids=[row[0] for row in DAMAGE])
def test_damage_is_called_what_it_is(store: CacheOfTheDriver, how: Callable[[Path], object], defect: Defect) -> None:
    how(store.root / ZE)
    (found,) = [one for one in store.entries().values() if one.id.key.endswith(Path(ZE).name)]
    assert found.defect == defect
    assert (found.state is EntryState.OK) == (defect.effect is Effect.HARMLESS)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to somebody else")
@pytest.mark.parametrize(("how", "defect"), [row[1:] for row in RIGHTS], ids=[row[0] for row in RIGHTS])
def test_what_may_not_be_read_or_is_somebody_else_s_is_not_opened(
    store: CacheOfTheDriver, how: Callable[[Path], object], defect: Defect, monkeypatch: pytest.MonkeyPatch
) -> None:
    how(store.root / ZE)
    opened: list[str] = []
    really = fs.regular_file

    def noting(directory: int, name: str, *known: os.stat_result) -> AbstractContextManager[tuple[int, os.stat_result]]:
        opened.append(name)
        return really(directory, name, *known)

    monkeypatch.setattr(fs, "regular_file", noting)
    with mere_user():
        entries = store.entries()
    assert {one.defect for one in entries.values()} == {defect, None}
    found = entries[ZE]
    assert (found.defect, found.digest, found.kernels) == (defect, None, ())
    assert (Path(ZE).name in opened, Path(CL).name in opened) == (False, True)


FILTERED: Final = """
import ctypes, os, struct, sys
from pathlib import Path
from tests.kinds.test_neo_store import CacheOfTheDriver
rows = ((0x20, 0, 0, 0), (0x15, 0, 1, 439), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000))
filter = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *row) for row in rows))
program = ctypes.create_string_buffer(struct.pack("@HP", len(rows), ctypes.addressof(filter)))
calls = ctypes.CDLL(None)
if calls.prctl(38, 1, 0, 0, 0) or calls.prctl(22, 2, program, 0, 0):
    sys.exit(77)
print({one.defect for one in CacheOfTheDriver(Path(sys.argv[1])).entries().values()})
"""
"""With a filter of system calls as of older containers: it forbids faccessat2 instead of saying that there is none."""


@pytest.mark.flow
def test_where_rights_cannot_be_asked_for_no_entry_is_found_guilty(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FILTERED, str(tmp_path / "store")]
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, env=variables)
    if done.returncode == 77:
        pytest.skip("no filters of system calls here")
    assert done.stdout == "{None}\n", done.stdout + done.stderr


def test_what_is_larger_than_we_read_is_not_opened(store: CacheOfTheDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_LIMIT", 5000)
    assert store.entries()[ZE].defect == defects.LARGE


def test_what_was_written_just_now_may_not_be_whole_yet(store: CacheOfTheDriver) -> None:
    (store.root / ZE).write_bytes(b"\x7fELF")
    (scan,) = scanner.parts(store.found, datetime.now(UTC), (), None)
    (found,) = [one for one in scan.entries if one.id.key == ZE]
    assert (found.state, found.stamp) == (EntryState.UNFINISHED, "")


def test_an_entry_of_another_form_is_kept_as_it_is(store: CacheOfTheDriver) -> None:
    (store.root / ZE).write_bytes(b"CTNI" + bytes(100))
    found = store.entries()[ZE]
    assert (found.state, found.defect, found.kernels) == (EntryState.OK, None, ())
    (store.root / ZE).write_bytes(native(500))
    assert store.entries()[ZE].defect is None


# -- what is wrong with the store -------------------------------------------------------------------------------------


def test_a_sound_store_has_no_faults(store: CacheOfTheDriver) -> None:
    assert store.total == store.true_total
    assert store.faults() == ()


@pytest.mark.parametrize(
    ("surplus", "fault"),
    [(1, defects.TOTAL_HIGH), (1 << 30, defects.TOTAL_OVER), (-1, defects.TOTAL_LOW)],
)
def test_a_wrong_total_is_found_and_put_right_in_its_place(
    store: CacheOfTheDriver, surplus: int, fault: StoreFault
) -> None:
    store.say(store.true_total + surplus)
    inode = (store.root / layout.TOTAL).stat().st_ino
    assert store.faults() == (fault,)
    assert store.parts()[-1].faults == (fault,)
    assert doctor.clear(store.found.store, fault, NOW, None)
    assert (store.total, store.faults()) == (store.true_total, ())
    assert (store.root / layout.TOTAL).stat().st_ino == inode


def test_an_empty_total_is_zero_and_none_at_all_is_no_fault(store: CacheOfTheDriver) -> None:
    (store.root / layout.TOTAL).write_bytes(b"")
    assert store.faults() == (defects.TOTAL_LOW,)
    (store.root / layout.TOTAL).unlink()
    assert store.faults() == ()


@pytest.mark.parametrize(
    "how",
    [
        lambda path: path.mkdir(),
        os.mkfifo,
        lambda path: path.symlink_to("nothing"),
    ],
    ids=["directory", "pipe", "link"],
)
def test_what_stands_in_the_place_of_the_total_is_cleared(store: CacheOfTheDriver, how: Callable[[Path], None]) -> None:
    total = store.root / layout.TOTAL
    total.unlink()
    how(total)
    assert store.faults() == (defects.TOTAL_BLOCKED,)
    assert doctor.clear(store.found.store, defects.TOTAL_BLOCKED, NOW, None)
    assert not os.path.lexists(total)
    assert store.faults() == ()


def test_a_directory_that_holds_something_stays_in_its_place(store: CacheOfTheDriver) -> None:
    total = store.root / layout.TOTAL
    total.unlink()
    (total / "x").mkdir(parents=True)
    assert not doctor.clear(store.found.store, defects.TOTAL_BLOCKED, NOW, None)
    assert (total / "x").is_dir()


@pytest.mark.parametrize("name", ["3", "2/7", "2/5/2500000000000000.cl_cache"])
def test_what_stands_in_the_way_is_told_and_left(store: CacheOfTheDriver, name: str) -> None:
    if name.endswith("cache"):
        (store.root / name).mkdir()
    else:
        (store.root / name).write_bytes(b"")
    assert store.faults() == (defects.BLOCKED,)
    assert not doctor.clear(store.found.store, defects.BLOCKED, NOW, None)


def test_who_holds_the_lock_is_told_of(store: CacheOfTheDriver) -> None:
    with (store.root / layout.TOTAL).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert store.faults() == (defects.LOCKED,)
        store.say(1)
        assert not doctor.clear(store.found.store, defects.TOTAL_LOW, NOW, None)
        assert store.total == 1


def test_no_total_is_written_where_the_driver_may_count_another(store: CacheOfTheDriver) -> None:
    store.say(store.true_total + 1)
    (store.root / "0000000000000000.cl_cache").symlink_to("elsewhere")
    before = store.total
    assert store.faults() == ()
    assert not doctor.clear(store.found.store, defects.TOTAL_HIGH, NOW, None)
    assert store.total == before


def test_what_died_while_it_wrote_is_cleared_away_once_it_is_old(store: CacheOfTheDriver) -> None:
    left = store.root / "cl_cache.AbC123"
    left.write_bytes(b"x")
    assert store.faults() == (defects.LEFT_BEHIND,)
    assert doctor.faults(store.found, datetime.now(UTC), None) == ()
    assert doctor.clear(store.found.store, defects.LEFT_BEHIND, datetime.now(UTC), None)
    assert left.exists()
    assert doctor.clear(store.found.store, defects.LEFT_BEHIND, NOW, None)
    assert not left.exists()


def test_a_total_is_not_judged_where_the_driver_may_count_otherwise(store: CacheOfTheDriver, tmp_path: Path) -> None:
    store.say(1)
    (store.root / "9").mkdir()
    (store.root / "9" / "x.cl_cache").symlink_to("nothing")
    assert store.faults() == ()
    strange = tmp_path / "x.l0_cache"
    (store.root / "9" / "x.cl_cache").unlink()
    store.root.rename(strange)
    found = FoundStore(Store(neo.KIND.name, strange), StoreOrigin.FOUND, "test")
    assert doctor.faults(found, NOW, None) == ()


def test_what_is_mended_leaves_the_store(store: CacheOfTheDriver) -> None:
    assert doctor.mend(()) == {}


# -- taking out, and giving back --------------------------------------------------------------------------------------


def test_the_total_is_exact_after_each_entry(store: CacheOfTheDriver) -> None:
    for entry in store.entries().values():
        assert neo.KIND.remover.remove([entry], {entry.id: LABEL}) == {entry.id: True}
        assert store.total == store.true_total
    trash = remover.TRASH.trash(store.found.store)
    assert len(trash) == 5
    assert store.total == 0
    # Beside the store, where the driver neither counts nor evicts it.
    assert not [path.name for path in store.root.iterdir() if path.name.startswith(".")]
    assert (store.root.parent / f".xpucached.trash.{store.root.name}").is_dir()
    for one in trash:
        (back,) = remover.TRASH.restore(store.found.store, (one.ref,))
        assert back.key == one.key
        assert store.total == store.true_total
    assert len(store.entries()) == 5


def test_what_was_made_again_stays_and_counts_once(store: CacheOfTheDriver) -> None:
    entry = store.entries()[ZE]
    neo.KIND.remover.remove([entry], {entry.id: LABEL})
    (store.root / ZE).write_bytes(native(500))
    before = store.total
    (one,) = remover.TRASH.trash(store.found.store)
    assert remover.TRASH.restore(store.found.store, (one.ref,))[0].key == ZE
    assert (store.root / ZE).read_bytes() == native(500)
    assert store.total == before


@pytest.mark.parametrize(
    "how",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(native(500)[:300]),
        lambda path: path.mkdir(),
        os.mkfifo,
        lambda path: path.symlink_to("nothing"),
    ],
    ids=["empty", "cut", "directory", "pipe", "link"],
)
def test_what_is_in_the_trash_stays_there_where_its_place_holds_what_no_driver_loads(
    store: CacheOfTheDriver, how: Callable[[Path], object]
) -> None:
    entry = store.entries()[ZE]
    neo.KIND.remover.remove([entry], {entry.id: LABEL})
    how(store.root / ZE)
    before = store.total
    (one,) = remover.TRASH.trash(store.found.store)
    (told,) = remover.TRASH.restore(store.found.store, (one.ref,))
    assert told.key is None
    assert told.detail.startswith("what is in its place is damaged, or no file")
    assert remover.TRASH.trash(store.found.store) == (one,)
    assert store.total == before


def test_the_number_of_another_directory_is_not_changed_where_somebody_moves_that_of_an_entry(
    store: CacheOfTheDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = store.entries()[ZE]
    neo.KIND.remover.remove([entry], {entry.id: LABEL})
    (one,) = remover.TRASH.trash(store.found.store)
    (tmp_path / "away" / "below").mkdir(parents=True)
    theirs = tmp_path / "away" / layout.TOTAL
    theirs.write_bytes(b"their own")
    lockable, place = counting.lockable, (store.root / ZE).parent

    def moved(*given: int) -> bool | None:
        if place.exists():
            place.rename(tmp_path / "away" / "below" / place.name)
        return lockable(*given)

    monkeypatch.setattr(counting, "lockable", moved)
    remover.TRASH.restore(store.found.store, (one.ref,))
    assert theirs.read_bytes() == b"their own"


def test_nothing_comes_back_while_a_program_writes(store: CacheOfTheDriver) -> None:
    entry = store.entries()[ZE]
    neo.KIND.remover.remove([entry], {entry.id: LABEL})
    (one,) = remover.TRASH.trash(store.found.store)
    with (store.root / layout.TOTAL).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert remover.TRASH.restore(store.found.store, (one.ref,))[0].detail == "a program writes to the cache"
    assert remover.TRASH.restore(store.found.store, (one.ref,))[0].key == ZE


def test_what_is_back_is_told_so_also_where_the_disk_has_no_room_for_the_driver_s_number(
    store: CacheOfTheDriver, caplog: pytest.LogCaptureFixture
) -> None:
    entry = store.entries()[ZE]
    neo.KIND.remover.remove([entry], {entry.id: LABEL})
    (one,) = remover.TRASH.trash(store.found.store)
    # As a driver leaves it on a full disk.
    (store.root / layout.TOTAL).write_bytes(b"")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        (back,) = remover.TRASH.restore(store.found.store, (one.ref,))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (back.key, back.detail) == (ZE, "")
    assert remover.TRASH.trash(store.found.store) == ()
    assert "could not be put right" in caplog.text
    assert defects.TOTAL_LOW in store.faults()


def test_a_lock_that_is_held_is_not_waited_for(store: CacheOfTheDriver) -> None:
    entry = store.entries()[ZE]
    with (store.root / layout.TOTAL).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        began = time.monotonic()
        assert neo.KIND.remover.remove([entry]) == {entry.id: False}
        assert time.monotonic() - began < 60
    assert (store.root / ZE).exists()
    assert neo.KIND.remover.remove([entry]) == {entry.id: True}


@pytest.mark.parametrize("how", ["nothing", "pipe", "link", "short", "too small"])
def test_a_strange_total_harms_nobody(store: CacheOfTheDriver, tmp_path: Path, how: str) -> None:
    entry, total = store.entries()[ZE], store.root / layout.TOTAL
    (tmp_path / "other").write_bytes(b"\1" * 8)
    match how:
        case "short":
            total.write_bytes(b"")
        case "too small":
            store.say(1)
        case _:
            total.unlink()
    if how == "pipe":
        os.mkfifo(total)
    elif how == "link":
        total.symlink_to(tmp_path / "other")
    # Drivers follow a link and lock what it leads to, and we do not; where nobody can write, there is nothing to lock.
    assert neo.KIND.remover.remove([entry]) == {entry.id: how != "link"}
    assert (tmp_path / "other").read_bytes() == b"\1" * 8
    assert not total.is_file() or how == "link" or store.total == 0


def test_the_lock_is_held_for_one_entry_at_a_time(store: CacheOfTheDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[str] = []
    really = counting.add

    def add(descriptor: int, size: int) -> None:
        with (store.root / layout.TOTAL).open("rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append("held")
        really(descriptor, size)

    monkeypatch.setattr(counting, "add", add)
    entries = list(store.entries().values())
    neo.KIND.remover.remove(entries)
    assert len(held) == len(entries)
    with fs.root_directory(os.fspath(store.root)) as (root, _):
        assert counting.free(root)


def test_a_label_of_another_place_is_none_of_ours() -> None:
    assert remover._is_place(["2", "5", "25297eb0a9ff01c5.cl_cache"])
    assert remover._is_place(["25297eb0a9ff01c5.cl_cache"])
    assert not remover._is_place(["..", "..", "25297eb0a9ff01c5.cl_cache"])
    assert scanner.key("2/5/25297eb0a9ff01c5.cl_cache") == EntryKey(CL)


# -- hostile neighbours -----------------------------------------------------------------------------------------------


def test_a_number_is_not_written_to_a_file_that_has_other_names(store: CacheOfTheDriver, tmp_path: Path) -> None:
    entry, total, other = store.entries()[ZE], store.root / layout.TOTAL, tmp_path / "keys"
    neo.KIND.remover.remove([entry], {entry.id: LABEL})
    (trashed,) = remover.TRASH.trash(store.found.store)
    gone, other_entry = (trashed.ref,), store.entries()[CL]
    other.write_bytes(b"ssh-ed25519 of somebody")
    total.unlink()
    total.hardlink_to(other)

    assert doctor.faults(store.found, NOW, None) == (defects.TOTAL_OVER,)
    assert not doctor.clear(store.found.store, defects.TOTAL_OVER, NOW, None)
    assert neo.KIND.remover.remove([other_entry], {other_entry.id: LABEL}) == {other_entry.id: False}
    assert remover.TRASH.restore(store.found.store, gone)[0].key is None
    assert other.read_bytes() == b"ssh-ed25519 of somebody"
    assert (store.root / CL).exists()
    assert not (store.root / ZE).exists()


def test_a_lock_that_is_somebody_else_s_is_not_taken(store: CacheOfTheDriver) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(store.root / layout.TOTAL, 4711, -1)
    entry = store.entries()[ZE]
    assert neo.KIND.remover.remove([entry]) == {entry.id: False}


def test_who_may_write_is_put_right_on_the_file_that_was_looked_at(
    store: CacheOfTheDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total, secret = store.root / layout.TOTAL, tmp_path / "secret"
    secret.write_bytes(b"secret")
    secret.chmod(0o400)
    total.chmod(0o066)

    def swapped(*_: object) -> bool:
        total.unlink()
        total.symlink_to(secret)
        return True

    monkeypatch.setattr(doctor, "_in_the_way", swapped)
    doctor.clear(store.found.store, defects.TOTAL_BLOCKED, NOW, None)
    assert secret.stat().st_mode & 0o777 == 0o400


def test_where_the_lock_leads_is_not_asked_of_another_file_system(store: CacheOfTheDriver, tmp_path: Path) -> None:
    total = store.root / layout.TOTAL
    total.unlink()
    with silent_filesystem.mounted(tmp_path / "silent") as silent:
        total.symlink_to(silent / "never")
        answer = deadlines.ask("the store", store.faults, 5)
    assert answer == ()


def test_a_variable_of_thousands_of_digits_is_a_number() -> None:
    assert asked({"HOME": "/h", "NEO_CACHE_PERSISTENT": "9" * 10_000}) is not None
    assert asked({"HOME": "/h", "NEO_CACHE_PERSISTENT": "0" * 10_000}) is None
    assert asked({"HOME": "/h", "NEO_CACHE_PERSISTENT": "\N{ARABIC-INDIC DIGIT ONE}"}) is None


def test_a_lock_that_is_held_for_ever_is_waited_for_once(
    store: CacheOfTheDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    entries = list(store.entries().values())
    with (store.root / layout.TOTAL).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert set(neo.KIND.remover.remove(entries).values()) == {False}
    assert len(entries) > 1
    assert waited
    assert sum(waited) < 0.05, "a twentieth of a second"


def test_what_is_being_written_is_not_cleared_away_however_old_it_looks(store: CacheOfTheDriver) -> None:
    left = store.root / "cl_cache.AbC123"
    left.write_bytes(b"x")
    with (store.root / layout.TOTAL).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert not doctor.clear(store.found.store, defects.LEFT_BEHIND, NOW, None)
    assert left.exists()


def test_of_what_was_left_behind_so_many_are_cleared_away_at_a_time(
    store: CacheOfTheDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_MOST_LITTER", 2)
    for number in range(5):
        (store.root / f"cl_cache.AbC12{number}").write_bytes(b"x")
    looks = 0
    while store.faults():
        looks += 1
        doctor.clear(store.found.store, defects.LEFT_BEHIND, NOW, None)
    assert looks == 3


def test_a_total_beyond_all_numbers_stops_no_restoring(store: CacheOfTheDriver) -> None:
    entry = store.entries()[ZE]
    neo.KIND.remover.remove([entry], {entry.id: LABEL})
    (one,) = remover.TRASH.trash(store.found.store)
    store.say((1 << 64) - 1)
    assert remover.TRASH.restore(store.found.store, (one.ref,))[0].key == ZE
    assert store.total == (1 << 64) - 1
    assert doctor.clear(store.found.store, defects.TOTAL_OVER, NOW, None)
    assert store.total == store.true_total
