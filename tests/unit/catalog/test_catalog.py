"""The catalog, on real SQLite with the real migrations."""

from __future__ import annotations

import functools
import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests import REPOSITORY
from tests.support import catalogs
from tests.support.builders import sycl_target
from xpucached.catalog import Catalog, migrating, opening, salvage, surveys, tables, targets
from xpucached.catalog.coverage import model_coverage
from xpucached.catalog.defects import note_defects
from xpucached.catalog.entries import (
    all_entries,
    entries_by_id,
    entry_page,
    find_entry,
    forget_entries,
    note_restored,
    unclaimed_entries,
)
from xpucached.catalog.figures import catalog_summary, model_sizes, needed_sizes
from xpucached.catalog.intents import fulfil, intend, open_intents
from xpucached.catalog.models import add_model, all_models, find_model, remove_model, sync_file_models
from xpucached.catalog.runs import begin_run, close_lost_runs, finish_run, newest_runs, with_newest_runs
from xpucached.catalog.scans import EarlierEntry, judge, known_entries, record_scan
from xpucached.catalog.stores import all_stores, forget_store
from xpucached.catalog.surveys import appeared_since, driver_changes, last_survey, record_survey
from xpucached.catalog.targets import target_presence
from xpucached.domain.beside_cpu import CpuComparison
from xpucached.domain.defects import CHANGED
from xpucached.domain.host import Device, DriverFile, DriverInUse, Host, Problem
from xpucached.domain.libraries import Libraries, SyclRuntime
from xpucached.domain.models import (
    Attribution,
    Figures,
    Layer,
    Model,
    Outcome,
    Pass,
    RanOn,
    Trial,
    WarmReason,
    Workload,
)
from xpucached.domain.names import Architecture, EntryKey, KindName, ModelName
from xpucached.domain.queries import EntryQuery
from xpucached.domain.stores import (
    Entry,
    EntryId,
    EntryState,
    FoundStore,
    ImageFormat,
    Kernel,
    Lookups,
    Scan,
    Store,
    StoreOrigin,
    StoreState,
    UnchangedEntry,
)
from xpucached.domain.targets import Origin, Target
from xpucached.domain.workloads import Loader, RunSpec, Variant
from xpucached.errors import CatalogError, NotFound, RequestError
from xpucached.kinds import sycl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOW: Final = datetime(2026, 5, 4, 12, 0, 0, 123456, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)
STORE: Final = Store(KindName("sycl"), Path("/var/cache/one"))
OTHER: Final = Store(KindName("sycl"), Path("/var/cache/two"))
OLD: Final = sycl_target("Level-Zero", "Intel(R) Arc(TM) B580 Graphics", "20.1.0", "1.6.31")
NEW: Final = replace(OLD, toolchain="1.6.40")
CPU: Final = sycl_target("OpenCL", "100%_CPU", "OpenCL 3.0", "2025.20")
THIRD: Final = sycl_target("OpenCL", "another", "OpenCL 3.0", "2025.20")


def architecture(environment: Target) -> Architecture:
    return Architecture("bmg-g21" if environment.family == "Level-Zero" else "x86_64")


def entry(key: str, store: Store = STORE, **facts: object) -> Entry:
    plain = Entry(
        EntryId(store, EntryKey(key)),
        stamp=f"stamp-{key}",
        size=1000,
        allocated=4096,
        created=NOW - 10 * HOUR,
        accessed=None,
        environment=OLD,
        digest=f"digest-{key}",
    )
    return replace(plain, **facts)


def scan(*entries: Entry, store: Store = STORE, at: datetime = NOW, **facts: object) -> Scan:
    found = FoundStore(store, StoreOrigin.FOUND, "default")
    plain = Scan(found, at, StoreState.OK, 1000, entries=entries)
    return replace(plain, **facts)


def stamps(catalog: Catalog) -> dict[EntryKey, str]:
    """Return what a look need not read again."""
    return {row.key: row.stamp for row in known_entries(catalog, STORE) if row.stamp is not None}


def host(*environments: Target, at: datetime = NOW, stamp: str = "one") -> Host:
    device = Device("B580", Architecture("bmg-g21"), "0000:03:00.0", "0xe20b", environments=environments)
    file = DriverFile(Path("/lib/a.so"), Path("/lib/a.so.1"), "1.6.31", 10, NOW, None, "level-zero 1.6.31")
    return Host(
        at, "boot", "6.12", stamp, (device,), (file,), environments, (Problem("no-level-zero", "it is missing"),)
    )


def model(name: str = "net", *, source: str = "socket", command: str = "python3") -> Model:
    workload = Workload((command, "app.py"), Path("/opt/app"), {"OMP_NUM_THREADS": "4"}, 60.5)
    before = ("app.service", "other@1.service")
    return Model(ModelName(name), workload, Path("/opt/cache"), 70, pinned=True, source=source, before=before)


def test_exercises_and_trials_come_back_as_they_went(catalog: Catalog) -> None:
    exercise = RunSpec(
        loader=Loader.TRAIN,
        python="/p",
        target="a:b",
        device="xpu",
        precisions=("int8", "float32"),
        shapes=("1x2",),
        caches=(Path("/c"),),
        memory=5,
        tolerance=0.25,
        options={"a": "b"},
    )
    loaded = replace(model("loaded"), workload=Workload((), Path("/"), {}, 1.0, exercise))
    catalog.write(add_model, loaded)
    assert catalog.read(find_model, loaded.name) == loaded
    assert loaded.workload.digest != Workload((), Path("/"), {}, 1.0).digest

    begun = catalog.write(begin_run, loaded, WarmReason.NEVER, "here", NOW)
    one = Pass(1.0, 2.0, 3, -9, 4, 5)
    trials = (
        Trial(Variant("xpu:0", "int8", "1x2"), Outcome.INVALID, (one, one), RanOn.OTHER, "cpu", ("a", "b")),
        Trial(
            Variant(),
            Outcome.WARMED,
            figures=(Figures(token_seconds=0.5, tokens=7),),
            detail="d",
            output="o",
            cpu=CpuComparison(gpu_seconds=1),
        ),
    )
    libraries = Libraries((SyclRuntime(Path("/a/libsycl.so.8"), "b1", 2),), (Path("/a/libintelocl.so"),))
    ended = catalog.write(
        finish_run, begun.id, Outcome.INVALID, (one,), Attribution(), (), "", "", NOW, trials, libraries=libraries
    )
    assert (ended.trials, ended.libraries) == (trials, libraries)
    assert catalog.read(newest_runs, loaded.name, 1)[0].trials == trials
    catalog.write(remove_model, loaded.name)
    assert catalog.read(newest_runs, None, 1) == ()


def ask(catalog: Catalog, **conditions: object) -> list[str]:
    query = replace(EntryQuery(), **conditions)
    page = catalog.read(entry_page, query, present={NEW.fingerprint}, now=NOW)
    assert page.total == len(page.entries)
    assert page.size == sum(one.entry.allocated for one in page.entries)
    return [one.entry.id.key for one in page.entries]


def run(
    catalog: Catalog,
    of: Model,
    outcome: Outcome = Outcome.WARMED,
    *,
    created: tuple[Entry, ...] = (),
    used: tuple[Entry, ...] = (),
    signature: str = "here",
    at: datetime = NOW,
) -> int:
    begun = catalog.write(begin_run, of, WarmReason.NEVER, signature, at - HOUR)
    attribution = Attribution(frozenset(one.id for one in created), frozenset(one.id for one in used))
    passes = (Pass(2.5, 9.0, 1 << 30, 0, len(created), len(used)), Pass(1.0, 1.0, 1 << 29, None, 0, len(used)))
    ended = catalog.write(
        finish_run, begun.id, outcome, passes, attribution, (NEW, OLD), "as it should", "output\n", at
    )
    assert ended == replace(
        begun,
        finished=at,
        outcome=outcome,
        passes=passes,
        environments=(NEW, OLD),
        detail="as it should",
        output="output\n",
    )
    return begun.id


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "catalog.sqlite"


@pytest.fixture
def catalog(path: Path) -> Iterator[Catalog]:
    opened = catalogs.fresh(path)
    yield opened
    opened.close()


# -- the file -----------------------------------------------------------------------------------------------------


def test_who_will_write_takes_its_turn_before_it_reads_and_who_only_reads_takes_none(
    catalog: Catalog, path: Path
) -> None:
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("SELECT count(*) FROM models")
        with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")

    def refused(connection: sa.Connection) -> None:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            begin(connection)

    catalog.read(begin)
    catalog.write(refused)
    catalog.read(begin)


def test_a_new_catalog_belongs_to_us_alone(path: Path, catalog: Catalog) -> None:
    catalog.write(record_scan, scan(entry("a/0")), architecture)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(one.stat().st_mode) for one in path.parent.iterdir()} == {0o600}
    assert catalog.rebuilt is None


