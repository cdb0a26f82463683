"""What one may ask a user's daemon, and the table of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from xpucached.api import imports, looking
from xpucached.api.endpoints import Request, Right, declared, endpoint, need
from xpucached.domain.diagnosis import Baseline, Diagnosis
from xpucached.domain.host import Host
from xpucached.domain.jobs import Job
from xpucached.domain.models import ModelStatus, RemovedModel, Run, check_name, is_unit
from xpucached.domain.names import JobId, ModelName
from xpucached.domain.plans import IndexedEntry
from xpucached.domain.queries import EntryPage, EntryQuery
from xpucached.domain.status import Status, StatusSummary
from xpucached.domain.stores import StoreStatus
from xpucached.domain.trash import Trashed
from xpucached.domain.workloads import Loader, RunSpec

FEATURES: Final = (
    "entries",
    "evict",
    "events",
    "jobs",
    "models",
    "prewarm",
    "replay",
    "scan",
    "trash",
    "usage",
    "verify",
)
"""What this daemon can do, for clients that must work with several versions."""

_REF: Final = re.compile(r"[0-9a-f]{1,12}")

# A day: longer than any model that is worth caching, and short enough that a slip of the finger ends.
_MAX_TIMEOUT: Final = 86400.0
MAX_WAIT: Final = 300.0
MAX_PAGE: Final = looking.MAX_PAGE
MAX_MODELS: Final = 1000
"""So many models one request may name."""
_LONGEST_NAME: Final = 200  # USER:NAME
DEFAULT_PAGE: Final = 200


def _is_place(path: Path) -> bool:
    return path.is_absolute() and "\0" not in str(path)


def _see_names(models: tuple[ModelName, ...]) -> None:
    need(len(models) <= MAX_MODELS, f"models: expected at most {MAX_MODELS}")
    need(all(len(name) <= _LONGEST_NAME for name in models), "models: no model has so long a name")


_JOB: Final = "/v1/jobs/{id}"


class Hello(Struct, frozen=True):
    """Who answers: the version of the wire, of the program, and what it can do."""

    api: int
    version: str
    features: tuple[str, ...] = FEATURES


@endpoint("GET", "/v1")
class GetHello(Request[Hello], frozen=True, kw_only=True):
    """Ask which daemon this is."""


@endpoint("GET", "/v1/status")
class GetStatus(Request[Status], frozen=True, kw_only=True):
    """Ask how this host stands; its jobs come without reports, its runs without output."""


@endpoint("GET", "/v1/summary")
class GetSummary(Request[StatusSummary], frozen=True, kw_only=True):
    """Ask for the same in numbers and names: it is short, however many models there are."""


@endpoint("GET", "/v1/devices")
class ListDevices(Request[Host], frozen=True, kw_only=True):
    """Ask for the host's devices and drivers."""


@endpoint("GET", "/v1/stores")
class ListStores(Request[tuple[StoreStatus, ...]], frozen=True, kw_only=True):
    """Ask for all stores."""


