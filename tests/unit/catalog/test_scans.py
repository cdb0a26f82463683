"""What a look at a store leaves in the catalog: counts, what stays, and what the next look need not read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from tests.support import catalogs
from tests.unit.catalog.test_catalog import HOUR, NEW, NOW, OLD, OTHER, STORE, architecture, entry, scan
from xpucached.catalog import scans
from xpucached.catalog.builds import record_build
from xpucached.catalog.defects import known_defects
from xpucached.catalog.entries import all_entries, defective_entries
from xpucached.catalog.scans import known_entries, record_scan, trust_digests, trusted_digests
from xpucached.catalog.stores import all_stores, known_keys, last_thorough_scan
from xpucached.domain.defects import CHANGED, Defect, Effect
from xpucached.domain.names import EntryKey
from xpucached.domain.plans import Built
from xpucached.domain.stores import Delta, Entry, EntryState, KnownEntry, Scan, StoreState, UnchangedEntry
from xpucached.domain.targets import Origin, Target
from xpucached.kinds import sycl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from xpucached.catalog import Catalog

KEYS: Final = tuple(EntryKey(f"{number}/0") for number in range(5))


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    opened = catalogs.fresh(tmp_path / "catalog.sqlite")
    yield opened
    opened.close()


def look(catalog: Catalog, of: Scan) -> Delta:
    return catalog.write(record_scan, of, architecture)


def keys(catalog: Catalog) -> list[str]:
    return [one.entry.id.key for one in catalog.read(all_entries)]


@pytest.mark.parametrize(
    "facts",
    [
        {"stamp": "later"},
        {"state": EntryState.UNFINISHED},
        {"state": EntryState.DEFECTIVE, "defect": sycl.defects.BIN_EMPTY},
    ],
)
def test_what_looks_different_has_changed(catalog: Catalog, facts: dict[str, object]) -> None:
    first = entry("a/0")
    look(catalog, scan(first, entry("b/0")))
    assert look(catalog, scan(replace(first, **facts), entry("b/0"))) == Delta(0, 1, 0, 2, 8192)
    assert look(catalog, scan(replace(first, **facts), entry("b/0"))) == Delta(0, 0, 0, 2, 8192)


def test_another_defect_is_a_change(catalog: Catalog) -> None:
    for defect, changed in ((sycl.defects.BIN_EMPTY, 0), (sycl.defects.BIN_TRUNCATED, 1)):
        damaged = entry("a/0", state=EntryState.DEFECTIVE, defect=defect)
        assert look(catalog, scan(damaged)).changed == changed


def test_a_look_at_a_part_takes_away_only_what_it_names(catalog: Catalog) -> None:
    look(catalog, scan(entry("a/0"), entry("b/0"), entry("c/0")))
    look(catalog, scan(entry("a/0", OTHER), store=OTHER))
    part = scan(entry("d/0"), vanished=(EntryKey("a/0"), EntryKey("unknown/0")))
    assert look(catalog, part) == Delta(1, 0, 1, 3, 3 * 4096)
    assert catalog.read(known_keys, STORE) == {"b/0", "c/0", "d/0"}
    assert catalog.read(known_keys, OTHER) == {"a/0"}


def test_a_store_that_could_not_be_read_says_nothing_of_its_entries(catalog: Catalog) -> None:
    look(catalog, scan(entry("a/0")))
    blind = scan(entry("b/0"), state=StoreState.UNREADABLE, vanished=(EntryKey("a/0"),))
    assert look(catalog, blind) == Delta(0, 0, 0, 1, 4096)
    assert keys(catalog) == ["a/0"]


def test_however_many_there_are_each_is_recorded(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "_BATCH", 2)
    slots = [entry(f"leaf/{number}") for number in range(5)]
    others = [entry(key) for key in KEYS]
    assert look(catalog, scan(*others, *slots)) == Delta(10, 0, 0, 10, 10 * 4096)
    later = NOW + HOUR
    seen = tuple(UnchangedEntry(one.id.key, later, 7) for one in others)
    assert look(catalog, scan(*slots, unchanged=seen)) == Delta(0, 0, 0, 10, 10 * 4096)
    accessed = {one.entry.id.key: one.entry.accessed for one in catalog.read(all_entries)}
    assert accessed == {**dict.fromkeys(KEYS, later), **dict.fromkeys((one.id.key for one in slots), None)}
    places = {one.key: one.place for one in known_entries(catalog, STORE)}
    assert places == {**dict.fromkeys(KEYS, 7), **dict.fromkeys((one.id.key for one in slots), None)}


@pytest.mark.parametrize("page", [2, 4, 5, 6])
def test_what_is_known_is_read_page_by_page_to_the_end(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(scans, "_PAGE", page)
    look(catalog, scan(*(entry(key, place=int(key[0])) for key in reversed(KEYS))))
    look(catalog, scan(entry("other/0", OTHER), store=OTHER))
    assert list(known_entries(catalog, STORE)) == [KnownEntry(key, f"stamp-{key}", int(key[0])) for key in KEYS]


def test_what_may_change_in_silence_is_read_again_wherever_it_lies(catalog: Catalog) -> None:
    locked = entry("locked/0", state=EntryState.DEFECTIVE, defect=sycl.defects.STALE_LOCK, place=9)
    look(catalog, scan(locked, entry("young/0", state=EntryState.UNFINISHED, place=9)))
    assert {(one.stamp, one.place) for one in known_entries(catalog, STORE)} == {(None, None)}


def test_a_thorough_look_is_one_at_every_file_of_a_store_that_could_be_read(catalog: Catalog) -> None:
    assert catalog.read(last_thorough_scan, STORE) is None
    for thorough, state, at, known in (
        (False, StoreState.OK, NOW, None),
        (True, StoreState.UNREADABLE, NOW, None),
        (True, StoreState.OK, NOW + HOUR, NOW + HOUR),
        (False, StoreState.OK, NOW + 2 * HOUR, NOW + HOUR),
        (True, StoreState.MISSING, NOW + 3 * HOUR, NOW + HOUR),
    ):
        look(catalog, scan(state=state, at=at, thorough=thorough))
        assert catalog.read(last_thorough_scan, STORE) == known
    assert catalog.read(last_thorough_scan, OTHER) is None


def test_files_that_belong_to_no_entry_are_as_many_as_were_counted_last(catalog: Catalog) -> None:
    for counted, known in ((None, 0), (7, 7), (None, 7), (0, 0)):
        look(catalog, scan(foreign=counted))
        assert [one.foreign for one in catalog.read(all_stores)] == [known]


def test_what_a_scan_says_of_defects_is_known_from_then_on(catalog: Catalog) -> None:
    uncovered = Defect("test-uncovered", Effect.DEAD, "it stands alone")
    covering = Defect("test-covering", Effect.HARMLESS, "it stands behind another", whole=True, uncovered=uncovered)
    look(catalog, scan(entry("a/0", state=EntryState.DEFECTIVE, defect=covering)))
    known = catalog.read(known_defects)
    assert (known["test-covering"], known["test-uncovered"]) == (covering, uncovered)
    assert known["test-other"].effect is Effect.UNKNOWN


def changed(catalog: Catalog, key: str) -> Entry:
    """Let an entry's program change in place; give it as it is then."""
    look(catalog, scan(entry(key, digest="one", source="7.1"), vanished=()))
    look(catalog, scan(entry(key, digest="two", source="7.1", stamp="later", place=8), vanished=()))
    return next(one.entry for one in catalog.read(all_entries) if one.entry.id.key == key)


