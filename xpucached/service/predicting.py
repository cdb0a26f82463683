"""Predicting: where programs will look for what they had compiled when the driver's compiler alone has changed."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from xpucached.catalog import predicted
from xpucached.catalog.recipes import PROVEN
from xpucached.kinds.table import KINDS
from xpucached.service.owners import answers

if TYPE_CHECKING:
    from xpucached.domain.names import EntryKey
    from xpucached.domain.recipes import Unpredicted
    from xpucached.service.context import Context

log = logging.getLogger(__name__)

_BATCH: Final = 200
"""So many are noted at a time."""

_SECONDS: Final = 20.0
"""After so many the rest waits for the next look: hashing a megabyte takes most of a second."""


async def look(context: Context) -> None:
    """Predict, from recipes, under which keys programs will look now that they meet another compiler."""
    if not await asyncio.to_thread(_look, context):
        context.on_look()


def _look(context: Context) -> bool:
    """Return whether nothing is left that can be predicted now."""
    until = time.monotonic() + _SECONDS
    unread: set[Unpredicted] = set()
    progress = False
    while some := [one for one in _wanted(context, len(unread)) if one not in unread]:
        told: list[tuple[Unpredicted, EntryKey | None]] = []
        there = {root for root in {one.entry.store.root for one in some} if answers(root)}
        for one in some:
            if one.entry.store.root not in there:
                unread.add(one)
                continue
            try:
                told.append((one, _predict(context, one)))
            except OSError as error:
                # It may be read the next time, and that nobody can tell would be final.
                log.debug("where programs will look cannot be predicted now: %s: %s", one.entry.key, error)
                unread.add(one)
            if time.monotonic() > until:
                break
        context.catalog.write(predicted.note, told)
        progress = progress or bool(told)
        if time.monotonic() > until:
            # What cannot be read would only take the next look as long.
            return not progress
    return True


def _wanted(context: Context, unread: int) -> tuple[Unpredicted, ...]:
    return context.catalog.read(predicted.unpredicted, PROVEN, _BATCH + unread)


def _predict(context: Context, one: Unpredicted) -> EntryKey | None:
    """Return where programs will look; None if nobody can tell.  Raises OSError if that is not known now."""
    recorder = KINDS[one.entry.store.kind].recorder if one.entry.store.kind in KINDS else None
    if recorder is None:
        return None
    told = context.recipes.recorded(one.entry.store.kind, one.entry.key)
    if told is None:
        raise FileNotFoundError("its recipe cannot be read")
    return recorder.predict(one.entry, told, one.target)
