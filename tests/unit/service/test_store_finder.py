"""Which stores are searched for, and when."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
import time
from collections import Counter
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from tests.support import catalogs
from tests.support.builders import SyclStore
from tests.support.users import mere, mere_user
from xpucached import deadlines, mounts
from xpucached.catalog import Catalog, departed
from xpucached.catalog.entries import all_entries
from xpucached.catalog.stores import all_stores
from xpucached.domain.activity import FileAct, FileEvent, Program
from xpucached.domain.models import Model, Workload
from xpucached.domain.names import KindName, ModelName
from xpucached.domain.stores import EntryState, FoundStore, Store, StoreOrigin, StoreState
from xpucached.errors import NotFound
from xpucached.host import process_table
from xpucached.kinds import sycl
from xpucached.kinds.table import MODELS
from xpucached.service import owners, store_finder
from xpucached.service.activity import ActivityTracker
from xpucached.service.context import Context
from xpucached.service.scan import StoreScanner
from xpucached.service.store_finder import StoreFinder
from xpucached.settings import loading

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Two:
    """Two stores of the configuration, and whether others were searched for."""

    def __init__(self, catalog: Catalog, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.catalog = catalog
        self.stores = [SyclStore(place / name) for name in ("first", "second")]
        for store in self.stores:
            store.add("_ZTS1a")
        environ = {**os.environ, "XPUCACHED_STORES_PATHS": ":".join(str(store.root) for store in self.stores)}
        context = Context(loading.load(None, user=True, environ=environ), catalog, {})
        self.finder = StoreFinder(context)
        self.scanner = StoreScanner(context, self.finder)
        self.searches = 0

        def searching(*given: object) -> object:
            self.searches += 1
            return owners.named_by(*given)  # type: ignore[arg-type] # whatever that takes

        monkeypatch.setattr(store_finder, "named_by", searching)
        asyncio.run(self.scanner.scan_stores())
        assert self.searches
        self.searches = 0


@contextmanager
def program(**variables: object) -> Iterator[None]:
    """Have a program run that has these variables."""
    env = {name: str(value) for name, value in variables.items()}
    with subprocess.Popen(mere(["/bin/sleep", "60"]), env=env) as one:
        try:
            yield
        finally:
            one.kill()


@pytest.fixture
def two(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Two]:
    with closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        yield Two(catalog, tmp_path.resolve(), monkeypatch)


def test_where_one_store_changed_no_other_is_searched_for(two: Two) -> None:
    for store in two.stores:
        store.add("_ZTS1b")
    report = asyncio.run(two.scanner.scan_stores(frozenset({two.stores[0].root})))
    assert (report.stores, report.added, two.searches) == (1, 1, 0)
    # Programs that run beside the tests may have named a store of their own before.
    roots = {store.root for store in two.stores}
    assert sum(one.entry.id.store.root in roots for one in two.catalog.read(all_entries)) == 3


def test_which_runtimes_read_a_store_is_asked_each_time(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two.finder, "_readers", lambda *_: frozenset({"libsycl.so.9"}))
    (found,), _ = two.finder.find(frozenset({two.stores[0].root}))
    assert found.store.root == two.stores[0].root
    assert found.readers == {"libsycl.so.9"}


def test_of_many_models_of_one_program_its_runtimes_are_looked_for_once(
    two: Two, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def looking(model: Model, _variables: object) -> tuple[()]:
        looked.append(model.name)
        return ()

    monkeypatch.setattr(store_finder, "runtimes_of", looking)
    programs: list[tuple[str, tuple[str, ...], dict[str, str]]]
    programs = [(f"m{number}", ("/bin/true", str(number)), {}) for number in range(100)]
    programs += [("other", ("/bin/false",), {}), ("led", ("/bin/true",), {"LD_LIBRARY_PATH": "/opt"})]
    models = [Model(ModelName(name), Workload(command, tmp_path, variables)) for name, command, variables in programs]
    two.finder._readers(models, ())
    assert looked == ["m0", "other", "led"]


def test_who_asks_for_a_store_that_is_none_any_more_hears_so(two: Two) -> None:
    two.finder._context.settings = loading.load(None, user=True, environ={**os.environ, "XPUCACHED_STORES_FOUND": "no"})
    with pytest.raises(NotFound, match="no store at"):
        asyncio.run(two.scanner.scan_stores(frozenset({two.stores[0].root}), named=True, thorough=True))
    assert two.searches == 0


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_store_that_was_looked_at_since_nobody_found_it_is_not_forgotten(two: Two, *, meanwhile: bool) -> None:
    context, (first, second) = two.finder._context, two.stores
    back = next(one for one in two.finder.find()[0] if one.store.root == second.root)
    environ = {**os.environ, "XPUCACHED_STORES_FOUND": "no", "XPUCACHED_STORES_PATHS": str(first.root)}
    context.settings = loading.load(None, user=True, environ=environ)

    async def look() -> set[Path]:
        async with context.locks.storing:
            looking = asyncio.create_task(two.scanner.scan_stores())
            async with asyncio.timeout(20):
                while not context.locks.storing._waiters:  # noqa: ASYNC110 - it says so to nobody
                    await asyncio.sleep(0.01)
            if meanwhile:
                await asyncio.to_thread(two.scanner.scan, back, None)
        await looking
        return {one.store for one in two.catalog.read(all_stores)}

    assert (second.root in asyncio.run(look())) is meanwhile


def test_a_store_that_became_somebody_else_s_is_not_taken_for_known(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_finder, "foreign", lambda store: 1 if store.root == two.stores[0].root else None)
    found, _ = two.finder.find(frozenset({two.stores[0].root}))
    assert two.stores[0].root not in {one.store.root for one in found}
    assert [one.code for one in two.finder.problems] == ["foreign-store"]


def test_a_store_of_ours_that_cannot_be_looked_at_now_is_not_forgotten(two: Two) -> None:
    root = two.finder.managed(KindName("neo")).store.root
    assert not any(one.store == root for one in two.catalog.read(all_stores))
    root.mkdir(parents=True)
    asyncio.run(two.scanner.scan_stores())
    # Root may enter any directory, but gets through no link to itself.
    away = root.parent.rename(root.parent.with_name("away"))
    root.parent.symlink_to(root.parent)
    asyncio.run(two.scanner.scan_stores())
    (known,) = (one for one in two.catalog.read(all_stores) if one.store == root)
    assert known.state is StoreState.UNREADABLE
    root.parent.unlink()
    asyncio.run(two.scanner.scan_stores())
    assert not any(one.store == root for one in two.catalog.read(all_stores))
    away.rename(root.parent)
    asyncio.run(two.scanner.scan_stores())
    assert [one.state for one in two.catalog.read(all_stores) if one.store == root] == [StoreState.OK]


@pytest.mark.flow
@pytest.mark.parametrize("led", ["/dev/null", "shut/home", "loop", "long"])
def test_where_this_user_s_programs_have_no_way_to_there_is_no_store(two: Two, tmp_path: Path, led: str) -> None:
    """A container's programs are told that HOME is root's, and scripts that it is /dev/null."""
    place = tmp_path.resolve()
    (place / "shut" / "home" / ".cache" / "neo_compiler_cache").mkdir(parents=True)
    (place / "loop").symlink_to("loop")
    (place / "shut").chmod(0)
    home = place / led.replace("long", "l" * 300)
    try:
        with program(HOME=home), mere_user():
            asyncio.run(two.scanner.scan_stores())
        assert not any(one.store.is_relative_to(home) for one in two.catalog.read(all_stores))
    finally:
        (place / "shut").chmod(0o700)


@pytest.mark.flow
@pytest.mark.parametrize("shut", ["store", "above"])
def test_of_a_store_that_a_program_could_not_read_nothing_stays_when_it_ended(
    two: Two, tmp_path: Path, shut: str
) -> None:
    """What was read before stays: it is not gone."""
    stores = {name: SyclStore(tmp_path.resolve() / name / "cache") for name in ("kept", "empty")}
    stores["kept"].add("_ZTS1a")
    stores["empty"].root.mkdir(parents=True)

    def states() -> dict[str, StoreState]:
        asyncio.run(two.scanner.scan_stores())
        names = {store.root: name for name, store in stores.items()}
        return {names[one.store]: one.state for one in two.catalog.read(all_stores) if one.store in names}

    def change(mode: int) -> None:
        for store in stores.values():
            (store.root if shut == "store" else store.root.parent).chmod(mode)

    try:
        with program(SYCL_CACHE_DIR=stores["kept"].root), program(SYCL_CACHE_DIR=stores["empty"].root):
            assert states() == {"kept": StoreState.OK, "empty": StoreState.OK}
            change(0)
            with mere_user():
                assert states()["kept"] is StoreState.UNREADABLE
        with mere_user():
            states()
            assert states() == {"kept": StoreState.UNREADABLE}
    finally:
        change(0o700)
    assert states() == {"kept": StoreState.OK}


def test_which_store_a_model_s_is_asks_no_file_system(
    two: Two, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, away = tmp_path / "link", tmp_path / "away" / ".." / "elsewhere"
    link.symlink_to(two.stores[0].root)
    models = [
        Model(ModelName(name), Workload(("/bin/true",), tmp_path), store=place)
        for name, place in (("known", link), ("unknown", away))
    ]
    two.finder.real_root(link)

    def fails(*_: object, **__: object) -> object:
        raise AssertionError("it may not answer")

    monkeypatch.setattr(deadlines, "ask", fails)
    roots = {
        name: {one.root for one in stores if one.kind == "sycl"}
        for name, stores in two.finder.places_of(models).items()
    }
    assert roots == {"known": {two.stores[0].root}, "unknown": {tmp_path.resolve() / "elsewhere"}}


@pytest.mark.parametrize("shared", ["nfs4", "", "silent"])
def test_where_other_hosts_may_write_a_lock_is_a_program_s_until_it_is_old(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: str
) -> None:
    """What processes there are here says nothing of a program elsewhere that is held up in the midst of a write."""
    monkeypatch.setattr(process_table, "_sees_all", lambda _places: True)
    monkeypatch.setattr(process_table, "processes", lambda *_given: ())
    ended = threading.Event()
    with closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        two = Two(catalog, tmp_path.resolve(), monkeypatch)
        if shared == "silent":
            monkeypatch.setattr(deadlines, "SECONDS", 0.05)
        monkeypatch.setattr(mounts, "network", lambda _root: ended.wait(20) if shared == "silent" else shared)
        slot = next(two.stores[0].root.glob("*/*/*/*/0.src"))
        lock = slot.with_suffix(".lock")
        lock.touch()
        states = []
        for age in (60, 3600):
            os.utime(lock, (time.time() - age, time.time() - age))
            found = FoundStore(Store(MODELS, two.stores[0].root), StoreOrigin.CONFIGURED, "test")
            since = store_finder.writer_since(found, store_finder.writers_since())
            states.append([one.state for one in sycl.scanner.scan(found, datetime.now(UTC), {}, since).entries])
        assert states == [
            [EntryState.UNFINISHED if shared else EntryState.DEFECTIVE],
            [EntryState.DEFECTIVE],
        ]
        ended.set()
        if shared != "silent":
            asyncio.run(two.scanner.scan_stores())
            os.utime(lock, (time.time() - 60, time.time() - 60))
            asyncio.run(two.scanner.scan_stores(full=True))
            assert Counter(one.entry.state for one in catalog.read(all_entries)) == Counter(
                [EntryState.UNFINISHED if shared else EntryState.DEFECTIVE, EntryState.OK]
            )


def test_a_store_that_is_looked_at_first_while_all_are_is_not_forgotten(
    two: Two, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when somebody registers a model with a store of its own and warms it, while a long look goes on."""
    other = SyclStore(tmp_path.resolve() / "other")
    other.add("_ZTS1a")
    scan = two.scanner.scan

    def scanning(found: FoundStore, *given: object, **named: object) -> object:
        if found.store.root == two.stores[1].root:
            scan(FoundStore(Store(MODELS, other.root), StoreOrigin.CONFIGURED, "model net"), None)
        return scan(found, *given, **named)  # type: ignore[arg-type] # whatever that takes

    monkeypatch.setattr(two.scanner, "scan", scanning)
    asyncio.run(two.scanner.scan_stores())
    assert other.root in {one.store for one in two.catalog.read(all_stores)}
    # Whether it is one that nobody names any more the next look knows.
    monkeypatch.undo()
    asyncio.run(two.scanner.scan_stores(thorough=True))
    assert other.root not in {one.store for one in two.catalog.read(all_stores)}


