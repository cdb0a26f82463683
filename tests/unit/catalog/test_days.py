"""What happened each day, when models came to stand otherwise, and who uses which bytes: on real SQLite."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from tests.support import api_stub, catalogs
from tests.unit.catalog.test_catalog import NEW, NOW, OLD, STORE, architecture, entry, host, model, scan
from xpucached.catalog import Catalog, days, usage
from xpucached.catalog.builds import record_build
from xpucached.catalog.entries import all_entries
from xpucached.catalog.history_tables import WARMTH
from xpucached.catalog.models import add_model
from xpucached.catalog.runs import begin_run, finish_run
from xpucached.catalog.scans import record_scan
from xpucached.catalog.surveys import record_survey
from xpucached.domain.activity import Load
from xpucached.domain.models import Attribution, Outcome, Pass, WarmReason, Warmth
from xpucached.domain.names import ModelName
from xpucached.domain.plans import Built
from xpucached.domain.targets import Origin
from xpucached.domain.usage import Amount

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xpucached.domain.stores import Entry

TODAY = days.day_of(NOW)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the catalog is."""
    return tmp_path / "catalog.sqlite"


@pytest.fixture
def catalog(path: Path) -> Iterator[Catalog]:
    """An empty catalog."""
    with closing(catalogs.fresh(path)) as opened:
        yield opened


def run(catalog: Catalog, name: str, made: tuple[Entry, ...], used: tuple[Entry, ...] = ()) -> None:
    """Let a model's run make and use these, in 11 seconds of which the workload takes one."""
    catalog.write(add_model, model(name))
    begun = catalog.write(begin_run, model(name), WarmReason.DRIVER, "host", NOW)
    seen = Attribution(frozenset(one.id for one in made), frozenset(one.id for one in used))
    passes = (Pass(11.0, 1.0, 1, 0, len(made), len(used)), Pass(1.0, 1.0, 1, 0, 0, len(made)))
    catalog.write(finish_run, begun.id, Outcome.WARMED, passes, seen, (NEW,), "", "", NOW)


def built(name: str, seconds: float, *models: str, origin: Origin = Origin.REBUILT) -> Built:
    """Return what replay compiled."""
    key = entry(name, environment=NEW).id
    return Built(key, NEW, origin, "stamp", 1000, seconds, f"digest-{name}", tuple(map(ModelName, models)))


def today(catalog: Catalog) -> dict[str, object]:
    """Return what is known of today."""
    (day,) = catalog.read(days.days_between)
    assert day.day == TODAY
    return {name: getattr(day, name) for name in day.__struct_fields__}


def test_what_flows_note_is_the_day_s(catalog: Catalog) -> None:
    """What nobody watched is unknown, and no nought."""
    catalog.write(record_survey, host(OLD))
    catalog.write(record_survey, host(NEW, at=NOW))
    catalog.write(record_build, built("a/0", 2.5, "net"), NOW)
    catalog.write(record_build, built("b/0", 1.5), NOW)
    catalog.write(record_build, built("c/0", 4.0, "net", origin=Origin.SIMULATED), NOW)
    some = (entry("d/0", environment=NEW), entry("e/0", environment=NEW))
    catalog.write(record_scan, scan(*some), architecture)
    run(catalog, "net", some)

    day = today(catalog)
    assert (day["changes"], day["warmed"], day["failed"]) == (1, 1, 0)
    assert (day["replayed"], day["replay_seconds"], day["spared_seconds"]) == (3, 8.0, 2.5)
    assert (day["prewarmed"], day["prewarm_seconds"]) == (2, 10.0)
    for name in ("compiled", "loads", "avoided_seconds", "estimated_seconds", "entries", "allocated"):
        assert day[name] is None
    assert catalog.read(usage.saved, NOW).avoided_month is None

    catalog.write(days.add, NOW, loads=0, avoided_seconds=0.0, estimated_seconds=0.0)
    catalog.write(days.note_state, NOW, 2, 8192)
    assert today(catalog) | {"loads": 0, "avoided_seconds": 0.0, "entries": 2, "allocated": 8192} == today(catalog)


def test_loads_avoid_what_compiling_took_or_by_its_size_may_take(catalog: Catalog) -> None:
    known, unknown = entry("a/0", image_size=100), entry("b/0", image_size=1000)
    catalog.write(record_scan, scan(known, unknown), architecture)
    run(catalog, "net", (known,))
    loads = [Load(STORE.root, one.id.key, NOW, 3, "app", 0) for one in (known, unknown, entry("gone/0"))]

    catalog.write(days.note_loads, loads, 0.001, NOW)

    assert {(one.hits, one.program) for one in catalog.read(all_entries)} == {(3, "app")}
    day = today(catalog)
    assert (day["loads"], day["avoided_seconds"], day["estimated_seconds"]) == (6, 33.0, 3.0)
    saved = catalog.read(usage.saved, NOW)
    assert (saved.avoided_today, saved.avoided_month, saved.estimated) == (33.0, 33.0, True)
    assert catalog.read(usage.saved, NOW + timedelta(days=1)).avoided_today is None
    assert catalog.read(usage.saved, NOW + timedelta(days=31)).avoided_month is None


