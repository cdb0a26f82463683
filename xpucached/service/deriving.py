"""Deriving: how entries are compiled of which no run told, from recipes of others that are for the same driver."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from xpucached.catalog import derived
from xpucached.catalog.recipes import PROVEN
from xpucached.errors import CatalogError
from xpucached.kinds.table import KINDS
from xpucached.service.owners import answers

if TYPE_CHECKING:
    from xpucached.domain.names import KindName
    from xpucached.domain.recipes import RecordedRecipe
    from xpucached.domain.stores import EntryId
    from xpucached.domain.targets import Target
    from xpucached.service.context import Context

log = logging.getLogger(__name__)

_BATCH: Final = 100
"""So many are noted at a time."""

_SECONDS: Final = 10.0
"""After so many the rest waits for the next look."""

_MOST_ALIKE: Final = 8
"""Recipes of one target that are tried: programs for a device have nearly all the same in common."""


async def look(context: Context) -> None:
    """Find out how entries are compiled of which no run told, as far as there are recipes for the same driver."""
    try:
        done = await asyncio.to_thread(_look, context)
    except (OSError, CatalogError) as error:
        # Nothing is wrong without it, and what else is looked at does not wait for room on a disk.
        log.warning("what was found out of how entries are compiled could not be kept: %s", error)
        return
    if not done:
        context.on_look()


def _look(context: Context) -> bool:
    """Return whether nothing is left that can be tried now."""
    until = time.monotonic() + _SECONDS
    for name, kind in KINDS.items():
        if kind.recorder is None or not kind.recorder.COMMON:
            continue
        for target, keys in context.catalog.read(derived.examples, name, kind.recorder.COMMON, PROVEN).items():
            told = [context.recipes.recorded(name, key) for key in keys[:_MOST_ALIKE]]
            alike = [one for one in told if one is not None]
            if alike and not _try_all(context, name, target, alike, until):
                return False
    return True


def _try_all(context: Context, kind: KindName, target: Target, alike: list[RecordedRecipe], until: float) -> bool:
    """Try all entries with the recipes of a target; False if the time was not enough for it."""
    recorder = KINDS[kind].recorder
    unread: set[EntryId] = set()
    while recorder is not None and (some := _wanted(context, kind, target, unread)):
        found: list[RecordedRecipe] = []
        tried: list[EntryId] = []
        there = {root for root in {one.store.root for one in some} if answers(root)}
        for one in some:
            if one.store.root not in there:
                unread.add(one)
                continue
            try:
                recipe = recorder.derive(one, alike)
            except OSError as error:
                # It may be read the next time.
                log.debug("how an entry is compiled cannot be found out now: %s: %s", one.key, error)
                unread.add(one)
                continue
            tried.append(one)
            found += [] if recipe is None else [recipe]
            if time.monotonic() > until:
                break
        context.recipes.keep(kind, found, context.clock(), proven=True)
        # What could not be kept, for there is too much, is not tried at each look either.
        context.catalog.write(derived.note_tried, target, tried)
        if time.monotonic() > until:
            # What cannot be read would only take the next look as long.
            return not tried
    return True


def _wanted(context: Context, kind: KindName, target: Target, unread: set[EntryId]) -> list[EntryId]:
    some = context.catalog.read(derived.underived, kind, target, _BATCH + len(unread))
    return [one for one in some if one not in unread]
