"""Decide: what `verify --fix` does about each thing that is wrong in a store.  Pure.

Mended in place is what is whole and only hidden: behind a dead program's lock, behind a gap, or by
its mode.  What the runtime never
reads, or what makes programs fail, hang or compile at every start, leaves the store: whole ones into the trash, damaged
ones into quarantine.  What a lower slot hides is mended when that slot is, so it is looked at again afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xpucached.domain import Effect, EntryState, Flaw, MendAction, Remedy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xpucached.domain import Entry

_IN_PLACE: Final = {
    Flaw.STALE_LOCK: MendAction.UNLOCK,
    Flaw.BEHIND_GAP: MendAction.CLOSE_GAP,
    Flaw.BIN_UNREADABLE: MendAction.READABLE,
    Flaw.SRC_UNREADABLE: MendAction.READABLE,
}
_WAITS: Final = frozenset({Flaw.SHADOWED})


def plan_mending(entries: Iterable[Entry]) -> tuple[Remedy, ...]:
    """Decide about every entry that has a flaw, in the order in which they were given."""
    return tuple(Remedy(one, _action(one)) for one in entries if one.flaw is not None)


def _action(entry: Entry) -> MendAction:
    flaw = entry.flaw
    if flaw is None or entry.effect is Effect.HARMLESS or flaw in _WAITS or entry.state is EntryState.UNFINISHED:
        return MendAction.LEAVE
    if flaw in _IN_PLACE:
        return _IN_PLACE[flaw]
    return MendAction.TRASH if flaw is Flaw.DUPLICATE else MendAction.QUARANTINE
