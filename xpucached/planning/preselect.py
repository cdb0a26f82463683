"""Decide: which entries a plan of what goes must look at one by one.  Pure.

A plan takes everything from the oldest defect to the last byte over a limit, and of a million entries nearly all stay.
So first the sums of the catalog are looked at: they tell which drivers, ages and stores can be concerned at all.  What
the sieve lets through may still stay; what it holds back could not go.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from msgspec.structs import replace

from xpucached.domain.plans import EvictReason, Preselection
from xpucached.domain.stores import EntryId
from xpucached.planning.eviction import by_driver
from xpucached.planning.ranking import effective, holds, limited, pools

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from xpucached.domain.host import Host, Presence
    from xpucached.domain.models import Model
    from xpucached.domain.names import ModelName
    from xpucached.domain.plans import DiskSpace, Policy, Subtotal
    from xpucached.domain.stores import Store
    from xpucached.domain.targets import Lineage, Target


def plan_preselection(
    subtotals: Sequence[Subtotal],
    host: Host,
    presence: Iterable[Presence],
    models: Mapping[ModelName, Model],
    policy: Policy,
    now: datetime,
    *,
    reasons: frozenset[EvictReason] | None = None,
    asked: bool = True,
    disk_space: Iterable[DiskSpace] = (),
    predicted: frozenset[ModelName] = frozenset(),
) -> Preselection:
    """Say what `plan_eviction`, which takes the same, has to look at; ``subtotals`` are what there is, all together."""
    considered = frozenset(EvictReason) if reasons is None else reasons
    presence = tuple(presence)
    of_stores = {room.store: room for room in disk_space}
    stores = {one.store for one in subtotals}
    policies = {store: effective(policy, of_stores.get(store), store) for store in stores}
    environments = {one.environment for one in subtotals if one.environment is not None}
    looked: frozenset[Target] = frozenset()
    never: frozenset[Target] = frozenset()
    if EvictReason.SUPERSEDED in considered:
        kept = min((one.keep_driver_generations for one in policies.values()), default=0)
        looked = _earlier(environments, host, presence, kept)
    if EvictReason.NEVER_CAME in considered and policy.ahead_keep is not None:
        once = {one.environment for one in presence if one.last is not None}
        never = frozenset(environments - once - set(host.offered))
    if EvictReason.GONE in considered and host.offered:
        lineages, kinds = ({one.lineage for one in host.offered}, {one.kind for one in host.offered})
        once = {one.environment for one in presence if one.last is not None}
        looked |= {one for one in environments if one.kind in kinds and one.lineage not in lineages and one in once}
    preselection = Preselection(
        now,
        now - timedelta(seconds=max((one.grace for one in policies.values()), default=0.0)),
        defective=EvictReason.DEFECTIVE in considered,
        environments=looked,
        never_here=never,
        unused=_unused(policies, of_stores, now) if EvictReason.UNUSED in considered else {},
        present=frozenset(host.offered),
        upheld=not asked,
        pinned=frozenset(name for name, model in models.items() if model.pinned),
        predicted=predicted,
        held=frozenset(EntryId(store, key) for store, room in of_stores.items() for key in room.held),
    )
    here = {one.lineage for one in host.offered}
    traced = frozenset(one for one in environments if one.lineage in here and one not in preselection.present)
    if looked:
        preselection = replace(preselection, traced=traced)
    if considered & {EvictReason.BUDGET, EvictReason.SPACE} and limited(policy):
        over = pools(holds(subtotals), policies, policy, of_stores, {})
        worst = tuple((pool.stores, pool.excess) for pool in over if pool.reason in considered)
        preselection = replace(preselection, worst=worst)
    return preselection


def _earlier(environments: Iterable[Target], host: Host, presence: Iterable[Presence], kept: int) -> frozenset[Target]:
    """Return the absent generations of present devices that can be beyond those that are kept, whatever else goes."""
    lineages: defaultdict[Lineage, list[Target]] = defaultdict(list)
    offered = frozenset(host.offered)
    here = {one.lineage for one in offered}
    for one in environments:
        if one.lineage in here and one not in offered:
            lineages[one.lineage].append(one)
    known = {one.environment: one for one in presence}
    found: set[Target] = set()
    for lineage, absent in lineages.items():
        present = [one for one in offered if one.lineage == lineage]
        stay: set[Target] = set()
        for some, _ in by_driver(absent, present, host, known):
            times = {one: last for one in some if one in known and (last := known[one].last) is not None}
            if len(some) <= kept:
                stay.update(some)
            elif len(times) == len(some) == len(set(times.values())):
                stay.update(sorted(some, key=lambda one: times[one], reverse=True)[:kept])
            # Else their newest entries say which came last, and any of them may go.
        found.update(one for one in absent if one not in stay)
    return frozenset(found)


def _unused(
    policies: Mapping[Store, Policy], disk_space: Mapping[Store, DiskSpace], now: datetime
) -> dict[Store, tuple[datetime, bool]]:
    found: dict[Store, tuple[datetime, bool]] = {}
    for store, policy in policies.items():
        if policy.max_unused is None:
            continue
        room = disk_space.get(store)
        seconds = min(policy.max_unused, (now - datetime.min.replace(tzinfo=now.tzinfo)).total_seconds())
        found[store] = (now - timedelta(seconds=seconds), room is None or room.keeps_access_times)
    return found
