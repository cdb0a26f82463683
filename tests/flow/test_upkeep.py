"""What the daemon does unasked: each part for itself, failures are shown until they are over, and nobody is held up."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, NoReturn, cast

import pytest
from msgspec import structs

from tests import INSTANCE
from tests.flow.test_daemon import driven, switch, warm
from tests.flow.test_elsewhere import NAMED_OTHERWISE
from tests.kinds.fakes import NEO
from tests.support import catalogs
from tests.support.builders import SyclStore, sycl_target
from tests.support.daemons import Daemon, daemon
from xpucached import systemd
from xpucached.api.requests import PrewarmModels
from xpucached.catalog import Catalog, salvage
from xpucached.catalog.entries import all_entries
from xpucached.catalog.events import events_after
from xpucached.catalog.intents import intend, open_intents
from xpucached.catalog.models import add_model
from xpucached.catalog.runs import begin_run, newest_runs
from xpucached.catalog.salvage import Salvaged
from xpucached.catalog.surveys import last_survey
from xpucached.catalog.targets import target_presence
from xpucached.cli import commands_jobs
from xpucached.daemon import user_daemon
from xpucached.domain import throttling
from xpucached.domain.host import Host
from xpucached.domain.jobs import JobState
from xpucached.domain.models import Model, Outcome, Warmth, Workload
from xpucached.domain.names import EntryKey, ModelName
from xpucached.domain.reports import PrewarmReport, VerifyReport
from xpucached.domain.status import Status
from xpucached.domain.stores import EntryId, Store
from xpucached.domain.throttling import RunCause
from xpucached.domain.triggers import Periodic, Started, StoreChanged
from xpucached.errors import CatalogError, HostError, Unconfirmed
from xpucached.host import core_slots
from xpucached.host.core_slots import RunSlot
from xpucached.host.pressure import PressureMeter
from xpucached.host.roots import HostRoots
from xpucached.kinds import fs, sycl, table
from xpucached.processes.supervised import ProcessStarter
from xpucached.service import Service, automatic, models, replay, scan, survey, upkeep
from xpucached.service.context import Context
from xpucached.service.survey import Surveyor
from xpucached.settings import loading, model_files
from xpucached.watch import watcher

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from tests.support.runtimes import Runtime
    from xpucached.domain.jobs import Job
    from xpucached.domain.models import Run
    from xpucached.domain.plans import Deferred, Warm
    from xpucached.domain.reports import TrashReport
    from xpucached.service.jobs import Handle, Work
    from xpucached.service.replay import Replayer

NOW: Final = datetime(2026, 5, 4, tzinfo=UTC)

PARTS: Final = {
    "survey": ("surveyor", "survey"),
    "models": ("models", "load"),
    "runtimes": ("explainer", "look"),
    "scan": ("scanner", "scan_stores"),
    "mend": ("evictor", "damaged"),
    "replay": ("replayer", "wanted"),
    "prewarm": ("prewarmer", "plan"),
    "evict": ("evictor", "plan"),
    "tidy": ("trash", "tidy"),
    "scrub": ("verifier", "scrub"),
    "activity": ("tracker", "digest"),
}
"""The parts, and what does each."""


@pytest.fixture
def host(home: Path, short_dir: Path) -> Iterator[Daemon]:
    """Return a daemon that is not started yet."""
    with daemon(home, short_dir) as one:
        yield one


def alone(catalog: Catalog, *stores: Path) -> Service:
    """Return a service that looks at no store of other programs, and at no package that was downloaded to this host."""
    environ = {**os.environ, "XPUCACHED_STORES_FOUND": "false", "XPUCACHED_STORES_PATHS": ":".join(map(str, stores))}
    environ |= {"XPUCACHED_SCHEDULE_AHEAD": "false"}
    return Service(Context(loading.load(None, user=True, environ=environ), catalog, {}), ProcessStarter({}, INSTANCE))


async def settled(service: Service) -> None:
    """Wait until nothing goes on."""
    while service.busy:  # noqa: ASYNC110 - what ends there has no event that all of it shares
        await asyncio.sleep(0.01)


async def look(service: Service, wake: Started | Periodic) -> Status:
    await service.reconciler.reconcile([wake])
    await settled(service)
    parts = service.context.automatic
    async with parts.part(automatic.SCRUB):
        await service.verifier.scrub()
    async with parts.part(automatic.ACTIVITY):
        await service.tracker.digest()
    return await service.status.get()


def test_what_was_not_read_again_in_time_is_read_after_the_start(host: Daemon) -> None:
    host.state.mkdir(parents=True, exist_ok=True)
    scrubbed = host.state / "scrubbed"
    scrubbed.write_text("5 0")
    host.start()
    host.until(lambda: scrubbed.read_text().startswith("6 "))


@pytest.mark.parametrize("error", [ZeroDivisionError("a secret"), Unconfirmed("named otherwise", hint="do that")])
@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_fails_is_shown_until_it_works_and_stops_no_other(
    name: str, error: Exception, short_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []

    async def work(catalog: Catalog) -> None:
        service = alone(catalog)
        monkeypatch.setattr(automatic, "PAUSES", ())
        for part, (place, method) in PARTS.items():
            doer = getattr(service, place)
            original = getattr(doer, method)

            async def noted(*given: object, part: str = part, original: object = original, **named: object) -> object:
                done.append(part)
                return await original(*given, **named)  # type: ignore[operator]

            monkeypatch.setattr(doer, method, noted)
        place, method = PARTS[name]
        working = getattr(getattr(service, place), method)

        async def failing(*_given: object, **_named: object) -> NoReturn:
            raise error

        monkeypatch.setattr(getattr(service, place), method, failing)
        status = await look(service, Started())
        shown = {one.subject: one for one in status.problems if one.code == "automatic-job-failed"}
        problem = shown[name]
        # The slow check goes by looks at the stores.
        assert set(shown) == {name, "scrub"} if name == "scan" else {name}
        assert name in status.sentence
        assert "a secret" not in problem.message
        if isinstance(error, Unconfirmed):
            assert "named otherwise" in problem.message
            assert problem.hint.startswith("do that; ")
        else:
            found = re.search(r"reference ([0-9a-f]{8})\)", problem.message)
            assert found is not None
            assert found[1] in caplog.text
            assert found[1] in problem.hint
        assert set(PARTS) - {name} <= set(done)
        await look(service, Periodic())
        posted = [one for one in await service.context.events.since(0) if one.topic == "automatic-job-failed"]
        assert sorted(one.fields["part"] for one in posted) == sorted(shown)

        monkeypatch.setattr(getattr(service, place), method, working)
        status = await look(service, Periodic())
        assert not [one for one in status.problems if one.code == "automatic-job-failed"]
        assert "automatic-job-recovered" in {one.topic for one in await service.context.events.since(0)}
        await service.stop()

    catalog = catalogs.fresh(short_dir / "catalog.sqlite")
    try:
        asyncio.run(work(catalog))
    finally:
        catalog.close()


def test_where_keys_cannot_be_looked_at_the_rest_is_done_all_the_same(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def full() -> tuple[object, ...]:
        raise RuntimeError("can't start new thread")

    async def work(catalog: Catalog) -> None:
        service = alone(catalog)
        tidy = service.trash.tidy

        async def noted() -> TrashReport:
            done.append("tidy")
            return await tidy()

        monkeypatch.setattr(service.trash, "tidy", noted)
        monkeypatch.setattr(service.taker, "trusted", full)
        status = await look(service, Started())
        assert [one.subject for one in status.problems if one.code == "automatic-job-failed"] == ["revoke"]
        await service.stop()

    with contextlib.closing(catalogs.fresh(short_dir / "catalog.sqlite")) as catalog:
        asyncio.run(work(catalog))
    assert done == ["tidy"]


def test_model_files_that_do_not_answer_hold_up_no_look(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()
    monkeypatch.setattr(models, "_READING", 0.1)
    monkeypatch.setattr(model_files, "models", lambda *_, **__: answer.wait(60) and ((), ()))

    async def work(catalog: Catalog) -> None:
        service = alone(catalog)
        status = await look(service, Started())
        assert [one.subject for one in status.problems if one.code == "automatic-job-failed"] == ["models"]
        assert "does not answer" in next(one.message for one in status.problems if one.subject == "models")
        await service.stop()

    try:
        with contextlib.closing(catalogs.fresh(short_dir / "catalog.sqlite")) as catalog:
            asyncio.run(work(catalog))
    finally:
        answer.set()
        # Nobody else is to be told that these files are silent.
        for one in threading.enumerate():
            if one.name == "patience":
                one.join(60)


def test_a_status_says_that_something_goes_on_from_the_end_of_a_look_on(short_dir: Path) -> None:
    catalog = catalogs.fresh(short_dir / "catalog.sqlite")
    service = alone(catalog)

    async def work() -> tuple[Status, Status]:
        await service.reconciler.reconcile([Started()])
        # What follows from the look has yet to be decided, and there is no job that would show it.
        first = await service.status.get()
        await settled(service)
        last = await service.status.get()
        await service.stop()
        return first, last

    with contextlib.closing(catalog):
        first, last = asyncio.run(work())
    assert first.looked is not None
    assert not first.jobs
    assert (first.busy, last.busy) == (True, False)


def test_the_trash_is_tidied_once_after_what_the_daemon_evicts(
    short_dir: Path, sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tidied: list[int] = []

    async def work(catalog: Catalog) -> None:
        service = alone(catalog, sycl_store.root)
        tidy = service.trash.tidy

        async def counted() -> TrashReport:
            tidied.append(len(await service.trash.all()))
            return await tidy()

        monkeypatch.setattr(service.trash, "tidy", counted)
        await service.reconciler.reconcile([Started()])
        await settled(service)
        await service.stop()

    sycl_store.add(age=100 * 86400)
    catalog = catalogs.fresh(short_dir / "catalog.sqlite")
    try:
        asyncio.run(work(catalog))
    finally:
        catalog.close()
    assert tidied == [1]


def test_nothing_is_evicted_by_settings_while_there_are_others_that_were_not_read(
    short_dir: Path, sycl_store: SyclStore
) -> None:
    async def work(catalog: Catalog) -> list[int]:
        service = alone(catalog, sycl_store.root)
        left = []
        for service.context.settings_unread in (True, False):
            # What they are is told by the models, whose files lie beside them.
            service.models.load = nothing  # type: ignore[method-assign]
            await service.reconciler.reconcile([Started()])
            await settled(service)
            left.append(len(catalog.read(all_entries)))
        await service.stop()
        return left

    async def nothing() -> None:
        pass

    sycl_store.add(age=100 * 86400)
    with contextlib.closing(catalogs.fresh(short_dir / "catalog.sqlite")) as catalog:
        assert asyncio.run(work(catalog)) == [1, 0]


def test_what_is_said_last_is_kept_though_what_programs_did_cannot_be_told(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(catalog: Catalog) -> None:
        service = alone(catalog)

        async def failing(**_named: object) -> NoReturn:
            raise ZeroDivisionError

        monkeypatch.setattr(service.tracker, "digest", failing)
        service.context.events.post("test", "the last words")
        await service.stop()
        assert "the last words" in [one.message for one in catalog.read(events_after, 0)[1]]

    catalog = catalogs.fresh(short_dir / "catalog.sqlite")
    try:
        asyncio.run(work(catalog))
    finally:
        catalog.close()


def test_what_the_catalog_cannot_record_is_shown_once(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(catalog: Catalog) -> None:
        service = alone(catalog)

        async def full(*_given: object, **_named: object) -> NoReturn:
            catalog.trouble = CatalogError("the disk is full", hint="make room")
            raise catalog.trouble

        for place, method in PARTS.values():
            monkeypatch.setattr(getattr(service, place), method, full)
        await service.reconciler.reconcile([Started()])
        again = await service.reconciler.reconcile([Periodic()])
        await settled(service)
        codes = [one.code for one in (await service.status.get()).problems]
        assert codes.count("catalog-failing") == 1
        assert "automatic-job-failed" not in codes
        # It is looked again soon, but not ever so often.
        assert again == 10.0
        monkeypatch.undo()
        await service.stop()

    catalog = catalogs.fresh(short_dir / "catalog.sqlite")
    try:
        asyncio.run(work(catalog))
    finally:
        catalog.close()


def test_what_fails_for_however_many_looks_is_only_looked_at_again_later(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(catalog: Catalog) -> list[float | None]:
        service = alone(catalog)

        async def failing(*_given: object, **_named: object) -> NoReturn:
            raise HostError("it does not answer")

        monkeypatch.setattr(service.models, "load", failing)
        pauses = [await service.reconciler.reconcile([Started()])]
        # Each change in a store is a look, too.
        pauses += [await service.reconciler.reconcile([StoreChanged(short_dir)]) for _ in range(1100)]
        await settled(service)
        await service.stop()
        return pauses

    with contextlib.closing(catalogs.fresh(short_dir / "catalog.sqlite")) as catalog:
        pauses = asyncio.run(work(catalog))
    assert (pauses[:2], pauses[-1]) == ([5.0, 10.0], 600.0)


@pytest.mark.parametrize("whole", [True, False])
def test_a_catalog_that_was_made_anew_is_a_problem_until_nothing_is_missing(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, *, whole: bool
) -> None:
    """A restart must not make all seem well where models that somebody registered may be missing."""
    path = short_dir / "catalog.sqlite"
    path.write_bytes(b"no database at all" * 500)
    if whole:
        monkeypatch.setattr(salvage, "salvage_models", lambda _aside, _beside: Salvaged((), ""))
    old: list[Path] = []

    async def work(catalog: Catalog, *wakes: Started | Periodic) -> list[bool]:
        service = alone(catalog)
        told: list[bool] = []
        for wake in wakes:
            status = await look(service, wake)
            told.append("catalog-rebuilt" in {one.code for one in status.problems})
        await service.stop()
        return told

    for again in (False, True):
        with contextlib.closing(Catalog.open(path)) as catalog:
            assert bool(catalog.rebuilt) is not again
            old += path.parent.glob("*.corrupt-*") if not again else []
            # It is seen at least until the next look.
            assert asyncio.run(work(catalog, Started(), Periodic(), Periodic())) == (
                [not again, False, False] if whole else [True] * 3
            )
    old[0].unlink()
    with contextlib.closing(Catalog.open(path)) as catalog:
        assert asyncio.run(work(catalog, Started())) == [False]


def test_a_catalog_that_is_made_anew_at_work_knows_what_the_drivers_offer(
    short_dir: Path, sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = sycl_store.defaults
    offered = sycl_target(parts["platform"], parts["device"], parts["version"], parts["driver"])
    sycl_store.add("_ZTS1a")
    monkeypatch.setattr(survey, "with_targets", lambda host: structs.replace(host, environments=(offered,)))
    path = short_dir / "catalog.sqlite"

    async def work(catalog: Catalog) -> list[bool]:
        service = alone(catalog, sycl_store.root)
        await look(service, Started())
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("UPDATE entries SET kernels = '7'")
        with pytest.raises(CatalogError):
            catalog.read(all_entries)
        await look(service, Periodic())
        await service.stop()
        return [one.present for one in catalog.read(target_presence)]

    with contextlib.closing(Catalog.open(path)) as catalog:
        assert asyncio.run(work(catalog)) == [True]
        assert catalog.rebuilt
        assert catalog.read(last_survey) is not None


@pytest.mark.parametrize("where", ["wanted", "plan", "work"])
@pytest.mark.parametrize("error", [ZeroDivisionError("a mistake"), OSError(errno.ENOSPC, "no room"), HostError("no")])
def test_a_replay_that_fails_before_models_are_run_keeps_none_of_them_from_it(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception
) -> None:
    async def fails(*_given: object, **_named: object) -> NoReturn:
        raise error

    async def yes(*_given: object) -> SimpleNamespace:
        return SimpleNamespace(rebuild=[1])

    async def work(catalog: Catalog) -> None:
        service = alone(catalog)
        monkeypatch.setattr(automatic, "PAUSES", ())
        for name in ("wanted", "plan"):
            monkeypatch.setattr(service.replayer, name, fails if name == where else yes)
        monkeypatch.setattr(service.replayer, "work", lambda _wish: fails)
        await service.replayer.before_models(cast("Handle", SimpleNamespace()), frozenset({ModelName("m")}))
        # Why the runs will compile is shown.
        assert service.context.automatic.failing == {"replay"}
        await service.stop()

    with contextlib.closing(catalogs.fresh(short_dir / "catalog.sqlite")) as catalog:
        asyncio.run(work(catalog))


def subjects(host: Daemon) -> set[str]:
    problems = host.ask("status")["problems"]
    assert isinstance(problems, list)
    return {one["subject"] for one in problems if one["code"] == "automatic-job-failed"}


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_a_replay_that_the_daemon_tries_in_vain_is_a_problem_until_it_succeeds(
    host: Daemon, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    program, first, second = runtime("rt2025.2"), runtime("drv2025.3"), runtime("drv2026.0")
    link, beside = tmp_path / "driver", tmp_path / "runtime"
    beside.mkdir()
    driven(host, first, link)
    # Drivers alone: the only runtime that is found will be the one that lies.
    paths = f"LD_LIBRARY_PATH = '{beside}:{first.lib}'"
    text = host.config.read_text().replace(f"LD_LIBRARY_PATH = '{first.lib}'", paths)
    host.configure(f"{text}prewarm = false\nscan_interval = '2s'\n")
    host.start()
    # No interpreter beside which another runtime would be found.
    host.ctl("model", "add", "net", "--", "/bin/sh", "-c", f"exec {' '.join(program.program('first', 'second'))}")
    host.ctl("prewarm", "net")
    assert host.ctl("status", "--check").returncode == 0

    (device,) = (one for one in host.ask("devices")["environments"])  # type: ignore[attr-defined]
    (tmp_path / "ur.c").write_text(NAMED_OTHERWISE)
    names = [f'-DPLATFORM="{device["family"]}"', f'-DDEVICE="{device["device"]}"']
    library = beside / "libur_loader.so.0"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", *names, "-o", library, tmp_path / "ur.c"], check=True)
    switch(link, second)
    host.until(lambda: subjects(host) == {"replay"})
    said = host.ctl("status", check=None).stdout
    assert "the daemon's own replay failed" in said
    assert "names the device" in said

    def is_warning() -> bool:
        checked = host.ctl("status", "--check", check=None)
        return checked.returncode == 1 and "failed (replay)" in checked.stdout

    # Until the driver has been asked once more, for a library came beside it, nobody knows.
    host.until(is_warning)

    library.unlink()
    host.until(lambda: subjects(host) == set())
    assert "automatic-job-recovered" in {row["topic"] for row in host.rows("events")}
    host.until(lambda: any(row["topic"] == "replayed" for row in host.rows("events")))
    # Warmed for the driver before, and not run since.
    host.ctl("prewarm", "net")
    assert host.ctl("status", "--check", check=None).stdout.count("failed") == 0


# -- another driver, and models that are not to be run before it is replayed for ---------------------------------------

FIRST, SECOND = (
    Host(NOW, "boot", "6", stamp, environments=(sycl_target("Intel(R) OpenCL", "a CPU", "OpenCL 3.0", stamp),))
    for stamp in ("a1", "a2")
)


class Order:
    """What a service does unasked, one thing after the other, where a model is cold under each driver."""

    def __init__(self, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        self.service = service
        self.done: list[str] = []
        self.failing = 0  # so many replays fail
        self.at_last: Callable[[], None] = lambda: None
        """Called while it is seen whether a model still needs its run."""
        self.there: Host | None = None
        """The driver that answers; None: as was known."""
        self._look_again = service.prewarmer._look_again
        service.context.ready, service.context.host = True, FIRST
        service.context.catalog.write(add_model, Model(ModelName("net"), Workload(("/bin/true",), Path("/"))))
        monkeypatch.setattr(service.replayer, "wanted", self._replay)
        monkeypatch.setattr(service.surveyor, "survey", self._survey)
        monkeypatch.setattr(service.prewarmer.throttle, "busy", self._calm)
        monkeypatch.setattr(service.prewarmer, "_look_again", self._looked)
        monkeypatch.setattr(service.prewarmer, "_warm", self._run)

    async def __call__(self, *, whole: bool) -> list[str]:
        """Let be done what is due; give what was."""
        self.done.clear()
        self.service.upkeep.begin(whole=whole)
        await settled(self.service)
        return [*self.done]

    @staticmethod
    async def _calm() -> str:
        return ""

    async def _survey(self, **_: bool) -> None:
        self.service.context.host = self.there or self.service.context.host

    async def _replay(self) -> bool:
        self.done.append(f"replay {self.service.context.present.stamp}")
        self.failing -= 1
        if self.failing >= 0:
            raise Unconfirmed("the runtime names the device otherwise", hint="do that")
        return False

    async def _looked(self, warm: Warm, *, asked: bool, force: bool) -> Model | Deferred | None:
        found = await self._look_again(warm, asked=asked, force=force)
        self.at_last()
        return found

    async def _run(self, warm: Warm, _tell: object) -> Run:
        self.done.append(f"run {self.service.context.present.stamp}")
        now = self.service.context.clock()
        run = self.service.context.catalog.write(begin_run, warm.model, warm.reason, "host", now)
        return structs.replace(run, outcome=Outcome.WARMED)


def in_order(short_dir: Path, work: Callable[[Order], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "PAUSES", (0.0, 0.0))

    async def whole(catalog: Catalog) -> None:
        service = alone(catalog)
        await work(Order(service, monkeypatch))
        await service.stop()

    with contextlib.closing(catalogs.fresh(short_dir / "catalog.sqlite")) as catalog:
        asyncio.run(whole(catalog))


def test_whoever_finds_another_driver_it_is_replayed_for_before_models_are_run(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(order: Order) -> None:
        assert await order(whole=True) == ["replay a1", "run a1"]
        assert await order(whole=False) == ["run a1"]
        # As a look at changed model files finds it, a model that is added, or a run.
        order.service.context.host = SECOND
        assert await order(whole=False) == ["replay a2", "run a2"]

    in_order(short_dir, work, monkeypatch)


def test_what_is_put_off_is_still_run_for_the_start(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(order: Order) -> None:
        service, occasions = order.service, list[RunCause]()
        throttle, run = service.prewarmer.throttle, service.prewarmer._warm
        unsettled: list[float | None] = [15.0]
        busy = ["the processor is busy"]

        async def noted(warm: Warm, tell: Callable[[str], None]) -> Run:
            occasions.append(throttle.run_priority(warm.reason).occasion)
            return await run(warm, tell)

        async def calm() -> str:
            return busy.pop() if busy else ""

        def find() -> None:
            service.context.host = SECOND

        monkeypatch.setattr(upkeep, "_LOOK", 0.0)
        monkeypatch.setattr(throttle, "busy", calm)
        monkeypatch.setattr(service.prewarmer, "_warm", noted)
        monkeypatch.setattr(Surveyor, "unsettled", property(lambda _: unsettled[-1]))
        # The host is busy, then there is no driver for a moment, and then it is another one.
        service.upkeep.begin(whole=True, booting=True)
        await settled(service)
        assert not busy
        assert not occasions
        unsettled.append(None)
        order.at_last = find
        await order(whole=True)
        assert occasions == [RunCause.BOOT]
        await order(whole=True)
        assert occasions == [RunCause.BOOT, RunCause.NEW]

    in_order(short_dir, work, monkeypatch)


def test_a_look_that_finds_another_driver_while_a_model_is_about_to_be_run_keeps_it_from_that(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(order: Order) -> None:
        def find() -> None:
            # That look has yet to ask the runtimes and to read the stores before it says what is due.
            order.service.context.host = SECOND

        order.at_last = find
        assert await order(whole=True) == ["replay a1", "replay a2", "run a2"]

    in_order(short_dir, work, monkeypatch)


def test_a_driver_that_no_look_has_found_yet_is_replayed_for_before_models_are_run(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(order: Order) -> None:
        assert await order(whole=True) == ["replay a1", "run a1"]
        # The daemon stood still, and goes on with what was due after something in a store; the model's files tell it.
        order.there = SECOND
        assert await order(whole=False) == ["replay a2", "run a2"]

    in_order(short_dir, work, monkeypatch)


def test_where_a_driver_does_not_answer_for_the_moment_a_look_comes_first(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    async def work(order: Order) -> None:
        order.service.context.on_look = lambda: looks.append("look")
        monkeypatch.setattr(type(order.service.surveyor), "unsettled", 15.0)
        assert await order(whole=True) == ["replay a1"]
        assert looks == ["look"]

    in_order(short_dir, work, monkeypatch)


def test_a_replay_that_fails_is_tried_again_before_models_are_run_and_a_few_times_only(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(order: Order) -> None:
        automatically = order.service.context.automatic
        order.failing = 2
        assert await order(whole=True) == ["replay a1", "replay a1", "replay a1", "run a1"]
        assert automatically.failing == set()

        order.failing = 99
        assert await order(whole=True) == ["replay a1", "replay a1", "replay a1", "run a1"]
        assert automatically.failing == {"replay"}
        (shown,) = [one for one in (await order.service.status.get()).problems if one.subject == "replay"]
        assert "names the device otherwise" in shown.message
        # It may be so for good: nobody waits for it at each look.
        assert await order(whole=True) == ["replay a1", "run a1"]
        order.service.context.host = SECOND
        assert await order(whole=True) == ["replay a2", "replay a2", "replay a2", "run a2"]

    in_order(short_dir, work, monkeypatch)


def test_who_asks_for_models_to_be_warmed_has_the_driver_looked_at(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def survey(**_: bool) -> NoReturn:
        asked.append("survey")
        raise HostError("its files do not answer")

    async def work(catalog: Catalog) -> None:
        service = alone(catalog)
        service.context.ready, service.context.host = True, FIRST
        monkeypatch.setattr(service.surveyor, "survey", survey)
        # Nobody is refused for it: what was known is still likely.
        await service.reconciler.look_first()
        assert asked == ["survey"]
        assert service.context.automatic.failing == {"survey"}
        await service.stop()

    with contextlib.closing(catalogs.fresh(short_dir / "catalog.sqlite")) as catalog:
        asyncio.run(work(catalog))


@pytest.mark.parametrize(("ending", "outcome"), [("exit 0", Outcome.UNCACHED), ("exit 3", Outcome.FAILED)])
def test_who_asks_for_a_model_that_is_being_run_gets_what_comes_of_that_run(
    short_dir: Path, ending: str, outcome: Outcome
) -> None:
    script = f"echo once >>{short_dir}/runs; while [ ! -e {short_dir}/asked ]; do sleep 0.05; done; {ending}"

    async def work(catalog: Catalog) -> None:
        service = alone(catalog)
        jobs, prewarmer = service.context.jobs, service.prewarmer
        service.context.ready, service.context.host = True, FIRST
        catalog.write(add_model, Model(ModelName("net"), Workload(("/bin/sh", "-c", script), short_dir)))
        first = jobs.start("prewarm", prewarmer.work(automatic=True))
        while not (short_dir / "runs").exists():  # noqa: ASYNC110 - a child makes it
            await asyncio.sleep(0.01)
        second = jobs.start("prewarm", prewarmer.work(frozenset({ModelName("net")})))
        while "its turn" not in jobs.job(second.id).progress.detail:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        (short_dir / "asked").touch()
        reports = [(await jobs.wait(one.id, 60.0)).report for one in (first, second)]
        assert reports[0] == reports[1]
        assert isinstance(reports[1], PrewarmReport)
        assert [run.outcome for run in reports[1].runs] == [outcome]
        await service.stop()

    with contextlib.closing(catalogs.fresh(short_dir / "catalog.sqlite")) as catalog:
        asyncio.run(work(catalog))


@pytest.mark.parametrize("asked", ["its own model", "another", "an eviction"])
def test_a_run_that_stands_still_goes_on_while_somebody_waits_for_its_end(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    busy = throttling.Pressure(io=99)
    monkeypatch.setattr(PressureMeter, "look", lambda *_: busy)
    script = f"touch {short_dir}/begun; while [ ! -e {short_dir}/asked ]; do sleep 0.05; done"

    async def work(catalog: Catalog) -> None:
        service = alone(catalog)
        jobs, prewarmer = service.context.jobs, service.prewarmer
        service.context.ready, service.context.host = True, FIRST
        catalog.write(add_model, Model(ModelName("net"), Workload(("/bin/sh", "-c", script), short_dir)))
        first = jobs.start("prewarm", prewarmer.work(automatic=True))
        while "paused: the disk is busy" not in jobs.job(first.id).progress.detail:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        catalog.write(add_model, Model(ModelName("other"), Workload(("/bin/true",), short_dir)))
        (short_dir / "asked").touch()
        wishes: dict[str, Work] = {
            "its own model": prewarmer.work(frozenset({ModelName("net")})),
            "another": prewarmer.work(frozenset({ModelName("other")})),
            "an eviction": service.evictor.work(),
        }
        second = await jobs.wait(jobs.start("asked", wishes[asked]).id, 30.0)
        assert second.state is JobState.DONE
        assert (await jobs.wait(first.id, 30.0)).state is JobState.DONE
        assert service.context.locks.changing.waiting == 0
        await service.stop()

    with contextlib.closing(catalogs.fresh(short_dir / "catalog.sqlite")) as catalog:
        asyncio.run(work(catalog))


# -- until the host is calm -------------------------------------------------------------------------------------------


def test_of_the_models_of_many_users_two_are_run_by_themselves_at_once(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a host becomes calm, all of them see that in the same moment."""
    monkeypatch.setattr(PressureMeter, "look", lambda *_: throttling.Pressure())
    monkeypatch.setattr(upkeep, "_LOOK", 0.05)
    (short_dir / "xpucached-host").mkdir()
    core_slots.make(short_dir / "xpucached-host", 1)
    script = f"echo >>{short_dir}/begun; while [ ! -e {short_dir}/end ]; do sleep 0.05; done"

    def begun() -> int:
        return (short_dir / "begun").read_text().count("\n") if (short_dir / "begun").exists() else 0

    async def work(some: list[Catalog]) -> None:
        users = [alone(catalog) for catalog in some]
        for one in users:
            one.context.run_slot = RunSlot(HostRoots(run=short_dir))
            one.context.ready, one.context.host = True, FIRST
            one.context.catalog.write(
                add_model, Model(ModelName("net"), Workload(("/bin/sh", "-c", script), short_dir))
            )
            monkeypatch.setattr(one.surveyor, "survey", nothing)
            one.upkeep.begin(whole=False)
        async with asyncio.timeout(60):
            while begun() < 2 or sum(bool(one.prewarmer.throttle.waiting) for one in users) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            waits = [one for one in users if one.prewarmer.throttle.waiting]
            (shown,) = (await waits[0].status.get()).models
            assert shown.warmth is Warmth.WAITING
            assert "models of other users are run, two at a time; " in shown.why
            # What somebody asks for does not wait.
            asked = await waits[0].prewarmer.start(PrewarmModels(models=(ModelName("net"),)))
            while begun() < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert waits[1].prewarmer.throttle.waiting
            (short_dir / "end").touch()
            await waits[0].context.jobs.wait(asked.id, 60.0)
            # The last one begins as soon as a place is free, and all places are given back.
            while any(one.busy or not has_run(one) for one in users):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        free = [RunSlot(HostRoots(run=short_dir)) for _ in range(2)]
        assert all(one.hold() for one in free)
        for slot in free:
            slot.give_back()
        for one in users:
            await one.stop()

    def has_run(one: Service) -> bool:
        return any(run.finished for run in one.context.catalog.read(newest_runs))

    async def nothing(**_: object) -> None:
        pass

    with contextlib.ExitStack() as stack:
        places = [short_dir / f"{number}.sqlite" for number in range(4)]
        asyncio.run(work([stack.enter_context(contextlib.closing(catalogs.fresh(one))) for one in places]))


