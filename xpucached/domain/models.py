"""Models, how to exercise them, and what came of it.  Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from msgspec import Struct, field
from msgspec.structs import asdict

from xpucached.domain.beside_cpu import CpuComparison
from xpucached.domain.bounds import DAY, Duration, Units, Whole
from xpucached.domain.device_use import DeviceUse
from xpucached.domain.libraries import Libraries
from xpucached.domain.names import AwareDatetime, EntryRef, KindName, ModelName
from xpucached.domain.stores import EntryId, ModelCache
from xpucached.domain.targets import Target
from xpucached.domain.workloads import RunSpec, Variant

_LONGEST_WORDS: Final = 300

REGISTERED: Final = "socket"
"""`Model.source` of what was registered by command; any other source is the file that declares it, and owns it."""


_SERVING: Final = frozenset({"ready_url", "ready_line", "ready_timeout", "requests"})


class Workload(Struct, frozen=True):
    """How to exercise a model: a command or a loader, where it runs and what it finds in its environment."""

    command: tuple[str, ...]  #: empty if the exercise's loader is another one
    directory: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    timeout: Annotated[float, Duration(0.001, DAY)] = 1800.0  #: seconds for one pass
    exercise: RunSpec = field(default_factory=RunSpec)

    @property
    def program(self) -> str:
        """What is started: the command's first word, or the interpreter that a loader runs with."""
        return self.exercise.python or next(iter(self.command), "")

    @property
    def digest(self) -> str:
        """16 hex digits that change whenever the workload does."""
        parts: list[object] = [self.command, str(self.directory), sorted(self.variables.items())]
        if not self.exercise.is_plain:
            said = asdict(self.exercise)
            if not self.exercise.serves:
                # Others have the digest that they had before there were servers.
                said = {name: one for name, one in said.items() if name not in _SERVING}
            if not self.exercise.compare:
                said.pop("compare")
            parts.append(said)
        text = json.dumps(parts, sort_keys=True, default=str)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


_MODEL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+:-]{0,79}", re.ASCII)


def check_name(text: str) -> ModelName:
    """Take a model's name.  Raises `ValueError` with a sentence that says what was expected."""
    if _MODEL_NAME.fullmatch(text) is None:
        message = "expected a letter or digit, then up to 79 letters, digits or any of . _ @ + : -"
        raise ValueError(message)
    return ModelName(text)


_UNIT: Final = re.compile(r"[A-Za-z0-9:_.\\@-]{1,240}\.(?:service|scope|target|slice)", re.ASCII)


def is_unit(text: str) -> bool:
    """Return whether this can be a unit of systemd that runs programs."""
    return _UNIT.fullmatch(text) is not None and not text.startswith(("-", "."))


class Model(Struct, frozen=True):
    """A registered neural network, and how to exercise it."""

    name: ModelName
    workload: Workload
    store: Path | None = None  #: where it caches; None is the managed store
    priority: Annotated[int, Whole(0, 100)] = 50  #: higher is warmed earlier
    pinned: bool = False  #: its entries in a present environment are never evicted
    source: str = REGISTERED  #: or the file that declares it
    before: Annotated[tuple[str, ...], Units()] = ()  #: units of systemd that serve it, and wait until it is warm


class Added(StrEnum):
    """What became of a model that somebody registers."""

    REGISTERED = "registered"
    REPLACED = "replaced"
    SAME = "already-so"  #: it was registered, or declared, just like that


class Outcome(StrEnum):
    """How a run ended."""

    WARMED = "warmed"  #: and a second pass compiled nothing
    UNCACHED = "uncached"  #: it ran, and used no cache that we know
    UNPROVEN = "unproven"  #: it ran, but the second pass compiled again
    FAILED = "failed"
    INVALID = "invalid"  #: it ran, but what it gave cannot be right: empty, not finite, too far from float32
    TIMED_OUT = "timed-out"
    OVER_MEMORY = "over-memory"
    OVER_DISK = "over-disk"
    CANCELLED = "cancelled"
    LOST = "lost"  #: the daemon died while it ran
    CRASHED = "crashed-with-cache"  #: it crashes with the cache on, and does not with the cache off


DENYING: Final = frozenset({Outcome.UNPROVEN, Outcome.CRASHED})
"""These say that a model is not warm, whatever an earlier run showed: it compiled again, or crashes with its cache."""


class WarmReason(StrEnum):
    """Why a model is warmed."""

    NEVER = "never-run"
    CHANGED = "workload-changed"
    PROGRAM = "program-changed"  #: or a file, a library or a package that it needs
    DRIVER = "driver-changed"
    LOST = "entries-lost"
    RETRY = "retry"
    MANUAL = "manual"


