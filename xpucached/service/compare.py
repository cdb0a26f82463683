"""Comparing: entries are compiled again from their own sources, to prove them, or to take a damaged one's place."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Final

from xpucached.catalog.entries import all_entries, entries_by_id
from xpucached.catalog.intents import fulfil, intend
from xpucached.catalog.scans import trust_digests
from xpucached.domain.defects import CHANGED, RepairAction
from xpucached.domain.plans import EvictReason, NoRecipe, Rebuild, ReplayReason
from xpucached.domain.stores import program_digest
from xpucached.domain.targets import Origin
from xpucached.domain.trash import Comparison, TrashLabel, Unproven
from xpucached.errors import CatalogError
from xpucached.kinds import driver_cache, table
from xpucached.planning.repair import plan_comparing
from xpucached.processes.cancellation import to_its_end
from xpucached.service.owners import answering
from xpucached.service.rebuild import RebuildJob, drivers_in_use, publish

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from xpucached.domain.host import OtherDriver
    from xpucached.domain.plans import Recipe
    from xpucached.domain.stores import Entry, EntryId
    from xpucached.domain.trash import Repair
    from xpucached.processes.supervised import ProcessStarter
    from xpucached.service.context import Context
    from xpucached.service.jobs import Handle
    from xpucached.service.scan import StoreScanner

log = logging.getLogger(__name__)

_NAMED: Final = 100
"""So many entries of which other bytes came out are named."""

_MOST_WORDS: Final = 5

_KEPT: Final = 64 << 20
"""Bytes of sources that are kept in memory while their entries are in quarantine already."""

_BEAT: Final = 0.2
"""Seconds between two looks at whether it is cancelled."""

_BATCH: Final = 256
"""So many entries go into quarantine between two moments at which others may look."""


class EntryComparer:
    """Compiles entries again, each for the driver that it is for."""

    def __init__(self, context: Context, scanner: StoreScanner, starter: ProcessStarter) -> None:
        self._context = context
        self._scanner = scanner
        self._starter = starter
        self._left: dict[EntryId, tuple[Rebuild, Recipe]] = {}
        """What is in quarantine, and was not compiled when that was cancelled."""

    @property
    def unfinished(self) -> bool:
        """Whether something is in quarantine that is still to be compiled."""
        return bool(self._left)

    async def compare(self, roots: Collection[Path], handle: Handle, rebuilt: Collection[EntryId] = ()) -> Comparison:
        """Compile what these stores hold, and compare; ``rebuilt`` was compiled just now.

        Equal bytes prove an entry good, and from then on they are what is trusted.  Others prove nothing: one compiler
        need not write the same bytes twice.
        """
        every = [one for one in await self._context.read(all_entries) if one.entry.id.store.root in roots]
        rest = [one for one in every if one.entry.id not in rebuilt]
        todo, unproven = plan_comparing(
            rest, self._context.present.offered, table.lineages(), told=(driver_cache.KIND,)
        )
        compiled = _Digests()
        await self._compile(todo, compiled, drivers_in_use(self._context), handle)
        for why in compiled.unproven.values():
            unproven[why] += 1
        # A program may have written one anew while its old one was compiled; what it is compiled from is the same.
        await self._scanner.scan_stores(frozenset(one.entry.entry.id.store.root for one in todo) or frozenset(roots))
        there = {one.entry.id: one.entry for one in await self._context.read(entries_by_id, compiled.digests)}
        unproven[Unproven.CHANGED] += len(compiled.digests.keys() - there.keys())
        good = {one: digest for one, digest in compiled.digests.items() if one in there and there[one].digest == digest}
        differing = sorted(one.ref for one in there.keys() - good.keys())
        unproven[Unproven.OTHER_BYTES] += len(differing)
        await self.trust({one: digest for one, digest in good.items() if there[one].defect == CHANGED})
        return Comparison(
            len(good) + len([one for one in every if one.entry.id in rebuilt]),
            {why: number for why, number in sorted(unproven.items()) if number},
            tuple(differing[:_NAMED]),
            tuple(compiled.failures[:_MOST_WORDS]),
            compiled.seconds,
        )

    async def trust(self, good: Mapping[EntryId, str]) -> None:
        """Take these digests for those of good programs from now on, and look at their entries again."""
        if good:
            await self._context.write(trust_digests, good)
            await self._scanner.scan_stores(frozenset(one.store.root for one in good))

    async def replace(
        self, repairs: Sequence[Repair], handle: Handle, *, at_once: bool = False
    ) -> tuple[dict[EntryId, RepairAction], dict[EntryId, str]]:
        """Compile damaged entries again, and put what comes out in their places; they themselves go into quarantine.

        With ``at_once`` they go there first, so that no program meets them while others are compiled; then no more are
        compiled than can be kept in memory until their turn.  Gives what was done about each where something was, and
        why nothing came of the others.
        """
        wanted = [one.entry.id for one in repairs]
        drivers = drivers_in_use(self._context)
        offered = self._context.present.offered
        todo = [
            Rebuild(one, one.entry.environment, ReplayReason.ASKED)
            for one in await self._context.read(entries_by_id, wanted)
            if one.entry.environment is not None and one.entry.environment in offered
        ]
        results = _Replacing(self._context, drivers, asyncio.get_running_loop())
        try:
            if at_once:
                every, todo = todo, []
                for start in range(0, len(every), _BATCH):
                    async with self._context.locks.storing:
                        todo += await to_its_end(results.keep, every[start : start + _BATCH])
            await self._compile(todo, results, drivers, handle, results.recipes)
        finally:
            await self._leave(results, handle)
        await self.trust(results.good)
        return results.done | dict.fromkeys(results.good, RepairAction.REBUILD), results.whys

    async def finish(self, handle: Handle) -> tuple[tuple[Entry, ...], dict[EntryId, RepairAction], dict[EntryId, str]]:
        """Compile what is left; give what that was, what was done about each, and why nothing came of the others."""
        drivers = drivers_in_use(self._context)
        offered = {environment for driver in drivers for environment in driver.environments}
        left, self._left = self._left, {}
        some = [(one, recipe) for one, recipe in left.values() if one.to in offered]
        results = _Replacing(self._context, drivers, asyncio.get_running_loop())
        todo = results.go_on(some)
        try:
            await self._compile(todo, results, drivers, handle, results.recipes)
        finally:
            await self._leave(results, handle)
        return tuple(one.entry.entry for one in todo), results.done, results.whys

    async def _leave(self, results: _Replacing, handle: Handle) -> None:
        """Keep what was not compiled for the next time."""
        left = results.left()
        self._left |= left
        await to_its_end(results.settle)
        if left:
            words = f"{len(left)} in quarantine are not compiled again yet: the next look goes on"
            handle.progress(results.answered, len(results.recipes), words)
            log.warning("mending was cut short: entries in quarantine that are not compiled again: %d", len(left))

    async def _compile(
        self,
        todo: Sequence[Rebuild],
        results: _Counted,
        drivers: Sequence[OtherDriver],
        handle: Handle,
        recipes: Mapping[EntryId, Recipe] | None = None,
    ) -> None:
        if not todo:
            return
        work = RebuildJob(self._context, self._starter, todo, drivers, results, recipes=recipes)
        results.cancel = work.cancel
        await work.run(handle, len(todo))


class _Counted:
    """Counts what became of rebuilds."""

    def __init__(self) -> None:
        self.answered = 0
        self.cancel = threading.Event()  # the work's own
        self.whys: dict[EntryId, str] = {}
        self._lock = threading.Lock()

    def built(self, one: Rebuild, recipe: Recipe, binary: bytes, seconds: float) -> None:
        """Take what was compiled."""
        raise NotImplementedError

    def skipped(self, one: Rebuild, why: NoRecipe) -> None:
        """Note why an entry cannot be compiled again."""
        self._note(one, why.words)

    def failed(self, one: Rebuild, words: str, *, blamed: bool) -> None:  # noqa: ARG002 - nothing is held against it
        """Note why it was not."""
        self._note(one, words)

    def _note(self, one: Rebuild, words: str) -> None:
        with self._lock:
            self.answered += 1
            self.whys[one.entry.entry.id] = words


class _Digests(_Counted):
    """Keeps the digests of what was compiled, to compare them with what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.digests: dict[EntryId, str] = {}
        self.unproven: dict[EntryId, Unproven] = {}
        self.failures: list[str] = []
        self.seconds = 0.0

    def built(self, one: Rebuild, recipe: Recipe, binary: bytes, seconds: float) -> None:  # noqa: ARG002 - see above
        """Take what was compiled."""
        digest = program_digest(binary).hexdigest()
        with self._lock:
            self.answered += 1
            self.seconds += seconds
            self.digests[one.entry.entry.id] = digest

    def skipped(self, one: Rebuild, why: NoRecipe) -> None:
        """Note why an entry cannot be compiled again."""
        super().skipped(one, why)
        self.unproven[one.entry.entry.id] = Unproven(why.value)

    def failed(self, one: Rebuild, words: str, *, blamed: bool) -> None:
        """Note why it was not."""
        super().failed(one, words, blamed=blamed)
        self.unproven[one.entry.entry.id] = Unproven.FAILED
        self.failures.append(f"{one.entry.entry.id.ref}: {words}")


