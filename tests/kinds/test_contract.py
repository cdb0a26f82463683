"""What every cache kind promises (`xpucached.kinds.interface`), asked of each in the table.

A new kind needs one line here: how a store of its own is made.  What its bytes mean is tested beside it.  What a kind
cannot do is not asked of it.
"""

from __future__ import annotations

import contextvars
import os
import re
import shutil
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.kinds import fakes
from tests.support.builders import SyclStore, native
from xpucached.domain.host import Device, DriverAnswer, Host, Process
from xpucached.domain.names import Architecture, EntryKey, TrashRef
from xpucached.domain.plans import EvictReason, Recipe
from xpucached.domain.recipes import Recording
from xpucached.domain.stores import Entry, EntryId, FoundStore, KnownEntry, Scan, Store, StoreOrigin, StoreState
from xpucached.domain.targets import Target
from xpucached.domain.trash import Restored, TrashLabel
from xpucached.kinds import sycl
from xpucached.kinds.interface import Kind
from xpucached.kinds.neo import kind as neo
from xpucached.kinds.neo import totals
from xpucached.kinds.table import KINDS
from xpucached.kinds.variables import CACHE_VARIABLES
from xpucached.processes import cancellation
from xpucached.watchd import ownership

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from xpucached.domain.defects import Defect
    from xpucached.kinds.interface import Trash


def _sycl(root: Path) -> None:
    store = SyclStore(root)
    for kernel in ("_ZTS1a", "_ZTS1b", "_ZTS1c"):
        store.add(kernel)


def _neo(root: Path) -> None:
    for device in ("acm-g10", "bmg-g21"):
        shutil.copytree(fakes.NEO / device, root, dirs_exist_ok=True)
    size = sum(path.stat().st_size for path in root.rglob("*_cache"))
    (root / "config.file").write_bytes(totals.total_bytes(size))


OLD: Final = Target(fakes.FULL.name, "P", "D", "driver")

STORES: Final[dict[Kind, Callable[[Path], None]]] = {
    sycl.KIND: _sycl,
    neo.KIND: _neo,
    fakes.BARE: lambda root: fakes.fill(root, fakes.BARE, OLD),
    fakes.FULL: lambda root: fakes.fill(root, fakes.FULL, OLD),
    fakes.NEST: lambda root: fakes.fill(root, fakes.NEST, OLD),
}
"""For each kind, what fills an empty directory with at least two sound entries."""

NOW: Final = datetime.now(UTC) + timedelta(hours=1)

ANSWERS: Final = (DriverAnswer("P", "D", "V", "another driver"), DriverAnswer("P", "E", "V", "another driver"))
DEVICES: Final = tuple(Device(one.device, Architecture("bmg-g21"), answers=(one,)) for one in ANSWERS)
HOST: Final = Host(NOW, "boot", "6", "stamp", DEVICES[:1])


@dataclass(frozen=True)
class Filled:
    """A store of a kind, and what asks the kind about it."""

    kind: Kind
    root: Path

    @property
    def store(self) -> Store:
        return Store(self.kind.name, self.root)

    @property
    def found(self) -> FoundStore:
        return FoundStore(self.store, StoreOrigin.FOUND, "test")

    @property
    def trash(self) -> Trash:
        if self.kind.trash is None:
            pytest.skip("what this kind removes is gone")
        return self.kind.trash

    def remove(self, entries: Sequence[Entry], label: TrashLabel | None = None) -> None:
        """Take entries out: all of them."""
        notes = {one.id: label for one in entries} if label is not None else None
        gone = self.kind.remover.remove(entries, notes)
        assert gone.keys() == {one.id for one in entries}
        assert all(gone.values())

    def look(self, known: Collection[Entry] = ()) -> Scan:
        """Look at the whole store, and give it as one part."""
        rows = sorted((KnownEntry(one.id.key, one.stamp) for one in known), key=lambda one: one.key)
        parts = list(self.kind.scanner.parts(self.found, NOW, rows, None))
        entries = tuple(one for part in parts for one in part.entries)
        return replace(parts[-1], entries=entries, unchanged=tuple(one for part in parts for one in part.unchanged))

    def files(self) -> dict[str, bytes]:
        """Return every file that lies where the kind finds entries."""
        every = (path for path in self.root.rglob("*") if path.is_file())
        found = {str(path.relative_to(self.root)): path.read_bytes() for path in every}
        return {name: content for name, content in found.items() if self.kind.scanner.key(name) is not None}


@pytest.fixture(params=[*STORES], ids=[kind.name for kind in STORES])
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Filled:
    kind: Kind = request.param
    root = tmp_path / "store"
    root.mkdir()
    STORES[kind](root)
    return Filled(kind, root)


