"""Record: how entries are compiled that do not say it themselves, as runs of models told it."""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from xpucached.catalog import predicted, targets
from xpucached.catalog.blobs import LARGEST, Blobs
from xpucached.catalog.recipe_tables import RECIPES
from xpucached.catalog.tables import ENTRIES, STORES, TARGETS
from xpucached.domain.names import EntryKey, KindName
from xpucached.domain.recipes import RecordedRecipe
from xpucached.domain.targets import Origin

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from datetime import datetime
    from pathlib import Path

    from xpucached.catalog import Catalog
    from xpucached.domain.stores import EntryId

log = logging.getLogger(__name__)

MOST: Final = 20_000
"""So many recipes are kept, and …"""

ROOM: Final = 256 << 20
"""… so many bytes of their parts; the oldest go first, and of those that do not count yet more than half."""

_FACTS: Final = 64 << 10
"""Bytes of the facts of one."""

PROVEN: Final = 2
"""A recipe counts when so many passes asked for it: some programs have another key each time."""

Recipes = dict[tuple[KindName, EntryKey], str]


class RecipeStore:
    """Recipes in the catalog, and their parts beside it."""

    def __init__(self, catalog: Catalog, folder: Path) -> None:
        """``folder`` is ours alone."""
        self._catalog = catalog
        self._blobs = Blobs(folder)
        self._keeping = threading.Lock()

    def keep(
        self,
        kind: KindName,
        recipes: Iterable[RecordedRecipe],
        now: datetime,
        asked: Collection[EntryKey] = (),
        *,
        proven: bool = False,
    ) -> int:
        """Keep what a pass told; give how many were too large for it.  Raises OSError and `CatalogError`.

        What else was ``asked`` for, is for what nobody could say: no more for what an earlier pass told.  With
        ``proven`` they are told of what was compiled by recipes that count.
        """
        refused = 0
        with self._keeping:
            rows: list[tuple[RecordedRecipe, dict[str, tuple[str, int]]]] = []
            for one in recipes:
                largest = max(map(len, one.parts.values()), default=0)
                if largest > LARGEST or len(json.dumps(dict(one.facts))) > _FACTS or len(rows) >= MOST:
                    refused += 1
                else:
                    rows.append((one, {name: self._blobs.put(part) for name, part in one.parts.items()}))
            silent = frozenset(asked) - {one.key for one, _ in rows}
            if silent:
                self._catalog.write(_forget_targets, kind, silent)
            if rows:
                self._blobs.keep_only(self._catalog.write(_keep, kind, rows, now, PROVEN if proven else 1))
        return refused

    def recorded(self, kind: KindName, key: EntryKey) -> RecordedRecipe | None:
        """Return how an entry is compiled, if that is known for sure and all of its parts are there."""
        row = self._catalog.read(_row, kind, key)
        if row is None:
            return None
        parts = {name: self._blobs.get(digest) for name, (digest, _) in row.parts.items()}
        whole = {name: part for name, part in parts.items() if part is not None}
        if len(whole) < len(parts):
            log.warning("a recipe's parts are not there any more: %s", key)
            return None
        return RecordedRecipe(key, targets.value(row), row.lineage, whole, row.told)


def recipe_lineages(connection: sa.Connection) -> Recipes:
    """Return what stays of keys when the toolchain changes: of those that recipes are for, and that they predict."""
    c = RECIPES.c
    rows = connection.execute(sa.select(c.kind, c.key, c.lineage).where(c.seen >= PROVEN))
    told = {(KindName(kind), EntryKey(key)): lineage for kind, key, lineage in rows}
    return {**predicted.lineages(connection), **told}


def note_never_again(connection: sa.Connection, entries: Iterable[EntryId]) -> None:
    """Note of entries that the next pass compiled the same kernels under other keys; who asks again makes it untrue."""
    c = RECIPES.c
    for one in entries:
        connection.execute(sa.update(RECIPES).values(seen=0).where(c.kind == one.store.kind, c.key == one.key))


def read_all(connection: sa.Connection) -> int:
    """Read every recipe, as who keeps further ones does; give how many there are.  Raises what a forged row raises."""
    rows = connection.execute(sa.select(RECIPES)).all()
    for row in rows:
        if not all(isinstance(digest, str) and size >= 0 for digest, size in row.parts.values()):
            raise ValueError("the parts of a recipe are none")
        if not all(isinstance(value, str) for value in row.facts.values()):
            raise ValueError("the facts of a recipe are none")
    return len(rows)


