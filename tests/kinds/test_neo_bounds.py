"""The bounds of what is read of the GPU driver's cache, each at its edge, and what of a store the driver counts."""

from __future__ import annotations

import os
import struct
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pytest

from tests.kinds.test_neo_readers import IP, RECORDED, notes
from tests.kinds.test_neo_recorder import HOST
from tests.support.builders import native
from xpucached.binaries import zebin
from xpucached.domain.host import DriverFile
from xpucached.domain.names import EntryKey
from xpucached.domain.plans import NoRecipe
from xpucached.domain.stores import EntryId, FoundStore, Lookups, Store, StoreOrigin
from xpucached.kinds import fs, listing
from xpucached.kinds.neo import (
    counting,
    defects,
    discovery,
    layout,
    level_zero,
    reader,
    rebuilder,
    recorder,
    remover,
    scanner,
    totals,
    trace,
)
from xpucached.kinds.neo.targets import NAME

if TYPE_CHECKING:
    from pathlib import Path

COMPAT: Final = b".note.intelgt.compat"
TRACE: Final = (RECORDED / "24c2875a139227f0.trace").read_bytes()
NOW: Final = datetime(2026, 5, 4, 12, tzinfo=UTC)
ENTRY: Final = "25297eb0a9ff01c5.cl_cache"


# -- notes and sections of an entry -----------------------------------------------------------------------------------


def test_so_many_notes_are_read_and_no_more() -> None:
    others = [(b"GNU\0", 1, b"")] * 62
    number = (b"IntelGT\0", 6, struct.pack("<I", IP))
    assert zebin.read(native(300, (COMPAT, notes(*others, number)))).ip == IP
    with pytest.raises(zebin.NotesError):
        zebin.read(native(300, (COMPAT, notes(*others, number, number))))


def test_the_last_note_need_not_be_filled_up_and_none_goes_beyond_its_section() -> None:
    whole = notes((b"IntelGT\0", 4, b"1.2\0xyz"))
    assert zebin.read(native(300, (COMPAT, whole[:-1]))).version == "1.2"
    with pytest.raises(zebin.NotesError):
        zebin.read(native(300, (COMPAT, whole[:-2])))
    # A head that is cut short.
    with pytest.raises(zebin.NotesError):
        zebin.read(native(300, (COMPAT, whole + bytes(11))))


def test_each_fact_has_its_own_note_and_the_first_of_a_kind_counts() -> None:
    rows = [(kind, struct.pack("<I", value)) for kind, value in ((1, 7), (2, 8), (6, IP), (1, 9), (3, 10))]
    read = zebin.read(native(300, (COMPAT, notes(*((b"IntelGT\0", kind, content) for kind, content in rows)))))
    assert (read.family, read.core, read.ip, read.version) == (7, 8, IP, "")


def test_texts_end_at_a_zero_and_at_their_bounds() -> None:
    def read(version: bytes, options: bytes) -> zebin.Zebin:
        made = notes((b"IntelGT\0", 4, version))
        return zebin.read(native(300, (COMPAT, made), (b".misc.buildOptions", options)))

    short = read(b"1.2\0more", b"-g\0more")
    assert (short.version, short.options) == ("1.2", "-g")
    long = read(b"1" * 65, b"o" * ((64 << 10) + 1))
    assert (len(long.version), len(long.options)) == (64, 64 << 10)


def test_the_image_is_that_of_the_entry_and_of_no_other_form() -> None:
    spirv = b"\x03\x02\x23\x07" + bytes(16)
    whole = native(300, (b".other", b"x"), (b".spv", spirv))
    assert zebin.image(whole) == spirv
    assert zebin.read(whole).input_size == len(spirv)
    assert zebin.image(native(300, (b".other", b"x"))) == b""
    assert zebin.image(b"\x7fELF\x01" + whole[5:]) == b""
    assert zebin.image(b"text") == b""


def test_an_ip_version_has_three_parts() -> None:
    assert zebin.ip_text(0xFFFFFFFF) == "1023.255.63"
    assert zebin.ip_text(1 << 22 | 1 << 14 | 1) == "1.1.1"
    assert zebin.ip_text(1 << 13 | 1 << 6) == "0.0.0"


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_a_total_is_written_as_far_as_the_driver_counts() -> None:
    most = (1 << 64) - 1
    for size, written in ((0, 0), (1, 1), (most, most), (most + 1, most)):
        assert totals.total(totals.total_bytes(size)) == written


