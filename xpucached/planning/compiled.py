"""Decide: which libraries' kernels a model's runs compiled, by their share of the time.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xpucached.domain.diagnosis import CompiledShare

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xpucached.domain.models import ModelStatus
    from xpucached.domain.plans import IndexedEntry

_MOST: Final = 20
"""Libraries of one kind of cache that are told of."""


def compiled(status: ModelStatus, entries: Iterable[IndexedEntry]) -> tuple[CompiledShare, ...]:
    """Return what a model uses in each kind of cache, by library, the dearest first.

    Those entries count that are for what its newest run used; if no run tells, all of them.  A share is of the measured
    seconds in that kind of cache, None where none were measured.
    """
    targets = frozenset(status.run.environments) if status.run is not None else frozenset()
    groups: dict[tuple[str, str], list[IndexedEntry]] = {}
    for one in entries:
        if status.model.name in one.models and (not targets or one.entry.environment in targets):
            library = next((kernel.library for kernel in one.entry.kernels if kernel.library), "")
            groups.setdefault((one.entry.id.store.kind, library), []).append(one)
    whole: dict[str, float] = {}
    seconds: dict[tuple[str, str], float | None] = {}
    for key, group in groups.items():
        measured = [one.cost for one in group if one.cost is not None]
        seconds[key] = sum(measured) if measured else None
        whole[key[0]] = whole.get(key[0], 0.0) + sum(measured)
    found: list[CompiledShare] = []
    for kind in sorted(whole):
        mine = sorted(
            (key for key in groups if key[0] == kind), key=lambda key: (-(seconds[key] or 0), -len(groups[key]), key)
        )
        for key in mine[:_MOST]:
            kernels = sum(len(one.entry.kernels) for one in groups[key])
            spent = seconds[key]
            share = spent / whole[kind] if spent is not None and whole[kind] else None
            found.append(
                CompiledShare(groups[key][0].entry.id.store.kind, key[1], len(groups[key]), kernels, spent, share)
            )
    return tuple(found)
