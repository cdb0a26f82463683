"""What all kinds share, by itself: labels of the trash, what was known of a store, whole directories."""

from __future__ import annotations

import json
import os
import stat
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.unit.catalog.test_catalog import OLD, entry
from xpucached.domain.names import EntryKey
from xpucached.domain.plans import EvictReason
from xpucached.domain.stores import EntryState, FoundStore, KnownEntry, Store, StoreOrigin
from xpucached.domain.trash import TrashLabel
from xpucached.kinds import folders, known_cursor, sycl, trash_labels
from xpucached.kinds.known_cursor import KnownCursor
from xpucached.kinds.walking import StoreWalk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from xpucached.domain.defects import Defect

AT: Final = datetime(2026, 5, 4, 12, tzinfo=UTC)
FILES: Final = {".bin": (7, 8)}


# -- labels -----------------------------------------------------------------------------------------------------------


def loads(**changes: object) -> trash_labels.Label:
    """Read a label, changed in so far."""
    label = trash_labels.label_of(entry("leaf/0"), TrashLabel(AT, EvictReason.UNUSED, "why"), 0o750, FILES)
    values = json.loads(label.dumps()) | changes
    content = json.dumps({name: value for name, value in values.items() if value is not None})
    return trash_labels.loads(content.encode(), lambda path: path[0] == "leaf", (".bin", ".src"))


def test_a_label_comes_back_as_it_was_written() -> None:
    label = loads()
    assert (label.key, label.leaf, label.slot) == ("leaf/0", "leaf", "0")
    assert (label.at, label.reason, label.detail, label.quarantined) == (AT, EvictReason.UNUSED, "why", False)
    assert (label.device, label.driver, label.mode, label.files) == (OLD.device, OLD.toolchain, 0o750, FILES)


@pytest.mark.parametrize(
    "changes",
    [
        {"key": None},
        {"key": 1},
        {"key": "other/0"},
        {"files": {".lock": [1, 2]}},
        {"files": {".bin": ["1", 2]}},
        {"files": {".bin": [1, "2"]}},
        {"files": {".bin": [1]}},
        {"files": []},
        {"at": "yesterday"},
        {"reason": "whim"},
        {"detail": 1},
        {"quarantined": None},
        {"mode": "x"},
        {"device": None},
    ],
)
def test_what_is_no_label_of_ours_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(**changes)


def test_texts_of_a_label_are_bounded_and_so_are_its_rights() -> None:
    long = "x" * 2001
    label = loads(detail=long, device=long, driver=long, mode=0o7777)
    assert {len(one) for one in (label.detail, label.device, label.driver)} == {2000}
    assert label.mode == 0o777
    written = trash_labels.label_of(entry("leaf/0"), TrashLabel(AT, EvictReason.UNUSED, long), 0, {})
    assert len(json.loads(written.dumps())["detail"]) == 2000


@pytest.mark.parametrize(
    ("defect", "reason", "quarantined"),
    [
        (None, EvictReason.DEFECTIVE, False),
        (sycl.defects.BIN_EMPTY, EvictReason.DEFECTIVE, True),
        (sycl.defects.BIN_EMPTY, EvictReason.ASKED, True),
        (sycl.defects.BIN_EMPTY, EvictReason.UNUSED, False),
        (sycl.defects.DUPLICATE, EvictReason.DEFECTIVE, False),
    ],
)
def test_what_is_damaged_itself_is_kept_as_evidence(
    defect: Defect | None, reason: EvictReason, *, quarantined: bool
) -> None:
    state = EntryState.OK if defect is None else EntryState.DEFECTIVE
    damaged = entry("leaf/0", defect=defect, state=state, detail="0 bytes")
    label = trash_labels.label_of(damaged, TrashLabel(AT, reason, "why"), 0, {})
    assert (label.quarantined, label.detail) == (quarantined, "why" if defect is None else "why (0 bytes)")
    plain = replace(damaged, detail="", environment=None)
    label = trash_labels.label_of(plain, TrashLabel(AT, reason, "why"), 0, {})
    assert (label.detail, label.device, label.driver) == ("why", "", "")


