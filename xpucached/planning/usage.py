"""Decide: what is known of what compiling an entry takes, and what an eviction would lose.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached.domain.names import EntryRef
from xpucached.domain.usage import Cost, CostlyEntry, CostSource, Evictable, EvictableReason

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from xpucached.domain.plans import Evict, EvictionPlan, EvictReason, IndexedEntry

_LONGEST_NAME: Final = 160


def estimated(one: IndexedEntry, rate: float) -> IndexedEntry:
    """Return an entry with an estimate of what compiling it takes, if that was not measured."""
    size = one.entry.image_size or one.entry.allocated
    return one if one.cost is not None or size <= 0 else replace(one, estimated=size * rate)


def _cost(one: IndexedEntry, rate: float) -> Cost:
    """Return what compiling an entry takes, by ``rate`` seconds a byte where it was not measured."""
    one = estimated(one, rate)
    seconds = one.estimated if one.cost is None else one.cost
    return Cost(seconds or 0.0, CostSource.of(one) or CostSource.ESTIMATE)


def costly(one: IndexedEntry, rate: float) -> CostlyEntry:
    """Return an entry as one of the dearest."""
    name = one.entry.kernels[0].display if one.entry.kernels else ""
    target = one.entry.environment
    return CostlyEntry(
        EntryRef(one.entry.id.ref),
        name[:_LONGEST_NAME],
        target.toolchain if target is not None else "",
        _cost(one, rate),
        one.entry.allocated,
        one.models,
    )


def evictable(plan: EvictionPlan, rate: float, now: datetime) -> Evictable:
    """Return what a plan takes, reason by reason, those that free most first."""
    reasons: dict[EvictReason, list[Evict]] = {}
    for one in plan.evict:
        reasons.setdefault(one.reason, []).append(one)
    found = [_reason(reason, some, rate) for reason, some in reasons.items()]
    return Evictable(
        now, plan.id, len(plan.evict), plan.frees, tuple(sorted(found, key=lambda one: (-one.allocated, one.reason)))
    )


def _reason(reason: EvictReason, some: Iterable[Evict], rate: float) -> EvictableReason:
    entries = [one.entry for one in some]
    costs = [_cost(one, rate) for one in entries]
    return EvictableReason(
        reason,
        len(entries),
        sum(one.entry.allocated for one in entries),
        sum(one.seconds for one in costs),
        sum(one.seconds for one in costs if one.source is not CostSource.ESTIMATE),
    )
