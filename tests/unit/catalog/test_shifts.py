"""What became slower or faster stays until somebody has seen it: on real SQLite."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import sqlalchemy as sa
from msgspec.structs import replace

from tests.support import catalogs
from tests.support.api_stub import make_shift
from tests.unit.catalog.test_catalog import NOW, model
from xpucached.catalog import Catalog
from xpucached.catalog.models import add_model, remove_model
from xpucached.catalog.runs import begin_run, find_run
from xpucached.catalog.shifts import record_shifts, see_shifts, unseen_shifts
from xpucached.catalog.tables import SHIFTS
from xpucached.domain.models import WarmReason

if TYPE_CHECKING:
    from pathlib import Path


def test_a_shift_is_news_once_and_stays_until_it_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    with closing(catalogs.fresh(path)) as catalog:
        catalog.write(add_model, model("net"))
        run = catalog.write(begin_run, model("net"), WarmReason.DRIVER, "host", NOW, "6.8.0", ["torch 2 → 3"])
        assert (run.kernel, run.changes) == ("6.8.0", ("torch 2 → 3",))
        found = replace(make_shift(), run=run.id, at=NOW)

        news, over = catalog.write(record_shifts, run.model, [found])
        assert ([replace(one, id=3) for one in news], over) == ([found], ())
        first = news[0].id
        further = replace(found, after=9.9, after_runs=2)
        assert catalog.write(record_shifts, run.model, [further]) == ((), ())

    with closing(Catalog.open(path)) as catalog:  # the next life
        assert catalog.read(unseen_shifts) == (replace(further, id=first),)
        (seen,) = catalog.write(see_shifts, [run.model], NOW)
        assert seen == replace(further, id=first, seen=NOW)
        assert catalog.read(unseen_shifts) == catalog.write(see_shifts, [], NOW) == ()
        # What was seen is not told again, whatever its figures are by now.
        assert catalog.write(record_shifts, run.model, [found]) == ((), ())
        assert catalog.read(unseen_shifts) == ()
        # It is over; and what comes then is new.
        assert [one.id for one in catalog.write(record_shifts, run.model, [])[1]] == [first]
        assert catalog.write(record_shifts, run.model, [found])[0][0].id > first
        assert catalog.read(find_run, run.id).changes == ("torch 2 → 3",)
        catalog.write(remove_model, run.model)
        assert catalog.read(unseen_shifts) == ()


def test_what_cannot_be_read_is_not_told_and_makes_room_for_what_is_found_again(tmp_path: Path) -> None:
    with closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        catalog.write(add_model, model("net"))
        run = catalog.write(begin_run, model("net"), WarmReason.DRIVER, "host", NOW)
        found = [replace(make_shift(), run=run.id, at=NOW, variant=name) for name in ("one", "two")]
        catalog.write(record_shifts, run.model, found)
        with closing(sqlite3.connect(catalog.path)) as raw, raw:
            raw.execute("UPDATE shifts SET changed = '[2' WHERE variant = 'one'")
        assert [one.variant for one in catalog.read(unseen_shifts)] == ["two"]
        news, over = catalog.write(record_shifts, run.model, found)
        assert ([one.variant for one in news], over) == (["one"], ())
        assert {one.variant for one in catalog.read(unseen_shifts)} == {"one", "two"}
        assert catalog.read(lambda connection: connection.scalar(sa.select(sa.func.count(SHIFTS.c.id)))) == 2


def test_as_many_as_there_are_may_be_seen_at_once(tmp_path: Path) -> None:
    many = 250_001  # SQLite takes no more parameters than 250,000 on Debian, and 32,766 elsewhere
    with closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        catalog.write(add_model, model("net"))
        run = catalog.write(begin_run, model("net"), WarmReason.DRIVER, "host", NOW)
        (first,), _ = catalog.write(record_shifts, run.model, [replace(make_shift(), run=run.id, at=NOW)])

        def multiply(connection: sa.Connection) -> None:
            others = {one.name: one for one in SHIFTS.c if one.name not in {"id", "variant"}}
            names = sa.func.json_each("[" + ",".join(map(str, range(1, many))) + "]").table_valued("value")
            rows = sa.select(*others.values(), names.c.value).select_from(SHIFTS.join(names, sa.true()))
            connection.execute(sa.insert(SHIFTS).from_select([*others, "variant"], rows))

        catalog.write(multiply)
        seen = catalog.write(see_shifts, [run.model], NOW)
        assert (len(seen), seen[0]) == (many, replace(first, seen=NOW))
        assert catalog.read(unseen_shifts) == ()