def process(variables: dict[str, str], home: Path) -> Process:
    return Process(4711, os.getuid(), NOW, "app", home, {"HOME": str(home), **variables})


LABEL: Final = TrashLabel(NOW, EvictReason.UNUSED, "not used")


def test_what_entries_are_valid_for_follows_the_devices_of_the_host(filled: Filled) -> None:
    scanner = filled.kind.scanner
    both = scanner.targets(replace(HOST, devices=DEVICES))

    assert scanner.targets(replace(HOST, devices=())) == ()
    assert both == tuple(one for device in DEVICES for one in scanner.targets(replace(HOST, devices=(device,))))
    assert len({one.lineage for one in both}) == len(both)
    assert {one.kind for one in both} <= {filled.kind.name}
    assert all(scanner.architecture(one) for one in both)


def test_every_kind_is_asked() -> None:
    assert {kind.name: kind for kind in STORES}.items() >= KINDS.items()


def test_what_the_driver_wrote_is_read(tmp_path: Path) -> None:
    _neo(tmp_path)
    found = Filled(neo.KIND, tmp_path).look().entries

    assert sorted(one.id.key for one in found) == [
        "3/b/3b93c07016a64a11.l0_cache",
        "c/3/c38a8531ff01c4ee.cl_cache",
        "c/b/cbe3f8fad88b50e0.cl_cache",
        "d/9/d930dfee6f04d4c0.l0_cache",
    ]
    assert {kernel.name for one in found for kernel in one.kernels} >= {"fixture_add", "fixture_scale"}


# -- programs ---------------------------------------------------------------------------------------------------------


def test_the_variables_lead_to_the_store_and_are_on_the_list(filled: Filled, tmp_path: Path) -> None:
    discovery = filled.kind.discovery
    on, off = dict(discovery.enable(filled.root)), discovery.OFF
    if filled.kind in KINDS.values():
        assert set(on) | set(off) | set(discovery.EVERYWHERE) <= set(CACHE_VARIABLES)
    if not on:
        pytest.skip("no variable leads to a store of this kind")
    led = process(on, tmp_path)
    place = discovery.locate(led)
    assert place is not None
    assert place[0] == filled.root
    assert discovery.enabled(led)
    assert not off or not discovery.enabled(process({**on, **off}, tmp_path))


def test_a_process_that_says_nothing_needs_no_files(filled: Filled) -> None:
    silent = Process(4711, os.getuid(), NOW, "app", None, {})

    assert filled.kind.discovery.locate(silent) is None
    assert not filled.kind.discovery.writes("/dev/null")


def test_its_own_stores_are_recognised_and_no_others(filled: Filled, tmp_path: Path) -> None:
    discovery = filled.kind.discovery
    for name in ("empty", "strange"):
        (tmp_path / name).mkdir()
    (tmp_path / "strange" / "file.txt").write_text("x")
    (tmp_path / "pipe").write_text("x")

    assert discovery.recognise(filled.root)
    for other in ("empty", "strange", "pipe", "nothing", "pipe/x", "x" * 5000):
        assert not discovery.recognise(tmp_path / other)


def test_no_two_kinds_recognise_one_store(filled: Filled) -> None:
    assert [kind.name for kind in STORES if kind.discovery.recognise(filled.root)] == [filled.kind.name]


# -- scanning ---------------------------------------------------------------------------------------------------------


def test_a_sound_store_is_read_without_a_complaint(filled: Filled) -> None:
    before = filled.files()
    scan = filled.look()
    doctor = filled.kind.doctor

    assert scan.state is StoreState.OK
    assert len(scan.entries) > 1
    assert {one.id.store for one in scan.entries} == {filled.store}
    assert [one.defect for one in scan.entries if one.defect is not None] == []
    assert len({one.id for one in scan.entries}) == len(scan.entries)
    assert scan.faults == ()
    assert doctor is None or doctor.faults(filled.found, NOW, None) == ()
    assert filled.files() == before


def test_what_is_wrong_with_entries_stands_in_the_table_of_the_kind(filled: Filled) -> None:
    for name in filled.files():
        (filled.root / name).write_bytes(b"")
    found = [one.defect for one in filled.look().entries if one.defect is not None]

    assert set(found) <= set(filled.kind.defects)
    assert bool(found) == bool(filled.kind.defects)
    assert all(one.uncovered is None or one.uncovered in filled.kind.defects for one in filled.kind.defects)


def test_a_code_means_the_same_in_every_kind() -> None:
    told: dict[str, Defect] = {}
    for kind in STORES:
        assert [one.code for one in kind.defects if told.setdefault(one.code, one) != one] == []
        assert len({one.code for one in kind.defects}) == len(kind.defects)


