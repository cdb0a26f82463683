"""Record: the environments that the catalog knows, from entries, runs and surveys."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from xpucached.catalog.tables import ENVIRONMENTS, OFFERS
from xpucached.domain import Environment, Presence

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from xpucached.domain import Architecture, Fingerprint


def ensure(connection: sa.Connection, wanted: Mapping[Environment, Architecture | None]) -> dict[Fingerprint, int]:
    """Give each environment a row, with its architecture where that is known; answer the rows' numbers."""
    if not wanted:
        return {}
    statement = insert(ENVIRONMENTS)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[ENVIRONMENTS.c.fingerprint],
            set_={"architecture": sa.func.coalesce(statement.excluded.architecture, ENVIRONMENTS.c.architecture)},
        ),
        [
            {
                "fingerprint": one.fingerprint,
                "platform": one.platform,
                "device": one.device,
                "version": one.version,
                "driver": one.driver,
                "architecture": architecture,
                "present": False,
            }
            for one, architecture in wanted.items()
        ],
    )
    rows = connection.execute(sa.select(ENVIRONMENTS.c.fingerprint, ENVIRONMENTS.c.id))
    numbers = {row.fingerprint: row.id for row in rows}
    return {one.fingerprint: numbers[one.fingerprint] for one in wanted}


def note_drivers(connection: sa.Connection, offered: Collection[tuple[str, int]]) -> None:
    """Note which driver in use offers which environments, by `DriverInUse.id` and the rows' numbers."""
    if offered:
        rows = [{"driver": driver, "environment_id": number} for driver, number in sorted(offered)]
        connection.execute(insert(OFFERS).on_conflict_do_nothing(), rows)


def presence(connection: sa.Connection) -> tuple[Presence, ...]:
    """Every environment, and when this host offered it; those only ever seen in entries have no such time."""
    rows = connection.execute(sa.select(ENVIRONMENTS).order_by(ENVIRONMENTS.c.id))
    drivers: defaultdict[int, set[str]] = defaultdict(set)
    for offer in connection.execute(sa.select(OFFERS)):
        drivers[offer.environment_id].add(offer.driver)
    return tuple(Presence(value(row), row.first, row.last, row.present, frozenset(drivers[row.id])) for row in rows)


def value(row: sa.Row[tuple[object, ...]]) -> Environment:
    """Read the environment that a row carries."""
    return Environment(row.platform, row.device, row.version, row.driver)
