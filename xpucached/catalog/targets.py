"""Record: the environments that the catalog knows, from entries, runs and surveys."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from xpucached.catalog.lists import among
from xpucached.catalog.recipe_tables import RECIPES
from xpucached.catalog.tables import CHANGE_TARGETS, ENTRIES, OFFERS, RUN_TARGETS, TARGETS
from xpucached.domain.host import Presence
from xpucached.domain.names import KindName
from xpucached.domain.targets import Target

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from xpucached.domain.names import Architecture, EntryKey, Fingerprint


MOST: Final = 1000
"""So many are kept of those that stores declare.  A host meets a few with each new driver."""


def ensure(connection: sa.Connection, wanted: Mapping[Target, Architecture | None]) -> dict[Fingerprint, int]:
    """Return each environment a row, with its architecture where that is known; answer the rows' numbers."""
    if not wanted:
        return {}
    statement = insert(TARGETS)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[TARGETS.c.fingerprint],
            set_={"architecture": sa.func.coalesce(statement.excluded.architecture, TARGETS.c.architecture)},
        ),
        [
            {
                "fingerprint": one.fingerprint,
                "kind": one.kind,
                "family": one.family,
                "device": one.device,
                "toolchain": one.toolchain,
                "facts": one.facts,
                "architecture": architecture,
                "present": False,
            }
            for one, architecture in wanted.items()
        ],
    )
    rows = connection.execute(sa.select(TARGETS.c.fingerprint, TARGETS.c.id))
    numbers = {row.fingerprint: row.id for row in rows}
    return {one.fingerprint: numbers[one.fingerprint] for one in wanted}


def admit(connection: sa.Connection, declared: Collection[Target]) -> frozenset[Target]:
    """Return those that the catalog has room for.

    Who may write to a store may forge any number of devices; those that nothing names any more make room.
    """
    known = set(connection.execute(sa.select(TARGETS.c.fingerprint)).scalars())
    fresh = [one for one in declared if one.fingerprint not in known]
    if len(known) + len(fresh) > MOST:
        used = [sa.select(table.c.target_id) for table in (RUN_TARGETS, CHANGE_TARGETS, OFFERS, RECIPES)]
        used.append(sa.select(ENTRIES.c.target_id).where(ENTRIES.c.target_id.is_not(None)))
        gone = sa.delete(TARGETS).where(TARGETS.c.first.is_(None), *(TARGETS.c.id.not_in(numbers) for numbers in used))
        connection.execute(gone)
        known = set(connection.execute(sa.select(TARGETS.c.fingerprint)).scalars())
        fresh = [one for one in declared if one.fingerprint not in known]
    room = sorted(fresh, key=lambda one: one.fingerprint)[: max(0, MOST - len(known))]
    return frozenset(one for one in declared if one.fingerprint in known).union(room)


def unaimed(store: int, keys: Collection[EntryKey] | None) -> tuple[sa.ColumnElement[bool], ...]:
    """Ask for entries of a store, or some of them, of which it is not known what they are for."""
    e = ENTRIES.c
    if keys is None:
        return (e.store_id == store, e.target_id.is_(None))
    # Nothing is a number still if one is added, and no index of targets leads away from the one of keys.
    return (e.store_id == store, among(e.key, keys), (e.target_id + 0).is_(None))


def note_drivers(connection: sa.Connection, offered: Collection[tuple[str, int]]) -> None:
    """Note which driver in use offers which environments, by `DriverInUse.id` and the rows' numbers."""
    if offered:
        rows = [{"driver": driver, "target_id": number} for driver, number in sorted(offered)]
        connection.execute(insert(OFFERS).on_conflict_do_nothing(), rows)


def target_presence(connection: sa.Connection) -> tuple[Presence, ...]:
    """Every environment, and when this host offered it; those only ever seen in entries have no such time."""
    rows = connection.execute(sa.select(TARGETS).order_by(TARGETS.c.id))
    drivers: defaultdict[int, set[str]] = defaultdict(set)
    for offer in connection.execute(sa.select(OFFERS)):
        drivers[offer.target_id].add(offer.driver)
    return tuple(Presence(value(row), row.first, row.last, row.present, frozenset(drivers[row.id])) for row in rows)


def value(row: sa.Row[tuple[object, ...]]) -> Target:
    """Read the environment that a row carries."""
    facts = tuple((name, text) for name, text in row.facts)
    return Target(KindName(row.kind), row.family, row.device, row.toolchain, facts)
