"""Paths of a user's environment lead to a file system that never answers: nothing but what needs it waits for it."""

from __future__ import annotations

import _ctypes
import asyncio
import contextlib
import mmap
import os
import shutil
import subprocess
import sys
import threading
import time
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import make_deb
import pytest
from msgspec.structs import replace

from tests import INSTANCE
from tests.flow.test_upkeep import settled
from tests.support import catalogs, silent_filesystem
from tests.support.builders import SyclStore, sycl_target
from xpucached import deadlines, mounts
from xpucached.api import looking, requests
from xpucached.api.requests import AddModel
from xpucached.catalog import Catalog, derived, predicted
from xpucached.catalog.entries import all_entries
from xpucached.catalog.models import add_model, find_model
from xpucached.catalog.recipes import PROVEN
from xpucached.catalog.runs import newest_runs
from xpucached.catalog.scans import record_scan
from xpucached.catalog.surveys import record_survey
from xpucached.daemon import watching
from xpucached.domain.host import Host, OtherDriver
from xpucached.domain.jobs import Job
from xpucached.domain.models import Model, Outcome, Workload
from xpucached.domain.names import Architecture, EntryKey, ModelName
from xpucached.domain.plans import IndexedEntry, Rebuild, Recipe, ReplayReason
from xpucached.domain.recipes import RecordedRecipe
from xpucached.domain.reports import PrewarmReport
from xpucached.domain.stores import (
    Entry,
    EntryId,
    FoundStore,
    ImageFormat,
    Scan,
    Store,
    StoreOrigin,
    StoreState,
)
from xpucached.domain.targets import Target
from xpucached.domain.triggers import Periodic, Started
from xpucached.domain.workloads import RunSpec
from xpucached.errors import RequestError
from xpucached.kinds import sycl
from xpucached.kinds.neo.deriving import COMMON
from xpucached.kinds.neo.targets import NAME as NEO
from xpucached.kinds.sycl import following, runtimes
from xpucached.libexec import process_tree
from xpucached.processes import child, conversation, scratch
from xpucached.processes.output import ChildOutput, Trace
from xpucached.processes.pause import PauseControl
from xpucached.processes.results import RunResult
from xpucached.processes.supervised import ProcessStarter
from xpucached.service import Service, cache_files, deriving, owners, predicting, proofs, recordings, survey
from xpucached.service.context import Context
from xpucached.service.handlers import Handlers
from xpucached.service.proofs import ProofKeeper
from xpucached.service.publish import Publisher
from xpucached.service.rebuild import RebuildJob
from xpucached.service.replay import ReplayRequest
from xpucached.service.store_finder import StoreFinder
from xpucached.settings import loading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@contextlib.contextmanager
def silent(place: Path) -> Iterator[Path]:
    """Let a directory's file system never answer, and what waits for it end with it."""
    before = set(threading.enumerate())
    with silent_filesystem.mounted(place):
        yield place
    # Not by joining each: one may be about to begin, which nobody can join yet.
    while any(one.name in {"patience", "proofs", "place"} for one in set(threading.enumerate()) - before):
        time.sleep(0.01)


