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
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from xpucached.domain import EntryId, EntryKey, Remedy
    from xpucached.service.comparing import Comparing
    from xpucached.service.jobs import Handle
    from xpucached.service.observing import Observing

_ROUNDS: Final = 8
"""What was hidden shows when what hid it is mended; three rounds are enough unless programs damage faster."""

PARTS: Final = 168
"""A scrub reads so many parts of the stores one after the other: with the usual week, one an hour."""

_IN_PLACE: Final = frozenset({MendAction.UNLOCK, MendAction.CLOSE_GAP, MendAction.READABLE, MendAction.SWAP_BACK})

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

    def __init__(self, observing: Observing, comparing: Comparing, changing: asyncio.Lock) -> None:
        """``changing`` is held while something is mended."""
        self._observing = observing
        self._comparing = comparing
        self._changing = changing
        self._part = 0

    def work(
        self,
        roots: frozenset[Path] = frozenset(),
        *,
        fix: bool = False,
        hazards_only: bool = False,
        deep: bool = False,
    ) -> Callable[[Handle], Awaitable[VerifyReport]]:
        """Give the work of a job.

        With ``hazards_only`` no entry is read, only the stores as a whole are looked at.  With ``deep`` entries are
        compiled again, to be compared.
        """

        async def work(handle: Handle) -> VerifyReport:
            began = time.monotonic()
            handle.progress(0, 0, "waiting for its turn")
            async with self._changing:
                report = await self._look(roots, handle, fix=fix, hazards_only=hazards_only, deep=deep)
            await self.tell()
            return replace(report, seconds=time.monotonic() - began)

        return work

    async def _look(
        self, roots: frozenset[Path], handle: Handle, *, fix: bool, hazards_only: bool, deep: bool
    ) -> VerifyReport:
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
        compared = None
        if not hazards_only:
            wanted = frozenset(found.store.root for found in stores)
            rebuilt = await self._entries(wanted, findings, handle, fix=fix)
            if deep:
                compared = await self._comparing.compare(wanted, handle, rebuilt)
                await self._drop_what_is_over(wanted, findings)
        return VerifyReport(fix, len(stores), entries, tuple(findings.values()), deep=compared)

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
    ) -> frozenset[EntryId]:
        """Find what is wrong with entries, and mend it; give those that were compiled again."""
        rebuilt: set[EntryId] = set()
        tried: set[planning.Tried] = set()
        known: set[tuple[EntryId, Flaw | None]] = set()
        whys: dict[EntryId, str] = {}
        for _ in range(_ROUNDS):
            remedies = await asyncio.to_thread(self._remedies, roots, tried)
            acting = [one for one in remedies if one.action is not MendAction.LEAVE]
            for one in remedies:
                if one.action is not MendAction.LEAVE or (one.entry.id, one.entry.flaw) not in known:
                    findings[_place(one)] = _finding(one, done=None)
                    known.add((one.entry.id, one.entry.flaw))
            if not fix or not acting:
                break
            handle.progress(0, len(acting), "mending")
            again = [one for one in acting if one.action is MendAction.REBUILD]
            done, more = await self._comparing.replace(again, handle)
            whys |= more
            async with self._observing.storing:
                mended = await asyncio.to_thread(self._mend, [one for one in acting if one not in again])
            done |= {one.entry.id: one.action for one in acting if mended.get(one.entry.id)}
            rebuilt |= {one for one, action in done.items() if action is MendAction.REBUILD}
            for one in acting:
                findings[_place(one)] = _finding(one, done=done.get(one.entry.id), why=whys.get(one.entry.id, ""))
                tried.add((one.entry.id, one.entry.stamp, one.action))
            await self._observing.scan_stores(frozenset(one.entry.id.store.root for one in acting))
        if fix:
            await self._drop_what_is_over(roots, findings)
        if fix and (mended_in_all := sum(one.done for one in findings.values())):
            self._observing.events.post("mended", f"{mended_in_all} flaws are mended", {"mended": str(mended_in_all)})
        return frozenset(rebuilt)

    async def _drop_what_is_over(self, roots: frozenset[Path], findings: dict[tuple[object, ...], Defect]) -> None:
        """Leave out what was wrong only by what is mended or proven now: nobody has to do anything about it."""
        still = {(one.entry.id, one.entry.flaw) for one in await asyncio.to_thread(self._remedies, roots, ())}
        for key, finding in list(findings.items()):
            if finding.ref is not None and not finding.done and key[:2] not in still:
                del findings[key]

    def _remedies(self, roots: frozenset[Path], tried: Collection[planning.Tried]) -> Sequence[Remedy]:
        catalog = self._observing.catalog
        entries = [one.entry for one in catalog.all_entries() if one.entry.id.store.root in roots]
        trusted = catalog.trusted(Flaw.BIN_CHANGED)
        return planning.plan_mending(entries, self._observing.present.offered, trusted, tried)

    def _mend(self, remedies: Sequence[Remedy]) -> Mapping[EntryId, bool]:
        catalog, now = self._observing.catalog, self._observing.clock()
        failed = self._observing.troubles.failed
        results = dict(kinds.mend([one for one in remedies if one.action in _IN_PLACE], failed))
        going = [one.entry for one in remedies if one.action not in _IN_PLACE]
        ids = tuple(one.id for one in going)
        catalog.intend(ids, now)
        notes = {one.id: Note(now, EvictReason.FLAWED, one.flaw.words if one.flaw else "") for one in going}
        results.update(kinds.remove(going, notes, failed))
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


def _place(one: Remedy) -> tuple[object, ...]:
    return one.entry.id, one.entry.flaw, one.entry.stamp


def _finding(one: Remedy, *, done: MendAction | None, why: str = "") -> Defect:
    """Tell what is wrong with an entry, what was done about it, if anything was, and why not what is better."""
    entry = one.entry
    if entry.flaw is None:
        message = f"an entry without a flaw needs no remedy: {entry.id.key}"
        raise ValueError(message)
    words = [entry.detail] if entry.detail else []
    if why:
        words.append(f"not compiled again: {why}")
    action = done or one.action
    return Defect.of(
        entry.id, entry.flaw, entry.effect or entry.flaw.effect, "; ".join(words), action, done=done is not None
    )
