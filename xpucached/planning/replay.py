"""Decide: which entries to rebuild for another driver, without the models.  Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached.domain.plans import NoRecipe, Rebuild, ReplayPlan, ReplayReason
from xpucached.domain.recipes import RecipeState
from xpucached.domain.stores import EntryState, Store
from xpucached.planning.repair import unfit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from xpucached.domain.host import Host
    from xpucached.domain.models import Model
    from xpucached.domain.names import EntryKey, KindName, ModelName
    from xpucached.domain.plans import IndexedEntry, Subtotal
    from xpucached.domain.stores import EntryId
    from xpucached.domain.targets import Target

_LATELY: Final = timedelta(days=30)
"""What nobody used for so long under the old driver is not worth compiling for the new one; a run would do it."""

_OUTDATED: Final = timedelta(days=1)
"""A program that writes the same kernels anew, so long after the old ones were last used, is a newer build."""

_EVER: Final = datetime.min.replace(tzinfo=UTC)

Tail = tuple["Store", str]
"""What stays of a place when the driver changes: the store, and the path below the device's directory."""


Lineages = Mapping["KindName", "Callable[[EntryKey], str | None]"]
"""For each kind whose entries can be compiled again, what stays of their keys when the driver changes."""


@dataclass(frozen=True, slots=True)
class ReplayScope:
    """Which part of a replay is wanted; nothing given is all of it, in the stores as they are, for this host."""

    stores: Collection[Path] = ()
    models: Collection[ModelName] = ()
    to: str | None = None  #: the beginning of a fingerprint
    into: Path | None = None  #: a store of its own for what is rebuilt
    other_devices: bool = False  #: what was compiled for one device may be rebuilt for another of the same family
    apart: Mapping[KindName, Path] = field(default_factory=dict)  #: the same for single kinds
    without: Collection[KindName] = ()  #: nothing is rebuilt of these kinds

    def into_of(self, kind: KindName) -> Path | None:
        """Return the store for what is rebuilt of a kind; None is the one that it comes from."""
        return self.apart.get(kind, self.into)


@dataclass(frozen=True, slots=True)
class Pace:
    """What compiling took so far: how long another build will take, and how many run at once."""

    seconds_per_byte: Mapping[str, float] = field(default_factory=dict)  #: of SPIR-V, by family
    workers: int = 1

    def estimate(self, family: str, size: int) -> float | None:
        """Return how many seconds a compiler will take; None if none of this family's compiled before."""
        rate = self.seconds_per_byte.get(family)
        return None if rate is None else rate * size


def replayable(subtotals: Iterable[Subtotal], host: Host) -> bool:
    """Return whether there is anything that an automatic replay could rebuild; if not, no entry need be looked at."""
    offered = set(host.offered)
    lineages = {one.lineage for one in offered}
    return any(
        one.environment is not None
        and one.environment.lineage in lineages
        and one.environment not in offered
        and one.entries > 0
        for one in subtotals
    )


def contradicted(wanted: Iterable[Target], confirmed: Collection[Target]) -> tuple[Target, ...]:
    """Return what a runtime names otherwise: it knows the device, but under none of the names that were asked for."""
    lineages = {one.lineage for one in confirmed}
    return tuple(sorted({one for one in wanted if one.lineage in lineages and one not in confirmed}))


