"""Looking at a SYCL store bit by bit, and quickly: by its directories, where nothing was added or taken."""

from __future__ import annotations

import os
import random
import shutil
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, SupportsIndex

import pytest
from msgspec.structs import replace

from tests.support import catalogs
from tests.support.builders import Slot, SyclStore, native
from tests.support.users import mere_user
from xpucached.catalog import Catalog
from xpucached.catalog.entries import all_entries
from xpucached.catalog.figures import catalog_summary
from xpucached.catalog.scans import known_entries, record_scan
from xpucached.catalog.stores import known_keys, last_thorough_scan
from xpucached.domain.names import EntryKey
from xpucached.domain.plans import IndexedEntry
from xpucached.domain.stores import EntryState, FoundStore, KnownEntry, Scan, Store, StoreOrigin, StoreState
from xpucached.kinds import fs, sycl
from xpucached.kinds.sycl import reader
from xpucached.kinds.sycl.unread import Changed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from xpucached.domain.stores import Entry
    from xpucached.kinds.sycl.scan_state import ScanState
    from xpucached.kinds.sycl.slots import Slots

LATER: Final = timedelta(minutes=1)
"""Looks in these tests are made from a minute ahead: the directories of a second ago are trusted by then."""

TICK: Final = 0.02
"""Seconds.  Kernels before 6.13 note changes by a clock that ticks every 4 ms or slower."""


def found(store: SyclStore) -> FoundStore:
    return FoundStore(Store(sycl.NAME, store.root), StoreOrigin.FOUND, "test")


def known(part: Scan) -> list[KnownEntry]:
    return sorted((KnownEntry(one.id.key, one.stamp, one.place) for one in part.entries), key=lambda one: one.key)


def look(store: SyclStore, rows: list[KnownEntry], *, quick: bool = True) -> Scan:
    time.sleep(TICK)
    *_, last = sycl.scanner.parts(found(store), datetime.now(UTC) + LATER, rows, None, quick=quick)
    return last


@pytest.fixture
def slots(sycl_store: SyclStore) -> list[Slot]:
    """Return three images: one with two slots in a leaf, and one with two leaves."""
    return [
        sycl_store.add("_ZTS1a"),
        sycl_store.add("_ZTS1b"),
        sycl_store.add("_ZTS1b", slot=1, binary=native(300)),
        sycl_store.add("_ZTS1c"),
        sycl_store.add("_ZTS1c", options="-O1"),
    ]


