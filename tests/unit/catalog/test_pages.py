"""Pages of entries, whichever way they are found, and what is noted of entries that are known."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.support import catalogs
from tests.unit.catalog.test_catalog import CPU, HOUR, NEW, NOW, OLD, OTHER, STORE, architecture, entry, scan
from xpucached.catalog import entries
from xpucached.catalog.entries import (
    all_entries,
    entries_by_id,
    entry_page,
    find_entry,
    forget_entries,
    note_costs,
    note_restored,
    note_uses,
)
from xpucached.catalog.scans import record_scan
from xpucached.domain.activity import Load
from xpucached.domain.names import EntryKey
from xpucached.domain.queries import EntryQuery
from xpucached.domain.stores import EntryId, EntryState
from xpucached.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xpucached.catalog import Catalog
    from xpucached.domain.queries import EntryPage

MANY: Final = 12


def filled(path: Path) -> Catalog:
    """Return a catalog with entries for three targets in turn, of one, two, three … bytes."""
    opened = catalogs.fresh(path)
    targets = (OLD, NEW, None)
    some = [
        entry(f"{number:02}", environment=targets[number % 3], size=number + 1, allocated=number + 1)
        for number in range(MANY)
    ]
    opened.write(record_scan, scan(*some), architecture)
    return opened


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    """Return one that is only read: to open one takes longer than a test."""
    with closing(filled(tmp_path_factory.mktemp("pages") / "catalog.sqlite")) as opened:
        yield opened


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with closing(filled(tmp_path / "catalog.sqlite")) as opened:
        yield opened


def page(catalog: Catalog, **query: object) -> EntryPage:
    return catalog.read(entry_page, EntryQuery(**query), present=(), now=NOW)  # type: ignore[arg-type] # of the table


# By the sums alone, by their groups, and by what only the entries tell.
WAYS: Final = [
    ({}, range(MANY)),
    ({"store": STORE.root}, range(MANY)),
    ({"driver": NEW.toolchain}, range(1, MANY, 3)),
    ({"min_size": 3}, range(2, MANY)),
    ({"max_size": 4, "driver": OLD.toolchain}, range(0, 4, 3)),
    ({"state": EntryState.DEFECTIVE}, range(0)),
]


@pytest.mark.parametrize(("query", "fit"), WAYS)
@pytest.mark.parametrize("few", [32, 0])
def test_a_page_is_told_to_be_the_last_where_it_is(
    shared: Catalog, monkeypatch: pytest.MonkeyPatch, query: dict[str, object], fit: range, few: int
) -> None:
    # Few groups are looked up one by one, and else all rows are walked over.
    monkeypatch.setattr(entries, "_FEW", few)
    keys = [f"{number:02}" for number in fit]
    for limit in (1, 2, len(keys) - 1, len(keys), len(keys) + 1, None):
        if limit is not None and limit < 1:
            continue
        found: list[str] = []
        after: str | None = None
        pages = 0
        while True:
            one = page(shared, limit=limit, after=after, **query)
            assert (one.total, one.size) == (len(keys), sum(number + 1 for number in fit))
            found += [each.entry.id.key for each in one.entries]
            pages += 1
            if one.next is None:
                break
            after = one.next
        assert found == keys
        assert pages == (1 if limit is None else max(1, -(-len(keys) // limit)))
    nothing = page(shared, limit=0, **query)
    assert (nothing.entries, nothing.next, nothing.total) == ((), None, len(keys))


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**80])
def test_a_size_beyond_all_numbers_of_the_catalog_is_as_good_as_the_largest(shared: Catalog, number: int) -> None:
    assert [page(shared, min_size=one).total for one in (number, -number)] == [0, MANY]
    assert [page(shared, max_size=one).total for one in (number, -number)] == [MANY, 0]
    assert len(page(shared, limit=number).entries) == MANY


@pytest.mark.parametrize("text", ["0", "9223372036854775807"])
def test_a_cursor_is_a_number_that_a_row_can_have(shared: Catalog, text: str) -> None:
    assert len(page(shared, after=text).entries) == (MANY if text == "0" else 0)
    for wrong in ("", "9223372036854775808", "-1", "1.0", "²", " 1"):
        with pytest.raises(RequestError, match="not a cursor"):
            page(shared, after=wrong)


def test_a_text_to_look_for_has_so_many_characters(shared: Catalog) -> None:
    assert page(shared, device="x" * 4096).total == 0
    with pytest.raises(RequestError, match="more than 4096 characters"):
        page(shared, device="x" * 4097)


@pytest.mark.parametrize(
    ("driver", "devices"),
    [("1.6*", {OLD.device}), ("*", {OLD.device, CPU.device, "a\0b"}), ("2\0*", {"a\0b"}), ("\0*", set())],
)
def test_the_beginning_of_a_driver_s_name_is_looked_for_whatever_characters_it_has(
    tmp_path: Path, driver: str, devices: set[str]
) -> None:
    strange = replace(OLD, device="a\0b", toolchain="2\0c")
    with closing(catalogs.fresh(tmp_path / "other.sqlite")) as opened:
        some = [entry(name, environment=one) for name, one in zip("abc", (OLD, CPU, strange), strict=True)]
        opened.write(record_scan, scan(*some), architecture)
        found = page(opened, driver=driver).entries
        assert {one.entry.environment.device for one in found if one.entry.environment is not None} == devices
        assert page(opened, device="A\0B").total == page(opened, device="\0").total == 1


def test_of_many_that_a_reference_could_mean_ten_are_named(tmp_path: Path) -> None:
    with closing(catalogs.fresh(tmp_path / "other.sqlite")) as opened:
        some = [entry(f"{number}") for number in range(400)]
        opened.write(record_scan, scan(*some), architecture)
        refs = sorted(one.id.ref for one in some)
        for digit in "0123456789abcdef":
            mine = [one for one in refs if one.startswith(digit)]
            assert len(mine) > 10
            with pytest.raises(RequestError) as caught:
                opened.read(find_entry, digit)
            assert caught.value.message.endswith(f"several references: {', '.join(mine[:10])} …")
        mine = [one for one in refs if one.startswith("0")]
        opened.write(forget_entries, [one.id for one in some if one.id.ref in mine[10:]])
        with pytest.raises(RequestError) as caught:
            opened.read(find_entry, "0")
        assert caught.value.message.endswith(f"several references: {', '.join(mine[:10])}")


@pytest.mark.parametrize("batch", [1, 5, 12, 1000])
def test_however_many_are_asked_for_at_once_each_is_found_and_what_is_not_known_is_left_out(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(entries, "_BATCH", batch)
    every = [one.entry for one in catalog.read(all_entries)]
    ids = [one.id for one in every[::-1]]
    strange = [EntryId(OTHER, ids[0].key), EntryId(STORE, EntryKey("none")), EntryId(STORE, EntryKey("\udcff"))]
    assert [one.entry for one in catalog.read(entries_by_id, [*ids, *strange])] == every
    assert catalog.read(entries_by_id, strange) == ()
    catalog.write(note_restored, [*ids[:2], *strange], NOW)
    assert [one.restored for one in catalog.read(all_entries)][-2:] == [NOW, NOW]
    assert sum(one.restored is not None for one in catalog.read(all_entries)) == 2
    # Each has its share by its size: of twelve seconds the first of 1+2+…+12 bytes has 12/78.
    if batch in {12, 1000}:
        catalog.write(note_costs, [*ids, *strange], 12.0)
        costs = [one.cost or 0.0 for one in catalog.read(all_entries)]
        assert costs == pytest.approx([12.0 * (number + 1) / 78 for number in range(MANY)])
    else:
        catalog.write(note_costs, [*ids, *strange], 12.0)
        assert sum(one.cost or 0.0 for one in catalog.read(all_entries)) == pytest.approx(12.0)
    catalog.write(forget_entries, [*ids[2:], *strange])
    assert {one.entry.id for one in catalog.read(all_entries)} == set(ids[:2])


def test_loads_are_added_up_and_the_last_one_is_kept(catalog: Catalog) -> None:
    key = EntryKey("00")
    for last, hits in ((NOW, 2), (NOW - HOUR, 3)):
        load = Load(STORE.root, key, last, hits, f"program {hits}", 0)
        catalog.write(note_uses, [load, replace(load, key=EntryKey("\udcff"))])
    first, second, *_ = catalog.read(all_entries)
    assert (first.last_used, first.last_used_by, first.hits, first.program) == (NOW, "observed-loads", 5, "program 3")
    assert (second.last_used, second.last_used_by, second.hits) == (NOW - 10 * HOUR, "created", 0)