def plan_replay(
    entries: Iterable[IndexedEntry],
    host: Host,
    models: Mapping[ModelName, Model],
    failed: Collection[tuple[Tail, Target]],
    now: datetime,
    scope: ReplayScope | None = None,
    pace: Pace | None = None,
    *,
    lineages: Lineages,
    shared: Collection[KindName] = (),
    filled: Collection[Store] = (),
) -> ReplayPlan:
    """Decide what to rebuild, what registered models use first, by their priority, and then what was used last.

    An entry is rebuilt, from its newest generation and for the models of all of them, for each environment of its
    lineage that lacks it: of those that the programs of its models meet, or, if it belongs to no model, of the host's
    own driver.  ``failed`` are the rebuilds that these drivers refused before.  ``lineages`` gives, by kind, what stays
    of a key when the driver changes; entries of other kinds are made by their programs only.  Entries of ``shared``
    kinds are the GPU driver's: runs tell how they are compiled, and what is compiled for a cache above makes them, too:
    those of its models, and in the ``filled`` stores what belongs to none.
    """
    scope, pace = scope or ReplayScope(), pace or Pace()
    targets = _Targets(host, scope)
    there, old, skipped = _sorted(entries, host, scope, targets, lineages, shared)
    # What runs told of the GPU driver's entries says which are of one program; their kernels' names do not.
    outdated = _outdated({place: some for place, some in old.items() if place[0][0].kind not in shared})
    rebuild: list[Rebuild] = []
    used: dict[EntryId, datetime] = {}
    for (place, line), generations in old.items():
        reason = _reason(generations, models, scope.models, now)
        if reason is None:
            continue
        newest = max(generations, key=_fitness)
        owners = dict.fromkeys(chain(newest.models, *(one.models for one in generations)))
        newest = replace(newest, models=tuple(owners))
        used[newest.entry.id] = max(one.last_used for one in generations)
        for environment in targets.of(line, owners.keys() & models.keys()):
            if (place, environment) in there:
                continue
            why = NoRecipe.FAILED if (place, environment) in failed else _unfit(newest)
            if why is None and (place, line) in outdated:
                why = NoRecipe.SUPERSEDED
            if why is None:
                seconds = pace.estimate(environment.family, newest.entry.image_size)
                rebuild.append(Rebuild(newest, environment, reason, seconds))
            else:
                skipped[why] += 1
    rebuild, twice = _once(rebuild, shared, filled)
    skipped.update({NoRecipe.SHARED: twice} if twice else {})
    rebuild.sort(key=lambda one: _urgency(one.entry, used[one.entry.entry.id], models))
    covered = sum(
        environment.fingerprint.startswith(scope.to or "")
        and (not scope.stores or store.root in scope.stores or scope.into_of(store.kind) is not None)
        for (store, _), environment in there
    )
    return _summed(ReplayPlan(tuple(rebuild), dict(skipped), covered), pace.workers)


class _Targets:
    """For which environments the entries of some models are wanted, by what an entry and its rebuild have in common."""

    def __init__(self, host: Host, scope: ReplayScope) -> None:
        self._own = self._by_line(host.environments, scope)
        self._led = [(frozenset(one.models), self._by_line(one.environments, scope)) for one in host.drivers]
        self.lines = frozenset(self._own).union(*(by_line for _, by_line in self._led))

    @staticmethod
    def _by_line(some: Iterable[Target], scope: ReplayScope) -> dict[tuple[str, ...], list[Target]]:
        found: defaultdict[tuple[str, ...], list[Target]] = defaultdict(list)
        for environment in some:
            if scope.to is None or environment.fingerprint.startswith(scope.to):
                found[_line(environment, scope)].append(environment)
        return dict(found)

    def of(self, line: tuple[str, ...], owners: Collection[ModelName]) -> list[Target]:
        """Return those that programs of these models meet; of no model, those of the host's own driver."""
        wanted: list[Target] = []
        own = set(owners)
        for models, by_line in self._led:
            if models & own:
                wanted += by_line.get(line, [])
                own -= models
        # Whoever is left is led to no other driver.
        if own or not owners:
            wanted += self._own.get(line, [])
        return list(dict.fromkeys(wanted))


def _sorted(
    entries: Iterable[IndexedEntry],
    host: Host,
    scope: ReplayScope,
    targets: _Targets,
    lineages: Lineages,
    shared: Collection[KindName],
) -> tuple[set[tuple[Tail, Target]], dict[tuple[Tail, tuple[str, ...]], list[IndexedEntry]], Counter[NoRecipe]]:
    """Divide entries into what is there already, and what something could be rebuilt from, by where that would go.

    The last is how many there are for an earlier driver that nobody but their programs can make.
    """
    lone: Counter[NoRecipe] = Counter()
    offered = frozenset(host.offered)
    there: set[tuple[Tail, Target]] = set()
    old: defaultdict[tuple[Tail, tuple[str, ...]], list[IndexedEntry]] = defaultdict(list)
    for one in entries:
        its, store = one.entry.environment, one.entry.id.store
        if its is None or store.kind in scope.without:
            continue
        into = scope.into_of(store.kind)
        lineage = lineages.get(store.kind)
        leaf = lineage(one.entry.id.key) if lineage is not None else None
        if leaf is None:
            why = NoRecipe.KIND if lineage is None else NoRecipe.UNRECORDED if store.kind in shared else None
            wanted = not scope.stores or store.root in scope.stores
            if why is not None and wanted and its not in offered and _line(its, scope) in targets.lines:
                lone[why] += 1
            continue
        place = (store, leaf)
        if its in offered and (into is None or store.root == into):
            # Damaged or not, the place is taken; what is damaged there is the eviction's business.
            there.add((place, its))
        if scope.stores and store.root not in scope.stores:
            continue
        line = _line(its, scope)
        if line not in targets.lines:
            continue
        if into is not None:
            old[(Store(store.kind, into), leaf), line].append(one)
        elif its not in offered or one.models:
            # A model may be led to another driver than the one for which it compiled this.
            old[place, line].append(one)
    return there, old, lone


