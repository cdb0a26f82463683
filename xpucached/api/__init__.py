"""Door: what one may ask the daemon, as values, and the one table that server, client and documentation come from.

Touches nothing.  Importing it is cheap on purpose: `xpucachectl` does so at every start, and pydantic stays out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Final, Generic, Literal, TypeVar

from xpucached import messages, sockets
from xpucached.domain.defects import Defect
from xpucached.domain.diagnosis import Baseline, Diagnosis
from xpucached.domain.host import Host
from xpucached.domain.jobs import Event, Job
from xpucached.domain.models import ModelStatus, Run, check_name, is_unit
from xpucached.domain.names import JobId, KindName, ModelName
from xpucached.domain.plans import IndexedEntry
from xpucached.domain.queries import EntryPage, EntryQuery
from xpucached.domain.status import Status
from xpucached.domain.stores import EntryState, StoreStatus
from xpucached.domain.trash import Trashed
from xpucached.domain.workloads import Loader, RunSpec

VERSION: Final = 1
"""Of the wire.  It changes when a key goes or changes its meaning; new keys and paths may come without notice."""

FEATURES: Final = ("entries", "evict", "events", "jobs", "models", "prewarm", "replay", "scan", "trash", "verify")
"""What this daemon can do, for clients that must work with several versions."""

Json = messages.Json

Reply_co = TypeVar("Reply_co", covariant=True)

_REF: Final = re.compile(r"[0-9a-f]{1,12}")

# A day: longer than any model that is worth caching, and short enough that a slip of the finger ends.
_MAX_TIMEOUT: Final = 86400.0
MAX_WAIT: Final = 300.0
MAX_PAGE: Final = 1000
MAX_MODELS: Final = 1000
"""So many models one request may name."""
_LONGEST_NAME: Final = 200  # USER:NAME
DEFAULT_PAGE: Final = 200


class Right(StrEnum):
    """What a caller must be allowed to do."""

    READ = "read"
    CHANGE = "change"


def _need(holds: bool, message: str) -> None:  # noqa: FBT001 - reads as an assertion
    if not holds:
        raise ValueError(message)


def _is_place(path: Path) -> bool:
    return path.is_absolute() and "\0" not in str(path)


def _see_names(models: tuple[ModelName, ...]) -> None:
    _need(len(models) <= MAX_MODELS, f"models: expected at most {MAX_MODELS}")
    _need(all(len(name) <= _LONGEST_NAME for name in models), "models: no model has so long a name")


class Request(Generic[Reply_co]):
    """Something one may ask; the parameter is the type of what comes back."""

    __slots__ = ()
    # Read by pydantic where the server checks a request; naming it here does not import pydantic.
    __pydantic_config__: ClassVar[Mapping[str, object]] = {"extra": "forbid", "strict": True}


@dataclass(frozen=True, slots=True)
class Hello:
    """Who answers: the version of the wire, of the program, and what it can do."""

    api: int
    version: str
    features: tuple[str, ...] = FEATURES


@dataclass(frozen=True, slots=True, kw_only=True)
class GetHello(Request[Hello]):
    """Ask which daemon this is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetStatus(Request[Status]):
    """Ask how this host stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListDevices(Request[Host]):
    """Ask for the host's devices and drivers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListStores(Request[tuple[StoreStatus, ...]]):
    """Ask for all stores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListEntries(Request[EntryPage]):
    """Ask for the entries that match; a page has at most `MAX_PAGE` of them."""

    ref: str | None = None
    kind: KindName | None = None
    store: Path | None = None
    driver: str | None = None
    architecture: str | None = None
    device: str | None = None
    model: ModelName | None = None
    state: EntryState | None = None
    defect: Defect | None = None
    kernel: str | None = None
    min_size: int | None = None
    max_size: int | None = None
    unused: float | None = None
    limit: int | None = None
    after: str | None = None

    def __post_init__(self) -> None:
        """Refuse what no entry can match."""
        _need(self.ref is None or _REF.fullmatch(self.ref) is not None, "ref: expected up to 12 hex digits")
        _need(self.limit is None or self.limit >= 1, "limit: expected at least 1")
        _need(self.min_size is None or self.min_size >= 0, "min_size: expected bytes, 0 or more")
        _need(self.max_size is None or self.max_size >= 0, "max_size: expected bytes, 0 or more")
        _need(self.unused is None or 0 <= self.unused < float("inf"), "unused: expected seconds, 0 or more")

    @property
    def query(self) -> EntryQuery:
        """The same, in the catalog's word, and with a limit."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return EntryQuery(**{**values, "limit": min(self.limit or DEFAULT_PAGE, MAX_PAGE)})


