"""Record: the last survey of this host, and the history of what it offered."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from xpucached import codec
from xpucached.catalog import days, targets
from xpucached.catalog.moments import TICK, Moment
from xpucached.catalog.tables import CHANGE_TARGETS, CHANGES, HOST, RUNS, TARGETS
from xpucached.domain.host import DriverChange, DriverInUse, Host
from xpucached.domain.targets import Target

if TYPE_CHECKING:
    from collections.abc import Collection

    from xpucached.domain.targets import Lineage

log = logging.getLogger(__name__)

#: Changes that are kept: years of updates, and an end to it if a device comes and goes with every minute.
KEPT: Final = 1000


def record_survey(connection: sa.Connection, host: Host) -> DriverChange | None:
    """Keep this survey as the last; give what it changed, if it was not the first and a driver offers something else.

    That a model leads to a driver to which none led before, or that none leads to one any more, changes no driver.
    """
    old = last_survey(connection)
    first = connection.execute(sa.select(HOST.c.id)).first() is None
    before = {
        targets.value(row): row.id for row in connection.execute(sa.select(TARGETS).where(TARGETS.c.present.is_(True)))
    }
    views: dict[str, Host | DriverInUse] = {"": host, **{one.id: one for one in host.drivers}}
    known = {
        one: device.architecture for view in views.values() for device in view.devices for one in device.environments
    }
    numbers = targets.ensure(connection, {one: known.get(one) for one in host.offered})
    offered = list(numbers.values())
    c = TARGETS.c
    surveyed = sa.literal(host.surveyed, Moment)
    # It was there until just now: between two surveys that find the same nothing is written.
    connection.execute(
        sa.update(TARGETS).values(present=False, last=surveyed).where(c.present.is_(True), c.id.not_in(offered))
    )
    connection.execute(
        sa.update(TARGETS)
        .values(present=True, first=sa.func.coalesce(c.first, surveyed), last=surveyed)
        .where(c.id.in_(offered))
    )
    targets.note_drivers(
        connection, {(id_, numbers[one.fingerprint]) for id_, view in views.items() for one in view.environments}
    )
    survey = {"surveyed": host.surveyed, "document": codec.to_json(host)}
    connection.execute(
        insert(HOST).values(id=1, **survey).on_conflict_do_update(index_elements=[HOST.c.id], set_=survey)
    )
    earlier: dict[str, Host | DriverInUse] = {} if old is None else {"": old, **{one.id: one for one in old.drivers}}
    both = views.keys() & earlier.keys()
    were, are = ({one for id_ in both for one in some[id_].environments} for some in (earlier, views))
    appeared = tuple(one for one in host.offered if one not in before and one in are)
    vanished = tuple(one for one in before if one.fingerprint not in numbers and one in were)
    if first or not (appeared or vanished):
        return None
    # What began later, by a clock that was ahead or while the drivers were asked, did not meet what has come.
    before_it = sa.literal(host.surveyed - TICK, Moment)
    connection.execute(sa.update(RUNS).where(RUNS.c.started >= surveyed).values(started=before_it))
    change = connection.execute(sa.insert(CHANGES).values(at=host.surveyed, stamp=host.stamp)).lastrowid
    connection.execute(
        sa.insert(CHANGE_TARGETS),
        [{"change_id": change, "target_id": numbers[one.fingerprint], "appeared": True} for one in appeared]
        + [{"change_id": change, "target_id": before[one], "appeared": False} for one in vanished],
    )
    connection.execute(sa.delete(CHANGES).where(CHANGES.c.id <= change - KEPT))
    days.add(connection, host.surveyed, changes=1)
    return DriverChange(host.surveyed, host.stamp, appeared, vanished)


def last_survey(connection: sa.Connection) -> Host | None:
    """Return the last survey; None if there is none, or if another version wrote it in another shape."""
    document = connection.execute(sa.select(HOST.c.document)).scalar()
    if document is None:
        return None
    try:
        return codec.from_json(Host, document)
    except ValueError:
        # The next survey, which every start begins with, takes its place: no reason not to start.
        log.warning("the last survey in the catalog cannot be read, it waits for the next")
        return None


def appeared_since(connection: sa.Connection, moments: Collection[datetime]) -> dict[datetime, tuple[Target, ...]]:
    """Return, for each moment, what this host offers now on devices that it did not offer then, or beside what it did.

    What took the place of an earlier driver is not among it.
    """
    present = frozenset(
        targets.value(row) for row in connection.execute(sa.select(TARGETS).where(TARGETS.c.present.is_(True)))
    )
    then, found = set(present), dict[datetime, tuple[Target, ...]]()
    c = CHANGES.c
    oldest = sa.literal(min(moments, default=datetime.max.replace(tzinfo=UTC)), Moment)
    some = connection.execute(sa.select(c.id, c.at).where(c.at > oldest).order_by(c.id.desc())).all()
    # Of changes only so many are kept; since when a device is known is kept with it.
    since = _known_since(connection) if len(some) >= KEPT else {}
    rows = iter(some)
    row = next(rows, None)
    for moment in sorted(moments, reverse=True):
        while row is not None and row.at > moment:
            then -= set(_side(connection, row.id, appeared=True))
            then |= set(_side(connection, row.id, appeared=False))
            row = next(rows, None)
        devices, beside = {one.lineage for one in then}, {one.lineage for one in present & then}
        came = {one for one in present if one.lineage not in devices or since.get(one.lineage, moment) > moment}
        found[moment] = tuple(sorted(came | {one for one in present - then if one.lineage in beside}))
    return found


def _known_since(connection: sa.Connection) -> dict[Lineage, datetime]:
    """Return when this host first offered anything on each device."""
    since: dict[Lineage, datetime] = {}
    for row in connection.execute(sa.select(TARGETS).where(TARGETS.c.first.is_not(None))):
        lineage = targets.value(row).lineage
        since[lineage] = min(row.first, since.get(lineage, row.first))
    return since


# Made once, as it is asked for every `status`.
_NEWEST: Final = sa.select(CHANGES).order_by(CHANGES.c.id.desc()).limit(sa.bindparam("most"))


def driver_changes(connection: sa.Connection, limit: int = 20) -> tuple[DriverChange, ...]:
    """Return the newest changes, newest first."""
    return tuple(
        DriverChange(
            row.at, row.stamp, _side(connection, row.id, appeared=True), _side(connection, row.id, appeared=False)
        )
        for row in connection.execute(_NEWEST, {"most": limit}).all()
    )


def _side(connection: sa.Connection, change: int, *, appeared: bool) -> tuple[Target, ...]:
    c = CHANGE_TARGETS.c
    rows = connection.execute(
        sa.select(TARGETS)
        .join(CHANGE_TARGETS, c.target_id == TARGETS.c.id)
        .where(c.change_id == change, c.appeared.is_(appeared))
        .order_by(TARGETS.c.id)
    )
    return tuple(targets.value(row) for row in rows)