def hurry(monkeypatch: pytest.MonkeyPatch, seconds: float = 2.0) -> None:
    """Let nobody wait longer."""
    for room, name in (
        (deadlines, "SECONDS"),
        (survey, "_FINDING"),
        (proofs, "_NOTING"),
        (proofs, "_PATIENCE"),
        (cache_files, "_COUNTING"),
        (recordings, "_READING"),
    ):
        monkeypatch.setattr(room, name, seconds)


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a directory whose file system never answers, for which nobody waits long."""
    hurry(monkeypatch)
    with silent(tmp_path / "away") as place:
        yield place


@pytest.fixture
def touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of where the event loop's own thread touched something in this directory."""
    found: list[str] = []

    def noting(original: Callable[..., object], *, whatever: bool = False) -> Callable[..., object]:
        def note(*given: object, **named: object) -> object:
            ours = whatever or any(str(one).startswith(str(tmp_path)) for one in given)
            if ours and asyncio._get_running_loop() is not None:
                found.append("".join(traceback.format_stack(limit=6)))
            return original(*given, **named)

        return note

    for name in ("stat", "lstat", "listdir", "scandir", "readlink", "access"):
        monkeypatch.setattr(os, name, noting(getattr(os, name)))
    # To wait for an answer there is as bad.
    monkeypatch.setattr(deadlines, "ask", noting(deadlines.ask, whatever=True))
    for name in ("realpath", "exists", "isfile", "isdir", "lexists"):
        monkeypatch.setattr(os.path, name, noting(getattr(os.path, name)))
    return found


def model(name: str, place: Path, **more: object) -> AddModel:
    """Ask for a model whose variables lead below a directory."""
    fields: dict[str, object] = {"name": ModelName(name), "command": ("/bin/true",), "directory": place.parent, **more}
    return AddModel(**fields)  # type: ignore[arg-type] # as they are called


def test_looks_go_on_while_a_store_a_driver_and_a_program_are_away(
    away: Path, touched: list[str], tmp_path: Path, short_dir: Path
) -> None:
    store = SyclStore(tmp_path / "here")
    store.add()
    environ = {
        "HOME": str(tmp_path),
        "XDG_RUNTIME_DIR": str(short_dir),
        "XPUCACHED_STORES_FOUND": "false",
        "XPUCACHED_STORES_PATHS": f"{away}/store:{away}:{store.root}",
    }

    config = loading.load(None, user=True, environ=environ)

    async def work(catalog: Catalog) -> None:
        service = Service(Context(config, catalog, {}), ProcessStarter({}, INSTANCE))
        await service.reconciler.reconcile([Started()])
        await service.models.add(model("driver", tmp_path, variables={"OCL_ICD_FILENAMES": f"{away}/libintelocl.so"}))
        await service.models.add(model("program", tmp_path, command=(f"{away}/bin/python3",)))
        await service.models.add(model("store", tmp_path, store=away / "store"))
        await service.models.add(model("well", tmp_path))
        await service.reconciler.reconcile([Periodic()])
        await settled(service)
        status = await service.status.get()
        for name in ("driver", "program", "store", "well"):
            await service.explainer.variables(ModelName(name))
            await service.explainer.diagnose(ModelName(name))
        states = {one.store: one.state for one in status.stores}
        assert states[store.root] is StoreState.OK
        assert {states[away], states[away / "store"]} == {StoreState.UNREADABLE}
        said = {(one.code, one.subject): one.message for one in status.problems}
        assert "does not answer" in said["store-unreadable", str(away)]
        assert "do not answer" in said["driver-missing", "driver"]
        assert not [one for one in status.problems if one.code == "automatic-job-failed"], status.problems

        # A job for a store that does not answer ends, too.
        runs = await service.context.read(newest_runs, ModelName("store"), 5)
        assert not runs
        assert await asyncio.to_thread(watching.answering, [away, store.root]) == [store.root]
        places = await asyncio.to_thread(watching.driver_places, service.surveyor.watched())
        assert not [place for place in places if place.is_relative_to(away)]
        await service.stop()

    catalog = Catalog.open(short_dir / "catalog.sqlite")
    try:
        asyncio.run(work(catalog))
    finally:
        catalog.close()
    assert not touched, touched[0]