def test_where_paths_lead_that_nobody_names_any_more_is_forgotten(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_finder, "_ROOTS", 20)
    for number in range(30):
        two.finder.real_root(two.stores[0].root / str(number))
    two.finder.find()
    assert two.stores[0].root / "0" not in two.finder._roots
    assert {store.root for store in two.stores} <= two.finder._roots.keys()


def test_of_what_store_a_touch_is_is_asked_once_for_all_touches(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may touch hundred thousand files between two looks, in a store of hundreds."""
    tracker = ActivityTracker(two.finder._context, two.scanner)
    program = Program(1, datetime.now(UTC), os.getuid(), "app", "app", libraries=("libsycl.so.8",))
    for number in range(100):
        touched = FileEvent(two.stores[number % 2].root, f"1/2/3/{number}/0.bin", FileAct.READ, 1, 1.0)
        tracker._waiting.append((touched, program))
    asked: list[Path] = []
    kinds_at = two.finder.kinds_at

    def asking(root: Path) -> frozenset[KindName]:
        asked.append(root)
        return kinds_at(root)

    monkeypatch.setattr(two.finder, "kinds_at", asking)
    asyncio.run(tracker.digest())
    assert sorted(asked) == sorted(store.root for store in two.stores)


@pytest.mark.flow
def test_a_process_that_cannot_be_looked_at_hides_no_other(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may mount what he likes can have the kernel wait where a process of his is looked at."""
    tracker = ActivityTracker(two.finder._context, two.scanner)
    stop = threading.Event()
    look = process_table.program
    held, free = (subprocess.Popen(["/bin/sleep", "60"]) for _ in range(2))

    def looking(pid: int, *given: object) -> Program | None:
        return look(pid, *given) if pid != held.pid or not stop.wait(60) else None  # type: ignore[arg-type]

    monkeypatch.setattr(process_table, "program", looking)
    monkeypatch.setattr(deadlines, "SECONDS", 0.2)
    now = time.clock_gettime(time.CLOCK_BOOTTIME) + 1
    try:
        assert tracker._program(held.pid, now) is None
        monkeypatch.setattr(deadlines, "SECONDS", 60.0)
        found = tracker._program(free.pid, now)
    finally:
        stop.set()
        for one in (held, free):
            one.kill()
            one.wait()
    assert found is not None
    assert found.name == "sleep"


def test_a_look_at_all_stores_forgets_what_went_long_ago(two: Two) -> None:
    long_ago, now = 0, int(datetime.now(UTC).timestamp()) * 1_000_000
    with two.catalog._write() as connection:
        connection.exec_driver_sql(
            "INSERT INTO departed (kind, root, leaf, source, trusted, first_seen, at, runs, models)"
            " VALUES ('sycl', '/', ?, 's', 't', 0, ?, '[]', '[]')",
            [("old/", long_ago), ("new/", now)],
        )
    asyncio.run(two.scanner.scan_stores())
    with two.catalog._read() as connection:
        assert connection.exec_driver_sql("SELECT leaf FROM departed").scalars().all() == ["new/"]


@pytest.mark.parametrize("part", [False, True])
def test_however_much_goes_between_two_looks_so_much_is_remembered(
    two: Two, monkeypatch: pytest.MonkeyPatch, *, part: bool
) -> None:
    """Who makes and removes entries all the time would fill the disk."""
    first = two.stores[0]
    other = first.add("_ZTS1b")
    asyncio.run(two.scanner.scan_stores())
    monkeypatch.setattr(departed, "_MOST", 4)
    monkeypatch.setattr(departed, "_AT_ONCE", 3)
    now = int(datetime.now(UTC).timestamp()) * 1_000_000
    with two.catalog._write() as connection:
        connection.exec_driver_sql(
            "INSERT INTO departed (kind, root, leaf, source, trusted, first_seen, at, runs, models)"
            " VALUES ('sycl', '/', ?, 's', 't', 0, ?, '[]', '[]')",
            [(f"{number}/", now - number * 1_000_000) for number in range(20)],
        )
    shutil.rmtree(other.leaf)
    asyncio.run(two.scanner.scan_stores(frozenset({first.root}) if part else frozenset()))
    with two.catalog._read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM departed").scalar() == 4
