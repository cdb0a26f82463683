"""Catalogs that earlier versions wrote, as ``.dump`` of ``sqlite3`` shows them: today's code opens them without loss.

Each was written by the code of its time, through its own catalog, with one of everything that it knew.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.builders import sycl_target
from xpucached.catalog import Catalog
from xpucached.catalog.builds import build_rates
from xpucached.catalog.coverage import model_coverage
from xpucached.catalog.dependencies import run_dependencies
from xpucached.catalog.entries import all_entries
from xpucached.catalog.events import events_after
from xpucached.catalog.figures import Summary, catalog_summary
from xpucached.catalog.intents import open_intents
from xpucached.catalog.models import all_models
from xpucached.catalog.refusals import refused_by
from xpucached.catalog.runs import newest_runs
from xpucached.catalog.runtimes import known_runtime_checks
from xpucached.catalog.stores import all_stores
from xpucached.catalog.surveys import driver_changes
from xpucached.catalog.targets import target_presence
from xpucached.domain.dependencies import Dependency, Role
from xpucached.domain.diagnosis import RuntimeCheck, Safety
from xpucached.domain.models import Figures, Model, Outcome, Pass, RanOn, Trial
from xpucached.domain.names import EntryKey, KindName, ModelName
from xpucached.domain.stores import EntryId, Kernel, Store
from xpucached.domain.workloads import Loader, RunSpec, Variant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xpucached.domain.plans import IndexedEntry

WRITTEN: Final = sorted((Path(__file__).parent / "written").glob("*.sql"))
NOW: Final = datetime(2026, 5, 4, 12, 0, 0, 123456, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)
STORE: Final = Store(KindName("sycl"), Path("/var/cache/one"))
OLD: Final = sycl_target("Level-Zero", "Intel(R) Arc(TM) B580 Graphics", "20.1.0", "1.6.31")
NEW: Final = sycl_target("Level-Zero", "Intel(R) Arc(TM) B580 Graphics", "20.1.0", "1.6.40")
CPU: Final = sycl_target("OpenCL", "100%_CPU", "OpenCL 3.0", "2025.20")


@pytest.fixture(params=WRITTEN, ids=lambda file: file.stem)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    place = tmp_path / "catalog.sqlite"
    with closing(sqlite3.connect(place)) as direct:
        direct.executescript(request.param.read_text())
    return place


@pytest.fixture
def catalog(path: Path) -> Iterator[Catalog]:
    with closing(Catalog.open(path)) as opened:
        assert opened.rebuilt is None
        yield opened


def schema(path: Path) -> list[tuple[str, str, list[str]]]:
    """Return what is in a file, each statement as its words: SQLite quotes and divides some anew."""
    with closing(sqlite3.connect(path)) as direct:
        rows = direct.execute("SELECT name, tbl_name, coalesce(sql, '') FROM sqlite_master ORDER BY name").fetchall()
    return [(name, table, sorted(sql.replace(",", " ").replace('"', "").split())) for name, table, sql in rows]


def test_its_schema_is_that_of_a_new_one(path: Path, tmp_path: Path) -> None:
    for place in (path, tmp_path / "new.sqlite"):
        Catalog.open(place).close()
    assert schema(path) == schema(tmp_path / "new.sqlite")
    with closing(sqlite3.connect(path)) as direct:
        assert direct.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert direct.execute("PRAGMA foreign_key_check").fetchall() == []


def test_its_entries_are_what_they_were(catalog: Catalog) -> None:
    found = {str(one.entry.id.key): one for one in catalog.read(all_entries)}

    def brief(one: IndexedEntry) -> tuple[object, ...]:
        entry = one.entry
        return entry.state.value, entry.defect and entry.defect.code, entry.environment, one.models, one.last_used_by

    assert {key: brief(one) for key, one in found.items()} == {
        "b580/dev/1/a/0": ("ok", None, OLD, ("net",), "run"),
        "b580/dev/1/b/0": ("ok", None, OLD, ("net",), "run"),
        "b580/dev/1/c/0": ("defective", "bin-empty", OLD, (), "created"),
        "b580/dev/1/d/0": ("unfinished", "interrupted", OLD, (), "created"),
        "b580/dev/1/z/0": ("ok", None, OLD, (), "created"),
        "cpu/x/1/e/0": ("ok", None, CPU, (), "created"),
    }
    first = found["b580/dev/1/a/0"]
    assert (first.hits, first.program, first.architecture, first.first_seen) == (3, "python", "bmg-g21", NOW)
    assert first.entry.kernels == (Kernel("_ZTS4gemm", "gemm", None), Kernel("softmax", "softmax", "libtorch"))
    assert found["b580/dev/1/b/0"].restored == NOW + HOUR
    assert catalog.read(catalog_summary) == Summary(6, 1, 6 * 4096, 5)
    assert [(one.entries, one.defective, one.unfinished) for one in catalog.read(all_stores)] == [(5, 1, 1), (1, 0, 0)]


def test_what_was_compiled_from_spirv_is_read_again_for_its_digest(catalog: Catalog) -> None:
    rows = catalog.read(lambda connection: connection.exec_driver_sql("SELECT image, stamp, place, input FROM entries"))
    assert {(stamp == "" and place is None, given) for image, stamp, place, given in rows if image == "spirv"} == {
        (True, None)
    }


def test_its_models_and_their_history_are_what_they_were(catalog: Catalog) -> None:
    filed, net, trained = catalog.read(all_models)
    assert filed == Model(
        ModelName("filed"),
        net.workload,
        Path("/opt/cache"),
        70,
        pinned=True,
        source="/etc/xpucached/models.d/filed.toml",
    )
    assert (net.name, net.source, net.workload.command) == ("net", "socket", ("python3", "app.py"))
    assert trained.workload.exercise == RunSpec(
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
    failed, warmed = catalog.read(newest_runs)
    assert (failed.model, failed.outcome, failed.detail) == ("trained", Outcome.FAILED, "it failed")
    warm = Pass(2.5, 2.0, 1000, 0, 0, 1)
    assert warmed.passes == (Pass(12.5, 10.0, 1000, 0, 1, 0), warm)
    assert (warmed.environments, warmed.detail, warmed.output) == ((OLD,), "fine", "output of it")
    trial = Trial(
        Variant("xpu", "int8", "1x2"), Outcome.WARMED, (warm,), RanOn.MEANT, "B580", ("it said so",), (Figures(1.5),)
    )
    assert warmed.trials == (trial,)
    proven = {one.model: (one.good and one.good.id, one.failures, one.entries) for one in catalog.read(model_coverage)}
    assert proven == {"filed": (None, 0, 0), "net": (warmed.id, 0, 2), "trained": (None, 1, 0)}


def test_what_was_known_of_the_host_and_of_our_own_work_is_what_it_was(catalog: Catalog) -> None:
    (change,) = catalog.read(driver_changes)
    assert (change.at, change.appeared, change.vanished) == (NOW + HOUR, (NEW,), (OLD,))
    offered = {one.environment: (one.first, one.present) for one in catalog.read(target_presence)}
    assert offered == {OLD: (NOW - 2 * HOUR, False), CPU: (NOW - 2 * HOUR, True), NEW: (NOW + HOUR, True)}
    assert catalog.read(build_rates) == {"Level-Zero": 3.5 / 500}
    assert catalog.read(refused_by, "two") == {(STORE, "1/c", NEW.fingerprint)}
    assert set(catalog.read(open_intents)) == {EntryId(STORE, EntryKey("cpu/x/1/e/0"))}
    check = RuntimeCheck("build-1", Path("/lib/libsycl.so.8"), Safety.SAFE, "it ran", NOW)
    assert catalog.read(known_runtime_checks, ["build-1"]) == {"build-1": check}


@pytest.mark.parametrize("path", WRITTEN[-1:], ids=["0015"], indirect=True)
def test_what_only_later_versions_note_is_what_it_was(catalog: Catalog) -> None:
    needed = Dependency(Role.PROGRAM, "/opt/app/app.py", 100, 1, 2, 3, "abc")
    assert catalog.read(run_dependencies, [1]) == {1: (needed,)}
    _, (event,) = catalog.read(events_after, 0)
    assert (event.topic, event.fields) == ("runtime-checked", {"build": "b"})
