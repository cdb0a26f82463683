"""Record: of which entries it was tried to find out, from others' recipes, how they are compiled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from xpucached.catalog import targets
from xpucached.catalog.recipe_tables import DERIVED, RECIPES
from xpucached.catalog.tables import ENTRIES, STORES, TARGETS
from xpucached.domain.names import EntryKey
from xpucached.domain.stores import EntryId, EntryState, ImageFormat, Store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xpucached.domain.names import KindName
    from xpucached.domain.targets import Target


def examples(connection: sa.Connection, kind: KindName, common: str, seen: int) -> dict[Target, tuple[EntryKey, ...]]:
    """Return recipes for each target that is here: one for each different part of that name.

    ``seen`` is how many passes must have asked for them.
    """
    r = RECIPES.c
    part = sa.func.json_extract(r.parts, sa.bindparam("path", f'$."{common}"[0]'))
    rows = connection.execute(
        sa.select(TARGETS, sa.func.min(r.key).label("key"))
        .join(RECIPES, r.target_id == TARGETS.c.id)
        .where(r.kind == kind, r.seen >= seen, TARGETS.c.present, part.is_not(None))
        .group_by(TARGETS.c.id, part)
        .order_by(TARGETS.c.id, sa.func.count().desc())
    )
    found: dict[Target, tuple[EntryKey, ...]] = {}
    for row in rows:
        target = targets.value(row)
        found[target] = (*found.get(target, ()), EntryKey(row.key))
    return found


def underived(connection: sa.Connection, kind: KindName, target: Target, most: int) -> tuple[EntryId, ...]:
    """Return entries of which nobody told how they are compiled, and that were not tried with this target yet."""
    e, r, u = ENTRIES.c, RECIPES.c, DERIVED.c
    number = sa.select(TARGETS.c.id).where(TARGETS.c.fingerprint == target.fingerprint).scalar_subquery()
    rows = connection.execute(
        sa.select(STORES.c.root, e.key)
        .join(STORES, STORES.c.id == e.store_id)
        .where(
            *(STORES.c.kind == kind, e.target_id.is_(None), e.state == EntryState.OK.value),
            e.image == ImageFormat.SPIRV.value,
            ~sa.exists().where(r.kind == kind, r.key == e.key),
            ~sa.exists().where(u.kind == kind, u.key == e.key, u.target_id == number),
        )
        .order_by(e.id)
        .limit(most)
    )
    return tuple(EntryId(Store(kind, Path(row.root)), EntryKey(row.key)) for row in rows)


def note_tried(connection: sa.Connection, target: Target, tried: Iterable[EntryId]) -> None:
    """Note what was tried with a target; what was tried with targets that are not here now is forgotten."""
    u = DERIVED.c
    connection.execute(sa.delete(DERIVED).where(u.target_id.not_in(sa.select(TARGETS.c.id).where(TARGETS.c.present))))
    number = targets.ensure(connection, {target: None})[target.fingerprint]
    rows = [{"kind": one.store.kind, "key": one.key, "target_id": number} for one in tried]
    if rows:
        connection.execute(insert(DERIVED).on_conflict_do_nothing(), rows)
