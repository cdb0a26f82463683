"""Questions about more values than SQLite takes parameters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tests.support import catalogs
from xpucached.catalog import Catalog
from xpucached.catalog.coverage import _remaining
from xpucached.catalog.dependencies import noted_runs, run_dependencies
from xpucached.catalog.lists import among
from xpucached.catalog.models import all_models, sync_file_models
from xpucached.catalog.runtimes import known_runtime_checks
from xpucached.domain.models import Model, Workload
from xpucached.domain.names import ModelName

if TYPE_CHECKING:
    from collections.abc import Iterator

MANY = 300_000
"""More than any build of SQLite takes parameters: 250,000 on Debian, 32,766 elsewhere."""


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = catalogs.fresh(tmp_path / "catalog.sqlite")
    yield catalog
    catalog.close()


def test_what_is_asked_about_may_be_as_much_as_there_is(catalog: Catalog) -> None:
    assert catalog.read(noted_runs, range(MANY)) == frozenset()
    assert catalog.read(run_dependencies, range(MANY)) == {}
    assert catalog.read(_remaining, range(MANY)) == {}
    assert catalog.read(known_runtime_checks, map(str, range(MANY))) == {}


def test_as_many_models_as_there_are_may_go_at_once(catalog: Catalog) -> None:
    workload = Workload(("/bin/true",), Path("/"))
    models = [Model(ModelName(f"m{number}"), workload, source="/m.toml") for number in range(2)]
    catalog.write(sync_file_models, models)

    catalog.write(sync_file_models, models[1:])

    assert [one.name for one in catalog.read(all_models)] == ["m1"]


@pytest.mark.parametrize("values", [(), ("a",), ("a", "ä\N{PILE OF POO}", 'b"\\', "1"), (1, 2**62)])
def test_a_column_has_one_of_the_values_or_it_has_not(catalog: Catalog, values: tuple[int | str, ...]) -> None:
    def ask(connection: sa.Connection) -> list[int | str]:
        every = sa.union_all(*(sa.select(sa.literal(one).label("it")) for one in (*values, "other", 7))).subquery()
        return list(connection.scalars(sa.select(every.c.it).where(among(every.c.it, values))))

    assert catalog.read(ask) == list(values)
