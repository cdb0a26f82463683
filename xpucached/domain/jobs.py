"""What takes longer than an answer may, how far it is, and what is said about it.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct, field

from xpucached.domain.names import AwareDatetime, JobId
from xpucached.domain.reports import Report, VerifyReport


class JobState(StrEnum):
    """Where a job is."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


UNDER_WAY: Final = frozenset({JobState.QUEUED, JobState.RUNNING})
"""Jobs that are not over."""

WARMING: Final = frozenset({"replay", "prewarm"})
"""Kinds of jobs after which more is warm than before."""


class Progress(Struct, frozen=True):
    """How far a job is."""

    done: int = 0
    total: int = 0
    detail: str = ""
    ends: AwareDatetime | None = None  #: when it may be done, by what it usually takes; None: nobody knows


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
    created: AwareDatetime
    started: AwareDatetime | None = None
    finished: AwareDatetime | None = None
    progress: Progress = field(default_factory=Progress)
    mended: VerifyReport | None = None  #: what was mended before the job's own work
    report: Report | None = None  #: what the job did
    error: ErrorInfo | None = None


class Event(Struct, frozen=True):
    """Something an administrator may want to see pass by."""

    id: int
    at: AwareDatetime
    topic: str  #: ``driver-changed``, ``run-finished``, ``evicted`` …
    message: str
    fields: Mapping[str, str] = field(default_factory=dict)
