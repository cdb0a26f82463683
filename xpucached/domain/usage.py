"""What the caches hold, what compiling it took, and what was avoided: by model, by driver, and by day.  Pure."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from xpucached.domain.models import Warmth
from xpucached.domain.names import AwareDatetime, EntryRef, KindName, ModelName
from xpucached.domain.plans import EvictReason, IndexedEntry
from xpucached.domain.targets import OUR_WORK


class CostSource(StrEnum):
    """How it is known what compiling an entry takes."""

    REBUILD = "rebuild"  #: measured: we compiled this entry alone
    RUN = "run"  #: measured with others: its share, by size, of what its model's run compiled
    ESTIMATE = "estimate"  #: not measured: its size times what a byte of others took

    @classmethod
    def of(cls, one: IndexedEntry) -> CostSource | None:
        """Return how it is known what compiling an entry takes; None if it is not."""
        if one.cost is not None:
            return cls.REBUILD if one.origin in OUR_WORK else cls.RUN
        return None if one.estimated is None else cls.ESTIMATE


class Cost(Struct, frozen=True):
    """What compiling an entry takes, and how that is known."""

    seconds: float
    source: CostSource


class Amount(Struct, frozen=True):
    """Some entries together."""

    entries: int = 0
    allocated: int = 0
    seconds: float = 0.0  #: that compiling them takes: what was measured, and what is estimated
    measured: float = 0.0  #: of these, those that were measured


class KindUsage(Amount, frozen=True, kw_only=True):
    """What one kind of cache holds."""

    kind: KindName


class DriverUsage(Amount, frozen=True, kw_only=True):
    """What is there for one driver."""

    driver: str
    present: bool  #: whether this host offers it now


class DeviceUsage(Amount, frozen=True, kw_only=True):
    """What is there for one device."""

    device: str
    present: bool  #: whether this host offers it now


class ModelUsage(Struct, frozen=True):
    """What a model has for what is here now."""

    model: ModelName
    own: Amount  #: what no other model uses: freed if it goes
    shared: Amount  #: what others use, too


class CostlyEntry(Struct, frozen=True):
    """One of the entries that take longest to compile."""

    ref: EntryRef
    kernel: str
    driver: str
    cost: Cost
    allocated: int
    models: tuple[ModelName, ...]


class Usage(Struct, frozen=True):
    """Who uses which bytes, and what compiling them takes."""

    at: AwareDatetime
    rate: float  #: seconds that a byte is estimated to take
    total: Amount
    kinds: tuple[KindUsage, ...]
    drivers: tuple[DriverUsage, ...]
    devices: tuple[DeviceUsage, ...]
    models: tuple[ModelUsage, ...]
    shared: Amount  #: what several models use, counted once
    nobody: Amount  #: for what is here now, and used by no registered model
    dearest: tuple[CostlyEntry, ...]


class Day(Struct, frozen=True):
    """What happened on one day, in UTC.  None is what nobody watched, or what no look has seen."""

    day: str  #: such as 2026-11-22
    replayed: int = 0  #: entries that replay compiled
    replay_seconds: float = 0.0  #: that compilers took for these
    spared_seconds: float = 0.0  #: of these, for entries that models use: what their programs need not spend
    prewarmed: int = 0  #: entries that models' runs compiled
    prewarm_seconds: float = 0.0
    warmed: int = 0  #: runs that warmed their model
    failed: int = 0  #: runs that did not
    evicted: int = 0
    freed: int = 0  #: bytes that eviction freed
    changes: int = 0  #: of drivers or devices
    compiled: int | None = None  #: entries that programs were seen to compile
    loads: int | None = None  #: that programs were seen to do
    avoided_seconds: float | None = None  #: that compiling takes what was loaded
    estimated_seconds: float | None = None  #: of these, what is estimated
    entries: int | None = None  #: when it was last looked at on that day
    allocated: int | None = None


class WarmthChange(Struct, frozen=True):
    """When a model came to stand otherwise, and why."""

    id: int
    at: AwareDatetime
    model: ModelName
    before: Warmth | None  #: None: it was never seen before
    now: Warmth
    why: str


class UpgradeCost(Struct, frozen=True):
    """What came of a change of the driver, up to the next one."""

    at: AwareDatetime
    appeared: tuple[str, ...]  #: drivers
    vanished: tuple[str, ...]
    rebuilt: int  #: entries that replay compiled
    replay_seconds: float  #: that compilers took for these
    spared_seconds: float  #: that programs need not spend: the same, of what models use
    runs: int  #: of models, because of the change
    run_seconds: float  #: that these took, whatever of it was compiling
    cooled: int  #: models that were warm before it and then were not
    warm_at: AwareDatetime | None  #: when all that had been warm were so again; None: not yet, or none had cooled


class Saved(Struct, frozen=True):
    """Seconds of compiling that programs did not have to wait for.

    Avoided is what loads were seen to avoid, None where nobody watches them; spared is what replay compiled of what
    models use.  Both are lower bounds, of different things: their sum means nothing.
    """

    avoided_today: float | None
    avoided_month: float | None  #: in the last 30 days
    estimated: bool  #: whether a part of what was avoided is estimated
    spared_month: float
    upgraded: AwareDatetime | None = None  #: when the driver last became another
    spared_upgrade: float = 0.0  #: since then


class EvictableReason(Struct, frozen=True):
    """What would go for one reason."""

    reason: EvictReason
    entries: int
    allocated: int
    seconds: float  #: that compiling it again would take
    measured: float  #: of these, those that were measured


class Evictable(Struct, frozen=True):
    """What eviction would take now."""

    at: AwareDatetime
    plan_id: str  #: as `evict --dry-run` shows it
    entries: int
    frees: int
    reasons: tuple[EvictableReason, ...]