def test_every_question_is_answered_while_what_could_be_read_is_away(
    tmp_path: Path, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = tmp_path / "away"
    store = SyclStore(away / "store")
    store.add()
    config = away / "xpucached.toml"
    config.touch(0o600)
    environ = {
        "HOME": str(tmp_path),
        "XDG_RUNTIME_DIR": str(short_dir),
        "XPUCACHED_PATHS_CACHE": str(away / "cache"),
        "XPUCACHED_PATHS_MODELS": str(tmp_path / "models"),
        "XPUCACHED_STORES_FOUND": "false",
        "XPUCACHED_STORES_PATHS": str(store.root),
    }
    settings = loading.load(config, user=True, environ=environ)

    async def ask(service: Service) -> None:
        handlers, jobs, name = Handlers(service), service.context.jobs, ModelName("net")
        (entry,) = await service.context.read(all_entries)
        ref = entry.entry.id.ref
        reading = (
            requests.GetEntry(ref=ref),
            requests.GetModel(name=name),
            requests.GetEnv(model=name),
            requests.ListTrash(),
        )
        looks = requests.ListStores(), looking.GetDiskUse(), looking.GetEvictable(), looking.GetOverview()
        for question in (*reading, *looks):
            await handlers.answer(question)
        for begun in (requests.EvictEntries(refs=(ref,)), requests.EmptyTrash()):
            job = await handlers.answer(begun)
            assert isinstance(job, Job)
            while not job.finished:
                job = await jobs.wait(job.id, 60.0)
        await service.reconciler.reconcile([Periodic()])

    async def work(catalog: Catalog) -> None:
        service = Service(Context(settings, catalog, {}), ProcessStarter({}, INSTANCE))
        await service.reconciler.reconcile([Started()])
        await settled(service)
        hurry(monkeypatch, 0.5)
        with silent(away):
            # Who waits for ever would do so until the file system is no more.
            async with asyncio.timeout(120):
                await ask(service)
        await service.stop()

    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        catalog.write(add_model, Model(ModelName("net"), Workload(("/bin/true",), tmp_path)))
        asyncio.run(work(catalog))
    assert [*store.root.rglob("*.bin")]


@pytest.mark.parametrize("what", ["cache", "requests"])
def test_no_run_begins_whose_caches_or_requests_are_away(away: Path, tmp_path: Path, what: str) -> None:
    spec = RunSpec(caches=(away / "cache",))
    if what == "requests":
        spec = RunSpec(ready_url="http://127.0.0.1:1/", requests=str(away / "requests"))
    net = Model(ModelName("net"), Workload(("/bin/true",), tmp_path, exercise=spec))
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}

    async def work(catalog: Catalog) -> PrewarmReport:
        context = Context(loading.load(None, user=True, environ=environ), catalog, {})
        service = Service(context, ProcessStarter({}, INSTANCE))
        service.context.ready = True
        job = service.context.jobs.start("prewarm", service.prewarmer.work(frozenset({net.name})))
        async with asyncio.timeout(120):
            while not job.finished:
                job = await service.context.jobs.wait(job.id, 60.0)
        await service.stop()
        assert isinstance(job.report, PrewarmReport)
        return job.report

    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        _noted(catalog, net)
        report = asyncio.run(work(catalog))
    # It is put off, and tried again at the next look.
    assert [one.why for one in report.deferred] == [f"the file system of its {what} does not answer: {away}/{what}"]


def _noted(catalog: Catalog, net: Model) -> None:
    """Note a model, and a host on which it can run."""
    catalog.write(add_model, net)
    cpu = sycl_target("OpenCL", "CPU", "3.0", "1")
    catalog.write(record_survey, Host(datetime.now(UTC), "", "", "", environments=(cpu,)))


WENT_AWAY = """
import ctypes, os, pathlib, sys, time
if not pathlib.Path(sys.argv[2], "loaded").exists():
    ctypes.CDLL(sys.argv[1])
pathlib.Path(sys.argv[2], "loaded").touch()
while not pathlib.Path(sys.argv[2], "away").exists():
    time.sleep(0.05)
if sys.argv[3:]:
    os.abort()
"""