def test_a_label_that_was_not_written_yet_gives_nothing_back() -> None:
    assert (trash_labels.BLANK.quarantined, trash_labels.BLANK.files, trash_labels.BLANK.mode) == (True, {}, 0)


# -- what was known of a store ----------------------------------------------------------------------------------------


def cursor(*keys: str) -> KnownCursor:
    return KnownCursor(KnownEntry(EntryKey(key), "stamp") for key in keys)


def taken(known: KnownCursor, prefix: str) -> list[str]:
    return [one.key for one in known.take(prefix)]


def test_what_lies_before_a_directory_was_passed_and_what_is_below_is_taken() -> None:
    known = cursor("a/0", "b/0", "b/1", "c/0", "d/0")
    assert taken(known, "b/") == []
    assert known.pass_before("b/")
    assert (known.passed, taken(known, "b/"), taken(known, "b/")) == (["a/0"], ["b/0", "b/1"], [])
    assert known.pass_before("c/0")
    assert known.passed == ["a/0"]
    assert known.pass_before("")
    assert known.passed == ["a/0", "c/0", "d/0"]
    assert known.pass_before("")


def test_what_was_passed_is_handed_over_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_cursor, "PART", 2)
    known = cursor("a", "b", "c", "d")
    assert not known.pass_before("")
    assert known.passed == ["a", "b"]
    assert not known.pass_before("")
    known.passed.clear()
    assert known.pass_before("")
    assert known.passed == ["c", "d"]


# -- directories ------------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    found = tmp_path / "place"
    found.mkdir()
    return found


@pytest.fixture
def here(place: Path) -> Iterator[int]:
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def walked(here: int) -> list[str]:
    return [name for _, name, _ in folders.walk(here, os.fstat(here).st_dev)]


def test_a_directory_comes_after_all_that_is_in_it(here: int, place: Path) -> None:
    (place / "a" / "b").mkdir(parents=True)
    (place / "a" / "b" / "c").touch()
    assert walked(here) == ["c", "b", "a"]


def test_so_many_names_and_so_deep_are_walked_and_no_more(
    here: int, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "a" / "b").mkdir(parents=True)
    monkeypatch.setattr(folders, "_MOST", 2)
    monkeypatch.setattr(folders, "_DEPTH", 2)
    assert walked(here) == ["b", "a"]
    monkeypatch.setattr(folders, "_MOST", 1)
    with pytest.raises(OSError, match="holds more than 1 names"):
        walked(here)
    monkeypatch.undo()
    monkeypatch.setattr(folders, "_DEPTH", 1)
    with pytest.raises(OSError, match="nested deeper than 1"):
        walked(here)


