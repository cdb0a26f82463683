"""Confirming: whether programs will look where a replay would put what it rebuilds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpucached.kinds.table import KINDS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from xpucached.domain.host import OtherDriver
    from xpucached.domain.models import Model
    from xpucached.domain.plans import ReplayPlan
    from xpucached.domain.targets import Target
    from xpucached.service.context import Context


def confirm(
    plan: ReplayPlan, wanted: Collection[Target], driver: OtherDriver, models: Iterable[Model], context: Context
) -> list[str]:
    """Ask each kind that the plan rebuilds entries of; give what it says of the targets that a driver is wanted for.

    ``models`` are those that use this driver.  Raises `Unconfirmed`.  Blocks.
    """
    words: list[str] = []
    workloads = [model.workload for model in models]
    for name, kind in KINDS.items():
        targets = {one.to for one in plan.rebuild if one.entry.entry.id.store.kind == name}.intersection(wanted)
        if targets and kind.rebuilder is not None:
            timeout = context.settings.driver.probe_timeout
            words.append(kind.rebuilder.confirm(targets, driver, workloads, context.clock(), timeout))
    return words
