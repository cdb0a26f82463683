"""Decide: whether the limits of bytes leave room for what models need.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from xpucached.domain.plans import DiskSpace
from xpucached.errors import QuotaError
from xpucached.planning.ranking import Pool, pools

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xpucached.domain.plans import Policy
    from xpucached.domain.stores import Store


def too_small(
    needed: Mapping[Store, int], owners: Mapping[Store, int | None], policy: Policy, before: Policy | None = None
) -> QuotaError | None:
    """Return which limit is below what models need of the stores, if any is: the one that lacks most.

    Above it the daemon could only evict and warm in a circle, or let the limit be.  Those that lacked as much with the
    limits ``before`` are left out.
    """
    rooms = {store: DiskSpace(store, owner) for store, owner in owners.items()}

    def short(limits: Policy) -> list[Pool]:
        # What shall be free on a disk is no limit of ours alone: of no disk it is known here.
        return sorted(pools(needed, {}, replace(limits, low_water=100), rooms, {}), key=lambda pool: pool.excess)

    lacked = {pool.stores: pool.excess for pool in short(before)} if before is not None else {}
    worse = [pool for pool in short(policy) if pool.excess > lacked.get(pool.stores, 0)]
    if not worse:
        return None
    worst = worse[-1]
    total = sum(needed[store] for store in worst.stores)
    return QuotaError(
        f"registered models need {total} bytes of what is cached, and the limit there is {total - int(worst.excess)}",
        hint=f"raise it to {total} bytes or more, or take out models: xpucachectl model list",
    )
