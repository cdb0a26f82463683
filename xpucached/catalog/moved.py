"""Record: where entries came from goes along with a store that was moved: they are known by their names and content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xpucached.catalog import builds

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa

_NEXT: Final = "SELECT kind, root FROM builds WHERE (kind, root) > (?, ?) ORDER BY kind, root LIMIT 1"

_SAME: Final = (
    " FROM builds AS was JOIN stores AS here ON here.id = ?3"
    " JOIN entries ON entries.store_id = here.id AND entries.key = was.key"
    " AND entries.digest IS NOT NULL AND was.digest IN (entries.digest, entries.trusted)"
)
_OTHER: Final = "NOT IN ({0}.digest, substr({0}.digest, 1, instr({0}.digest, ' ') - 1))"
_WAITS: Final = (
    f"SELECT 1{_SAME} LEFT JOIN builds AS there ON there.kind = was.kind AND there.root = here.root"
    " AND there.key = was.key WHERE was.kind = ?1 AND was.root = ?2"
    f" AND (there.key IS NULL OR entries.digest {_OTHER.format('there')}) LIMIT 1"
)

# A row stays where it was, for the store may come back; and what was taken out of a store, and was made there anew, is
# another one, as in `builds.take_out`: its row, in which its source stands, is left as it is.
_FOLLOW: Final = (
    "INSERT INTO builds (kind, root, key, family, origin, stamp, image_size, seconds, digest, at, signing_key)"
    " SELECT was.kind, here.root, was.key, was.family, was.origin, was.stamp, was.image_size, was.seconds,"
    f" entries.digest, was.at, was.signing_key{_SAME} WHERE was.kind = ?1 AND was.root = ?2"
    " ON CONFLICT (kind, root, key) DO UPDATE SET family = excluded.family, origin = excluded.origin,"
    " stamp = excluded.stamp, image_size = excluded.image_size, seconds = excluded.seconds, digest = excluded.digest,"
    " at = excluded.at, models = NULL, signing_key = excluded.signing_key"
    f" WHERE excluded.digest {_OTHER.format('builds')}"
)


def any_waits(connection: sa.Connection) -> bool:
    """Return whether there is anything to `take_along`: of a million entries that takes seconds, and nobody waits."""
    return any(connection.exec_driver_sql(_WAITS, pair).first() for pair in _pairs(connection))


def take_along(connection: sa.Connection) -> None:
    """Note where entries came from whose store lay elsewhere, where none is any more, by what is known of that."""
    for pair in _pairs(connection):
        if connection.exec_driver_sql(_FOLLOW, pair).rowcount:
            builds.claim(connection, pair[2])


def _pairs(connection: sa.Connection) -> Iterator[tuple[str, str, int]]:
    """Yield the stores of which something was noted and which are not there, each with every other of its kind."""
    for kind, root in _roots(connection):
        of = (kind, root)
        if connection.exec_driver_sql(
            "SELECT 1 FROM stores WHERE kind = ? AND root = ? AND state <> 'missing'", of
        ).first():
            continue
        here = connection.exec_driver_sql("SELECT id FROM stores WHERE kind = ? AND root <> ?", of).scalars().all()
        yield from ((kind, root, store) for store in here)


def _roots(connection: sa.Connection) -> Iterator[tuple[str, str]]:
    """Yield the stores of which something was noted."""
    kind, root = "", ""
    while row := connection.exec_driver_sql(_NEXT, (kind, root)).first():
        kind, root = row
        yield kind, root