def _once(
    rebuild: Collection[Rebuild], shared: Collection[KindName], filled: Collection[Store]
) -> tuple[list[Rebuild], int]:
    """Leave out what is made anyway when the same program is compiled for another cache; say how much that is.

    Its compiler fills the driver's cache of the same models, or where it belongs to none, the ``filled`` stores.
    """
    others = {
        (one.entry.entry.input, one.to.device, model)
        for one in rebuild
        if one.entry.entry.id.store.kind not in shared and one.entry.entry.input is not None
        for model in one.entry.models or (None,)
    }

    def twice(one: Rebuild) -> bool:
        program, store = (one.entry.entry.input, one.to.device), one.entry.entry.id.store
        mine = store.kind in shared and (bool(one.entry.models) or store in filled)
        return mine and all((*program, model) in others for model in one.entry.models or (None,))

    left = [one for one in rebuild if not twice(one)]
    return left, len(rebuild) - len(left)


def coming(plan: ReplayPlan, scope: ReplayScope) -> Mapping[Store, int]:
    """Return how many bytes a replay is going to write into each store: as many as there are of what it rebuilds."""
    bytes_of: Counter[Store] = Counter()
    for one in plan.rebuild:
        store = one.entry.entry.id.store
        into = scope.into_of(store.kind)
        bytes_of[store if into is None else Store(store.kind, into)] += one.entry.entry.allocated
    return bytes_of


def _line(environment: Target, scope: ReplayScope) -> tuple[str, ...]:
    """Return what an entry and its rebuild have in common."""
    return (environment.kind, environment.family) if scope.other_devices else environment.lineage


def _summed(plan: ReplayPlan, workers: int) -> ReplayPlan:
    """Add the estimate of the whole: what is known of the parts, and their mean for those of which nothing is."""
    known = [one.seconds for one in plan.rebuild if one.seconds is not None]
    if not known:
        return plan
    return replace(plan, seconds=sum(known) / len(known) * len(plan.rebuild) / max(1, min(workers, len(plan.rebuild))))


def _outdated(
    old: Mapping[tuple[Tail, tuple[str, ...]], Collection[IndexedEntry]],
) -> set[tuple[Tail, tuple[str, ...]]]:
    """Return the places whose kernels a newer build of the application has written anew, long after their last use."""
    alike: defaultdict[tuple[object, ...], list[tuple[tuple[Tail, tuple[str, ...]], datetime, datetime]]]
    alike = defaultdict(list)
    for place, generations in old.items():
        one = next(iter(generations)).entry
        names = frozenset(kernel.name for kernel in one.kernels)
        if names:
            built = min(each.entry.created for each in generations)
            used = max(each.last_used for each in generations)
            alike[place[0][0], place[1], one.options, one.constants, names].append((place, built, used))
    outdated: set[tuple[Tail, tuple[str, ...]]] = set()
    for group in alike.values():
        newest = max(built for _, built, _ in group)
        outdated.update(place for place, _, used in group if newest - used > _OUTDATED)
    return outdated


def _reason(
    generations: Collection[IndexedEntry],
    models: Mapping[ModelName, Model],
    only: Collection[ModelName],
    now: datetime,
) -> ReplayReason | None:
    owners = {name for one in generations for name in one.models if name in models}
    if only:
        return ReplayReason.MODEL if owners & set(only) else None
    if owners:
        return ReplayReason.MODEL
    return ReplayReason.USED if any(now - one.last_used < _LATELY for one in generations) else None


def _unfit(one: IndexedEntry) -> NoRecipe | None:
    """Return what the catalog already knows to stand against a rebuild; reading it may show more."""
    return unfit(one.entry) if one.entry.state is EntryState.OK else NoRecipe.DAMAGED


def _fitness(one: IndexedEntry) -> tuple[bool, bool, datetime]:
    """Order the generations of an entry by what can be compiled from them; what was only predicted has no recipe."""
    return (one.entry.state is EntryState.OK, one.recipe is RecipeState.RECORDED, one.entry.created)


def _urgency(one: IndexedEntry, used: datetime, models: Mapping[ModelName, Model]) -> tuple[int, float, str]:
    priority = max((models[name].priority for name in one.models if name in models), default=-1)
    return (-priority, -(used - _EVER).total_seconds(), one.entry.id.key)