class _Replacing(_Counted):
    """Puts what was compiled in the place of what is damaged."""

    def __init__(self, context: Context, drivers: Sequence[OtherDriver], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._context = context
        self._drivers = drivers
        self._loop = loop
        self.done: dict[EntryId, RepairAction] = {}
        self.good: dict[EntryId, str] = {}
        """Those that had changed, and into what their compiler makes of them."""
        self.recipes: dict[EntryId, Recipe] = {}
        """Of those that are in quarantine already …"""
        self._kept: dict[EntryId, Rebuild] = {}
        """… and how they are compiled."""
        self._noted: set[EntryId] = set()
        """What is in quarantine, and noted as such until it is compiled: whoever comes after us goes on with it."""
        self._room = _KEPT

    def keep(self, some: list[Rebuild]) -> list[Rebuild]:
        """Put these into quarantine; give those of which it is known what to compile."""
        for one in some:
            entry = one.entry.entry
            # What it says of itself spares reading it; what a run told of it, it does not count.
            recipe = self._context.recipe(entry) if entry.image_size <= self._room else None
            if isinstance(recipe, NoRecipe):
                self.whys[entry.id] = recipe.words
            elif recipe is None or recipe.size > self._room:
                self.whys[entry.id] = "too much was damaged at once"
            else:
                self._room -= recipe.size
                self.recipes[entry.id] = recipe
        self._take([one.entry.entry for one in some], self.recipes)
        self.recipes = {one: recipe for one, recipe in self.recipes.items() if one in self.done}
        kept = [one for one in some if one.entry.entry.id in self.recipes]
        self._kept |= {one.entry.entry.id: one for one in kept}
        return kept

    def go_on(self, some: Sequence[tuple[Rebuild, Recipe]]) -> list[Rebuild]:
        """Take over what is in quarantine since an earlier time."""
        self._kept = {one.entry.entry.id: one for one, _ in some}
        self.recipes = {one.entry.entry.id: recipe for one, recipe in some}
        self.done = dict.fromkeys(self._kept, RepairAction.QUARANTINE)
        self._noted = set(self._kept)
        return list(self._kept.values())

    def left(self) -> dict[EntryId, tuple[Rebuild, Recipe]]:
        """Return what is in quarantine, and of which nothing was heard."""
        return {
            id_: (one, self.recipes[id_])
            for id_, one in self._kept.items()
            if self.done[id_] is RepairAction.QUARANTINE and id_ not in self.whys
        }

    def settle(self) -> None:
        """Note that nobody has to go on with what is compiled, or cannot be."""
        try:
            self._context.catalog.write(fulfil, self._noted - self.left().keys())
        except CatalogError as error:
            log.warning("what is compiled again is looked at once more by the next start: %s", error.message)

    def _take(self, entries: Sequence[Entry], compiled: Collection[EntryId]) -> None:
        for one, gone in quarantine(self._context, entries, compiled).items():
            if gone:
                self._noted.add(one)
                self.done[one] = RepairAction.QUARANTINE
            else:
                self.whys[one] = "a program is at work there"

    def built(self, one: Rebuild, recipe: Recipe, binary: bytes, seconds: float) -> None:
        """Take what was compiled: it is where programs find it when this returns."""
        entry, digest = one.entry.entry, program_digest(binary).hexdigest()
        if entry.id not in self.recipes and entry.defect == CHANGED and entry.digest == digest:
            self.good[entry.id] = digest
        else:
            asyncio.run_coroutine_threadsafe(self._put(one, recipe, binary, seconds), self._loop).result()
        with self._lock:
            self.answered += 1

    async def _put(self, one: Rebuild, recipe: Recipe, binary: bytes, seconds: float) -> None:
        storing = self._context.locks.storing
        taking = asyncio.ensure_future(storing.acquire())
        while not taking.done():
            await asyncio.wait({taking}, timeout=_BEAT)
            if self.cancel.is_set():
                # Others may look at a store for long; the next time compiles it once more.
                taking.cancel()
        if taking.cancelled():
            return
        try:
            await to_its_end(self._replace, one, recipe, binary, seconds)
        finally:
            storing.release()

    def _replace(self, one: Rebuild, recipe: Recipe, binary: bytes, seconds: float) -> None:
        entry = one.entry.entry
        if entry.id not in self.recipes:
            self._take([entry], {entry.id})
        if entry.id not in self.done:
            return
        # Who used it will use it, also if nobody knows it any more: a look may have missed it in between.
        models = one.entry.models
        try:
            key = publish(self._context, one, (recipe, binary), seconds, Origin.REBUILT, self._drivers, models)
        except (OSError, CatalogError) as error:
            log.warning("an entry that was compiled again could not be published: %s: %s", entry.id.key, error)
            self.whys[entry.id] = f"it could not be written: {getattr(error, 'strerror', None) or error}"
            return
        if key == entry.id.key:
            self.done[entry.id] = RepairAction.REBUILD
        else:
            self.whys[entry.id] = "something else is in its place"


def quarantine(
    context: Context, entries: Sequence[Entry], compiled: Collection[EntryId] = ()
) -> Mapping[EntryId, bool]:
    """Take damaged entries out of their stores, and keep them as evidence: True for those that are gone.

    Of those that are to be ``compiled`` it stays noted that they went, until the caller notes otherwise.
    """
    catalog, now = context.catalog, context.clock()
    ids = tuple(one.id for one in entries)
    try:
        catalog.write_durably(intend, ids, now)
    except CatalogError as error:
        # Our name in the lock tells a successor as much, only that it has to come across it.
        log.warning("removing without a note of it: %s", error.message)
    notes = {
        one.id: TrashLabel(now, EvictReason.DEFECTIVE, one.defect.message if one.defect else "") for one in entries
    }
    some = answering(entries)
    results = dict.fromkeys(ids, False) | dict(table.remove(some, notes, context.problems.failed))
    for root in {one.store.root for one, gone in results.items() if gone}:
        context.problems.worked(root)
    try:
        catalog.write(fulfil, [one for one in ids if not (one in compiled and results.get(one))])
    except CatalogError as error:
        log.warning("the catalog learns at the next look what was removed: %s", error.message)
    return results
