"""How much room the caches take, by driver and by model, and what of it an eviction would free."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from xpucached.catalog.preselect import store_subtotals
from xpucached.domain.disk import DiskLine, DiskUse
from xpucached.processes.cancellation import ended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xpucached.domain.names import ModelName
    from xpucached.domain.stores import ModelCache
    from xpucached.domain.targets import Target
    from xpucached.service.context import Context
    from xpucached.service.evict import Evictor
    from xpucached.service.model_caches import ModelCaches
    from xpucached.service.prewarm import Prewarmer
    from xpucached.service.trash import TrashKeeper

_UNKNOWN: Final = "unknown"


class DiskReporter:
    """Sums up."""

    def __init__(
        self, context: Context, prewarmer: Prewarmer, evictor: Evictor, trash: TrashKeeper, caches: ModelCaches
    ) -> None:
        self._context = context
        self._caches = caches
        self._prewarmer = prewarmer
        self._evictor = evictor
        self._trash = trash
        self._planning = asyncio.Lock()
        """Held as long as there is a plan: anybody who may look may ask for it, often at once, and hang up."""

    async def usage(self) -> DiskUse:
        """Return what the stores hold, and what of it could go by the policy."""
        caches = await self._caches.all()
        async with self._planning:
            return await ended(asyncio.ensure_future(self._usage(caches)))

    async def _usage(self, caches: Sequence[ModelCache]) -> DiskUse:
        subtotals = await self._context.read(store_subtotals)
        plan = await self._evictor.plan(caches=caches)
        models = await self._prewarmer.statuses()
        spaces = await asyncio.to_thread(self._trash.disk_space, held=False)
        goes: Counter[Target | None] = Counter()
        of_model: Counter[ModelName] = Counter()
        for one in plan.evict:
            goes[one.entry.entry.environment] += one.entry.entry.allocated
            of_model.update(dict.fromkeys(one.entry.models, one.entry.entry.allocated))
        for one_cache in plan.caches:
            of_model[one_cache.cache.model] += one_cache.cache.allocated
        entries: Counter[tuple[str, str]] = Counter()
        allocated: Counter[tuple[str, str]] = Counter()
        freed: Counter[tuple[str, str]] = Counter()
        here = {_named(one) for one in self._context.present.offered}
        for subtotal in subtotals:
            name = _named(subtotal.environment)
            entries[name] += subtotal.entries
            allocated[name] += subtotal.allocated
        for target, size in goes.items():
            freed[_named(target)] += size
        drivers = tuple(
            DiskLine(driver, device, entries[driver, device], size, freed[driver, device], (driver, device) in here)
            for (driver, device), size in sorted(allocated.items(), key=lambda one: (-one[1], one[0]))
        )
        further: Counter[ModelName] = Counter()
        for cache in caches:
            further[cache.model] += cache.allocated
        lines = [
            DiskLine(name, "", one.entries, one.allocated, of_model[name], further=further.pop(name, 0))
            for one in models
            for name in (one.model.name,)
        ]
        # What is left is of models that are gone.
        lines += [
            DiskLine(name, "", 0, 0, of_model[name], present=False, further=size) for name, size in further.items()
        ]
        return DiskUse(
            drivers,
            tuple(sorted(lines, key=lambda one: (-one.allocated - one.further, one.name))),
            sum(one.entries for one in drivers),
            sum(one.allocated for one in drivers),
            plan.frees,
            sum(one.trash for one in spaces),
            sum({one.path: one.allocated for one in caches}.values()),
        )


def _named(target: Target | None) -> tuple[str, str]:
    return (target.toolchain, target.device) if target is not None else (_UNKNOWN, _UNKNOWN)
