"""Decide: what goes where limits are passed, by what keeping it is worth.  Pure.

Worth is what making an entry again would take, times how likely somebody uses it, for each byte that it occupies: so a
small budget keeps what takes longest to make.  The cost was measured where a run or a rebuild of ours made the entry;
for the others it is reckoned from the measured ones by size.  The likelihood halves with every two weeks without use.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from xpucached.domain.plans import Evict, EvictReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from xpucached.domain.plans import DiskSpace, IndexedEntry, Policy, Subtotal
    from xpucached.domain.stores import Store

_T = TypeVar("_T")


class Rank(IntEnum):
    """In which order entries go where there is want of room; those of one rank by their worth."""

    STALE = 0  #: a run told for which driver and compiler it is, and those are not here
    NEVER_AGAIN = 1  #: its program asks for another one at each start
    OTHER = 2
    NEEDED = 3  #: a registered model uses it

    @property
    def words(self) -> str:
        """Why it goes, as the beginning of a sentence."""
        return _RANK_WORDS.get(self, "least worth keeping")


_RANK_WORDS: Final = {
    Rank.STALE: "stale: the driver or compiler that it was made with is not here",
    Rank.NEVER_AGAIN: "its program has another key for it at each start, so nobody will look for this one",
}

HALF: Final = 14 * 86400.0
ABSENT: Final = 0.1
"""How likely an entry is used, against another, whose driver is not here."""

RATE: Final = 2e-5
"""Seconds a byte where nothing was measured.  Only what is measured makes a difference between two entries."""


def effective(policy: Policy, room: DiskSpace | None, store: Store) -> Policy:
    """Return the policy that holds for one store: its own limits before its user's, those before all others'."""
    for one in policy.limits:
        if one.store == store.root or (one.store is None and room is not None and one.user == room.owner):
            unused = policy.max_unused if one.max_unused is None else one.max_unused
            policy = replace(
                policy,
                keep_driver_generations=_first(one.keep_driver_generations, policy.keep_driver_generations),
                max_unused=None if unused == math.inf else unused,
                min_free_bytes=_first(one.min_free_bytes, policy.min_free_bytes),
                grace=_first(one.grace, policy.grace),
            )
    return policy


def _first(given: _T | None, otherwise: _T) -> _T:
    return otherwise if given is None else given


def measured_rate(entries: Iterable[IndexedEntry]) -> float:
    """Return the seconds that a byte takes to make: the middle one of what was measured.

    The catalog reckons the same for a million entries (`preselect_entries`), to find those that are worth least.
    """
    rates = sorted(
        one.cost / size
        for one in entries
        if one.cost is not None and (size := one.entry.image_size or one.entry.allocated) > 0
    )
    return rates[len(rates) // 2] if rates else RATE


def worth(now: datetime, usable: Callable[[IndexedEntry], bool], rate: float) -> Callable[[IndexedEntry], float]:
    """Return a function that tells what a byte of an entry is worth, in seconds; see `measured_rate`."""

    def value(one: IndexedEntry) -> float:
        entry, cost = one.entry, one.cost
        size = entry.allocated or 1
        if cost is None:
            # What has no image of its own (run-time compiled) is reckoned by its files.
            cost = rate * (entry.image_size or entry.allocated)
        idle = (now - one.last_used).total_seconds()
        worth = cost / size if idle <= 0 else cost / size * math.exp2(-idle / HALF)
        return worth if usable(one) else worth * ABSENT

    return value


def limited(policy: Policy) -> bool:
    """Return whether there is any limit of bytes."""
    return (
        policy.max_bytes is not None
        or policy.quota is not None
        or bool(policy.min_free_bytes)
        or any(one.max_bytes is not None or one.min_free_bytes for one in policy.limits)
    )


def holds(subtotals: Iterable[Subtotal]) -> defaultdict[Store, int]:
    """Return the allocated bytes of each store."""
    held: defaultdict[Store, int] = defaultdict(int)
    for one in subtotals:
        held[one.store] += one.allocated
    return held


@dataclasses.dataclass(slots=True)
class Pool:
    """Stores that share a limit."""

    stores: frozenset[Store]
    excess: float  #: bytes that must go
    reason: EvictReason
    detail: str  #: how much there is, and how much may be


def over_limits(
    left: Callable[[], Sequence[IndexedEntry]],
    rank: Callable[[IndexedEntry], Rank],
    every: Sequence[IndexedEntry],
    policies: Mapping[Store, Policy],
    policy: Policy,
    disk_space: Mapping[Store, DiskSpace],
    considered: frozenset[EvictReason],
    gone: Sequence[Evict],
    others: Sequence[Subtotal] = (),
) -> list[Evict]:
    """Take from ``left``, which gives what may go in its order, by ``rank`` first, until every limit is kept.

    ``every`` is what is there, with what may not go; ``gone`` is what goes already: where a store lies, that is room
    which the host does not see yet.
    """
    freed: defaultdict[Store, int] = defaultdict(int)
    for one_gone in gone:
        freed[one_gone.entry.entry.id.store] += one_gone.entry.entry.allocated
    sizes: defaultdict[int, int] = defaultdict(int)
    stores: dict[int, Store] = {}
    for one in every:
        # The entries share their few stores: to hash each one's path would take longer than all the rest.
        store = one.entry.id.store
        number = id(store)
        if number not in stores:
            stores[number] = store
        sizes[number] += one.entry.allocated
    held = holds(others)
    for number, store in stores.items():
        held[store] += sizes[number]
    taken: dict[int, Evict] = {}
    order: Sequence[IndexedEntry] | None = None
    for pool in pools(held, policies, policy, disk_space, freed):
        if pool.reason not in considered:
            continue
        mine = {number for number, store in stores.items() if store in pool.stores}
        # What went for one limit counts for the next.
        excess = pool.excess - sum(
            one.entry.entry.allocated for one in taken.values() if id(one.entry.entry.id.store) in mine
        )
        if excess > 0 and order is None:
            order = left()
        for one in order or ():
            if excess <= 0:
                break
            entry = one.entry
            if entry.allocated > 0 and id(entry.id.store) in mine and id(one) not in taken:
                excess -= entry.allocated
                taken[id(one)] = Evict(one, pool.reason, f"{rank(one).words}; {pool.detail}")
    return list(taken.values())


def pools(
    held: Mapping[Store, int],
    policies: Mapping[Store, Policy],
    policy: Policy,
    disk_space: Mapping[Store, DiskSpace],
    freed: Mapping[Store, int],
) -> Iterable[Pool]:
    """Yield the stores that hold more together than they may, with how much."""
    every = frozenset(held)
    devices: defaultdict[int, set[Store]] = defaultdict(set)
    owners: defaultdict[int, set[Store]] = defaultdict(set)
    for store, room in disk_space.items():
        if room.free is not None:
            devices[room.device].add(store)
        if store in held and room.owner is not None:
            owners[room.owner].add(store)
    for stores in devices.values():
        wanted = max((policies.get(store, policy).min_free_bytes or 0 for store in stores), default=0)
        free = min(disk_space[store].free or 0 for store in stores)
        free += sum(disk_space[store].trash + freed.get(store, 0) for store in stores)
        if wanted and free < wanted:
            detail = f"{free} bytes can be had on its file system, {wanted} shall be free"
            yield Pool(frozenset(stores), wanted * 100 / policy.low_water - free, EvictReason.SPACE, detail)
    for one in policy.limits:
        if one.store is not None and one.max_bytes is not None:
            stores = {store for store in held if store.root == one.store}
            yield from _limited(frozenset(stores), one.max_bytes, held, policy, "the store holds")
    for owner, stores in sorted(owners.items()):
        own = [one.max_bytes for one in policy.limits if one.user == owner and one.max_bytes is not None]
        limit = own[0] if own else policy.quota
        if limit is not None:
            yield from _limited(frozenset(stores), limit, held, policy, f"the stores of user {owner} hold")
    if policy.max_bytes is not None:
        yield from _limited(every, policy.max_bytes, held, policy, "the stores hold")


def _limited(
    stores: frozenset[Store], limit: int, held: Mapping[Store, int], policy: Policy, words: str
) -> Iterable[Pool]:
    total = sum(held[store] for store in stores)
    if total > limit:
        detail = f"{words} {total} bytes, more than the {limit} allowed"
        yield Pool(stores, total - limit * policy.low_water / 100, EvictReason.BUDGET, detail)
