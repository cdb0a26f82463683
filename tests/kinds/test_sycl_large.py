"""Leaves and levels of any size: read in parts of bounded size, and judged as if they were read at once."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from tests.support import catalogs
from xpucached.catalog.scans import known_entries, record_scan
from xpucached.catalog.stores import known_keys
from xpucached.domain.names import Architecture, EntryKey
from xpucached.domain.stores import FoundStore, KnownEntry, Scan, Store, StoreOrigin
from xpucached.kinds import known_cursor, sycl
from xpucached.kinds.sycl import reader, scanner, slots
from xpucached.kinds.sycl import scan_state as looking

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.support.builders import SyclStore

pytestmark = pytest.mark.flow

BOUND = 10


@pytest.fixture
def store(sycl_store: SyclStore) -> SyclStore:
    """A leaf of many slots, some the same, some damaged, one missing; more leaves of its image; intermediate code."""
    slots = {number: sycl_store.add(slot=number, size=300 + number) for number in range(40) if number != 30}
    for number, made in slots.items():
        if number % 7 == 3:
            made.bin.write_bytes(b"")
        elif number % 7 == 4:
            made.src.unlink()
    leaf = slots[0].src.parent
    for number in range(15):
        other = leaf.parent.with_name(str(int(leaf.parent.name) // 10 + number)) / leaf.name
        other.mkdir(parents=True)
        shutil.copy(leaf / "0.src", other / "0.src")
        shutil.copy(leaf / "0.bin", other / "0.bin")
    for number in range(12):
        sycl_store.add_intermediate("A" * 40 + f"{number:03}=")
    return sycl_store


def parts(root: Path, known: Iterable[KnownEntry] = (), *, quick: bool = False) -> list[Scan]:
    found = FoundStore(Store(sycl.NAME, root), StoreOrigin.FOUND, "test")
    return list(sycl.scanner.parts(found, datetime.now(UTC) + timedelta(minutes=1), known, None, quick=quick))


def verdicts(some: Iterable[Scan]) -> dict[EntryKey, tuple[object, ...]]:
    return {one.id.key: (one.state, one.defect, one.detail, one.stamp) for part in some for one in part.entries}


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_cursor, "PART", BOUND)
    monkeypatch.setattr(slots, "KEPT", BOUND)


def test_a_large_leaf_is_judged_in_parts_as_at_once(store: SyclStore, monkeypatch: pytest.MonkeyPatch) -> None:
    once = verdicts(parts(store.root))
    assert {defect for _, defect, _, _ in once.values()} >= {
        sycl.defects.DUPLICATE,
        sycl.defects.BIN_EMPTY,
        sycl.defects.SRC_MISSING,
        None,
    }
    assert len(once) == 39 + 15 + 12

    monkeypatch.setattr(known_cursor, "PART", BOUND)
    monkeypatch.setattr(slots, "KEPT", BOUND)
    found = parts(store.root)

    assert max(len(one.entries) for one in found) <= BOUND
    assert sum(len(one.entries) for one in found) == len(once)
    assert verdicts(found) == once


@pytest.mark.usefixtures("bounded")
def test_a_whole_look_has_the_entries_of_all_its_parts(store: SyclStore) -> None:
    found = FoundStore(Store(sycl.NAME, store.root), StoreOrigin.FOUND, "test")
    assert len(sycl.scanner.scan(found, datetime.now(UTC), {}, None).entries) == 39 + 15 + 12


@pytest.mark.usefixtures("bounded")
def test_what_is_kept_of_each_slot_is_bounded(store: SyclStore) -> None:
    leaf = next(store.root.glob("[0-9]*/*/*/*/39.bin")).parent
    descriptor = os.open(leaf, os.O_RDONLY)
    try:
        large = slots.Slots(descriptor)
        assert len(list(large)) == len(large) == 39
        assert large._kept == {}
    finally:
        os.close(descriptor)


@pytest.mark.usefixtures("bounded")
def test_what_is_unchanged_comes_in_parts_and_nothing_vanishes(store: SyclStore, tmp_path: Path) -> None:
    with closing(catalogs.fresh(tmp_path / "state" / "catalog.sqlite")) as catalog:
        for part in parts(store.root):
            catalog.write(record_scan, part, lambda _: Architecture("x86_64"))
        of = Store(sycl.NAME, store.root)
        before = catalog.read(known_keys, of)
        for quick in (False, True):
            found = parts(store.root, known_entries(catalog, of), quick=quick)
            assert max(len(one.unchanged) + len(one.entries) for one in found) <= BOUND
            assert sum(len(one.unchanged) for one in found) == len(before)
            for part in found:
                catalog.write(record_scan, part, lambda _: Architecture("x86_64"))
            assert catalog.read(known_keys, of) == before
        for path in store.root.glob("[0-9]*/*/*/*/27[._]*"):
            path.unlink()
        for part in parts(store.root, known_entries(catalog, of), quick=True):
            catalog.write(record_scan, part, lambda _: Architecture("x86_64"))
        assert len(before - catalog.read(known_keys, of)) == 1


@pytest.mark.usefixtures("bounded")
def test_a_large_leaf_that_changes_meanwhile_is_read_again(store: SyclStore, monkeypatch: pytest.MonkeyPatch) -> None:
    path = next(store.root.glob("[0-9]*/*/*/*/25.bin"))
    read, again = reader._ordinary, [True]

    def change(*arguments: object, **more: object) -> object:
        slot = arguments[3]
        if isinstance(slot, slots.Slot) and slot.name == "20" and again:
            again.pop()
            path.write_bytes(b"")
        return read(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(reader, "_ordinary", change)
    found = parts(store.root)

    assert again == []
    assert max(len(one.entries) for one in found) <= BOUND
    monkeypatch.undo()
    assert verdicts(found) == verdicts(parts(store.root))


def test_few_heavy_names_are_handed_over_at_a_time(store: SyclStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking.ScanState, "HEAVY", 1)
    found = parts(store.root)
    named = [one for part in found for one in part.entries if one.kernels]
    assert len(named) > BOUND
    assert all(sum(bool(one.kernels) for one in part.entries) <= 1 for part in found)


@pytest.mark.usefixtures("bounded")
def test_a_quick_look_goes_by_all_images_but_those_in_which_a_part_ended(sycl_store: SyclStore) -> None:
    image = sycl_store.add().src.parents[2]
    for number in range(1, 35):
        shutil.copytree(image, image.with_name(str(int(image.name) // 10 + number)))

    found = [one for part in parts(sycl_store.root) for one in part.entries]

    assert len(found) == 35
    assert sum(one.place is None for one in found) == 35 // BOUND
    known = sorted((KnownEntry(one.id.key, one.stamp, one.place) for one in found), key=lambda one: one.key)
    again = parts(sycl_store.root, known, quick=True)
    assert sum(len(one.unchanged) for one in again) == 35 // BOUND
    assert not any(one.entries for one in again)


@pytest.mark.parametrize("rested", [True, False])
def test_a_slot_that_comes_while_its_leaf_is_read_is_found(
    sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch, *, rested: bool
) -> None:
    leaf = sycl_store.add().src.parent
    read, list_again = reader._ordinary, slots.names_in
    coming, listed = [1], []

    def come(*arguments: object, **more: object) -> object:
        beside = sycl_store.root / "beside"
        while coming:
            beside.touch()
            if beside.stat().st_ctime_ns > leaf.stat().st_ctime_ns:
                sycl_store.add(slot=coming.pop())
        return read(*arguments, **more)  # type: ignore[arg-type]

    def note(directory: int, pattern: re.Pattern[str]) -> set[str]:
        listed.append(directory)
        return list_again(directory, pattern)

    monkeypatch.setattr(reader, "_ordinary", come)
    monkeypatch.setattr(scanner, "names_in", note)
    if rested:
        monkeypatch.setattr(scanner, "_TICK", 0)
    assert {key.rpartition("/")[2] for key in verdicts(parts(sycl_store.root))} == {"0", "1"}
    # Of a directory that was at rest before, its time says that nothing came.
    listed.clear()
    assert len(verdicts(parts(sycl_store.root))) == 2
    assert bool(listed) is not rested