def test_where_nothing_changed_no_directory_of_an_image_is_opened(
    sycl_store: SyclStore, slots: list[Slot], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = known(look(sycl_store, []))
    assert len(rows) == len(slots)
    assert None not in {row.place for row in rows}
    opened: list[str] = []
    enter = fs.enter

    def entered(parent: int, name: str, device: int, owner: int) -> tuple[int, os.stat_result]:
        opened.append(name)
        return enter(parent, name, device, owner)

    monkeypatch.setattr(fs, "enter", entered)

    again = look(sycl_store, rows)

    assert opened == [slots[0].leaf.parents[2].name]
    assert (again.entries, again.unchanged, again.vanished) == ((), (), ())
    assert again.foreign is None
    assert not again.thorough
    whole = look(sycl_store, rows, quick=False)
    assert {one.key for one in whole.unchanged} == {row.key for row in rows}
    assert {one.place for one in whole.unchanged} == {row.place for row in rows}
    assert whole.thorough
    assert whole.foreign == 0


@pytest.mark.parametrize("depth", [2, 3])
def test_a_quick_look_asks_for_nothing_that_a_link_leads_to(
    sycl_store: SyclStore, slots: list[Slot], monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    # A file system may lie there that never answers.
    rows = known(look(sycl_store, []))
    link = sycl_store.root.joinpath(*rows[0].key.split("/")[:depth])
    link.rename(sycl_store.root.parent / "aside")
    link.symlink_to(sycl_store.root.parent / "aside")
    asked: list[str] = []
    real = os.stat

    def noting(path: str, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        asked.append(f"{path}/")
        return real(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "stat", noting)
    gone = look(sycl_store, rows)
    assert set(gone.vanished or ()) == {row.key for row in rows if row.key.startswith(rows[0].key.rpartition("/")[0])}
    behind = "/".join(rows[0].key.split("/")[1:depth]) + "/"
    assert not [path for path in asked if path.startswith(behind) and path != behind]


def test_a_leaf_that_changes_while_it_is_read_is_read_again_and_those_before_it_stay(
    sycl_store: SyclStore, slots: list[Slot], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = look(sycl_store, []).entries
    read: list[tuple[str, ...]] = []
    reading = reader.read_slots

    def changing(
        look: ScanState, leaf: int, path: tuple[str, ...], found: Slots, place: int | None
    ) -> Iterator[Entry | None]:
        read.append(path)
        yield from reading(look, leaf, path, found, place)
        if len(read) == 3:
            raise Changed

    monkeypatch.setattr(sycl.scanner, "read_slots", changing)
    assert look(sycl_store, []).entries == before
    assert (len(before), len(read), read[2]) == (len(slots), 5, read[3])


def test_what_vanished_is_handed_over_in_parts_too(sycl_store: SyclStore, slots: list[Slot]) -> None:
    rows = known(look(sycl_store, []))
    there = {row.key for row in rows}
    many = 2500
    gone = [
        EntryKey(f"{key}")
        for place in ("0/0", "9999999999999999999/0")
        for key in map(f"{place}/0/0/{{}}".format, range(many))
    ]
    every = sorted((*rows, *(KnownEntry(key, "stamp") for key in gone)), key=lambda row: row.key)
    parts = list(sycl.scanner.parts(found(sycl_store), datetime.now(UTC) + LATER, every, None))

    assert sorted(key for part in parts for key in part.vanished or ()) == sorted(gone)
    assert {one.key for part in parts for one in part.unchanged} == there
    assert len(slots) == len(there)
    assert max(len(part.vanished or ()) for part in parts) <= 1000


@pytest.mark.parametrize("quick", [True, False])
def test_what_a_link_leads_to_is_asked_each_time(sycl_store: SyclStore, tmp_path: Path, *, quick: bool) -> None:
    slot, aside = sycl_store.add(), tmp_path / "aside"
    slot.bin.rename(aside)
    slot.bin.symlink_to(aside)
    rows = known(look(sycl_store, []))
    assert [one.defect for one in look(sycl_store, rows, quick=quick).entries] == [sycl.defects.LINK]
    # Nothing of the store changes with that.
    aside.unlink()
    assert [one.defect for one in look(sycl_store, rows, quick=quick).entries] == [sycl.defects.DANGLING_LINK]


def test_directories_of_a_moment_ago_are_not_trusted(sycl_store: SyclStore) -> None:
    sycl_store.add()
    (part,) = sycl.scanner.parts(found(sycl_store), datetime.now(UTC), [], None)
    assert [one.place for one in part.entries] == [None]
    rows = known(part)

    (again,) = sycl.scanner.parts(found(sycl_store), datetime.now(UTC), rows, None, quick=True)

    assert [one.place for one in again.unchanged] == [None]


@pytest.mark.parametrize(
    "change",
    [
        "image",
        "constants",
        "options",
        "slot",
        "slot gone",
        "leaf gone",
        "image gone",
        "device gone",
        "replaced",
        "moved",
    ],
)
def test_what_programs_do_is_seen(sycl_store: SyclStore, slots: list[Slot], change: str) -> None:
    rows = known(look(sycl_store, []))
    a, _, b1, c, _ = slots
    added, gone = set(), set()
    time.sleep(TICK)
    if change == "image":
        added = {sycl_store.add("_ZTS1d")}
    elif change == "constants":
        added = {sycl_store.add("_ZTS1a", constants=b"12345678")}
    elif change == "options":
        added = {sycl_store.add("_ZTS1a", options="-g")}
    elif change == "slot":
        added = {sycl_store.add("_ZTS1a", slot=1)}
    elif change == "slot gone":
        for path in (b1.bin, b1.src, b1.access_time):
            path.unlink()
        gone = {b1}
    elif change == "leaf gone":
        shutil.rmtree(c.leaf)
        gone = {c}
    elif change == "image gone":
        shutil.rmtree(a.leaf.parents[1])
        gone = {a}
    elif change == "device gone":
        shutil.rmtree(a.leaf.parents[2])
        gone = set(slots)
    elif change == "replaced":
        other = a.bin.with_name("other")
        other.write_bytes(b"torn")
        other.rename(a.bin)
    else:
        a.leaf.rename(a.leaf.with_name("7"))
        gone, added = {a}, {Slot(a.leaf.with_name("7"), 0)}

    def key(slot: Slot) -> str:
        return str(slot.leaf.relative_to(sycl_store.root) / str(slot.number))

    seen = look(sycl_store, rows)

    assert {key(one) for one in added} <= {one.id.key for one in seen.entries}
    assert set(seen.vanished or ()) == {key(one) for one in gone}
    if change == "replaced":
        assert [one.state for one in seen.entries] == [EntryState.DEFECTIVE]


def test_what_is_written_in_its_place_is_seen_thoroughly_only(sycl_store: SyclStore, slots: list[Slot]) -> None:
    rows = known(look(sycl_store, []))
    slots[0].cut(slots[0].bin, 5)

    assert look(sycl_store, rows).entries == ()
    (entry,) = look(sycl_store, rows, quick=False).entries
    assert entry.state is EntryState.DEFECTIVE


@pytest.mark.parametrize("level", ["constants", "options"])
def test_what_is_written_into_a_directory_that_was_emptied_is_seen(sycl_store: SyclStore, level: str) -> None:
    sycl_store.add()
    constants, options = (b"12345678", "") if level == "constants" else (b"", "-g")
    slot = sycl_store.add(constants=constants, options=options)
    rows = known(look(sycl_store, []))
    for path in (slot.bin, slot.src, slot.access_time):
        path.unlink()
    if level == "constants":
        slot.leaf.rmdir()
    emptied = look(sycl_store, rows)
    (gone,) = emptied.vanished or ()
    places = {one.key: one.place for one in emptied.unchanged}
    rows = [replace(row, place=places[row.key]) for row in rows if row.key != gone]

    # None of the directories that lead to the other entry tells of this.
    sycl_store.add(constants=constants, options=options)
    assert [one.id.key for one in look(sycl_store, rows).entries] == [gone]


@pytest.mark.parametrize("mode", [0o000, 0o444])
@pytest.mark.parametrize("level", [0, 1, 2, 3, "ext_kernel_compiler"])
def test_what_may_not_be_read_has_not_vanished(
    sycl_store: SyclStore, slots: list[Slot], level: int | str, mode: int
) -> None:
    sycl_store.add_intermediate()
    rows = known(look(sycl_store, []))
    parts = slots[3].leaf.relative_to(sycl_store.root).parts
    shut = sycl_store.root.joinpath(*parts[: level + 1] if isinstance(level, int) else (level,))
    before = shut.stat().st_mode
    try:
        shut.chmod(mode)
        with mere_user():
            seen = [look(sycl_store, rows, quick=quick) for quick in (True, False)]
    finally:
        shut.chmod(before)

    assert [(one.state, one.vanished) for one in seen] == [(StoreState.OK, ())] * 2
    for one in seen:
        (note,) = one.notes
        assert note.startswith("directories that may not be read")
        assert set(one.shut_in) == {
            row.key for row in rows if row.key.startswith(f"{shut.relative_to(sycl_store.root)}/")
        }
    slots[3].bin.unlink()
    again = look(sycl_store, rows)
    assert len(again.entries) == 1
    assert not again.notes


class Compared(str):
    """A key that counts with how many others it is compared."""

    __slots__ = ()
    others = 0

    def startswith(self, prefix: str | tuple[str, ...], *more: SupportsIndex | None) -> bool:
        Compared.others += len(prefix) if isinstance(prefix, tuple) else 1
        return super().startswith(prefix, *more)


def test_an_entry_is_not_compared_with_each_directory_that_may_not_be_read(sycl_store: SyclStore) -> None:
    leaves = [sycl_store.add(options=f"-D{number}").leaf for number in range(50)]
    rows = [replace(row, key=EntryKey(Compared(row.key))) for row in known(look(sycl_store, []))]
    for leaf in leaves[1:]:
        leaf.chmod(0)
    try:
        with mere_user():
            seen = look(sycl_store, rows, quick=False)
    finally:
        for leaf in leaves:
            leaf.chmod(0o755)
    assert (len(seen.unchanged), len(seen.shut_in), seen.vanished) == (1, 49, ())
    assert Compared.others < 200


@pytest.mark.parametrize("mode", [0o000, 0o444])
def test_what_may_not_be_read_is_not_taken_for_removed(sycl_store: SyclStore, mode: int) -> None:
    slot = sycl_store.add()
    entries = look(sycl_store, []).entries
    try:
        slot.leaf.chmod(mode)
        with mere_user():
            assert not any(sycl.remover.remove(entries).values())
    finally:
        slot.leaf.chmod(0o755)
    assert slot.bin.exists()


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_link_in_the_place_of_a_directory_is_no_part_of_the_store(
    sycl_store: SyclStore, tmp_path: Path, level: int
) -> None:
    leaf = sycl_store.add().leaf
    rows = known(look(sycl_store, []))
    place = sycl_store.root.joinpath(*leaf.relative_to(sycl_store.root).parts[: level + 1])
    # The same directories, and the same numbers but those of the parent: only a link now leads there.
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")

    seen = look(sycl_store, rows)

    assert seen.entries == ()
    assert seen.unchanged == ()
    assert seen.vanished == (rows[0].key,)


@pytest.mark.flow
def test_a_store_comes_in_parts_in_the_order_of_its_keys(sycl_store: SyclStore) -> None:
    for number in range(2300):
        sycl_store.add(f"_ZTS{number}", device=f"GPU {number % 2}")
    parts = list(sycl.scanner.parts(found(sycl_store), datetime.now(UTC), [], None))
    keys = [one.id.key for part in parts for one in part.entries]
    assert len(parts) == 3
    assert len(set(keys)) == 2300
    assert keys == sorted(keys)
    assert max(len(part.entries) for part in parts) <= 1001
    assert [part.thorough for part in parts] == [False, False, True]
    assert [part.foreign for part in parts] == [None, None, 0]

    # Those that are not there are passed by, wherever they would have been.
    strange = [EntryKey(key) for key in (*(f"{key}/9" for key in keys[:3]), "0/0/0/0/0", "zzz")]
    rows = sorted([*known(parts[0]), *map(KnownEntry, strange)], key=lambda one: one.key)
    gone = [
        key
        for part in sycl.scanner.parts(found(sycl_store), datetime.now(UTC), rows, None)
        for key in part.vanished or ()
    ]
    assert sorted(gone) == sorted(strange)


def test_a_store_that_is_away_or_no_store_is_one_part(sycl_store: SyclStore, tmp_path: Path) -> None:
    (part,) = sycl.scanner.parts(found(sycl_store), datetime.now(UTC), [], None)
    assert (part.state, part.vanished) == (StoreState.MISSING, ())
    (tmp_path / "file").touch()
    (part,) = sycl.scanner.parts(found(SyclStore(tmp_path / "file")), datetime.now(UTC), [], None)
    assert part.state is StoreState.NOT_A_DIRECTORY


def test_run_time_compiled_programs_are_always_looked_at(sycl_store: SyclStore) -> None:
    sycl_store.add()
    sycl_store.add_intermediate()
    rows = known(look(sycl_store, []))

    seen = look(sycl_store, rows)

    assert [one.key for one in seen.unchanged] == [rows[1].key]
    shutil.rmtree(sycl_store.root / "ext_kernel_compiler")
    assert look(sycl_store, rows).vanished == (rows[1].key,)


# -- into the catalog -----------------------------------------------------------------------------------------------


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    one = catalogs.fresh(tmp_path / "catalog.sqlite")
    yield one
    one.close()


def record(catalog: Catalog, store: SyclStore, *, quick: bool) -> None:
    at = datetime.now(UTC) + LATER
    for part in sycl.scanner.parts(found(store), at, known_entries(catalog, found(store).store), None, quick=quick):
        catalog.write(record_scan, part, sycl.scanner.architecture)


def facts(entries: tuple[IndexedEntry, ...]) -> dict[str, tuple[object, ...]]:
    return {
        one.entry.id.key: (one.entry.stamp, one.entry.state, one.entry.defect, one.entry.size, one.entry.digest)
        for one in entries
    }


def write(store: SyclStore, chance: random.Random) -> Slot:
    """Write some slot, as the runtime does: one that was there becomes another file, and is not written into."""
    kernel, device = f"_ZTS{chance.randint(0, 9)}x", f"GPU {chance.randint(0, 1)}"
    options, constants, slot = chance.choice(["", "-O1"]), chance.choice([b"", b"1"]), chance.randint(0, 2)
    made = store.add(
        kernel,
        device=device,
        options=options,
        constants=constants,
        slot=slot,
        access_time=False,
        without=("bin", "src"),
    )
    for path in (made.bin, made.src):
        path.unlink(missing_ok=True)
    binary = native(chance.randint(100, 400))
    return store.add(kernel, device=device, options=options, constants=constants, slot=slot, binary=binary)


@pytest.mark.flow
@pytest.mark.parametrize("seed", range(4))
def test_quick_looks_give_the_catalog_that_a_first_look_gives(
    sycl_store: SyclStore, tmp_path: Path, catalog: Catalog, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 - a test's own luck, the same each time
    sycl_store.root.mkdir()
    there: list[Slot] = []
    for step in range(25):
        for _ in range(chance.randint(0, 4)):
            what = chance.random()
            if what < 0.6 or not there:
                there.append(write(sycl_store, chance))
            elif what < 0.8:
                one = there.pop(chance.randrange(len(there)))
                for path in (one.src, one.bin, one.access_time):
                    path.unlink(missing_ok=True)
            elif what < 0.9:
                shutil.rmtree(chance.choice(there).leaf.parents[chance.randint(0, 2)], ignore_errors=True)
            else:
                slot = chance.choice(there)
                if slot.leaf.exists() and not slot.lock.exists():
                    slot.take_lock(age=900)
        time.sleep(TICK)
        record(catalog, sycl_store, quick=True)
        fresh = catalogs.fresh(tmp_path / f"fresh{step}.sqlite")
        try:
            record(fresh, sycl_store, quick=False)
            assert facts(catalog.read(all_entries)) == facts(fresh.read(all_entries))
        finally:
            fresh.close()
    assert catalog.read(catalog_summary).entries


@pytest.mark.flow
def test_what_a_catalog_knows_comes_in_the_order_of_the_keys(sycl_store: SyclStore, catalog: Catalog) -> None:
    for number in range(4100):
        leaf = sycl_store.root / f"{number % 7}" / f"{number % 9}" / "1" / f"{number}"
        leaf.mkdir(parents=True)
        (leaf / "0.src").touch()
    record(catalog, sycl_store, quick=False)

    rows = list(known_entries(catalog, found(sycl_store).store))

    assert len(rows) == 4100
    assert [row.key for row in rows] == sorted(row.key for row in rows)
    assert catalog.read(known_keys, found(sycl_store).store) == {row.key for row in rows}


def test_it_is_known_when_every_file_was_looked_at(sycl_store: SyclStore, catalog: Catalog) -> None:
    sycl_store.add()
    store = found(sycl_store).store
    assert catalog.read(last_thorough_scan, store) is None
    record(catalog, sycl_store, quick=True)
    assert catalog.read(last_thorough_scan, store) is None
    record(catalog, sycl_store, quick=False)
    first = catalog.read(last_thorough_scan, store)
    assert first is not None
    record(catalog, sycl_store, quick=True)
    assert catalog.read(last_thorough_scan, store) == first
    sycl_store.root.rename(sycl_store.root.with_name("away"))
    record(catalog, sycl_store, quick=False)
    assert catalog.read(last_thorough_scan, store) == first
