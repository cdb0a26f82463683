"""Of which entries it was tried to find out how they are compiled: once each, while they are there."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import catalogs
from tests.unit.catalog.test_catalog import NOW, OLD, OTHER, STORE, architecture, entry, host, scan
from xpucached.catalog.derived import note_tried, underived
from xpucached.catalog.entries import forget_entries
from xpucached.catalog.recipe_tables import DERIVED
from xpucached.catalog.scans import record_scan
from xpucached.catalog.stores import forget_store
from xpucached.catalog.surveys import record_survey
from xpucached.domain.stores import ImageFormat, StoreState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from xpucached.catalog import Catalog

SOME: Final = [entry(key, environment=None, image=ImageFormat.SPIRV) for key in ("a/0", "b/0", "c/0")]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as opened:
        opened.write(record_survey, host(OLD))
        opened.write(record_scan, scan(*SOME), architecture)
        opened.write(record_scan, scan(entry("a/0", OTHER), store=OTHER), architecture)
        yield opened


def tried(catalog: Catalog) -> list[str]:
    return catalog.read(lambda connection: sorted(row.key for row in connection.execute(DERIVED.select())))


GOES: Final[dict[str, tuple[Callable[[Catalog], object], list[str]]]] = {
    "vanished": (lambda catalog: catalog.write(record_scan, scan(SOME[0]), architecture), ["a/0"]),
    "evicted": (lambda catalog: catalog.write(forget_entries, [SOME[0].id, SOME[1].id]), ["c/0"]),
    "missing": (lambda catalog: catalog.write(record_scan, scan(state=StoreState.MISSING), architecture), []),
    "forgotten": (lambda catalog: catalog.write(forget_store, STORE), []),
    "another store": (lambda catalog: catalog.write(forget_entries, [entry("b/0", OTHER).id]), ["a/0", "b/0", "c/0"]),
}


@pytest.mark.parametrize(("go", "left"), GOES.values(), ids=GOES)
def test_what_was_tried_is_remembered_while_it_is_there(
    catalog: Catalog, go: Callable[[Catalog], object], left: list[str]
) -> None:
    """Who makes and removes entries all the time shall fill no catalog."""
    ids = catalog.read(underived, STORE.kind, OLD, 10)
    assert [one.key for one in ids] == ["a/0", "b/0", "c/0"]
    catalog.write(note_tried, OLD, ids)
    assert catalog.read(underived, STORE.kind, OLD, 10) == ()
    assert tried(catalog) == ["a/0", "b/0", "c/0"]
    go(catalog)
    assert tried(catalog) == left
    catalog.write(record_scan, scan(*SOME, at=NOW), architecture)
    assert {one.key for one in catalog.read(underived, STORE.kind, OLD, 10)} == {"a/0", "b/0", "c/0"} - set(left)
