"""Record: where entries came from goes along with a store that was moved: they are known by their names and content."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from xpucached.catalog import builds

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa

    from xpucached.domain.names import EntryKey

_AT_ONCE: Final = 1000
"""Entries that are taken along in one transaction: whoever else has to write waits for no more."""

_NEXT: Final = "SELECT kind, root FROM builds WHERE (kind, root) > (?, ?) ORDER BY kind, root LIMIT 1"

_SAME: Final = (
    " FROM builds AS was JOIN stores AS here ON here.id = ?3"
    " JOIN entries ON entries.store_id = here.id AND entries.key = was.key"
    " AND entries.digest IS NOT NULL AND was.digest IN (entries.digest, entries.trusted)"
)
_OTHER: Final = "NOT IN ({0}.digest, substr({0}.digest, 1, instr({0}.digest, ' ') - 1))"
_WAITS: Final = (
    f"SELECT was.key{_SAME} LEFT JOIN builds AS there ON there.kind = was.kind AND there.root = here.root"
    " AND there.key = was.key WHERE was.kind = ?1 AND was.root = ?2 AND was.key > ?4"
    f" AND (there.key IS NULL OR entries.digest {_OTHER.format('there')}) ORDER BY was.key LIMIT ?5"
)

# A row stays where it was, for the store may come back; and what was taken out of a store, and was made there anew, is
# another one, as in `builds.take_out`: its row, in which its source stands, is left as it is.
_FOLLOW: Final = (
    "INSERT INTO builds (kind, root, key, family, origin, stamp, image_size, seconds, digest, at, signing_key)"  # noqa: S608 - ours
    " SELECT was.kind, here.root, was.key, was.family, was.origin, was.stamp, was.image_size, was.seconds,"
    f" entries.digest, was.at, was.signing_key{_SAME} WHERE was.kind = ?1 AND was.root = ?2"
    " AND was.key IN (SELECT value FROM json_each(?4))"
    " ON CONFLICT (kind, root, key) DO UPDATE SET family = excluded.family, origin = excluded.origin,"
    " stamp = excluded.stamp, image_size = excluded.image_size, seconds = excluded.seconds, digest = excluded.digest,"
    " at = excluded.at, models = NULL, signing_key = excluded.signing_key"
    f" WHERE excluded.digest {_OTHER.format('builds')}"
)


class TakenAlong(NamedTuple):
    """Some of what is to be taken along: from which store, which is not there any more, into which one."""

    kind: str
    root: str
    store: int
    keys: tuple[EntryKey, ...]


def next_waiting(connection: sa.Connection, after: TakenAlong | None = None) -> TakenAlong | None:
    """Return what is to `take_along` next, behind what was last: of a million entries that takes seconds."""
    for pair in _pairs(connection):
        if after is not None and pair < after[:3]:
            continue
        beyond = after.keys[-1] if after is not None and pair == after[:3] else ""
        if keys := connection.exec_driver_sql(_WAITS, (*pair, beyond, _AT_ONCE)).scalars().all():
            return TakenAlong(*pair, tuple(keys))
    return None


def take_along(connection: sa.Connection, some: TakenAlong) -> None:
    """Note where these came from, if that still is so: by what is known of the store that is not there any more."""
    if not _is_gone(connection, some.kind, some.root):
        return
    if connection.exec_driver_sql(_FOLLOW, (*some[:3], json.dumps(some.keys))).rowcount:
        builds.claim(connection, some.store, some.keys)


def _pairs(connection: sa.Connection) -> Iterator[tuple[str, str, int]]:
    """Yield the stores of which something was noted and which are not there, each with every other of its kind."""
    for of in _roots(connection):
        if _is_gone(connection, *of):
            others = "SELECT id FROM stores WHERE kind = ? AND root <> ? ORDER BY id"
            yield from ((*of, store) for store in connection.exec_driver_sql(others, of).scalars().all())


def _is_gone(connection: sa.Connection, kind: str, root: str) -> bool:
    there = "SELECT 1 FROM stores WHERE kind = ? AND root = ? AND state <> 'missing'"
    return connection.exec_driver_sql(there, (kind, root)).first() is None


def _roots(connection: sa.Connection) -> Iterator[tuple[str, str]]:
    """Yield the stores of which something was noted, in order."""
    kind, root = "", ""
    while row := connection.exec_driver_sql(_NEXT, (kind, root)).first():
        kind, root = row
        yield kind, root
