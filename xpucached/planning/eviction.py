"""Decide: which entries may go, and why.  Pure.

Kept always: what is being written or open in a process, what is younger than the grace, what somebody has just brought
back from the trash, and what a pinned model can use in a present target.  A defect lifts the last two, but only where
things go for one.  Then, in this order, goes what is

defective    unless the defect is harmless, or only hides the entry until a lower slot of its leaf is mended; what the
             daemon would take by itself it mends before, where it can (`repair`)
superseded   for an older driver of a present device, beyond the generations kept for going back
never came   compiled ahead for a driver that this host has not got since (`Policy.ahead_keep`)
gone         for a device that this host once had and has not had for a while
unused       not used for longer than the policy says
low space    what is least worth keeping, until there is as much room on the file system as there shall be
over budget  what is least worth keeping of the rest, until each store, each user and all together fit
             (`ranking.over_limits`)

For want of room, what nobody will ask for goes first, whatever it is worth (`ranking.Rank`).

Where a model is warm because all lies there that was predicted for another compiler, its proof counts the earlier
compiler's entries: these are neither superseded nor unused, and for want of room they go among the last.

Generations follow a lineage, which is (kind, family, device).  A new driver may change the version string as well as
its own (``OpenCL 3.0`` became ``OpenCL 3.1``), and that is still one lineage.  The two Level Zero adapters name their
families differently (``… Level-Zero`` and ``… Level-Zero V2``), so their entries are two lineages: neither supersedes
the other, because programs with either adapter may run side by side.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from xpucached.domain.plans import Evict, EvictionPlan, EvictReason
from xpucached.domain.stores import EntryState
from xpucached.domain.targets import Origin
from xpucached.planning.eviction_context import EvictionContext, defective
from xpucached.planning.ranking import RATE, limited, measured_rate, over_limits, worth

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from xpucached.domain.host import Host, Presence
    from xpucached.domain.models import Model
    from xpucached.domain.names import ModelName
    from xpucached.domain.plans import DiskSpace, IndexedEntry, Policy, Subtotal
    from xpucached.domain.stores import EntryId
    from xpucached.domain.targets import Lineage, Target


_GONE_AFTER: Final = timedelta(days=14)
"""A device may be away for a repair or a journey (an external GPU), and compiling for it again takes hours.  After two
weeks it is more likely sold; being wrong costs one prewarming."""

_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)

_ORDER: Final = {reason: number for number, reason in enumerate(EvictReason)}


def plan_eviction(
    entries: Iterable[IndexedEntry],
    host: Host,
    presence: Iterable[Presence],
    warm: frozenset[ModelName],
    models: Mapping[ModelName, Model],
    policy: Policy,
    now: datetime,
    *,
    reasons: frozenset[EvictReason] | None = None,
    asked: bool = True,
    disk_space: Iterable[DiskSpace] = (),
    others: Sequence[Subtotal] = (),
    rate: float | None = None,
    predicted: frozenset[ModelName] = frozenset(),
) -> EvictionPlan:
    """Decide which entries may go, in which order, and why.

    ``presence`` is the host's history, ``warm`` names the models that are warm now, ``predicted`` those of them whose
    proof counts by what was predicted, and ``models`` are all that are registered.  With ``reasons`` only those are
    considered.  Without ``asked`` nobody looks the plan over: then a driver that this host never offered is taken for a
    container's while its entries were used lately.  ``disk_space`` tells how much room there is where stores lie.  The
    plan for what this plan leaves is empty.

    ``others`` are there too, but `plan_preselection` says that no decision falls on them; ``rate`` is what a byte of
    all costs.
    """
    every = list(entries)
    known = {one.environment: one for one in presence}
    of_stores = {room.store: room for room in disk_space}
    if rate is None:
        rate = measured_rate(every) if limited(policy) else RATE
    context = EvictionContext(host, known, warm, models, policy, now, asked, of_stores, tuple(others), rate, predicted)
    considered = frozenset(EvictReason) if reasons is None else reasons
    damage_counts = EvictReason.DEFECTIVE in considered
    rest: list[IndexedEntry] = []
    protected: list[IndexedEntry] = []
    for one in every:
        stays = context.protects(one, damage_counts=damage_counts) or (
            one.restored is not None and context.recently_restored(one) and not (damage_counts and defective(one))
        )
        (protected if stays else rest).append(one)
    evict: list[Evict] = []
    before: Mapping[Target, tuple[int, str]] | None = None
    while True:
        # What goes may have held a generation in its rank, or shown that somebody still used it: so look again.
        superseded = _superseded(rest, protected, context) if EvictReason.SUPERSEDED in considered else {}
        found: list[Evict] = []
        if superseded != before:
            # Nothing else changes from one round to the next.
            found = [going for one in rest if (going := _decide(one, context, superseded, considered)) is not None]
            found.sort(key=lambda decided: _age(decided.entry))
        before = superseded
        found += _over(rest, protected, context, considered, evict, found)
        if not found:
            break
        evict += found
        # By identity: an entry's own hash reads through its path, which a hundred thousand times takes a second.
        gone = {id(one.entry) for one in found}
        rest = [one for one in rest if id(one) not in gone]
    evict.sort(key=lambda one: _ORDER[one.reason])
    left = len(every) + sum(one.entries for one in others) - len(evict)
    return EvictionPlan(tuple(evict), sum(one.entry.entry.allocated for one in evict), left)


def plan_named(
    named: Iterable[IndexedEntry],
    host: Host,
    models: Mapping[ModelName, Model],
    policy: Policy,
    now: datetime,
    disk_space: Iterable[DiskSpace] = (),
) -> tuple[EvictionPlan, Mapping[EntryId, str]]:
    """Decide about entries that somebody named: they go, whatever their state, unless they are protected.

    Gives the plan, and why the others stay.
    """
    of_stores = {room.store: room for room in disk_space}
    context = EvictionContext(host, {}, frozenset(), models, policy, now, asked=True, disk_space=of_stores)
    evict: list[Evict] = []
    kept: dict[EntryId, str] = {}
    for one in named:
        if not context.protects(one):
            detail = one.entry.defect.message if one.entry.defect is not None else "asked for by name"
            evict.append(Evict(one, EvictReason.ASKED, detail))
        elif one.entry.state is EntryState.UNFINISHED:
            kept[one.entry.id] = "a program is writing it"
        elif one.entry.state is EntryState.UNREAD:
            kept[one.entry.id] = "it cannot be read now"
        elif context.is_open(one):
            kept[one.entry.id] = "a process has it open"
        elif any(name in models and models[name].pinned for name in one.models):
            kept[one.entry.id] = "a pinned model needs it"
        else:
            grace = context.policy_of(one.entry.id.store).grace
            kept[one.entry.id] = f"it is younger than the grace of {grace:g} s (policy.grace)"
    return EvictionPlan(tuple(evict), sum(one.entry.entry.allocated for one in evict), len(kept)), kept


def _over(
    rest: Sequence[IndexedEntry],
    protected: Sequence[IndexedEntry],
    context: EvictionContext,
    considered: frozenset[EvictReason],
    gone: Sequence[Evict],
    going: Sequence[Evict],
) -> list[Evict]:
    """Say what must go besides, so that every limit is kept; ``gone`` went in earlier rounds, ``going`` in this one."""
    if not considered & {EvictReason.BUDGET, EvictReason.SPACE} or not context.limited:
        return []
    taken = {id(one.entry) for one in going}
    left = [one for one in rest if id(one) not in taken] if taken else rest
    stores = {id(one.entry.id.store): one.entry.id.store for one in (*left, *protected)}
    policies = {store: context.policy_of(store) for store in stores.values()}
    policies |= {one.store: context.policy_of(one.store) for one in context.others}

    every = [*left, *protected]

    def ordered() -> list[IndexedEntry]:
        value = worth(context.now, context.usable, context.rate)
        rows = [
            (context.rank(one), value(one), *_age(one), number)
            for number, one in enumerate(left)
            if not context.would_be_rewarmed(one)
        ]
        rows.sort()
        return [left[row[-1]] for row in rows]

    gone = [*gone, *going]
    return over_limits(
        ordered, context.rank, every, policies, context.policy, context.disk_space, considered, gone, context.others
    )


def _decide(
    one: IndexedEntry,
    context: EvictionContext,
    superseded: Mapping[Target, tuple[int, str]],
    considered: frozenset[EvictReason],
) -> Evict | None:
    defect = one.entry.defect
    if EvictReason.DEFECTIVE in considered and defect is not None and defective(one):
        return Evict(one, EvictReason.DEFECTIVE, defect.message)
    target = one.entry.environment
    # A target's hash takes longer than all the rest.
    if superseded and target is not None and target in superseded and _warm_without(one, context):
        rank, now = superseded[target]
        kept = context.policy_of(one.entry.id.store).keep_driver_generations
        if rank >= kept:
            back = {0: "none", 1: "one"}.get(kept, str(kept))
            detail = f"for driver {target.toolchain}; now it is {now}, and {back} older is kept"
            return Evict(one, EvictReason.SUPERSEDED, detail)
    if EvictReason.NEVER_CAME in considered and target is not None and _never_came(one, target, context):
        day = f"{one.entry.created:%Y-%m-%d}"
        return Evict(one, EvictReason.NEVER_CAME, f"compiled on {day} for driver {target.toolchain}, never installed")
    if EvictReason.GONE in considered and target is not None:
        since = _gone_since(one, target, context)
        if since is not None:
            detail = f"for {target.device}, which this host has not had since {since:%Y-%m-%d}"
            return Evict(one, EvictReason.GONE, detail)
    limit = context.policy_of(one.entry.id.store).max_unused
    if EvictReason.UNUSED in considered and limit is not None:
        idle = (context.now - one.last_used).total_seconds()
        stays = context.would_be_rewarmed(one) or context.proves(one)
        if idle > limit and not stays and context.use_is_known(one):
            used = one.last_used
            day = f"{used.year}-{used.month:02}-{used.day:02}"  # strftime would take most of the decision's time
            return Evict(one, EvictReason.UNUSED, f"not used for {idle / 86400:.0f} days, since {day}")
    return None


def _age(one: IndexedEntry) -> tuple[datetime, str, Path]:
    """Order entries by last use, the oldest first; those of one moment by where they are."""
    return (one.last_used, one.entry.id.key, one.entry.id.store.root)


# -- older drivers ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Traces:
    """What the entries of one target tell about it."""

    created: datetime = _LONG_AGO  #: when the newest was
    used: datetime = _LONG_AGO  #: when any was last


def _superseded(
    rest: Sequence[IndexedEntry], protected: Sequence[IndexedEntry], context: EvictionContext
) -> Mapping[Target, tuple[int, str]]:
    """Rank the targets that one could go back to, 0 the last one, each with the drivers that took its place."""
    present: defaultdict[Lineage, list[Target]] = defaultdict(list)
    for target in context.host.offered:
        present[target.lineage].append(target)
    generations: defaultdict[Lineage, defaultdict[Target, _Traces]] = defaultdict(lambda: defaultdict(_Traces))
    found_traces: dict[int, _Traces | None] = {}
    for one in (*rest, *protected):
        its = one.entry.environment
        if its is None:
            continue
        if id(its) not in found_traces:
            earlier = its.lineage in present and its not in present[its.lineage]
            found_traces[id(its)] = generations[its.lineage][its] if earlier else None
        traces = found_traces[id(its)]
        if traces is not None:
            traces.created = max(traces.created, one.entry.created)
            traces.used = max(traces.used, one.last_used)
    for other in context.others:
        its = other.environment
        if its is None or its.lineage not in present or its in present[its.lineage]:
            continue
        traces = generations[its.lineage][its]
        traces.created = max(traces.created, other.created or _LONG_AGO)
        traces.used = max(traces.used, other.used or _LONG_AGO)
    found: dict[Target, tuple[int, str]] = {}
    for lineage, past in generations.items():
        # What others still have is nothing to go back to, so it takes no other generation's place.
        old = [one for one in past if not _in_use(one, past[one], present[lineage], context)]
        old.sort(key=lambda one: _recency(one, past[one].created, context), reverse=True)
        for some, now in by_driver(old, present[lineage], context.host, context.presence):
            for rank, target in enumerate(some):
                # Of two drivers in use, either may go back to it.
                if target not in found or rank < found[target][0]:
                    found[target] = (rank, now)
    return found


def by_driver(
    old: Sequence[Target],
    present: Sequence[Target],
    host: Host,
    presence: Mapping[Target, Presence],
) -> list[tuple[list[Target], str]]:
    """Divide the absent targets of one lineage by the drivers in use that offered them, with what they offer now.

    Each driver in use has generations of its own to go back to.  What none of them ever offered is counted with those
    of the host's own, or of the first that there is.
    """
    views = [("", host.environments), *((one.id, one.environments) for one in host.drivers)]
    here = [(id_, [one for one in some if one in present]) for id_, some in views]
    here = [(id_, some) for id_, some in here if some]
    known = {id_ for id_, _ in here}
    divided: list[tuple[list[Target], str]] = []
    for number, (id_, some) in enumerate(here):
        mine = [
            one
            for one in old
            if id_ in (offered := presence[one].drivers if one in presence else frozenset())
            or (number == 0 and not offered & known)
        ]
        divided.append((mine, ", ".join(sorted({one.toolchain for one in some}))))
    return divided


def _in_use(target: Target, traces: _Traces, present: Sequence[Target], context: EvictionContext) -> bool:
    """Return whether a container, or a program with a driver of its own, still seems to have an absent driver."""
    since = _successor_since(target, present, context)
    if since is None or traces.created > since:
        return True
    known = context.presence.get(target)
    once_ours = known is not None and known.last is not None
    return not context.asked and not once_ours and context.now - traces.used < _GONE_AFTER


def _recency(
    target: Target, newest: datetime, context: EvictionContext
) -> tuple[bool, datetime, datetime, datetime, Target]:
    """Order the generations of one lineage: the host's own history first, else by their newest entry."""
    known = context.presence.get(target)
    if known is None or known.last is None:
        return (False, newest, _LONG_AGO, _LONG_AGO, target)
    return (True, known.last, known.first or _LONG_AGO, newest, target)


