"""Events: they outlive the daemon, their numbers go on, and who missed some is told."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.daemons import Daemon, daemon
from xpucached.catalog import Catalog, opening
from xpucached.catalog import events as kept
from xpucached.service import events
from xpucached.service.events import LOST, Events
from xpucached.threads import renew

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xpucached.domain.jobs import Event


def clock() -> datetime:
    return datetime(2026, 6, 1, tzinfo=UTC)


@pytest.fixture
def path(short_dir: Path) -> Path:
    """Return the place of a catalog."""
    return short_dir / "catalog.sqlite"


def life(path: Path, *messages: str, clean: bool = True) -> tuple[Event, ...]:
    """Post some events as a daemon does in its life, and give all that a reader gets who knows none."""

    async def live(catalog: Catalog) -> tuple[Event, ...]:
        log = Events(clock, catalog)
        for message in messages:
            log.post("topic", message, {"number": message})
        assert await log.flush(last=clean)
        return await log.since(0)

    catalog = Catalog.open(path)
    try:
        return asyncio.run(live(catalog))
    finally:
        catalog.close()


def since(path: Path, last: int) -> list[tuple[int, str]]:
    catalog = Catalog.open(path)
    try:
        return [(one.id, one.message) for one in asyncio.run(Events(clock, catalog).since(last))]
    finally:
        catalog.close()


def test_where_no_thread_is_to_be_had_what_is_in_memory_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_AT_HAND", 2)

    def full(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def live(catalog: Catalog) -> tuple[Event, ...]:
        log = Events(clock, catalog)
        for message in "abc":
            log.post("topic", message)
        assert await log.flush()
        renew(asyncio.get_running_loop())
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", full)
            return await log.since(0)

    with closing(Catalog.open(path)) as catalog:
        assert [one.message for one in asyncio.run(live(catalog))] == ["b", "c"]


def test_the_next_daemon_knows_them_and_counts_on(path: Path) -> None:
    first = life(path, "a", "b")
    both = life(path, "c")

    assert [(one.id, one.message, dict(one.fields)) for one in both] == [
        (1, "a", {"number": "a"}),
        (2, "b", {"number": "b"}),
        (3, "c", {"number": "c"}),
    ]
    assert both[:2] == first
    assert since(path, 2) == [(3, "c")]
    assert since(path, 3) == []


def test_after_a_death_no_number_is_given_twice(path: Path) -> None:
    async def die(catalog: Catalog) -> int:
        log = Events(clock, catalog)
        log.post("topic", "written")
        assert await log.flush()
        return log.post("topic", "never written").id

    catalog = Catalog.open(path)
    lost = asyncio.run(die(catalog))
    catalog.close()

    (old, new) = life(path, "new")
    assert (old.id, old.message) == (1, "written")
    assert new.id > lost


def test_old_ones_go_and_who_is_behind_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEPT", 3)
    monkeypatch.setattr(events, "_AT_HAND", 2)
    life(path, *"abcdefg")

    assert since(path, 0) == [(5, "e"), (6, "f"), (7, "g")]
    assert since(path, 4) == since(path, 0)
    notice, *rest = since(path, 2)
    assert notice == (4, "events up to 4 are no longer kept")
    assert rest == since(path, 0)


def test_a_reader_of_another_catalog_s_events_is_told(path: Path) -> None:
    life(path, "a")

    notice, *rest = since(path, 77)
    assert notice[0] == 0
    assert "there was no event 77" in notice[1]
    assert rest == [(1, "a")]


def test_a_catalog_that_cannot_be_written_stops_nothing_and_gets_them_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_UNWRITTEN", 2)
    monkeypatch.setattr(opening, "BUSY", 0.05)

    async def live(catalog: Catalog) -> tuple[Event, ...]:
        log = Events(clock, catalog)
        with closing(sqlite3.connect(path)) as other:
            other.execute("BEGIN EXCLUSIVE")
            for message in "abc":
                log.post("topic", message)
            assert not await log.flush()
            assert [one.message for one in await log.since(0)] == ["a", "b", "c"]
        assert await log.flush()
        await log.flush(last=True)
        return await log.since(0)

    catalog = Catalog.open(path)
    try:
        assert [one.message for one in asyncio.run(live(catalog))][:3] == ["a", "b", "c"]
    finally:
        catalog.close()
    assert [message for _, message in since(path, 0)] == [
        "b",
        "c",
        "1 events could not be kept, because the catalog could not be written",
    ]


def test_text_that_is_no_unicode_and_long_text_do_not_hold_up_the_others(path: Path) -> None:
    first, second, _ = life(path, "a\udcffb", "x" * 100_000, "c")

    assert first.message == r"a\udcffb"
    assert len(second.message) == 4000
    assert [message for _, message in since(path, 0)] == [first.message, second.message, "c"]


def test_who_follows_gets_the_old_ones_and_then_the_new(path: Path) -> None:
    life(path, "a", "b")

    async def follow(catalog: Catalog) -> list[str]:
        log = Events(clock, catalog)
        seen = []
        async for event in log.subscribe(1):
            seen.append(event.message)
            if event.message == "c":
                return seen
            log.post("topic", "c")
        return seen

    catalog = Catalog.open(path)
    try:
        assert asyncio.run(follow(catalog)) == ["b", "c"]
    finally:
        catalog.close()


# -- in the daemon ----------------------------------------------------------------------------------------------------


@pytest.fixture
def host(home: Path, short_dir: Path) -> Iterator[Daemon]:
    """Return a daemon without any driver."""
    with daemon(home, short_dir) as one:
        one.configure("[schedule]\nsettle = '0.2s'\n")
        yield one


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_loses_no_event(host: Daemon, number: signal.Signals) -> None:
    host.start()
    host.ctl("model", "add", "one", "--", "/bin/true")
    # Written down moments later, not at once.
    host.until(lambda: one_is_written(host.state / "catalog.sqlite"))
    before = host.rows("events")
    last = str(before[-1]["id"])
    host.end(number)
    host.start()
    host.ctl("model", "add", "two", "--", "/bin/true")

    assert host.rows("events")[: len(before)] == before
    newer = host.rows("events", "--since", last)
    assert ("model-added", "two") in {(row["topic"], row["message"]) for row in newer}
    assert not {row["id"] for row in newer} & {row["id"] for row in before}
    told = host.rows("events", "--since", "999999999")
    assert told[0]["topic"] == LOST
    assert told[1:] == host.rows("events")
    assert json.loads(host.ctl("events", "--since", str(newer[-1]["id"]), "--json").stdout)["data"] == []


def one_is_written(catalog: Path) -> bool:
    with closing(sqlite3.connect(f"file:{catalog}?mode=ro", uri=True)) as connection:
        return bool(connection.execute("SELECT count(*) FROM events WHERE topic = 'model-added'").fetchone()[0])
