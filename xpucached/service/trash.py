"""The trash of the stores: what is in it, what comes back, what goes for good; and how much room there is."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached.catalog.entries import note_restored
from xpucached.catalog.events import RESTORED
from xpucached.catalog.stores import all_stores
from xpucached.domain.plans import DiskSpace
from xpucached.domain.reports import TrashReport
from xpucached.domain.stores import EntryId, StoreState
from xpucached.domain.trash import LISTED, Drop, DropReason, Restored
from xpucached.errors import Busy, CatalogError, Conflict, NotFound
from xpucached.host import process_table
from xpucached.kinds import model_caches
from xpucached.kinds.table import KINDS, trash_of
from xpucached.planning.trash import plan_trash
from xpucached.processes.cancellation import to_its_end
from xpucached.service.owners import answers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from xpucached.domain.names import TrashRef
    from xpucached.domain.stores import Store, StoreStatus
    from xpucached.domain.trash import Trashed
    from xpucached.service.context import Context
    from xpucached.service.jobs import Handle
    from xpucached.service.model_caches import ModelCaches
    from xpucached.service.scan import StoreScanner

log = logging.getLogger(__name__)

_MOST: Final = LISTED
"""Items of all trashes together that are looked at at a time."""

_LISTED: Final = 5
"""Of those that are called alike, so many are named."""

_PAGES: Final = 100
"""So often a trash is read on; who puts things there all the time does not keep us for ever."""

_NAMES: Final = 15
"""So many directories are named in an event: a field has room for as many, however long their names are."""

_BATCH: Final = 100
"""So many come back before who has cancelled that is heard."""


class TrashKeeper:
    """Looks after what was taken out and may come back."""

    def __init__(self, context: Context, scanner: StoreScanner, caches: ModelCaches | None = None) -> None:
        self._context = context
        self._scanner = scanner
        self._caches = caches

    async def all(self) -> tuple[Trashed, ...]:
        """Return what is in the trash of all stores, the newest first; no more than `LISTED`, if there is more."""
        return await asyncio.to_thread(self._all)

    def _all(self) -> tuple[Trashed, ...]:
        named = itertools.islice((one for one in self._items() if one.key), _MOST)
        return tuple(sorted(named, key=lambda one: (one.at, one.ref), reverse=True))

    def _items(self) -> Iterator[Trashed]:
        stores = [one.id for one in self._readable()]
        stores += [self._caches.store] if self._caches is not None and answers(self._caches.store.root) else []
        # Of what is too much a part is listed: every store has its turn some time.
        random.shuffle(stores)
        return itertools.chain.from_iterable(map(_inside, stores))

    def _chunks(self) -> Iterator[tuple[Trashed, ...]]:
        """Yield all that is in the trashes; mostly at once, and in parts where it is more than fits into memory."""
        some: list[Trashed] = []
        for item in self._items():
            some.append(item)
            if len(some) >= _MOST:
                yield tuple(some)
                some.clear()
        if some:
            yield tuple(some)

    async def _each(self) -> AsyncIterator[tuple[Trashed, ...]]:
        chunks = self._chunks()
        while some := await asyncio.to_thread(next, chunks, ()):
            yield some

    def disk_space(self, trashes: Mapping[Store, int] | None = None, *, held: bool = True) -> tuple[DiskSpace, ...]:
        """Tell of every store how much room there is where it lies, and what of it is ``held`` open.  Blocks.

        ``trashes`` are known already.  Raises `Busy` if it cannot be seen now what is held.
        """
        stores = self._readable()
        try:
            opened = process_table.held(frozenset(one.store for one in stores)) if held else {}
        except OSError as error:
            unknown = f"it cannot be seen now which entries programs have open: {error.strerror}"
            raise Busy(unknown, hint="nothing was removed; try again, or raise LimitNOFILE= of its unit") from error
        rooms = [_room(one, opened.get(one.store, frozenset()), trashes) for one in stores]
        ours = self._caches.disk_space() if self._caches is not None else None
        return tuple(rooms) if ours is None else (*rooms, ours)

    def _readable(self) -> list[StoreStatus]:
        """Return the stores that could be read when they were last looked at, and answer still."""
        known = self._context.catalog.read(all_stores)
        return [one for one in known if one.state is StoreState.OK and answers(one.store)]

    # -- back, and away -------------------------------------------------------------------------------------------

    async def _named(self, refs: Sequence[str]) -> tuple[Trashed, ...]:
        """Return those whose refs begin so, or those of the entries that they were.

        Raises `NotFound` for one that is not there, or may mean several.
        """
        items: dict[str, list[Trashed]] = {ref: [] for ref in refs}
        entries: dict[str, list[Trashed]] = {ref: [] for ref in refs}
        async for chunk in self._each():
            await asyncio.to_thread(_match, chunk, items, entries)
        found: dict[tuple[Store, TrashRef], Trashed] = {}
        for ref in refs:
            some = items[ref] or entries[ref]
            if len(some) != 1:
                said = "several things in the trash begin" if some else "nothing in the trash begins"
                raise NotFound(f"{said} with {ref!r}", hint=_apart(some))
            found[some[0].store, some[0].ref] = some[0]
        return tuple(found.values())

    def restoring(self, refs: Sequence[str], *, everything: bool = False) -> Callable[[Handle], Awaitable[TrashReport]]:
        """Return the work of a job: bring these back, or all that is whole."""

        async def work(handle: Handle) -> TrashReport:
            async with self._context.turn(handle):
                report = TrashReport()
                async for some in self._each() if everything else _once(await self._named(refs)):
                    wanted = tuple(one for one in some if one.whole and not one.quarantined) if everything else some
                    for one in wanted:
                        if one.quarantined:
                            raise Conflict(
                                f"{one.ref} is in quarantine: {one.detail}", hint="it would only do harm; let it go"
                            )
                    report = _together(report, await self._restore(wanted, handle, len(report.restored)))
                return report

        return work

    async def _restore(self, wanted: Sequence[Trashed], handle: Handle, before: int) -> TrashReport:
        """Bring these back bit by bit; ``before`` of the same job so many others came."""
        restored: list[tuple[Store, Restored]] = []
        # What goes to one leaf comes in a row: its slots are walked through once.
        ahead = sorted(wanted, key=lambda one: one.key.rpartition("/")[0])
        try:
            for start in range(0, len(ahead), _BATCH):
                handle.progress(before + start, before + len(ahead), "restoring")
                async with self._context.locks.storing:
                    await to_its_end(_restore, ahead[start : start + _BATCH], restored)
        finally:
            # Who is cancelled has brought so many back all the same.
            report = await self._restored(restored)
        return report

    async def _restored(self, restored: Sequence[tuple[Store, Restored]]) -> TrashReport:
        context = self._context
        stores = {store for store, _ in restored if store.kind in KINDS}
        places = [EntryId(store, one.key) if one.key is not None else None for store, one in restored]
        back = [place for place in places if place is not None]
        try:
            if stores:
                await self._scanner.scan_stores(frozenset(store.root for store in stores))
            await context.write(note_restored, [one for one in back if one.store in stores], context.clock())
        except CatalogError as error:
            # They are back; only that they may go again by themselves before their time.
            log.warning("it could not be noted what was restored: %s", error.message)
        if back:
            # What somebody has brought back is not what a removed model left.
            models = [one.key for one in back if one.store.kind == model_caches.KIND and "/" not in one.key]
            for first in range(0, len(models) or 1, _NAMES):
                some = models[first : first + _NAMES]
                count = len(some) + (0 if first else len(back) - len(models))
                context.events.post(
                    RESTORED,
                    "1 entry is back" if count == 1 else f"{count} entries are back",
                    {"restored": str(count), **({"models": " ".join(some)} if some else {})},
                )
            # An eviction that waited for its turn goes by what is written down.
            await context.events.flush()
        return TrashReport(
            tuple(
                replace(one, entry=place.ref) if place is not None else one
                for (_, one), place in zip(restored, places, strict=True)
            )
        )

    def emptying(self, refs: Sequence[str]) -> Callable[[Handle], Awaitable[TrashReport]]:
        """Return the work of a job: let these go for good, or everything."""

        async def work(handle: Handle) -> TrashReport:
            async with self._context.turn(handle):
                report = TrashReport()
                async for some in _once(await self._named(refs)) if refs else self._each():
                    gone = await self._drop([Drop(one, DropReason.ASKED) for one in some])
                    report = _together(report, _dropped(gone))
                return report

        return work

    async def tidy(self, coming: Mapping[Store, int] | None = None) -> TrashReport:
        """Let go what the policy lets go, and what takes the room of bytes that are about to be written into stores.

        The lock ``changing`` must be held, or nothing else be at work.
        """
        context = self._context
        # Read before the question, so that a clock that is set in between is not trusted.
        read = context.clock()
        now = read if context.trusts_the_clock() else None

        def decide(items: Sequence[Trashed], gone: Mapping[Store, int]) -> Sequence[Drop]:
            allocated = sum(one.allocated for one in context.catalog.read(all_stores))
            # What a trash takes is asked for once: of a large one that takes as long as it takes to read it.
            if not disk_space:
                known: Counter[Store] = Counter()
                for item in items:
                    known[item.store] += item.allocated
                disk_space.extend(self.disk_space(known if len(items) < _MOST else None, held=False))
            freed: Counter[int] = Counter()
            for one in disk_space:
                freed[one.device] += gone[one.store]
            left = [
                replace(
                    one,
                    trash=max(0, one.trash - gone[one.store]),
                    free=None if one.free is None else one.free + freed[one.device],
                )
                for one in disk_space
            ]
            return plan_trash(items, left, allocated, context.settings.policy, now, coming)

        disk_space: list[DiskSpace] = []
        gone: Counter[Store] = Counter()
        report = TrashReport()
        async for items in self._each():
            some = await self._drop(await asyncio.to_thread(decide, items, gone))
            for one in some:
                gone[one.store] += one.allocated
            report = _together(report, _dropped(some))
        return report

    async def kept(self, taken: Mapping[Store, int], *, tidy: bool) -> int:
        """Return how much stays of so many bytes that came into each store's trash just now; see `tidy`.

        Unless it shall ``tidy``, what a tidying leaves at most.
        """
        left: Mapping[Store, int] = {}
        if tidy and (await self.tidy()).freed:
            left = {one.store: one.trash for one in await asyncio.to_thread(self.disk_space, held=False)}
        # The oldest goes first: what is left is what came just now.
        bound = self._context.settings.policy.trash_max_bytes
        return sum(min(size, left.get(store, bound)) for store, size in taken.items())

    async def _drop(self, drops: Sequence[Drop]) -> Sequence[Trashed]:
        """Let these go for good; give those that are gone."""
        if not drops:
            return ()

        ended: list[Trashed] = []

        def drop() -> None:
            gone: set[tuple[Store, TrashRef]] = set()
            problems = self._context.problems
            for store, refs in _by_store(one.item for one in drops):
                trash = trash_of(store.kind)
                some = trash.discard(store, refs, problems.failed) if trash is not None else frozenset()
                if some.issuperset(refs):
                    problems.worked(store.root)
                gone |= {(store, ref) for ref in some}
            ended.extend(one.item for one in drops if (one.item.store, one.item.ref) in gone)

        try:
            async with self._context.locks.storing:
                await to_its_end(drop)
        finally:
            # Who is cancelled has let so many go all the same.
            if ended:
                freed = sum(one.allocated for one in ended)
                self._context.events.post(
                    "trash-emptied", f"{len(ended)} gone for good, {freed} bytes", {"freed": str(freed)}
                )
        return ended


def _by_store(items: Iterable[Trashed]) -> Iterable[tuple[Store, tuple[TrashRef, ...]]]:
    stores: defaultdict[Store, list[TrashRef]] = defaultdict(list)
    for one in items:
        stores[one.store].append(one.ref)
    return [(store, tuple(refs)) for store, refs in stores.items()]


def _apart(some: Sequence[Trashed]) -> str:
    """Return how to name one of these alone: a store that was copied with its trash has the same names in it."""
    if len({one.ref for one in some}) == len(some):
        return "see: xpucachectl trash list"
    names = [f"{EntryId(one.store, one.key).ref} (of {one.store.root})" for one in some[:_LISTED]]
    return f"name one by the entry that it was: {', '.join(names)}{' …' if len(some) > _LISTED else ''}"


def _restore(wanted: Sequence[Trashed], restored: list[tuple[Store, Restored]]) -> None:
    for store, refs in _by_store(wanted):
        trash = trash_of(store.kind)
        restored += [(store, one) for one in trash.restore(store, refs)] if trash is not None else ()


def _inside(store: Store) -> Iterator[Trashed]:
    """Yield what is in the trash of a store, bit by bit."""
    trash = trash_of(store.kind)
    some = trash.trash(store) if trash is not None else ()
    for _ in range(_PAGES):
        if trash is None or not some:
            return
        yield from some
        some = trash.trash(store, some[-1].ref)
    log.warning("the trash of %s holds more than is looked at", store.root)


def _match(chunk: Iterable[Trashed], items: Mapping[str, list[Trashed]], entries: Mapping[str, list[Trashed]]) -> None:
    """Collect what is meant by refs: of each the first few, by its own ref and by that of the entry that it was."""
    # Thousands of refs may be given, of a hundred thousand things: each of these is looked up, and not compared.
    lengths = sorted({len(ref) for ref in items})
    for one in chunk:
        for meant, name in ((items, one.ref), (entries, EntryId(one.store, one.key).ref)) if one.key else ():
            for length in lengths:
                found = meant.get(name[:length]) if length <= len(name) else None
                if found is not None and len(found) <= _LISTED:
                    found.append(one)


async def _once(some: tuple[Trashed, ...]) -> AsyncIterator[tuple[Trashed, ...]]:
    yield some


def _together(report: TrashReport, more: TrashReport) -> TrashReport:
    return TrashReport(report.restored + more.restored, report.dropped + more.dropped, report.freed + more.freed)


def _dropped(gone: Sequence[Trashed]) -> TrashReport:
    return TrashReport((), tuple(one.ref for one in gone), sum(one.allocated for one in gone))


def _room(status: StoreStatus, held: frozenset[str], trashes: Mapping[Store, int] | None) -> DiskSpace:
    store = status.id
    kind = KINDS[store.kind]
    if trashes is not None:
        trash = trashes.get(store, 0)
    else:
        trash = kind.trash.trash_size(store) if kind.trash is not None else 0
    keys = frozenset(key for path in held if (key := kind.scanner.key(path)) is not None)
    try:
        there, room = store.root.stat(), os.statvfs(store.root)
    except OSError:
        return DiskSpace(store, status.owner, trash=trash, held=keys)
    return DiskSpace(
        store,
        status.owner,
        there.st_dev,
        room.f_bavail * room.f_frsize,
        trash,
        keys,
        not room.f_flag & os.ST_NOATIME,
    )
