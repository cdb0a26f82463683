"""What takes longer than an answer may, how far it is, and what is said about it.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from msgspec import Struct, field

from xpucached.domain.names import JobId
from xpucached.domain.plans import EvictionReport, PrewarmReport, ReplayReport, ScanReport
from xpucached.domain.trash import TrashReport, VerifyReport


class JobState(StrEnum):
    """Where a job is."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Progress(Struct, frozen=True):
    """How far a job is."""

    done: int = 0
    total: int = 0
    detail: str = ""


class ErrorInfo(Struct, frozen=True):
    """Why something was not done: a stable code, a sentence, and what to do."""

    code: str
    message: str
    hint: str = ""


class Job(Struct, frozen=True):
    """Something that takes longer than an answer may."""

    id: JobId
    kind: str  #: ``scan``, ``prewarm``, ``replay``, ``evict``, ``verify``, ``restore`` or ``empty``
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
    error: ErrorInfo | None = None


class Event(Struct, frozen=True):
    """Something an administrator may want to see pass by."""

    id: int
    at: datetime
    topic: str  #: ``driver-changed``, ``run-finished``, ``evicted`` …
    message: str
    fields: Mapping[str, str] = field(default_factory=dict)