@pytest.mark.parametrize(
    ("library", "directory", "kept"),
    [
        ("libsycl.so.8", ".", ""),
        ("libze_intel_gpu.so.1", ".", ""),
        ("lib.so", "libraries", ""),
        ("lib.so", ".", "store"),
        ("lib.so", ".", "caches"),
        ("lib.so", ".", "caches, and it crashes"),
    ],
)
def test_a_run_ends_whose_libraries_directory_or_caches_went_away_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, directory: str, kept: str
) -> None:
    hurry(monkeypatch)
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    shutil.copy(_ctypes.__file__, libraries / library)
    crash = ("crash",) if "crashes" in kept else ()
    command = (sys.executable, "-c", WENT_AWAY, f"{libraries / library}", f"{tmp_path}", *crash)
    net = Model(ModelName("net"), Workload(command, tmp_path / directory), libraries if kept == "store" else None)
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    environ |= {"XPUCACHED_PATHS_CACHE": str(libraries)} if "caches" in kept else {}

    async def work(catalog: Catalog) -> PrewarmReport:
        context = Context(loading.load(None, user=True, environ=environ), catalog, {})
        service = Service(context, ProcessStarter({}, INSTANCE))
        service.context.ready = True
        job = service.context.jobs.start("prewarm", service.prewarmer.work(frozenset({net.name})))
        async with asyncio.timeout(120):
            while not (tmp_path / "loaded").exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.05)
            with silent(libraries):
                (tmp_path / "away").touch()
                job = await service.context.jobs.wait(job.id, 60.0)
                assert job.finished
        await service.stop()
        assert isinstance(job.report, PrewarmReport)
        return job.report

    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        _noted(catalog, net)
        (run,) = asyncio.run(work(catalog)).runs
    meant = Outcome.UNPROVEN if kept else Outcome.UNCACHED
    assert run.outcome is (Outcome.FAILED if crash else meant)


