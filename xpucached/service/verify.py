"""A thorough look at the stores, what it finds, and mending; and the slow scrub that does it bit by bit."""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached.catalog.entries import defective_entries, entry_page
from xpucached.catalog.scans import trusted_digests
from xpucached.catalog.stores import all_stores
from xpucached.domain.defects import CHANGED, Defect, Effect, RepairAction
from xpucached.domain.host import Problem
from xpucached.domain.names import group
from xpucached.domain.plans import NoRecipe
from xpucached.domain.queries import EntryQuery
from xpucached.domain.reports import VerifyReport
from xpucached.domain.stores import FoundStore, StoreState
from xpucached.domain.trash import Finding, Repair
from xpucached.errors import CatalogError, HostError
from xpucached.kinds import table
from xpucached.planning.eviction_context import defective
from xpucached.planning.repair import Tried, plan_mending
from xpucached.processes.cancellation import to_its_end
from xpucached.service.compare import quarantine
from xpucached.service.owners import answering, readable, there
from xpucached.service.paths import real_paths
from xpucached.service.revoking import revoked
from xpucached.service.scrub_progress import PARTS, ScrubProgress
from xpucached.service.store_finder import writer_since, writers_since

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from xpucached.api import requests
    from xpucached.domain.jobs import Job
    from xpucached.domain.names import EntryKey
    from xpucached.domain.reports import EvictionReport
    from xpucached.domain.status import Status
    from xpucached.domain.stores import EntryId, Store, StoreStatus
    from xpucached.service.compare import EntryComparer
    from xpucached.service.context import Context
    from xpucached.service.jobs import Handle
    from xpucached.service.scan import StoreScanner

log = logging.getLogger(__name__)

_ROUNDS: Final = 8
"""What was hidden shows when what hid it is mended; six rounds are enough unless programs damage faster."""

_UNREAD: Final = frozenset({StoreState.UNREADABLE, StoreState.NOT_A_DIRECTORY, StoreState.UNSEEN})
"""Of stores of which this is the state nobody knows whether anything is wrong there."""

_IN_PLACE: Final = frozenset(
    {RepairAction.UNLOCK, RepairAction.CLOSE_GAP, RepairAction.READABLE, RepairAction.SWAP_BACK}
)


