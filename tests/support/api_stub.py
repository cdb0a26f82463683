"""What the tests of the doors share: sample values, a service that answers from them, and a server that runs it."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar, cast

from msgspec.structs import replace

from tests.support import histories
from tests.support.builders import sycl_target
from xpucached.api import imports, looking, requests
from xpucached.api.endpoints import Request, Right
from xpucached.domain.defects import Effect, RepairAction
from xpucached.domain.diagnosis import Baseline, Cause, Diagnosis, Explanation, Figure, RuntimeCheck, Safety
from xpucached.domain.disk import DiskLine, DiskUse
from xpucached.domain.host import Device, DriverAnswer, DriverChange, DriverFile, DriverInUse, Host, Problem
from xpucached.domain.jobs import Event, Job, JobState, Progress
from xpucached.domain.models import (
    Figures,
    Model,
    ModelStatus,
    Outcome,
    Pass,
    RanOn,
    RemovedModel,
    Run,
    Trial,
    WarmReason,
    Warmth,
    Workload,
)
from xpucached.domain.names import Architecture, EntryKey, EntryRef, JobId, KindName, ModelName, TrashRef
from xpucached.domain.plans import Evict, EvictionPlan, EvictReason, IndexedEntry
from xpucached.domain.queries import EntryPage
from xpucached.domain.reports import EvictionReport, PrewarmReport, ScanReport, TrashReport, VerifyReport
from xpucached.domain.shifts import Shift
from xpucached.domain.status import Status, Verdict
from xpucached.domain.stores import (
    Entry,
    EntryId,
    EntryState,
    ImageFormat,
    Kernel,
    ModelCache,
    Store,
    StoreOrigin,
    StoreState,
    StoreStatus,
)
from xpucached.domain.targets import Origin
from xpucached.domain.trash import Comparison, Finding, Restored, Trashed, Unproven
from xpucached.domain.workloads import Variant
from xpucached.errors import Conflict, NotFound
from xpucached.kinds import sycl
from xpucached.render import metrics
from xpucached.server import http_listener, unix_sockets
from xpucached.server.connection import Connection
from xpucached.service.handlers import Handlers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from xpucached.api.imports import NoteComing, NoteImport
    from xpucached.api.looking import SeeShifts
    from xpucached.api.requests import (
        AddModel,
        EmptyTrash,
        EvictEntries,
        PrewarmModels,
        ReplayEntries,
        RestoreTrash,
        ScanStores,
        VerifyStores,
    )
    from xpucached.domain.overview import Overview
    from xpucached.domain.queries import EntryQuery
    from xpucached.domain.usage import Day, Evictable, Usage, WarmthChange
    from xpucached.server.connection import ConnectionLimits
    from xpucached.service import Service

    StandsIn = Callable[["Standin", Request[object]], Awaitable[object]]

NOW: Final = datetime(2026, 3, 4, 5, 6, 7, 89000, tzinfo=UTC)
ANSWER: Final = DriverAnswer("Intel(R) OpenCL Graphics", "Intel(R) Arc(TM) B580 Graphics", "20.1.0", "25.18.33578")
OPENCL: Final = sycl_target("Intel(R) OpenCL Graphics", "Intel(R) Arc(TM) B580 Graphics", "20.1.0", "25.18.33578")
STORE: Final = Store(KindName("sycl"), Path("/var/cache/xpucached/sycl"))

# What a hostile file name or kernel may hold: an escape, a bell, a direction mark, half of a surrogate pair.
NASTY: Final = "a\x1b[31mb\x07\u202ec\udcff"


def make_entry(number: int, *, kernels: tuple[Kernel, ...] = (Kernel("_ZTS4Gemm", "Gemm", "oneDNN"),)) -> IndexedEntry:
    """Return an entry; no two numbers give the same."""
    return IndexedEntry(
        entry=Entry(
            id=EntryId(STORE, EntryKey(f"1/2/3/4/{number}")),
            stamp=f"s{number}",
            size=1000 + number,
            allocated=4096,
            created=NOW,
            accessed=None,
            environment=OPENCL,
            options="-O2",
            constants="00ff",
            image=ImageFormat.SPIRV,
            image_size=500,
            binary=ImageFormat.ELF,
            digest="ab" * 16,
            kernels=kernels,
        ),
        origin=Origin.DECLARED,
        architecture=Architecture("bmg-g21"),
        models=(ModelName("resnet"),),
        first_seen=NOW,
        last_used=NOW,
        last_used_by="run",
    )


def make_defective() -> IndexedEntry:
    """Return an entry of which nothing is known but its defect."""
    good = make_entry(999)
    entry = replace(
        good.entry,
        environment=None,
        kernels=(),
        state=EntryState.DEFECTIVE,
        defect=replace(sycl.defects.BIN_EMPTY, repairs=()),
        detail=NASTY,
    )
    return replace(good, entry=entry, origin=None, architecture=None, models=())


def make_run() -> Run:
    """Return a run that warmed its model."""
    return Run(
        id=7,
        model=ModelName("resnet"),
        workload="0123456789abcdef",
        reason=WarmReason.NEVER,
        started=NOW,
        finished=NOW + timedelta(seconds=60),
        outcome=Outcome.WARMED,
        host="fedcba9876543210",
        passes=(Pass(42.5, 40.0, 1 << 30, 0, 17, 0), Pass(1.5, 1.0, 1 << 30, 0, 0, 17)),
        environments=(OPENCL,),
        trials=(
            Trial(
                Variant("xpu:0", "float16", "1x32"),
                Outcome.WARMED,
                (Pass(42.5, 40.0, 1 << 30, 0, 17, 0),),
                RanOn.MEANT,
                "xpu:0 Arc",
                ("17 entries are for Arc", NASTY),
                (Figures(load_seconds=1.5, first_seconds=40.0, token_seconds=0.02, tokens=16, device_memory=1 << 30),),
                "17 entries compiled",
                NASTY,
            ),
        ),
        detail="17 entries",
        output=f"epoch 1\n{NASTY}\n",
    )


def make_model(name: str = "resnet", warmth: Warmth = Warmth.WARM) -> ModelStatus:
    """Return a model's status."""
    workload = Workload(("/usr/bin/python3", "app.py"), Path("/srv/app"), {"HF_TOKEN": "geheim"}, 600.0)
    model = Model(ModelName(name), workload, pinned=True)
    return ModelStatus.of(model, warmth, "17 of 17 entries are there", None, 17, 1 << 20, 42.5, 1.5, make_run())


