"""Comparing: entries are compiled again from their own sources, to prove them, or to take a damaged one's place."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from xpucached import kinds, planning
from xpucached.domain import (
    Built,
    Comparison,
    EvictReason,
    Flaw,
    MendAction,
    NoRecipe,
    Note,
    Origin,
    Rebuild,
    ReplayReason,
    Unproven,
)
from xpucached.kinds import KINDS
from xpucached.service.rebuild import RebuildJob, driver_for, drivers_in_use, pace

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from xpucached.dispatch import Dispatch
    from xpucached.domain import EntryId, OtherDriver, Recipe, Remedy
    from xpucached.service.jobs import Handle
    from xpucached.service.observing import Observing

log = logging.getLogger(__name__)

_NAMED: Final = 100
"""So many entries of which other bytes came out are named."""

_MOST_WORDS: Final = 5

_UNPROVEN: Final[Mapping[NoRecipe, Unproven]] = {
    NoRecipe.NATIVE: Unproven.NATIVE,
    NoRecipe.CONSTANTS: Unproven.CONSTANTS,
    NoRecipe.SEVERAL: Unproven.SEVERAL,
    NoRecipe.DAMAGED: Unproven.DAMAGED,
    NoRecipe.FOREIGN: Unproven.FOREIGN,
}


class Comparing:
    """Compiles entries again, each for the driver that it is for."""

    def __init__(self, observing: Observing, dispatch: Dispatch) -> None:
        self._observing = observing
        self._dispatch = dispatch

    async def compare(self, roots: Collection[Path], handle: Handle, rebuilt: Collection[EntryId] = ()) -> Comparison:
        """Compile what these stores hold, and compare; ``rebuilt`` was compiled just now.

        Equal bytes prove an entry good, and from then on they are what is trusted.  Others prove nothing: one compiler
        need not write the same bytes twice.
        """
        catalog = self._observing.catalog
        every = [one for one in await asyncio.to_thread(catalog.all_entries) if one.entry.id.store.root in roots]
        rest = [one for one in every if one.entry.id not in rebuilt]
        todo, unproven = planning.plan_comparing(rest, self._observing.present.offered)
        compiled = _Digests()
        await self._compile(todo, compiled, drivers_in_use(self._observing), handle)
        for why in compiled.unproven.values():
            unproven[why] += 1
        # A program may have written one anew while its old one was compiled; what it is compiled from is the same.
        await self._observing.scan_stores(frozenset(one.entry.entry.id.store.root for one in todo) or frozenset(roots))
        there = {one.entry.id: one.entry for one in await asyncio.to_thread(catalog.entries_by_id, compiled.digests)}
        unproven[Unproven.CHANGED] += len(compiled.digests.keys() - there.keys())
        good = {one: digest for one, digest in compiled.digests.items() if one in there and there[one].digest == digest}
        differing = sorted(one.ref for one in there.keys() - good.keys())
        unproven[Unproven.OTHER_BYTES] += len(differing)
        await self.trust({one: digest for one, digest in good.items() if there[one].flaw is Flaw.BIN_CHANGED})
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
            await asyncio.to_thread(self._observing.catalog.trust, good)
            await self._observing.scan_stores(frozenset(one.store.root for one in good))

    async def replace(
        self, remedies: Sequence[Remedy], handle: Handle
    ) -> tuple[dict[EntryId, MendAction], dict[EntryId, str]]:
        """Compile damaged entries again, and put what comes out in their places; they themselves go into quarantine.

        Gives what was done about each where something was, and why nothing came of the others.
        """
        wanted = [one.entry.id for one in remedies]
        drivers = drivers_in_use(self._observing)
        offered = self._observing.present.offered
        todo = [
            Rebuild(one, one.entry.environment, ReplayReason.ASKED)
            for one in await asyncio.to_thread(self._observing.catalog.entries_by_id, wanted)
            if one.entry.environment is not None and one.entry.environment in offered
        ]
        results = _Replacing(self._observing, drivers, asyncio.get_running_loop())
        await self._compile(todo, results, drivers, handle)
        await self.trust(results.good)
        return results.done | dict.fromkeys(results.good, MendAction.REBUILD), results.whys

    async def _compile(
        self, todo: Sequence[Rebuild], results: _Counted, drivers: Sequence[OtherDriver], handle: Handle
    ) -> None:
        if not todo:
            return
        models = {model.name: model for model in await asyncio.to_thread(self._observing.catalog.models)}
        limit = self._observing.settings.compile_timeout
        began = time.monotonic()

        def beat() -> None:
            handle.progress(results.heard, len(todo), pace(results.heard, len(todo), began))

        await RebuildJob(self._dispatch, todo, drivers, models, limit, results).run(len(todo), beat)


class _Counted:
    """Counts what became of rebuilds."""

    def __init__(self) -> None:
        self.heard = 0
        self.whys: dict[EntryId, str] = {}
        self._lock = threading.Lock()

    def built(self, one: Rebuild, recipe: Recipe, binary: bytes, seconds: float) -> None:
        """Take what was compiled."""
        raise NotImplementedError

    def skipped(self, one: Rebuild, why: NoRecipe) -> None:
        """Note why an entry cannot be compiled again."""
        self._note(one, str(why))

    def failed(self, one: Rebuild, words: str, *, blamed: bool) -> None:  # noqa: ARG002 - nothing is held against it
        """Note why it was not."""
        self._note(one, words)

    def _note(self, one: Rebuild, words: str) -> None:
        with self._lock:
            self.heard += 1
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
        digest = digest_of(binary)
        with self._lock:
            self.heard += 1
            self.seconds += seconds
            self.digests[one.entry.entry.id] = digest

    def skipped(self, one: Rebuild, why: NoRecipe) -> None:
        """Note why an entry cannot be compiled again."""
        super().skipped(one, why)
        self.unproven[one.entry.entry.id] = _UNPROVEN.get(why, Unproven.UNREADABLE)

    def failed(self, one: Rebuild, words: str, *, blamed: bool) -> None:
        """Note why it was not."""
        super().failed(one, words, blamed=blamed)
        self.unproven[one.entry.entry.id] = Unproven.FAILED
        self.failures.append(f"{one.entry.entry.id.ref}: {words}")


class _Replacing(_Counted):
    """Puts what was compiled in the place of what is damaged."""

    def __init__(self, observing: Observing, drivers: Sequence[OtherDriver], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._observing = observing
        self._drivers = drivers
        self._loop = loop
        self.done: dict[EntryId, MendAction] = {}
        self.good: dict[EntryId, str] = {}
        """Those that had changed, and into what their compiler makes of them."""

    def built(self, one: Rebuild, recipe: Recipe, binary: bytes, seconds: float) -> None:
        """Take what was compiled: it is where programs find it when this returns."""
        entry, digest = one.entry.entry, digest_of(binary)
        if entry.flaw is Flaw.BIN_CHANGED and entry.digest == digest:
            self.good[entry.id] = digest
        else:
            asyncio.run_coroutine_threadsafe(self._put(one, recipe, binary, seconds), self._loop).result()
        with self._lock:
            self.heard += 1

    async def _put(self, one: Rebuild, recipe: Recipe, binary: bytes, seconds: float) -> None:
        async with self._observing.storing:
            await asyncio.to_thread(self._replace, one, recipe, binary, seconds)

    def _replace(self, one: Rebuild, recipe: Recipe, binary: bytes, seconds: float) -> None:
        entry, catalog, now = one.entry.entry, self._observing.catalog, self._observing.clock()
        catalog.intend([entry.id], now)
        words = entry.flaw.words if entry.flaw is not None else ""
        gone = kinds.remove([entry], {entry.id: Note(now, EvictReason.FLAWED, words)})[entry.id]
        catalog.fulfil([entry.id])
        if not gone:
            self.whys[entry.id] = "a program is at work there"
            return
        self.done[entry.id] = MendAction.QUARANTINE
        try:
            key = KINDS[entry.id.store.kind].publish(recipe, one.to, binary)
        except OSError as error:
            log.warning("an entry that was compiled again could not be published: %s: %s", entry.id.key, error)
            self.whys[entry.id] = f"it could not be written: {error.strerror or error}"
            return
        if key == entry.id.key:
            self.done[entry.id] = MendAction.REBUILD
            stamp = driver_for(one, self._drivers).stamp
            size = len(recipe.image)
            catalog.record_build(Built(entry.id, one.to, Origin.REBUILT, stamp, size, seconds, digest_of(binary)), now)
        else:
            self.whys[entry.id] = "another one is in its place"


def digest_of(binary: bytes) -> str:
    """Give the digest by which a compiled program is known."""
    return hashlib.blake2b(binary, digest_size=16).hexdigest()