@pytest.mark.parametrize(("hits", "misses", "form"), [((1 << 62) - 1, 0, 1), (0, (1 << 62) - 1, 1)])
def test_counters_are_believed_as_far_as_anybody_can_have_counted(hits: int, misses: int, form: int) -> None:
    assert totals.lookups(struct.pack("<QQQ", hits, misses, form)) == Lookups(hits, misses)
    assert totals.lookups(struct.pack("<QQQ", hits, misses, form + 2)) is None
    assert totals.lookups(struct.pack("<QQQ", 1 << 62, misses, form)) is None
    assert totals.lookups(struct.pack("<QQQ", hits, 1 << 62, form)) is None


# -- traces -----------------------------------------------------------------------------------------------------------


def test_a_trace_may_be_as_long_as_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "LONGEST", len(TRACE))
    assert trace.read(TRACE).options == b"-cl-mad-enable"
    monkeypatch.setattr(trace, "LONGEST", len(TRACE) - 1)
    with pytest.raises(ValueError, match="too long"):
        trace.read(TRACE)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="too long"):
        trace.read(bytes((1 << 20) + 1))


def _compiler(text: bytes, size: int, modified: int) -> bytes:
    begin, end = TRACE.index(b"igcRevision ----\n") + 17, TRACE.index(b"---- input")
    return TRACE[:begin] + text + b"\n  libSize=%d\n  libMTime=%d\n" % (size, modified) + TRACE[end:]


def test_a_compiler_is_its_size_its_time_and_what_it_says_of_itself() -> None:
    most, first = (1 << 64) - 1, -(1 << 63)
    assert trace.read(_compiler(b"(null)", most, first)).compiler == trace.CompilerFile(most, first, None)
    assert trace.read(_compiler(b"2.40", 0, -first - 1)).compiler == trace.CompilerFile(0, -first - 1, b"2.40")
    for size, modified in ((most + 1, 0), (0, first - 1), (0, -first)):
        with pytest.raises(ValueError, match="too large"):
            trace.read(_compiler(b"(null)", size, modified))


def test_16_inputs_are_remembered_and_then_none() -> None:
    maker, read = trace.KeyMaker(), trace.read(TRACE)
    remembered = []
    for number in range(18):
        maker.key(read, bytes([number]), IP)
        remembered.append(len(maker._begun))
    assert remembered == [*range(1, 17), 1, 2]


def test_only_the_zero_that_the_driver_added_to_a_text_goes() -> None:
    spirv = b"\x03\x02\x23\x07\0\0"
    assert trace.source(b"kernel\0\0") == b"kernel\0"
    assert trace.source(b"kernel") == b"kernel"
    assert trace.source(spirv) == spirv


# -- options through Level Zero ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "made"),
    [
        ("-ze-opt-level", "-ze-opt-level"),
        ("-a=1 -ze-opt-level", "-a=1 -ze-opt-level"),
        ("-ze-opt-level=", "-ze-opt-level= -ze-opt-level=O"),
        ("-ze-opt-level=2 ", "-ze-opt-level=O2"),
        ("-a -ze-opt-level=2 ", "-a -ze-opt-level=O2"),
        ("-ze-opt-level=2 -a ", "-a -ze-opt-level=O2"),
        ("-ze-opt-disable -ze-opt-disable", "-cl-opt-disable -cl-opt-disable"),
    ],
)
def test_the_driver_moves_the_level_to_the_end(options: str, made: str) -> None:
    assert level_zero.rewritten(options) == made


def test_what_the_driver_moved_among_its_own_options_is_put_back_once() -> None:
    large = "-cl-intel-256-GRF-per-thread"
    assert level_zero.given("-g", large) == "-g-ze-opt-large-register-file"
    assert level_zero.given(f"-g {large}", large) == f"-g {large}"
    assert level_zero.given("-g", f"{large}-more") == "-g"
    assert level_zero.given("-ze-opt-level=O2", "") == "-ze-opt-level=2 "


# -- what the driver counts -------------------------------------------------------------------------------------------


def counted(root: Path) -> counting.Counted:
    with fs.root_directory(os.fspath(root)) as (descriptor, _):
        return counting.count(descriptor, "/cache", NOW)


def put(root: Path, name: str, size: int = 10, age: float = 0.0) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    os.utime(path, (NOW.timestamp() - age,) * 2)


def test_entries_of_both_layouts_are_counted_and_nothing_that_lies_deeper(tmp_path: Path) -> None:
    for name, size in ((ENTRY, 1), (f"2/5/{ENTRY}", 2), (f"2/5/9/{ENTRY}", 4), ("2/notes", 8), ("2/x.cl_cache", 16)):
        put(tmp_path, name, size)
    found = counted(tmp_path)
    assert (found.size, found.entries, found.flat, found.sure, found.blocked) == (1 + 2 + 16, 2, 1, True, False)


