"""Entries that go and come back: moved to another number, restored from the trash, or away with their whole store."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tests.kinds import fakes
from tests.kinds.test_sycl_damage import look
from tests.support import catalogs
from xpucached.catalog import Catalog, departed, scans
from xpucached.catalog.entries import all_entries, forget_entries, note_costs
from xpucached.catalog.models import add_model
from xpucached.catalog.runs import begin_run, finish_run
from xpucached.catalog.scans import record_scan
from xpucached.catalog.stores import all_stores, forget_store
from xpucached.catalog.tables import DEPARTED
from xpucached.domain.defects import CHANGED, Defect, RepairAction
from xpucached.domain.models import Attribution, Model, Outcome, WarmReason, Workload
from xpucached.domain.names import Architecture, EntryKey, KindName, ModelName
from xpucached.domain.plans import EvictReason
from xpucached.domain.stores import FoundStore, KnownEntry, Store, StoreOrigin, StoreState
from xpucached.domain.trash import TrashLabel
from xpucached.kinds import statx, sycl
from xpucached.kinds.table import KINDS
from xpucached.planning.repair import plan_mending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.builders import SyclStore

NOW = datetime.now(UTC)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Catalog]:
    with closing(catalogs.fresh(tmp_path / "state" / "catalog.sqlite")) as catalog:
        yield catalog


def see(index: Catalog, root: Path) -> dict[str, Defect | None]:
    """Look at a store; give what is wrong in each slot."""
    found = look(root)
    index.write(record_scan, found, lambda _: Architecture("x86_64"))
    return {one.entry.id.key.rpartition("/")[2]: one.entry.defect for one in index.read(all_entries)}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-40] ^= 0x10
    with path.open("r+b") as file:
        file.write(content)


def test_a_slot_that_moves_down_is_still_known(index: Catalog, sycl_store: SyclStore) -> None:
    first = sycl_store.add("_ZTS1k", size=300)
    second = sycl_store.add("_ZTS1k", size=300, slot=1)
    assert see(index, sycl_store.root) == {"0": None, "1": sycl.defects.DUPLICATE}
    flip(second.bin)
    # While nobody reads it, too, a flipped bit is seen.
    assert see(index, sycl_store.root) == {"0": None, "1": CHANGED}
    entry = next(one.entry for one in index.read(all_entries) if one.entry.id.key.endswith("/0"))
    assert set(sycl.remover.remove([entry]).values()) == {True}
    index.write(forget_entries, [entry.id])
    assert first.bin.exists()
    assert see(index, sycl_store.root) == {"0": CHANGED}


@pytest.mark.parametrize("how", ["told", "untold"])
def test_whose_an_entry_is_goes_along_with_it_when_it_gets_another_number(
    index: Catalog, sycl_store: SyclStore, how: str
) -> None:
    """Also where nobody told the catalog that the first one went, as if another daemon had taken it out."""
    for slot in range(4):
        sycl_store.add("_ZTS1k", size=300 + slot, slot=slot)
    see(index, sycl_store.root)
    entries = sorted((one.entry for one in index.read(all_entries)), key=lambda one: one.id.key)
    for number, entry in enumerate(entries):
        model = Model(ModelName(f"of-{number}"), Workload((f"/bin/{number}",), sycl_store.root))
        index.write(add_model, model)
        run = index.write(begin_run, model, WarmReason.MANUAL, "sig", NOW)
        used = Attribution(frozenset({entry.id}), frozenset())
        index.write(finish_run, run.id, Outcome.WARMED, (), used, (), "", "", NOW)
    assert set(sycl.remover.remove(entries[:1]).values()) == {True}
    if how == "told":
        index.write(forget_entries, [entries[0].id])
    see(index, sycl_store.root)
    owners = {one.entry.id.key.rpartition("/")[2]: one.models for one in index.read(all_entries)}
    # The last one closes the gap.
    assert owners == {"0": ("of-3",), "1": ("of-1",), "2": ("of-2",)}


def test_what_comes_back_from_the_trash_is_still_known(index: Catalog, sycl_store: SyclStore) -> None:
    made = sycl_store.add("_ZTS1k", size=300)
    see(index, sycl_store.root)
    (indexed,) = index.read(all_entries)
    entry = indexed.entry
    assert set(sycl.remover.remove([entry], {entry.id: TrashLabel(NOW, EvictReason.UNUSED, "")}).values()) == {True}
    index.write(forget_entries, [entry.id])
    (item,) = sycl.trash_files.trash(entry.id.store)
    flip(next((sycl_store.root).rglob("leaf/0.bin")))
    (restored,) = sycl.trash_files.restore(entry.id.store, (item.ref,))
    assert restored.key == entry.id.key
    assert made.bin.exists()
    assert see(index, sycl_store.root) == {"0": CHANGED}


@pytest.mark.parametrize("how", ["missing", "empty", "forgotten"])
def test_a_store_that_is_away_for_a_while_loses_nothing_that_only_the_catalog_knows(
    index: Catalog, sycl_store: SyclStore, how: str
) -> None:
    root = sycl_store.root
    used, damaged = sycl_store.add("_ZTS1a", size=300), sycl_store.add("_ZTS1b", size=300)
    see(index, root)
    model = Model(ModelName("net"), Workload(("/bin/true",), root))
    index.write(add_model, model)
    run = index.write(begin_run, model, WarmReason.MANUAL, "sig", NOW)
    ids = {one.entry.kernels[0].name: one.entry.id for one in index.read(all_entries)}
    attribution = Attribution(frozenset({ids["_ZTS1a"]}), frozenset())
    index.write(finish_run, run.id, Outcome.WARMED, (), attribution, (), "", "", NOW)
    index.write(note_costs, [ids["_ZTS1a"]], 7.0)
    before = {one.entry.id: one for one in index.read(all_entries)}
    assert before[ids["_ZTS1a"]].models == (ModelName("net"),)

    aside = root.rename(root.parent / "aside")
    if how == "empty":
        root.mkdir()
    assert see(index, root) == {}
    assert index.read(all_stores)[0].state is (StoreState.OK if how == "empty" else StoreState.MISSING)
    if how == "forgotten":
        index.write(forget_store, ids["_ZTS1a"].store)
    if how == "empty":
        root.rmdir()
    aside.rename(root)
    flip(damaged.bin)
    see(index, root)

    after = {one.entry.id: one for one in index.read(all_entries)}
    one = after[ids["_ZTS1a"]]
    assert (one.models, one.cost) == ((ModelName("net"),), 7.0)
    assert one.first_seen == before[ids["_ZTS1a"]].first_seen
    assert one.last_used_by == before[ids["_ZTS1a"]].last_used_by
    assert after[ids["_ZTS1b"]].entry.defect == CHANGED
    # What is there again is no longer remembered as what has gone.
    assert index.read(lambda connection: connection.scalars(sa.select(DEPARTED.c.leaf)).all()) == []
    assert used.bin.exists()


@pytest.mark.parametrize(
    "leave",
    [
        lambda connection: departed.leave(connection, 1, [EntryKey("0")]),
        lambda connection: departed.leave_rows(connection, [0]),
    ],
)
def test_so_many_are_remembered_and_no_more_the_youngest(
    index: Catalog, sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch, leave: Callable[[sa.Connection], None]
) -> None:
    sycl_store.add("_ZTS1k", size=300)
    see(index, sycl_store.root)
    now = int(datetime.now(UTC).timestamp()) * 1_000_000
    rows = [(f"{number}/", now - number * 1_000_000) for number in range(12)]

    def left() -> set[str]:
        with index._write() as connection:
            connection.exec_driver_sql("DELETE FROM departed")
            connection.exec_driver_sql(
                "INSERT INTO departed (kind, root, leaf, source, trusted, first_seen, at, runs, models)"
                " VALUES ('sycl', '/', ?, 's', 't', 0, ?, '[]', '[]')",
                rows,
            )
            # Not while some go: to count a million of them takes a second.
            leave(connection)
            assert connection.exec_driver_sql("SELECT count(*) FROM departed").scalar() == len(rows)
            if overdue := departed.overdue(connection):
                departed.forget(connection, overdue)
            return {leaf for (leaf,) in connection.exec_driver_sql("SELECT leaf FROM departed")}

    assert left() == {leaf for leaf, _ in rows}
    monkeypatch.setattr(departed, "_MOST", 12)
    assert left() == {leaf for leaf, _ in rows}
    monkeypatch.setattr(departed, "_MOST", 10)
    assert left() == {leaf for leaf, _ in rows[:10]}

    # None is older than thirty days.
    rows = [(f"{number}/", now - number * 86_400_000_000) for number in (1, 29, 31, 60)]
    assert left() == {"1/", "29/"}


def test_what_is_made_anew_in_the_same_place_is_not_what_went(index: Catalog, sycl_store: SyclStore) -> None:
    made = sycl_store.add("_ZTS1k", size=300)
    see(index, sycl_store.root)
    aside = sycl_store.root.rename(sycl_store.root.parent / "aside")
    assert see(index, sycl_store.root) == {}
    assert sycl_store.add("_ZTS1k", size=500).bin == made.bin
    assert aside.exists()
    assert see(index, sycl_store.root) == {"0": None}


@pytest.mark.parametrize("kind", ["neo", "sycl"])
def test_where_no_births_are_kept_another_file_with_the_number_of_one_that_went_is_not_damaged(
    index: Catalog, sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """As on NFS, or ext3: a number is given anew as soon as it is free."""
    monkeypatch.setattr(statx, "birth", lambda _: None)
    if kind == "neo":
        first, second = (path.read_bytes() for path in sorted((fakes.NEO / "recorded").rglob("*_cache"))[:2])
        root, names = sycl_store.root.parent / "neo", ("0123456789abcdef.cl_cache", "123456789abcdef0.cl_cache")
    else:
        first, second = (sycl_store.add("_ZTS1k", size=size).bin.read_bytes() for size in (300, 400))
        shutil.rmtree(sycl_store.root)
        root, names = sycl_store.root, ("0.bin", "0.bin")
    place = root if kind == "neo" else root / "ext_kernel_compiler" / "1" / "2" / "3"
    place.mkdir(parents=True)
    store = FoundStore(Store(KindName(kind), root), StoreOrigin.FOUND, "test")

    def states() -> list[Defect | None]:
        rows = [KnownEntry(one.entry.id.key) for one in index.read(all_entries)]
        for part in KINDS[KindName(kind)].scanner.parts(store, NOW + timedelta(hours=1), rows, None):
            index.write(record_scan, part, lambda _: Architecture("x86_64"))
        return [one.entry.defect for one in index.read(all_entries)]

    path = place / names[0]
    path.write_bytes(first)
    assert states() == [None]
    # The same number, of another file.
    path = path.rename(place / names[1])
    path.write_bytes(second)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert states() == [None]
    # What changes by itself keeps its times.
    path.write_bytes(first)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert states() == [CHANGED]


def test_the_slots_of_a_leaf_are_judged_together_however_many_entries_come_before(
    index: Catalog, sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "_BATCH", 1)
    first = sycl_store.add("_ZTS1k", size=300)
    sycl_store.add("_ZTS1k", size=300, slot=1)
    assert see(index, sycl_store.root) == {"0": None, "1": sycl.defects.DUPLICATE}
    flip(first.bin)
    # The whole copy stands for the damaged one: it must not go with it.
    assert see(index, sycl_store.root) == {"0": CHANGED, "1": sycl.defects.SHADOWED}


def test_what_nobody_read_since_its_writer_died_does_not_come_before_what_programs_use(sycl_store: SyclStore) -> None:
    locked = sycl_store.add("_ZTS1k", size=300)
    locked.take_lock(age=3600)
    used = sycl_store.add("_ZTS1k", size=300, slot=1)
    alone = sycl_store.add("_ZTS1l", size=300)
    alone.take_lock(age=3600)
    repairs = {one.entry.id.key: one for one in plan_mending(look(sycl_store.root).entries)}
    actions = {key.rpartition("/")[0]: one.action for key, one in repairs.items()}
    assert actions == {
        os.fspath(locked.leaf.relative_to(sycl_store.root)): RepairAction.TRASH,
        os.fspath(alone.leaf.relative_to(sycl_store.root)): RepairAction.UNLOCK,
    }
    gone = [one.entry for one in repairs.values() if one.action is RepairAction.TRASH]
    content = used.bin.read_bytes()
    assert set(
        sycl.remover.remove(gone, {one.id: TrashLabel(NOW, EvictReason.DEFECTIVE, "") for one in gone}).values()
    ) == {True}
    assert locked.bin.read_bytes() == content
    assert not locked.lock.exists()
    assert not used.bin.exists()
