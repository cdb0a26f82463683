"""Decide: whether the limits of bytes leave room for what models need.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from xpucached.domain.plans import DiskSpace
from xpucached.errors import QuotaError
from xpucached.planning.ranking import pools

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xpucached.domain.plans import Policy
    from xpucached.domain.stores import Store


def too_small(needed: Mapping[Store, int], owners: Mapping[Store, int | None], policy: Policy) -> QuotaError | None:
    """Return which limit is below what models need of the stores, if any is: the one that lacks most.

    Above it the daemon could only evict and warm in a circle, or let the limit be.
    """
    rooms = {store: DiskSpace(store, owner) for store, owner in owners.items()}
    # What shall be free on a disk is no limit of ours alone: of no disk it is known here.
    bounds = replace(policy, low_water=100)
    short = sorted(pools(needed, {}, bounds, rooms, {}), key=lambda pool: pool.excess)
    if not short:
        return None
    worst = short[-1]
    total = sum(needed[store] for store in worst.stores)
    return QuotaError(
        f"registered models need {total} bytes of what is cached, and the limit there is {total - int(worst.excess)}",
        hint=f"raise it to {total} bytes or more, or take out models: xpucachectl model list",
    )