def test_what_did_not_change_is_not_read_again(filled: Filled) -> None:
    first = filled.look()
    again = filled.look(first.entries)

    assert again.entries == ()
    assert {one.key for one in again.unchanged} == {one.id.key for one in first.entries}


def test_the_same_is_found_twice(filled: Filled) -> None:
    assert set(filled.look().entries) == set(filled.look().entries)


def test_each_file_of_an_entry_belongs_to_it(filled: Filled) -> None:
    keys = {one.id.key for one in filled.look().entries}

    assert {filled.kind.scanner.key(name) for name in filled.files()} == keys
    for stranger in (
        "",
        "x",
        "../x",
        "/",
        "a/b/c/d",
        "\udcff",
        "0",
        ".xpucached/1/0.bin",
        ".xpucached.trash/1/leaf/0.bin",
        *(f".xpucached.trash/1/{name}" for name in filled.files()),
    ):
        assert filled.kind.scanner.key(stranger) is None


def test_what_is_watched_are_the_files_of_entries(filled: Filled) -> None:
    activity = filled.kind.activity
    if activity is None:
        pytest.skip("nobody sees what programs of this kind load")
    watched = [name for name in filled.files() if re.fullmatch(activity.WATCH.files, name.rpartition("/")[2])]
    assert {filled.kind.scanner.key(name) for name in watched} == {one.id.key for one in filled.look().entries}
    assert max(name.count("/") for name in watched) <= activity.WATCH.depth


def test_the_watcher_knows_the_files_of_every_kind() -> None:
    told = [kind.activity.WATCH for kind in KINDS.values() if kind.activity is not None]

    assert tuple(one.files for one in told) == ownership.FILES
    assert max(one.depth for one in told) == ownership.DEEPEST


def test_what_an_entry_was_compiled_from_is_told_alike_each_time(filled: Filled) -> None:
    told = [filled.kind.scanner.built_from(one.id.key) for one in filled.look().entries]

    assert told == [filled.kind.scanner.built_from(one.id.key) for one in filled.look(()).entries]
    assert len({one is None for one in told}) == 1
    assert len({one[0] for one in told if one is not None}) > 1 or None in told


@pytest.mark.parametrize("what", ["nothing", "file", "pipe", "loop", "strangers", "far"])
def test_a_scan_never_raises(filled: Filled, tmp_path: Path, what: str) -> None:
    root = tmp_path / "other"
    match what:
        case "file":
            root.write_bytes(b"x")
        case "pipe":
            os.mkfifo(root)
        case "loop":
            root.symlink_to(root)
        case "strangers":
            root.mkdir()
            os.mkfifo(root / "0")
            (root / "1").symlink_to(root)
            (root / "2" / "3").mkdir(parents=True)
            (root / "2" / "\udcff").write_bytes(b"x")
        case "far":
            root = tmp_path / "/".join(["long" * 50] * 30)
        case _:
            pass
    other, kind = Filled(filled.kind, root), filled.kind

    assert other.look().entries == ()
    assert not kind.discovery.recognise(root)
    assert kind.trash is None or kind.trash.trash(other.store) == ()
    if kind.doctor is not None:
        kind.doctor.faults(other.found, NOW, None)


# -- taking out, and giving back ---------------------------------------------------------------------------------------


def test_what_is_removed_is_gone_and_nothing_else(filled: Filled) -> None:
    going, *staying = sorted(filled.look().entries, key=lambda one: one.id.key, reverse=True)

    filled.remove([going])
    left = filled.look()
    assert {one.id.key for one in left.entries} == {one.id.key for one in staying}
    assert (left.faults, left.ours, left.state) == ((), (), StoreState.OK)
    assert filled.kind.trash is None or filled.kind.trash.trash(filled.store) == ()


def test_what_changed_since_the_look_stays(filled: Filled) -> None:
    going = filled.look().entries[0]

    assert filled.kind.remover.remove([replace(going, stamp=f"{going.stamp}0")]) == {going.id: False}
    assert going in filled.look().entries


def test_what_goes_into_the_trash_comes_back_as_it_was(filled: Filled) -> None:
    trash = filled.trash
    before = filled.files()
    going = filled.look().entries
    filled.remove(going, LABEL)

    assert filled.files() == {}
    inside = trash.trash(filled.store)
    assert {one.key for one in inside} == {one.id.key for one in going}
    assert {(one.reason, one.detail, one.whole) for one in inside} == {(LABEL.reason, LABEL.detail, True)}
    assert filled.look().state is StoreState.OK

    told = trash.restore(filled.store, tuple(one.ref for one in inside))
    assert {one.ref for one in told if one.key is not None} == {one.ref for one in inside}
    assert trash.trash(filled.store) == ()
    assert sorted(filled.files().values()) == sorted(before.values())


