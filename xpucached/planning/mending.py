"""Decide: what `verify --fix` does about each thing that is wrong in a store, and what to compile again.  Pure.

Mended in place is what is whole and only hidden: behind a dead program's lock, behind a gap, by its mode, or in another
entry's place.  A damaged program is compiled again from the entry's own source, if the driver that it is for is in use
here.  What else the runtime never reads, or what makes programs fail, hang or compile at every start, leaves the store:
whole ones into the trash, damaged ones into quarantine.  What a lower slot hides is mended when that slot is, so it is
looked at again afterwards; and what could not be mended in one way is mended in the next.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from xpucached.domain import (
    Effect,
    EntryState,
    Flaw,
    ImageFormat,
    MendAction,
    Rebuild,
    Remedy,
    ReplayReason,
    Unproven,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from xpucached.domain import Entry, EntryId, Environment, IndexedEntry, Store

Tried = tuple["EntryId", str, MendAction]
"""An entry, its stamp, and what was done about it."""

_PROGRAM: Final = (MendAction.REBUILD, MendAction.QUARANTINE)
_WAYS: Final[Mapping[Flaw, tuple[MendAction, ...]]] = {
    Flaw.STALE_LOCK: (MendAction.UNLOCK,),
    Flaw.BEHIND_GAP: (MendAction.CLOSE_GAP,),
    Flaw.SRC_UNREADABLE: (MendAction.READABLE,),
    # Who may not read it does not know that it is damaged: it goes only if another one takes its place.
    Flaw.BIN_UNREADABLE: (MendAction.READABLE, MendAction.REBUILD),
    Flaw.BIN_CHANGED: (MendAction.SWAP_BACK, *_PROGRAM),
    **dict.fromkeys(
        (
            Flaw.BIN_EMPTY,
            Flaw.BIN_TRUNCATED,
            Flaw.BIN_MISSING,
            Flaw.BIN_NOT_A_FILE,
            Flaw.BIN_LENGTH_ABSURD,
            Flaw.BIN_COUNT_WRONG,
            Flaw.BIN_PAYLOAD_DAMAGED,
        ),
        _PROGRAM,
    ),
    Flaw.DUPLICATE: (MendAction.TRASH,),
}
"""What is done, the best first.  What is not named here is damaged, and only in the way."""

_WAITS: Final = frozenset({Flaw.SHADOWED})

_WHOLE: Final = frozenset({Flaw.DUPLICATE, Flaw.BEHIND_GAP, Flaw.SHADOWED, Flaw.BIN_CHANGED})
"""Flawed, and yet there is a program that can be compared: another may be tried first, or it may be good after all."""


def plan_mending(
    entries: Iterable[Entry],
    offered: Collection[Environment] = (),
    trusted: Mapping[EntryId, str] | None = None,
    tried: Collection[Tried] = (),
) -> tuple[Remedy, ...]:
    """Decide about every entry that has a flaw, in the order in which they were given.

    ``offered`` is what drivers in use here compile for, ``trusted`` are the digests that what has changed had when it
    was first seen whole, and ``tried`` is what was done already.
    """
    every = list(entries)
    ground = _Ground(every, offered, trusted or {}, tried)
    return tuple(ground.remedy(one) for one in every if one.flaw is not None)


class _Ground:
    """What the decisions about entries have in common."""

    def __init__(
        self,
        entries: Sequence[Entry],
        offered: Collection[Environment],
        trusted: Mapping[EntryId, str],
        tried: Collection[Tried],
    ) -> None:
        self._offered = offered
        self._trusted = trusted
        self._tried = tried
        self._used = {_leaf(one) for one in entries if one.state is EntryState.OK}
        self._covered = {
            (_leaf(one), one.detail.removeprefix("of slot ")) for one in entries if one.flaw is Flaw.SHADOWED
        }
        changed = [
            one
            for one in entries
            if one.flaw is Flaw.BIN_CHANGED and (one.id, one.stamp, MendAction.SWAP_BACK) not in tried
        ]
        self._partners, self._waiting = _partners(changed, self._trusted)

    def remedy(self, entry: Entry) -> Remedy:
        """Choose what has not been tried."""
        flaw = entry.flaw
        if flaw is None or entry.effect is Effect.HARMLESS or flaw in _WAITS or entry.state is EntryState.UNFINISHED:
            return Remedy(entry, MendAction.LEAVE)
        ways = _WAYS.get(flaw, (MendAction.QUARANTINE,))
        if flaw is Flaw.STALE_LOCK and _leaf(entry) in self._used:
            # Programs use another slot by now: what nobody has read since its writer died must not come before it.
            ways = (MendAction.TRASH,)
        for action in ways:
            if (entry.id, entry.stamp, action) in self._tried:
                continue
            if action is MendAction.SWAP_BACK:
                if entry.id in self._partners:
                    return Remedy(entry, action, self._partners[entry.id])
                if entry.id in self._waiting:
                    return Remedy(entry, MendAction.LEAVE)
                continue
            if action is MendAction.REBUILD and not self._rebuildable(entry):
                continue
            return Remedy(entry, action)
        return Remedy(entry, MendAction.LEAVE)

    def _rebuildable(self, entry: Entry) -> bool:
        covered = (_leaf(entry), entry.id.key.rpartition("/")[2]) in self._covered
        return not covered and entry.environment in self._offered and unfit(entry) is None


def _partners(
    changed: Sequence[Entry], trusted: Mapping[EntryId, str]
) -> tuple[dict[EntryId, Entry], frozenset[EntryId]]:
    """Find pairs that change places now, at least one of which comes to its own, and those that wait for a later round.

    What has a program that another one misses waits, too.
    """
    there: defaultdict[tuple[Store, str | None], list[Entry]] = defaultdict(list)
    for one in changed:
        there[one.id.store, one.digest].append(one)
    partners: dict[EntryId, Entry] = {}
    waiting: set[EntryId] = set()
    for one in changed:
        wanted = trusted.get(one.id)
        found = there.get((one.id.store, wanted), []) if wanted not in (None, one.digest) else []
        waiting.update(each.id for each in found)
        if found:
            waiting.add(one.id)
        other = next((each for each in found if each.id not in partners), None)
        if one.id not in partners and other is not None:
            partners[one.id], partners[other.id] = other, one
    return partners, frozenset(waiting)


def _leaf(entry: Entry) -> tuple[Store, str]:
    return entry.id.store, entry.id.key.rpartition("/")[0]


def unfit(entry: Entry) -> Unproven | None:
    """Say what the catalog already knows to stand against compiling an entry again; reading it may show more."""
    if entry.image is not ImageFormat.SPIRV:
        return Unproven.NATIVE
    return Unproven.CONSTANTS if entry.constants else None


def plan_comparing(
    entries: Iterable[IndexedEntry], offered: Collection[Environment]
) -> tuple[tuple[Rebuild, ...], Counter[Unproven]]:
    """Decide which entries to compile again for comparing; count the others with the reason."""
    todo: list[Rebuild] = []
    unproven: Counter[Unproven] = Counter()
    for one in entries:
        entry = one.entry
        why: Unproven | None = None
        if entry.state is EntryState.UNFINISHED:
            why = Unproven.CHANGED
        elif entry.state is EntryState.FLAWED and entry.flaw not in _WHOLE:
            why = Unproven.DAMAGED
        elif entry.environment not in offered:
            why = Unproven.OTHER_DRIVER
        elif entry.digest is None:
            why = Unproven.UNREADABLE
        why = why or unfit(entry)
        if why is None and entry.environment is not None:
            todo.append(Rebuild(one, entry.environment, ReplayReason.ASKED))
        elif why is not None:
            unproven[why] += 1
    return tuple(todo), unproven
