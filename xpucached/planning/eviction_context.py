"""What every decision about an eviction rests on, and what is kept whatever the policy lets go.  Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from xpucached.domain.defects import BEARABLE
from xpucached.domain.recipes import RecipeState
from xpucached.domain.stores import UNSETTLED, EntryState
from xpucached.planning.ranking import RATE, Rank, effective, limited

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from xpucached.domain.host import Host, Presence
    from xpucached.domain.models import Model
    from xpucached.domain.names import ModelName
    from xpucached.domain.plans import DiskSpace, IndexedEntry, Policy, Subtotal
    from xpucached.domain.stores import Store
    from xpucached.domain.targets import Target


def defective(one: IndexedEntry) -> bool:
    """Return whether an entry has a defect that does harm."""
    entry = one.entry
    return entry.state is EntryState.DEFECTIVE and entry.defect is not None and entry.defect.effect not in BEARABLE


@dataclass(frozen=True, slots=True)
class EvictionContext:
    """The facts that every decision needs, and answers that many entries share."""

    host: Host
    presence: Mapping[Target, Presence]
    warm: frozenset[ModelName]
    models: Mapping[ModelName, Model]
    policy: Policy
    now: datetime
    asked: bool  #: whether somebody asked; else the daemon takes nothing that it would only make again
    disk_space: Mapping[Store, DiskSpace]
    others: Sequence[Subtotal] = ()  #: entries that stay: they only count for the limits and the generations
    rate: float = RATE  #: seconds that compiling a byte takes, where it was not measured
    predicted: frozenset[ModelName] = frozenset()  #: models that are warm by what an earlier compiler's entries prove
    _policy_memo: dict[Store, Policy] = field(default_factory=dict, init=False)
    # Entries share their few targets, and a hash takes long: so these go by `id`.
    _usable_memo: dict[int, bool] = field(default_factory=dict, init=False)
    _lineage_present_memo: dict[int, bool] = field(default_factory=dict, init=False)

    @property
    def limited(self) -> bool:
        """Return whether there is any limit of bytes."""
        return limited(self.policy)

    def policy_of(self, store: Store) -> Policy:
        """Return what holds for one store."""
        if not self.policy.limits:
            return self.policy
        if store not in self._policy_memo:
            self._policy_memo[store] = effective(self.policy, self.disk_space.get(store), store)
        return self._policy_memo[store]

    def is_open(self, one: IndexedEntry) -> bool:
        """Return whether a process has an entry open."""
        room = self.disk_space.get(one.entry.id.store) if self.disk_space else None
        return room is not None and one.entry.id.key in room.held

    def use_is_known(self, one: IndexedEntry) -> bool:
        """Return whether no sign of use means no use: access times say nothing where the file system keeps none."""
        room = self.disk_space.get(one.entry.id.store) if self.disk_space else None
        return room is None or room.keeps_access_times or one.last_used_by in {"run", "restored", "observed-loads"}

    def recently_restored(self, one: IndexedEntry) -> bool:
        """Tell whether somebody took an entry out of the trash so lately that it must not go there again by itself."""
        return one.restored is not None and (self.now - one.restored).total_seconds() < self.policy.trash_keep

    def protects(self, one: IndexedEntry, *, damage_counts: bool = True) -> bool:
        """Return whether an entry is kept whatever else holds.

        Unless ``damage_counts``, one that is damaged is kept as if it were whole: it may still be mended.
        """
        entry = one.entry
        if entry.state in UNSETTLED or self.is_open(one):
            return True
        # A time in the future is a clock that was wrong: then our own first look says how old the entry is at least.
        born = entry.created if entry.created <= self.now else one.first_seen
        if (self.now - born).total_seconds() < self.policy_of(entry.id.store).grace:
            return True
        if not one.models or not self.usable(one) or (damage_counts and defective(one)):
            return False
        return any(name in self.models and self.models[name].pinned for name in one.models)

    def needed(self, one: IndexedEntry) -> bool:
        """Return whether a registered model uses an entry on this host now, and will ask for it again."""
        if one.recipe is RecipeState.NEVER_AGAIN:
            return False
        return self.usable(one) and any(name in self.models for name in one.models)

    def proves(self, one: IndexedEntry) -> bool:
        """Return whether a model is warm only as long as an entry is there for which its programs do not look now."""
        return not self.usable(one) and any(name in self.predicted for name in one.models)

    def rank(self, one: IndexedEntry) -> Rank:
        """Return what an entry is to those that want room, whatever it is worth."""
        if self.proves(one):
            return Rank.NEEDED
        if one.recipe is not None and not self.usable(one):
            return Rank.STALE
        if one.recipe is RecipeState.NEVER_AGAIN:
            return Rank.NEVER_AGAIN
        return Rank.NEEDED if self.needed(one) else Rank.OTHER

    def usable(self, one: IndexedEntry) -> bool:
        """Return whether a driver that is here can use an entry."""
        # Intermediate code of run-time compiled sources is for no device, and so for every one.
        target = one.entry.environment
        if target is None:
            return True
        known = self._usable_memo.get(id(target))
        if known is None:
            known = self._usable_memo[id(target)] = target in self.host.offered
        return known

    def lineage_present(self, target: Target) -> bool:
        """Return whether this host offers any target of the same lineage now."""
        known = self._lineage_present_memo.get(id(target))
        if known is None:
            known = any(target.lineage == other.lineage for other in self.host.offered)
            self._lineage_present_memo[id(target)] = known
        return known

    def would_be_rewarmed(self, one: IndexedEntry) -> bool:
        """Tell whether the daemon by itself would only make it again: evicting and warming must not go in a circle."""
        return not self.asked and self.needed(one)