class Pass(Struct, frozen=True):
    """One execution of a model's workload inside a run."""

    seconds: float
    cpu_seconds: float
    peak_rss: int
    exit_status: int | None  #: negative: ended by that signal; None: never started
    created: int
    used: int


class RanOn(StrEnum):
    """Whether the work was done where it was meant to be."""

    MEANT = "meant"  #: seen on the device that the model names
    OTHER = "other"  #: seen somewhere else
    UNKNOWN = "unknown"  #: nothing tells


class Figures(Struct, frozen=True):
    """What one pass measured of itself; None is not measured."""

    load_seconds: float | None = None
    first_seconds: float | None = None  #: the first use, which compiles
    steady_seconds: float | None = None  #: the median of the later uses
    first_token_seconds: float | None = None  #: median time to the first token
    token_seconds: float | None = None  #: median time per further token: (end - first) / (n - 1)
    token_seconds_p95: float | None = None
    tokens: int | None = None  #: that were generated for each text, the fewest
    first_token_seconds_p95: float | None = None
    first_token_spread: float | None = None  #: seconds between the quartiles
    token_spread: float | None = None  #: the same of single tokens
    prompts: int | None = None  #: how many different ones were asked; None if that is not known
    device_memory: int | None = None  #: bytes at most, by the framework's counters
    error: float | None = None  #: distance from float32, relative to its size


class Trial(Struct, frozen=True):
    """What came of one variant in one run."""

    variant: Variant
    outcome: Outcome
    passes: tuple[Pass, ...] = ()
    ran_on: RanOn = RanOn.UNKNOWN
    device: str = ""  #: where it was seen: ``xpu:0 Intel(R) Arc(TM) B580 Graphics``
    evidence: tuple[str, ...] = ()  #: a sentence each
    figures: tuple[Figures, ...] = ()  #: of each pass that told them, in the order of the passes
    detail: str = ""
    output: str = ""
    use: DeviceUse | None = None  #: None: before it was noted
    cpu: CpuComparison | None = None  #: None: it was not asked for, or the variant did not run to its end


class Run(Struct, frozen=True):
    """One prewarming of one model: when, why, how it ended, and what it left."""

    id: int
    model: ModelName
    workload: str  #: `Workload.digest` at that time
    reason: WarmReason
    started: AwareDatetime
    finished: AwareDatetime | None
    outcome: Outcome | None  #: None while it runs
    host: str  #: `Host.signature` at that time
    passes: tuple[Pass, ...] = ()
    environments: tuple[Target, ...] = ()  #: of the entries it created or used
    detail: str = ""  #: one sentence
    output: str = ""  #: the end of what it printed
    trials: tuple[Trial, ...] = ()  #: one per variant, in their order
    libraries: Libraries | None = None  #: None: nobody saw which its processes had mapped
    kernel: str = ""  #: the kernel's release at that time; empty: not noted
    changes: tuple[str, ...] = ()  #: what had changed by then of that which the last proof needed, a sentence each

    @property
    def last_words(self) -> str:
        """The last line of what it printed, if it did not do what it should; not for everybody, as all its output."""
        if self.outcome in {None, Outcome.WARMED, Outcome.UNCACHED}:
            return ""
        lines = (" ".join(line.split()) for line in reversed(self.output.splitlines()))
        return next((line for line in lines if line), "")[:_LONGEST_WORDS]


class Attribution(Struct, frozen=True):
    """Which entries a run made and which it only touched."""

    created: frozenset[EntryId] = frozenset()
    used: frozenset[EntryId] = frozenset()


class Layer(Struct, frozen=True):
    """What a model was proven with in the caches of one kind."""

    kind: KindName
    entries: int  #: that its run created or used
    remaining: int  #: of those, still there and whole as far as is known
    unread: int = 0  #: of the remaining, those that cannot be read now


class Proof(Struct, frozen=True):
    """A run that warmed a model, and how many of its entries are still there."""

    run: Run
    entries: int  #: that it created or used
    remaining: int  #: of those, still there and whole, where its programs look for them
    layers: tuple[Layer, ...] = ()  #: the same by the kinds of caches; empty where that was not noted
    successors: tuple[Target, ...] = ()
    """What is here now in place of what it was proven for, and has all it needs: only the compiler is another."""
    elsewhere: int = 0  #: of its entries, those in a store that the model does not cache in now
    unread: int = 0  #: of the remaining, those that cannot be read now
    unreadable: str = ""  #: why, of these or of a store that it needs; empty if all can be read
    appeared: tuple[Target, ...] = ()  #: what this host offers now, and did not when the run began