def make_host() -> Host:
    """Return a host with one GPU."""
    gpu = Device(
        OPENCL.device, Architecture("bmg-g21"), "0000:03:00.0", "0xe20b", "xe", None, None, (ANSWER,), (OPENCL,)
    )
    library = Path("/usr/lib/libigdrcl.so")
    driver = DriverFile(library, library, "25.18", 1 << 20, NOW, "ab12", "intel-opencl-icd 25.18")
    problem = Problem("no-level-zero", "there is no Level Zero driver", "install libze-intel-gpu1")
    later = replace(OPENCL, toolchain="26.1")
    trial = DriverInUse(
        {"OCL_ICD_FILENAMES": "/opt/trial/libigdrcl.so"},
        (ModelName("net"),),
        "two",
        (),
        (driver,),
        (later,),
        (problem,),
    )
    return Host(NOW, "boot", "6.12.0", "stamp", (gpu,), (driver,), (OPENCL,), (problem,), (trial,))


def make_disk(models: tuple[ModelStatus, ...] = ()) -> DiskUse:
    """Return how much room is taken."""
    lines = [DiskLine("25.18.33578", "Intel(R) Arc(TM) B580 Graphics", 15, 3 << 20, 1 << 20)]
    lines.append(DiskLine("24.1", "Intel(R) Arc(TM) B580 Graphics", 5, 1 << 20, 1 << 20, present=False))
    known = models or (make_model(),)
    of = tuple(DiskLine(one.model.name, "", one.entries, one.allocated, 0, further=4096) for one in known)
    gone = DiskLine("former", "", 0, 0, 0, present=False, further=8192)
    return DiskUse(tuple(lines), (*of, gone), 20, 4 << 20, 2 << 20, 8192, 12288)


