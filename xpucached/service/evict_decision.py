"""Eviction: what may go by the policy, decided from what the catalog knows."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from xpucached.catalog.preselect import preselect_entries, store_subtotals
from xpucached.catalog.targets import target_presence
from xpucached.planning.eviction import plan_eviction
from xpucached.planning.preselect import plan_preselection
from xpucached.planning.ranking import ABSENT, HALF, RATE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from xpucached.catalog import Catalog
    from xpucached.domain.host import Host
    from xpucached.domain.models import Model
    from xpucached.domain.names import ModelName
    from xpucached.domain.plans import DiskSpace, EvictionPlan, EvictReason, Policy
    from xpucached.domain.stores import Store


def decided(
    catalog: Catalog,
    host: Host,
    warm: frozenset[ModelName],
    models: Mapping[ModelName, Model],
    policy: Policy,
    now: datetime,
    *,
    reasons: frozenset[EvictReason] | None = None,
    asked: bool = True,
    disk_space: Sequence[DiskSpace] = (),
    predicted: frozenset[ModelName] = frozenset(),
) -> EvictionPlan:
    """Decide by `planning` what may go; entries have no kernels in the plan, which would never be shown."""
    with _uncollected():
        presence = catalog.read(target_presence)
        preselection = plan_preselection(
            catalog.read(store_subtotals),
            host,
            presence,
            models,
            policy,
            now,
            reasons=reasons,
            asked=asked,
            disk_space=disk_space,
            predicted=predicted,
        )
        some, others, rate = catalog.read(preselect_entries, preselection, RATE, HALF, ABSENT)
        return plan_eviction(
            some,
            host,
            presence,
            warm,
            models,
            policy,
            now,
            reasons=reasons,
            asked=asked,
            disk_space=disk_space,
            others=others,
            rate=rate,
            predicted=predicted,
        )


def roomier(disk_space: Sequence[DiskSpace], place: Store, freed: int) -> list[DiskSpace]:
    """Return the room there is once so many bytes are free where a store lies."""
    device = next((one.device for one in disk_space if one.store == place), None)
    return [
        replace(one, free=one.free + freed) if one.device == device and one.free is not None else one
        for one in disk_space
    ]


def room_after(plan: EvictionPlan, disk_space: Sequence[DiskSpace], place: Store) -> DiskSpace | None:
    """Return the room there is where a store lies once the entries of a plan are gone; None if it was not measured."""
    devices = {one.store: one.device for one in disk_space}
    here = devices.get(place)
    freed = (one.entry.entry for one in plan.evict)
    more = sum(one.allocated for one in freed if devices.get(one.id.store) == here)
    # The trash of all stores there goes before anything else.
    trash = sum(one.trash for one in disk_space if one.device == here)
    return next((replace(one, trash=trash) for one in roomier(disk_space, place, more) if one.store == place), None)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Let nothing be looked through for garbage meanwhile: a plan only builds, and that takes a fifth of its time."""
    # Of several plans at once only the one that stopped it starts it again; then the others take longer, no more.
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
