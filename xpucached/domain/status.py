"""How the daemon and its host stand.  Pure."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field

from xpucached.domain.activity import Watching
from xpucached.domain.ahead import Ahead
from xpucached.domain.host import DriverChange, Host, Problem
from xpucached.domain.jobs import Job
from xpucached.domain.models import ModelStatus
from xpucached.domain.names import AwareDatetime
from xpucached.domain.shifts import Shift
from xpucached.domain.stores import StoreStatus
from xpucached.domain.usage import Saved


class Verdict(StrEnum):
    """The one sentence of `status`, as a word."""

    WARM = "warm"
    COLD = "cold"
    WAITING = "waiting"  #: models are warmed as soon as this is the time for it
    WARMING = "warming"
    UNKNOWN = "unknown"  #: what a model was proven with cannot be read now, and the others are warm
    FAILED = "failed"
    UNCACHED = "uncached"  #: no model uses a cache that we know
    NO_MODELS = "no-models"
    NO_DEVICE = "no-device"
    STARTING = "starting"


class Status(Struct, frozen=True):
    """How this host stands."""

    version: str
    verdict: Verdict
    sentence: str
    pid: int
    started: AwareDatetime
    host: Host | None
    problems: tuple[Problem, ...]
    entries: int
    defective: int
    allocated: int
    stale: int  #: entries for environments that this host does not offer now
    stores: tuple[StoreStatus, ...]
    models: tuple[ModelStatus, ...]
    jobs: tuple[Job, ...]
    changes: tuple[DriverChange, ...]
    watching: Watching = field(default_factory=Watching)
    looked: AwareDatetime | None = None  #: when the last whole look began in which nothing failed
    look_every: float = 0.0  #: seconds after which it is made again
    look_due: bool = False  #: the driver may have changed, and no look at it has ended well since
    busy: bool = False  #: something goes on, or has yet to begin
    saved: Saved | None = None
    ahead: tuple[Ahead, ...] = ()  #: drivers that lie here and are not installed yet
    ahead_refused: tuple[str, ...] = ()  #: why some of what lies there is not looked at
    shifts: tuple[Shift, ...] = ()  #: what became slower or faster with a change, and nobody has seen yet