def make_store() -> StoreStatus:
    """Return a store's status."""
    notes = ("the runtime evicts here too",)
    return StoreStatus(
        STORE.kind,
        STORE.root,
        StoreOrigin.MANAGED,
        "managed",
        StoreState.OK,
        1000,
        3,
        1,
        0,
        4000,
        12288,
        0,
        NOW,
        notes,
    )


def make_cache(name: str = "net", named: str = "", *shared: str, registered: bool = True) -> ModelCache:
    """Return a directory of a model's, of which a part could not be read."""
    path = Path("/home/u/app/.inductor" if named else f"/home/u/.cache/xpucached/models/{name}")
    note = f"not all of it can be read {NASTY}" if named else ""
    return ModelCache(
        ModelName(name),
        path,
        named,
        EntryRef("89abcdef0123"),
        StoreState.OK,
        1000,
        393,
        12 << 20,
        NOW,
        note,
        registered=registered,
        shared=tuple(map(ModelName, shared)),
    )


CACHES: Final = (
    make_cache(),
    make_cache("net", "--cache"),
    make_cache("other", "TRITON_CACHE_DIR", "net"),
    make_cache("former", registered=False),
)


def make_status(verdict: Verdict = Verdict.WARM, jobs: tuple[Job, ...] = ()) -> Status:
    """Return a whole status."""
    return Status(
        version="1.2.3",
        verdict=verdict,
        sentence=f"This host is {verdict}.",
        pid=4711,
        started=NOW,
        host=make_host(),
        problems=make_host().problems,
        entries=3,
        defective=1,
        allocated=12288,
        stale=1,
        stores=(make_store(),),
        models=(make_model(),),
        jobs=jobs,
        changes=(DriverChange(NOW, "stamp", (OPENCL,), (replace(OPENCL, toolchain="24.1"),)),),
        looked=NOW,
        look_every=1e9,  # whatever the clock says
    )


def make_shift() -> Shift:
    """Return a model's warm pass that became slower with a driver."""
    numbers = (4.1, 0.05, 5, 9.8, 1)
    changed = ("Intel(R) Arc(TM) B580 Graphics: driver 25.18 → 25.40",)
    return Shift(3, ModelName("net"), "default", Figure.WARM, 7, NOW, *numbers, changed)


def make_eviction(*, dry_run: bool) -> EvictionReport:
    """Return an eviction of one entry."""
    entry = make_defective()
    gone = () if dry_run else (entry.entry.id.ref,)
    plan = EvictionPlan((Evict(entry, EvictReason.DEFECTIVE, "the binary is empty"),), 4096, 2)
    return EvictionReport(plan, dry_run, gone, (), 0 if dry_run else 4096)


def make_diagnosis() -> Diagnosis:
    """Return what is wrong with a model whose runtime crashes."""
    check_runtime = RuntimeCheck(
        "ab" * 16, Path("/opt/app/lib/libsycl.so.8"), Safety.UNSAFE, "with 1 it was ended by SIGSEGV", NOW
    )
    findings = (
        Explanation(Cause.UNSAFE, f"its runtime is unsafe {NASTY}", "xpucachectl prewarm resnet"),
        Explanation(Cause.SLOWER, "slower", ""),
    )
    return Diagnosis(ModelName("resnet"), Warmth.COLD, findings, (check_runtime,), loaded=True)


def make_baseline() -> Baseline:
    """Return a figure that got worse."""
    return Baseline("default", "fedcba9876543210", Figure.WARM, 9.5, NOW, 1.5, 0.1, 7, worse=True)


TRASHED: Final = TrashRef("0123456789ab")
KEY: Final = EntryKey("1/2/3/4/0")


def make_trashed() -> Trashed:
    """Return something in the trash."""
    return Trashed(
        TRASHED,
        STORE,
        KEY,
        NOW,
        EvictReason.UNUSED,
        "not used for 91 days",
        quarantined=False,
        device="GPU",
        driver="1.2",
        allocated=4096,
        whole=True,
    )


