"""The trash of the stores: what is in it, what comes back, what goes for good; and how much room there is."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached import host
from xpucached.domain.plans import DiskSpace
from xpucached.domain.stores import EntryId, StoreState
from xpucached.domain.trash import Drop, DropReason, Restored, TrashReport
from xpucached.errors import Conflict, NotFound
from xpucached.kinds.table import KINDS
from xpucached.planning.trash import plan_trash

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from xpucached.domain.names import TrashRef
    from xpucached.domain.stores import Store, StoreStatus
    from xpucached.domain.trash import Trashed
    from xpucached.service.inventory import Inventory
    from xpucached.service.jobs import Handle

log = logging.getLogger(__name__)

_MOST: Final = 100_000
"""Items of all trashes together that are looked at at a time."""


class TrashKeeper:
    """Looks after what was taken out and may come back."""

    def __init__(self, inventory: Inventory, changing: asyncio.Lock, trusts_the_clock: Callable[[], bool]) -> None:
        """``changing`` is held while something comes back or goes for good."""
        self._inventory = inventory
        self._changing = changing
        self._trusts_the_clock = trusts_the_clock

    async def all(self) -> tuple[Trashed, ...]:
        """Give what is in the trash of all stores, the newest first."""
        found = await asyncio.to_thread(self._all)
        return tuple(sorted((one for one in found if one.key), key=lambda one: (one.at, one.ref), reverse=True))

    def _all(self) -> tuple[Trashed, ...]:
        known = self._inventory.catalog.stores()
        stores = [status.id for status in known if status.state is StoreState.OK]
        # Where there is more than fits into memory, every store has its turn some time.
        random.shuffle(stores)
        return tuple(itertools.islice((item for store in stores for item in _inside(store)), _MOST))

    def rooms(self) -> tuple[DiskSpace, ...]:
        """Tell of every store how much room there is where it lies.  Blocks."""
        stores = [one for one in self._inventory.catalog.stores() if one.state is StoreState.OK]
        held = host.held(frozenset(one.store for one in stores))
        return tuple(_room(one, held.get(one.store, frozenset())) for one in stores)

    # -- back, and away -------------------------------------------------------------------------------------------

    async def _named(self, refs: Sequence[str]) -> tuple[Trashed, ...]:
        """Give those whose refs begin so, or those of the entries that they were.

        Raises `NotFound` for one that is not there.
        """
        everything = await self.all()
        found: dict[TrashRef, Trashed] = {}
        for ref in refs:
            some = [one for one in everything if one.ref.startswith(ref)]
            if not some:
                some = [one for one in everything if EntryId(one.store, one.key).ref.startswith(ref)]
            if len(some) != 1:
                several = "several things" if some else "nothing"
                raise NotFound(f"{several} in the trash begins with {ref!r}", hint="see: xpucachectl trash list")
            found[some[0].ref] = some[0]
        return tuple(found.values())

    def restoring(self, refs: Sequence[str], *, everything: bool = False) -> Callable[[Handle], Awaitable[TrashReport]]:
        """Give the work of a job: bring these back, or all that is whole."""

        async def work(handle: Handle) -> TrashReport:
            handle.progress(0, 0, "waiting for its turn")
            async with self._changing:
                if everything:
                    wanted = tuple(one for one in await self.all() if one.whole and not one.quarantined)
                else:
                    wanted = await self._named(refs)
                for one in wanted:
                    if one.quarantined:
                        raise Conflict(
                            f"{one.ref} is in quarantine: {one.detail}", hint="it would only do harm; let it go"
                        )
                handle.progress(0, len(wanted), "restoring")
                async with self._inventory.storing:
                    restored = await asyncio.to_thread(_restore, wanted)
                return await self._restored(wanted, restored)

        return work

    async def _restored(self, wanted: Sequence[Trashed], restored: Sequence[Restored]) -> TrashReport:
        inventory = self._inventory
        stores = {one.ref: one.store for one in wanted}
        if wanted:
            await inventory.scan_stores(frozenset(store.root for store in stores.values()))
        places = {one.ref: EntryId(stores[one.ref], one.key) for one in restored if one.key is not None}
        back = list(places.values())
        await asyncio.to_thread(inventory.catalog.note_restored, back, inventory.clock())
        if back:
            inventory.events.post(
                "restored",
                "1 entry is back" if len(back) == 1 else f"{len(back)} entries are back",
                {"restored": str(len(back))},
            )
        return TrashReport(
            tuple(replace(one, entry=places[one.ref].ref) if one.ref in places else one for one in restored)
        )

    def emptying(self, refs: Sequence[str]) -> Callable[[Handle], Awaitable[TrashReport]]:
        """Give the work of a job: let these go for good, or everything."""

        async def work(handle: Handle) -> TrashReport:
            handle.progress(0, 0, "waiting for its turn")
            async with self._changing:
                wanted = await self._named(refs) if refs else await asyncio.to_thread(self._all)
                return await self._drop([Drop(one, DropReason.ASKED) for one in wanted])

        return work

    async def tidy(self) -> TrashReport:
        """Let go what the policy lets go.  ``changing`` must be held, or nothing else be at work."""
        inventory = self._inventory
        now = inventory.clock() if self._trusts_the_clock() else None

        def decide() -> Sequence[Drop]:
            items = self._all()
            if not items:
                return ()
            allocated = sum(one.allocated for one in inventory.catalog.stores())
            return plan_trash(items, self.rooms(), allocated, inventory.settings.policy, now)

        return await self._drop(await asyncio.to_thread(decide))

    async def _drop(self, drops: Sequence[Drop]) -> TrashReport:
        if not drops:
            return TrashReport()

        def drop() -> frozenset[TrashRef]:
            gone: set[TrashRef] = set()
            problem_list = self._inventory.problem_list
            for store, refs in _by_store(one.item for one in drops):
                trash = KINDS[store.kind].trash
                some = trash.discard(store, refs, problem_list.failed) if trash is not None else frozenset()
                if some.issuperset(refs):
                    problem_list.worked(store.root)
                gone |= some
            return frozenset(gone)

        async with self._inventory.storing:
            gone = await asyncio.to_thread(drop)
        freed = sum(one.item.allocated for one in drops if one.item.ref in gone)
        if gone:
            self._inventory.events.post(
                "trash-emptied", f"{len(gone)} gone for good, {freed} bytes", {"freed": str(freed)}
            )
        return TrashReport((), tuple(one.item.ref for one in drops if one.item.ref in gone), freed)


def _by_store(items: Iterable[Trashed]) -> Iterable[tuple[Store, tuple[TrashRef, ...]]]:
    stores: defaultdict[Store, list[TrashRef]] = defaultdict(list)
    for one in items:
        stores[one.store].append(one.ref)
    return [(store, tuple(refs)) for store, refs in stores.items()]


def _restore(wanted: Sequence[Trashed]) -> list[Restored]:
    found: list[Restored] = []
    for store, refs in _by_store(wanted):
        trash = KINDS[store.kind].trash
        found += trash.restore(store, refs) if trash is not None else ()
    return found


def _inside(store: Store) -> tuple[Trashed, ...]:
    trash = KINDS[store.kind].trash
    return trash.trash(store) if trash is not None else ()


def _room(status: StoreStatus, held: frozenset[str]) -> DiskSpace:
    store = status.id
    kind = KINDS[store.kind]
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
