"""Record: what was known of entries that are not there now: a slot may have moved, a store may be away for a while.

An entry that comes back is the same if its source is the same file, unwritten, in the same leaf: whoever has put it
there.  Then what its program was when it was first seen whole still tells whether it is damaged, and what models use
still is what they use.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

import sqlalchemy as sa

from xpucached.catalog.readable import Row, document, readable, stored, values
from xpucached.catalog.tables import DEPARTED, STORES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from xpucached.domain.names import EntryKey
    from xpucached.domain.stores import Store

_BATCH: Final = 500

_LEAVING: Final = 2000
"""Entries of a store that is gone that are forgotten in one transaction: who else has to write waits for no more."""

_KEPT: Final = 30 * 86400
"""Seconds for which they are remembered."""

_MOST: Final = 1_000_000
"""So many are remembered, the youngest: as many as the largest store holds that may be away for a while."""

_AT_ONCE: Final = 100_000
"""Of those that are to be forgotten so many are told at a time."""

_NOW: Final = "CAST(strftime('%s', 'now') AS INTEGER) * 1000000"

# What is no slash at the end is the slot.
_LEAF: Final = "rtrim(entries.key, replace(entries.key, '/', ''))"

_LEAVE: Final = f"""
    INSERT OR REPLACE INTO departed
    SELECT stores.kind, stores.root, {_LEAF}, substr(trusted, instr(trusted, ' ') + 1), trusted, first_seen, run_used,
        cost, restored, witnessed, hits, program, {_NOW},
        (SELECT json_group_array(json_array(run_id, created)) FROM attributions WHERE entry_id = entries.id),
        (SELECT json_group_array(model) FROM inherited WHERE entry_id = entries.id)
    FROM entries JOIN stores ON stores.id = entries.store_id
    WHERE instr(trusted, ' ') > 0 AND"""  # noqa: S608 - ours


# What was tried of them (see `derived`) is forgotten: it would be kept for as long as the driver stays.
_UNTRY: Final = """
    DELETE FROM derived WHERE (kind, key) IN (SELECT stores.kind, entries.key
    FROM entries JOIN stores ON stores.id = entries.store_id WHERE"""


class Departed(NamedTuple):
    """What was known of one."""

    leaf: str
    source: str
    trusted: str
    first_seen: int
    run_used: int | None
    cost: float | None
    restored: int | None
    witnessed: int | None
    hits: int | None
    program: str | None
    runs: list[tuple[int, int]]  #: [run, whether it made it] each
    models: list[str]


def leave(connection: sa.Connection, store: int, keys: Iterable[EntryKey] | None = None) -> None:
    """Remember what is known of these entries, or of all of a store: their rows are about to go."""
    if keys is None:
        _go(connection, "store_id = ?", [(store,)])
    else:
        _go(connection, "store_id = ? AND entries.key = ?", [(store, key) for key in keys])


def leave_rows(connection: sa.Connection, numbers: Iterable[int]) -> None:
    """Do the same for rows of any stores."""
    _go(connection, "entries.id = ?", [(number,) for number in numbers])


def _go(connection: sa.Connection, which: str, rows: list[tuple[object, ...]]) -> None:
    if rows:
        connection.exec_driver_sql(f"{_LEAVE} {which}", rows)
        connection.exec_driver_sql(f"{_UNTRY} {which})", rows)


_SOME: Final = (
    "SELECT store_id, key FROM entries WHERE store_id = (SELECT id FROM stores WHERE kind = ? AND root = ?) LIMIT ?"
)
_DELETE: Final = "DELETE FROM entries WHERE store_id = ? AND key = ?"


def leave_some(connection: sa.Connection, store: Store) -> int:
    """Remember, and forget, some entries of a store that is not there any more; give how many: 0 after the last."""
    rows = [tuple(one) for one in connection.exec_driver_sql(_SOME, (store.kind, str(store.root), _LEAVING))]
    _go(connection, "store_id = ? AND entries.key = ?", rows)
    if rows:
        connection.exec_driver_sql(_DELETE, rows)
    return len(rows)


_COUNT: Final = f"SELECT count(*), coalesce(sum(at < {_NOW} - {_KEPT * 1_000_000}), 0) FROM departed"  # noqa: S608 - ours
_OLDEST: Final = "SELECT kind, root, leaf, source, at FROM departed ORDER BY at LIMIT ?"
_FORGET: Final = "DELETE FROM departed WHERE kind = ? AND root = ? AND leaf = ? AND source = ? AND at = ?"


def overdue(connection: sa.Connection) -> list[tuple[object, ...]]:
    """Return what to `forget`: what is too old, and of too many the oldest; it takes long to see that."""
    count, old = connection.exec_driver_sql(_COUNT).one()
    number = min(max(old, count - _MOST), _AT_ONCE)
    return [tuple(one) for one in connection.exec_driver_sql(_OLDEST, (number,))] if number > 0 else []


def forget(connection: sa.Connection, some: list[tuple[object, ...]]) -> None:
    """Forget these, unless they have come back and gone again."""
    connection.exec_driver_sql(_FORGET, some)


def any_of(connection: sa.Connection, store: int) -> bool:
    """Return whether any entry of a store is remembered."""
    d = DEPARTED.c
    here = sa.and_(STORES.c.kind == d.kind, STORES.c.root == d.root)
    found = sa.select(d.at).join(STORES, here).where(STORES.c.id == store).limit(1)
    return connection.execute(found).first() is not None


def find(connection: sa.Connection, store: int, leaves: Collection[str]) -> dict[tuple[str, str], Departed]:
    """Return those that were in these leaves, by leaf and source, as far as they can be read."""
    d = DEPARTED.c
    here = sa.and_(STORES.c.kind == d.kind, STORES.c.root == d.root)
    some = sorted(leaves)
    found: dict[tuple[str, str], Departed] = {}
    for start in range(0, len(some), _BATCH):
        wanted = d.leaf.in_(some[start : start + _BATCH])
        rows = connection.execute(stored(DEPARTED).join(STORES, here).where(STORES.c.id == store, wanted))
        found |= {(one.leaf, one.source): one for one in readable(rows, _value)}
    return found


def _value(row: Row) -> Departed:
    of = values(row)
    of |= {"runs": document(row.runs, list[tuple[int, int]]), "models": document(row.models, list[str])}
    return Departed._make(of[name] for name in Departed._fields)


_UPDATE: Final = """
    UPDATE entries SET first_seen = min(first_seen, ?3), cost = coalesce(cost, ?5), program = coalesce(program, ?9),
        run_used = CASE WHEN ?4 IS NULL THEN run_used ELSE max(coalesce(run_used, ?4), ?4) END,
        restored = CASE WHEN ?6 IS NULL THEN restored ELSE max(coalesce(restored, ?6), ?6) END,
        witnessed = CASE WHEN ?7 IS NULL THEN witnessed ELSE max(coalesce(witnessed, ?7), ?7) END,
        hits = CASE WHEN ?8 IS NULL THEN hits ELSE coalesce(hits, 0) + ?8 END
    WHERE store_id = ?1 AND key = ?2"""
_ATTRIBUTE: Final = (
    "INSERT OR IGNORE INTO attributions (run_id, entry_id, created)"
    " SELECT runs.id, entries.id, ? FROM runs, entries WHERE runs.id = ? AND store_id = ? AND key = ?"
)
_BEQUEATH: Final = (
    "INSERT OR IGNORE INTO inherited (entry_id, model)"
    " SELECT entries.id, models.name FROM models, entries WHERE models.name = ? AND store_id = ? AND key = ?"
)
_OVER: Final = (
    "DELETE FROM departed WHERE leaf = ? AND source = ? AND (kind, root) = (SELECT kind, root FROM stores WHERE id = ?)"
)


def come_back(connection: sa.Connection, store: int, those: Iterable[tuple[EntryKey, Departed]]) -> None:
    """Give entries that are there again what was known of them; their rows are there already."""
    rows: defaultdict[str, list[tuple[object, ...]]] = defaultdict(list)
    for key, one in those:
        rows[_UPDATE].append(
            (store, key, one.first_seen, one.run_used, one.cost, one.restored, one.witnessed, one.hits, one.program)
        )
        rows[_ATTRIBUTE] += [(created, run, store, key) for run, created in one.runs]
        rows[_BEQUEATH] += [(model, store, key) for model in one.models]
        rows[_OVER].append((one.leaf, one.source, store))
    for statement, parameters in rows.items():
        if parameters:
            connection.exec_driver_sql(statement, parameters)