def make_verification() -> VerifyReport:
    """Return a thorough look with two findings."""
    entry = make_defective().entry
    defective = Finding.of(
        entry.id, sycl.defects.BIN_EMPTY, Effect.GROWS, "0 bytes", RepairAction.QUARANTINE, done=True
    )
    fault = Finding(
        STORE,
        None,
        None,
        None,
        sycl.defects.BARRIER.code,
        Effect.HANGS,
        sycl.defects.BARRIER.message,
        "",
        RepairAction.CLEAR,
        done=False,
    )
    problem = Problem("disk-full", "the disk is full", "make room", "/cache")
    deep = Comparison(2, {Unproven.OTHER_BYTES: 1, Unproven.FAILED: 1}, (entry.id.ref,), ("00: no",), 1.5)
    return VerifyReport(True, 1, 3, (defective, fault), 0.5, problems=(problem,), deep=deep)  # noqa: FBT003


@dataclass
class Standin:
    """A service that answers from memory, as the real one would."""

    known: list[IndexedEntry] = field(default_factory=lambda: [make_entry(1), make_entry(2), make_defective()])
    registered: dict[str, ModelStatus] = field(default_factory=lambda: {"resnet": make_model()})
    begun: dict[str, Job] = field(default_factory=dict)
    asked: list[object] = field(default_factory=list)
    log: list[Event] = field(default_factory=list)
    verdict: Verdict = Verdict.WARM
    has_device: bool = True  #: as a model that is registered meets it
    problems: tuple[Problem, ...] = ()  #: beside those of the host
    outcome: Outcome = Outcome.WARMED
    breaks: Exception | None = None
    hold: bool = False  #: jobs stay running until they are cancelled
    subscribers: list[asyncio.Queue[Event]] = field(default_factory=list)
    cut: int = 0  #: calls that were cancelled

    async def status(self) -> Status:
        """How this host stands."""
        if self.breaks is not None:
            raise self.breaks
        status = make_status(self.verdict, tuple(self.begun.values()))
        return replace(status, problems=(*status.problems, *self.problems))

    async def look_again(self) -> None:
        """Remember that somebody said so."""
        self.asked.append("look")

    async def devices(self) -> Host:
        """Return the host."""
        return make_host()

    async def stores(self) -> tuple[StoreStatus, ...]:
        """Return one store."""
        return (make_store(),)

    async def entries(self, query: EntryQuery) -> EntryPage:
        """Return a page."""
        self.asked.append(query)
        assert query.limit is not None
        found = [one for one in self.known if query.min_size is None or one.entry.size >= query.min_size]
        start = int(query.after or 0)
        end = start + query.limit
        size = sum(one.entry.allocated for one in found)
        return EntryPage(tuple(found[start:end]), len(found), size, str(end) if end < len(found) else None)

    async def entry(self, ref: str) -> IndexedEntry:
        """Return one entry."""
        for one in self.known:
            if one.entry.id.ref.startswith(ref):
                return one
        raise NotFound(f"no entry begins with {ref}", hint="xpucachectl ls lists them")

    async def models(self) -> tuple[ModelStatus, ...]:
        """Return all models."""
        return tuple(self.registered.values())

    async def model(self, name: ModelName) -> ModelStatus:
        """Return one model."""
        if name not in self.registered:
            raise NotFound(f"there is no model {name}")
        return self.registered[name]

    async def add_model(self, request: AddModel) -> ModelStatus:
        """Register a model."""
        self.asked.append(request)
        if request.name in self.registered and not (request.replace or request.if_changed):
            raise Conflict(f"there is a model {request.name} already", hint="--replace")
        workload = Workload(request.command, request.directory, request.variables, request.timeout, request.exercise)
        model = Model(request.name, workload, request.store, request.priority, request.pinned)
        made = ModelStatus.of(model, Warmth.COLD, "never run", WarmReason.NEVER if self.has_device else None)
        self.registered[request.name] = made
        return replace(made, due="It is warmed by itself soon")

    async def remove_model(self, name: ModelName) -> RemovedModel:
        """Forget a model."""
        await self.model(name)
        del self.registered[name]
        return RemovedModel(name)

    async def why(self, name: ModelName) -> Diagnosis:
        """Return why."""
        found = replace(make_diagnosis(), model=name)
        if not (await self.model(name)).has_no_device:
            return found
        why = Explanation(Cause.NO_DEVICE, "no device to warm it on", "xpucachectl devices")
        return replace(found, warmth=Warmth.COLD, explanations=(why,))

    async def history(self, name: ModelName) -> tuple[Baseline, ...]:
        """Return one figure."""
        await self.model(name)
        return (make_baseline(),)

    async def runs(self, model: ModelName | None, limit: int) -> tuple[Run, ...]:
        """Return one run."""
        self.asked.append((model, limit))
        return (make_run(),)

    async def usage(self, top: int = 20) -> Usage:
        """Return who uses which bytes."""
        self.asked.append(top)
        return histories.make_usage()

    async def days(self) -> tuple[Day, ...]:
        """Return what happened each day."""
        return histories.make_days()

    async def warmth(self) -> tuple[WarmthChange, ...]:
        """Return how models came to stand otherwise."""
        return histories.make_warmth()

    async def see_shifts(self, asked: SeeShifts) -> tuple[Shift, ...]:
        """Return what somebody has seen now."""
        return tuple(replace(make_shift(), model=name, seen=NOW) for name in asked.models or (ModelName("net"),))

    async def evictable(self) -> Evictable:
        """Return what eviction would take."""
        return histories.make_evictable()

    async def metrics(self, asked: looking.GetMetrics) -> str:
        """Return figures."""
        openmetrics = asked.format is looking.MetricsFormat.OPENMETRICS
        return metrics.metrics(
            await self.status(), histories.make_overview(), histories.make_days(), openmetrics=openmetrics
        )

    async def overview(self) -> Overview:
        """Return all that there is to look at."""
        return histories.make_overview()

    def _begin(self, kind: str) -> Job:
        job = Job(JobId(str(len(self.begun) + 1)), kind, JobState.RUNNING, NOW, NOW, None, Progress(1, 2, "resnet"))
        self.begun[job.id] = job
        return job

    def _end(self, job: Job) -> Job:
        if job.state is JobState.RUNNING and not self.hold:
            job = replace(job, state=JobState.DONE, finished=NOW, progress=Progress(2, 2))
            match job.kind:
                case "prewarm":
                    runs = (replace(make_run(), outcome=self.outcome),)
                    job = replace(job, report=PrewarmReport(runs, (ModelName("bert"),)))
                case "verify":
                    job = replace(job, report=make_verification())
                case "restore" | "empty":
                    job = replace(job, report=TrashReport((Restored(TRASHED, KEY),), (TRASHED,), 4096))
                case "scan":
                    job = replace(job, report=ScanReport(1, 2, 0, 1, 3, 0.5))
                case kind:
                    job = replace(job, report=make_eviction(dry_run=kind == "evict-dry"))
            self.begun[job.id] = job
        return job

    async def prewarm(self, request: PrewarmModels) -> Job:
        """Begin to prewarm."""
        self.asked.append(request)
        return self._begin("prewarm")

    async def evict(self, request: EvictEntries) -> Job:
        """Begin to evict."""
        self.asked.append(request)
        return self._begin("evict-dry" if request.dry_run else "evict")

    async def replay(self, request: ReplayEntries) -> Job:
        """Begin to rebuild."""
        self.asked.append(request)
        return self._begin("replay")

    async def verify(self, request: VerifyStores) -> Job:
        """Begin to verify."""
        self.asked.append(request)
        return self._begin("verify")

    async def trash(self) -> tuple[Trashed, ...]:
        """Return what is in the trash."""
        return (make_trashed(),)

    async def restore(self, request: RestoreTrash) -> Job:
        """Begin to bring back."""
        self.asked.append(request)
        return self._begin("restore")

    async def empty(self, request: EmptyTrash) -> Job:
        """Begin to let go."""
        self.asked.append(request)
        return self._begin("empty")

    async def note_import(self, request: NoteImport) -> Job:
        """Begin to scan."""
        self.asked.append(request)
        return self._begin("scan")

    async def note_coming(self, request: NoteComing) -> None:
        """Remember it."""
        self.asked.append(request)

    async def scan(self, request: ScanStores) -> Job:
        """Begin to scan."""
        self.asked.append(request)
        return self._begin("scan")

    async def jobs(self) -> tuple[Job, ...]:
        """Return all jobs."""
        return tuple(self.begun.values())

    async def job(self, id: JobId) -> Job:  # noqa: A002 - as the protocol names it
        """Return one job."""
        if id not in self.begun:
            raise NotFound(f"there is no job {id}")
        return self.begun[id]

    async def wait(self, id: JobId, timeout: float) -> Job:  # noqa: A002, ASYNC109 - as the protocol names it
        """Return one job, ended unless held."""
        job = await self.job(id)
        try:
            if self.hold:
                await asyncio.sleep(timeout)
            return self._end(job)
        except asyncio.CancelledError:
            self.cut += 1
            raise

    async def cancel(self, id: JobId) -> Job:  # noqa: A002 - as the protocol names it
        """Cancel one job."""
        self.begun[id] = replace(await self.job(id), state=JobState.CANCELLED, finished=NOW)
        return self.begun[id]

    async def config(self) -> Mapping[str, str]:
        """Return settings."""
        return {
            "paths.socket_mode": "0600 (default)",
            "policy.attempts": "3 (/etc/xpucached/xpucached.toml:2)",
            "policy.grace": "10m (default)",
            "policy.max_bytes": "unlimited (default)",
            "policy.trash_max_bytes": "1GiB (default)",
            "schedule.replay": "true (XPUCACHED_SCHEDULE_REPLAY)",
            "user": "yes",
        }

    async def disk(self) -> DiskUse:
        """Return how much room is taken."""
        return make_disk()

    async def env(self, model: ModelName | None) -> Mapping[str, str]:
        """Return variables."""
        return {"SYCL_CACHE_PERSISTENT": "1", "SYCL_CACHE_DIR": f"/var/cache/it's {model or 'ours'}"}

    async def events_since(self, since: int) -> tuple[Event, ...]:
        """Return events."""
        return tuple(one for one in self.log if one.id > since)

    async def subscribe(self, since: int) -> AsyncIterator[Event]:
        """Yield events as they happen."""
        queue: asyncio.Queue[Event] = asyncio.Queue()
        self.subscribers.append(queue)
        try:
            for one in await self.events_since(since):
                yield one
            while True:
                yield await queue.get()
        finally:
            self.subscribers.remove(queue)

    def happen(self, message: str) -> None:
        """Let something happen; to be called in the server's loop."""
        event = Event(len(self.log) + 1, NOW, "evicted", message, {"store": "/a b"})
        self.log.append(event)
        for queue in self.subscribers:
            queue.put_nowait(event)


