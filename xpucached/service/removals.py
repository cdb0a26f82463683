"""What a predecessor of this daemon had begun when it ended is finished at the start: removals, and mendings.

What such a mending had put into quarantine, and not compiled yet, is mended by the look that follows.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from xpucached.catalog.intents import fulfil
from xpucached.kinds import table
from xpucached.service.owners import answers

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from xpucached.domain.names import EntryKey
    from xpucached.domain.stores import EntryId, Store
    from xpucached.service.context import Context

log = logging.getLogger(__name__)

_BATCH: Final = 256
"""So many are finished between two moments at which that is noted."""


async def finish(context: Context, intents: Mapping[EntryId, datetime]) -> None:
    """Finish removals, bit by bit, so that who is killed meanwhile need not begin anew.

    Those in stores that do not answer wait for the next start: nobody else is held up.
    """
    roots = {one.store.root for one in intents}
    there = await asyncio.to_thread(lambda: {root for root in roots if answers(root)})
    some = [one for one in intents if one.store.root in there]
    for start in range(0, len(some), _BATCH):
        batch = some[start : start + _BATCH]
        await asyncio.to_thread(table.sweep, batch)
        await asyncio.to_thread(_bring_back, {one: intents[one] for one in batch})
        await context.write(fulfil, batch)


def _bring_back(intents: Mapping[EntryId, datetime]) -> None:
    """Bring back what a mending had in quarantine, where nothing is in its place, so that the next look mends it."""
    stores: defaultdict[Store, dict[EntryKey, datetime]] = defaultdict(dict)
    for one, at in intents.items():
        stores[one.store][one.key] = at
    for store, some in stores.items():
        kind = table.KINDS.get(store.kind)
        if kind is None or kind.doctor is None:
            continue
        try:
            if back := kind.doctor.take_up(store, some):
                log.warning("mending was cut short by the end of the daemon, and goes on: %s: %d", store.root, back)
        except OSError as error:
            log.warning("mending was cut short by the end of the daemon, and is not gone on with: %s", error)
