"""How the daemon and its host stand.  Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct, field

from xpucached.domain.activity import Watching
from xpucached.domain.ahead import Ahead, AheadState
from xpucached.domain.host import DriverChange, Host, Problem
from xpucached.domain.jobs import UNDER_WAY, WARMING, Job
from xpucached.domain.models import ModelStatus, Warmth
from xpucached.domain.names import AwareDatetime, ModelName
from xpucached.domain.pushes import PushOutcome
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
    pushed: PushOutcome | None = None  #: what became of the last push of what was compiled here


MOST_NAMES: Final = 1000
"""Models, and problems, that a summary names at most; it counts all."""


class StatusSummary(Struct, frozen=True):
    """What the host's daemon shows of a user's: of a size that does not grow with what each model is."""

    verdict: Verdict
    sentence: str
    entries: int
    allocated: int
    warm: int
    cold: int
    models: tuple[ModelName, ...]
    failed: tuple[ModelName, ...]  #: models that could not be warmed
    problems: tuple[str, ...]  #: codes
    looked: AwareDatetime | None  #: as in `Status`
    look_due: bool
    busy: bool
    working: bool  #: a replay or prewarm is under way
    jobs: int  #: that run or wait
    ahead: tuple[tuple[AheadState, str], ...] = ()  #: drivers that are not installed yet: how far it is, and in words

    @classmethod
    def of(cls, status: Status) -> StatusSummary:
        """Return what is told of a status."""
        models = status.models
        return cls(
            status.verdict,
            status.sentence,
            status.entries,
            status.allocated,
            sum(one.warmth is Warmth.WARM for one in models),
            sum(one.warmth not in {Warmth.WARM, Warmth.UNCACHED} for one in models),
            tuple(one.name for one in models[:MOST_NAMES]),
            tuple(one.name for one in models if one.warmth is Warmth.FAILED)[:MOST_NAMES],
            tuple(dict.fromkeys(one.code for one in status.problems))[:MOST_NAMES],
            status.looked,
            status.look_due,
            status.busy,
            any(one.kind in WARMING and one.state in UNDER_WAY for one in status.jobs),
            len(status.jobs),
            tuple((one.state, one.words) for one in status.ahead),
        )
