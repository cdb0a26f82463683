"""Eviction: what may go by the policy, decided from what the catalog knows."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

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
