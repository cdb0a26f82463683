"""How many entries each model has, and what they take: on real SQLite."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.support import catalogs
from tests.unit.catalog.test_catalog import CPU, NEW, NOW, OTHER, STORE, architecture, entry, host, model, scan
from tests.unit.catalog.test_days import built, run
from xpucached import codec, messages
from xpucached.catalog.builds import record_build
from xpucached.catalog.entries import entry_page
from xpucached.catalog.figures import catalog_summary, model_sizes, needed_sizes
from xpucached.catalog.models import add_model
from xpucached.catalog.preselect import store_subtotals
from xpucached.catalog.scans import record_scan
from xpucached.catalog.stores import all_stores
from xpucached.catalog.surveys import record_survey
from xpucached.catalog.usage import model_usage, totals
from xpucached.domain.queries import EntryQuery

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from xpucached.catalog import Catalog


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """An empty catalog on a host with the newer driver."""
    with closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as opened:
        opened.write(record_survey, host(NEW))
        yield opened


def test_each_model_has_what_its_own_runs_used(catalog: Catalog) -> None:
    mine, both, theirs = entry("1/a/0", allocated=100), entry("1/b/0", allocated=20), entry("1/c/0", allocated=3)
    catalog.write(record_scan, scan(mine, both, theirs), architecture)
    run(catalog, "net", (mine,))
    run(catalog, "net", (), (mine, both))
    run(catalog, "other", (both, theirs))
    assert catalog.read(model_sizes) == {"net": (2, 120), "other": (2, 23)}


def test_a_program_counts_once_for_all_drivers_of_a_device_by_what_came_last(catalog: Catalog) -> None:
    old, new = entry("1/a/0", allocated=100), entry("2/a/0", environment=NEW, allocated=20)
    processor = entry("3/a/0", environment=CPU, allocated=3)
    elsewhere = entry("1/a/0", OTHER, allocated=4000)
    catalog.write(record_scan, scan(old), architecture)
    catalog.write(record_scan, scan(elsewhere, store=OTHER), architecture)
    run(catalog, "net", (old,))
    assert catalog.read(model_sizes) == {"net": (1, 100)}
    # What replay makes of it is the model's before it has run again.
    catalog.write(record_build, built("2/a/0", 1.0, "net"), NOW)
    catalog.write(record_scan, scan(old, new, processor), architecture)
    assert catalog.read(model_sizes) == {"net": (1, 20)}
    run(catalog, "net", (processor, elsewhere), (new,))
    assert catalog.read(model_sizes) == {"net": (3, 4023)}


def test_entries_that_say_they_take_all_there_is_can_be_added_up_and_told(catalog: Catalog) -> None:
    """A file may be that long and empty, and a file system may say so of any."""
    most = (1 << 63) - 1
    some = [entry(f"1/{leaf}/0", environment=NEW, size=most, allocated=most) for leaf in "abcdefghijklmn"]
    catalog.write(add_model, model())
    assert catalog.write(record_scan, scan(*some), architecture).size == most
    run(catalog, "net", tuple(some))
    assert catalog.read(model_sizes) == {"net": (14, most)}
    assert catalog.read(needed_sizes) == {STORE: most}
    page = catalog.read(entry_page, EntryQuery(limit=1), present=(), now=NOW)
    told = (page, catalog.read(all_stores), catalog.read(catalog_summary), catalog.read(store_subtotals))
    for value in (*told, *catalog.read(model_usage, 1.0), *catalog.read(totals, 1.0)):
        assert messages.parse(codec.dumps(codec.to_json(value)), largest=1 << 20)
