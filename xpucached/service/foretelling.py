"""Foretelling: where programs will look for what they had compiled when the driver's compiler alone has changed."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from xpucached.catalog import foretold
from xpucached.catalog.recipes import PROVEN
from xpucached.kinds.table import KINDS

if TYPE_CHECKING:
    from xpucached.domain.names import EntryKey
    from xpucached.domain.recipes import Unforetold
    from xpucached.service.context import Context

_BATCH: Final = 200
"""So many are noted at a time."""

_SECONDS: Final = 20.0
"""After so many the rest waits for the next look: hashing a megabyte takes most of a second."""


async def look(context: Context) -> None:
    """Foretell, from recipes, under which keys programs will look now that they meet another compiler."""
    if not await asyncio.to_thread(_look, context):
        context.on_look()


def _look(context: Context) -> bool:
    """Return whether nothing is left."""
    until = time.monotonic() + _SECONDS
    while some := context.catalog.read(foretold.unforetold, PROVEN, _BATCH):
        if time.monotonic() > until:
            return False
        context.catalog.write(foretold.note, [(one, _foretell(context, one)) for one in some])
    return True


def _foretell(context: Context, one: Unforetold) -> EntryKey | None:
    recorder = KINDS[one.entry.store.kind].recorder if one.entry.store.kind in KINDS else None
    told = context.recipes.recorded(one.entry.store.kind, one.entry.key)
    return None if recorder is None or told is None else recorder.foretell(one.entry, told, one.target)