def test_what_is_named_and_away_holds_up_no_start_and_no_replay(away: Path, tmp_path: Path) -> None:
    config = tmp_path / "xpucached.toml"
    config.write_text(f'[policy.stores."{away}/store"]\nmax_unused = "1d"\n')
    settings = loading.load(config, user=True, environ={"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)})
    assert [one.store for one in settings.policy.stores] == [away / "store"]

    async def work(catalog: Catalog) -> None:
        service = Service(Context(settings, catalog, {}), ProcessStarter({}, INSTANCE))
        with pytest.raises(RequestError, match="does not answer"):
            await service.replayer.start(requests.ReplayEntries(driver_root=away / "driver"))

    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        asyncio.run(work(catalog))


def test_what_a_model_needs_is_noted_while_a_store_is_away(away: Path, tmp_path: Path) -> None:
    net = Model(ModelName("net"), Workload(("/bin/true",), tmp_path))
    found = FoundStore(Store(sycl.NAME, away / "store"), StoreOrigin.FOUND, "test")
    settings = loading.load(None, user=True, environ={"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)})
    done = RunResult(Outcome.WARMED, 0.1, 0.1, 0, 0, "", "")
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        scan = Scan(found, datetime.now(UTC), StoreState.UNREADABLE, None, vanished=())
        catalog.write(record_scan, scan, sycl.scanner.architecture)
        context = Context(settings, catalog, {})
        keeper = ProofKeeper(context, StoreFinder(context))
        look = keeper.named(net.name, net.workload)
        needs = deadlines.ask("needs", lambda: keeper.needed(net, [look], [done]), 30.0)
    assert needs
    assert "/bin/true" in {one.path for one in needs}


def test_how_entries_are_compiled_is_not_found_out_while_their_store_is_away(away: Path, tmp_path: Path) -> None:
    """Nor where programs will look for them; all looks end at that."""
    store, now = Store(NEO, away / "store"), datetime.now(UTC)
    told, untold = (EntryKey(f"{name[0]}/{name[1]}/{name}.l0_cache") for name in ("0" * 16, "1" * 16))
    here = Target(NEO, "P", "D", "1", (("compiler", "a"),))
    other = replace(here, facts=(("compiler", "b"),))
    settings = loading.load(None, user=True, environ={"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)})
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        context = Context(settings, catalog, {})
        catalog.write(record_survey, Host(now, "", "", "", environments=(here, other)))
        entry = Entry(EntryId(store, told), "s", 1, 4096, now, None, image=ImageFormat.SPIRV)
        entries = (entry, replace(entry, id=EntryId(store, untold)))
        scan = Scan(FoundStore(store, StoreOrigin.FOUND, "test"), now, StoreState.OK, 0, entries)
        catalog.write(record_scan, scan, lambda _: Architecture("x"))
        for _ in range(PROVEN):
            context.recipes.keep(NEO, [RecordedRecipe(told, here, "", {COMMON: b"common"}, {})], now)

        async def look() -> None:
            await deriving.look(context)
            await predicting.look(context)

        deadlines.ask("look", lambda: asyncio.run(look()), 30.0)
        assert [one.key for one in catalog.read(derived.underived, NEO, here, 10)] == [untold]
        assert [one.entry.key for one in catalog.read(predicted.unpredicted, PROVEN, 10)] == [told]


def test_what_was_compiled_for_a_store_that_went_away_is_not_waited_for(away: Path, tmp_path: Path) -> None:
    now, target = datetime.now(UTC), sycl_target("Level-Zero", "A770", "1.6", "1")
    entry = Entry(EntryId(Store(sycl.NAME, away / "store"), EntryKey("a/b/c/0")), "s", 1, 4096, now, None, target)
    one = Rebuild(IndexedEntry(entry, None, None, (), now, now, "run"), target, ReplayReason.USED)
    settings = loading.load(None, user=True, environ={"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)})
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        context = Context(settings, catalog, {})
        results = Publisher(context, ReplayRequest(), (OtherDriver((target,), "stamp", {}),))
        results.built(one, Recipe(entry.id, b"", b""), b"program", 1.0)
        deadlines.ask("publish", results.close, 30.0)
    (failure,) = results.failures
    assert "its file system does not answer" in failure


def test_what_the_driver_told_of_a_replay_is_left_in_a_cache_that_went_away(away: Path, tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), "XPUCACHED_PATHS_CACHE": str(away)}
    driver = OtherDriver((), "stamp", {})
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        context = Context(loading.load(None, user=True, environ=environ), catalog, {})
        results = Publisher(context, ReplayRequest(), (driver,))
        job = RebuildJob(context, ProcessStarter({}, INSTANCE), (), (driver,), results)
        job._telling = driver
        deadlines.ask("kept", job.keep_told, 30.0)
        deadlines.ask("forgotten", job.forget_told, 30.0)


def test_the_runtimes_of_programs_that_are_away_hold_up_no_replay(away: Path, tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.mkdir()
    (compiler / "libur_loader.so.0").touch()
    workloads = [
        Workload((f"{away}/bin/python3",), tmp_path),
        Workload(("/bin/true",), tmp_path, {"LD_LIBRARY_PATH": f"{away}/lib:{compiler}"}),
    ]
    found = deadlines.ask("folders", lambda: runtimes.folders(workloads, {}), 30.0)
    assert compiler in found


def test_a_file_of_requests_that_is_away_is_not_waited_for(away: Path, tmp_path: Path) -> None:
    spec = RunSpec(ready_url="http://127.0.0.1:1/", requests=str(away / "requests"))
    run = ProcessStarter({}, INSTANCE, deadlines.ask).execute(
        Workload(("/bin/true",), tmp_path, exercise=spec), {}, Trace(), polite=False
    )
    done = asyncio.run(run)
    assert (done.outcome, done.detail) == (Outcome.FAILED, f"{away}/requests: its file system does not answer")


def test_what_was_kept_in_a_store_that_is_away_is_unknown(away: Path) -> None:
    follower = following.follow()
    follower.take("[In-Memory Cache][Thread Id:1][Program Cache]: Program inserted.", 1.0)
    follower.take(f"[Persistent Cache]: device binary has been cached: {away}/41/42/43/44/0.bin", 2.0)
    told = follower.told()
    assert (told.programs, told.nowhere) == (1, None)
    assert [(one.root, one.kept, one.lost, one.unknown) for one in told.stores] == [(away, 0, 0, 1)]


def test_a_supervisor_goes_on_where_its_program_mounted_what_does_not_answer(away: Path, tmp_path: Path) -> None:
    use = process_tree.ProcessTreeUse(1 << 40, 1 << 40, str(tmp_path))
    for _ in range(2):
        use._looked = 0.0
        assert use.exceeded([]) is None
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    names = "one\nend.so", r"no\012end.so"
    with contextlib.ExitStack() as stack:
        for name in names:
            (hidden / name).write_bytes(b"x")
            file = stack.enter_context((hidden / name).open("rb"))
            stack.enter_context(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        stack.enter_context(silent(hidden))
        maps = process_tree.Maps()
        maps.look([os.getpid()])
        assert {f"{hidden}/{name}" for name in names} <= {*maps.report()["mapped_data"]}


def test_a_temporary_directory_over_which_that_is_mounted_is_left(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack, scratch.directory(below=tmp_path) as place:
        (tmp_path / place / "file").touch()
        stack.enter_context(silent(tmp_path / place))
        inside = stack.pop_all()
    with inside:
        assert os.path.ismount(tmp_path) or place in mounts.mounted()
    assert [*(tmp_path / place).iterdir()] == []


def test_a_supervisor_that_the_kernel_holds_is_left_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Held(child.Process):
        """A process that no signal reaches."""

        def poll(self) -> None:
            """Tell that it has not ended."""

        def kill(self) -> None:
            """Do not reach it."""

    monkeypatch.setattr(conversation, "LAST", 0.01)
    monkeypatch.setattr(conversation, "GRACE", 0.01)
    monkeypatch.setattr(subprocess, "Popen", Held)
    (hears, orders), (report, seen) = os.pipe(), os.pipe()
    supervisor = child.start(("/bin/true",), variables={}, stdout=child.PIPE, stderr=child.PIPE)
    try:
        heard = conversation.ChildPipes(supervisor, ChildOutput(Trace(), -1), {report: bytearray()})
        # One that may still say something, and one that has said all.
        for timeout, outcome in ((0.0, Outcome.TIMED_OUT), (1e9, None)):
            pause = PauseControl(None, supervisor.pid, orders)
            assert conversation.attend(heard, timeout, threading.Event(), 0.0, pause) is outcome
            if outcome is not None:
                os.close(seen)
                seen = -1
    finally:
        for one in (hears, orders, report, seen):
            if one >= 0:
                os.close(one)
        child.end(supervisor)


def test_many_models_of_a_program_that_is_away_leave_room_to_ask_for_others(
    away: Path, tmp_path: Path, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "_MOST", 4)
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(short_dir), "XPUCACHED_STORES_FOUND": "false"}
    config = loading.load(None, user=True, environ=environ)

    async def work(catalog: Catalog) -> None:
        service = Service(Context(config, catalog, {}), ProcessStarter({}, INSTANCE))
        for number in range(8):
            workload = Workload((f"{away}/bin/python3", "infer.py"), tmp_path)
            catalog.write(add_model, Model(ModelName(f"m{number}"), workload))
        await asyncio.to_thread(service.surveyor._led, ())
        for number in range(8):
            await service.explainer.runtimes(catalog.read(find_model, ModelName(f"m{number}")))
        assert deadlines.ask("something else", lambda: 7) == 7
        await service.stop()

    catalog = Catalog.open(short_dir / "catalog.sqlite")
    try:
        asyncio.run(work(catalog))
    finally:
        catalog.close()


def test_whose_a_store_is_that_does_not_answer_is_not_waited_for(away: Path) -> None:
    assert owners.foreign(Store(sycl.NAME, away)) is None
    assert owners.answers(away) is False
    # While nobody answered, nobody is asked again.
    before = threading.active_count()
    assert owners.answers(away) is False
    assert threading.active_count() == before


def test_an_answer_and_an_error_are_given_as_they_are(tmp_path: Path) -> None:
    assert deadlines.ask(tmp_path, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        deadlines.ask(tmp_path, lambda: 1 // 0)
    assert owners.answers(tmp_path)
    assert owners.answers(tmp_path / "nowhere")
    assert owners.answers(tmp_path / "null\0byte")


def test_only_so_many_questions_wait_for_ever() -> None:
    answer, asked = threading.Event(), threading.Semaphore(0)

    def question() -> None:
        asked.release()
        answer.wait()

    try:
        for number in range(deadlines._MOST):
            with pytest.raises(TimeoutError):
                deadlines.ask(number, question, 0.0)
            # Whatever is about no path counts as one file system.
            if number < deadlines._SHARE:
                assert asked.acquire(timeout=60)
        with pytest.raises(TimeoutError):
            deadlines.ask("another", lambda: 1, 10.0)
    finally:
        answer.set()
        for thread, _ in list(deadlines._stuck.values()):
            thread.join()
    assert deadlines.ask("another", lambda: 1, 10.0) == 1


def test_many_stores_of_one_silent_file_system_leave_room_for_others(
    away: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "_SHARE", 2)
    monkeypatch.setattr(deadlines, "SECONDS", 3.0)
    with silent_filesystem.mounted(tmp_path / "second") as second:
        for number in range(deadlines._MOST + 1):
            place = away / f"{number}"
            link = tmp_path / f"{number}"
            link.symlink_to(place)
            for asked in (place, link, ("driver", ("LD_LIBRARY_PATH", f"/usr/lib:{place}"))):
                with pytest.raises(TimeoutError):
                    deadlines.ask(asked, place.stat)
        assert [device for _, device in deadlines._stuck.values()] == [device_of(away)] * 2
        # Another one is known by its own silence.
        with pytest.raises(TimeoutError):
            deadlines.ask(second / "store", (second / "store").stat)
        assert {device for _, device in deadlines._stuck.values()} == {device_of(away), device_of(second)}
    monkeypatch.setattr(deadlines, "SECONDS", 60.0)
    for number in range(deadlines._MOST + 1):
        assert deadlines.ask(tmp_path / f"here {number}", lambda: 7) == 7
    assert deadlines.ask("something else", lambda: 7) == 7


def device_of(place: Path) -> str:
    """Return the number of the file system that is mounted there, without a question to it."""
    return mounts.mounted()[str(place)].device


def test_what_one_has_mounted_keeps_no_package_from_being_purged(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    workers = tmp_path / "var/lib/xpucached-worker"
    for place in (tools, workers / "1000/mounted", workers / "1001", tmp_path / "etc/xpucached", tmp_path / "run"):
        place.mkdir(parents=True)
    for name in ("rm", "timeout"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    script = make_deb.POSTRM.format(units="none.service").replace("KILL 60", "KILL 2")
    for root in ("etc", "run", "var"):
        script = script.replace(f" /{root}/", f" {tmp_path}/{root}/")
    with silent(workers / "1000/mounted"):
        purge = subprocess.Popen(["/bin/sh", "-c", script, "postrm", "purge"], env={"PATH": str(tools)})
        try:
            assert purge.wait(timeout=60) == 0
        finally:
            purge.kill()
            purge.wait()
        assert [path.name for path in workers.iterdir()] == ["1000"]
        assert not (tmp_path / "etc/xpucached").exists()
