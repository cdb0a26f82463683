"""What a predecessor of this daemon had begun when it ended is finished at the start: removals, and mendings.

What such a mending had put into quarantine, and not compiled yet, comes back for the look that follows, which mends it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from xpucached.catalog.intents import fulfil
from xpucached.domain.defects import RepairAction
from xpucached.domain.plans import EvictReason
from xpucached.kinds import table
from xpucached.service.owners import answers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from xpucached.domain.names import EntryKey
    from xpucached.domain.stores import EntryId, Store
    from xpucached.domain.trash import Trashed
    from xpucached.service.context import Context

log = logging.getLogger(__name__)

_BATCH: Final = 256
"""So many are finished between two moments at which that is noted."""


async def finish(context: Context, intents: Sequence[EntryId]) -> None:
    """Finish removals, bit by bit, so that who is killed meanwhile need not begin anew.

    Those in stores that do not answer wait for the next start: nobody else is held up.
    """
    roots = {one.store.root for one in intents}
    there = await asyncio.to_thread(lambda: {root for root in roots if answers(root)})
    some = [one for one in intents if one.store.root in there]
    for start in range(0, len(some), _BATCH):
        batch = some[start : start + _BATCH]
        await asyncio.to_thread(table.sweep, batch)
        await asyncio.to_thread(_bring_back, batch)
        await context.write(fulfil, batch)


def _bring_back(entries: Iterable[EntryId]) -> None:
    """Bring back from quarantine what can be compiled again, where nothing is in its place."""
    repairs = {name: {action for one in kind.defects for action in one.repairs} for name, kind in table.KINDS.items()}
    wanted: defaultdict[Store, set[EntryKey]] = defaultdict(set)
    for one in entries:
        if RepairAction.REBUILD in repairs.get(one.store.kind, ()) and not _is_held(one):
            wanted[one.store].add(one.key)
    for store, keys in wanted.items():
        trash = table.trash_of(store.kind)
        if trash is None:
            continue
        found: dict[EntryKey, Trashed] = {}
        after = ""
        while part := trash.trash(store, after):
            after = part[-1].ref
            for item in part:
                damaged = item.reason is EvictReason.DEFECTIVE and item.quarantined and item.whole
                if damaged and item.key in keys and (item.key not in found or found[item.key].at < item.at):
                    found[item.key] = item
        for result in trash.restore(store, tuple(one.ref for one in found.values())):
            what = "comes back, to be mended" if not result.detail else f"stays in quarantine: {result.detail}"
            log.warning("mending was cut short by the end of the daemon: %s: %s %s", store.root, result.ref, what)


def _is_held(entry: EntryId) -> bool:
    """Return whether anything lies where an entry was, or that cannot be told."""
    try:
        with os.scandir((entry.store.root / entry.key).parent) as files:
            return next(files, None) is not None
    except FileNotFoundError:
        return False
    except OSError:
        return True