class Verifier:
    """Reads everything again, says what is wrong, and mends it if somebody asks."""

    def __init__(self, context: Context, scanner: StoreScanner, comparer: EntryComparer) -> None:
        self._context = context
        self._scanner = scanner
        self._comparer = comparer
        self.progress = ScrubProgress(context)

    async def start(self, request: requests.VerifyStores, status: Callable[[], Awaitable[Status]]) -> Job:
        """Read everything again and say what is wrong, with what the ``status`` says; see `requests.VerifyStores`."""
        roots = await real_paths(request.stores)
        verifying = self.work(roots, fix=request.fix, faults_only=request.faults_only, deep=request.deep)

        async def work(handle: Handle) -> VerifyReport:
            report = await verifying(handle)
            await asyncio.to_thread(revoked, self._context)
            now = await status()
            return replace(report, watching=now.watching, problems=now.problems)

        return self._context.jobs.start("verify", work)

    def work(
        self,
        roots: frozenset[Path] = frozenset(),
        *,
        fix: bool = False,
        faults_only: bool = False,
        deep: bool = False,
    ) -> Callable[[Handle], Awaitable[VerifyReport]]:
        """Return the work of a job.

        With ``faults_only`` no entry is read, only the stores as a whole are looked at.  With ``deep`` entries are
        compiled again, to be compared.
        """

        async def work(handle: Handle) -> VerifyReport:
            began = time.monotonic()
            async with self._context.turn(handle):
                report = await self._look(roots, handle, fix=fix, faults_only=faults_only, deep=deep)
            await self.tell()
            return replace(report, seconds=time.monotonic() - began)

        return work

    def mending(self, due: Callable[[], Awaitable[Collection[EntryId]]]) -> Callable[[Handle], Awaitable[VerifyReport]]:
        """Return the work of a job: mend what is ``due`` to be evicted for a defect, as a `work` with ``fix`` would.

        Nothing damaged stays for it: what can only be compiled again goes into quarantine before it is.
        """

        async def work(handle: Handle) -> VerifyReport:
            began = time.monotonic()
            findings: dict[tuple[object, ...], Finding] = {}
            async with self._context.turn(handle):
                await self._finish(findings, handle, asked=False)
                await self._scanner.scan_stores()
                wanted = frozenset(await due())
                roots = frozenset(one.store.root for one in wanted)
                await self._entries(roots, findings, handle, fix=True, due=wanted)
            await self.tell()
            seconds = time.monotonic() - began
            return VerifyReport(True, len(roots), len(wanted), tuple(findings.values()), seconds)  # noqa: FBT003

        return work

    def before(
        self, work: Callable[[Handle], Awaitable[EvictionReport]], due: Callable[[], Awaitable[Collection[EntryId]]]
    ) -> Callable[[Handle], Awaitable[EvictionReport]]:
        """Return the work of a job that mends what is ``due``, and then does its own."""

        async def both(handle: Handle) -> EvictionReport:
            try:
                if await due():
                    handle.mended(await self.mending(due)(handle))
            except (CatalogError, HostError) as error:
                # On a full disk the catalog takes nothing in, and no compiler has a place to work in, and that is when
                # removing matters most.
                log.warning("evicting without mending before: %s", error.message)
            return await work(handle)

        return both

    @property
    def unfinished(self) -> bool:
        """Whether a mending was cancelled that is to be gone on with."""
        return self._context.settings.schedule.replay and self._comparer.unfinished

    async def _finish(self, findings: dict[tuple[object, ...], Finding], handle: Handle, *, asked: bool) -> None:
        """Compile what a mending that was cancelled has left in quarantine."""
        if self.unfinished or (asked and self._comparer.unfinished):
            left, done, whys = await self._comparer.finish(handle)
            for entry in left:
                one = Repair(entry, RepairAction.REBUILD)
                findings[_place(one)] = _finding(one, done=done.get(entry.id), why=whys.get(entry.id, ""))

    async def _look(
        self, roots: frozenset[Path], handle: Handle, *, fix: bool, faults_only: bool, deep: bool
    ) -> VerifyReport:
        context = self._context
        entries = unread_parts = 0
        findings: dict[tuple[object, ...], Finding] = {}
        if fix and not faults_only:
            await self._finish(findings, handle, asked=True)
        if not faults_only:
            scan = await self._scanner.scan_stores(roots, named=True, full=True, progress=handle.progress)
            entries, unread_parts = scan.entries, scan.unread
        known = [one for one in await context.read(all_stores) if not roots or one.store in roots]
        states = {one.id: one.state for one in known}
        if faults_only:
            # What was found there before says nothing of now.
            states |= await asyncio.to_thread(_states_now, known)
        stores = [FoundStore(one.id, one.origin, one.via) for one in known if states[one.id] is StoreState.OK]
        unread = sum(one in _UNREAD for one in states.values())
        for found in stores:
            for one in await asyncio.to_thread(self._faults, found, fix=fix):
                findings[one.store, one.fault] = one
        compared, damaged = None, 0
        wanted = frozenset(found.store.root for found in stores)
        if faults_only:
            damaged = await asyncio.to_thread(self._known, wanted)
        else:
            rebuilt = await self._entries(wanted, findings, handle, fix=fix)
            if deep:
                compared = await self._comparer.compare(wanted, handle, rebuilt)
                await self._drop_what_is_over(wanted, findings)
        every = tuple(findings.values())
        return VerifyReport(
            fix, len(stores), entries, every, deep=compared, unread=unread, unread_parts=unread_parts, damaged=damaged
        )

    def _known(self, roots: frozenset[Path]) -> int:
        """Count the entries of which the catalog knows that programs hang, fail or compile again for them."""
        entries = [one for one in self._context.catalog.read(defective_entries) if one.entry.id.store.root in roots]
        return sum(defective(one) and one.entry.effect is not Effect.DEAD for one in entries)

    def _faults(self, found: FoundStore, *, fix: bool) -> list[Finding]:
        now = self._context.clock()
        since = writer_since(found, writers_since())
        result: list[Finding] = []
        doctor = table.KINDS[found.store.kind].doctor
        for fault in doctor.faults(found, now, since) if doctor is not None else ():
            action = RepairAction.CLEAR if fault.clearable else RepairAction.LEAVE
            done = fix and fault.clearable and doctor is not None and doctor.clear(found.store, fault, now, since)
            result.append(
                Finding(found.store, None, None, None, fault.code, fault.effect, fault.message, "", action, done)
            )
        return result

    async def _entries(
        self,
        roots: frozenset[Path],
        findings: dict[tuple[object, ...], Finding],
        handle: Handle,
        *,
        fix: bool,
        due: frozenset[EntryId] | None = None,
    ) -> frozenset[EntryId]:
        """Find what is wrong with entries, and mend it; give those that were compiled again.

        With ``due`` nobody asks for it: then only these are mended, and nothing damaged waits for a compiler.
        """
        rebuilt: set[EntryId] = set()
        tried: set[Tried] = set()
        refused: dict[EntryId, NoRecipe] = {}
        known: set[tuple[EntryId, Defect | None]] = set()
        whys: dict[EntryId, str] = {}
        try:
            for _ in range(_ROUNDS):
                repairs = await asyncio.to_thread(self._decide, roots, tried, refused, due)
                acting = [one for one in repairs if one.action is not RepairAction.LEAVE]
                for one in repairs:
                    if one.action is not RepairAction.LEAVE or (one.entry.id, one.entry.defect) not in known:
                        findings[_place(one)] = _finding(one, done=None, why=whys.get(one.entry.id, ""))
                        known.add((one.entry.id, one.entry.defect))
                if not fix or not acting:
                    break
                handle.progress(0, len(acting), "mending")
                # What takes no compiler waits for none.
                at_once = [one for one in acting if one.action is not RepairAction.REBUILD]
                acting = at_once or acting
                done: dict[EntryId, RepairAction] = {}
                try:
                    if at_once:
                        async with self._context.locks.storing:
                            await to_its_end(self._mend, at_once, done)
                    else:
                        more, said = await self._comparer.replace(acting, handle, at_once=due is not None)
                        done |= more
                        whys |= said
                finally:
                    for one in acting:
                        why = whys.get(one.entry.id, "")
                        findings[_place(one)] = _finding(one, done=done.get(one.entry.id), why=why)
                        tried.add((one.entry.id, one.entry.stamp, one.action))
                rebuilt |= {one for one, action in done.items() if action is RepairAction.REBUILD}
                await self._scanner.scan_stores(frozenset(one.entry.id.store.root for one in acting))
            if fix:
                await self._drop_what_is_over(roots, findings)
        finally:
            # Who is cancelled has mended so much all the same.
            if fix and (mended := Counter(one.action for one in findings.values() if one.done)):
                what = ", ".join(f"{number} {action}" for action, number in sorted(mended.items()))
                total = mended.total()
                self._context.events.post("mended", f"{total} defects are mended: {what}", {"mended": str(total)})
        return frozenset(rebuilt)

    async def _drop_what_is_over(self, roots: frozenset[Path], findings: dict[tuple[object, ...], Finding]) -> None:
        """Leave out what was wrong only by what is mended or proven now: nobody has to do anything about it."""
        still = {(one.entry.id, one.entry.defect) for one in await asyncio.to_thread(self._remedies, roots)}
        for key, finding in list(findings.items()):
            if finding.ref is not None and not finding.done and key[:2] not in still:
                del findings[key]

    def _decide(
        self,
        roots: frozenset[Path],
        tried: Collection[Tried],
        refused: dict[EntryId, NoRecipe],
        due: frozenset[EntryId] | None,
    ) -> Sequence[Repair]:
        """Decide what to do; what is to be compiled again is read, and if that cannot be it is decided anew."""
        while True:
            repairs = self._remedies(roots, tried, refused, due)
            before = len(refused)
            for entry in [one.entry for one in repairs if one.action is RepairAction.REBUILD]:
                recipe = self._context.recipe(entry)
                if isinstance(recipe, NoRecipe):
                    refused[entry.id] = recipe
            if len(refused) == before:
                return repairs

    def _remedies(
        self,
        roots: frozenset[Path],
        tried: Collection[Tried] = (),
        refused: Mapping[EntryId, NoRecipe] | None = None,
        due: frozenset[EntryId] | None = None,
    ) -> Sequence[Repair]:
        catalog = self._context.catalog
        entries = [one.entry for one in catalog.read(defective_entries) if one.entry.id.store.root in roots]
        trusted = catalog.read(trusted_digests)
        compiling = due is None or self._context.settings.schedule.replay
        offered = self._context.present.offered if compiling else ()
        every = plan_mending(entries, offered, trusted, tried, refused)
        return every if due is None else tuple(one for one in every if one.entry.id in due)

    def _mend(self, repairs: Sequence[Repair], done: dict[EntryId, RepairAction]) -> None:
        """Do what takes no compiler, and note in ``done`` what was done."""
        in_place = [one for one in repairs if one.action in _IN_PLACE]
        there = {one.id for one in answering(one.entry for one in in_place)}
        some = [one for one in in_place if one.entry.id in there]
        results = dict(table.mend(some, self._context.problems.failed))
        for root in {one.store.root for one, mended in results.items() if mended}:
            self._context.problems.worked(root)
        done.update((one.entry.id, one.action) for one in in_place if results.get(one.entry.id))
        going = [one for one in repairs if one.action not in _IN_PLACE]
        gone = quarantine(self._context, [one.entry for one in going])
        done.update((one.entry.id, one.action) for one in going if gone.get(one.entry.id))

    # -- bit by bit -----------------------------------------------------------------------------------------------

    async def scrub(self) -> int:
        """Read the next part of the stores again, as if it were new; give how many entries that were."""
        part = await asyncio.to_thread(self.progress.next_part)
        read = 0

        def due(key: EntryKey) -> bool:
            nonlocal read
            # Whole groups: its neighbours decide what an entry is worth.
            mine = zlib.crc32(group(key).encode()) % PARTS == part
            read += mine
            return mine

        await self._scanner.scan_stores(again=due)
        await self.tell()
        return read

    async def tell(self) -> None:
        """Show in the status whether a program has changed after it was written: no runtime ever does that."""
        context = self._context

        def ask() -> int:
            query = EntryQuery(defect=CHANGED.code, limit=1)
            return context.catalog.read(entry_page, query, present=(), now=context.clock()).total

        changed = await asyncio.to_thread(ask)
        if not changed:
            context.problems.clear("digest-changed")
            return
        problem = Problem(
            "digest-changed",
            f"{changed} compiled programs changed after they were written: a failing disk, or somebody's hand",
            "see: xpucachectl ls --defect bin-changed; xpucachectl verify --fix mends or replaces them",
        )
        if problem not in context.problems.all():
            context.events.post("alarm", problem.message, {"changed": str(changed)})
        context.problems.note(problem)


def _states_now(stores: Iterable[StoreStatus]) -> dict[Store, StoreState]:
    """Return which stores cannot be read now, and which are there that were not."""
    away = StoreState.MISSING
    found = {one.id: StoreState.UNREADABLE for one in stores if not readable(one.store)}
    return {one.id: StoreState.OK for one in stores if one.state is away and there(one.store)} | found


def _place(one: Repair) -> tuple[object, ...]:
    return one.entry.id, one.entry.defect, one.entry.stamp


def _finding(one: Repair, *, done: RepairAction | None, why: str = "") -> Finding:
    """Return what is wrong with an entry, what was done about it, if anything was, and why not what is better."""
    entry = one.entry
    if entry.defect is None:
        message = f"an entry without a defect needs no remedy: {entry.id.key}"
        raise ValueError(message)
    words = [entry.detail] if entry.detail else []
    if why := why or one.why:
        words.append(f"not compiled again: {why}")
    action = done or one.action
    return Finding.of(
        entry.id, entry.defect, entry.effect or entry.defect.effect, "; ".join(words), action, done=done is not None
    )