def test_what_is_discarded_does_not_come_back(filled: Filled) -> None:
    trash = filled.trash
    going = filled.look().entries[:1]
    filled.remove(going, LABEL)
    (item,) = trash.trash(filled.store)

    assert trash.discard(filled.store, (item.ref, TrashRef("nothing"))) >= {item.ref}
    assert trash.trash(filled.store) == ()
    assert [one.key for one in trash.restore(filled.store, (item.ref,))] == [None]


def test_where_nothing_of_ours_was_left_there_is_nothing_to_sweep(filled: Filled) -> None:
    before = filled.files()

    assert not any(filled.kind.remover.sweep(one.id) for one in filled.look().entries)
    assert filled.files() == before


# -- what programs tell ------------------------------------------------------------------------------------------------


def test_a_trace_that_says_nothing_names_nothing(filled: Filled) -> None:
    recorder = filled.kind.recorder
    if recorder is None:
        pytest.skip("programs of this kind tell nothing")
    assert recorder.read(filled.store, ["", "some text", "\udcff", str(filled.root)]) == Recording()
    before = filled.files()
    assert recorder.collect(filled.store, frozenset(), HOST) == Recording()
    assert recorder.unkept([filled.store], ["", "some text", "\udcff", str(filled.root)]) == ""
    assert recorder.why_untold(filled.root) == ""
    assert filled.files() == before


# -- compiling again ---------------------------------------------------------------------------------------------------


def test_what_is_compiled_again_is_found_by_the_next_look(filled: Filled) -> None:
    rebuilder = filled.kind.rebuilder
    if rebuilder is None:
        pytest.skip("entries of this kind are made by their programs only")
    made = [rebuilder.recipe(one) for one in filled.look().entries]
    recipes = [one for one in made if isinstance(one, Recipe)]
    targets = filled.kind.scanner.targets(HOST) if recipes else ()
    for recipe in recipes:
        (target,) = targets
        binary = native(500)
        assert rebuilder.unusable(target, binary) is None
        expected = rebuilder.expected_key(recipe, target)
        key = rebuilder.publish(recipe, target, binary)
        assert key is not None
        # Who predicts a name predicts the right one.
        assert expected in {None, key}
        assert rebuilder.compiler(target, filled.root) == rebuilder.compiler(target, filled.root)
        # What the driver does not decide stays as it was.
        assert rebuilder.lineage_key(key) == rebuilder.lineage_key(recipe.entry.key)
        # A program may have been quicker: that one stays.
        assert rebuilder.publish(recipe, target, native(600)) in {None, key}
    found = {one.id.key: one for one in filled.look().entries}

    assert len(found) >= len(made)
    assert {one.environment for one in found.values()} >= set(targets)
    assert [one.defect for one in found.values() if one.defect is not None] == []


def test_a_known_entry_that_is_gone_is_named(filled: Filled) -> None:
    entries = sorted(filled.look().entries, key=lambda one: one.id.key)
    known = [KnownEntry(one.id.key, one.stamp, None) for one in entries]
    filled.remove(entries[-1:])
    parts = list(filled.kind.scanner.parts(filled.found, NOW, known, None))
    left = {one.key for part in parts for one in part.unchanged}

    assert left == {one.id.key for one in entries[:-1]}
    assert EntryKey(entries[-1].id.key) not in left
    assert entries[-1].id.key in {key for part in parts for key in part.vanished or ()} or parts[-1].vanished is None


def unwanted(do: Callable[[], object]) -> None:
    """Do something of which nobody wants any more what comes of it."""
    nobody_waits = threading.Event()
    nobody_waits.set()

    def work() -> None:
        cancellation._STOP.set(nobody_waits)
        do()

    contextvars.copy_context().run(work)


def test_what_nobody_wants_any_more_ends_and_changes_nothing(filled: Filled) -> None:
    """Who cancels a job waits for what is done in a store, of whatever size."""
    entries, before = filled.look().entries, filled.files()
    gone: dict[EntryId, bool] = {}

    with pytest.raises(cancellation.WorkCancelled):
        unwanted(filled.look)
    unwanted(lambda: gone.update(filled.kind.remover.remove(entries, {one.id: LABEL for one in entries})))
    assert gone == {one.id: False for one in entries}
    assert filled.files() == before

    trash, store = filled.trash, filled.store
    filled.remove(entries, LABEL)
    there = trash.trash(store)
    refs = tuple(one.ref for one in there)
    back: list[Restored] = []
    unwanted(lambda: back.extend(trash.restore(store, refs)))
    unwanted(lambda: trash.discard(store, refs))
    assert {one.key for one in back} == {None}
    assert trash.trash(store) == there