def test_days_are_kept_for_two_years(catalog: Catalog) -> None:
    for number in range(days.KEPT_DAYS + 3):
        catalog.write(days.add, NOW + timedelta(days=number), changes=1)
    kept = catalog.read(days.days_between)
    assert len(kept) == days.KEPT_DAYS
    assert kept[-1].day == days.day_of(NOW + timedelta(days=days.KEPT_DAYS + 2))
    assert catalog.read(days.days_between, kept[3].day, kept[5].day) == kept[3:6]
    assert catalog.read(days.days_back, NOW + timedelta(days=days.KEPT_DAYS + 2), 3) == kept[-3:]
    # What is counted since the beginning never falls: to Prometheus that would be a new beginning.
    everything = catalog.read(days.since_the_beginning)
    assert everything[1:] == kept
    assert sum(one.changes for one in everything) == days.KEPT_DAYS + 3
    assert (everything[0].loads, everything[0].entries) == (None, None)


def test_only_what_changes_is_a_change_of_warmth(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    net, other = api_stub.make_model(), replace(api_stub.make_model(), name=ModelName("other"), warmth=Warmth.COLD)
    catalog.write(days.note_warmth, (net, other), NOW)
    assert catalog.write(days.note_warmth, (net, other), NOW) == ()
    # What is being warmed stands as it did.
    assert catalog.write(days.note_warmth, (replace(other, warmth=Warmth.WARMING),), NOW) == ()
    later = NOW + timedelta(minutes=3)
    catalog.write(days.note_warmth, (net, replace(other, warmth=Warmth.WARM, why="proven\udcff" + 500 * "x")), later)

    found = catalog.read(days.warmth_changes)
    assert [(one.model, one.before, one.now) for one in found] == [
        (net.name, None, Warmth.WARM),
        ("other", None, Warmth.COLD),
        ("other", Warmth.COLD, Warmth.WARM),
    ]
    assert found[-1].why == "proven\\udcff" + 488 * "x"
    assert catalog.read(days.warmth_changes, later) == found[-1:]
    assert catalog.read(days.warmth_changes, None, ModelName("other"), 1) == found[-1:]
    assert catalog.read(days.standing_since) == {net.name: NOW, "other": later}

    monkeypatch.setattr(days, "KEPT_CHANGES", 3)
    for number in range(9):
        state = Warmth.COLD if number % 2 == 0 else Warmth.WARM
        catalog.write(days.note_warmth, (replace(other, warmth=state),), NOW)
    assert len(catalog.read(days.warmth_changes, None, ModelName("other"))) == days.KEPT_CHANGES
    assert len(catalog.read(days.warmth_changes, None, net.name)) == 1


def test_of_all_models_together_a_million_changes_are_kept(catalog: Catalog) -> None:
    net = api_stub.make_model()
    rows = [{"id": number, "at": NOW, "model": f"m{number}", "now": "cold", "why": ""} for number in (1, 2, 1_000_000)]
    catalog.write(lambda connection: connection.execute(sa.insert(WARMTH), rows))
    (change,) = catalog.write(days.note_warmth, (net,), NOW)
    assert change.id == 1_000_001
    assert [one.model for one in catalog.read(days.warmth_changes)] == ["m2", "m1000000", net.name]


def test_who_uses_which_bytes(catalog: Catalog) -> None:
    """Own, what is shared and counted once, and nobody's are all that is for here and now."""
    mine, both, theirs, none = (entry(f"{name}/0", environment=NEW) for name in "abcd")
    old = entry("old/0", environment=OLD)
    catalog.write(record_survey, host(NEW))
    catalog.write(record_scan, scan(mine, both, theirs, none, old), architecture)
    run(catalog, "net", (mine, both))
    run(catalog, "other", (theirs,), (both,))
    catalog.write(add_model, model("unused"))

    used, own, shared = catalog.read(usage.model_usage, 0.001)
    models = {str(one.model): one for one in used}
    assert models["net"].own == Amount(1, 4096, 5.0, 5.0)
    assert models["net"].shared == models["other"].shared == Amount(1, 4096, 5.0, 5.0)
    assert models["other"].own == Amount(1, 4096, 10.0, 10.0)
    assert models["unused"].own == models["unused"].shared == Amount()

    total, kinds, drivers, devices, here = catalog.read(usage.totals, 0.001)
    nobody = usage.less(here, usage.together((own, shared)))
    # The images' sizes are not known, so that what they take on disk tells.
    assert (nobody.entries, nobody.allocated, nobody.measured) == (1, 4096, 0.0)
    assert nobody.seconds == pytest.approx(4.096)
    assert (own.entries, shared.entries, here.entries, total.entries) == (2, 1, 4, 5)
    assert sum(one.allocated for one in kinds) == sum(one.allocated for one in drivers) == total.allocated
    assert {(one.driver, one.present) for one in drivers} == {(NEW.toolchain, True), (OLD.toolchain, False)}
    assert sum(one.entries for one in devices) == total.entries
    dearest = catalog.read(usage.dearest, 2)
    assert [one.cost for one in dearest] == [10.0, 5.0]


def test_less_than_a_second_is_counted_as_it_is(catalog: Catalog) -> None:
    made = entry("a/0", image_size=256)
    catalog.write(record_survey, host(OLD))
    catalog.write(record_scan, scan(made), architecture)
    run(catalog, "net", (), (made,))
    _, own, shared = catalog.read(usage.model_usage, 1 / 1024)
    assert (own, shared) == (Amount(1, 4096, 0.25, 0.0), Amount())


def test_what_a_driver_change_came_to(catalog: Catalog) -> None:
    net = api_stub.make_model()
    catalog.write(record_survey, host(OLD))
    before, change = NOW - timedelta(hours=1), NOW - timedelta(minutes=1)
    catalog.write(days.note_warmth, (net,), before)
    catalog.write(record_survey, host(NEW, at=change))
    catalog.write(days.note_warmth, (replace(net, warmth=Warmth.COLD),), NOW)
    # What was rebuilt on the same day, but before, was for another driver.
    catalog.write(record_build, built("b/0", 1.5, "net"), before)
    saved = catalog.read(usage.saved, NOW)
    assert (saved.upgraded, saved.spared_month, saved.spared_upgrade) == (change, 1.5, 0.0)
    (cost,) = catalog.read(usage.upgrade_costs, 5)
    assert (cost.cooled, cost.warm_at, cost.rebuilt, cost.spared_seconds) == (1, None, 0, 0.0)

    catalog.write(record_build, built("a/0", 2.5, "net"), NOW)
    run(catalog, "net", ())
    warm = NOW + timedelta(seconds=9)
    catalog.write(days.note_warmth, (net,), warm)
    (cost,) = catalog.read(usage.upgrade_costs, 5)
    assert (cost.at, cost.appeared, cost.vanished) == (change, (NEW.toolchain,), (OLD.toolchain,))
    assert (cost.rebuilt, cost.replay_seconds, cost.spared_seconds) == (1, 2.5, 2.5)
    assert catalog.read(usage.saved, NOW).spared_upgrade == 2.5
    assert (cost.runs, cost.run_seconds, cost.cooled, cost.warm_at) == (1, 12.0, 1, warm)


def test_history_outlives_a_corrupt_catalog(path: Path) -> None:
    with closing(catalogs.fresh(path)) as opened:
        opened.write(days.add, NOW, changes=2)
        opened.write(days.note_warmth, (api_stub.make_model(),), NOW)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("INSERT INTO stores VALUES (1, x'00', '', '', '', '', 0, 0, 0, '[]', 0, 0, 0)")
        raw.commit()
    with closing(Catalog.open(path)) as opened:
        assert opened.rebuilt is not None
        assert [one.changes for one in opened.read(days.days_between)] == [2]
        assert [one.now for one in opened.read(days.warmth_changes)] == [Warmth.WARM]


def test_the_past_of_an_older_catalog_is_counted(path: Path, tmp_path: Path) -> None:
    home = tmp_path / "migrations"
    shutil.copytree(catalogs.MIGRATIONS, home, ignore=shutil.ignore_patterns("__pycache__"))
    for one in (home / "versions").glob("00*.py"):
        if one.name >= "0026":
            one.unlink()
    catalogs.migrated(path, home)
    moment = int(NOW.timestamp()) * 1_000_000
    with closing(sqlite3.connect(path)) as raw:
        build = "INSERT INTO builds VALUES ('sycl', '/c', ?, 'f', 'rebuilt', 's', 1, 2.5, 'd', ?, NULL)"
        raw.executemany(build, [("a", moment), ("b", moment + 1)])
        raw.execute("INSERT INTO changes VALUES (1, ?, 's')", (moment,))
        raw.commit()
    with closing(Catalog.open(path)) as opened:
        assert opened.rebuilt is None
        day = today(opened)
    assert (day["replayed"], day["replay_seconds"], day["changes"], day["loads"]) == (2, 5.0, 1, None)
