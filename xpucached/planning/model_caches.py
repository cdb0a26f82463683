"""Decide: which directories of models go, in which other compilers cache: each as a whole, oldest use first.  Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from xpucached.domain.plans import CacheReason, EvictCache
from xpucached.domain.stores import StoreState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from xpucached.domain.names import ModelName
    from xpucached.domain.plans import DiskSpace, Policy
    from xpucached.domain.stores import ModelCache

_NEVER = datetime.min.replace(tzinfo=UTC)


def plan_caches(
    caches: Iterable[ModelCache],
    stay: frozenset[ModelName],
    policy: Policy,
    room: DiskSpace | None,
    held: int,
    now: datetime,
    removed: Mapping[ModelName, datetime],
    *,
    asked: bool,
) -> tuple[EvictCache, ...]:
    """Decide what goes: what is left of models that are gone, and where a limit is passed what was used longest ago.

    ``held`` is what entries hold, ``room`` where the directories lie; those of the models that ``stay`` do not go, and
    without ``asked`` those of no model that there is: it would only be made again.  ``removed`` says which models were
    removed here, and when: of one that is merely not known another daemon of this user may know, or an earlier catalog.
    """
    ours = [one for one in caches if not one.named]
    settled = [one for one in ours if one.ours and _idle(one, policy, now)]
    gone = [one for one in settled if not one.registered and _has_gone(one, removed, policy, now)]
    found = [EvictCache(one, CacheReason.GONE, f"there is no model {one.model} any more") for one in gone]
    left = sum(one.allocated for one in ours) - sum(one.allocated for one in gone)
    excess: list[tuple[float, CacheReason, str]] = []
    if policy.max_bytes is not None and held + left > policy.max_bytes:
        detail = f"the stores and other caches hold {held + left} bytes, {policy.max_bytes} may be"
        excess.append((held + left - policy.max_bytes * policy.low_water / 100, CacheReason.BUDGET, detail))
    if policy.min_free_bytes and room is not None and room.free is not None:
        free = room.free + room.trash + sum(one.allocated for one in gone)
        if free < policy.min_free_bytes:
            detail = f"{free} bytes can be had on its file system, {policy.min_free_bytes} shall be free"
            excess.append((policy.min_free_bytes * 100 / policy.low_water - free, CacheReason.SPACE, detail))
    if asked and excess:
        much, reason, detail = max(excess)
        for one in sorted(settled, key=lambda one: (one.used or _NEVER, one.model)):
            if much > 0 and one.registered and one.model not in stay and one.allocated:
                much -= one.allocated
                found.append(EvictCache(one, reason, f"it was used longest ago; {detail}"))
    return tuple(found)


def _has_gone(one: ModelCache, removed: Mapping[ModelName, datetime], policy: Policy, now: datetime) -> bool:
    """Return whether a directory is what was left when its model was removed, and that was long enough ago.

    A file that declares a model may be away for a moment: while it is written, or checked out.
    """
    at = removed.get(one.model)
    return at is not None and (now - at).total_seconds() >= policy.grace


def _idle(one: ModelCache, policy: Policy, now: datetime) -> bool:
    """Return whether all of a directory is known, and older than what may still be written."""
    if one.state is not StoreState.OK or one.note:
        return False
    return one.used is None or (now - one.used).total_seconds() >= policy.grace
