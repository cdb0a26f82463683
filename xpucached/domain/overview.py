"""All that there is to look at, in one document.  Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from xpucached.domain.models import Warmth
from xpucached.domain.names import AwareDatetime, ModelName
from xpucached.domain.status import Verdict
from xpucached.domain.usage import Day, Evictable, Saved, UpgradeCost, Usage, WarmthChange


class OverviewModel(Struct, frozen=True):
    """How a model stands."""

    model: ModelName
    warmth: Warmth
    why: str
    entries: int
    allocated: int
    since: AwareDatetime | None  #: when it came to stand so; None: before anybody looked


class UnderWay(Struct, frozen=True):
    """Something that goes on now."""

    what: str
    detail: str
    done: int = 0
    total: int = 0
    since: AwareDatetime | None = None


class Overview(Struct, frozen=True):
    """All that there is to look at, in one document: for the page, the report and `top`."""

    at: AwareDatetime
    version: str
    host: str  #: its name
    verdict: Verdict
    sentence: str
    since: AwareDatetime | None  #: when the last model came to stand as it does; None: before anybody looked
    started: AwareDatetime
    watched: bool  #: whether it is seen what programs load
    saved: Saved
    usage: Usage
    evictable: Evictable
    models: tuple[OverviewModel, ...]
    warmth: tuple[WarmthChange, ...]
    days: tuple[Day, ...]
    upgrades: tuple[UpgradeCost, ...]
    under_way: tuple[UnderWay, ...]
    defective: int
    problems: Mapping[str, int]  #: by their codes
