"""Events as rows: in order, so many and no more, and no number twice."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import catalogs
from xpucached.catalog import events
from xpucached.catalog.events import events_after, newest_events, record_events
from xpucached.domain.jobs import Event

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from xpucached.catalog import Catalog

NOW: Final = datetime(2026, 5, 4, 12, tzinfo=UTC)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as opened:
        yield opened


def event(number: int, message: str = "done") -> Event:
    return Event(number, NOW, "topic", message, {"number": str(number)})


def numbers(told: tuple[object, tuple[Event, ...]]) -> list[int]:
    return [one.id for one in told[1]]


def test_before_the_first_event_there_is_none_and_no_number_is_taken(catalog: Catalog) -> None:
    assert catalog.read(newest_events, 10) == (0, ())
    assert catalog.read(events_after, 0) == (None, ())


def test_events_come_back_as_they_were_in_their_order(catalog: Catalog) -> None:
    some = [event(number) for number in (1, 2, 4)]
    catalog.write(record_events, [some[2], some[0], some[1]], 10)
    assert catalog.read(newest_events, 10) == (10, tuple(some))
    assert catalog.read(events_after, 0) == (1, tuple(some))


def test_who_read_some_gets_those_behind(catalog: Catalog) -> None:
    catalog.write(record_events, [event(number) for number in (3, 4, 5)], 5)
    assert catalog.read(events_after, 3) == (3, (event(4), event(5)))
    assert catalog.read(events_after, 5) == (3, ())


@pytest.mark.parametrize(("limit", "found"), [(1, [5]), (2, [4, 5]), (3, [3, 4, 5]), (4, [3, 4, 5])])
def test_as_many_as_are_asked_for_are_the_newest(catalog: Catalog, limit: int, found: list[int]) -> None:
    catalog.write(record_events, [event(number) for number in (3, 4, 5)], 5)
    assert numbers(catalog.read(newest_events, limit)) == found


def test_so_many_are_kept_and_no_more(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEPT", 3)
    catalog.write(record_events, [event(number) for number in (1, 2, 3)], 3)
    assert numbers(catalog.read(events_after, 0)) == [1, 2, 3]
    catalog.write(record_events, [event(4)], 4)
    assert catalog.read(events_after, 0) == (2, (event(2), event(3), event(4)))


def test_an_event_that_is_kept_already_stays_as_it_is(catalog: Catalog) -> None:
    catalog.write(record_events, [event(1)], 1)
    catalog.write(record_events, [event(1, "another"), event(2)], 2)
    assert catalog.read(events_after, 0) == (1, (event(1), event(2)))


def test_numbers_that_were_reserved_are_not_given_again(catalog: Catalog) -> None:
    for reserved in (100, 200):
        catalog.write(record_events, [], reserved)
        assert catalog.read(newest_events, 1) == (reserved, ())
    catalog.write(record_events, [event(101)], 300)
    assert catalog.read(newest_events, 1) == (300, (event(101),))


def test_no_number_below_the_newest_event_is_given_whatever_was_reserved(catalog: Catalog) -> None:
    catalog.write(record_events, [event(7)], -5)
    assert catalog.read(newest_events, 1)[0] == 7
    catalog.write(lambda connection: connection.exec_driver_sql("DELETE FROM events"))
    assert catalog.read(newest_events, 1)[0] == 0
