"""What is read again bit by bit comes to its turn, however short the lives of the daemons are that do it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import catalogs
from xpucached.daemon import worker
from xpucached.daemon.schedule import ClockSchedule
from xpucached.daemon.user_daemon import Daemon
from xpucached.domain.names import EntryKey
from xpucached.service.context import Context
from xpucached.service.scrub_progress import PARTS
from xpucached.service.verify import Verifier
from xpucached.settings import loading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KEYS: Final = [EntryKey(f"{device}/{number}/0/1/0") for device in range(3) for number in range(1000)]
HOUR: Final = 3600.0


class Reader:
    """Stands for the scanner: notes what it is to read again."""

    def __init__(self) -> None:
        self.read: set[EntryKey] = set()

    async def scan_stores(self, *, again: Callable[[EntryKey], bool]) -> None:
        self.read.update(filter(again, KEYS))


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), "XPUCACHED_STORES_FOUND": "false"}
    config = loading.load(None, user=True, environ=environ)
    config.paths.state.mkdir(parents=True)
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        yield Context(config, catalog, {})


def started(context: Context, reader: Reader | None = None) -> Verifier:
    """Return what reads again in a new life of the daemon."""
    return Verifier(context, reader, None)  # type: ignore[arg-type] # all that it asks


@pytest.mark.parametrize("parts", [1, 9])
def test_daemons_of_short_lives_read_everything_together(context: Context, parts: int) -> None:
    reader = Reader()

    async def live() -> None:
        verifier = started(context, reader)
        for _ in range(parts):
            await verifier.scrub()

    for _ in range(math.ceil(PARTS / parts)):
        asyncio.run(live())
    assert reader.read == set(KEYS)


def test_a_part_that_came_due_between_two_lives_is_read_soon(context: Context) -> None:
    now = datetime(2026, 5, 4, tzinfo=UTC)
    context.clock = lambda: now
    wait = started(context).progress.wait
    assert wait(HOUR) == HOUR
    now += timedelta(minutes=50)
    assert started(context).progress.wait(HOUR) == pytest.approx(600)
    now += timedelta(hours=8)
    assert started(context).progress.wait(HOUR) == 2.0
    # The clock was set back; and nobody knows any more.
    now -= timedelta(days=8)
    assert wait(HOUR) == HOUR
    for said in (b"", b"1", b"1 2 3", b"one two", b"9" * 100):
        (context.settings.paths.state / "scrubbed").write_bytes(said)
        assert wait(HOUR) == HOUR


def test_a_part_noted_when_the_clock_was_ahead_is_due_as_one_noted_now(context: Context) -> None:
    now = datetime(2026, 5, 4, tzinfo=UTC)
    context.clock = lambda: now
    place = context.settings.paths.state / "scrubbed"
    place.write_bytes(b"5 %d" % (now + timedelta(days=365)).timestamp())
    assert started(context).progress.wait(HOUR) == HOUR
    now += timedelta(minutes=50)
    progress = started(context).progress
    assert progress.wait(HOUR) == pytest.approx(600)
    assert progress.next_part() == 6


def test_a_worker_stays_until_a_part_is_read_and_a_stop_meanwhile_is_no_mistake(
    context: Context, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def seen() -> bool:
        return True

    async def live() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        class Slow(Reader):
            async def scan_stores(self, *, again: Callable[[EntryKey], bool]) -> None:  # noqa: ARG002 - as the other
                begun.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.set()

        verifier = started(context, Slow())
        service = SimpleNamespace(context=context, tracker=SimpleNamespace(take=None), verifier=verifier, busy=False)
        door = SimpleNamespace(busy=False, last_asked=-math.inf, last_passed_on=-math.inf)
        options = argparse.Namespace(worker=True)
        daemon = Daemon(options, context.settings, service, door, None)  # type: ignore[arg-type] # all that it asks
        daemon._need = worker.WorkerNeed(-math.inf)
        daemon._schedule.take_settings(context.settings)
        daemon._schedule.start()
        async with asyncio.timeout(30.0):
            await begun.wait()
            minding = asyncio.create_task(daemon._mind_the_others())
            while daemon._need._worked == -math.inf and not daemon._stopping.is_set():  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.01)
            assert not daemon._stopping.is_set()
            minding.cancel()
            daemon._schedule.stop()
            await ended.wait()
            await asyncio.sleep(0)

    monkeypatch.setattr(worker, "seen", seen)
    context.ready = True
    (context.settings.paths.state / "scrubbed").write_bytes(b"5 0")
    asyncio.run(live())
    assert "CancelledError" not in caplog.text


def test_the_first_part_is_read_when_it_is_due() -> None:
    async def nothing() -> None: ...

    schedule = ClockSchedule(lambda: None, nothing, lambda every: every / 60)
    before = datetime.now(UTC)
    schedule.take_settings(loading.load(None, user=True, environ={"HOME": "/", "XDG_RUNTIME_DIR": "/"}))
    due = schedule._scheduler.get_job("scrub").next_run_time
    assert before + timedelta(minutes=1) <= due <= datetime.now(UTC) + timedelta(minutes=1)


def test_a_look_that_came_due_while_the_host_slept_is_made_when_it_wakes(context: Context) -> None:
    async def live() -> None:
        looked = asyncio.Event()

        async def scrub() -> None:
            pass

        schedule = ClockSchedule(looked.set, scrub, lambda every: every)
        schedule.take_settings(context.settings)
        schedule.start()
        # Also the last of those that were due is long past.
        slept = timedelta(seconds=context.settings.schedule.scan_interval * 48.5)
        schedule._scheduler.modify_job("look", next_run_time=datetime.now(UTC) - slept)
        async with asyncio.timeout(10.0):
            await looked.wait()
        schedule.stop()

    asyncio.run(live())
