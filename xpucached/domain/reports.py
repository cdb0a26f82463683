"""What came of a job: one report for each kind of work.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from xpucached.domain.activity import Watching
from xpucached.domain.host import Problem
from xpucached.domain.models import Run
from xpucached.domain.names import EntryRef, ModelName, TrashRef
from xpucached.domain.plans import Deferred, EvictionPlan, NoRecipe, ReplayPlan
from xpucached.domain.stores import ModelCache
from xpucached.domain.trash import UNTRUSTED, Comparison, Finding, Restored


class ScanReport(Struct, frozen=True, tag_field="kind", tag="scan"):
    """What a look at all stores changed."""

    stores: int
    added: int
    changed: int
    vanished: int
    entries: int
    seconds: float
    unread: int = 0  #: directories and entries of stores that could be looked at otherwise


class PrewarmReport(Struct, frozen=True, tag_field="kind", tag="prewarm"):
    """What prewarming really did."""

    runs: tuple[Run, ...] = ()
    covered: tuple[ModelName, ...] = ()
    deferred: tuple[Deferred, ...] = ()


class EvictionReport(Struct, frozen=True, tag_field="kind", tag="evict"):
    """What was really evicted."""

    plan: EvictionPlan
    dry_run: bool
    removed: tuple[EntryRef, ...] = ()
    busy: tuple[EntryRef, ...] = ()
    freed: int = 0  #: bytes that the stores hold less, those in the trash included
    trashed: int = 0  #: bytes of these that are in the trash still
    plan_id: str = ""  #: what `evict --plan` takes
    caches: tuple[ModelCache, ...] = ()  #: directories of models that went, and those that had to stay


class ReplayReport(Struct, frozen=True, tag_field="kind", tag="replay"):
    """What was really rebuilt."""

    plan: ReplayPlan
    dry_run: bool
    rebuilt: int = 0
    present: int = 0  #: a program had written them meanwhile
    failed: int = 0
    skipped: Mapping[NoRecipe, int] = field(default_factory=dict)
    seconds: float = 0.0
    compile_seconds: float = 0.0  #: of all compilers together: what programs need not spend
    share: float | None = None  #: of what is in use, 0 to 1: what is there now, or after a dry run would be
    confirmed: str = ""  #: how we know that programs will look for what was rebuilt; empty if nothing was
    into: Path | None = None  #: the store that the entries went to, if not where they came from
    failures: tuple[str, ...] = ()  #: the first few, in the compilers' own words


class TrashReport(Struct, frozen=True, tag_field="kind", tag="trash"):
    """What was given back, and what is gone for good."""

    restored: tuple[Restored, ...] = ()
    dropped: tuple[TrashRef, ...] = ()
    freed: int = 0


class VerifyReport(Struct, frozen=True, tag_field="kind", tag="verify"):
    """What a thorough look found, and what was mended."""

    fix: bool
    stores: int
    entries: int
    findings: tuple[Finding, ...] = ()
    seconds: float = 0.0
    watching: Watching | None = None  #: how changes are noticed, where it was asked what is wrong here
    problems: tuple[Problem, ...] = ()  #: what the status says is wrong, when the look had ended
    deep: Comparison | None = None  #: where it was asked for
    unread: int = 0  #: stores that could not be looked at: whether anything is wrong there is not known
    unread_parts: int = 0  #: the same of directories and entries in the others
    damaged: int = 0  #: entries known to make programs hang, fail or compile again, where entries were not looked at

    @property
    def untrusted(self) -> tuple[Problem, ...]:
        """The problems with what came from elsewhere."""
        return tuple(one for one in self.problems if one.code in UNTRUSTED)


Report = ScanReport | PrewarmReport | EvictionReport | ReplayReport | TrashReport | VerifyReport
"""Each has a tag of its own, by which it is read back; `render/jobs.py` writes it for people."""