def note_targets(connection: sa.Connection, store: int, keys: Collection[EntryKey] | None = None) -> None:
    """Give entries of a store, or some of them, that do not say what they are for what their recipes say.

    A recipe that was told once does as well: it is whether it will be asked for again that takes two.  But what
    is there of a driver that has gone may have been made by the next one, unless we made it ourselves.
    """
    c, e = RECIPES.c, ENTRIES.c
    mine = (
        sa.select(c.target_id)
        .join(STORES, STORES.c.kind == c.kind)
        .join(TARGETS, TARGETS.c.id == c.target_id)
        .where(STORES.c.id == store, c.key == e.key, sa.or_(TARGETS.c.present, e.origin.is_not(None)))
    )
    connection.execute(
        sa.update(ENTRIES)
        .values(target_id=mine.scalar_subquery(), origin=sa.func.coalesce(e.origin, Origin.OBSERVED.value))
        .where(*targets.unaimed(store, keys), mine.exists())
    )


def _renew_targets(connection: sa.Connection, kind: KindName, told: Mapping[EntryKey, int]) -> None:
    """Give entries that were there before a pass what it told of them.

    One entry may serve two drivers in turn: it is for the one under which it was asked for last.
    """
    stores = sa.select(STORES.c.id).where(STORES.c.kind == kind).scalar_subquery()
    e = ENTRIES.c
    silent = sa.or_(e.target_id.is_(None), e.origin == Origin.OBSERVED.value)
    connection.execute(
        sa.update(ENTRIES)
        .values(target_id=sa.bindparam("target"), origin=Origin.OBSERVED.value)
        .where(e.store_id.in_(stores), e.key == sa.bindparam("asked"), silent),
        [{"asked": key, "target": target} for key, target in told.items()],
    )


def _forget_targets(connection: sa.Connection, kind: KindName, keys: Collection[EntryKey]) -> None:
    """Let entries be for nothing that is known, of which an earlier pass said it."""
    stores = sa.select(STORES.c.id).where(STORES.c.kind == kind).scalar_subquery()
    c, e = RECIPES.c, ENTRIES.c
    said = sa.select(c.key).where(c.kind == kind, c.key == e.key, c.target_id == e.target_id).exists()
    connection.execute(
        sa.update(ENTRIES)
        .values(target_id=None, origin=None)
        .where(e.store_id.in_(stores), e.key == sa.bindparam("asked"), said),
        [{"asked": key} for key in keys],
    )


def _row(connection: sa.Connection, kind: KindName, key: EntryKey) -> sa.Row[tuple[object, ...]] | None:
    c = RECIPES.c
    statement = sa.select(TARGETS, c.lineage, c.parts, c.facts.label("told")).join(TARGETS, TARGETS.c.id == c.target_id)
    return connection.execute(statement.where(c.kind == kind, c.key == key, c.seen >= PROVEN)).first()


def _keep(
    connection: sa.Connection,
    kind: KindName,
    recipes: Collection[tuple[RecordedRecipe, Mapping[str, tuple[str, int]]]],
    now: datetime,
    passes: int,
) -> frozenset[str]:
    """Note recipes, forget the oldest beyond the bounds, and give the digests of the parts that are still wanted."""
    c = RECIPES.c
    numbers = targets.ensure(connection, dict.fromkeys(one.target for one, _ in recipes))
    for one, parts in recipes:
        what = {
            "target_id": numbers[one.target.fingerprint],
            "lineage": one.lineage,
            "parts": {name: list(part) for name, part in parts.items()},
            "facts": dict(one.facts),
            "at": now,
        }
        statement = insert(RECIPES).values(kind=kind, key=one.key, seen=passes, **what)
        # Who tells something else of the same key begins anew.
        seen = sa.case((c.lineage == statement.excluded.lineage, c.seen), else_=0) + passes
        connection.execute(statement.on_conflict_do_update(index_elements=[c.kind, c.key], set_={**what, "seen": seen}))
    _renew_targets(connection, kind, {one.key: numbers[one.target.fingerprint] for one, _ in recipes})
    wanted: dict[str, int] = {}
    # One pass of a program that asks for something else each time may tell thousands: these take half at most.
    count, room = {True: 0, False: 0}, {True: 0, False: 0}
    for row in connection.execute(sa.select(c.kind, c.key, c.parts, c.seen).order_by(c.at.desc(), c.key)).all():
        fresh = {digest: size for digest, size in row.parts.values() if digest not in wanted}
        counts, size = row.seen >= PROVEN, sum(fresh.values())
        if (
            sum(count.values()) < MOST
            and sum(room.values()) + size <= ROOM
            and (counts or (count[False] < MOST // 2 and room[False] + size <= ROOM // 2))
        ):
            count[counts], room[counts] = count[counts] + 1, room[counts] + size
            wanted.update(fresh)
        else:
            connection.execute(sa.delete(RECIPES).where(c.kind == row.kind, c.key == row.key))
    return frozenset(wanted)
