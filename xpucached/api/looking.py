"""What one may ask a user's daemon to look at it: what is there, what it costs, and what was over time."""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from typing import Final

from xpucached.api.endpoints import Request, Right, endpoint, need
from xpucached.domain.disk import DiskUse
from xpucached.domain.jobs import Event
from xpucached.domain.names import AwareDatetime, ModelName
from xpucached.domain.overview import Overview
from xpucached.domain.shifts import Shift
from xpucached.domain.usage import Day, Evictable, Usage, WarmthChange

MAX_PAGE: Final = 1000
MAX_DEAR: Final = 100
_MAX_SEEN: Final = 1000
_MAX_EVENT_WAIT: Final = 60.0


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


@endpoint("GET", "/v1/events")
class ListEvents(Request[tuple[Event, ...]], frozen=True, kw_only=True):
    """Ask for events after ``since``; with ``follow`` as an endless stream, one JSON object per line.

    With ``wait``, where there is none yet, as soon as there is one, or after so many seconds (at most 60).
    """

    since: int = 0
    follow: bool = False
    wait: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no event can have, and to wait for ever."""
        need(self.since >= 0, "since: expected the number of an event, 0 or more")
        need(0 <= self.wait <= _MAX_EVENT_WAIT, f"wait: expected 0 to {_MAX_EVENT_WAIT:.0f} seconds")
        need(not (self.wait and self.follow), "wait: expected not to be given with follow")


@endpoint("GET", "/v1/usage")
class GetUsage(Request[Usage], frozen=True, kw_only=True):
    """Ask who uses which bytes, and what compiling takes; with ``top`` (20, at most 100) of the dearest entries."""

    top: int = 20

    def __post_init__(self) -> None:
        """Refuse more than is remembered."""
        need(0 <= self.top <= MAX_DEAR, f"top: expected 0 to {MAX_DEAR}")


@endpoint("GET", "/v1/days")
class ListDays(Request[tuple[Day, ...]], frozen=True, kw_only=True):
    """Ask what happened each day, the oldest first, from one day (such as 2026-11-22, in UTC) to another."""

    since: str = ""
    until: str = "9999-12-31"

    def __post_init__(self) -> None:
        """Refuse what is no day."""
        for name, text in (("since", self.since), ("until", self.until)):
            need(not text or _is_day(text), f"{name}: expected a day, such as 2026-11-22")


@endpoint("GET", "/v1/warmth")
class ListWarmth(Request[tuple[WarmthChange, ...]], frozen=True, kw_only=True):
    """Ask when models came to stand otherwise, and why: the newest changes, the oldest of them first."""

    since: AwareDatetime | None = None
    model: ModelName | None = None
    limit: int = 200

    def __post_init__(self) -> None:
        """Refuse what would be unbounded."""
        need(1 <= self.limit <= MAX_PAGE, f"limit: expected 1 to {MAX_PAGE}")


@endpoint("GET", "/v1/disk")
class GetDiskUse(Request[DiskUse], frozen=True, kw_only=True):
    """Ask how much room entries take, by driver and by model, and what of it could go."""


@endpoint("GET", "/v1/evictable")
class GetEvictable(Request[Evictable], frozen=True, kw_only=True):
    """Ask what eviction would take now, reason by reason; see `POST /v1/evict` with ``dry_run`` for each entry."""


@endpoint("GET", "/v1/overview")
class GetOverview(Request[Overview], frozen=True, kw_only=True):
    """Ask for all that there is to look at, in one document."""


class MetricsFormat(StrEnum):
    """How figures are written for Prometheus."""

    TEXT = "text"
    OPENMETRICS = "openmetrics"


@endpoint("GET", "/v1/metrics")
class GetMetrics(Request[str], frozen=True, kw_only=True):
    """Ask for figures as Prometheus reads them: bare, unless the caller accepts nothing but JSON."""

    format: MetricsFormat = MetricsFormat.TEXT


@endpoint("POST", "/v1/shifts/seen", right=Right.CHANGE)
class SeeShifts(Request[tuple[Shift, ...]], frozen=True, kw_only=True):
    """Say that somebody has seen what became slower or faster of these models, or of all: `status` shows it no more."""

    models: tuple[ModelName, ...] = ()

    def __post_init__(self) -> None:
        """Refuse more names than anybody types."""
        need(len(self.models) <= _MAX_SEEN, f"models: expected at most {_MAX_SEEN}")
