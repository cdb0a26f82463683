"""What takes longer than an answer may, how far it is, and what is said about it.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

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


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is."""

    done: int = 0
    total: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """Why something was not done: a stable code, a sentence, and what to do."""

    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Job:
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


@dataclass(frozen=True, slots=True)
class Event:
    """Something an administrator may want to see pass by."""

    id: int
    at: datetime
    topic: str  #: ``driver-changed``, ``run-finished``, ``evicted`` …
    message: str
    fields: Mapping[str, str] = field(default_factory=dict)