class Coverage(Struct, frozen=True):
    """Per model: its last runs, and how many of the last good run's entries are still there."""

    model: ModelName
    last: Run | None  #: the newest finished run that was not cancelled
    good: Run | None  #: the newest run that warmed it
    failures: int  #: runs in a row that did not warm it
    entries: int  #: that the good run created or used
    remaining: int  #: of those, still there and whole, where its programs look for them
    changes: tuple[str, ...] = ()  #: what changed of that which the good run needed, a sentence each
    inherited: int = 0  #: entries that replay made for it and present drivers, and that no run has seen yet
    noted: bool = True  #: whether it was written down what the good run needed; if not, changes are not noticed
    layers: tuple[Layer, ...] = ()  #: entries by the kinds of caches; empty where that was not noted
    elsewhere: int = 0  #: of the good run's, those in a store that the model does not cache in now
    proofs: tuple[Proof, ...] = ()  #: of its present workload, the newest on each host or driver as they were then
    successors: tuple[Target, ...] = ()  #: as `Proof.successors`, of the good run
    unread: int = 0  #: as `Proof.unread`, of the good run
    unreadable: str = ""  #: as `Proof.unreadable`; of a model that was never warmed: of the store that it caches in
    appeared: tuple[Target, ...] = ()  #: as `Proof.appeared`, of the good run
    denials: tuple[Run, ...] = ()  #: of its present workload, the newest on each host that showed that it is not warm
    again: int = 0  #: runs in a row, within a day, that proved it anew as what it needs had changed in the run before


class Warmth(StrEnum):
    """How a model stands on this host now."""

    WARM = "warm"
    COLD = "cold"
    CHANGED = "changed"  #: it was proven warm, and what it needs has changed since: nobody knows
    UNKNOWN = "unknown"  #: it was proven warm, and what it needs in the caches cannot be read now
    WAITING = "waiting"  #: it is warmed as soon as the host is calm, or its window opens
    WARMING = "warming"
    FAILED = "failed"  #: its last runs failed; see the run
    UNCACHED = "uncached"  #: it uses no cache that we know, so there is nothing to warm


class RemovedModel(Struct, frozen=True):
    """What the removal of a model did."""

    name: ModelName
    ended: bool = False  #: it ran, and its run was cancelled
    caches: tuple[ModelCache, ...] = ()  #: its directories, those that stay among them
    trashed: bool = True  #: whether those that went are in the trash
    dry_run: bool = False  #: nothing was removed, and the rest says what would be
    too_large: tuple[EntryRef, ...] = ()  #: of `caches`, those that stay in the trash only until it is tidied next


class ModelStatus(Struct, frozen=True):
    """A model, how it stands, and its figures."""

    name: ModelName
    warmth: Warmth
    why: str  #: one sentence: why it is cold or failed, or what proves it warm
    reason: WarmReason | None
    entries: int
    allocated: int
    cold_seconds: float | None
    warm_seconds: float | None
    command: tuple[str, ...]
    directory: Path
    variables: Mapping[str, str]
    timeout: float
    exercise: RunSpec
    workload: str  #: `Workload.digest`; a run names the one it ran
    store: Path | None
    priority: int
    pinned: bool
    source: str
    before: tuple[str, ...]
    run: Run | None
    changes: tuple[str, ...] = ()  #: what changed since it was proven, a sentence each
    layers: tuple[Layer, ...] = ()  #: what it was proven with, by the kinds of caches
    added: Added | None = None  #: only in the answer to who registers it …
    due: str = ""  #: … and when it is warmed without being asked for, a sentence; empty if there is nothing to do
    caches: tuple[ModelCache, ...] = ()  #: where compilers cache that are no kind of ours; told of one model alone
    beyond: str = ""  #: what programs compiled in its store since it was proven, and no model's run; there, too

    @property
    def has_no_device(self) -> bool:
        """Return whether it is cold for want of a device, and not run before there is one."""
        return self.warmth is Warmth.COLD and self.reason is None

    @classmethod
    def of(
        cls,
        model: Model,
        warmth: Warmth,
        why: str,
        reason: WarmReason | None = None,
        entries: int = 0,
        allocated: int = 0,
        cold_seconds: float | None = None,
        warm_seconds: float | None = None,
        run: Run | None = None,
        changes: tuple[str, ...] = (),
        layers: tuple[Layer, ...] = (),
    ) -> ModelStatus:
        """Return how a model stands."""
        rest = {name: getattr(model, name) for name in ("name", "store", "priority", "pinned", "source", "before")}
        return cls(
            warmth=warmth,
            why=why,
            reason=reason,
            entries=entries,
            allocated=allocated,
            cold_seconds=cold_seconds,
            warm_seconds=warm_seconds,
            run=run,
            changes=changes,
            layers=layers,
            workload=model.workload.digest,
            **rest,
            **asdict(model.workload),
        )

    @property
    def model(self) -> Model:
        """The model itself."""
        workload = Workload(self.command, self.directory, self.variables, self.timeout, self.exercise)
        return Model(self.name, workload, self.store, self.priority, self.pinned, self.source, self.before)
