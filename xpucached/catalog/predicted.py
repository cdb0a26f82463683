"""Record: where programs will look for what they had compiled when nothing but the compiler is another."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from xpucached.catalog import targets
from xpucached.catalog.lists import among
from xpucached.catalog.recipe_tables import PREDICTED, RECIPES
from xpucached.catalog.tables import ATTRIBUTIONS, ENTRIES, INHERITED, RUNS, STORES, TARGETS
from xpucached.domain.names import EntryKey, KindName
from xpucached.domain.recipes import Unpredicted
from xpucached.domain.stores import EntryId, EntryState, Store
from xpucached.domain.targets import Origin

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from xpucached.domain.targets import Target

_THEN, _NOW = TARGETS.alias("then_"), TARGETS.alias("now_")
_ALIKE = sa.and_(
    *(_NOW.c[name] == _THEN.c[name] for name in ("kind", "family", "device", "toolchain")),
    _NOW.c.id != _THEN.c.id,
    _NOW.c.present,
)
"""Only the compiler is another."""


def unpredicted(connection: sa.Connection, seen: int, most: int) -> tuple[Unpredicted, ...]:
    """Return recipes that so many passes asked for, and targets for which they are not predicted yet.

    Those of one input come in a row, and none whose entry is nowhere, or not whole.
    """
    r, f = RECIPES.c, PREDICTED.c
    mine = sa.and_(f.kind == r.kind, f.key == r.key, f.target_id == _NOW.c.id)
    place = (
        sa.select(STORES.c.root)
        .select_from(STORES)
        .join(ENTRIES, sa.and_(ENTRIES.c.store_id == STORES.c.id, ENTRIES.c.key == r.key))
        .where(STORES.c.kind == r.kind, ENTRIES.c.state == EntryState.OK.value)
        .order_by(STORES.c.id)
        .limit(1)
        .correlate(RECIPES)
        .scalar_subquery()
    )
    rows = connection.execute(
        sa.select(r.kind.label("of"), r.key.label("name"), place.label("root"), _NOW)
        .select_from(RECIPES)
        .join(_THEN, _THEN.c.id == r.target_id)
        .join(_NOW, _ALIKE)
        .where(r.seen >= seen, ~sa.exists().where(mine), place.is_not(None))
        .order_by(r.parts, r.key)
        .limit(most)
    )
    return tuple(
        Unpredicted(EntryId(Store(KindName(row.of), Path(row.root)), EntryKey(row.name)), targets.value(row))
        for row in rows
    )


def note(connection: sa.Connection, told: Iterable[tuple[Unpredicted, EntryKey | None]]) -> None:
    """Note where programs will look, or that nobody can tell; of targets that are not here now it is forgotten."""
    connection.execute(
        sa.delete(PREDICTED).where(PREDICTED.c.target_id.not_in(sa.select(TARGETS.c.id).where(TARGETS.c.present)))
    )
    rows = list(told)
    numbers = targets.ensure(connection, dict.fromkeys(one.target for one, _ in rows))
    for one, key in rows:
        known = sa.select(RECIPES.c.key).where(RECIPES.c.kind == one.entry.store.kind, RECIPES.c.key == one.entry.key)
        if connection.execute(known).first() is not None:
            connection.execute(
                insert(PREDICTED)
                .values(
                    kind=one.entry.store.kind,
                    key=one.entry.key,
                    target_id=numbers[one.target.fingerprint],
                    predicted_key=key,
                    passed_on=False,
                )
                .on_conflict_do_nothing()
            )
    for store in connection.execute(sa.select(STORES.c.id).where(STORES.c.kind.in_(sa.select(PREDICTED.c.kind)))):
        claim(connection, store.id)


def claim(connection: sa.Connection, store: int, keys: Collection[EntryKey] | None = None) -> None:
    """Give entries of a store, or some of them, that lie where it was predicted what they are for, and their models."""
    if connection.execute(sa.select(PREDICTED.c.key).limit(1)).first() is None:
        return
    f, e = PREDICTED.c, ENTRIES.c
    mine = (
        sa.select(f.target_id)
        .join(STORES, STORES.c.kind == f.kind)
        .where(STORES.c.id == store, f.predicted_key == e.key)
    ).limit(1)
    connection.execute(
        sa.update(ENTRIES)
        .values(target_id=mine.scalar_subquery(), origin=Origin.OBSERVED.value)
        .where(*targets.unaimed(store, keys), mine.exists())
    )
    old, new = ENTRIES.alias("old"), ENTRIES.alias("new")
    places = (
        sa.select(f.kind, f.key, f.target_id, old.c.id.label("old"), new.c.id.label("new"))
        .select_from(PREDICTED)
        .join(STORES, STORES.c.kind == f.kind)
        .join(old, sa.and_(old.c.store_id == STORES.c.id, old.c.key == f.key))
        .join(new, sa.and_(new.c.store_id == STORES.c.id, new.c.key == f.predicted_key))
        .where(STORES.c.id == store, ~f.passed_on)
    )
    for row in connection.execute(places).all():
        needing = (
            sa.select(RUNS.c.model)
            .join(ATTRIBUTIONS, ATTRIBUTIONS.c.run_id == RUNS.c.id)
            .where(ATTRIBUTIONS.c.entry_id == row.old)
            .union(sa.select(INHERITED.c.model).where(INHERITED.c.entry_id == row.old))
        )
        has = (
            sa.select(RUNS.c.model)
            .join(ATTRIBUTIONS, ATTRIBUTIONS.c.run_id == RUNS.c.id)
            .where(ATTRIBUTIONS.c.entry_id == row.new)
        )
        inheriting = set(connection.execute(needing).scalars()) - set(connection.execute(has).scalars())
        for model in sorted(inheriting):
            connection.execute(insert(INHERITED).values(entry_id=row.new, model=model).on_conflict_do_nothing())
        # Once: what a model does not use any more by the word of a later run, it must not get back.
        connection.execute(
            sa.update(PREDICTED)
            .values(passed_on=True)
            .where(f.kind == row.kind, f.key == row.key, f.target_id == row.target_id)
        )


def lineages(connection: sa.Connection) -> dict[tuple[KindName, EntryKey], str]:
    """Return what stays of the keys that were predicted."""
    f, r = PREDICTED.c, RECIPES.c
    rows = connection.execute(
        sa.select(f.kind, f.predicted_key, r.lineage)
        .select_from(PREDICTED)
        .join(RECIPES, sa.and_(r.kind == f.kind, r.key == f.key))
        .where(f.predicted_key.is_not(None))
    )
    return {(KindName(kind), EntryKey(key)): lineage for kind, key, lineage in rows}


def successors(connection: sa.Connection, runs: Iterable[int]) -> Mapping[int, tuple[Target, ...]]:
    """Return the targets for which all is there that each of these runs used for others of the same driver.

    All of a device and interface counts as one; and of a kind of cache of which something is not known, nothing does.
    """
    kinds = frozenset(connection.execute(sa.select(PREDICTED.c.kind).distinct()).scalars())
    numbers = list(runs)
    if not kinds or not numbers:
        return {}
    a, f, r = ATTRIBUTIONS.c, PREDICTED.c, RECIPES.c
    old, new = ENTRIES.alias("old"), ENTRIES.alias("new")
    used = (
        sa.select(a.run_id, STORES.c.kind, sa.func.coalesce(_THEN.c.family, ""), sa.func.coalesce(_THEN.c.device, ""))
        .select_from(ATTRIBUTIONS)
        .join(old, old.c.id == a.entry_id)
        .join(STORES, STORES.c.id == old.c.store_id)
    )
    needed: defaultdict[int, Counter[tuple[str, str, str]]] = defaultdict(Counter)
    for number, *lineage, count in connection.execute(
        # What an entry was for is forgotten when it is read anew after its driver has gone; its recipe says it.
        used.outerjoin(RECIPES, sa.and_(r.kind == STORES.c.kind, r.key == old.c.key))
        .outerjoin(_THEN, _THEN.c.id == sa.func.coalesce(r.target_id, old.c.target_id))
        .add_columns(sa.func.count())
        .where(among(a.run_id, numbers), STORES.c.kind.in_(kinds))
        .group_by(a.run_id, STORES.c.kind, _THEN.c.family, _THEN.c.device)
    ):
        needed[number][lineage[0], lineage[1], lineage[2]] += count
    mine = (
        sa.select(a.run_id, _NOW.c.id.label("target"), old.c.id)
        .select_from(ATTRIBUTIONS)
        .join(old, old.c.id == a.entry_id)
    )
    moved = (
        mine.join(STORES, STORES.c.id == old.c.store_id)
        .join(PREDICTED, sa.and_(f.kind == STORES.c.kind, f.key == old.c.key))
        .join(RECIPES, sa.and_(r.kind == f.kind, r.key == f.key))
        .join(_THEN, _THEN.c.id == r.target_id)
        .join(_NOW, sa.and_(_NOW.c.id == f.target_id, _ALIKE))
        .join(new, sa.and_(new.c.store_id == old.c.store_id, new.c.key == f.predicted_key))
        .where(among(a.run_id, numbers), new.c.state == EntryState.OK.value)
    )
    stayed = mine.join(_NOW, sa.and_(_NOW.c.id == old.c.target_id, _NOW.c.present, _NOW.c.kind.in_(kinds))).where(
        among(a.run_id, numbers), old.c.state == EntryState.OK.value
    )
    # What is predicted to lie where it lay is in both, and there once.
    either = moved.union(stayed).subquery()
    there: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for number, target, count in connection.execute(
        sa.select(either.c.run_id, either.c.target, sa.func.count()).group_by(either.c.run_id, either.c.target)
    ):
        there[number][target] = count
    present = {row.id: targets.value(row) for row in connection.execute(sa.select(TARGETS).where(TARGETS.c.present))}
    found: dict[int, tuple[Target, ...]] = {}
    for number, wanted in needed.items():
        whole = [
            present[target]
            for target, count in sorted(there[number].items())
            if count == wanted[present[target].lineage]
        ]
        lineages_there = {one.lineage for one in whole}
        short = {kind for kind, *rest in wanted if (kind, *rest) not in lineages_there}
        found[number] = tuple(one for one in whole if one.kind not in short)
    return found
