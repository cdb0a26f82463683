"""Record: totals: how many entries there are, of all and of each model, and their bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import sqlalchemy as sa

from xpucached.catalog.tables import (
    ATTRIBUTIONS,
    ENTRIES,
    FIGURES,
    HOST,
    INHERITED,
    MODELS,
    RUNS,
    STORES,
    TARGETS,
)
from xpucached.catalog.totals import whole
from xpucached.domain.names import KindName, ModelName
from xpucached.domain.stores import EntryState, Store


class Summary(NamedTuple):
    """Number of entries, defective and stale ones, and bytes allocated."""

    entries: int
    defective: int
    allocated: int
    stale: int  #: entries for environments that this host does not offer now


def catalog_summary(connection: sa.Connection) -> Summary:
    """Count entries and bytes.  Nothing is stale before the first survey of the host."""
    surveyed, count, defective, allocated, stale = connection.execute(_SUMMARY).one()
    return Summary(count or 0, defective or 0, whole(allocated), (stale or 0) if surveyed else 0)


# Made once: to make a statement takes longer than to run it.
_SUMMARY: Final = sa.select(
    sa.exists(sa.select(HOST.c.id)),
    sa.func.sum(FIGURES.c.entries),
    sa.func.sum(sa.case((FIGURES.c.state == EntryState.DEFECTIVE.value, FIGURES.c.entries), else_=0)),
    sa.func.total(FIGURES.c.allocated),
    sa.func.sum(
        sa.case(
            (
                FIGURES.c.target_id.in_(sa.select(TARGETS.c.id).where(TARGETS.c.present.is_(False))),
                FIGURES.c.entries,
            ),
            else_=0,
        )
    ),
)


def needed_sizes(connection: sa.Connection) -> dict[Store, int]:
    """Sum up, store by store, what registered models use and this host can: the bytes on disk."""
    a, i, e = ATTRIBUTIONS.c, INHERITED.c, ENTRIES.c
    registered = sa.select(MODELS.c.name)
    seen = sa.select(a.entry_id).join(RUNS, RUNS.c.id == a.run_id).where(RUNS.c.model.in_(registered))
    used = seen.union(sa.select(i.entry_id).where(i.model.in_(registered)))
    rows = connection.execute(
        sa.select(STORES.c.kind, STORES.c.root, sa.func.total(e.allocated).label("size"))
        .select_from(ENTRIES.join(STORES, STORES.c.id == e.store_id).outerjoin(TARGETS, TARGETS.c.id == e.target_id))
        .where(e.id.in_(used), sa.or_(e.target_id.is_(None), TARGETS.c.present))
        .group_by(STORES.c.id)
    )
    return {Store(KindName(row.kind), Path(row.root)): whole(row.size) for row in rows}


def model_sizes(connection: sa.Connection) -> dict[ModelName, tuple[int, int]]:
    """Count, for each model that has any, its entries and their allocated bytes.

    One program that is there for several drivers of a device counts once, by the one that was recorded last: a driver
    change doubles nothing.
    """
    a, i = ATTRIBUTIONS.c, INHERITED.c
    seen = sa.select(RUNS.c.model, a.entry_id).join(RUNS, RUNS.c.id == a.run_id)
    pairs = seen.union(sa.select(i.model, i.entry_id)).subquery()
    # What stays of a key when the driver changes is what follows its first part.
    tail = sa.func.substr(ENTRIES.c.key, sa.func.instr(ENTRIES.c.key, "/"))
    newest = (
        sa.select(pairs.c.model, sa.func.max(ENTRIES.c.id), ENTRIES.c.allocated)
        .join(ENTRIES, ENTRIES.c.id == pairs.c.entry_id)
        .outerjoin(TARGETS, TARGETS.c.id == ENTRIES.c.target_id)
        .group_by(pairs.c.model, ENTRIES.c.store_id, TARGETS.c.family, TARGETS.c.device, tail)
        .subquery()
    )
    rows = connection.execute(
        sa.select(newest.c.model, sa.func.count(), sa.func.total(newest.c.allocated)).group_by(newest.c.model)
    )
    return {ModelName(model): (count, whole(allocated)) for model, count, allocated in rows}
