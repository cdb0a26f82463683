"""Decide: what is done about each thing that is wrong in a store, asked or not, and what to compile again.  Pure.

Mended in place is what is whole and only hidden: behind a dead program's lock, behind a gap, by its mode, or in another
entry's place.  A damaged program is compiled again from the entry's own source, if the driver that it is for is in use
here.  What else the runtime never reads, or what makes programs fail, hang or compile at every start, leaves the store:
whole ones into the trash, damaged ones into quarantine.  What a lower slot hides is mended when that slot is, so it is
looked at again afterwards; and what could not be mended in one way is mended in the next.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from xpucached.domain.defects import CHANGED, Effect, RepairAction
from xpucached.domain.names import group
from xpucached.domain.plans import NoRecipe, Rebuild, ReplayReason
from xpucached.domain.stores import UNSETTLED, EntryState, ImageFormat
from xpucached.domain.trash import Repair, Unproven

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from xpucached.domain.names import KindName
    from xpucached.domain.plans import IndexedEntry
    from xpucached.domain.stores import Entry, EntryId, Store
    from xpucached.domain.targets import Target

Tried = tuple["EntryId", str, RepairAction]
"""An entry, its stamp, and what was done about it."""


def plan_mending(
    entries: Iterable[Entry],
    offered: Collection[Target] = (),
    trusted: Mapping[EntryId, str] | None = None,
    tried: Collection[Tried] = (),
    refused: Mapping[EntryId, NoRecipe] | None = None,
) -> tuple[Repair, ...]:
    """Decide about every entry that has a defect, in the order in which they were given.

    ``offered`` is what drivers in use here compile for, ``trusted`` are the digests that what has changed had when it
    was first seen whole, ``tried`` is what was done already, and ``refused`` are those of which reading showed that
    they cannot be compiled again.
    """
    every = list(entries)
    context = _RepairContext(every, offered, trusted or {}, tried, refused or {})
    return tuple(context.repair(one) for one in every if one.defect is not None)


class _RepairContext:
    """What the decisions about entries have in common."""

    def __init__(
        self,
        entries: Sequence[Entry],
        offered: Collection[Target],
        trusted: Mapping[EntryId, str],
        tried: Collection[Tried],
        refused: Mapping[EntryId, NoRecipe],
    ) -> None:
        self._offered = offered
        self._trusted = trusted
        self._tried = tried
        self._refused = refused
        self._used = {_group(one) for one in entries if one.state is EntryState.OK}
        self._covered = {(one.id.store, one.before) for one in entries if one.defect is not None and one.defect.covers}
        changed = [
            one for one in entries if one.defect == CHANGED and (one.id, one.stamp, RepairAction.SWAP_BACK) not in tried
        ]
        self._swaps, self._waiting = _swaps(changed, self._trusted)

    def repair(self, entry: Entry) -> Repair:
        """Choose what has not been tried."""
        defect = entry.defect
        if defect is None or entry.effect is Effect.HARMLESS or entry.state in UNSETTLED:
            return Repair(entry, RepairAction.LEAVE)
        ways = defect.superseded if defect.superseded and _group(entry) in self._used else defect.repairs
        why = ""
        for action in ways:
            if (entry.id, entry.stamp, action) in self._tried:
                continue
            if action is RepairAction.SWAP_BACK:
                if entry.id in self._swaps:
                    return Repair(entry, action, self._swaps[entry.id])
                if entry.id in self._waiting:
                    return Repair(entry, RepairAction.LEAVE)
                continue
            if action is RepairAction.REBUILD and (why := self._against(entry)):
                continue
            return Repair(entry, action, why=why)
        return Repair(entry, RepairAction.LEAVE, why=why)

    def _against(self, entry: Entry) -> str:
        """Return why an entry is not compiled again; empty if it is."""
        if (entry.id.store, entry.id.key) in self._covered:
            return "a whole one in a higher slot takes its place"
        if entry.image is None:
            return "it holds nothing that could be compiled"
        if (recipe := self._refused.get(entry.id) or unfit(entry)) is not None:
            return recipe.words
        return "" if entry.environment in self._offered else "the driver that it is for is not in use here"


def _swaps(changed: Sequence[Entry], trusted: Mapping[EntryId, str]) -> tuple[dict[EntryId, Entry], frozenset[EntryId]]:
    """Find pairs that change places now, at least one of which comes to its own, and those that wait for a later round.

    What has a program that another one misses waits, too.
    """
    there: defaultdict[tuple[Store, str | None], list[Entry]] = defaultdict(list)
    for one in changed:
        there[one.id.store, one.digest].append(one)
    # A hundred thousand may hold the same: each is looked at once, and not for each that misses what it has.
    left = {place: iter(some) for place, some in there.items()}
    swaps: dict[EntryId, Entry] = {}
    waiting: set[EntryId] = set()
    missed: set[tuple[Store, str | None]] = set()
    for one in changed:
        place = one.id.store, trusted.get(one.id)
        if place[1] in (None, one.digest) or place not in there:
            continue
        missed.add(place)
        waiting.add(one.id)
        if one.id in swaps:
            continue
        other = next((each for each in left[place] if each.id not in swaps), None)
        if other is not None:
            swaps[one.id], swaps[other.id] = other, one
    return swaps, frozenset(waiting.union(each.id for place in missed for each in there[place]))


def _group(entry: Entry) -> tuple[Store, str]:
    return entry.id.store, group(entry.id.key)


def unfit(entry: Entry) -> NoRecipe | None:
    """Return what the catalog already knows to stand against compiling an entry again; reading it may show more."""
    if entry.image is not ImageFormat.SPIRV:
        return NoRecipe.NATIVE
    return NoRecipe.CONSTANTS if entry.constants else None


def plan_comparing(
    entries: Iterable[IndexedEntry],
    offered: Collection[Target],
    rebuildable: Collection[KindName],
    told: Collection[KindName] = (),
) -> tuple[tuple[Rebuild, ...], Counter[Unproven]]:
    """Decide which entries to compile again for comparing; count the others with the reason.

    ``rebuildable`` are the kinds whose entries can be compiled without their programs, ``told`` those of them of which
    only runs tell what entries are for.
    """
    todo: list[Rebuild] = []
    unproven: Counter[Unproven] = Counter()
    for one in entries:
        entry = one.entry
        why: Unproven | None = None
        if entry.state is EntryState.UNFINISHED:
            why = Unproven.CHANGED
        elif entry.state is EntryState.UNREAD:
            why = Unproven.UNREADABLE
        elif entry.state is EntryState.DEFECTIVE and not (entry.defect and entry.defect.whole):
            why = Unproven.DAMAGED
        elif entry.id.store.kind not in rebuildable:
            why = Unproven.KIND
        elif entry.environment is None and entry.id.store.kind in told:
            why = Unproven.UNRECORDED
        elif entry.environment not in offered:
            why = Unproven.OTHER_DRIVER
        elif entry.digest is None:
            why = Unproven.UNREADABLE
        elif (recipe := unfit(entry)) is not None:
            why = Unproven(recipe.value)
        if why is None and entry.environment is not None:
            todo.append(Rebuild(one, entry.environment, ReplayReason.ASKED))
        elif why is not None:
            unproven[why] += 1
    return tuple(todo), unproven
