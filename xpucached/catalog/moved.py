"""Record: where entries came from goes along with a store that was moved: they are known by their names and content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xpucached.catalog import builds

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa

_NEXT: Final = "SELECT kind, root FROM builds WHERE (kind, root) > (?, ?) ORDER BY kind, root LIMIT 1"

# A row stays where it was, for the store may come back; and what was taken out of a store, and was made there anew, is
# another one, as in `builds.take_out`: its row, in which its source stands, is left as it is.
_FOLLOW: Final = (
    "INSERT INTO builds (kind, root, key, family, origin, stamp, image_size, seconds, digest, at, signing_key)"
    " SELECT was.kind, here.root, was.key, was.family, was.origin, was.stamp, was.image_size, was.seconds,"
    " entries.digest, was.at, was.signing_key FROM builds AS was JOIN stores AS here ON here.id = ?3"
    " JOIN entries ON entries.store_id = here.id AND entries.key = was.key"
    " AND was.digest IN (entries.digest, entries.trusted) WHERE was.kind = ?1 AND was.root = ?2"
    " ON CONFLICT (kind, root, key) DO UPDATE SET family = excluded.family, origin = excluded.origin,"
    " stamp = excluded.stamp, image_size = excluded.image_size, seconds = excluded.seconds, digest = excluded.digest,"
    " at = excluded.at, models = NULL, signing_key = excluded.signing_key"
    " WHERE excluded.digest NOT IN (builds.digest, substr(builds.digest, 1, instr(builds.digest, ' ') - 1))"
)


def take_along(connection: sa.Connection) -> None:
    """Note where entries came from whose store lay elsewhere, where none is any more, by what is known of that."""
    for kind, root in _roots(connection):
        of = (kind, root)
        if connection.exec_driver_sql(
            "SELECT 1 FROM stores WHERE kind = ? AND root = ? AND state <> 'missing'", of
        ).first():
            continue
        here = connection.exec_driver_sql("SELECT id FROM stores WHERE kind = ? AND root <> ?", of).scalars().all()
        for store in here:
            if connection.exec_driver_sql(_FOLLOW, (kind, root, store)).rowcount:
                builds.claim(connection, store)


def _roots(connection: sa.Connection) -> Iterator[tuple[str, str]]:
    """Yield the stores of which something was noted."""
    kind, root = "", ""
    while row := connection.exec_driver_sql(_NEXT, (kind, root)).first():
        kind, root = row
        yield kind, root