@endpoint("GET", "/v1/entries")
class ListEntries(EntryQuery, Request[EntryPage], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask for the entries that match, a page of them; see below."""

    def __post_init__(self) -> None:
        """Refuse what no entry can match."""
        need(self.ref is None or _REF.fullmatch(self.ref) is not None, "ref: expected up to 12 hex digits")
        need(self.limit is None or self.limit >= 1, "limit: expected at least 1")
        need(self.min_size is None or self.min_size >= 0, "min_size: expected bytes, 0 or more")
        need(self.max_size is None or self.max_size >= 0, "max_size: expected bytes, 0 or more")
        need(self.unused is None or 0 <= self.unused < float("inf"), "unused: expected seconds, 0 or more")

    @property
    def query(self) -> EntryQuery:
        """The same with a limit."""
        return replace(self, limit=min(self.limit or DEFAULT_PAGE, MAX_PAGE))


@endpoint("GET", "/v1/entries/{ref}")
class GetEntry(Request[IndexedEntry], frozen=True, kw_only=True):
    """Ask for one entry by its ref, or by the beginning of it if that is unique."""

    ref: str

    def __post_init__(self) -> None:
        """Refuse what cannot be a ref."""
        need(_REF.fullmatch(self.ref) is not None, "ref: expected up to 12 hex digits")


@endpoint("GET", "/v1/models")
class ListModels(Request[tuple[ModelStatus, ...]], frozen=True, kw_only=True):
    """Ask for all models; their runs come without output."""


@endpoint("GET", "/v1/models/{name}")
class GetModel(Request[ModelStatus], frozen=True, kw_only=True):
    """Ask for one model."""

    name: ModelName


@endpoint("GET", "/v1/models/{name}/why")
class GetWhy(Request[Diagnosis], frozen=True, kw_only=True):
    """Ask why a model is cold or slow, and what mends it."""

    name: ModelName


@endpoint("GET", "/v1/models/{name}/history")
class GetHistory(Request[tuple[Baseline, ...]], frozen=True, kw_only=True):
    """Ask for a model's figures over its last 60 runs."""

    name: ModelName


@endpoint("POST", "/v1/models", right=Right.CHANGE, status=201, location="/v1/models/{name}")
class AddModel(Request[ModelStatus], frozen=True, kw_only=True):
    """Register a model: its command or loader, and where and how it runs.  ``store`` None is the managed store."""

    name: ModelName
    directory: Path
    command: tuple[str, ...] = ()
    exercise: RunSpec = field(default_factory=RunSpec)
    variables: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 1800.0
    store: Path | None = None
    priority: int = 50
    pinned: bool = False
    before: tuple[str, ...] = ()
    replace: bool = False
    if_changed: bool = False  #: like ``replace``, where something is another than it was

    def __post_init__(self) -> None:
        """Refuse what could never run."""
        try:
            check_name(self.name)
        except ValueError as error:
            raise ValueError(f"name: {error}") from error
        if self.exercise.loader is Loader.COMMAND:
            need(bool(self.command) and bool(self.command[0]), "command: expected a program and its arguments")
            need(Path(self.command[0]).is_absolute(), "command: expected an absolute path to the program")
        else:
            need(not self.command, f"command: the loader {self.exercise.loader} has none")
        for key, expected in self.exercise.mistakes():
            need(False, f"exercise.{key}: {expected}")  # noqa: FBT003 - it is one
        need(not any("\0" in word for word in self.command), "command: expected no null characters")
        need(_is_place(self.directory), "directory: expected an absolute path")
        need(self.store is None or _is_place(self.store), "store: expected an absolute path")
        for unit in self.before:
            need(is_unit(unit), f"before: expected the full name of a unit, such as app.service; found {unit!r}")
        need(0 < self.timeout <= _MAX_TIMEOUT, "timeout: expected more than 0 and at most 86400 seconds")
        need(0 <= self.priority <= 100, "priority: expected 0 to 100")  # noqa: PLR2004 - the sentence says it
        for key, value in self.variables.items():
            need(bool(key) and "=" not in key and "\0" not in key + value, f"variables: {key!r} cannot be a variable")


@endpoint("DELETE", "/v1/models/{name}", right=Right.CHANGE)
class RemoveModel(Request[RemovedModel], frozen=True, kw_only=True):
    """Forget a model, and end its run if it runs; its entries stay until they are evicted.

    Our directory of what others cached for it goes, too; with ``caches`` those it named. ``dry_run`` only says so.
    """

    name: ModelName
    caches: bool | None = None
    dry_run: bool | None = None


@endpoint("GET", "/v1/runs")
class ListRuns(Request[tuple[Run, ...]], frozen=True, kw_only=True):
    """Ask for the newest runs, newest first, of one model or of all."""

    model: ModelName | None = None
    limit: int = 20

    def __post_init__(self) -> None:
        """Refuse what would be unbounded."""
        need(1 <= self.limit <= MAX_PAGE, f"limit: expected 1 to {MAX_PAGE}")


@endpoint("POST", "/v1/prewarm", right=Right.CHANGE, status=202, location=_JOB)
class PrewarmModels(Request[Job], frozen=True, kw_only=True):
    """Warm exactly one of these models, all, and those that need it (``stale``); ``force`` even what is warm."""

    models: tuple[ModelName, ...] = ()
    all: bool = False
    stale: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        """Refuse what could mean two things."""
        need(
            bool(self.models) + self.all + self.stale == 1,
            "models: expected exactly one of models, all and stale",
        )
        _see_names(self.models)


@endpoint("POST", "/v1/evict", right=Right.CHANGE, status=202, location=_JOB)
class EvictEntries(Request[Job], frozen=True, kw_only=True):
    """Evict what the policy lets go; only these refs or reasons if any are given; ``dry_run`` only plans.

    With ``plan``, the id of a dry run's, alone: exactly that goes, or it is a `conflict`.
    """

    dry_run: bool = False
    refs: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    plan: str | None = None

    def __post_init__(self) -> None:
        """Refuse what could mean two things: a plan says already what goes."""
        alone = not (self.dry_run or self.refs or self.reasons)
        need(all(_REF.fullmatch(one) for one in self.refs), "refs: expected up to 12 hex digits each")
        need(self.plan is None or alone, "plan: expected neither dry_run, refs nor reasons with it")
        need(self.plan is None or _REF.fullmatch(self.plan) is not None, "plan: expected up to 12 hex digits")


@endpoint("POST", "/v1/verify", right=Right.CHANGE, status=202, location=_JOB)
class VerifyStores(Request[Job], frozen=True, kw_only=True):
    """Read everything in these stores, or in all, and say what is wrong; ``fix`` mends what loses nothing.

    With ``deep`` each entry is compiled again and compared, where its driver is here.  With ``faults_only`` only what
    is wrong with a store as a whole, and how many entries are known to be damaged.
    """

    stores: tuple[Path, ...] = ()
    fix: bool = False
    faults_only: bool = False
    deep: bool = False

    def __post_init__(self) -> None:
        """Refuse what can be no store."""
        need(all(map(_is_place, self.stores)), "stores: expected absolute paths")
        need(not (self.deep and self.faults_only), "deep: expected not to be given with faults_only")


@endpoint("GET", "/v1/trash")
class ListTrash(Request[tuple[Trashed, ...]], frozen=True, kw_only=True):
    """Ask for what was evicted and can still come back, and what is in quarantine, newest first; 100,000 at most."""


@endpoint("POST", "/v1/trash/restore", right=Right.CHANGE, status=202, location=_JOB)
class RestoreTrash(Request[Job], frozen=True, kw_only=True):
    """Bring these back from the trash, or else ``all`` that is whole; what is in quarantine is a `conflict`."""

    refs: tuple[str, ...] = ()
    all: bool = False

    def __post_init__(self) -> None:
        """Refuse what could mean two things."""
        need(bool(self.refs) != self.all, "refs: expected exactly one of refs and all")
        need(all(_REF.fullmatch(one) for one in self.refs), "refs: expected up to 12 hex digits each")


@endpoint("POST", "/v1/trash/empty", right=Right.CHANGE, status=202, location=_JOB)
class EmptyTrash(Request[Job], frozen=True, kw_only=True):
    """Let these in the trash go for good, or everything."""

    refs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be a ref."""
        need(all(_REF.fullmatch(one) for one in self.refs), "refs: expected up to 12 hex digits each")


@endpoint("POST", "/v1/replay", right=Right.CHANGE, status=202, location=_JOB)
class ReplayEntries(Request[Job], frozen=True, kw_only=True):
    """Rebuild for the present driver what was compiled for an older one, without the models; ``dry_run`` only plans.

    Only of these stores or models if any are given; ``to`` is the beginning of an environment's fingerprint.
    ``driver_root`` is a folder with a driver that is not installed, to rebuild for instead; ``device`` is a GPU that
    the driver shall pretend, by product (``A770``), architecture or PCI id.  What is rebuilt goes into the store at
    ``into``, if that is given, and the GPU driver's own cache is then the one at ``driver_cache``.
    """

    dry_run: bool = False
    stores: tuple[Path, ...] = ()
    models: tuple[ModelName, ...] = ()
    to: str | None = None
    driver_root: Path | None = None
    device: str | None = None
    into: Path | None = None
    driver_cache: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what can be no place, and no names."""
        need(all(map(_is_place, self.stores)), "stores: expected absolute paths")
        _see_names(self.models)
        for name in ("driver_root", "into", "driver_cache"):
            path: Path | None = getattr(self, name)
            need(path is None or _is_place(path), f"{name}: expected an absolute path")


@endpoint("POST", "/v1/scan", right=Right.CHANGE, status=202, location=_JOB)
class ScanStores(Request[Job], frozen=True, kw_only=True):
    """Look at these stores, or at all; ``full`` reads also what seems unchanged."""

    stores: tuple[Path, ...] = ()
    full: bool = False

    def __post_init__(self) -> None:
        """Refuse what can be no store: the daemon's working directory is not the caller's."""
        need(all(map(_is_place, self.stores)), "stores: expected absolute paths")


@endpoint("POST", "/v1/refresh", right=Right.CHANGE, status=202)
class Refresh(Request[None], frozen=True, kw_only=True):
    """Say that something may have changed on the host, its driver, devices or stores: it is looked at soon."""


@endpoint("GET", "/v1/jobs")
class ListJobs(Request[tuple[Job, ...]], frozen=True, kw_only=True):
    """Ask for the jobs that the daemon remembers, without their reports."""


@endpoint("GET", _JOB)
class GetJob(Request[Job], frozen=True, kw_only=True):
    """Ask for one job, with its report."""

    id: JobId


@endpoint("GET", "/v1/jobs/{id}/wait")
class WaitJob(Request[Job], frozen=True, kw_only=True):
    """Ask for one job as soon as it has ended, or as it is after ``timeout`` seconds (30, at most 300)."""

    id: JobId
    timeout: float = 30.0

    def __post_init__(self) -> None:
        """Refuse to wait for ever: the client asks again instead."""
        need(0 <= self.timeout <= MAX_WAIT, f"timeout: expected 0 to {MAX_WAIT:.0f} seconds")


@endpoint("DELETE", _JOB, right=Right.CHANGE)
class CancelJob(Request[Job], frozen=True, kw_only=True):
    """Cancel one job; what it has done stays done."""

    id: JobId


@endpoint("GET", "/v1/config")
class GetConfig(Request[Mapping[str, str]], frozen=True, kw_only=True):
    """Ask for the settings in effect."""


@endpoint("GET", "/v1/env")
class GetEnv(Request[Mapping[str, str]], frozen=True, kw_only=True):
    """Ask for the variables that make a program find what was warmed, of one model or of the managed store."""

    model: ModelName | None = None


@endpoint("GET", "/v1/openapi.json")
class GetOpenApi(Request[Mapping[str, str]], frozen=True, kw_only=True):
    """Ask for all of this as an OpenAPI 3.1 document."""


_LAST: Final = (imports.__name__, looking.__name__)
ENDPOINTS: Final = tuple(sorted(declared(), key=lambda one: one.request.__module__ in _LAST))
"""Everything one may ask a user's daemon."""