def test_what_is_trusted_again_is_read_again_and_then_no_longer_damaged(catalog: Catalog) -> None:
    one, other = changed(catalog, "a/0"), changed(catalog, "b/0")
    look(catalog, scan(entry("whole/0"), vanished=()))
    assert catalog.read(trusted_digests) == {one.id: "one", other.id: "one"}
    catalog.write(trust_digests, {})
    catalog.write(trust_digests, {one.id: "two", entry("a/0", OTHER).id: "three", entry("none/0").id: "two"})
    stamps = {known.key: (known.stamp, known.place) for known in known_entries(catalog, STORE)}
    assert stamps == {"a/0": ("", None), "b/0": ("later", 8), "whole/0": ("stamp-whole/0", None)}
    look(catalog, scan(*(entry(key, digest="two", source="7.1") for key in ("a/0", "b/0")), vanished=()))
    assert catalog.read(trusted_digests) == {other.id: "one"}
    # The source that it was seen with stays: a third program beside it is damage.
    look(catalog, scan(entry("a/0", digest="three", source="7.1", stamp="last"), vanished=()))
    assert catalog.read(trusted_digests) == {one.id: "two", other.id: "one"}


def test_of_one_that_changed_the_first_whole_copy_stands_for_it_and_no_other(catalog: Catalog) -> None:
    first = entry("a/0", digest="one", source="1")
    copy = replace(first, state=EntryState.DEFECTIVE, defect=sycl.defects.DUPLICATE, detail="of slot 0")
    second, third = (replace(copy, id=entry(f"a/{slot}").id, source=f"{slot}+") for slot in (1, 2))
    look(catalog, scan(first, second, third))
    look(catalog, scan(replace(first, digest="two", stamp="later"), second, third))
    defects = [one.entry.defect for one in catalog.read(all_entries)]
    assert defects == [CHANGED, sycl.defects.SHADOWED, sycl.defects.DUPLICATE]