def test_an_entry_has_directories_16_deep_and_100000_names(
    here: int, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deepest = place.joinpath(*"abcdefghijklmnop")
    deepest.mkdir(parents=True)
    assert len(walked(here)) == 16
    (deepest / "q").mkdir()
    with pytest.raises(OSError, match="nested deeper than 16"):
        walked(here)
    one = (here, "file", place.stat())
    monkeypatch.setattr(folders, "_walk", lambda *_: [one] * 100_000)
    assert len(walked(here)) == 100_000
    monkeypatch.setattr(folders, "_walk", lambda *_: [one] * 100_001)
    with pytest.raises(OSError, match="more than 100000 names"):
        walked(here)


def test_a_file_with_several_names_is_counted_as_its_share(here: int, place: Path) -> None:
    (place / "a").mkdir()
    (place / "a" / "file").write_bytes(bytes(8192))
    blocks = [path.lstat().st_blocks * 512 for path in (place / "a", place / "a" / "file")]
    device = os.fstat(here).st_dev
    once = folders.allocated(here, device)
    assert once >= blocks[1] > 0
    (place / "b").hardlink_to(place / "a" / "file")
    assert folders.allocated(here, device) == once
    # One of its names lies elsewhere.
    (place / "b").rename(place.parent / "b")
    assert folders.allocated(here, device) == once - blocks[1] // 2


def test_removed_is_all_that_is_in_it_and_nothing_where_there_is_none(here: int, place: Path) -> None:
    (place / "a" / "b").mkdir(parents=True)
    (place / "a" / "b" / "c").touch()
    (place / "a" / "link").symlink_to(place)
    (place / "other").touch()
    device = os.fstat(here).st_dev
    folders.remove(here, "a", device)
    folders.remove(here, "a", device)
    assert [path.name for path in place.iterdir()] == ["other"]


def test_a_file_goes_and_of_directories_an_empty_one(here: int, place: Path) -> None:
    for name in ("file", "full/file"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).touch()
    (place / "empty").mkdir()
    for name in ("file", "empty", "gone"):
        folders.unlink(here, name)
    with pytest.raises(OSError, match="not empty"):
        folders.unlink(here, "full")
    assert [path.name for path in place.iterdir()] == ["full"]


def test_rights_are_added_to_a_file_that_is_ours_alone(here: int, place: Path) -> None:
    ours, shared = place / "ours", place / "shared"
    for path in (ours, shared):
        path.touch(0o200)
    (place / "again").hardlink_to(shared)
    (place / "folder").mkdir()
    (place / "link").symlink_to(ours)
    allowed = {name: folders.allow(here, name, stat.S_IRUSR) for name in ("ours", "shared", "folder", "link")}
    assert allowed == {"ours": True, "shared": False, "folder": False, "link": False}
    assert [stat.S_IMODE(path.stat().st_mode) for path in (ours, shared)] == [0o600, 0o200]


def test_what_tells_64_mib_of_names_fills_a_part(tmp_path: Path) -> None:
    found = FoundStore(Store(sycl.NAME, tmp_path), StoreOrigin.FOUND, "test")
    walk = StoreWalk(found, AT, KnownCursor(()), quick=False, root=-1, status=tmp_path.stat())
    options = "x" * (16 << 20)
    for number in range(3):
        walk.add(replace(entry(f"leaf/{number}"), options=options))
    assert not walk.full
    walk.add(replace(entry("leaf/3"), constants=options))
    assert walk.full


def test_a_part_has_a_thousand_entries(tmp_path: Path) -> None:
    rows = [KnownEntry(EntryKey(f"{number:04}")) for number in range(1000)]
    assert KnownCursor(rows).pass_before("")
    rows.append(KnownEntry(EntryKey("1000")))
    cursor = KnownCursor(rows)
    assert not cursor.pass_before("")
    assert len(cursor.passed) == 1000
    cursor = KnownCursor(rows)
    assert not cursor.leave_unread("")
    assert len(cursor.shut_in) == 1000


@pytest.mark.parametrize(("links", "characters", "noted"), [(3, 1025, True), (3, 1024, False), (2, 1025, False)])
def test_a_file_of_three_names_tells_more_than_a_thousand_characters_once(
    tmp_path: Path, links: int, characters: int, *, noted: bool
) -> None:
    found = FoundStore(Store(sycl.NAME, tmp_path), StoreOrigin.FOUND, "test")
    walk = StoreWalk(found, AT, KnownCursor(()), quick=False, root=-1, status=tmp_path.stat())
    status = os.stat_result((0, 7, 8, links, *[0] * 6))
    walk.note_told(EntryKey("leaf/0"), status, characters)
    assert walk.linked == ({(8, 7): "leaf/0"} if noted else {})
    walk.linked = {(0, number): EntryKey("") for number in range(100_000 - 1)}
    for number in range(2):
        walk.note_told(EntryKey("leaf/0"), os.stat_result((0, number, 8, 3, *[0] * 6)), 1025)
    assert len(walk.linked) == 1
