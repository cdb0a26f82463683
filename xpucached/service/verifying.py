"""A thorough look at the stores, what it finds, and mending; and the slow scrub that does it bit by bit."""

from __future__ import annotations

import asyncio
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import kinds, planning
from xpucached.domain import (
    Defect,
    Effect,
    EntryQuery,
    EvictReason,
    Flaw,
    FoundStore,
    Hazard,
    MendAction,
    Note,
    Problem,
    StoreState,
    VerifyReport,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from xpucached.domain import EntryId, EntryKey, Remedy
    from xpucached.service.jobs import Handle
    from xpucached.service.observing import Observing

_ROUNDS: Final = 8
"""What was hidden shows when what hid it is mended; three rounds are enough unless programs damage faster."""

PARTS: Final = 168
"""A scrub reads so many parts of the stores one after the other: with the usual week, one an hour."""

_IN_PLACE: Final = frozenset({MendAction.UNLOCK, MendAction.CLOSE_GAP, MendAction.READABLE})

_HAZARD_EFFECTS: Final = {
    Hazard.EVICTION_ON: Effect.HARMLESS,
    Hazard.SIZE_LOCK: Effect.HANGS,
    Hazard.SIZE_GARBAGE: Effect.FAILS,
    Hazard.SIZE_MISSING: Effect.HANGS,
    Hazard.BARRIER: Effect.HANGS,
    Hazard.BLOCKED: Effect.GROWS,
}


class Verifying:
    """Reads everything again, says what is wrong, and mends it if somebody asks."""

    def __init__(self, observing: Observing, changing: asyncio.Lock) -> None:
        """``changing`` is held while something is mended."""
        self._observing = observing
        self._changing = changing
        self._part = 0

    def work(
        self, roots: frozenset[Path] = frozenset(), *, fix: bool = False, hazards_only: bool = False
    ) -> Callable[[Handle], Awaitable[VerifyReport]]:
        """Give the work of a job.  With ``hazards_only`` no entry is read, only the stores as a whole are looked at."""

        async def work(handle: Handle) -> VerifyReport:
            began = time.monotonic()
            handle.progress(0, 0, "waiting for its turn")
            async with self._changing:
                report = await self._look(roots, handle, fix=fix, hazards_only=hazards_only)
            await self.tell()
            return replace(report, seconds=time.monotonic() - began)

        return work

    async def _look(self, roots: frozenset[Path], handle: Handle, *, fix: bool, hazards_only: bool) -> VerifyReport:
        observing = self._observing
        entries = 0
        if not hazards_only:
            entries = (await observing.scan_stores(roots, full=True, progress=handle.progress)).entries
        stores = [
            FoundStore(one.store, one.origin, one.via)
            for one in await asyncio.to_thread(observing.catalog.stores)
            if one.state is StoreState.OK and (not roots or one.store.root in roots)
        ]
        findings: dict[tuple[object, ...], Defect] = {}
        for found in stores:
            for one in await asyncio.to_thread(self._hazards, found, fix=fix):
                findings[one.store, one.hazard] = one
        if not hazards_only:
            wanted = frozenset(found.store.root for found in stores)
            await self._entries(wanted, findings, handle, fix=fix)
        return VerifyReport(fix, len(stores), entries, tuple(findings.values()))

    def _hazards(self, found: FoundStore, *, fix: bool) -> list[Defect]:
        now = self._observing.clock()
        since = self._observing.writer_since()
        result: list[Defect] = []
        kind = kinds.KINDS[found.store.kind]
        for hazard in kind.hazards(found, now, since):
            action = MendAction.CLEAR if hazard.clearable else MendAction.LEAVE
            done = fix and hazard.clearable and kind.clear(found.store, hazard, now, since)
            result.append(
                Defect(found.store, None, None, None, hazard, _HAZARD_EFFECTS[hazard], hazard.words, "", action, done)
            )
        return result

    async def _entries(
        self, roots: frozenset[Path], findings: dict[tuple[object, ...], Defect], handle: Handle, *, fix: bool
    ) -> None:
        for _ in range(_ROUNDS):
            remedies = await asyncio.to_thread(self._remedies, roots)
            fresh = [one for one in remedies if (one.entry.id, one.entry.flaw) not in findings]
            for one in fresh:
                findings[one.entry.id, one.entry.flaw] = _finding(one, done=False)
            acting = [one for one in fresh if one.action is not MendAction.LEAVE]
            if not fix or not acting:
                break
            handle.progress(0, len(acting), "mending")
            async with self._observing.storing:
                done = await asyncio.to_thread(self._mend, acting)
            for one in acting:
                findings[one.entry.id, one.entry.flaw] = _finding(one, done=done.get(one.entry.id, False))
            await self._observing.scan_stores(frozenset(one.entry.id.store.root for one in acting))
        if fix:
            # What was only hidden by what went is whole now, and nobody has to do anything about it.
            still = {(one.entry.id, one.entry.flaw) for one in await asyncio.to_thread(self._remedies, roots)}
            for key, finding in list(findings.items()):
                if finding.ref is not None and finding.action is MendAction.LEAVE and key not in still:
                    del findings[key]
        if fix and (mended := sum(one.done for one in findings.values())):
            self._observing.events.post("mended", f"{mended} flaws are mended", {"mended": str(mended)})

    def _remedies(self, roots: frozenset[Path]) -> Sequence[Remedy]:
        entries = self._observing.catalog.all_entries()
        return planning.plan_mending(one.entry for one in entries if one.entry.id.store.root in roots)

    def _mend(self, remedies: Sequence[Remedy]) -> Mapping[EntryId, bool]:
        catalog, now = self._observing.catalog, self._observing.clock()
        results = dict(kinds.mend([one for one in remedies if one.action in _IN_PLACE]))
        going = [one.entry for one in remedies if one.action not in _IN_PLACE]
        ids = tuple(one.id for one in going)
        catalog.intend(ids, now)
        notes = {one.id: Note(now, EvictReason.FLAWED, one.flaw.words if one.flaw else "") for one in going}
        results.update(kinds.remove(going, notes, self._observing.troubles.failed))
        catalog.fulfil(ids)
        return results

    # -- bit by bit -----------------------------------------------------------------------------------------------

    async def scrub(self) -> int:
        """Read the next part of the stores again, as if it were new; give how many entries that were."""
        self._part = (self._part + 1) % PARTS
        part = self._part
        read = 0

        def due(key: EntryKey) -> bool:
            nonlocal read
            # Whole leaves: the neighbours of a slot decide what it is worth.
            mine = zlib.crc32(key.rpartition("/")[0].encode()) % PARTS == part
            read += mine
            return mine

        await self._observing.scan_stores(again=due)
        await self.tell()
        return read

    async def tell(self) -> None:
        """Show in the status whether a program has changed after it was written: no runtime ever does that."""
        observing = self._observing

        def ask() -> int:
            query = EntryQuery(flaw=Flaw.BIN_CHANGED, limit=1)
            return observing.catalog.entries(query, present=(), now=observing.clock()).total

        changed = await asyncio.to_thread(ask)
        if not changed:
            observing.troubles.clear("digest-changed")
            return
        problem = Problem(
            "digest-changed",
            f"{changed} compiled programs changed after they were written: a failing disk, or somebody's hand",
            "see: xpucachectl ls --flaw bin-changed; xpucachectl verify --fix quarantines them",
        )
        if problem not in observing.troubles.all():
            observing.events.post("alarm", problem.message, {"changed": str(changed)})
        observing.troubles.note(problem)


def _finding(one: Remedy, *, done: bool) -> Defect:
    entry = one.entry
    if entry.flaw is None:
        message = f"an entry without a flaw needs no remedy: {entry.id.key}"
        raise ValueError(message)
    return Defect.of(entry.id, entry.flaw, entry.effect or entry.flaw.effect, entry.detail, one.action, done=done)