@dataclass
class Running:
    """A server that answers."""

    path: Path
    service: Standin
    server: http_listener.Server
    loop: asyncio.AbstractEventLoop
    stop: Callable[[], None]

    def do(self, action: Callable[[], object]) -> None:
        """Do something in the server's loop."""
        done = threading.Event()

        def act() -> None:
            action()
            done.set()

        self.loop.call_soon_threadsafe(act)
        done.wait()

    def connections(self) -> list[Connection]:
        """Return the connections that are open now."""
        return [one for one in tuple(self.server._places.connections) if isinstance(one, Connection)]

    def connect(self, timeout: float = 20.0) -> socket.socket:
        """Open a connection of one's own."""
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.connect(str(self.path))
        client.settimeout(timeout)
        return client


def owner_only(uid: int, right: Right) -> bool:
    """Let everybody read, and the owner change."""
    return right is Right.READ or uid == os.geteuid()


R = TypeVar("R", bound=Request[object])


def _by(request: type[R], do: Callable[[Standin, R], Awaitable[object]]) -> tuple[type[Request[object]], StandsIn]:
    return request, cast("StandsIn", do)


ANSWERS: Final[Mapping[type[Request[object]], StandsIn]] = dict(
    (
        _by(requests.GetStatus, lambda one, _: one.status()),
        _by(requests.GetSummary, lambda one, _: one.status()),
        _by(requests.ListDevices, lambda one, _: one.devices()),
        _by(requests.ListStores, lambda one, _: one.stores()),
        _by(requests.ListEntries, lambda one, asked: one.entries(asked.query)),
        _by(requests.GetEntry, lambda one, asked: one.entry(asked.ref)),
        _by(requests.ListModels, lambda one, _: one.models()),
        _by(requests.AddModel, lambda one, asked: one.add_model(asked)),
        _by(requests.GetModel, lambda one, asked: one.model(asked.name)),
        _by(requests.GetWhy, lambda one, asked: one.why(asked.name)),
        _by(requests.GetHistory, lambda one, asked: one.history(asked.name)),
        _by(requests.RemoveModel, lambda one, asked: one.remove_model(asked.name)),
        _by(requests.ListRuns, lambda one, asked: one.runs(asked.model, asked.limit)),
        _by(requests.PrewarmModels, lambda one, asked: one.prewarm(asked)),
        _by(requests.EvictEntries, lambda one, asked: one.evict(asked)),
        _by(requests.ReplayEntries, lambda one, asked: one.replay(asked)),
        _by(requests.VerifyStores, lambda one, asked: one.verify(asked)),
        _by(requests.ListTrash, lambda one, _: one.trash()),
        _by(requests.RestoreTrash, lambda one, asked: one.restore(asked)),
        _by(requests.EmptyTrash, lambda one, asked: one.empty(asked)),
        _by(imports.NoteImport, lambda one, asked: one.note_import(asked)),
        _by(imports.NoteComing, lambda one, asked: one.note_coming(asked)),
        _by(requests.ScanStores, lambda one, asked: one.scan(asked)),
        _by(requests.Refresh, lambda one, _: one.look_again()),
        _by(requests.ListJobs, lambda one, _: one.jobs()),
        _by(requests.GetJob, lambda one, asked: one.job(asked.id)),
        _by(requests.WaitJob, lambda one, asked: one.wait(asked.id, asked.timeout)),
        _by(requests.CancelJob, lambda one, asked: one.cancel(asked.id)),
        _by(looking.ListEvents, lambda one, asked: one.events_since(asked.since)),
        _by(looking.GetUsage, lambda one, asked: one.usage(asked.top)),
        _by(looking.ListDays, lambda one, _: one.days()),
        _by(looking.ListWarmth, lambda one, _: one.warmth()),
        _by(looking.SeeShifts, lambda one, asked: one.see_shifts(asked)),
        _by(looking.GetEvictable, lambda one, _: one.evictable()),
        _by(looking.GetOverview, lambda one, _: one.overview()),
        _by(looking.GetMetrics, lambda one, asked: one.metrics(asked)),
        _by(looking.GetDiskUse, lambda one, _: one.disk()),
        _by(requests.GetConfig, lambda one, _: one.config()),
        _by(requests.GetEnv, lambda one, asked: one.env(asked.model)),
    )
)
"""What a stand-in answers itself; the others need no service."""