def test_who_replays_keeps_no_place_from_the_models_of_other_users(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = [throttling.Pressure(cpu=99)]
    monkeypatch.setattr(PressureMeter, "look", lambda *_: busy[0])
    monkeypatch.setattr(upkeep, "_LOOK", 0.05)
    (short_dir / "xpucached-host").mkdir()
    core_slots.make(short_dir / "xpucached-host", 1)

    async def work(catalog: Catalog) -> None:
        one, replaying, end = alone(catalog), asyncio.Event(), asyncio.Event()
        one.context.run_slot = RunSlot(HostRoots(run=short_dir))
        one.context.ready, one.context.host = True, FIRST
        catalog.write(add_model, Model(ModelName("net"), Workload(("/bin/true",), short_dir)))
        monkeypatch.setattr(one.surveyor, "survey", nothing)
        one.upkeep.begin(whole=False)
        async with asyncio.timeout(60):
            while one.upkeep._waiting is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

            async def replay() -> None:
                busy[0] = throttling.Pressure()
                replaying.set()
                await end.wait()

            monkeypatch.setattr(one.upkeep, "_replay", replay)
            one.upkeep.begin(whole=True)
            await replaying.wait()
            # It is looked whether the host is calm some times meanwhile.
            await asyncio.sleep(0.5)
            free = [RunSlot(HostRoots(run=short_dir)) for _ in range(2)]
            assert all(each.hold() for each in free)
            for slot in free:
                slot.give_back()
            end.set()
            await one.stop()

    async def nothing(**_: object) -> None:
        pass

    with contextlib.closing(catalogs.fresh(short_dir / "catalog.sqlite")) as catalog:
        asyncio.run(work(catalog))


PRESSED: Final = """
import functools, sys
from pathlib import Path
from xpucached.host.roots import HostRoots
from xpucached.service import throttle
throttle.PressureMeter = functools.partial(throttle.PressureMeter, HostRoots(proc=Path({proc!r})))
from xpucached.daemon.main import main
sys.exit(main(["--user"]))
"""
"""A daemon that reads the kernel's pressure figures in another place."""


class Pressure:
    """The kernel's account of how busy a host is."""

    def __init__(self, proc: Path) -> None:
        self._file = proc / "pressure" / "cpu"
        self._file.parent.mkdir(parents=True)
        self.set(0)

    def set(self, percent: int) -> None:
        """Say that something waits for the processor so much of the time."""
        text = f"some avg10={percent}.00 avg60=0.00 avg300=0.00 total=1\n"
        beside = self._file.with_suffix(".new")
        beside.write_text(text)
        beside.replace(self._file)


@pytest.mark.runtime
@pytest.mark.timeout(900)
def test_models_that_wait_for_a_calm_host_hold_nobody_up(
    home: Path, short_dir: Path, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    first, second, third = runtime("rt2025.2"), runtime("drv2025.3"), runtime("drv2026.0")
    link = tmp_path / "driver"
    pressure = Pressure(tmp_path / "proc")
    with daemon(home, short_dir, XPUCACHED_THROTTLE_CPU_PRESSURE="60") as one:
        one.words = ("-c", PRESSED.format(proc=str(tmp_path / "proc")))
        driven(one, first, link)
        one.start()
        one.add_models(first)
        one.ctl("prewarm", "net", "loaded")
        entries, runs = len(one.rows("ls")), len(one.rows("runs", "loaded"))

        def replayed() -> int:
            return sum(row["topic"] == "replayed" for row in one.rows("events"))

        pressure.set(99)
        switch(link, second)
        one.until(lambda: replayed() == 1)
        one.until(lambda: one.ask("status")["verdict"] == "waiting")
        sentence = str(one.ask("status")["sentence"])
        assert "loaded, net waiting since " in sentence
        assert "the processor is busy" in sentence
        assert "run:" not in sentence
        shown = one.ask("model", "show", "net")
        assert shown["warmth"] == "waiting"
        assert "the processor is busy" in str(shown["why"])
        assert "waiting" in one.ctl("why", "net").stdout
        assert one.ctl("status", "--check", check=None).returncode == 1

        # While they wait, another driver comes: what it lacks is rebuilt at once …
        switch(link, third)
        one.until(lambda: replayed() == 2)
        assert len(one.rows("ls", "--driver", "current")) == entries
        one.until(lambda: one.ask("status")["verdict"] == "waiting")
        # … and whatever somebody asks for goes past them.
        one.ctl("verify")
        one.ctl("evict")
        one.ctl("prewarm", "net")
        assert warm(one, "net")["why"]
        assert one.ask("model", "show", "loaded")["warmth"] == "waiting"
        assert len(one.rows("runs", "loaded")) == runs
        one.ctl("prewarm", "--stale")
        assert one.ask("status")["verdict"] == "warm"

        # Who waits does not hold up the end either.
        switch(link, second)
        one.until(lambda: one.ask("status")["verdict"] == "waiting")
        assert one.end() == 0
        one.start()
        one.until(lambda: one.ask("status")["verdict"] == "waiting")
        pressure.set(0)
        # Nobody has to say so: they are warmed as soon as it is calm.
        for name in ("net", "loaded"):
            assert warm(one, name)


def test_a_replay_that_brought_nothing_is_tried_again_later_and_later(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(replay, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(replay, "replayable", lambda *_: True)

    async def seen(replayer: Replayer) -> list[bool]:
        async def plan(_wish: object) -> SimpleNamespace:
            return SimpleNamespace(rebuild=("entry",))

        monkeypatch.setattr(replayer, "plan", plan)
        found = [await replayer.wanted()]
        for wait in (3599.0, 1.0):
            if wait > 1:
                await replayer._note_outcome(brought_nothing=True)
            clock[0] += wait
            found.append(await replayer.wanted())
        await replayer._note_outcome(brought_nothing=True)
        clock[0] += 7199.0
        found.append(await replayer.wanted())
        # Something is another than it was.
        monkeypatch.setattr(type(replayer._context), "present", Host(NOW, "boot", "6", "another"))
        found.append(await replayer.wanted())
        await replayer._note_outcome(brought_nothing=True)
        await replayer._note_outcome(brought_nothing=False)
        return [*found, await replayer.wanted()]

    with contextlib.closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        assert asyncio.run(seen(alone(catalog).replayer)) == [True, False, True, False, True, True]


@pytest.mark.parametrize("what", ["a store", "silence", "a file"])
def test_a_store_that_cannot_be_looked_at_is_not_called_sound(
    home: Path, sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "a file":
        shutil.rmtree(sycl_store.root, ignore_errors=True)
        sycl_store.root.write_bytes(b"")
    else:
        sycl_store.add("shown")
    monkeypatch.setattr(scan, "answers", lambda place: what != "silence" or place != sycl_store.root)
    unread = int(what != "a store")

    async def verified() -> Job:
        with contextlib.closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
            service = alone(catalog, sycl_store.root)
            job = service.context.jobs.start("verify", service.verifier.work())
            return await service.context.jobs.wait(job.id, 60)

    job = asyncio.run(verified())
    assert isinstance(job.report, VerifyReport)
    assert (job.report.unread, job.report.findings) == (unread, ())
    assert commands_jobs._sound(job) == unread


@pytest.mark.parametrize("what", ["a directory", "an entry", "the GPU driver's directory", "the GPU driver's entry"])
def test_a_part_of_a_store_that_cannot_be_read_is_not_called_sound(
    home: Path, sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    root, entries = sycl_store.root, 2
    sycl_store.add("_ZTS1a")
    sycl_store.add("_ZTS1b")
    if "driver" in what:
        root = sycl_store.root.with_name("neo_compiler_cache")
        shutil.copytree(NEO / "recorded", root, ignore=shutil.ignore_patterns("*.trace", "*.input", "stats"))
        entries = len(list(root.rglob("*_cache")))
    entry = next(path for path in sorted(root.rglob("*")) if path.name.endswith((".bin", "_cache")))
    name, error = entry.name, OSError(errno.EIO, "Input/output error")
    if "directory" in what:
        name, error = entry.parent.name, PermissionError(errno.EACCES, "Permission denied")
    opening, struck = fs._open, [entry.parent.stat(), entry.parent.parent.stat()]

    def refuses(asked: str, flags: int, directory: int) -> int:
        if asked == name and any(os.path.samestat(os.fstat(directory), one) for one in struck):
            raise error
        return opening(asked, flags, directory)

    async def verified() -> list[VerifyReport]:
        with contextlib.closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
            service = alone(catalog, root)
            reports = []
            for number in range(3):
                monkeypatch.setattr(fs, "_open", refuses if number == 1 else opening)
                job = service.context.jobs.start("verify", service.verifier.work(frozenset({root})))
                job = await service.context.jobs.wait(job.id, 60)
                assert isinstance(job.report, VerifyReport)
                reports.append(job.report)
                assert commands_jobs._sound(job) == int(number == 1)
            return reports

    reports = asyncio.run(verified())
    assert [(one.entries, one.unread, one.unread_parts, one.findings) for one in reports] == [
        (entries, 0, 0, ()),
        (entries, 0, 1, ()),
        (entries, 0, 0, ()),
    ]


def test_a_store_that_cannot_be_looked_at_any_more_is_not_called_free_of_faults(
    home: Path, sycl_store: SyclStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sycl_store.add()

    def refuses(_place: object) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    async def examined() -> list[int]:
        with contextlib.closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
            service = alone(catalog, sycl_store.root)
            await service.scanner.scan_stores()
            found = []
            for struck in (False, True):
                if struck:
                    monkeypatch.setattr(os, "scandir", refuses)
                job = service.context.jobs.start("verify", service.verifier.work(faults_only=True))
                found.append(commands_jobs._sound(await service.context.jobs.wait(job.id, 60)))
            return found

    assert asyncio.run(examined()) == [0, 1]


def test_the_doctor_looks_at_what_was_not_there_at_the_last_look(home: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"

    async def examined() -> list[int]:
        with contextlib.closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
            service = alone(catalog, root)
            await service.scanner.scan_stores()
            found = []
            for comes in (False, True):
                if comes:
                    SyclStore(root).add()
                    barrier = root.with_name("store_eviction_in_progress")
                    barrier.touch()
                    os.utime(barrier, (0, 0))
                job = service.context.jobs.start("verify", service.verifier.work(faults_only=True))
                found.append(commands_jobs._sound(await service.context.jobs.wait(job.id, 60)))
            return found

    assert asyncio.run(examined()) == [0, 1]


def test_a_start_finishes_removals_bit_by_bit_and_waits_for_no_store_that_does_not_answer(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = [Store(sycl.KIND.name, tmp_path / name) for name in ("here", "away")]
    begun = [EntryId(store, EntryKey(f"1/2/3/4/{number}")) for store in stores for number in range(5)]
    swept: list[list[EntryId]] = []

    def sweep(some: Iterable[EntryId]) -> None:
        swept.append(list(some))
        if len(swept) == 3:
            raise RuntimeError("killed")

    monkeypatch.setattr(table, "sweep", sweep)
    monkeypatch.setattr("xpucached.service.removals.answers", lambda root: root.name != "away")
    monkeypatch.setattr("xpucached.service.removals._BATCH", 2)
    with contextlib.closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        catalog.write(intend, begun, NOW)
        with pytest.raises(RuntimeError, match="killed"):
            asyncio.run(recovered(catalog))
        assert tuple(catalog.read(open_intents)) == tuple(sorted(begun[4:]))
        asyncio.run(recovered(catalog))
        assert tuple(catalog.read(open_intents)) == tuple(sorted(begun[5:]))
    assert swept == [begun[:2], begun[2:4], begun[4:5], begun[4:5]]


async def recovered(catalog: Catalog) -> None:
    await alone(catalog).recover()


def test_systemd_waits_while_a_start_takes_long(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(short_dir / "n"))
    monkeypatch.setattr(systemd, "_LONGER", 0.01)
    monkeypatch.setattr(systemd, "_STARTS", 0.03)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(short_dir / "n"))
        listener.settimeout(10)

        async def start() -> list[bytes]:
            async with systemd.starting():
                return [await asyncio.to_thread(listener.recv, 100) for _ in range(2)]

        assert asyncio.run(start()) == [b"EXTEND_TIMEOUT_USEC=30000"] * 2


def test_a_directory_that_never_answers_the_watching_holds_up_no_later_look(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_daemon, "_WATCHING", 0.2)
    answers = threading.Event()

    def silent(*_: object) -> list[object]:
        answers.wait(60)
        return []

    monkeypatch.setattr(watcher, "places", silent)

    async def looks() -> None:
        with contextlib.closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
            service = alone(catalog)
            listening = watcher.Watcher(lambda _trigger: None)
            told = SimpleNamespace(
                _service=service,
                _settings=service.context.settings,
                _watcher=listening,
                _tell_watch=lambda: None,
            )
            for _ in range(3):
                with pytest.raises(HostError, match="does not answer"):
                    async with asyncio.timeout(10):
                        await user_daemon.Daemon._watch(cast("user_daemon.Daemon", told))
            answers.set()
            while True:
                await asyncio.sleep(0.01)
                with contextlib.suppress(HostError):
                    await user_daemon.Daemon._watch(cast("user_daemon.Daemon", told))
                    break
            await asyncio.to_thread(listening.stop)

    try:
        asyncio.run(looks())
    finally:
        answers.set()
