"""Decide: which entries to rebuild for the present driver, without the models.  Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from xpucached.domain import EntryState, ImageFormat, NoRecipe, Rebuild, ReplayPlan, ReplayReason

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from xpucached.domain import Environment, Host, IndexedEntry, Model, ModelName, Store

_LATELY: Final = timedelta(days=30)
"""What nobody used for so long under the old driver is not worth compiling for the new one; a run would do it."""

_EVER: Final = datetime.min.replace(tzinfo=UTC)

Tail = tuple["Store", str]
"""What stays of a place when the driver changes: the store, and the path below the device's directory."""


def tail(one: IndexedEntry) -> Tail | None:
    """Give the part of an entry's place that no driver changes; None if it belongs to no driver."""
    device, _, rest = one.entry.id.key.partition("/")
    leaf, _, _ = rest.rpartition("/")
    return (one.entry.id.store, leaf) if device.isdigit() and leaf else None


def plan_replay(
    entries: Iterable[IndexedEntry],
    host: Host,
    models: Mapping[ModelName, Model],
    failed: Collection[tuple[Tail, Environment]],
    now: datetime,
    *,
    stores: Collection[Path] = (),
    only: Collection[ModelName] = (),
    to: str | None = None,
) -> ReplayPlan:
    """Decide what to rebuild, what registered models use first, by their priority, and then what was used last.

    An entry is rebuilt for each present environment of its lineage that lacks it, from its newest generation.
    ``failed`` are the rebuilds that this driver refused before.  ``stores``, ``only`` (models) and ``to`` (the
    beginning of a fingerprint) restrict the plan.
    """
    targets: defaultdict[tuple[str, str], list[Environment]] = defaultdict(list)
    for environment in host.environments:
        if to is None or environment.fingerprint.startswith(to):
            targets[environment.lineage].append(environment)
    there: set[tuple[Tail, Environment]] = set()
    old: dict[tuple[Tail, tuple[str, str]], list[IndexedEntry]] = defaultdict(list)
    for one in entries:
        its, place = one.entry.environment, tail(one)
        if its is None or place is None or (stores and place[0].root not in stores):
            continue
        if its in host.environments:
            # Damaged or not, the place is taken; what is damaged there is the eviction's business.
            there.add((place, its))
        elif its.lineage in targets:
            old[place, its.lineage].append(one)
    rebuild: list[Rebuild] = []
    skipped: Counter[NoRecipe] = Counter()
    for (place, lineage), generations in old.items():
        reason = _reason(generations, models, only, now)
        if reason is None:
            continue
        newest = max(generations, key=lambda one: (one.entry.state is EntryState.OK, one.entry.created))
        for environment in targets[lineage]:
            if (place, environment) in there:
                continue
            why = NoRecipe.FAILED if (place, environment) in failed else _unfit(newest)
            if why is None:
                rebuild.append(Rebuild(newest, environment, reason))
            else:
                skipped[why] += 1
    rebuild.sort(key=lambda one: _urgency(one, models))
    covered = sum(1 for _, environment in there if to is None or environment.fingerprint.startswith(to))
    return ReplayPlan(tuple(rebuild), dict(skipped), covered)


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
    """Say what the catalog already knows to stand against a rebuild; reading it may show more."""
    entry = one.entry
    if entry.state is not EntryState.OK:
        return NoRecipe.DAMAGED
    if entry.image is not ImageFormat.SPIRV:
        return NoRecipe.NATIVE
    return NoRecipe.CONSTANTS if entry.constants else None


def _urgency(one: Rebuild, models: Mapping[ModelName, Model]) -> tuple[int, float, str]:
    priority = max((models[name].priority for name in one.entry.models if name in models), default=-1)
    return (-priority, -(one.entry.last_used - _EVER).total_seconds(), one.entry.entry.id.key)