class StandinHandlers(Handlers):
    """A stand-in that answers what the service would."""

    def __init__(self, standin: Standin) -> None:
        super().__init__(cast("Service", None))
        self._standin = standin

    async def answer(self, asked: Request[object]) -> object:
        """Do what is asked."""
        own = ANSWERS.get(type(asked))
        return await (own(self._standin, asked) if own is not None else super().answer(asked))

    def subscribe(self, since: int) -> AsyncIterator[Event]:
        """Return events as they happen."""
        return self._standin.subscribe(since)


def handlers(standin: Standin) -> Handlers:
    """Let a stand-in answer what the service would."""
    return StandinHandlers(standin)


@contextmanager
def running(
    directory: Path,
    *,
    limits: ConnectionLimits | None = None,
    allowed: Callable[[int, Right], bool] = owner_only,
    service: Standin | None = None,
    tends: Callable[[int], bool] | None = None,
) -> Iterator[Running]:
    """Run a server in a thread, on a real socket."""
    standin = service or Standin()
    path = directory / "d" / "s"
    ready: threading.Event = threading.Event()
    held: list[Running] = []

    async def live() -> None:
        end = asyncio.Event()
        loop = asyncio.get_running_loop()
        made = http_listener.Server(handlers(standin), allowed, limits=limits, tends=tends)
        await made.start([unix_sockets.bind(path, 0o600)])

        def stop() -> None:
            # A test may have stopped it before, and then its loop may be gone.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(end.set)

        held.append(Running(path, standin, made, loop, stop))
        ready.set()
        await end.wait()
        await made.stop()
        unix_sockets.remove(path, unix_sockets.identity(path))
        # A task that outlives the server would be forgotten in silence.
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, left

    failure: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(live())
        except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
            failure.append(error)
            ready.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait()
    try:
        if held:
            yield held[0]
    finally:
        if held:
            held[0].stop()
        thread.join()
        if failure:
            raise failure[0]