def _successor_since(target: Target, present: Sequence[Target], context: EvictionContext) -> datetime | None:
    """Return when the present target that took another's place came; None if that is not known."""
    known = [context.presence[one] for one in present if one in context.presence]
    firsts = sorted(one.first for one in known if one.first is not None)
    before = context.presence.get(target)
    if before is not None and before.last is not None:
        # Several drivers may serve one device: the one that was there all along replaced nothing.
        after = [first for first in firsts if first >= before.last]
        # Then it has gone without one in its place.
        firsts = after or ([before.last] if firsts else [])
    return firsts[0] if firsts else None


def _warm_without(one: IndexedEntry, context: EvictionContext) -> bool:
    """Warm before evict: every registered model that has this entry must be warm by others now."""
    return all(name in context.warm for name in one.models if name in context.models) and not context.proves(one)


def _never_came(one: IndexedEntry, target: Target, context: EvictionContext) -> bool:
    """Return whether an entry was compiled ahead for a driver for which it has waited long enough."""
    limit = context.policy.ahead_keep
    if one.origin is not Origin.AHEAD or limit is None or target in context.host.offered:
        return False
    known = context.presence.get(target)
    once_here = known is not None and known.last is not None
    # A program in a container that has that driver already may use it all the same.
    waited = context.now - max(one.entry.created, one.last_used)
    return not once_here and waited.total_seconds() > limit


# -- devices that went, and the budget ----------------------------------------------------------------------------


def _gone_since(one: IndexedEntry, target: Target, context: EvictionContext) -> datetime | None:
    """Tell since when the entry's device is gone, if that is long enough; None if not, or if nobody knows."""
    if not any(other.kind == target.kind for other in context.host.offered):
        # No device at all is more likely a broken driver than an empty machine; and not every kind can say.
        return None
    if context.lineage_present(target):
        return None
    known = context.presence.get(target)
    if known is None or known.last is None:
        return None
    # Somebody who used it since then has the device all the same (a container, another driver directory).
    since = max(known.last, one.last_used)
    return since if context.now - since > _GONE_AFTER else None
