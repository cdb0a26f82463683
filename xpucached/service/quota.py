"""Limits that leave no room for what models need: told, and refused when they are new."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpucached.catalog.figures import needed_sizes
from xpucached.catalog.stores import all_stores
from xpucached.domain.host import Problem
from xpucached.planning import quota
from xpucached.planning.ranking import limited

if TYPE_CHECKING:
    from xpucached.domain.plans import Policy
    from xpucached.errors import QuotaError
    from xpucached.service.context import Context


async def too_small(context: Context, policy: Policy, before: Policy | None = None) -> QuotaError | None:
    """Return what is wrong with these limits, if models need more than one allows, and not only as much ``before``."""
    if not limited(policy):
        return None
    needed = await context.read(needed_sizes)
    owners = {one.id: one.owner for one in await context.read(all_stores)}
    return quota.too_small(needed, owners, policy, before)


async def note(context: Context) -> None:
    """Show whether models have come to need more than a limit allows."""
    error = await too_small(context, context.settings.policy)
    if error is None:
        context.problems.clear("quota-too-small")
    else:
        context.problems.note(Problem("quota-too-small", error.message, error.hint))
