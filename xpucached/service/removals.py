"""Removals that a predecessor of this daemon had begun when it was killed: they are finished at the start."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from xpucached.catalog.intents import fulfil
from xpucached.kinds import table
from xpucached.service.owners import answers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xpucached.domain.stores import EntryId
    from xpucached.service.context import Context

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
        await context.write(fulfil, batch)
