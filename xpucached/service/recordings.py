"""What the programs of a run tell of their entries: in lines, and in files that they leave in the stores."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec.structs import replace

from xpucached.domain.stores import EntryId
from xpucached.kinds.table import KINDS
from xpucached.processes.output import Trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from xpucached.domain.host import Host
    from xpucached.domain.models import Model
    from xpucached.domain.recipes import Recording
    from xpucached.domain.stores import FoundStore, Store
    from xpucached.processes.results import RunResult
    from xpucached.service.context import Context

log = logging.getLogger(__name__)


def trace(stores: Sequence[FoundStore]) -> Trace:
    """Give what reads what programs tell of their entries in these stores."""
    told = [(one.store, recorder) for one in stores if (recorder := KINDS[one.store.kind].recorder) is not None]

    def read(lines: Iterable[str]) -> tuple[frozenset[EntryId], frozenset[EntryId]]:
        every = tuple(lines)
        created: set[EntryId] = set()
        used: set[EntryId] = set()
        for store, recorder in told:
            told_here = recorder.read(store, every)
            created.update(EntryId(store, key) for key in told_here.created)
            used.update(EntryId(store, key) for key in told_here.used)
        return frozenset(created), frozenset(used)

    return Trace(tuple(mark for _, recorder in told for mark in recorder.MARKS), read)


def unheard(stores: Sequence[FoundStore], directory: Path) -> str:
    """Say why programs that work in this directory do not tell of their entries in one of these stores, if so."""
    told = (KINDS[one.store.kind].recorder for one in stores)
    return next((why for recorder in told if recorder is not None and (why := recorder.unheard(directory))), "")


def left(stores: Sequence[FoundStore], before: frozenset[EntryId], host: Host) -> list[tuple[Store, Recording]]:
    """Read, and take away, what programs left in files of the entries that they use."""
    found: list[tuple[Store, Recording]] = []
    for store in (one.store for one in stores):
        recorder = KINDS[store.kind].recorder
        if recorder is not None:
            mine = frozenset(one.key for one in before if one.store == store)
            found.append((store, recorder.collect(store, mine, host)))
    return found


def with_left(
    context: Context, model: Model, done: RunResult, stores: Sequence[FoundStore], before: frozenset[EntryId]
) -> RunResult:
    """Add to what a pass told what it left in files, and keep the recipes."""
    found = left(stores, before, context.present.seen_by(model.name))
    created = done.created.union(EntryId(store, key) for store, one in found for key in one.created)
    used = done.used.union(EntryId(store, key) for store, one in found for key in one.used) - created
    for store, one in found:
        try:
            refused = context.recipes.keep(store.kind, one.recipes, context.clock())
        except OSError as error:
            # The run is proven without them: only what follows the next driver has to be run again.
            log.warning("recipes of a run could not be kept: %s", error)
            continue
        if refused:
            log.warning("recipes that are too large are not kept: %d, of %s", refused, store.root)
    told = any(one.created or one.used for _, one in found)
    return replace(done, created=created, used=used, traced=done.traced or told)
