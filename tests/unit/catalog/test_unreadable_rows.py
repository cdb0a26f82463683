"""Whatever stands in a row, a catalog is set aside for it once at most; for history and for what is noted, never."""

from __future__ import annotations

import functools
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from tests.support import api_stub, catalogs
from tests.unit.catalog.test_catalog import (
    HOUR,
    NEW,
    NOW,
    OLD,
    STORE,
    architecture,
    by_loader,
    entry,
    host,
    model,
    scan,
)
from xpucached.catalog import (
    Catalog,
    coverage,
    days,
    defects,
    dependencies,
    entries,
    events,
    figures,
    intents,
    models,
    recipes,
    refusals,
    runs,
    runtimes,
    scans,
    setting_aside,
    shifts,
    stores,
    surveys,
    targets,
    usage,
)
from xpucached.catalog.tables import METADATA
from xpucached.domain.beside_cpu import CpuComparison
from xpucached.domain.dependencies import Dependency, Role
from xpucached.domain.device_use import DeviceUse
from xpucached.domain.diagnosis import RuntimeCheck, Safety
from xpucached.domain.jobs import Event
from xpucached.domain.libraries import Libraries, SyclRuntime
from xpucached.domain.models import Attribution, Figures, Model, Outcome, Pass, Trial, WarmReason, Warmth
from xpucached.domain.names import Fingerprint, ModelName
from xpucached.domain.queries import EntryQuery
from xpucached.domain.stores import ImageFormat, Kernel
from xpucached.domain.workloads import Variant

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xpucached.domain.stores import Entry

LEFT_OUT: Final = {"days", "departed", "dependencies", "events", "shifts", "warmth"}
"""The tables whose rows are left out where they cannot be read."""


def whole(slot: str) -> Entry:
    told = {"source": f"source {slot}", "kernels": (Kernel("k", "shown"),), "facts": (("a", "b"),), "input": "i"}
    return replace(entry(slot), image=ImageFormat.SPIRV, binary=ImageFormat.SPIRV, image_size=4, **told)


ENTRIES: Final = (whole("a/b/0"), whole("a/c/1"), whole("a/d/2"))
SHIFT: Final = replace(api_stub.make_shift(), id=0, run=1, at=NOW)

# What the daemon does not write here by itself: as it would.
MORE: Final = (
    "UPDATE departed SET program = 'app'",
    "UPDATE entries SET program = 'app', defect = 'x'",
    'INSERT INTO defects VALUES (\'x\', \'{"code":"x","effect":"dead","message":"x"}\')',
    "INSERT INTO inherited SELECT id, 'net' FROM entries",
    "INSERT INTO builds VALUES ('sycl', '/var/cache/one', 'a/c/1', 'f', 'x', 's', 4, 1.5, 'd', 1, '[\"net\"]', 'k')",
    "INSERT INTO vouchers VALUES ('s', 'k', 'd')",
    "INSERT INTO recipes SELECT 'sycl', 'a/b/0', max(id), 'l', '{\"p\":[\"x\",1]}', '{\"f\":\"v\"}', 2, 1 FROM targets",
    "INSERT INTO predicted SELECT 'sycl', 'a/b/0', max(id), 'a/c/1', 0 FROM targets",
    "INSERT INTO derived SELECT 'sycl', 'a/c/1', max(id) FROM targets",
    "INSERT INTO offers SELECT '', max(id) FROM targets WHERE true ON CONFLICT DO NOTHING",
)


