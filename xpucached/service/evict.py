"""Eviction: what may go by the policy, removed by the runtimes' own rules, batch by batch."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached.catalog import days
from xpucached.catalog.coverage import model_coverage
from xpucached.catalog.dependencies import noted_runs
from xpucached.catalog.entries import find_entry, forget_entries
from xpucached.catalog.figures import catalog_summary
from xpucached.catalog.intents import fulfil, intend
from xpucached.catalog.models import models_by_name
from xpucached.catalog.preselect import store_subtotals
from xpucached.domain.models import Warmth
from xpucached.domain.names import group
from xpucached.domain.plans import CacheReason, EvictionPlan, EvictReason
from xpucached.domain.reports import EvictionReport
from xpucached.domain.trash import TrashLabel
from xpucached.errors import CatalogError, Conflict, RequestError
from xpucached.kinds import table
from xpucached.planning.eviction import plan_named
from xpucached.planning.model_caches import plan_caches
from xpucached.planning.prewarm import rests_on_successors
from xpucached.planning.ranking import limited
from xpucached.planning.trash import SCARCE
from xpucached.processes.cancellation import to_its_end, until_cancelled
from xpucached.service.evict_decision import decided, room_after, roomier
from xpucached.service.owners import answering
from xpucached.service.revoking import revoked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from xpucached.api import requests
    from xpucached.domain.jobs import Job
    from xpucached.domain.plans import DiskSpace, EvictCache, IndexedEntry
    from xpucached.domain.stores import EntryId, ModelCache, Store
    from xpucached.service.context import Context
    from xpucached.service.jobs import Handle
    from xpucached.service.model_caches import ModelCaches
    from xpucached.service.prewarm import Prewarmer
    from xpucached.service.scan import StoreScanner
    from xpucached.service.trash import TrashKeeper
    from xpucached.service.verify import Verifier

log = logging.getLogger(__name__)

_BATCH: Final = 256
"""So many entries are removed between two moments at which others may look."""


_PLANS: Final = 64
"""So many plans that were shown are remembered, with what was asked."""


_FRESH: Final = 30.0
"""Seconds for which what directories of models hold, and when they were last used, counts as it was measured."""

_LIMITS: Final = frozenset({EvictReason.BUDGET, EvictReason.SPACE})
"""Reasons for which directories of models go as well."""


class Evictor:
    """Removes what the policy lets go."""

    def __init__(
        self,
        context: Context,
        scanner: StoreScanner,
        prewarmer: Prewarmer,
        verifier: Verifier,
        trash: TrashKeeper,
        caches: ModelCaches,
    ) -> None:
        self._context = context
        self._scanner = scanner
        self._prewarmer = prewarmer
        self._verifier = verifier
        self._trash = trash
        self._caches = caches
        self._shown: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}

    async def start(self, request: requests.EvictEntries) -> Job:
        """Evict what the policy lets go; see `requests.EvictEntries`."""
        for reason in request.reasons:
            if reason not in set(EvictReason):
                raise RequestError(f"reasons: unknown reason {reason!r}", hint=f"expected: {', '.join(EvictReason)}")
        if request.refs:
            _, kept = await self.named(request.refs)
            for entry, why in kept.items():
                raise Conflict(f"{entry.ref} stays: {why}", hint=f"see: xpucachectl show {entry.ref}")
        work = self.work(request.refs, request.reasons, dry_run=request.dry_run, plan_id=request.plan)
        return self._context.jobs.start("evict", self._verifier.before(work, lambda: self.damaged(request)))

    async def caches(self) -> tuple[ModelCache, ...]:
        """Measure directories of models; see `ModelCaches.all`."""
        return await self._caches.all()

    async def plan(
        self,
        refs: Sequence[str] = (),
        reasons: Sequence[str] = (),
        *,
        asked: bool = True,
        disk_space: Sequence[DiskSpace] | None = None,
        caches: Sequence[ModelCache] | None = None,
    ) -> EvictionPlan:
        """Decide what may go; only these, if any are given.

        ``disk_space`` and ``caches`` are what was measured just now of the disks, and of directories of models.

        Without ``asked`` nobody but the daemon wants it, and nothing goes by a clock that was set a short while ago.
        """
        if refs:
            return (await self.named(refs, disk_space))[0]
        # Read before the question, so that a clock that is set in between is not trusted.
        now = self._context.clock()
        if not asked and not self._context.trusts_the_clock():
            return EvictionPlan()
        models = await self._prewarmer.statuses()
        warm = frozenset(status.model.name for status in models if status.warmth is Warmth.WARM)
        context = self._context

        known = {status.model.name: status.model for status in models}
        wanted = frozenset(map(EvictReason, reasons)) or None
        if caches is None or wanted is not None:
            caches = await self._caches.all() if wanted is None or wanted & _LIMITS else ()

        def decide() -> EvictionPlan:
            taken = revoked(context) if wanted is None or EvictReason.REVOKED in wanted else ()
            if wanted == frozenset({EvictReason.REVOKED}):
                return EvictionPlan(taken, _allocated(one.entry for one in taken))
            proofs = context.catalog.read(model_coverage, self._scanner.finder.places_of(known.values()))
            resting = {one.model for one in proofs if rests_on_successors(one, context.present.seen_by(one.model))}
            measured = self._trash.disk_space() if disk_space is None else disk_space
            policy = context.settings.policy

            def entries(
                going: Sequence[EvictCache], wanted: frozenset[EvictReason] | None = wanted, *, asked: bool
            ) -> EvictionPlan:
                """Decide about entries, which have the room that the directories of models leave."""
                left = sum(one.allocated for one in caches if not one.named) - _freed(one.cache for one in going)
                limit = None if policy.max_bytes is None else max(0, policy.max_bytes - left)
                plan = decided(
                    context.catalog,
                    context.present,
                    warm,
                    known,
                    replace(policy, max_bytes=limit),
                    now,
                    reasons=wanted,
                    asked=asked,
                    disk_space=roomier(measured, self._caches.store, _freed(one.cache for one in going)),
                    predicted=warm & resting,
                )
                if not taken:
                    return plan
                ids = {one.entry.entry.id for one in taken}
                also = [one for one in plan.evict if one.entry.entry.id not in ids]
                kept = plan.kept - len(taken) + len(plan.evict) - len(also)
                return EvictionPlan((*taken, *also), _allocated(one.entry for one in (*taken, *also)), kept)

            if not caches:
                return entries((), asked=asked)
            # What no model needs goes before any directory of a model that there is.
            spare = entries((), None, asked=False) if asked and limited(policy) else EvictionPlan()
            held = sum(one.allocated for one in context.catalog.read(store_subtotals)) - spare.frees
            good = {one.model: one.good.id for one in proofs if one.good is not None}
            noted = context.catalog.read(noted_runs, good.values())
            # That what is proven lacks its directory now would show nowhere, if it was not noted what it needs.
            stay = {name for name in known if known[name].pinned or (name in good and good[name] not in noted)}
            room = room_after(spare, measured, self._caches.store)
            removed = self._caches.removed()
            if wanted is not None:
                # Only limits that were asked for make anything go.
                budget = policy.max_bytes if EvictReason.BUDGET in wanted else None
                free = policy.min_free_bytes if EvictReason.SPACE in wanted else None
                policy = replace(policy, max_bytes=budget, min_free_bytes=free)
            going = plan_caches(caches, frozenset(stay), policy, room, held, now, removed, asked=asked)
            plan = entries(going, asked=asked)
            going = tuple(one for one in going if wanted is None or one.reason is not CacheReason.GONE)
            return replace(plan, caches=going, frees=plan.frees + _freed(one.cache for one in going))

        return await asyncio.to_thread(decide)

    async def damaged(self, request: requests.EvictEntries | None = None) -> frozenset[EntryId]:
        """Return what is mended before it would go for a defect: of what is asked for, or of what goes by itself.

        What somebody named, or was shown as a plan, goes as it is.
        """
        asked = request is not None
        if request is not None:
            as_it_is = request.dry_run or request.refs or request.plan
            if as_it_is or (request.reasons and EvictReason.DEFECTIVE not in request.reasons):
                return frozenset()
        if not (await self._context.read(catalog_summary)).defective:
            return frozenset()
        plan = await self.plan(reasons=(EvictReason.DEFECTIVE,), asked=asked)
        return frozenset(one.entry.entry.id for one in plan.evict)

    async def revoked(self) -> bool:
        """Return whether something is there that is revoked; notes it as a problem."""
        return bool(await asyncio.to_thread(revoked, self._context))

    async def named(
        self, refs: Sequence[str], disk_space: Sequence[DiskSpace] | None = None
    ) -> tuple[EvictionPlan, Mapping[EntryId, str]]:
        """Decide about entries that somebody named, by the beginnings of their refs: what goes, and why others stay."""
        context = self._context

        def decide() -> tuple[EvictionPlan, Mapping[EntryId, str]]:
            entries = {one.entry.id: one for one in (context.catalog.read(find_entry, ref) for ref in refs)}
            models = context.catalog.read(models_by_name)
            now = context.clock()
            measured = self._trash.disk_space() if disk_space is None else disk_space
            return plan_named(entries.values(), context.present, models, context.settings.policy, now, measured)

        return await asyncio.to_thread(decide)

    def work(
        self,
        refs: Sequence[str] = (),
        reasons: Sequence[str] = (),
        *,
        dry_run: bool = False,
        asked: bool = True,
        plan_id: str | None = None,
        caches: Sequence[ModelCache] | None = None,
    ) -> Callable[[Handle], Awaitable[EvictionReport]]:
        """Return the work of a job: plan, and unless it is a dry run carry the plan out.

        With ``plan_id`` only if the plan still is the one that a dry run showed under it.  ``caches`` are what was
        measured just now of directories of models; if it takes long until it is our turn, they are measured again.
        """
        measured = time.monotonic()
        known = plan_id in self._shown
        if plan_id is not None and known:
            refs, reasons = self._shown[plan_id]

        async def work(handle: Handle) -> EvictionReport:
            if dry_run:
                plan = await self.plan(refs, reasons)
                self._shown[plan.id] = (tuple(refs), tuple(reasons))
                while len(self._shown) > _PLANS:
                    self._shown.pop(next(iter(self._shown)))
                return EvictionReport(plan, dry_run=True, plan_id=plan.id)
            async with self._context.turn(handle):
                # The plan is made when it is our turn, from what is there then.
                try:
                    await self._scanner.scan_stores()
                except CatalogError as error:
                    # On a full disk the catalog takes nothing in, and that is when removing matters most.  What it says
                    # is checked again on each entry before that goes.
                    log.warning("evicting by what was known before: %s", error.message)
                disk_space = await asyncio.to_thread(self._trash.disk_space)
                known_caches = caches if time.monotonic() - measured < _FRESH else None
                plan = await self.plan(refs, reasons, asked=asked, disk_space=disk_space, caches=known_caches)
                if plan_id is not None and plan.id != plan_id:
                    changed = f"something changed since plan {plan_id} was shown: now it would be {plan.id}"
                    never = f"no plan {plan_id} was shown since this daemon started: now it would be {plan.id}"
                    raise Conflict(changed if known else never, hint="look at it again: xpucachectl evict --dry-run")
                # What nobody asked for is followed by a tidying anyway, which is a part of its own.
                return await self._carry_out(plan, disk_space, handle, tidy=asked)

        return work

    async def _carry_out(
        self, plan: EvictionPlan, disk_space: Sequence[DiskSpace], handle: Handle, *, tidy: bool
    ) -> EvictionReport:
        removed: list[IndexedEntry] = []
        busy: list[IndexedEntry] = []
        victims = sorted((one.entry for one in plan.evict), key=_leaf)
        stores = {one.entry.id.store for one in victims}
        notes = await asyncio.to_thread(self._notes, plan, disk_space)

        def remove(batch: Sequence[IndexedEntry]) -> None:
            results = self._remove(batch, notes)
            removed.extend(one for one in batch if results[one.entry.id])
            # Who is cancelled has not tried the rest.
            busy.extend(until_cancelled(one for one in batch if not results[one.entry.id]))

        try:
            for batch in _batches(victims):
                handle.progress(len(removed) + len(busy), len(victims), "removing")
                async with self._context.locks.storing:
                    await to_its_end(remove, batch)
        finally:
            # Who is cancelled has removed so many all the same.
            self._tell(plan, removed, busy)
        handle.progress(len(victims), len(victims), "looking again")
        if stores:
            # Slots may have moved down; and the catalog is what a scan says, not what we believe to have done.
            try:
                await self._scanner.scan_stores(frozenset(store.root for store in stores))
            except CatalogError as error:
                log.warning("the catalog learns at the next look what was removed: %s", error.message)
        caches: tuple[ModelCache, ...] = ()
        if plan.caches:
            async with self._context.locks.storing:
                caches = await to_its_end(self._caches.evict, plan.caches)
            self._prewarmer.proofs.look_again()
        gone = [one for one in caches if not one.stays]
        kept = {one.cache.path for one in plan.caches if one.reason is not CacheReason.SPACE and self._caches.keeps}
        trashed: Counter[Store] = Counter()
        for one in removed:
            trashed[one.entry.id.store] += one.entry.allocated if one.entry.id in notes else 0
        if into := [one for one in gone if one.path in kept]:
            large, store = self._caches.too_large(into), await asyncio.to_thread(lambda: self._caches.store)
            trashed[store] += _freed(one for one in into if one.ref not in large)
        return EvictionReport(
            plan,
            dry_run=False,
            removed=tuple(one.entry.id.ref for one in removed),
            busy=tuple(one.entry.id.ref for one in busy),
            freed=_allocated(removed) + _freed(gone),
            trashed=await self._trash.kept(trashed, tidy=tidy),
            plan_id=plan.id,
            caches=caches,
        )

    def _tell(self, plan: EvictionPlan, removed: Sequence[IndexedEntry], busy: Sequence[IndexedEntry]) -> None:
        if plan.evict:
            counts = Counter(one.reason for one in plan.evict)
            why = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
            freed = _allocated(removed)
            self._context.events.post(
                "evicted",
                f"{len(removed)} entries, {freed} bytes; planned: {why}; busy: {len(busy)}",
                {"removed": str(len(removed)), "busy": str(len(busy)), "freed": str(freed)},
            )

    def _notes(self, plan: EvictionPlan, disk_space: Sequence[DiskSpace]) -> Mapping[EntryId, TrashLabel]:
        """Return the labels of what goes into the trash: all but what has to make room on the disk."""
        if self._context.settings.policy.trash_keep <= 0:
            return {}
        now = self._context.clock()
        full = {room.store for room in disk_space if room.free is not None and room.free < SCARCE}
        return {
            one.entry.entry.id: TrashLabel(now, one.reason, one.detail)
            for one in plan.evict
            if one.reason is not EvictReason.SPACE and one.entry.entry.id.store not in full
        }

    def _remove(self, batch: Sequence[IndexedEntry], notes: Mapping[EntryId, TrashLabel]) -> Mapping[EntryId, bool]:
        catalog = self._context.catalog
        ids = tuple(one.entry.id for one in batch)
        try:
            # Written down before the first lock is taken: were we killed now, our successor would finish.
            catalog.write_durably(intend, ids, self._context.clock())
        except CatalogError as error:
            # Our name in the lock tells a successor as much, only that it has to come across it.
            log.warning("removing without a note of it: %s", error.message)
        results = dict.fromkeys(ids, False)
        problems = self._context.problems
        some = answering(one.entry for one in batch)
        results.update(table.remove(some, notes, problems.failed))
        for root in {one.store.root for one, gone in results.items() if gone}:
            problems.worked(root)
        try:
            catalog.write(forget_entries, tuple(one for one, gone in results.items() if gone))
            freed = [one.entry.allocated for one in batch if results[one.entry.id]]
            if freed:
                catalog.write(days.add, self._context.clock(), evicted=len(freed), freed=float(sum(freed)))
            catalog.write(fulfil, ids)
        except CatalogError as error:
            log.warning("the catalog learns at the next look what was removed: %s", error.message)
        return results


def _allocated(some: Iterable[IndexedEntry]) -> int:
    return sum(one.entry.allocated for one in some)


def _freed(some: Iterable[ModelCache]) -> int:
    return sum(one.allocated for one in some)


def _leaf(one: IndexedEntry) -> tuple[Store, str]:
    # One that lies in no directory of its own stands alone.
    return one.entry.id.store, group(one.entry.id.key)


def _batches(victims: Sequence[IndexedEntry]) -> Iterator[list[IndexedEntry]]:
    """Divide sorted entries; the slots of a leaf stay together, because the highest must go first."""
    batch: list[IndexedEntry] = []
    for one in victims:
        if len(batch) >= _BATCH and _leaf(one) != _leaf(batch[-1]):
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch
