"""Decide: what leaves the trash for good, and why.  Pure.

What is in it goes before any entry of a store does: when its time is over, when there is more of it than may be, when
the stores and it together hold more than they may, and when the file system has less free than it shall.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from xpucached.domain.trash import Drop, DropReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from xpucached.domain.names import TrashRef
    from xpucached.domain.plans import DiskSpace, Policy
    from xpucached.domain.stores import Store
    from xpucached.domain.trash import Trashed

    _Place = tuple[Store, TrashRef]

SCARCE: Final = 16 << 20
"""With less than so many bytes free nothing is kept that nobody needs: soon programs could not write at all."""


def plan_trash(
    items: Sequence[Trashed],
    disk_space: Iterable[DiskSpace],
    allocated: int,
    policy: Policy,
    now: datetime | None,
    coming: Mapping[Store, int] | None = None,
) -> tuple[Drop, ...]:
    """Decide what goes, the oldest first.  ``allocated`` is what the stores hold without it.

    Where a trash holds more than ``items``, as ``disk_space`` says, the rest counts for the bounds, too.
    ``now`` is None while the clock is not to be trusted: then nothing goes for its age.  Nor does what came here at a
    time that is still to come, for then the clock was wrong.

    ``coming`` are the bytes that are about to be written into stores: what is in the trash makes room for them.
    """
    coming = coming or {}
    disk_space = tuple(disk_space)
    unseen = Counter({room.store: room.trash for room in disk_space})
    for one in items:
        unseen[one.store] -= one.allocated
    unseen = +unseen
    # By its store, too: one that was copied with its trash has the same names in it.
    drops: dict[_Place, Drop] = {}
    kept: list[Trashed] = []
    for one in sorted(items, key=lambda one: (one.at, one.ref)):
        if not one.whole and one.allocated == 0:
            drops[_place(one)] = Drop(one, DropReason.DEBRIS)
        elif policy.trash_keep <= 0 or (now is not None and (now - one.at).total_seconds() >= policy.trash_keep):
            drops[_place(one)] = Drop(one, DropReason.EXPIRED)
        else:
            kept.append(one)
    stores: defaultdict[Store, list[Trashed]] = defaultdict(list)
    for one in kept:
        stores[one.store].append(one)
    for store, some in stores.items():
        there = sum(one.allocated for one in some) + unseen[store]
        _shrink(some, there - policy.trash_max_bytes, DropReason.OVER_BOUND, drops)
    if policy.max_bytes is not None:
        there = sum(one.allocated for one in kept if _place(one) not in drops) + unseen.total()
        _shrink(kept, allocated + sum(coming.values()) + there - policy.max_bytes, DropReason.PRESSURE, drops)
    written: Counter[int] = Counter()
    for room in disk_space:
        written[room.device] += coming.get(room.store, 0)
    devices = {room.store: room.device for room in disk_space}
    gone: Counter[int | None] = Counter()
    for drop in drops.values():
        gone[devices.get(drop.item.store)] += drop.item.allocated
    rooms = [(room.device, room.free) for room in disk_space if room.free is not None]
    for device, free in dict(sorted(rooms, reverse=True)).items():
        # What goes of one store is room for all on its file system.
        wanted = max(policy.min_free_bytes or 0, SCARCE) + written[device]
        here = (one for one in kept if devices.get(one.store) == device)
        _shrink(here, wanted - free - gone[device], DropReason.PRESSURE, drops)
    return tuple(drops.values())


def _shrink(items: Iterable[Trashed], excess: int, reason: DropReason, drops: dict[_Place, Drop]) -> None:
    """Let the oldest go until so many bytes are gone; what goes already is gone already."""
    for one in items:
        if excess <= 0:
            return
        if _place(one) not in drops:
            drops[_place(one)] = Drop(one, reason)
            excess -= one.allocated


def _place(one: Trashed) -> _Place:
    return one.store, one.ref