def test_an_entry_is_for_what_it_says_as_far_as_there_is_room(catalog: Catalog) -> None:
    observed = entry("b/0", environment=NEW, observed=True)
    look(catalog, scan(entry("a/0"), observed, entry("c/0", environment=None)))
    found: dict[str, Target | None] = {one.entry.id.key: one.entry.environment for one in catalog.read(all_entries)}
    assert found == {"a/0": OLD, "b/0": NEW, "c/0": None}
    assert [one.origin and one.origin.value for one in catalog.read(all_entries)] == ["declared", "observed", None]


def test_beside_what_is_damaged_those_come_along_whose_use_decides_about_it(catalog: Catalog) -> None:
    locked = {"state": EntryState.DEFECTIVE, "defect": sycl.defects.STALE_LOCK}
    empty = {"state": EntryState.DEFECTIVE, "defect": sycl.defects.BIN_EMPTY}
    damaged = [replace(entry(key), **locked) for key in ("b/0", "flat")] + [replace(entry("d/0"), **empty)]
    others = [entry(key) for key in ("a/0", "b/1", "b/10", "bc/0", "d/1", "flat2")]
    look(catalog, scan(*damaged, *others))
    look(catalog, scan(entry("b/7", OTHER), store=OTHER))
    found = {one.entry.id.key for one in catalog.read(defective_entries)}
    assert found == {"b/0", "b/1", "b/10", "d/0", "flat"}


def steps(connection: sa.Connection, do: Callable[[], object]) -> int:
    """Return how many steps the database takes for something, in hundreds."""
    taken = 0

    def step() -> None:
        nonlocal taken
        taken += 1

    driver = connection.connection.driver_connection
    assert driver is not None
    driver.set_progress_handler(step, 100)
    try:
        do()
    finally:
        driver.set_progress_handler(None, 0)
    return taken


def test_what_stands_beside_many_locks_is_looked_for_once(catalog: Catalog) -> None:
    """A program that dies at each start leaves a lock each time, and who may write to a store a hundred thousand."""
    locked = {"state": EntryState.DEFECTIVE, "defect": sycl.defects.STALE_LOCK}

    def taken(count: int) -> int:
        look(catalog, scan(*(replace(entry(f"b/{number}"), **locked) for number in range(count)), entry("b/whole")))
        assert len(catalog.read(defective_entries)) == count + 1
        return catalog.read(lambda connection: steps(connection, lambda: defective_entries(connection)))

    assert taken(1000) < 15 * taken(100)


@pytest.mark.parametrize("built", [True, False])
def test_a_part_of_a_store_takes_no_longer_for_what_was_looked_at_before_it(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, *, built: bool
) -> None:
    monkeypatch.setattr(scans, "_BATCH", 20)
    every = [entry(f"{number:03}/0", environment=OLD if built else None) for number in range(410)]
    for one in every if built else ():
        catalog.write(record_build, Built(one.id, OLD, Origin.REBUILT, "driver", 1, 2.0, one.digest or ""), NOW)
    taken: list[int] = []

    def count(connection: sa.Connection, some: list[Entry]) -> None:
        part = scan(*some, vanished=())
        taken.append(steps(connection, lambda: record_scan(connection, part, architecture)))

    for start in range(0, len(every), 20):
        catalog.write(count, every[start : start + 20])
        found = catalog.read(all_entries)
        assert {(one.origin, one.cost) for one in found} == {(Origin.REBUILT, 2.0) if built else (None, None)}
    assert taken[-2] < 2 * taken[1]