def test_closing_leaves_one_file_and_opening_finds_everything_again(path: Path) -> None:
    first = Catalog.open(path)
    first.write(record_scan, scan(entry("a/0")), architecture)
    before = first.read(all_entries)
    first.close()
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    path.chmod(0o644)
    with closing(Catalog.open(path)) as again:
        assert again.read(all_entries) == before
        assert again.rebuilt is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_new_catalog_takes_models_over_from_the_user_s_other_daemon_and_later_ones_do_not_travel(
    path: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "own" / "catalog.sqlite"
    mine.parent.mkdir()
    with closing(Catalog.open(path)) as other:
        other.write(add_model, model())
        other.write(add_model, model("declared", source="/etc/m.toml"))
        # Its daemon still runs: what it wrote last is in its journal alone.
        with closing(Catalog.open(mine, other=path)) as opened:
            assert (opened.read(all_models), opened.rebuilt, opened.incomplete) == ((model(),), None, "")
            opened.write(remove_model, ModelName("net"))
        other.write(add_model, model("later"))
        with closing(Catalog.open(mine, other=path)) as opened:
            assert opened.read(all_models) == ()
        assert len(other.read(all_models)) == 3
    assert [one.name for one in mine.parent.iterdir()] == ["catalog.sqlite"]
    # Nor does what cannot be read keep one from its start; what is one's own counts.
    path.write_bytes(b"garbage")
    with closing(Catalog.open(tmp_path / "third.sqlite", other=path)) as opened:
        assert opened.read(all_models) == ()
    assert path.read_bytes() == b"garbage"


def test_the_catalog_of_another_account_is_set_aside(path: Path) -> None:
    owner = path.with_name("owner")
    # It was there before anybody noted whose it is.
    filled(path)
    with closing(Catalog.open(path, account="alice")) as opened:
        opened.write(add_model, model())
        before = opened.read(all_entries)
        assert before
        assert opened.rebuilt is None
    assert owner.read_text() == "alice\n"
    with closing(Catalog.open(path, account="alice")) as opened:
        assert (opened.read(all_entries), opened.read(all_models), opened.rebuilt) == (before, (model(),), None)
    kept = path.read_bytes()
    journal = path.with_name(path.name + "-wal")
    journal.write_bytes(b"hers")

    # Whoever has the number now gets nothing of it, and nothing of it is lost.
    other = path.with_name("other")
    owner.with_name(".owner.new").symlink_to(other)
    with closing(Catalog.open(path, account="bob")) as opened:
        (aside,) = (one for one in path.parent.glob("*.another-account-*") if not one.name.endswith("-wal"))
        assert aside.read_bytes() == kept
        assert aside.with_name(aside.name + "-wal").read_bytes() == b"hers"
        assert (opened.read(all_entries), opened.read(all_models)) == ((), ())
        assert "the account alice" in (opened.rebuilt or "")
        assert str(aside) in (opened.rebuilt or "")
        assert opened.incomplete == opened.rebuilt
        opened.write(add_model, model("bobs"))
    assert not other.exists()
    with closing(Catalog.open(path, account="bob")) as opened:
        assert (opened.read(all_models), opened.rebuilt) == ((model("bobs"),), None)

    # An account that was only renamed: somebody says so.
    owner.write_text("robert\n")
    with closing(Catalog.open(path, account="robert")) as opened:
        assert (opened.read(all_models), opened.rebuilt) == ((model("bobs"),), None)


@pytest.mark.parametrize("died", ["before it was on the disk", "before it was noted"])
def test_who_died_while_it_noted_whose_the_catalog_is(path: Path, died: str) -> None:
    filled(path)
    owner = path.with_name("owner")
    owner.write_text("" if died == "before it was on the disk" else "alice\n")
    if died == "before it was noted":
        path.rename(path.with_name("aside"))
    with closing(Catalog.open(path, account="bob")) as opened:
        assert opened.rebuilt is None
    assert owner.read_text() == "bob\n"
    assert not list(path.parent.glob("*.another-account-*"))


def test_whose_the_catalog_is_stands_in_a_regular_file_of_some_bytes(path: Path) -> None:
    path.parent.mkdir()
    note = path.with_name("owner")
    os.mkfifo(note)
    with pytest.raises(CatalogError, match="no regular file"):
        Catalog.open(path, account="bob")
    note.unlink()
    note.symlink_to("other")
    with pytest.raises(CatalogError, match="no regular file"):
        Catalog.open(path, account="bob")
    note.unlink()
    note.touch()
    os.truncate(note, 1 << 40)
    with pytest.raises(CatalogError, match="no regular file"):
        Catalog.open(path, account="bob")


def test_an_empty_file_is_a_new_catalog(path: Path) -> None:
    path.parent.mkdir()
    path.touch(0o600)
    with closing(Catalog.open(path)) as opened:
        assert opened.read(all_entries) == ()
        assert opened.rebuilt is None


@functools.cache
def _filled() -> bytes:
    """Return a catalog of 500 entries, which is made once for all."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "catalog.sqlite")
        with closing(Catalog.open(path)) as opened:
            opened.write(record_scan, scan(*(entry(f"{number}/0") for number in range(500))), architecture)
        return path.read_bytes()


def filled(path: Path) -> None:
    catalogs.put(path, _filled())


def random_bytes(path: Path) -> None:
    path.write_bytes(bytes(range(1, 256)) * 64)


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)


def torn_pages(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [random_bytes, cut_short, torn_pages])
def test_a_corrupt_catalog_is_set_aside(path: Path, damage: object) -> None:
    filled(path)
    assert callable(damage)
    damage(path)
    damaged = path.read_bytes()
    journal = path.with_name(path.name + "-wal")
    journal.write_bytes(b"not a journal")
    with closing(Catalog.open(path)) as opened:
        (aside,) = (one for one in path.parent.glob("*.corrupt-*") if not one.name.endswith(("-wal", "-shm")))
        assert aside.read_bytes() == damaged
        assert aside.with_name(aside.name + "-wal").read_bytes() == b"not a journal"
        assert opened.rebuilt is not None
        assert str(aside) in opened.rebuilt
        assert opened.read(all_entries) == ()
        opened.write(record_scan, scan(entry("a/0")), architecture)
    random_bytes(path)
    with closing(Catalog.open(path)) as opened:
        assert opened.rebuilt is not None
    assert len([one for one in path.parent.glob("*.corrupt-*") if not one.name.endswith(("-wal", "-shm"))]) == 2


def strike_root(path: Path, table: str) -> None:
    """Spoil the page at which a table begins, and leave all else as it is."""
    with closing(sqlite3.connect(path)) as raw:
        (root,) = raw.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        (size,) = raw.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * 8)


def test_a_large_catalog_is_used_while_it_is_read_and_set_aside_if_it_is_corrupt(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(path)
    with closing(Catalog.open(path)) as opened:
        assert opened.examined
        opened.write(add_model, model())
    monkeypatch.setattr(opening, "LARGE", 4096)
    with closing(Catalog.open(path)) as opened:
        assert (opened.examined, opened.rebuilt) == (False, None)
        opened.examine()
        assert (opened.examined, opened.corrupt, opened.mend()) == (True, False, False)
        assert len(opened.read(all_entries)) == 500
    strike_root(path, "entries")
    with closing(Catalog.open(path)) as opened:
        assert (opened.examined, opened.rebuilt) == (False, None)
        assert opened.read(catalog_summary).entries == 500
        with pytest.raises(CatalogError, match="the catalog failed"):
            opened.examine()
        # What can be written all the same does not hide it.
        opened.write(add_model, model("second"))
        assert opened.corrupt
        assert opened.mend()
        assert "2 registered models were taken over" in (opened.rebuilt or "")
        assert (opened.examined, opened.corrupt, opened.read(all_entries)) == (True, False, ())
        opened.write(record_scan, scan(entry("a/0")), architecture)
    assert len([one for one in path.parent.glob("*.corrupt-*") if not one.name.endswith(("-wal", "-shm"))]) == 1


@pytest.mark.parametrize("table", ["models", "runs", "intents", "host", "figures", "stores", "alembic_version"])
def test_what_a_start_needs_of_a_large_catalog_is_read_before_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    filled(path)
    strike_root(path, table)
    monkeypatch.setattr(opening, "LARGE", 4096)
    with closing(Catalog.open(path)) as opened:
        assert opened.rebuilt is not None
        assert opened.examined


@pytest.mark.flow
def test_who_lets_a_child_migrate_does_not_load_what_that_needs(path: Path) -> None:
    words = (
        "import sys; from pathlib import Path; from xpucached.catalog import Catalog;"
        "Catalog.open(Path(sys.argv[1]), apart=True).close(); print('alembic' in sys.modules)"
    )
    command = [sys.executable, "-c", words, str(path)]
    for is_there in (False, True):
        if is_there:
            catalogs.older(path)
        done = subprocess.run(command, cwd=catalogs.MIGRATIONS.parent, capture_output=True, check=True)
        assert done.stdout == b"False\n"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with closing(Catalog.open(path)) as opened:
            assert opened.read(all_entries) == ()
        path.unlink()


@pytest.mark.flow
def test_a_child_that_does_not_migrate_leaves_it_to_us(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for child in ("/bin/false", "/there/is/none"):
        catalogs.older(path)
        monkeypatch.setattr(sys, "executable", child)
        with closing(Catalog.open(path, apart=True)) as opened:
            assert (opened.read(all_entries), opened.rebuilt) == ((), None)
        path.unlink()


@pytest.mark.parametrize("damage", [random_bytes, cut_short, torn_pages])
def test_a_corrupt_catalog_is_not_set_aside_in_silence(path: Path, damage: Callable[[Path], None]) -> None:
    filled(path)
    damage(path)
    with closing(Catalog.open(path, apart=True)) as opened:
        assert opened.rebuilt is not None


def test_closing_ends_the_reading_of_a_large_catalog(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path)
    monkeypatch.setattr(opening, "LARGE", 4096)
    opened = Catalog.open(path)
    with opening.examining(path) as look:
        worker = threading.Thread(target=look.interrupt)
        asked = look.execute("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c")
        asked.fetchone()
        worker.start()
        worker.join()
        # The interruption holds for as long as a question is open: this one, and the examination.
        assert not opening.examine(look)
    opened.close()
    opened.examine()
    assert not opened.examined


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_that_could_not_be_opened_for_writing_for_a_while_is_written_again(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, *, durable: bool
) -> None:
    connect = sqlite3.connect

    def reading(file: str, **options: object) -> sqlite3.Connection:
        # As SQLite does where the file system refuses to open it for writing.
        return connect(file.replace("mode=rw", "mode=ro"), **options)  # type: ignore[call-overload, no-any-return]

    def write() -> None:
        with catalog._write(durable=durable) as connection:
            connection.execute(sa.text("DELETE FROM models"))

    catalog._engine.dispose()
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", reading)
        with pytest.raises(CatalogError, match="readonly"):
            write()
    assert catalog.trouble is not None
    write()
    assert catalog.trouble is None


def test_a_write_that_changes_nothing_does_not_say_that_a_full_disk_takes_something(catalog: Catalog) -> None:
    def write(statement: str) -> None:
        with catalog._write() as connection:
            connection.execute(sa.text(statement))

    write("CREATE TABLE filled (bytes)")
    write("PRAGMA max_page_count = 1")
    with pytest.raises(CatalogError, match="full"):
        write("INSERT INTO filled VALUES (zeroblob(100000))")
    write("DELETE FROM models")
    assert "full" in str(catalog.trouble)
    write("PRAGMA max_page_count = 1000000")
    write("INSERT INTO filled VALUES (zeroblob(100000))")
    assert catalog.trouble is None


def test_what_is_asked_in_one_moment_is_answered_as_of_that_moment(catalog: Catalog) -> None:
    catalog.write(record_scan, scan(entry("a/0")), architecture)
    with catalog.moment():
        assert catalog.read(catalog_summary).entries == 1
        writer = threading.Thread(
            target=catalog.write, args=(record_scan, scan(entry("a/0"), entry("b/0")), architecture)
        )
        writer.start()
        writer.join()
        assert (catalog.read(catalog_summary).entries, len(catalog.read(all_entries))) == (1, 1)
        with catalog.moment():
            assert catalog.read(all_stores)[0].entries == 1
        assert catalog.read(catalog_summary).entries == 1
    assert catalog.read(catalog_summary).entries == 2


def by_loader(name: str) -> Workload:
    exercise = RunSpec(
        Loader.PYTHON, f"/opt/{name}/bin/python", "nets:make", device="xpu", caches=(Path("/c"),), options={"b": "1"}
    )
    return Workload((), Path("/opt"), {"A": "1"}, 60.0, exercise)


@pytest.mark.flow
def test_models_are_taken_over_from_a_corrupt_catalog_if_they_are_whole(path: Path) -> None:
    with closing(Catalog.open(path)) as opened:
        for number in range(400):
            opened.write(
                record_scan, scan(entry(f"{number}/0"), store=Store(KindName("sycl"), Path(f"/{number}"))), architecture
            )
        for name in ("good", "garbled", "declared"):
            opened.write(add_model, model(name, source="/etc/m.toml" if name == "declared" else "socket", command=name))
        loaded = {name: replace(model(name), workload=by_loader(name)) for name in ("loaded", "misled")}
        for one in loaded.values():
            opened.write(add_model, one)
    with closing(sqlite3.connect(path)) as direct:
        direct.execute("UPDATE models SET command = replace(command, 'garbled', 'gXrbled')")
        direct.execute("UPDATE models SET exercise = replace(exercise, 'misled', 'mXsled')")
        direct.commit()
        (root,) = direct.execute("SELECT rootpage FROM sqlite_master WHERE name = 'stores'").fetchone()
    with path.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(b"\xff" * 4096)
    with closing(Catalog.open(path)) as opened:
        assert opened.rebuilt is not None
        assert "2 registered models" in opened.rebuilt
        assert opened.read(all_models) == (model("good", command="good"), loaded["loaded"])


def test_a_catalog_from_a_newer_version_is_refused_untouched(path: Path) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as direct:
        direct.execute("UPDATE alembic_version SET version_num = '9999'")
        direct.commit()
    before = {one.name: one.read_bytes() for one in path.parent.iterdir()}
    with pytest.raises(CatalogError, match="9999"):
        Catalog.open(path)
    assert {one.name: one.read_bytes() for one in path.parent.iterdir()} == before


def test_a_newer_catalog_that_was_not_closed_is_refused_untouched(path: Path, tmp_path: Path) -> None:
    filled(path)
    left = tmp_path / "left"
    left.mkdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as direct:
        direct.execute("UPDATE alembic_version SET version_num = '9999'")
        # As a kill leaves it: the newest revision stands in the journal only.
        for one in (path, path.with_name(path.name + "-wal")):
            shutil.copy(one, left / one.name)
    before = {one.name: one.read_bytes() for one in left.iterdir()}
    assert len(before) == 2
    with pytest.raises(CatalogError, match="9999"):
        Catalog.open(left / path.name)
    assert {name: (left / name).read_bytes() for name in before} == before


def a_foreign_database(path: Path) -> None:
    path.unlink()
    path.touch(0o600)
    _with(path, "CREATE TABLE photographs (id INTEGER)")


def a_link(path: Path) -> None:
    real = path.with_name("real")
    path.rename(real)
    path.symlink_to(real)


def a_link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "photograph").touch()


def a_pipe_for_a_journal(path: Path) -> None:
    os.mkfifo(path.with_name(path.name + "-wal"))


def a_directory_for_shared_memory(path: Path) -> None:
    path.with_name(path.name + "-shm").mkdir()


def schema_that_is_no_text(path: Path) -> None:
    """One byte of the schema that is not UTF-8: the driver raises `UnicodeDecodeError` for it."""
    content = path.read_bytes()
    at = content.index(b"CREATE TABLE alembic_version")
    path.write_bytes(content[: at + 13] + b"\xff" + content[at + 14 :])


def schema_that_is_garbage(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE host", b"CREATE TABLX host"))


def _with(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as direct:
        direct.execute(statement, values)
        direct.commit()


def no_revision(path: Path) -> None:
    _with(path, "DELETE FROM alembic_version")


def a_revision_that_never_was(path: Path) -> None:
    _with(path, "UPDATE alembic_version SET version_num = '00:9'")


def a_missing_table(path: Path) -> None:
    _with(path, "DROP TABLE runs")


def a_view_for_a_table(path: Path) -> None:
    _with(path, "ALTER TABLE days RENAME TO other")
    _with(path, "CREATE VIEW days AS SELECT * FROM other")


def a_trigger_that_refuses(path: Path) -> None:
    _with(path, "CREATE TRIGGER no BEFORE INSERT ON runs BEGIN SELECT RAISE(ABORT, 'no'); END")


def a_missing_trigger(path: Path) -> None:
    _with(path, "DROP TRIGGER entries_gone")


def a_missing_column(path: Path) -> None:
    _with(path, "ALTER TABLE stores DROP COLUMN via")


def a_store_of_another_state(path: Path) -> None:
    _with(path, "UPDATE stores SET state = 'oK'")


def text_for_a_number(path: Path) -> None:
    _with(path, "UPDATE entries SET size = 'large'")


def a_time_beyond_the_calendar(path: Path) -> None:
    _with(path, "UPDATE stores SET scanned = 9223372036854775807")


def notes_that_are_no_json(path: Path) -> None:
    _with(path, "UPDATE stores SET notes = '['")


def a_name_that_is_no_text(path: Path) -> None:
    _with(path, "UPDATE stores SET via = CAST(x'ff' AS TEXT)")


def deep_json(path: Path) -> None:
    _with(path, "UPDATE stores SET notes = ?", "[" * 100_000)


USELESS = (
    a_foreign_database,
    a_link,
    a_link_to_nothing,
    a_pipe,
    a_directory,
    a_pipe_for_a_journal,
    a_directory_for_shared_memory,
    schema_that_is_no_text,
    schema_that_is_garbage,
    no_revision,
    a_revision_that_never_was,
    a_missing_table,
    a_view_for_a_table,
    a_trigger_that_refuses,
    a_missing_trigger,
    a_missing_column,
    a_store_of_another_state,
    text_for_a_number,
    a_time_beyond_the_calendar,
    notes_that_are_no_json,
    a_name_that_is_no_text,
    deep_json,
)


@pytest.mark.flow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("damage", USELESS, ids=lambda one: one.__name__)
def test_what_cannot_be_used_is_set_aside_whatever_it_is(path: Path, damage: Callable[[Path], None]) -> None:
    filled(path)
    damage(path)
    before = path.lstat()
    with closing(Catalog.open(path, apart=True)) as opened:
        assert opened.rebuilt is not None
        assert "set aside as" in opened.rebuilt
        assert opened.read(all_entries) == ()
        opened.write(add_model, model())
    (aside,) = (one for one in path.parent.glob("*.corrupt-*") if not one.name.endswith(("-wal", "-shm")))
    # Itself and not what a link leads to, and nothing of it is lost.
    assert (aside.lstat().st_ino, aside.lstat().st_mode) == (before.st_ino, before.st_mode)
    with closing(Catalog.open(path)) as opened:
        assert opened.rebuilt is None
        assert [one.name for one in opened.read(all_models)] == ["net"]


@pytest.mark.parametrize("damage", [schema_that_is_no_text, schema_that_is_garbage], ids=lambda one: one.__name__)
def test_models_are_taken_over_where_what_is_said_of_another_table_is_damaged(
    path: Path, damage: Callable[[Path], None]
) -> None:
    filled(path)
    with closing(Catalog.open(path)) as opened:
        opened.write(add_model, model())
    damage(path)
    with closing(Catalog.open(path)) as opened:
        assert "1 registered models were taken over" in (opened.rebuilt or "")
        assert [one.name for one in opened.read(all_models)] == ["net"]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable to root")
def test_a_catalog_that_may_not_be_read_is_made_readable(path: Path) -> None:
    filled(path)
    path.chmod(0)
    with closing(Catalog.open(path)) as opened:
        assert len(opened.read(all_entries)) == 500


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET kernels = '['",
        "UPDATE entries SET options = CAST(x'ff' AS TEXT)",
        "UPDATE entries SET kernels = '7'",
    ],
)
def test_rows_that_nobody_of_ours_wrote_are_found_at_work(path: Path, statement: str) -> None:
    filled(path)
    with closing(Catalog.open(path)) as opened:
        opened.write(add_model, model())
        _with(path, statement)
        with pytest.raises(CatalogError) as caught:
            opened.read(all_entries)
        assert "restart" in caught.value.hint
        assert opened.corrupt
        assert opened.mend()
        assert "1 registered models were taken over" in (opened.rebuilt or "")
        assert opened.read(all_entries) == ()
        assert not opened.corrupt


def test_a_mistake_of_a_caller_does_not_set_the_catalog_aside(path: Path) -> None:
    filled(path)
    with closing(Catalog.open(path)) as opened:
        with pytest.raises(sa.exc.StatementError, match="naive"):
            opened.write(note_restored, [EntryId(STORE, EntryKey("1/0"))], datetime(2026, 1, 1))  # noqa: DTZ001 - the mistake
        assert not opened.corrupt
        assert not opened.mend()
        assert len(opened.read(all_entries)) == 500


@pytest.mark.flow
def test_any_flipped_bytes_leave_a_catalog_that_opens(path: Path) -> None:
    """A short sample; `python -m tests.fuzz catalog` tries as many as one likes."""
    filled(path)
    with closing(Catalog.open(path)) as opened:
        opened.write(add_model, model())
        opened.write(record_survey, host(OLD))
    whole = path.read_bytes()
    chance = random.Random(14)  # noqa: S311 - repeatable
    for number in range(60):
        place = path.parent / str(number) / path.name
        place.parent.mkdir()
        content = bytearray(whole)
        # The schema is at the beginning, and is what most readers forget.
        end = 8192 if number % 2 else len(content)
        for _ in range(chance.choice((1, 1, 2, 8, 64))):
            content[chance.randrange(end)] = chance.randrange(256)
        place.write_bytes(content)
        opens_or_says_what_to_do(place)
        shutil.rmtree(place.parent)


def opens_or_says_what_to_do(path: Path) -> bool:
    """Use a catalog as a start does; tell if it was refused."""
    refused: CatalogError | None = None
    opened: Catalog | None = None
    try:
        opened = Catalog.open(path)
    except CatalogError as error:
        refused = error
    if opened is None:
        assert refused is not None
        assert "newer" in refused.message
        assert "move the file away" in refused.hint
        return True
    with closing(opened):
        for _ in range(2):
            try:
                opened.read(last_survey)
                opened.read(all_models)
                opened.read(all_stores)
                opened.read(model_coverage)
                opened.read(newest_runs)
                opened.read(driver_changes)
                opened.read(target_presence)
                opened.read(open_intents)
                opened.write(close_lost_runs, NOW)
                opened.read(all_entries)
                opened.write(record_scan, scan(entry("a/0")), architecture)
                opened.write(record_survey, host(NEW))
            except CatalogError:
                # Met at work: the next look makes a new one.
                assert opened.corrupt
                assert opened.mend()
            else:
                return False
        pytest.fail("a new catalog is damaged")


def test_a_place_where_no_file_can_be_is_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CatalogError) as caught:
        Catalog.open(tmp_path / "file" / "catalog.sqlite")
    assert caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_forbidden_folder_is_refused_with_a_hint(path: Path) -> None:
    filled(path)
    path.parent.chmod(0o000)
    try:
        with pytest.raises(CatalogError) as caught:
            Catalog.open(path)
        assert caught.value.hint
    finally:
        path.parent.chmod(0o700)


def test_damage_met_while_working_is_a_refusal(path: Path) -> None:
    filled(path)
    opened = Catalog.open(path)
    torn_pages(path)
    with pytest.raises(CatalogError) as caught:
        opened.read(all_entries)
    assert "restart" in caught.value.hint
    opened.close()


# -- migrations ---------------------------------------------------------------------------------------------------


def test_the_tables_are_what_the_migrations_make(path: Path) -> None:
    catalogs.migrated(path)
    engine = opening.connections(path)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, tables.METADATA) == []
    engine.dispose()


def test_a_new_catalog_is_made_as_one_that_grew(path: Path, tmp_path: Path) -> None:
    """Alembic overlooks table options and the order of columns: the text that SQLite keeps tells the first."""
    grown = tmp_path / "grown.sqlite"
    catalogs.migrated(grown)
    Catalog.open(path).close()

    def drawn(one: Path) -> tuple[list[list[str]], dict[str, list[object]]]:
        with closing(sqlite3.connect(one)) as direct:
            texts = [text for (text,) in direct.execute("SELECT sql FROM sqlite_master") if text is not None]
            names = [name for (name,) in direct.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return (
                sorted(sorted(text.replace(",", " ").split()) for text in texts),
                {name: direct.execute(f"PRAGMA table_xinfo('{name}')").fetchall() for name in names},
            )

    assert drawn(path) == drawn(grown)
    with closing(sqlite3.connect(path)) as direct:
        assert direct.execute("SELECT * FROM alembic_version").fetchall() == [(tables.REVISION,)]


def test_the_newest_revision_is_the_one_that_the_tables_name() -> None:
    assert ScriptDirectory(str(catalogs.MIGRATIONS)).get_heads() == [tables.REVISION]


def revised(tmp_path: Path, body: str) -> Path:
    """Copy the migrations, and add one after the newest."""
    home = tmp_path / "migrations"
    shutil.copytree(catalogs.MIGRATIONS, home, ignore=shutil.ignore_patterns("__pycache__"))
    head = f"import sqlalchemy as sa\nfrom alembic import op\nrevision = 'next'\ndown_revision = {tables.REVISION!r}\n"
    (home / "versions" / "next.py").write_text(f"{head}def upgrade():\n{body}")
    return home


def test_a_migration_that_fails_leaves_none_of_them(path: Path, tmp_path: Path) -> None:
    home = revised(
        tmp_path, "    op.create_table('more', sa.Column('x', sa.Integer))\n    raise RuntimeError('boom')\n"
    )
    path.parent.mkdir()
    path.touch()
    engine = opening.connections(path)
    with engine.connect() as connection, pytest.raises(RuntimeError, match="boom"):
        migrating.migrate(connection, home)
    engine.dispose()
    with closing(sqlite3.connect(path)) as direct:
        assert direct.execute("SELECT name FROM sqlite_master").fetchall() == []


def test_a_migration_that_makes_a_parent_anew_keeps_its_children(path: Path, tmp_path: Path) -> None:
    home = revised(tmp_path, "    with op.batch_alter_table('stores', recreate='always') as batch:\n"
                             "        batch.add_column(sa.Column('more', sa.Integer))\n")  # fmt: skip
    filled(path)
    engine = opening.connections(path)
    with engine.connect() as connection:
        migrating.migrate(connection, home)
        # The same connection works on, so it must mind foreign keys again.
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
        assert connection.exec_driver_sql("SELECT count(*) FROM entries").scalar() == 500
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == "next"
    engine.dispose()


# -- scans --------------------------------------------------------------------------------------------------------


def test_an_entry_comes_back_as_it_was_recorded(catalog: Catalog) -> None:
    whole = entry(
        "1/2/3/4/0",
        accessed=NOW,
        options="-cl-opt 'é'",
        constants="00ff",
        image=ImageFormat.SPIRV,
        image_size=99,
        binary=ImageFormat.ELF,
        kernels=(Kernel("_ZTS1A", "A"), Kernel("plain", "plain", "libtorch_xpu.so")),
    )
    defective = entry(
        "2/0",
        environment=None,
        digest=None,
        state=EntryState.DEFECTIVE,
        defect=sycl.defects.SRC_FIFO,
        detail="a pipe",
        stamp="s",
    )
    silent = entry("ext_kernel_compiler/1/0", environment=CPU, observed=True)
    delta = catalog.write(record_scan, scan(whole, defective, silent), architecture)
    assert (delta.added, delta.changed, delta.vanished, delta.entries, delta.size) == (3, 0, 0, 3, 3 * 4096)
    first, second, third = catalog.read(all_entries)
    assert [first.entry, second.entry, third.entry] == [whole, defective, silent]
    assert [one.origin for one in (first, second, third)] == [Origin.DECLARED, None, Origin.OBSERVED]
    assert [one.architecture for one in (first, second, third)] == ["bmg-g21", None, "x86_64"]
    assert {one.first_seen for one in (first, second, third)} == {NOW}
    assert catalog.read(entries_by_id, [silent.id, whole.id, entry("gone").id]) == (first, third)


def test_what_the_catalog_alone_knows_outlives_a_change(catalog: Catalog) -> None:
    catalog.write(record_scan, scan(entry("a/0"), entry("b/0")), architecture)
    catalog.write(add_model, model())
    run(catalog, model(), created=(entry("a/0"),))
    changed = entry("a/0", stamp="another", size=2000, environment=NEW)
    delta = catalog.write(
        record_scan,
        scan(changed, at=NOW + HOUR, unchanged=(UnchangedEntry(EntryKey("b/0"), NOW + HOUR),)),
        architecture,
    )
    assert (delta.added, delta.changed, delta.vanished, delta.entries) == (0, 1, 0, 2)
    first, second = catalog.read(all_entries)
    assert first.entry == changed
    assert (first.first_seen, first.models, first.last_used_by) == (NOW, ("net",), "run")
    assert second.entry == entry("b/0", accessed=NOW + HOUR)
    assert (second.last_used, second.last_used_by) == (NOW + HOUR, "access-time")
    again = catalog.write(record_scan, scan(changed, entry("b/0"), at=NOW + 2 * HOUR), architecture)
    assert (again.added, again.changed, again.vanished) == (0, 0, 0)


def test_a_store_that_cannot_be_read_keeps_its_entries_and_a_missing_one_does_not(catalog: Catalog) -> None:
    catalog.write(record_scan, scan(entry("a/0"), notes=("a lock",), foreign=3), architecture)
    catalog.write(record_scan, scan(entry("a/0", OTHER), store=OTHER), architecture)
    for state in (StoreState.UNREADABLE, StoreState.NOT_A_DIRECTORY):
        catalog.write(record_scan, scan(state=state, at=NOW + HOUR, owner=None), architecture)
        status = catalog.read(all_stores)[0]
        assert (status.id, status.state, status.entries, status.scanned) == (STORE, state, 1, NOW + HOUR)
        assert (status.owner, status.foreign, status.notes) == (None, 0, ())
    delta = catalog.write(record_scan, scan(state=StoreState.MISSING), architecture)
    assert (delta.vanished, delta.entries, delta.size) == (1, 0, 0)
    assert [status.entries for status in catalog.read(all_stores)] == [0, 1]


def test_only_what_cannot_change_in_silence_has_a_stamp(catalog: Catalog) -> None:
    defective = EntryState.DEFECTIVE
    catalog.write(
        record_scan,
        scan(
            entry("whole"),
            entry("torn", state=defective, defect=sycl.defects.BIN_TRUNCATED),
            entry("young", state=EntryState.UNFINISHED),
            entry("locked", state=defective, defect=sycl.defects.STALE_LOCK),
        ),
        architecture,
    )
    assert stamps(catalog) == {"whole": "stamp-whole", "torn": "stamp-torn"}
    assert [row.key for row in known_entries(catalog, STORE)] == ["locked", "torn", "whole", "young"]
    assert list(known_entries(catalog, OTHER)) == []


def test_what_programs_found_stays_until_a_look_at_the_whole_store_tells_it_anew(catalog: Catalog) -> None:
    def told(lookups: Lookups | None) -> Lookups | None:
        catalog.write(record_scan, scan(entry("a"), lookups=lookups), architecture)
        (store,) = catalog.read(all_stores)
        return store.lookups

    assert told(None) is None
    assert told(Lookups(31, 2)) == Lookups(31, 2)
    assert told(None) == Lookups(31, 2)
    assert told(Lookups((1 << 62) - 1, 0)) == Lookups((1 << 62) - 1, 0)
    assert told(Lookups(0, 0)) is None


def test_stores_have_figures_and_go_with_their_entries(catalog: Catalog) -> None:
    defective = entry("b/0", state=EntryState.DEFECTIVE, defect=sycl.defects.BIN_EMPTY, size=1, allocated=2)
    young = entry("c/0", state=EntryState.UNFINISHED)
    catalog.write(record_scan, scan(entry("a/0"), defective, young, notes=("x", "y"), foreign=3), architecture)
    (status,) = catalog.read(all_stores)
    assert (status.origin, status.via, status.state, status.owner) == (
        StoreOrigin.FOUND,
        "default",
        StoreState.OK,
        1000,
    )
    assert (status.entries, status.defective, status.unfinished) == (3, 1, 1)
    assert (status.size, status.allocated, status.foreign, status.notes) == (2001, 8194, 3, ("x", "y"))
    catalog.write(forget_store, STORE)
    catalog.write(forget_store, STORE)
    assert catalog.read(all_stores) == ()
    assert catalog.read(all_entries) == ()


KEYS: Final = st.sampled_from([EntryKey(f"{one}/0") for one in "abcdef"])
DISKS: Final = st.lists(st.dictionaries(KEYS, st.integers(0, 2)), max_size=5)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    opened = Catalog.open(tmp_path_factory.mktemp("shared") / "catalog.sqlite")
    yield opened
    opened.close()


@settings(max_examples=60, deadline=None)
@given(disks=DISKS, others=st.dictionaries(KEYS, st.integers(0, 2)), complete=st.booleans())
def test_after_any_scans_the_catalog_is_the_last_one(
    shared: Catalog, disks: list[dict[EntryKey, int]], others: dict[EntryKey, int], *, complete: bool
) -> None:
    def met(key: EntryKey, version: int, step: int, store: Store = STORE) -> Entry:
        return replace(
            entry(key, store),
            stamp=f"{key}{version}",
            size=version,
            environment=(OLD, NEW, None)[version],
            accessed=NOW + step * HOUR,
        )

    neighbours = [met(key, version, 0, OTHER) for key, version in others.items()]
    shared.write(record_scan, scan(*neighbours, store=OTHER), architecture)
    seen: dict[EntryKey, datetime] = {}
    for step, disk in enumerate(disks):
        at = NOW + step * HOUR
        known = {} if complete else stamps(shared)
        entries = [met(key, version, step) for key, version in disk.items()]
        fresh = tuple(one for one in entries if known.get(one.id.key) != one.stamp)
        unchanged = tuple(
            UnchangedEntry(one.id.key, one.accessed) for one in entries if known.get(one.id.key) == one.stamp
        )
        delta = shared.write(record_scan, scan(*fresh, at=at, unchanged=unchanged), architecture)
        assert delta.added == len(disk.keys() - seen.keys())
        assert delta.vanished == len(seen.keys() - disk.keys())
        assert (delta.entries, delta.size) == (len(disk), 4096 * len(disk))
        seen = {key: seen.get(key, at) for key in disk}
        held = [one for one in shared.read(all_entries) if one.entry.id.store == STORE]
        assert {one.entry for one in held} == set(entries)
        assert {one.entry.id.key: one.first_seen for one in held} == seen
    assert {one.entry for one in shared.read(all_entries) if one.entry.id.store == OTHER} == set(neighbours)
    shared.write(forget_store, STORE)
    shared.write(forget_store, OTHER)


def test_a_program_that_changed_in_place_is_defective_until_it_is_itself_again(catalog: Catalog) -> None:
    def after(*, digest: str, stamp: str = "first") -> Entry:
        catalog.write(record_scan, scan(entry("a/0", digest=digest, stamp=stamp)), architecture)
        return catalog.read(all_entries)[0].entry

    assert after(digest="one").state is EntryState.OK
    spoiled = after(digest="two", stamp="later")
    assert (spoiled.state, spoiled.defect, spoiled.digest) == (EntryState.DEFECTIVE, CHANGED, "two")
    assert "one" in spoiled.detail
    assert "two" in spoiled.detail
    # A complete scan reads the same again, and must not come to trust it.
    assert after(digest="two", stamp="later") == spoiled
    assert after(digest="one", stamp="restored").state is EntryState.OK


def test_what_was_not_there_or_not_whole_before_is_judged_anew() -> None:
    before = EarlierEntry("stamp", NOW, 1000, EntryState.OK, None, "one")
    changed = entry("a/0", created=NOW, digest="two")
    assert judge(changed, before)[0].defect == CHANGED
    assert judge(changed, None) == (changed, "two")
    assert judge(changed, replace(before, created=NOW - HOUR)) == (changed, "two")
    assert judge(changed, replace(before, size=999)) == (changed, "two")
    mended = replace(before, state=EntryState.DEFECTIVE, defect=sycl.defects.BIN_MISSING.code)
    assert judge(changed, mended) == (changed, "two")
    unread = replace(changed, digest=None)
    assert judge(unread, before) == (unread, "one")


def test_while_its_source_is_the_same_another_program_is_damage() -> None:
    before = EarlierEntry("stamp", NOW, 1000, EntryState.OK, None, "one 7.1")
    changed = entry("a/0", created=NOW - HOUR, size=7, digest="two", source="7.1")
    assert judge(changed, before)[0].defect == CHANGED
    # Whatever was seen in between.
    missing = replace(before, state=EntryState.DEFECTIVE, defect=sycl.defects.BIN_MISSING.code)
    assert judge(changed, missing)[0].defect == CHANGED
    anew = replace(changed, source="7.2")
    assert judge(anew, before) == (anew, "two 7.2")
    gone = replace(changed, digest=None, source=None, state=EntryState.DEFECTIVE, defect=sycl.defects.SRC_MISSING)
    assert judge(gone, before) == (gone, "one 7.1")
    # What an earlier version noted gets its source with the next look.
    same = replace(changed, digest="one")
    assert judge(same, replace(before, trusted="one", created=NOW - HOUR, size=7)) == (same, "one 7.1")


def test_a_whole_copy_stands_for_the_one_that_changed(catalog: Catalog) -> None:
    first = entry("a/0", digest="one", source="7.1")
    second = entry(
        "a/1", digest="one", source="8.1", state=EntryState.DEFECTIVE, defect=sycl.defects.DUPLICATE, detail="of slot 0"
    )
    catalog.write(record_scan, scan(first, second), architecture)
    changed = replace(first, digest="two", stamp="later")
    catalog.write(record_scan, scan(changed, second), architecture)
    defects = [one.entry.defect for one in catalog.read(all_entries)]
    assert defects == [CHANGED, sycl.defects.SHADOWED]


# -- questions ----------------------------------------------------------------------------------------------------


def test_every_condition_selects(catalog: Catalog) -> None:
    catalog.write(
        record_scan,
        scan(
            entry("a", environment=NEW, size=10),
            entry("b", environment=CPU, size=20, accessed=NOW - HOUR),
            entry("c", environment=None, state=EntryState.DEFECTIVE, defect=sycl.defects.BIN_EMPTY, size=30),
        ),
        architecture,
    )
    catalog.write(record_scan, scan(entry("d", OTHER, size=40), store=OTHER), architecture)
    catalog.write(note_defects, (CHANGED, *sycl.defects.DEFECTS))
    catalog.write(add_model, model())
    run(catalog, model(), created=(entry("a"),), used=(entry("c"),))
    assert ask(catalog) == ["a", "b", "c", "d"]
    assert ask(catalog, ref=entry("b").id.ref[:8]) == ["b"]
    assert ask(catalog, ref=entry("b").id.ref.upper()) == ["b"]
    assert ask(catalog, ref="no") == []
    assert ask(catalog, kind=KindName("sycl")) == ["a", "b", "c", "d"]
    assert ask(catalog, kind=KindName("neo")) == []
    assert ask(catalog, store=OTHER.root) == ["d"]
    assert ask(catalog, driver="1.6.31") == ["d"]
    assert ask(catalog, driver="1.6.*") == ["a", "d"]
    assert ask(catalog, driver="1_6*") == []
    assert ask(catalog, driver="current") == ["a"]
    assert ask(catalog, architecture="bmg-g21") == ["a", "d"]
    assert ask(catalog, architecture="acm-g10,bmg-g21") == ["a", "d"]
    assert ask(catalog, device="B580") == ["a", "d"]
    assert ask(catalog, device="%_") == ["b"]
    assert ask(catalog, model=ModelName("net")) == ["a", "c"]
    assert ask(catalog, model=ModelName("other")) == []
    assert ask(catalog, state=EntryState.DEFECTIVE) == ["c"]
    assert ask(catalog, defect=sycl.defects.BIN_EMPTY.code) == ["c"]
    assert ask(catalog, defect=sycl.defects.LINK.code) == []
    assert ask(catalog, min_size=20) == ["b", "c", "d"]
    assert ask(catalog, max_size=20, min_size=20) == ["b"]
    assert ask(catalog, unused=3600.0) == ["b", "d"]
    assert ask(catalog, unused=3601.0) == ["d"]
    assert ask(catalog, min_size=-(2**80), max_size=2**80, unused=0.0) == ["a", "b", "c", "d"]
    assert ask(catalog, unused=1e300) == []
    assert ask(catalog, model=ModelName("net"), driver="current", min_size=1) == ["a"]


def test_kernels_are_found_by_either_name_and_signs_stand_for_themselves(catalog: Catalog) -> None:
    catalog.write(
        record_scan,
        scan(
            entry("a", kernels=(Kernel("_ZTS4gemm", "gemm<float>", "libtorch.so"),)),
            entry("b", kernels=(Kernel("k", "100% sure"), Kernel("_ZTSx", "ax_b"))),
            entry("c", kernels=(Kernel("axyb", "1000 sure"),)),
            entry("d", kernels=(Kernel("tr/icky\\name", 'quo"te'),)),
        ),
        architecture,
    )
    assert ask(catalog, kernel="_ZTS4") == ["a"]
    assert ask(catalog, kernel="gemm<") == ["a"]
    assert ask(catalog, kernel="0% s") == ["b"]
    assert ask(catalog, kernel="x_b") == ["b"]
    assert ask(catalog, kernel="libtorch") == []
    assert ask(catalog, kernel="r/icky\\n") == ["d"]
    assert ask(catalog, kernel='o"t') == ["d"]
    with pytest.raises(RequestError):
        ask(catalog, kernel="x" * 60_000)
    with pytest.raises(RequestError):
        ask(catalog, kernel="\ud800")


@pytest.mark.parametrize("limit", [1, 3, 7, 20, 21, 100])
def test_pages_cover_everything_once(catalog: Catalog, limit: int) -> None:
    catalog.write(record_scan, scan(*(entry(f"{number:02}", allocated=number) for number in range(21))), architecture)
    keys: list[str] = []
    after: str | None = None
    while True:
        query = EntryQuery(limit=limit, after=after, min_size=1)
        page = catalog.read(entry_page, query, present=(), now=NOW)
        assert len(page.entries) <= limit
        assert (page.total, page.size) == (21, 210)
        keys += [one.entry.id.key for one in page.entries]
        if page.next is None:
            break
        assert page.next != after
        after = page.next
    assert keys == [f"{number:02}" for number in range(21)]


@pytest.mark.parametrize("query", [EntryQuery(limit=4), EntryQuery(limit=4, min_size=1)], ids=["all", "some"])
def test_of_a_page_no_more_is_read_than_it_shows_and_one(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, query: EntryQuery
) -> None:
    catalog.write(record_scan, scan(*(entry(f"{number:02}") for number in range(21))), architecture)
    read: list[int] = []
    really = sa.CursorResult.all

    def counted(result: sa.CursorResult[object]) -> object:
        found = really(result)
        read.append(len(found))
        return found

    monkeypatch.setattr(sa.CursorResult, "all", counted)
    page = catalog.read(entry_page, query, present=(), now=NOW)

    assert (len(page.entries), page.total) == (4, 21)
    assert max(read) == 5


def test_a_page_of_nothing_counts(catalog: Catalog) -> None:
    catalog.write(record_scan, scan(entry("a")), architecture)
    page = catalog.read(entry_page, EntryQuery(limit=0), present=(), now=NOW)
    assert (page.entries, page.total, page.size, page.next) == ((), 1, 4096, None)


def test_an_entry_is_shown_with_the_same_program_in_caches_of_other_kinds(catalog: Catalog) -> None:
    driver = Store(KindName("neo"), Path("/home/u/.cache/neo_compiler_cache"))
    facts = (("gpu", "bmg-g21"),)
    here = [entry("a", input="1", digest="x", facts=facts), entry("b", input="1"), entry("c", input="2"), entry("d")]
    there = [entry("k", driver, input="1", digest="x", state=EntryState.DEFECTIVE), entry("l", driver, input=None)]
    catalog.write(record_scan, scan(*here), architecture)
    catalog.write(record_scan, scan(*there, store=driver), architecture)

    def elsewhere(one: Entry) -> list[tuple[str, str, str, bool]]:
        shown = catalog.read(find_entry, one.id.ref)
        assert shown.entry == one
        return [(same.kind, same.key, same.ref, same.identical) for same in shown.elsewhere]

    assert elsewhere(here[0]) == [("neo", "k", there[0].id.ref, True)]
    assert elsewhere(here[1]) == [("neo", "k", there[0].id.ref, False)]
    assert elsewhere(there[0]) == [("sycl", "a", here[0].id.ref, True), ("sycl", "b", here[1].id.ref, False)]
    assert [elsewhere(one) for one in (here[2], here[3], there[1])] == [[], [], []]
    assert catalog.read(find_entry, here[0].id.ref).elsewhere[0].state is EntryState.DEFECTIVE
    assert all(one.elsewhere == () for one in catalog.read(all_entries))


@pytest.mark.parametrize(
    "query",
    [
        *(EntryQuery(after=after) for after in ("x", "9" * 40, f"{'0' * 20}{'9' * 20}", "0" * 5000, "-1")),
        EntryQuery(limit=-1),
    ],
)
def test_an_impossible_page_is_refused(catalog: Catalog, query: EntryQuery) -> None:
    with pytest.raises(RequestError):
        catalog.read(entry_page, query, present=(), now=NOW)


def test_an_entry_is_found_by_the_beginning_of_its_reference(catalog: Catalog) -> None:
    entries = [entry(f"{number}") for number in range(40)]
    catalog.write(record_scan, scan(*entries), architecture)
    assert catalog.read(find_entry, entries[7].id.ref).entry == entries[7]
    by_digit = {one.id.ref[0]: one for one in entries}
    assert len(by_digit) < len(entries)
    crowded = next(digit for digit in by_digit if sum(one.id.ref[0] == digit for one in entries) > 1)
    with pytest.raises(RequestError) as caught:
        catalog.read(find_entry, crowded)
    assert all(one.id.ref in caught.value.message for one in entries if one.id.ref[0] == crowded)
    for missing in ("f" * 13, "xyz"):
        with pytest.raises(NotFound):
            catalog.read(find_entry, missing)
    with pytest.raises(RequestError):
        catalog.read(find_entry, "")


def test_an_entry_whose_name_is_no_text_is_one_that_is_not_known(catalog: Catalog) -> None:
    known, strange = entry("a"), EntryId(STORE, EntryKey("dev\udcff/0"))
    catalog.write(record_scan, scan(known), architecture)
    catalog.write(note_restored, [strange, known.id], NOW)
    assert [one.restored for one in catalog.read(all_entries)] == [NOW]
    catalog.write(forget_entries, [strange, known.id])
    assert catalog.read(all_entries) == ()


def test_the_summary_counts(catalog: Catalog) -> None:
    defective = entry("c", environment=None, state=EntryState.DEFECTIVE, defect=sycl.defects.BIN_EMPTY, allocated=8)
    catalog.write(record_scan, scan(entry("a"), entry("b", environment=NEW), defective), architecture)
    assert catalog.read(catalog_summary) == (3, 1, 8200, 0)
    catalog.write(record_survey, host(NEW))
    assert catalog.read(catalog_summary) == (3, 1, 8200, 1)


def test_last_use_is_the_newest_of_what_is_known(catalog: Catalog) -> None:
    accessed = entry("a", accessed=NOW - HOUR)
    catalog.write(record_scan, scan(accessed, entry("b", accessed=NOW - 20 * HOUR)), architecture)
    first, second = catalog.read(all_entries)
    assert (first.last_used, first.last_used_by) == (NOW - HOUR, "access-time")
    assert (second.last_used, second.last_used_by) == (NOW - 10 * HOUR, "created")
    catalog.write(add_model, model())
    run(catalog, model(), used=(accessed,))
    run(catalog, model(), used=(accessed,), at=NOW - 2 * HOUR)
    first, _ = catalog.read(all_entries)
    assert (first.last_used, first.last_used_by) == (NOW, "run")


# -- removals under way -------------------------------------------------------------------------------------------


def test_intents_last_until_they_are_fulfilled(path: Path, catalog: Catalog) -> None:
    ids = [entry("a").id, entry("b", OTHER).id]
    catalog.write_durably(intend, ids, NOW)
    catalog.write_durably(intend, ids[:1], NOW + HOUR)
    with closing(Catalog.open(path)) as another:
        # An older one would have what was put away before it taken for what it is about.
        assert list(another.read(open_intents).items()) == [(ids[0], NOW + HOUR), (ids[1], NOW)]
    catalog.write(fulfil, ids[:1])
    assert catalog.read(open_intents) == {ids[1]: NOW}
    catalog.write(fulfil, [])
    catalog.write(fulfil, ids)
    assert catalog.read(open_intents) == {}


# -- models and runs ----------------------------------------------------------------------------------------------


def test_what_came_since_and_no_model_claims_is_told_of_one_store(catalog: Catalog) -> None:
    old, late, used, made = (entry(f"{name}/0", created=NOW) for name in ("old", "late", "used", "made"))
    old = replace(old, created=NOW - HOUR)
    there = entry("there/0", OTHER, created=NOW)
    catalog.write(record_scan, scan(old, late, used, made), architecture)
    catalog.write(record_scan, scan(there, store=OTHER), architecture)
    catalog.write(add_model, model("a"))
    run(catalog, model("a"), created=(made,), used=(used,))
    assert [one.entry.id for one in catalog.read(unclaimed_entries, STORE, NOW - HOUR)] == [late.id]
    assert [one.entry.id for one in catalog.read(unclaimed_entries, OTHER, NOW - HOUR)] == [there.id]
    assert catalog.read(unclaimed_entries, STORE, NOW) == ()


def test_models_are_kept_whole_and_replaced_with_their_runs(catalog: Catalog) -> None:
    plain = Model(ModelName("b"), Workload(("true",), Path("/")))
    catalog.write(add_model, plain)
    catalog.write(add_model, model("a"))
    assert catalog.read(all_models) == (model("a"), plain)
    assert catalog.read(find_model, ModelName("b")) == plain
    number = run(catalog, plain)
    other = replace(plain, priority=1)
    catalog.write(add_model, other)
    assert catalog.read(find_model, ModelName("b")) == other
    assert [one.id for one in catalog.read(newest_runs)] == [number]
    with pytest.raises(NotFound):
        catalog.read(find_model, ModelName("c"))
    with pytest.raises(NotFound):
        catalog.write(remove_model, ModelName("c"))


def test_what_registered_models_need_on_this_host_is_summed_up_store_by_store(catalog: Catalog) -> None:
    driver = Store(KindName("neo"), Path("/neo"))
    mine = [entry("a"), entry("b"), entry("old", environment=CPU), entry("nobody's")]
    bare = entry("k", driver, environment=None, allocated=500)
    catalog.write(record_survey, host(OLD))
    catalog.write(record_scan, scan(*mine), architecture)
    catalog.write(record_scan, scan(bare, store=driver), architecture)
    assert catalog.read(needed_sizes) == {}
    for name in ("net", "other"):
        catalog.write(add_model, model(name))
        run(catalog, model(name), created=(mine[0], mine[2], bare))
    run(catalog, model("net"), created=(mine[1],))
    assert catalog.read(needed_sizes) == {STORE: 8192, driver: 500}
    catalog.write(remove_model, ModelName("net"))
    assert catalog.read(needed_sizes) == {STORE: 4096, driver: 500}
    catalog.write(remove_model, ModelName("other"))
    assert catalog.read(needed_sizes) == {}


def test_models_of_files_follow_the_files_and_leave_registered_ones_alone(catalog: Catalog) -> None:
    catalog.write(add_model, model("mine"))
    catalog.write(sync_file_models, [model("a", source="/etc/a.toml"), model("b", source="/etc/b.toml")])
    number = run(catalog, model("b", source="/etc/b.toml"))
    changed = model("b", source="/etc/b.toml", command="python3.12")
    clashing = model("mine", source="/etc/mine.toml")
    assert catalog.write(sync_file_models, [clashing, changed]) == ("mine",)
    assert catalog.read(all_models) == (changed, model("mine"))
    assert [one.id for one in catalog.read(newest_runs)] == [number]
    catalog.write(sync_file_models, [])
    assert catalog.read(all_models) == (model("mine"),)
    assert catalog.read(newest_runs) == ()


def test_a_removed_model_leaves_nothing_but_the_entries(catalog: Catalog) -> None:
    catalog.write(record_scan, scan(entry("a")), architecture)
    catalog.write(add_model, model())
    run(catalog, model(), created=(entry("a"),))
    begun = catalog.write(begin_run, model(), WarmReason.RETRY, "here", NOW)
    assert catalog.read(all_entries)[0].models == ("net",)
    assert catalog.read(model_sizes) == {"net": (1, 4096)}
    catalog.write(remove_model, ModelName("net"))
    assert catalog.read(all_entries)[0].models == ()
    assert (catalog.read(newest_runs), catalog.read(model_coverage), catalog.read(model_sizes)) == ((), (), {})
    with pytest.raises(NotFound):
        catalog.write(finish_run, begun.id, Outcome.WARMED, (), Attribution(), (), "", "", NOW)
    with pytest.raises(NotFound):
        catalog.write(begin_run, model(), WarmReason.NEVER, "here", NOW)


def test_an_unfinished_run_is_shown_and_ends_once(catalog: Catalog) -> None:
    catalog.write(add_model, model())
    begun = catalog.write(begin_run, model(), WarmReason.DRIVER, "here", NOW)
    assert (begun.workload, begun.host, begun.finished, begun.outcome) == (model().workload.digest, "here", None, None)
    assert catalog.read(newest_runs) == (begun,)
    assert catalog.write(close_lost_runs, NOW + HOUR) == 1
    (lost,) = catalog.read(newest_runs, ModelName("net"))
    assert (lost.outcome, lost.finished) == (Outcome.LOST, NOW + HOUR)
    assert catalog.write(close_lost_runs, NOW + HOUR) == 0
    with pytest.raises(NotFound):
        catalog.write(finish_run, begun.id, Outcome.WARMED, (), Attribution(), (), "", "", NOW)


def test_runs_come_newest_first(catalog: Catalog) -> None:
    for name in ("a", "b"):
        catalog.write(add_model, model(name))
    numbers = [run(catalog, model(name)) for name in ("a", "b", "a", "b", "a")]
    assert [one.id for one in catalog.read(newest_runs)] == numbers[::-1]
    assert [one.id for one in catalog.read(newest_runs, limit=2)] == numbers[:-3:-1]
    assert [one.id for one in catalog.read(newest_runs, ModelName("b"))] == [numbers[3], numbers[1]]
    assert catalog.read(newest_runs, ModelName("c")) == ()


def test_many_models_come_with_their_newest_runs(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xpucached.catalog.runs._AT_ONCE", 2)
    models = [model(name) for name in ("a", "b", "c", "d", "e")]
    for one in models:
        catalog.write(add_model, one)
    for name in "abadeaeed":
        run(catalog, model(name))
    with catalog.moment():
        found = list(catalog.read(with_newest_runs, models[:4], 2))
    printed, bare = ([catalog.read(newest_runs, one.name, 2, outputs=some) for one in models] for some in (True, False))
    # What a program printed is shown of the newest alone.
    assert found == [(one, (*printed[at][:1], *bare[at][1:])) for at, one in enumerate(models[:4])]
    assert [len(runs) for _, runs in found] == [2, 1, 0, 2]


def test_old_runs_go_but_never_the_good_one(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xpucached.catalog.runs.KEPT", 3)
    catalog.write(record_scan, scan(entry("a")), architecture)
    for name in ("a", "b"):
        catalog.write(add_model, model(name))
    other = run(catalog, model("b"))
    good = [run(catalog, model("a"), created=(entry("a"),)) for _ in range(2)]
    bad = [run(catalog, model("a"), Outcome.FAILED) for _ in range(5)]
    assert [one.id for one in catalog.read(newest_runs, ModelName("a"))] == [*bad[:-4:-1], good[1]]
    assert [one.id for one in catalog.read(newest_runs, ModelName("b"))] == [other]
    coverage = catalog.read(model_coverage)[0]
    assert (coverage.good and coverage.good.id, coverage.failures, coverage.remaining) == (good[1], 3, 1)


def test_few_environments_that_stores_declare_are_kept(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "MOST", 5)
    catalog.write(record_scan, scan(entry("kept", OTHER, environment=THIRD), store=OTHER), architecture)
    forged = [replace(OLD, device=f"forged {number}") for number in range(20)]
    for round_ in range(3):
        some = [entry(f"{round_}-{number}", environment=one) for number, one in enumerate(forged[round_ * 4 :][:10])]
        catalog.write(record_scan, scan(*some), architecture)
        known = {one.environment for one in catalog.read(target_presence)}
        assert len(known) == 5
        assert THIRD in known, "another store needs it"
        # What nothing names any more has made room.
        assert known & set(forged[round_ * 4 :][:10])
    assert sum(one.entry.environment is not None for one in catalog.read(all_entries)) == 5


def test_coverage_tells_what_is_left_of_the_good_run(catalog: Catalog) -> None:
    a, b, c, gone = entry("a"), entry("b"), entry("c"), entry("gone")
    catalog.write(record_scan, scan(a, b, c), architecture)
    catalog.write(add_model, model())
    catalog.write(add_model, model("other"))
    good = run(catalog, model(), created=(a, b), used=(b, c, gone))
    catalog.write(begin_run, model(), WarmReason.MANUAL, "here", NOW)
    first, other = catalog.read(model_coverage)
    assert (first.model, first.entries, first.remaining, first.failures) == ("net", 4, 3, 0)
    assert first.good == first.last
    assert first.good is not None
    assert first.good.id == good
    assert first.layers == first.proofs[0].layers == (Layer(KindName("sycl"), 4, 3),)
    assert (other.model, other.last, other.good, other.entries, other.remaining) == ("other", None, None, 0, 0)
    catalog.write(
        record_scan, scan(a, replace(b, state=EntryState.DEFECTIVE, defect=sycl.defects.BIN_EMPTY)), architecture
    )
    assert catalog.read(model_coverage)[0].remaining == 1
    # Programs skip what has a lock.
    catalog.write(record_scan, scan(replace(a, state=EntryState.UNFINISHED), vanished=()), architecture)
    assert catalog.read(model_coverage)[0].remaining == 0
    catalog.write(forget_entries, [a.id, gone.id])
    assert (catalog.read(model_coverage)[0].entries, catalog.read(model_coverage)[0].remaining) == (4, 0)
    assert [one.entry.id.key for one in catalog.read(all_entries)] == ["b"]


def test_what_lies_where_a_model_caches_no_longer_is_not_left(catalog: Catalog) -> None:
    a, b = entry("a"), entry("b")
    catalog.write(record_scan, scan(a, b), architecture)
    catalog.write(add_model, model())
    run(catalog, model(), created=(a,), used=(b,))
    for places, remaining in (({model().name: {a.id.store}}, 2), ({model().name: set()}, 0), ({}, 0), (None, 2)):
        (found,) = catalog.read(model_coverage, places)
        assert (found.entries, found.remaining, found.elsewhere) == (2, remaining, 2 - remaining)
        assert (found.proofs[0].remaining, found.proofs[0].elsewhere) == (remaining, 2 - remaining)
        assert found.layers == (Layer(KindName("sycl"), 2, remaining),)


def test_no_entry_is_there_while_something_else_stands_in_the_place_of_its_store(catalog: Catalog) -> None:
    a = entry("a")
    catalog.write(record_scan, scan(a), architecture)
    catalog.write(add_model, model())
    run(catalog, model(), created=(a,))
    for state, remaining in ((StoreState.NOT_A_DIRECTORY, 0), (StoreState.UNREADABLE, 1), (StoreState.OK, 1)):
        catalog.write(record_scan, scan(*([a] if state is StoreState.OK else []), state=state), architecture)
        (found,) = catalog.read(model_coverage)
        assert (found.entries, found.remaining) == (1, remaining)


def test_failures_are_counted_in_a_row(catalog: Catalog) -> None:
    def failures() -> int:
        return catalog.read(model_coverage)[0].failures

    catalog.write(add_model, model())
    run(catalog, model(), Outcome.FAILED)
    run(catalog, model(), Outcome.TIMED_OUT)
    assert failures() == 2
    run(catalog, model(), Outcome.CANCELLED)
    assert failures() == 2
    catalog.write(begin_run, model(), WarmReason.RETRY, "here", NOW)
    catalog.write(close_lost_runs, NOW)
    assert failures() == 3
    run(catalog, model(), Outcome.WARMED)
    assert failures() == 0
    run(catalog, model(), Outcome.UNPROVEN)
    assert failures() == 1
    run(catalog, model(), Outcome.FAILED, signature="after the driver changed")
    assert failures() == 1
    catalog.write(add_model, model(command="another"))
    assert failures() == 0


# -- the host -----------------------------------------------------------------------------------------------------


def test_what_came_since_a_moment_is_on_devices_that_were_not_there_then(catalog: Catalog) -> None:
    moments = [NOW + hour * HOUR / 2 for hour in (1, 3, 5, 7)]
    assert catalog.read(appeared_since, moments) == dict.fromkeys(moments, ())
    for hour, some in enumerate(((OLD,), (OLD, CPU), (NEW,), (NEW, CPU))):
        catalog.write(record_survey, host(*some, at=NOW + hour * HOUR))
    # Another driver of a device that was there is no other device.
    assert catalog.read(appeared_since, moments) == dict(zip(moments, ((CPU,), (), (CPU,), ()), strict=True))
    catalog.write(record_survey, host(NEW, at=NOW + 4 * HOUR))
    assert catalog.read(appeared_since, moments) == dict.fromkeys(moments, ())
    assert catalog.read(appeared_since, ()) == {}


def test_another_driver_has_come_where_the_one_before_is_there_beside_it(catalog: Catalog) -> None:
    for hour, some in enumerate(((OLD, CPU), (OLD, NEW, CPU))):
        catalog.write(record_survey, host(*some, at=NOW + hour * HOUR))
    moments = [NOW + hour * HOUR / 2 for hour in (1, 3)]
    assert catalog.read(appeared_since, moments) == dict(zip(moments, ((NEW,), ()), strict=True))
    catalog.write(record_survey, host(NEW, CPU, at=NOW + 2 * HOUR))
    assert catalog.read(appeared_since, moments) == dict.fromkeys(moments, ())


def test_a_device_that_came_is_not_forgotten_with_the_change_that_tells_of_it(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes and goes with every minute must not make another one look as if it had always been there."""
    monkeypatch.setattr(surveys, "KEPT", 4)
    catalog.write(record_survey, host(OLD))
    moment = NOW + HOUR / 2
    for hour, some in enumerate(((OLD, CPU), *[(OLD, CPU, THIRD), (OLD, CPU)] * 3), start=1):
        catalog.write(record_survey, host(*some, at=NOW + hour * HOUR))
        assert catalog.read(appeared_since, [moment])[moment] == tuple(sorted({CPU, *some} - {OLD}))


def test_a_device_that_came_after_a_run_came_after_it_though_the_clock_was_set_back(catalog: Catalog) -> None:
    catalog.write(record_survey, host(OLD))
    catalog.write(add_model, model())
    proven = run(catalog, model(), at=NOW + 9000 * HOUR)
    catalog.write(record_survey, host(OLD, CPU, at=NOW + HOUR))
    (found,) = catalog.read(model_coverage)
    assert (found.good and found.good.id, found.appeared) == (proven, (CPU,))
    again = run(catalog, model(), at=NOW + 3 * HOUR)
    (found,) = catalog.read(model_coverage)
    assert (found.good and found.good.id, found.appeared) == (again, ())


def test_a_device_that_came_before_a_run_came_before_it_though_the_clock_was_set_back(catalog: Catalog) -> None:
    def begun(at: datetime, *environments: Target) -> int:
        return catalog.write(begin_run, model(), WarmReason.NEVER, host(*environments).signature, at).id

    def came(number: int, at: datetime) -> tuple[Target, ...]:
        """Let this run warm the model, and tell what came since."""
        ended = (Outcome.WARMED, (), Attribution(frozenset(), frozenset()), (OLD,), "", "")
        catalog.write(finish_run, number, *ended, at)
        (found,) = catalog.read(model_coverage)
        assert found.good is not None
        assert found.good.id == number
        return found.appeared

    catalog.write(record_survey, host(OLD))
    catalog.write(add_model, model())
    catalog.write(record_survey, host(OLD, CPU, at=NOW + 9000 * HOUR))
    assert came(begun(NOW + HOUR, OLD, CPU), NOW + 2 * HOUR) == ()
    catalog.write(record_survey, host(OLD, CPU, THIRD, at=NOW + 3 * HOUR))
    (found,) = catalog.read(model_coverage)
    assert THIRD in found.appeared
    assert came(begun(NOW + 4 * HOUR, OLD, CPU, THIRD), NOW + 5 * HOUR) == ()
    # What came in the midst of a run is new to it.
    fourth = replace(THIRD, device="a fourth")
    number = begun(NOW + 6 * HOUR, OLD, CPU, THIRD)
    catalog.write(record_survey, host(OLD, CPU, THIRD, fourth, at=NOW + 9002 * HOUR))
    assert fourth in came(number, NOW + 7 * HOUR)
    assert came(begun(NOW + 8 * HOUR, OLD, CPU, THIRD, fourth), NOW + 9 * HOUR) == ()


def test_that_a_model_leads_to_another_driver_is_no_change_of_one(catalog: Catalog) -> None:
    def led(*environments: Target) -> DriverInUse:
        return DriverInUse({"OCL_ICD_FILENAMES": "/opt"}, (ModelName("trial"),), "s", environments=environments)

    catalog.write(record_survey, host(CPU))
    assert catalog.write(record_survey, replace(host(CPU, at=NOW + HOUR), drivers=(led(OLD),))) is None
    change = catalog.write(record_survey, replace(host(CPU, at=NOW + 2 * HOUR), drivers=(led(NEW),)))
    assert change is not None
    assert (change.appeared, change.vanished) == ((NEW,), (OLD,))
    assert catalog.write(record_survey, host(CPU, at=NOW + 3 * HOUR)) is None
    assert len(catalog.read(driver_changes)) == 1


def test_the_survey_comes_back_and_changes_become_history(catalog: Catalog) -> None:
    assert catalog.read(last_survey) is None
    assert catalog.write(record_survey, host(OLD, CPU)) is None
    assert catalog.read(last_survey) == host(OLD, CPU)
    assert catalog.write(record_survey, host(CPU, OLD, at=NOW + HOUR)) is None
    change = catalog.write(record_survey, host(NEW, CPU, at=NOW + 2 * HOUR, stamp="two"))
    assert change is not None
    assert (change.at, change.stamp, change.appeared, change.vanished) == (NOW + 2 * HOUR, "two", (NEW,), (OLD,))
    emptied = catalog.write(record_survey, host(at=NOW + 3 * HOUR))
    assert emptied is not None
    assert (emptied.appeared, set(emptied.vanished)) == ((), {NEW, CPU})
    assert [one.at for one in catalog.read(driver_changes)] == [emptied.at, change.at]
    assert catalog.read(driver_changes, 5)[1] == change
    assert catalog.read(driver_changes, 1) == catalog.read(driver_changes, 20)[:1]
    assert catalog.read(last_survey) == host(at=NOW + 3 * HOUR)


def test_a_first_survey_without_a_driver_is_a_survey(catalog: Catalog) -> None:
    assert catalog.write(record_survey, host()) is None
    change = catalog.write(record_survey, host(NEW, at=NOW + HOUR))
    assert change is not None
    assert change.appeared == (NEW,)


def test_a_survey_in_another_shape_is_none(path: Path, catalog: Catalog) -> None:
    catalog.write(record_survey, host(OLD))
    with closing(sqlite3.connect(path)) as direct:
        direct.execute("UPDATE host SET document = '{}'")
        direct.commit()
    assert catalog.read(last_survey) is None
    assert catalog.write(record_survey, host(OLD)) is None
    assert catalog.read(last_survey) == host(OLD)


def test_presence_tells_what_was_offered_when(catalog: Catalog) -> None:
    catalog.write(record_scan, scan(entry("a", environment=CPU)), architecture)
    catalog.write(record_survey, host(OLD))
    catalog.write(record_survey, host(OLD, at=NOW + HOUR))
    catalog.write(record_survey, host(NEW, at=NOW + 2 * HOUR))
    found = {one.environment: (one.first, one.last, one.present) for one in catalog.read(target_presence)}
    assert found == {
        CPU: (None, None, False),
        OLD: (NOW, NOW + 2 * HOUR, False),  # it was there until something else was
        NEW: (NOW + 2 * HOUR, NOW + 2 * HOUR, True),
    }


def test_history_is_bounded(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xpucached.catalog.surveys.KEPT", 3)
    for number in range(8):
        catalog.write(record_survey, host((OLD, NEW)[number % 2], at=NOW + number * HOUR))
    assert [one.at for one in catalog.read(driver_changes, 100)] == [NOW + number * HOUR for number in (7, 6, 5)]


# -- many, at once, and killed ------------------------------------------------------------------------------------


@pytest.mark.flow
def test_a_large_store_is_recorded_and_recorded_again(catalog: Catalog) -> None:
    kernels = (Kernel("_ZTS4gemm", "gemm"),)
    entries = tuple(entry(f"{number}/1/2/3/0", kernels=kernels) for number in range(20_000))
    assert catalog.write(record_scan, scan(*entries), architecture).added == 20_000
    assert len(stamps(catalog)) == 20_000
    unchanged = tuple(UnchangedEntry(one.id.key, NOW) for one in entries[:15_000])
    delta = catalog.write(record_scan, scan(unchanged=unchanged), architecture)
    assert (delta.added, delta.changed, delta.vanished, delta.entries) == (0, 0, 5_000, 15_000)
    ids = [one.id for one in entries[:10_000]]
    catalog.write(forget_entries, ids)
    assert catalog.read(catalog_summary).entries == 5_000
    assert catalog.read(entry_page, EntryQuery(limit=10, kernel="gemm"), present=(), now=NOW).total == 5_000


def test_questions_are_answered_while_a_scan_is_recorded(catalog: Catalog) -> None:
    catalog.write(record_scan, scan(entry("a")), architecture)
    inside, go = threading.Event(), threading.Event()

    def slow(environment: Target) -> Architecture:
        inside.set()
        assert go.wait(30)
        return architecture(environment)

    writer = threading.Thread(target=catalog.write, args=(record_scan, scan(entry("b"), at=NOW + HOUR), slow))
    writer.start()
    try:
        assert inside.wait(30)
        assert ask(catalog) == ["a"]
        assert catalog.read(all_stores)[0].scanned == NOW
        # A second writer waits for its turn.
        second = threading.Thread(target=catalog.write, args=(add_model, model()))
        second.start()
    finally:
        go.set()
        writer.join()
    second.join()
    assert ask(catalog) == ["b"]
    assert catalog.read(all_models) == (model(),)


def test_many_threads_ask_and_write(catalog: Catalog) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        store = Store(KindName("sycl"), Path(f"/store/{number}"))
        try:
            for step in range(5):
                catalog.write(
                    record_scan, scan(*(entry(f"{one}", store) for one in range(step)), store=store), architecture
                )
                catalog.read(entry_page, EntryQuery(store=store.root), present=(), now=NOW)
                catalog.read(catalog_summary)
        except BaseException as error:  # noqa: BLE001 - shown below, in the thread that can
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert failures == []
    assert [status.entries for status in catalog.read(all_stores)] == [4] * 12


KILLED: Final = """
import sys, time
from pathlib import Path
from tests.unit.catalog import test_catalog as t

def stop(environment):
    print("inside", flush=True)
    time.sleep(600)

catalog = t.Catalog.open(Path(sys.argv[1]))
catalog.write(t.record_scan, t.scan(t.entry("a"), t.entry("b")), t.architecture)
catalog.write_durably(t.intend, [t.entry("a").id], t.NOW)
# The rows of the second scan are under way when the architecture of a new environment is asked for.
catalog.write(t.record_scan, t.scan(state=t.StoreState.MISSING, store=t.OTHER), t.architecture)
catalog.write(t.record_scan, t.scan(t.entry("c", environment=t.CPU), at=t.NOW + t.HOUR), stop)
"""


@pytest.mark.flow
def test_a_killed_writer_leaves_the_last_whole_scan(path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(path)]
    root = REPOSITORY
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "inside\n"
        child.send_signal(signal.SIGKILL)
    with closing(Catalog.open(path)) as opened:
        assert opened.rebuilt is None
        assert ask(opened) == ["a", "b"]
        assert opened.read(all_stores)[0].scanned == NOW
        assert set(opened.read(open_intents)) == {entry("a").id}
        opened.write(record_scan, scan(entry("c")), architecture)
        assert ask(opened) == ["c"]


@pytest.mark.parametrize("journal", [False, True])
def test_models_of_a_corrupt_catalog_are_taken_over_where_there_is_no_room(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, journal: bool
) -> None:
    filled(path)
    with closing(Catalog.open(path)) as opened:
        opened.write(add_model, model())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "away"))
    strike_root(path, "entries")
    with closing(sqlite3.connect(path)) as raw:
        if journal:
            # The copy's directory cannot be made, as on a full disk.
            path.with_name("salvaging").touch()
            raw.execute("UPDATE models SET priority = 1")
            raw.commit()
        before = path.stat()
        with closing(Catalog.open(path)) as opened:
            assert [one.name for one in opened.read(all_models)] == ["net"]
            assert "1 registered models were taken over" in (opened.rebuilt or "")
            assert ("the latest changes in its journal were not read: [Errno 17]" in (opened.rebuilt or "")) is journal
    (aside,) = (one for one in path.parent.glob("*.corrupt-*") if not one.name.endswith(("-wal", "-shm")))
    assert (aside.stat().st_ino, aside.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_models_that_are_lost_are_told(path: Path) -> None:
    filled(path)
    with closing(Catalog.open(path)) as opened:
        opened.write(add_model, model())
        opened.write(add_model, model("second"))
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE models SET command = '[\"/bin/evil\"]' WHERE name = 'second'")
        raw.commit()
    strike_root(path, "entries")
    with closing(Catalog.open(path)) as opened:
        assert "1 registered models were taken over, and others may be missing: damaged models: 1" in (
            opened.rebuilt or ""
        )
        told = opened.incomplete
        assert told == opened.rebuilt
    # It stays so for the next ones, until somebody has seen to it.
    with closing(Catalog.open(path)) as opened:
        assert (opened.rebuilt, opened.incomplete) == (None, told)
        next(path.parent.glob("*.corrupt-*")).unlink()
        assert opened.incomplete == ""
        assert not path.with_name(path.name + ".incomplete").exists()


def test_where_it_cannot_be_noted_that_models_are_missing_it_is_said_all_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(path)
    path.write_bytes(b"no database at all" * 500)
    monkeypatch.setattr(salvage, "note_incomplete", lambda *_: None)
    with closing(Catalog.open(path)) as opened:
        assert "others may be missing" in opened.incomplete
        next(path.parent.glob("*.corrupt-*")).unlink()
        assert opened.incomplete == ""
