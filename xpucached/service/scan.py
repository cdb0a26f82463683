"""Scan: what is in the stores, looked at and recorded."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached.catalog import departed
from xpucached.catalog.moved import next_waiting, take_along
from xpucached.catalog.scans import known_entries, record_scan
from xpucached.catalog.stores import all_stores, came_last, forget_store, known_keys, last_thorough_scan
from xpucached.domain.activity import FileAct
from xpucached.domain.reports import ScanReport
from xpucached.domain.stores import Delta, EntryId, KnownEntry, Scan, StoreState
from xpucached.errors import CatalogError, Conflict, NotFound
from xpucached.kinds.table import KINDS
from xpucached.processes.cancellation import to_its_end, until_cancelled
from xpucached.service.owners import answers
from xpucached.service.store_finder import writer_since, writers_since

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from xpucached.domain.activity import FileEvent
    from xpucached.domain.names import EntryKey
    from xpucached.domain.stores import FoundStore, Store
    from xpucached.service.context import Context
    from xpucached.service.store_finder import StoreFinder

log = logging.getLogger(__name__)

_THOROUGH: Final = timedelta(days=1)
"""So long, but until the next boot, a look goes by the directories.  In its place no runtime writes into a file."""

_ON_ITS_WAY: Final = timedelta(minutes=10)
"""So long, where a host spares its disk, what a program wrote may not be on it."""

_TOUCHED: Final = 10_000
"""Leaves of a store of which it is remembered that somebody wrote there; where it is more, all are looked at."""


_FORGOTTEN: Final = 2000
"""Rows of what went that are forgotten at a time: who else has something to note waits meanwhile."""
_ROUNDS: Final = 100
"""So often it is asked at one look what is to be forgotten."""


def _sum(a: Delta, b: Delta) -> Delta:
    return replace(
        b,
        added=a.added + b.added,
        changed=a.changed + b.changed,
        vanished=a.vanished + b.vanished,
        unread=a.unread + b.unread,
    )


class StoreScanner:
    """Keeps the catalog equal to the stores."""

    def __init__(self, context: Context, finder: StoreFinder) -> None:
        self._context = context
        self.finder = finder
        self._touched: dict[Path, set[str]] = {}
        self._touching = threading.Lock()
        self._taken_along = False  #: since the start, of which an earlier end may have kept us

    async def scan_stores(
        self,
        roots: frozenset[Path] = frozenset(),
        *,
        named: bool = False,
        full: bool = False,
        thorough: bool = False,
        again: Callable[[EntryKey], bool] | None = None,
        progress: Callable[[int, int, str], None] | None = None,
    ) -> ScanReport:
        """Look at these stores, or at all that can be found, and record what they hold.

        What seems unchanged is not read again, unless ``full`` or ``again`` says so.  ``thorough`` looks at every file
        even where no directory changed, which else is done once a day.  Of ``roots`` those are passed over that are no
        stores of ours any more.  Raises `NotFound` for them, or `Conflict`, if somebody has ``named`` these.
        """
        began = time.monotonic()
        # What others look at for the first time meanwhile, this look does not know of.
        known = {} if roots else {one.id: one.scanned for one in await self._context.read(all_stores)}
        found, writers = await asyncio.to_thread(self.finder.find, frozenset() if full or thorough else roots)
        wanted = [one for one in found if not roots or one.store.root in roots]
        # Who asks for a store wants to hear if it is none any more; what a job has done in it meanwhile is done.
        missing = roots - {one.store.root for one in wanted} if named else None
        if missing:
            for problem in self.finder.problems:
                if Path(problem.subject) in missing:
                    raise Conflict(problem.message, hint=problem.hint)
            raise NotFound(
                f"no store at {', '.join(sorted(map(str, missing)))}",
                hint="see: xpucachectl stores; further ones can be listed as stores.paths in the configuration",
            )
        total = Delta()
        loop = asyncio.get_running_loop()

        def far(number: int, root: Path, entries: int) -> None:
            if progress:
                seen = f"{root}: {entries} entries" if entries else str(root)
                loop.call_soon_threadsafe(progress, number, len(wanted), seen)

        failed: Exception | None = None
        for number, one in enumerate(wanted):
            seen = functools.partial(far, number, one.store.root)
            seen(0)
            try:
                since = await asyncio.to_thread(writer_since, one, writers)
                async with self._context.locks.storing:
                    delta = await to_its_end(
                        self.scan, one, since, full=full, thorough=thorough, again=again, seen=seen
                    )
            except CatalogError:
                raise
            except Exception as error:  # noqa: BLE001 - raised below: one store must not hide the others
                log.warning("%s could not be looked at: %r", one.store.root, error)
                failed = failed or error
            else:
                total = replace(_sum(total, delta), entries=total.entries + delta.entries)
        if failed is not None:
            raise failed
        if progress:
            progress(len(wanted), len(wanted), "")
        await self._forget({store: known[store] for store in known.keys() - {one.store for one in found}})
        if total.vanished or not roots:
            await asyncio.to_thread(self._forget_departed)
        await self._take_along(total)
        if total.added or total.changed or total.vanished:
            self._context.events.post(
                "scanned",
                f"{total.added} new, {total.changed} changed, {total.vanished} vanished entries",
                {"added": str(total.added), "changed": str(total.changed), "vanished": str(total.vanished)},
            )
        seconds = time.monotonic() - began
        return ScanReport(len(wanted), total.added, total.changed, total.vanished, total.entries, seconds, total.unread)

    async def _take_along(self, delta: Delta) -> None:
        """Note of what a store brought along that was moved, or of which another one is gone, where it came from."""
        if delta.added or delta.vanished or not self._taken_along:
            # What fails, or is cut short, is left to the next look.
            self._taken_along = False
            some = await self._context.read(next_waiting)
            while some is not None:
                await self._context.write(take_along, some)
                some = await self._context.read(next_waiting, some)
            self._taken_along = True

    def scan(
        self,
        found: FoundStore,
        writer_since: datetime | None,
        *,
        full: bool = False,
        thorough: bool = False,
        again: Callable[[EntryKey], bool] | None = None,
        seen: Callable[[int], None] = lambda _entries: None,
    ) -> Delta:
        """Look at one store, in this thread, with the lock ``storing``; ``seen`` hears how many entries that were."""
        now = self._context.clock()
        looked = self._context.catalog.read(last_thorough_scan, found.store)
        with self._touching:
            touched = self._touched.pop(found.store.root, set())
        # What was on its way to the disk when the machine went down is empty now, in directories that are as they were.
        up = timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME))
        recent = looked is not None and timedelta() <= now - looked < min(_THOROUGH, up)
        quick = recent and len(touched) < _TOUCHED and not (full or thorough)
        # Or it has its length, and zeros: what came last before is read again.
        before = looked is not None and now - looked >= up
        last = self._context.catalog.read(came_last, found.store, now - up) if before else None
        since = () if last is None else (last - _ON_ITS_WAY,)

        def known() -> Iterator[KnownEntry]:
            for row in known_entries(self._context.catalog, found.store, *since):
                if full or (again is not None and again(row.key)):
                    yield KnownEntry(row.key)
                elif row.key.rpartition("/")[0] in touched:
                    yield KnownEntry(row.key, row.stamp)
                else:
                    yield row

        whole = False
        try:
            delta, ours, whole = self._look(found, now, known(), writer_since, seen, quick=quick)
        finally:
            if touched and not whole:
                with self._touching:
                    self._touched.setdefault(found.store.root, set()).update(touched)
        if ours:
            # A predecessor was killed while it removed these: finish, and look again.
            for key in until_cancelled(ours):
                KINDS[found.store.kind].remover.sweep(EntryId(found.store, key))
            log.info("finished removals of a predecessor: %d", len(ours))
            second = self._look(found, now, known(), writer_since, seen, quick=quick)[0]
            delta = replace(_sum(delta, second), unread=second.unread)
        return delta

    def _look(
        self,
        found: FoundStore,
        now: datetime,
        known: Iterable[KnownEntry],
        writer_since: datetime | None,
        seen: Callable[[int], None],
        *,
        quick: bool,
    ) -> tuple[Delta, tuple[EntryKey, ...], bool]:
        """Look and record; give what changed, what is ours to finish, and whether the look came to its end."""
        total = Delta()
        looked = 0
        ours: tuple[EntryKey, ...] = ()
        silent = Scan(found, now, StoreState.UNREADABLE, None, notes=("its file system does not answer",), vanished=())
        parts: Iterable[Scan] = (silent,)
        scanner = KINDS[found.store.kind].scanner
        if answers(found.store.root):
            parts = scanner.parts(found, now, known, writer_since, quick=quick)
        for part in parts:
            left = self._leave(found.store) if part.state is StoreState.MISSING else 0
            delta = self._context.catalog.write(record_scan, part, scanner.architecture)
            total = _sum(total, replace(delta, vanished=delta.vanished + left, unread=part.unread))
            ours = part.ours
            looked += len(part.entries) + len(part.unchanged)
            seen(looked)
            if part.state is StoreState.UNREADABLE:
                self._context.problems.unreadable(found.store.root, "; ".join(part.notes))
            else:
                self._context.problems.look(found.store.root)
        if part.state is StoreState.OK:
            self._context.problems.faults(found.store.root, part.faults)
        return total, ours, part.state is StoreState.OK

    def _leave(self, store: Store) -> int:
        """Forget all entries of a store that is not there any more, and let others write in between; count them."""
        count = 0
        while some := self._context.catalog.write(departed.leave_some, store):
            count += some
        return count

    def take_touch(self, file_event: FileEvent) -> None:
        """Hear what a process did in a store; from any thread.  What it wrote is looked at, however quick the look."""
        if file_event.act is FileAct.WRITTEN:
            with self._touching:
                some = self._touched.setdefault(file_event.store, set())
                if len(some) < _TOUCHED:
                    some.add(file_event.path.rpartition("/")[0])

    async def entries_now(self, stores: Sequence[FoundStore]) -> frozenset[EntryId]:
        """Look at stores, and give what is in them."""

        def look() -> frozenset[EntryId]:
            writers = writers_since()
            for one in stores:
                self.scan(one, writer_since(one, writers))
            return frozenset(
                EntryId(one.store, key) for one in stores for key in self._context.catalog.read(known_keys, one.store)
            )

        async with self._context.locks.storing:
            return await to_its_end(look)

    async def _forget(self, gone: Mapping[Store, datetime | None]) -> None:
        """Forget stores that were not found; who has looked at one since they were last looked at has found it."""
        catalog = self._context.catalog
        sure = {store: at for store, at in gone.items() if await asyncio.to_thread(answers, store.root)}

        def forget() -> None:
            for one in catalog.read(all_stores):
                if one.id in sure and sure[one.id] == one.scanned:
                    self._leave(one.id)
                    catalog.write(forget_store, one.id)
                    self._context.problems.forget(str(one.store))

        if sure:
            async with self._context.locks.storing:
                await to_its_end(forget)

    def _forget_departed(self) -> None:
        # Who makes and removes entries all the time shall fill no catalog.
        catalog = self._context.catalog
        for _ in range(_ROUNDS):
            overdue = catalog.read(departed.overdue)
            for start in range(0, len(overdue), _FORGOTTEN):
                catalog.write(departed.forget, overdue[start : start + _FORGOTTEN])
            if not overdue:
                return
