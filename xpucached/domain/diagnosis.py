"""What may be relied on and what to do: checks of runtimes, explanations of a model, figures over time.  Pure."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from xpucached.domain.beside_cpu import ComparedVariant
from xpucached.domain.models import Warmth
from xpucached.domain.names import AwareDatetime, KindName, ModelName
from xpucached.domain.stores import Store


class Safety(StrEnum):
    """Whether the persistent cache may be switched on with a runtime."""

    SAFE = "safe"
    UNSAFE = "unsafe"  #: programs of a common shape crash as soon as it is on
    UNKNOWN = "unknown"  #: it could not be found out


class RuntimeCheck(Struct, frozen=True):
    """What was found out about one build of the SYCL runtime."""

    build: str
    library: Path  #: where it was found
    safety: Safety
    evidence: str  #: what was done, and what happened
    at: AwareDatetime


class Cause(StrEnum):
    """Why a model is cold, slow, or not what its application gets."""

    NO_DEVICE = "no-device"
    WAITING = "waiting"
    WARMING = "warming"
    UNREAD = "cannot-be-read"  #: what it was proven with
    UNCACHED = "uncached"
    CRASH = "crashed-with-cache"
    FAILED = "failed"
    NEVER = "never-run"
    CHANGED = "workload-changed"
    PROGRAM = "program-changed"
    DRIVER = "driver-changed"
    LOST = "entries-lost"
    UNSAFE = "unsafe-runtime"
    CACHE_OFF = "cache-off"
    OTHER_STORE = "other-store"
    FOREIGN_STORE = "other-users-store"
    OPTIONS = "other-options"
    ON_CPU = "ran-on-cpu"  #: and was meant for a GPU, or there is one
    IDLE_GPU = "idle-gpu"  #: it asks for several GPUs, and not so many were seen to work
    NOT_FASTER = "not-faster-than-cpu"  #: the GPU, where both were timed
    MORE = "more-than-its-command"  #: was compiled in its store since it was proven
    SLOWER = "slower"
    SHIFTED = "slower-since-change"  #: a change on the host, which its sentence names
    HIDDEN = "cannot-be-seen"  #: its application runs, but not where we may look


class Explanation(Struct, frozen=True):
    """One reason, in a sentence, and the command that mends it (empty: nothing to be done, or nothing known)."""

    cause: Cause
    message: str
    command: str = ""


class CompiledShare(Struct, frozen=True):
    """What a model's runs compiled of one library, as one kind of cache keeps it."""

    kind: KindName
    library: str  #: empty: of none that is known
    entries: int
    kernels: int
    seconds: float | None  #: that compiling took, where that was measured
    share: float | None  #: of what was measured in this kind of cache, 0 to 1


class Diagnosis(Struct, frozen=True):
    """Why a model is as it is: the first finding is what to mend first; none is as it should be."""

    model: ModelName
    warmth: Warmth
    explanations: tuple[Explanation, ...] = ()
    runtimes: tuple[RuntimeCheck, ...] = ()  #: those that its program finds, or was seen to load
    compiled: tuple[CompiledShare, ...] = ()  #: which libraries its runs compiled, by kind of cache, the dearest first
    compared: tuple[ComparedVariant, ...] = ()  #: with the processor, where that was asked for
    loaded: bool = False  #: whether a run showed that it loads these runtimes


class Application(Struct, frozen=True):
    """A live process that serves a model, and where it caches."""

    unit: str
    pid: int
    uid: int
    visible: bool  #: False: its variables may not be read
    enabled: bool  #: the cache is on
    store: Path | None
    kept: Store | None = None  #: where the model was warmed, of which this is said; None: in its own store


class Figure(StrEnum):
    """What is measured of a pass."""

    COLD = "cold-seconds"
    WARM = "warm-seconds"
    STEADY = "steady-seconds"
    CPU = "cpu-seconds"
    MEMORY = "peak-rss"
    DEVICE_MEMORY = "device-memory"


class Baseline(Struct, frozen=True):
    """One figure of one variant of a model in one environment, over its last runs; seconds or bytes."""

    variant: str  #: `Variant.label`
    host: str  #: `Host.signature`
    figure: Figure
    newest: float
    at: AwareDatetime  #: of the newest
    median: float | None  #: of those before the newest; None while there is none
    deviation: float | None  #: median absolute deviation of the same
    samples: int  #: the newest included
    worse: bool  #: the newest is further above the median than chance explains