@dataclass(frozen=True, slots=True, kw_only=True)
class GetEntry(Request[IndexedEntry]):
    """Ask for one entry by its ref, or by the beginning of it if that is unique."""

    ref: str

    def __post_init__(self) -> None:
        """Refuse what cannot be a ref."""
        _need(_REF.fullmatch(self.ref) is not None, "ref: expected up to 12 hex digits")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListModels(Request[tuple[ModelStatus, ...]]):
    """Ask for all models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetModel(Request[ModelStatus]):
    """Ask for one model."""

    name: ModelName


@dataclass(frozen=True, slots=True, kw_only=True)
class GetWhy(Request[Diagnosis]):
    """Ask why a model is cold or slow, and what mends it."""

    name: ModelName


@dataclass(frozen=True, slots=True, kw_only=True)
class GetHistory(Request[tuple[Baseline, ...]]):
    """Ask for a model's figures over its last runs."""

    name: ModelName


@dataclass(frozen=True, slots=True, kw_only=True)
class AddModel(Request[ModelStatus]):
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

    def __post_init__(self) -> None:
        """Refuse what could never run."""
        try:
            check_name(self.name)
        except ValueError as error:
            raise ValueError(f"name: {error}") from error
        if self.exercise.loader is Loader.COMMAND:
            _need(bool(self.command) and bool(self.command[0]), "command: expected a program and its arguments")
            _need(Path(self.command[0]).is_absolute(), "command: expected an absolute path to the program")
        else:
            _need(not self.command, f"command: the loader {self.exercise.loader} has none")
        for key, expected in self.exercise.mistakes():
            _need(False, f"exercise.{key}: {expected}")  # noqa: FBT003 - it is one
        _need(not any("\0" in word for word in self.command), "command: expected no null characters")
        _need(_is_place(self.directory), "directory: expected an absolute path")
        _need(self.store is None or _is_place(self.store), "store: expected an absolute path")
        for unit in self.before:
            _need(is_unit(unit), f"before: expected the full name of a unit, such as app.service; found {unit!r}")
        _need(0 < self.timeout <= _MAX_TIMEOUT, "timeout: expected more than 0 and at most 86400 seconds")
        _need(0 <= self.priority <= 100, "priority: expected 0 to 100")  # noqa: PLR2004 - the sentence says it
        for key, value in self.variables.items():
            _need(bool(key) and "=" not in key and "\0" not in key + value, f"variables: {key!r} cannot be a variable")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveModel(Request[None]):
    """Forget a model; its entries stay until they are evicted."""

    name: ModelName


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRuns(Request[tuple[Run, ...]]):
    """Ask for the newest runs, of one model or of all."""

    model: ModelName | None = None
    limit: int = 20

    def __post_init__(self) -> None:
        """Refuse what would be unbounded."""
        _need(1 <= self.limit <= MAX_PAGE, f"limit: expected 1 to {MAX_PAGE}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrewarmModels(Request[Job]):
    """Warm these models, or all, or those that need it (``stale``); ``force`` even what is warm."""

    models: tuple[ModelName, ...] = ()
    all: bool = False
    stale: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        """Refuse what could mean two things."""
        _need(
            bool(self.models) + self.all + self.stale == 1,
            "models: expected exactly one of models, all and stale",
        )
        _see_names(self.models)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictEntries(Request[Job]):
    """Evict what the policy lets go; only these refs or reasons if any are given.  ``dry_run`` only plans."""

    dry_run: bool = False
    refs: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    plan: str | None = None

    def __post_init__(self) -> None:
        """Refuse what could mean two things: a plan says already what goes."""
        alone = not (self.dry_run or self.refs or self.reasons)
        _need(self.plan is None or alone, "plan: expected neither dry_run, refs nor reasons with it")
        _need(self.plan is None or _REF.fullmatch(self.plan) is not None, "plan: expected up to 12 hex digits")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyStores(Request[Job]):
    """Read everything in these stores, or in all, and say what is wrong; ``fix`` mends what loses nothing.

    With ``deep`` each entry is compiled again and compared, where its driver is here.  With ``faults_only`` only what
    is wrong with a store as a whole.
    """

    stores: tuple[Path, ...] = ()
    fix: bool = False
    faults_only: bool = False
    deep: bool = False

    def __post_init__(self) -> None:
        """Refuse what can be no store."""
        _need(all(map(_is_place, self.stores)), "stores: expected absolute paths")
        _need(not (self.deep and self.faults_only), "deep: expected not to be given with faults_only")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTrash(Request[tuple[Trashed, ...]]):
    """Ask for what was evicted and can still come back, and for what is in quarantine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreTrash(Request[Job]):
    """Bring these back from the trash, or ``all`` that is whole."""

    refs: tuple[str, ...] = ()
    all: bool = False

    def __post_init__(self) -> None:
        """Refuse what could mean two things."""
        _need(bool(self.refs) != self.all, "refs: expected exactly one of refs and all")
        _need(all(_REF.fullmatch(one) for one in self.refs), "refs: expected up to 12 hex digits each")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyTrash(Request[Job]):
    """Let these in the trash go for good, or everything."""

    refs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be a ref."""
        _need(all(_REF.fullmatch(one) for one in self.refs), "refs: expected up to 12 hex digits each")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayEntries(Request[Job]):
    """Rebuild for the present driver what was compiled for an older one, without the models; ``dry_run`` only plans.

    Only of these stores or models if any are given; ``to`` is the beginning of an environment's fingerprint.
    ``driver_root`` is a folder with a driver that is not installed, to rebuild for instead; ``device`` is a GPU that
    the driver shall pretend, by architecture or PCI id.  What is rebuilt goes into the store at ``into``, if that is
    given, and the GPU driver's own cache is then the one at ``driver_cache``.
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
        _need(all(map(_is_place, self.stores)), "stores: expected absolute paths")
        _see_names(self.models)
        for name, path in (
            ("driver_root", self.driver_root),
            ("into", self.into),
            ("driver_cache", self.driver_cache),
        ):
            _need(path is None or _is_place(path), f"{name}: expected an absolute path")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanStores(Request[Job]):
    """Look at these stores, or at all; ``full`` reads also what seems unchanged."""

    stores: tuple[Path, ...] = ()
    full: bool = False

    def __post_init__(self) -> None:
        """Refuse what can be no store: the daemon's working directory is not the caller's."""
        _need(all(map(_is_place, self.stores)), "stores: expected absolute paths")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh(Request[None]):
    """Say that something may have changed on the host: its driver, its devices, its stores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListJobs(Request[tuple[Job, ...]]):
    """Ask for the jobs that the daemon remembers, without their reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetJob(Request[Job]):
    """Ask for one job, with its report."""

    id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitJob(Request[Job]):
    """Ask for one job as soon as it has ended, or as it is after ``timeout`` seconds."""

    id: JobId
    timeout: float = 30.0

    def __post_init__(self) -> None:
        """Refuse to wait for ever: the client asks again instead."""
        _need(0 <= self.timeout <= MAX_WAIT, f"timeout: expected 0 to {MAX_WAIT:.0f} seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJob(Request[Job]):
    """Cancel one job; what it has done stays done."""

    id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class ListEvents(Request[tuple[Event, ...]]):
    """Ask for events after ``since``; with ``follow`` as an endless stream, one JSON object per line."""

    since: int = 0
    follow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConfig(Request[Mapping[str, str]]):
    """Ask for the settings in effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetEnv(Request[Mapping[str, str]]):
    """Ask for the variables that make a program use the cache, of one model or of the managed store."""

    model: ModelName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetOpenApi(Request[Mapping[str, str]]):
    """Ask for this description."""


AnyRequest = (
    GetHello
    | GetStatus
    | ListDevices
    | ListStores
    | ListEntries
    | GetEntry
    | ListModels
    | GetModel
    | GetWhy
    | GetHistory
    | AddModel
    | RemoveModel
    | ListRuns
    | PrewarmModels
    | EvictEntries
    | ReplayEntries
    | VerifyStores
    | ListTrash
    | RestoreTrash
    | EmptyTrash
    | ScanStores
    | Refresh
    | ListJobs
    | GetJob
    | WaitJob
    | CancelJob
    | ListEvents
    | GetConfig
    | GetEnv
    | GetOpenApi
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One row of the table.

    Fields of the request that the path names come from there.  The rest comes from the query string, or for POST from
    the body, which is a JSON object.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    request: type[Request[object]]
    reply: object  #: a type, or None where the answer has no data
    right: Right = Right.READ
    status: int = 200
    location: str | None = None  #: where the thing made can be found; braces name fields of the reply

    @property
    def placeholders(self) -> tuple[str, ...]:
        """The fields that stand in the path."""
        return tuple(re.findall(r"{(\w+)}", self.path))


_JOB: Final = "/v1/jobs/{id}"

ENDPOINTS: Final = (
    Endpoint("GET", "/v1", GetHello, Hello),
    Endpoint("GET", "/v1/status", GetStatus, Status),
    Endpoint("GET", "/v1/devices", ListDevices, Host),
    Endpoint("GET", "/v1/stores", ListStores, tuple[StoreStatus, ...]),
    Endpoint("GET", "/v1/entries", ListEntries, EntryPage),
    Endpoint("GET", "/v1/entries/{ref}", GetEntry, IndexedEntry),
    Endpoint("GET", "/v1/models", ListModels, tuple[ModelStatus, ...]),
    Endpoint("POST", "/v1/models", AddModel, ModelStatus, Right.CHANGE, 201, "/v1/models/{name}"),
    Endpoint("GET", "/v1/models/{name}", GetModel, ModelStatus),
    Endpoint("GET", "/v1/models/{name}/why", GetWhy, Diagnosis),
    Endpoint("GET", "/v1/models/{name}/history", GetHistory, tuple[Baseline, ...]),
    Endpoint("DELETE", "/v1/models/{name}", RemoveModel, None, Right.CHANGE),
    Endpoint("GET", "/v1/runs", ListRuns, tuple[Run, ...]),
    Endpoint("POST", "/v1/prewarm", PrewarmModels, Job, Right.CHANGE, 202, _JOB),
    Endpoint("POST", "/v1/evict", EvictEntries, Job, Right.CHANGE, 202, _JOB),
    Endpoint("POST", "/v1/replay", ReplayEntries, Job, Right.CHANGE, 202, _JOB),
    Endpoint("POST", "/v1/verify", VerifyStores, Job, Right.CHANGE, 202, _JOB),
    Endpoint("GET", "/v1/trash", ListTrash, tuple[Trashed, ...]),
    Endpoint("POST", "/v1/trash/restore", RestoreTrash, Job, Right.CHANGE, 202, _JOB),
    Endpoint("POST", "/v1/trash/empty", EmptyTrash, Job, Right.CHANGE, 202, _JOB),
    Endpoint("POST", "/v1/scan", ScanStores, Job, Right.CHANGE, 202, _JOB),
    Endpoint("POST", "/v1/refresh", Refresh, None, Right.CHANGE, 202),
    Endpoint("GET", "/v1/jobs", ListJobs, tuple[Job, ...]),
    Endpoint("GET", _JOB, GetJob, Job),
    Endpoint("DELETE", _JOB, CancelJob, Job, Right.CHANGE),
    Endpoint("GET", "/v1/jobs/{id}/wait", WaitJob, Job),
    Endpoint("GET", "/v1/events", ListEvents, tuple[Event, ...]),
    Endpoint("GET", "/v1/config", GetConfig, Mapping[str, str]),
    Endpoint("GET", "/v1/env", GetEnv, Mapping[str, str]),
    Endpoint("GET", "/v1/openapi.json", GetOpenApi, Mapping[str, str]),
)
"""Everything one may ask."""

_BY_REQUEST: Final[dict[type[object], Endpoint]] = {one.request: one for one in ENDPOINTS}


def register(table: Iterable[Endpoint]) -> None:
    """Let `endpoint` know the requests of a further table."""
    for one in table:
        _BY_REQUEST.setdefault(one.request, one)


def endpoint(request: Request[object]) -> Endpoint:
    """Give the row of a request."""
    return _BY_REQUEST[type(request)]


def socket_path(*, user: bool, environ: Mapping[str, str]) -> Path:
    """Tell where the daemon's socket is; see `sockets.socket_path`."""
    return Path(sockets.socket_path(user=user, environ=environ))
