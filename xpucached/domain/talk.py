"""Questions, answers, jobs, events and the status.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from xpucached.domain.flaws import Flaw
from xpucached.domain.hosts import DriverChange, Host, Problem
from xpucached.domain.models import ModelStatus
from xpucached.domain.names import JobId, KindName, ModelName
from xpucached.domain.plans import EvictionReport, IndexedEntry, PrewarmReport, ReplayReport, ScanReport
from xpucached.domain.stores import EntryState, StoreStatus
from xpucached.domain.trash import TrashReport, VerifyReport
from xpucached.domain.watching import Watching


@dataclass(frozen=True, slots=True)
class EntryQuery:
    """Which entries are asked for; every condition that is given must hold."""

    ref: str | None = None  #: the beginning of an `EntryRef`
    kind: KindName | None = None
    store: Path | None = None
    driver: str | None = None  #: exact, or the beginning followed by ``*``; ``current`` is what the host offers now
    architecture: str | None = None
    device: str | None = None  #: part of the device's name
    model: ModelName | None = None
    state: EntryState | None = None
    flaw: Flaw | None = None
    kernel: str | None = None  #: part of a kernel's name, mangled or not
    min_size: int | None = None
    max_size: int | None = None
    unused: float | None = None  #: not used for so many seconds
    limit: int | None = None
    after: str | None = None  #: continue behind this cursor


@dataclass(frozen=True, slots=True)
class EntryPage:
    """Some entries, and where the next ones begin."""

    entries: tuple[IndexedEntry, ...]
    total: int
    size: int  #: allocated bytes of all that match
    next: str | None = None


class JobState(StrEnum):
    """Where a job is."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is."""

    done: int = 0
    total: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something was not done: a stable code, a sentence, and what to do."""

    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """Something that takes longer than an answer may."""

    id: JobId
    verb: str
    state: JobState
    created: datetime
    started: datetime | None = None
    finished: datetime | None = None
    progress: Progress = field(default_factory=Progress)
    scan: ScanReport | None = None
    prewarm: PrewarmReport | None = None
    evict: EvictionReport | None = None
    replay: ReplayReport | None = None
    trash: TrashReport | None = None
    verify: VerifyReport | None = None
    error: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something an administrator may want to see pass by."""

    id: int
    at: datetime
    topic: str  #: ``driver-changed``, ``run-finished``, ``evicted`` …
    message: str
    fields: Mapping[str, str] = field(default_factory=dict)


class Verdict(StrEnum):
    """The one sentence of `status`, as a word."""

    WARM = "warm"
    COLD = "cold"
    WAITING = "waiting"  #: models are warmed as soon as this is the time for it
    WARMING = "warming"
    FAILED = "failed"
    UNCACHED = "uncached"  #: no model uses a cache that we know
    NO_MODELS = "no-models"
    NO_DEVICE = "no-device"
    STARTING = "starting"


@dataclass(frozen=True, slots=True)
class Status:
    """How this host stands."""

    version: str
    verdict: Verdict
    sentence: str
    pid: int
    started: datetime
    host: Host | None
    problems: tuple[Problem, ...]
    entries: int
    flawed: int
    allocated: int
    stale: int  #: entries for environments that this host does not offer now
    stores: tuple[StoreStatus, ...]
    models: tuple[ModelStatus, ...]
    jobs: tuple[Job, ...]
    changes: tuple[DriverChange, ...]
    watching: Watching = field(default_factory=Watching)
