"""A job that is cancelled while a thread changes a store: nobody else gets in meanwhile, and what was done is told."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.flow.test_upkeep import alone
from tests.support import catalogs
from tests.support.builders import SyclStore
from xpucached.catalog import Catalog
from xpucached.catalog.entries import all_entries
from xpucached.catalog.events import RESTORED
from xpucached.domain.jobs import JobState
from xpucached.domain.reports import EvictionReport, ScanReport, TrashReport, VerifyReport
from xpucached.kinds import sycl
from xpucached.kinds.trash import TrashFolder
from xpucached.service import trash
from xpucached.service.events import Events

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

    from xpucached.domain.jobs import Job
    from xpucached.service.jobs import Work


@pytest.fixture
def catalog(home: Path) -> Iterator[Catalog]:
    """Return an empty catalog."""
    catalog = catalogs.fresh(home / "catalog.sqlite")
    yield catalog
    catalog.close()


@pytest.mark.parametrize(
    ("way", "place", "name", "told"),
    [
        ("evict", sycl.remover, "remove", "evicted"),
        ("verify", sycl.remover, "remove", "mended"),
        ("empty", sycl.trash_files, "discard", "trash-emptied"),
        ("restore", sycl.trash_files, "restore", RESTORED),
        ("scan", sycl.scanner, "parts", None),
    ],
    ids=["evict", "verify", "empty", "restore", "scan"],
)
def test_what_a_cancelled_job_does_in_a_store_comes_to_its_end_first(
    catalog: Catalog,
    sycl_store: SyclStore,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    place: ModuleType,
    name: str,
    told: str | None,
) -> None:
    slot = sycl_store.add(age=90 * 86400)
    if way == "verify":
        slot.cut(slot.bin, 20)
    going, may_end = threading.Event(), threading.Event()
    ended: list[str] = []
    real = getattr(place, name)

    def slowly(*given: object, **more: object) -> object:
        result = real(*given, **more)
        going.set()
        may_end.wait(20)
        ended.append(way)
        return result

    async def cancel() -> None:
        service = alone(catalog, sycl_store.root)
        jobs, storing = service.context.jobs, service.context.locks.storing
        await service.scanner.scan_stores()
        refs: list[str] = [one.entry.id.ref for one in catalog.read(all_entries)]
        if way in {"empty", "restore"}:
            job = jobs.start("evict", service.evictor.work(refs))
            await jobs.wait(job.id, 20)
            refs = [one.ref for one in await service.trash.all()]
        assert len(refs) == 1
        monkeypatch.setattr(place, name, slowly)
        work: dict[str, Work] = {
            "evict": service.evictor.work(refs),
            "verify": service.verifier.work(fix=True),
            "empty": service.trash.emptying(refs),
            "restore": service.trash.restoring(refs),
            "scan": lambda _handle: service.scanner.scan_stores(),
        }
        job = jobs.start(way, work[way])
        assert await asyncio.to_thread(going.wait, 20)
        monkeypatch.setattr("xpucached.service.jobs.ENDING", 0.05)
        # Whoever asks for it, however often, is not kept waiting.
        for _ in range(2):
            assert (await jobs.cancel(job.id)).state is JobState.RUNNING
            assert storing.locked()
        may_end.set()
        assert (await jobs.wait(job.id, 20)).state is JobState.CANCELLED
        assert ended == [way]
        assert not storing.locked()
        heard = [event.topic for event in await service.context.events.since(0)]
        assert told is None or told in heard
        await service.stop()

    asyncio.run(cancel())


@pytest.mark.parametrize(
    ("way", "place", "name"),
    [
        ("evict", sycl.remover, "remove"),
        ("verify", sycl.remover, "remove"),
        ("restore", sycl.trash_files, "restore"),
    ],
    ids=["evict", "verify", "restore"],
)
def test_what_a_job_did_in_a_store_that_is_none_of_ours_at_its_end_is_told(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, place: ModuleType, name: str
) -> None:
    """As when a model with a store of its own is removed, or a found store, while a job goes on for hours."""
    stays, goes = (SyclStore(tmp_path.resolve() / name) for name in ("stays", "goes"))
    for store in (stays, goes):
        slot = store.add(age=90 * 86400)
        if way == "verify":
            slot.cut(slot.bin, 20)
    real = getattr(place, name)

    async def work() -> tuple[Job, int]:
        service = alone(catalog, stays.root, goes.root)
        jobs = service.context.jobs
        await service.scanner.scan_stores()
        refs = [one.entry.id.ref for one in catalog.read(all_entries)]
        if way == "restore":
            await jobs.wait(jobs.start("evict", service.evictor.work(refs)).id, 20)

        def meanwhile(*given: object) -> object:
            service.context.settings = alone(catalog, stays.root).context.settings
            service.finder.find()
            return real(*given)

        monkeypatch.setattr(place, name, meanwhile)
        does: dict[str, Work] = {
            "evict": service.evictor.work(refs),
            "verify": service.verifier.work(fix=True),
            "restore": service.trash.restoring((), everything=True),
        }
        job = await jobs.wait(jobs.start(way, does[way]).id, 20)
        known = sum(one.entry.id.store.root == stays.root for one in catalog.read(all_entries))
        # Who asks for it by name hears that there is none.
        named = jobs.start("scan", lambda _: service.scanner.scan_stores(frozenset({goes.root}), named=True))
        assert (await jobs.wait(named.id, 20)).state is JobState.FAILED
        await service.stop()
        return job, known

    job, known = asyncio.run(work())
    assert (job.state, job.error) == (JobState.DONE, None)
    assert known == (way == "restore")
    report = job.report
    if isinstance(report, EvictionReport):
        assert len(report.removed) == 2
    elif isinstance(report, VerifyReport):
        assert [one.done for one in report.findings] == [True, True]
    else:
        assert isinstance(report, TrashReport)
        assert len(report.restored) == 2


def test_what_came_back_before_somebody_cancelled_that_is_known_and_the_rest_stays(
    catalog: Catalog, sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        sycl_store.add(f"_ZTS1{'abcde'[number]}", age=90 * 86400)
    monkeypatch.setattr(trash, "_BATCH", 2)
    real = sycl.trash_files.restore

    async def cancel() -> None:
        service = alone(catalog, sycl_store.root)
        jobs, loop = service.context.jobs, asyncio.get_running_loop()
        await service.scanner.scan_stores()
        evicting = jobs.start("evict", service.evictor.work([one.entry.id.ref for one in catalog.read(all_entries)]))
        await jobs.wait(evicting.id, 20)

        def restore(*given: object) -> object:
            result = real(*given)  # type: ignore[arg-type]
            loop.call_soon_threadsafe(task.cancel)
            return result

        monkeypatch.setattr(sycl.trash_files, "restore", restore)
        job = jobs.start("restore", service.trash.restoring((), everything=True))
        task = jobs._tasks[job.id]
        assert (await jobs.wait(job.id, 20)).state is JobState.CANCELLED
        assert len(await service.trash.all()) == 3
        assert [one.restored is not None for one in catalog.read(all_entries)] == [True, True]
        await service.stop()

    asyncio.run(cancel())


@pytest.mark.parametrize(
    ("way", "place", "name", "told"),
    [
        ("scan", sycl.scanner, "read_slots", None),
        ("verify", sycl.scanner, "read_slots", None),
        ("evict", sycl.remover, "_remove_leaf", "evicted"),
        ("fix", sycl.remover, "_remove_leaf", "mended"),
        ("empty", TrashFolder, "drop", "trash-emptied"),
        ("restore", TrashFolder, "put_back", "restored"),
    ],
    ids=["scan", "verify", "evict", "fix", "empty", "restore"],
)
def test_of_what_nobody_waits_for_no_more_is_begun(
    catalog: Catalog,
    sycl_store: SyclStore,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    place: ModuleType | type,
    name: str,
    told: str | None,
) -> None:
    """A directory may hold a hundred thousand, and each answer late."""
    for number in range(4):
        slot = sycl_store.add(options=str(number), age=90 * 86400)
        if way == "fix":
            slot.cut(slot.bin, 20)
            slot.cut(slot.src, 20)
    begun: list[object] = []
    real = getattr(place, name)

    async def cancel() -> None:
        service = alone(catalog, sycl_store.root)
        jobs, loop = service.context.jobs, asyncio.get_running_loop()
        await service.scanner.scan_stores()
        refs = [one.entry.id.ref for one in catalog.read(all_entries)]
        assert len(refs) == 4
        if way in {"empty", "restore"}:
            evicting = jobs.start("evict", service.evictor.work(refs))
            await jobs.wait(evicting.id, 20)
            assert len(await service.trash.all()) == 4

        def once(*given: object, **more: object) -> object:
            begun.append(given)
            result = real(*given, **more)
            if len(begun) == 1:
                cancelled = threading.Event()
                loop.call_soon_threadsafe(lambda: (task.cancel(), loop.call_later(0.05, cancelled.set)))
                cancelled.wait(20)
            return result

        monkeypatch.setattr(place, name, once)
        work: dict[str, Work] = {
            "scan": lambda _handle: service.scanner.scan_stores(full=True),
            "verify": service.verifier.work(),
            "evict": service.evictor.work(refs),
            "fix": service.verifier.work(fix=True),
            "empty": service.trash.emptying(()),
            "restore": service.trash.restoring((), everything=True),
        }
        job = jobs.start(way, work[way])
        task = jobs._tasks[job.id]
        assert (await jobs.wait(job.id, 20)).state is JobState.CANCELLED
        assert len(begun) == 1
        heard = {event.topic: event for event in await service.context.events.since(0)}
        assert told is None or told in heard
        if way == "evict":
            assert (heard["evicted"].fields["removed"], heard["evicted"].fields["busy"]) == ("1", "0")
        await service.stop()

    asyncio.run(cancel())


def test_what_goes_on_after_a_stop_is_given_no_number_a_second_time(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xpucached.service.jobs.ENDING", 0.05)

    async def stop(*, endless: bool) -> tuple[int, int]:
        """Stop while a job goes on; give the last number, and the next daemon's first."""
        service, over = alone(catalog), asyncio.Event()
        events = service.context.events

        async def work(_handle: object) -> ScanReport:
            while not over.is_set():
                try:
                    await over.wait()
                except asyncio.CancelledError:
                    if not endless:
                        raise
            return ScanReport(0, 0, 0, 0, 0, 0.0)

        service.context.jobs.start("scan", work)
        await asyncio.sleep(0)
        await service.stop()
        last = events.post("said", "by what goes on").id
        over.set()
        return last, Events(service.context.clock, catalog).post("next", "life").id

    last, first = asyncio.run(stop(endless=True))
    assert first > last
    # After a stop in which all ended, no number is left out.
    last, first = asyncio.run(stop(endless=False))
    assert first == last


def test_a_stop_takes_no_longer_than_it_may_however_long_its_parts_could(catalog: Catalog) -> None:
    async def stop() -> float:
        service, over = alone(catalog), asyncio.Event()

        async def work(_handle: object) -> ScanReport:
            while not over.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await over.wait()
            return ScanReport(0, 0, 0, 0, 0, 0.0)

        service.context.jobs.start("scan", work)
        await asyncio.sleep(0)
        began = time.monotonic()
        # Of it two times three are for what is saved.
        await service.stop(6.2)
        over.set()
        return time.monotonic() - began

    assert asyncio.run(stop()) < 3