@functools.cache
def full() -> bytes:
    """Return a catalog with something in every column."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "catalog.sqlite")
        with closing(catalogs.fresh(path)) as catalog:
            catalog.write(surveys.record_survey, host(OLD, at=NOW - 2 * HOUR))
            catalog.write(surveys.record_survey, host(NEW, at=NOW - HOUR))
            catalog.write(models.add_model, model())
            catalog.write(models.add_model, Model(ModelName("by loader"), by_loader("x")))
            catalog.write(scans.record_scan, scan(*ENTRIES, notes=("n",)), architecture)
            begun = catalog.write(runs.begin_run, model(), WarmReason.NEVER, "here", NOW, "6.1", ("torch",))
            one = (Pass(1, 1, 1, 0, 1, 0),)
            trial = Trial(
                *(Variant(), Outcome.WARMED, one),
                evidence=("e",),
                figures=(Figures(),),
                use=DeviceUse(),
                cpu=CpuComparison(),
            )
            needs = [Dependency(Role.PROGRAM, "/bin/true", 1, 2, 3, 4, "digest", "version")]
            catalog.write(
                runs.finish_run,
                begun.id,
                Outcome.WARMED,
                one,
                Attribution(frozenset(each.id for each in ENTRIES)),
                (NEW,),
                "detail",
                "output",
                NOW,
                (trial,),
                needs,
                Libraries((SyclRuntime(Path("/l"), "b", 1),)),
            )
            # One departs.
            catalog.write(scans.record_scan, scan(*ENTRIES[:2]), architecture)
            catalog.write(shifts.record_shifts, begun.model, [SHIFT])
            catalog.write(events.record_events, [Event(1, NOW, "model-removed", "m", {"model": "old"})], 10)
            for moment, word in ((NOW - HOUR, Warmth.COLD), (NOW, Warmth.WARM)):
                catalog.write(days.note_warmth, [api_stub.make_model("net", word)], moment)
            catalog.write(days.add, NOW, loads=1, avoided_seconds=1.5, estimated_seconds=0.5)
            catalog.write(days.note_state, NOW, 1, 1)
            catalog.write(runtimes.record_runtime_check, RuntimeCheck("b", Path("/l"), Safety.SAFE, "e", NOW))
            catalog.write(refusals.record_refusal, STORE, "tail", Fingerprint("f"), "stamp", "message", NOW)
            catalog.write(intents.intend, [ENTRIES[0].id], NOW)
        with closing(sqlite3.connect(path)) as raw, raw:
            for statement in MORE:
                raw.execute(statement)
        return path.read_bytes()


QUESTIONS: Final[Mapping[str, Callable[[Catalog], object]]] = {
    "events": lambda c: (c.read(events.newest_events, 100), c.read(events.removed_models)),
    "needs": lambda c: c.read(dependencies.run_dependencies, [1]),
    "shifts": lambda c: c.read(shifts.unseen_shifts),
    "days": lambda c: (c.read(days.since_the_beginning), c.read(days.days_between)),
    "warmth": lambda c: (c.read(days.warmth_changes), c.read(days.standing_since)),
    "usage": lambda c: (c.read(usage.totals, 1e-5), c.read(usage.saved, NOW), c.read(usage.upgrade_costs, 5)),
    "runs": lambda c: c.read(runs.newest_runs),
    "coverage": lambda c: c.read(coverage.model_coverage),
    "entries": lambda c: c.read(entries.all_entries),
    "page": lambda c: c.read(entries.entry_page, EntryQuery(), present=(), now=NOW),
    "stores": lambda c: c.read(stores.all_stores),
    "models": lambda c: c.read(models.all_models),
    "survey": lambda c: (c.read(surveys.last_survey), c.read(surveys.driver_changes)),
    "targets": lambda c: c.read(targets.target_presence),
    "recipes": lambda c: c.read(recipes.recipe_lineages),
    "runtimes": lambda c: c.read(runtimes.known_runtime_checks, ["b"]),
    "defects": lambda c: c.read(defects.known_defects),
    "intents": lambda c: c.read(intents.open_intents),
    "refusals": lambda c: c.read(refusals.refused_by, "stamp"),
    "figures": lambda c: (c.read(figures.catalog_summary), c.read(figures.model_sizes)),
    # And what is written beside it: what departed comes back, …
    "look": lambda c: c.write(scans.record_scan, scan(*ENTRIES), architecture),
    "new shift": lambda c: (
        any(one.name == "net" for one in c.read(models.all_models))
        and c.read(runs.newest_runs)
        and c.write(shifts.record_shifts, ModelName("net"), [SHIFT])
    ),
    "new warmth": lambda c: c.write(days.note_warmth, [api_stub.make_model("net", Warmth.COLD)], NOW),
    "new day": lambda c: c.write(days.add, NOW, freed=1.5),
    "new event": lambda c: c.write(events.record_events, [Event(1, NOW, "topic", "message")], 10),
}


def wrong(value: str) -> str:
    """Return a text that is nearly the same: of a document no such any more, else of another last letter."""
    if value.startswith(("[", "{")):
        return value.replace('"', "2", 1) if '"' in value else value.replace(value[0], "x", 1)
    return value[:-1] + chr(ord(value[-1]) ^ 1) if value else "x"


def damages(table: sa.Table, path: Path) -> list[tuple[str, str, object]]:
    """Return columns of a table, what is to be put there, and a value for that."""
    found: list[tuple[str, str, object]] = []
    catalogs.put(path, full())
    with closing(sqlite3.connect(path)) as raw:
        for column in table.c:
            if isinstance(column.type, sa.Float):
                found.append((column.name, "?", float("inf")))
            elif isinstance(column.type, sa.Text | sa.JSON):
                asked = f'SELECT "{column.name}" FROM {table.name} WHERE "{column.name}" IS NOT NULL'  # noqa: S608
                row = raw.execute(asked).fetchone()
                assert row is not None, f"nothing is in {column}"
                found += [(column.name, "?", wrong(row[0])), (column.name, "CAST(? AS TEXT)", b"1\xff")]
    return found


@pytest.mark.flow
@pytest.mark.parametrize("table", METADATA.sorted_tables, ids=lambda one: one.name)
def test_no_row_has_a_catalog_set_aside_twice(table: sa.Table, tmp_path: Path) -> None:
    for number, (column, value, put) in enumerate(damages(table, tmp_path / "whole.sqlite")):
        path = tmp_path / str(number) / "catalog.sqlite"
        catalogs.put(path, full())
        with closing(sqlite3.connect(path)) as raw, raw:
            raw.execute(f'UPDATE OR IGNORE {table.name} SET "{column}" = {value}', (put,))  # noqa: S608 - our names
        wrong_at_last: dict[str, str] = {}
        for _ in range(2):
            wrong_at_last.clear()
            with closing(Catalog.open(path)) as catalog:
                for name, ask in QUESTIONS.items():
                    try:
                        ask(catalog)
                    except Exception as error:  # noqa: BLE001 - whatever it is, it must not be met again
                        wrong_at_last[name] = repr(error)
                    if catalog.corrupt:
                        catalog.mend()
        beside = (*setting_aside.SIDES, ".unread")
        aside = sum(not one.name.endswith(beside) for one in path.parent.glob("catalog.sqlite.corrupt-*"))
        assert (wrong_at_last, aside) == ({}, 0 if table.name in LEFT_OUT else min(aside, 1)), (column, put)