def test_what_has_the_word_of_an_entry_in_a_directory_is_counted_by_the_driver(tmp_path: Path) -> None:
    put(tmp_path, "a.cl_cache/x/file", 4)
    found = counted(tmp_path)
    assert (found.size, found.entries, found.sure) == (4, 0, True)


@pytest.mark.parametrize(
    ("name", "blocked"), [("2", True), ("2/5", True), ("x", False), ("x/5", False), ("2/5/9", False), ("22", False)]
)
def test_a_file_blocks_where_the_driver_needs_a_directory(tmp_path: Path, name: str, *, blocked: bool) -> None:
    put(tmp_path, name)
    assert counted(tmp_path).blocked == blocked


def test_a_link_in_the_place_of_a_directory_may_lead_on_and_a_directory_in_that_of_an_entry_blocks(
    tmp_path: Path,
) -> None:
    (tmp_path / "2").symlink_to("elsewhere")
    assert (counted(tmp_path).blocked, counted(tmp_path).sure) == (False, True)
    (tmp_path / ENTRY).mkdir()
    assert (counted(tmp_path).blocked, counted(tmp_path).sure) == (True, True)


def test_a_link_with_the_name_of_an_entry_may_be_counted_otherwise(tmp_path: Path) -> None:
    (tmp_path / "notes").symlink_to("elsewhere")
    assert counted(tmp_path).sure
    (tmp_path / ENTRY).symlink_to("elsewhere")
    assert not counted(tmp_path).sure


def test_what_is_half_written_is_left_behind_after_ten_minutes_and_only_at_the_top(tmp_path: Path) -> None:
    put(tmp_path, "cl_cache.young1", age=600)
    put(tmp_path, "2/cl_cache.deeper", age=3600)
    put(tmp_path, "cl_cache.toolong", age=3600)
    assert counted(tmp_path).litter == []
    put(tmp_path, "cl_cache.older1", age=601)
    assert counted(tmp_path).litter == ["cl_cache.older1"]


def test_traces_at_the_top_are_counted(tmp_path: Path) -> None:
    for name in ("25297eb0a9ff01c5.trace", "25297eb0a9ff01c5.input", "2/5/25297eb0a9ff01c5.trace", "notes.trace"):
        put(tmp_path, name)
    assert (counted(tmp_path).traces, counted(tmp_path).entries) == (2, 0)


def test_the_driver_s_number_goes_up_and_down_and_not_below_zero(tmp_path: Path) -> None:
    path = tmp_path / layout.TOTAL
    path.write_bytes(totals.total_bytes(100))
    for size, total in ((20, 120), (-50, 70), (-70, 0), (-1, 0), (1, 1)):
        with path.open("r+b") as file:
            counting.add(file.fileno(), size)
        assert totals.total(path.read_bytes()) == total


def test_options_of_any_length_are_read_in_one_go() -> None:
    # To begin anew at each level would not end within the test's time limit.
    options = "-ze-opt-level=O" * 100_000 + " "
    assert level_zero.given(options, "") is None
    assert level_zero.given("-a -ze-opt-level=O1-ze-opt-level=O2", "") == "-a -ze-opt-level=1-ze-opt-level=O2"


# -- what is read, and what is not ------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [0, 1])
def test_an_entry_of_64_mib_is_read(tmp_path: Path, more: int) -> None:
    path = tmp_path / ENTRY
    path.touch()
    os.truncate(path, (64 << 20) + more)
    with fs.root_directory(os.fspath(tmp_path)) as (root, _):
        assert reader._unread(root, ENTRY, path.stat()) == ((defects.LARGE, "") if more else None)


def test_a_larger_one_holds_no_image_that_is_compiled_again(tmp_path: Path) -> None:
    (tmp_path / ENTRY).touch()
    os.truncate(tmp_path / ENTRY, (64 << 20) + 1)
    assert rebuilder._image(EntryId(Store(NAME, tmp_path), EntryKey(ENTRY))) is NoRecipe.UNREADABLE


@pytest.mark.parametrize(("age", "young"), [(-1, False), (0, True), (9.5, True), (10, False)])
def test_what_was_written_ten_seconds_ago_is_not_being_written(tmp_path: Path, age: float, *, young: bool) -> None:
    put(tmp_path, ENTRY, age=age)
    assert reader._young((tmp_path / ENTRY).stat(), NOW) is young


