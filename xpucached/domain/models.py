"""Models, how to exercise them, and what came of it.  Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

from xpucached.domain.environments import Environment
from xpucached.domain.names import ModelName
from xpucached.domain.stores import EntryId


@dataclass(frozen=True, slots=True)
class Workload:
    """How to exercise a model: a command, where it runs and what it finds in its environment."""

    command: tuple[str, ...]
    directory: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 1800.0  #: seconds for one pass

    @property
    def digest(self) -> str:
        """16 hex digits that change whenever the workload does."""
        text = json.dumps([self.command, str(self.directory), sorted(self.variables.items())])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


_MODEL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+:-]{0,79}", re.ASCII)


def check_name(text: str) -> ModelName:
    """Take a model's name.  Raises `ValueError` with a sentence that says what was expected."""
    if _MODEL_NAME.fullmatch(text) is None:
        message = "expected a letter or digit, then up to 79 letters, digits or any of . _ @ + : -"
        raise ValueError(message)
    return ModelName(text)


@dataclass(frozen=True, slots=True)
class Model:
    """A registered neural network, and how to exercise it."""

    name: ModelName
    workload: Workload
    store: Path | None = None  #: where it caches; None is the managed store
    priority: int = 50  #: higher is warmed earlier
    pinned: bool = False  #: its entries in a present environment are never evicted
    source: str = "socket"  #: ``socket``, or the file that declares it


class Outcome(StrEnum):
    """How a run ended."""

    WARMED = "warmed"  #: and a second pass compiled nothing
    UNPROVEN = "unproven"  #: it ran, but the second pass compiled again
    FAILED = "failed"
    TIMED_OUT = "timed-out"
    CANCELLED = "cancelled"
    LOST = "lost"  #: the daemon died while it ran


class WarmReason(StrEnum):
    """Why a model is warmed."""

    NEVER = "never-run"
    CHANGED = "workload-changed"
    DRIVER = "driver-changed"
    LOST = "entries-lost"
    RETRY = "retry"
    MANUAL = "manual"


@dataclass(frozen=True, slots=True)
class Pass:
    """One execution of a model's workload inside a run."""

    seconds: float
    cpu_seconds: float
    peak_rss: int
    exit_status: int | None  #: negative: ended by that signal; None: never started
    created: int
    used: int


@dataclass(frozen=True, slots=True)
class Run:
    """One prewarming of one model: when, why, how it ended, and what it left."""

    id: int
    model: ModelName
    workload: str  #: `Workload.digest` at that time
    reason: WarmReason
    started: datetime
    finished: datetime | None
    outcome: Outcome | None  #: None while it runs
    host: str  #: `Host.signature` at that time
    passes: tuple[Pass, ...] = ()
    environments: tuple[Environment, ...] = ()  #: of the entries it created or used
    detail: str = ""  #: one sentence
    output: str = ""  #: the end of what it printed


@dataclass(frozen=True, slots=True)
class Attribution:
    """Which entries a run made and which it only touched."""

    created: frozenset[EntryId] = frozenset()
    used: frozenset[EntryId] = frozenset()


@dataclass(frozen=True, slots=True)
class Coverage:
    """Per model: its last runs, and how many of the last good run's entries are still there."""

    model: ModelName
    last: Run | None  #: the newest finished run
    good: Run | None  #: the newest run that warmed it
    failures: int  #: runs in a row that did not warm it
    entries: int  #: that the good run created or used
    remaining: int  #: of those, still there and whole


class Warmth(StrEnum):
    """How a model stands on this host now."""

    WARM = "warm"
    COLD = "cold"
    WARMING = "warming"
    FAILED = "failed"  #: its last runs failed; see the run


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """A model, how it stands, and its figures."""

    model: Model
    warmth: Warmth
    why: str  #: one sentence: why it is cold or failed, or what proves it warm
    reason: WarmReason | None
    entries: int
    allocated: int
    cold_seconds: float | None
    warm_seconds: float | None
    run: Run | None