def test_a_file_that_claims_more_than_can_be_is_counted_as_far_as_the_catalog_counts(tmp_path: Path) -> None:
    status = os.stat_result(
        (0, 0, 0, 1, 0, 0, 1 << 63, 0, 0, 0),
        {"st_blocks": 1 << 60, "st_atime_ns": 0, "st_mtime_ns": 0, "st_ctime_ns": 0},
    )
    entry = reader._described(Store(NAME, tmp_path), EntryKey(ENTRY), status, None, NOW)
    assert (entry.size, entry.allocated) == ((1 << 63) - 1,) * 2


@pytest.mark.parametrize(("seconds", "trusted"), [(1.9, False), (2.1, True)])
def test_a_directory_is_trusted_two_seconds_after_its_last_change(
    tmp_path: Path, seconds: float, *, trusted: bool
) -> None:
    put(tmp_path, f"2/5/{ENTRY}")
    (tmp_path / "2" / "5" / ENTRY).write_bytes(native(300))
    now = datetime.fromtimestamp((tmp_path / "2" / "5").stat().st_ctime + seconds, UTC)
    found = FoundStore(Store(NAME, tmp_path), StoreOrigin.FOUND, "test")
    (entry,) = (entry for part in scanner.parts(found, now, (), None) for entry in part.entries)
    assert (entry.place is not None) is trusted


def test_10000_files_that_were_left_behind_are_named_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put(tmp_path / "cache", "cl_cache.AbC123", age=3600)
    with os.scandir(tmp_path / "cache") as listed:
        (one,) = listed
    monkeypatch.setattr(listing, "entries", lambda _: [one] * 10_001)
    assert len(counted(tmp_path).litter) == 10_000


def test_of_a_directory_64_names_tell_whether_it_is_a_store(tmp_path: Path) -> None:
    for number in range(5):
        for below in "0123456789abcdef":
            put(tmp_path, f"{number}/{below}/x", 0)
    assert len(discovery._directories(str(tmp_path))) == 64
    for number in range(65):
        put(tmp_path, f"0/0/{number}", 0)
    assert len(discovery._names(str(tmp_path / "0" / "0"))) == 64


@pytest.mark.parametrize(("size", "known"), [(32 * 255, False), (32 * 255 + 1, True)])
def test_in_256_pieces_of_a_driver_a_variable_s_name_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, *, known: bool
) -> None:
    monkeypatch.setattr(discovery, "_PIECE", 32)
    put(tmp_path, "libze_intel_gpu.so.1", size)
    path = tmp_path / "libze_intel_gpu.so.1"
    assert discovery._knows_switch(DriverFile(path, path, None, size, NOW, None, None)) is known


@pytest.mark.parametrize("target", ["folder", "file", "nothing"])
def test_a_link_is_taken_for_a_link_wherever_it_leads(tmp_path: Path, target: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    store = tmp_path / "store"
    store.mkdir()
    for name in ("2", layout.TOTAL):
        (store / name).symlink_to(tmp_path / target)
    assert not counted(store).blocked
    with fs.root_directory(os.fspath(store)) as (descriptor, _):
        assert counting.lockable(descriptor) is None
        assert listing.exists(descriptor, "2")


@pytest.mark.parametrize("target", ["folder", "file", "nothing"])
def test_a_link_in_the_place_of_an_entry_is_all_that_goes(tmp_path: Path, target: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.iterdir())
    store = tmp_path / "store"
    store.mkdir()
    (store / ENTRY).symlink_to(tmp_path / target)
    with fs.root_directory(os.fspath(store)) as (descriptor, _):
        assert recorder._Pass(descriptor, frozenset(), HOST, 0, 0)._find(ENTRY.partition(".")[0]) == ENTRY
    found = FoundStore(Store(NAME, store), StoreOrigin.FOUND, "test")
    (entry,) = (entry for part in scanner.parts(found, NOW, (), None) for entry in part.entries)
    assert remover.REMOVER.remove([entry]) == {entry.id: True}
    assert list(store.iterdir()) == []
    assert sorted(tmp_path.iterdir()) == sorted([*before, store])


def test_what_a_driver_keeps_is_not_looked_for_behind_a_link(tmp_path: Path) -> None:
    put(tmp_path / "elsewhere", ENTRY)
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "2").symlink_to(tmp_path / "elsewhere")
    assert not rebuilder._keeps_any(tmp_path / "place")


def test_where_no_trace_can_be_read_no_compiler_is_another_one(tmp_path: Path) -> None:
    assert not recorder.is_of_other_compiler(Store(NAME, tmp_path / "none"), HOST)
