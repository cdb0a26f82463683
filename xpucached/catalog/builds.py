"""Record: what we compiled ourselves, with which driver, how long it took, and what came of it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from xpucached.catalog import days, refusals, rows
from xpucached.catalog.lists import among
from xpucached.catalog.recipe_tables import VOUCHERS
from xpucached.catalog.tables import BUILDS, ENTRIES, STORES
from xpucached.domain.targets import Origin

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from datetime import datetime

    from xpucached.domain.bundles import BundleSource, MadeEntry
    from xpucached.domain.names import EntryKey
    from xpucached.domain.plans import Built, IndexedEntry
    from xpucached.domain.stores import Entry, EntryId

_REMEMBERED: Final = timedelta(days=365)
_ENOUGH: Final = 2000
"""The newest builds of a family that say how fast it compiles: compilers change, and so do machines."""


def record_build(connection: sa.Connection, built: Built, now: datetime, *, coming: bool = False) -> None:
    """Note that we compiled an entry; with ``coming`` before it is in its place, for we may be killed in between."""
    entry = built.entry
    key = {"kind": entry.store.kind, "root": str(entry.store.root), "key": entry.key}
    what = {
        "family": built.to.family,
        "origin": built.origin.value,
        "stamp": built.stamp,
        "image_size": built.image_size,
        "seconds": built.seconds,
        "digest": built.digest,
        "at": now,
        "models": list(built.models) or None,
        "signing_key": None,
    }
    source = built.source
    if source is not None and (came := _stamp_of(connection, source, as_it_was=True)) is not None:
        # What is compiled from what came with a bundle is the bundle's word as much as that is.
        what["stamp"], what["signing_key"] = came
    _put(connection, key, what, coming=coming)
    if coming:
        return
    spared = built.seconds if built.models and built.origin is not Origin.SIMULATED else 0.0
    days.add(connection, now, replayed=1, replay_seconds=built.seconds, spared_seconds=spared)


def withdraw_build(connection: sa.Connection, entry: EntryId, at: datetime) -> None:
    """Forget what was noted at that moment of an entry that was to come: a program has made another one of the name."""
    b = BUILDS.c
    of = (b.kind == entry.store.kind, b.root == str(entry.store.root), b.key == entry.key)
    connection.execute(sa.delete(BUILDS).where(*of, b.at == at))


def _put(connection: sa.Connection, key: Mapping[str, object], what: Mapping[str, object], *, coming: bool) -> None:
    """Note whose work is in a place; what is only ``coming`` takes nothing away that is known of what is there."""
    b, e = BUILDS.c, ENTRIES.c
    # By their names: an insertion is nothing that a question could refer to.
    columns: tuple[sa.Column[str], ...] = (STORES.c.kind, STORES.c.root, e.key, e.digest)
    same = [one == sa.literal_column(f"builds.{one.name}", one.type) for one in columns]
    there = sa.select(e.id).join(STORES).where(*same).exists()
    connection.execute(
        insert(BUILDS)
        .values(**key, **what)
        .on_conflict_do_update(
            index_elements=[b[name] for name in key],
            set_=what,
            where=sa.or_(~there, b.digest == what["digest"]) if coming else None,
        )
    )


def record_import(
    connection: sa.Connection,
    made: Iterable[MadeEntry],
    bundle: str,
    source: BundleSource,
    now: datetime,
    *,
    coming: bool = False,
) -> None:
    """Note which entries came with a bundle: as they are if compiling took no time, else compiled from its recipes.

    With ``coming`` before they are in their places: whoever puts them there may be killed in between.
    """
    stamp = f"{bundle} {source.signer}"
    for digest in {bundle, source.signing_key, *source.digests} - {""}:
        row = {"stamp": stamp, "signing_key": source.signing_key, "digest": digest}
        connection.execute(insert(VOUCHERS).values(row).on_conflict_do_nothing())
    for one in made:
        key = {"kind": one.kind, "root": str(one.store), "key": one.key}
        what = {
            "family": one.family,
            "origin": (Origin.REBUILT if one.seconds else Origin.IMPORTED).value,
            "stamp": stamp,
            "image_size": one.input_size,
            "seconds": one.seconds,
            "digest": one.digest,
            "at": now,
            "models": None,
            "signing_key": source.signing_key or None,
        }
        _put(connection, key, what, coming=coming)


def bundle_of(connection: sa.Connection, entry: Entry) -> str:
    """Return with which bundle an entry came, and who signed that; empty if with none, or if it is another one now."""
    came = _stamp_of(connection, entry)
    return "" if came is None else _named(came[0])


def _named(stamp: str) -> str:
    digest, _, signer = stamp.partition(" ")
    return f"{digest}, signed by {signer}" if signer else f"{digest}, not signed by a trusted key"


def _stamp_of(connection: sa.Connection, entry: Entry, *, as_it_was: bool = False) -> tuple[str, str | None] | None:
    b = BUILDS.c
    of = (b.kind == entry.id.store.kind, b.root == str(entry.id.store.root), b.key == entry.id.key)
    same = b.digest == entry.digest
    if as_it_was and entry.defect is not None:
        # What is damaged since has other bytes, and what it is compiled from came with the bundle all the same.
        same = sa.or_(sa.func.instr(b.digest, " ") == 0, b.digest.endswith(f" {entry.source}", autoescape=True))
    row = connection.execute(sa.select(b.stamp, b.signing_key).where(*of, same, b.stamp.startswith(_BUNDLE))).first()
    return None if row is None else (row.stamp, row.signing_key)


def revoked_entries(connection: sa.Connection, digests: frozenset[str]) -> tuple[tuple[IndexedEntry, str], ...]:
    """Return what came with a bundle of which one of these digests is revoked, with how that is named.

    Also what was compiled from that since.  Without kernels.
    """
    if not digests:
        return ()
    b, v = BUILDS.c, VOUCHERS.c
    of = (v.stamp == b.stamp, v.signing_key == sa.func.coalesce(b.signing_key, ""), among(v.digest, digests))
    wrong = sa.or_(among(sa.func.substr(b.stamp, 1, _DIGEST), digests), sa.select(v.digest).where(*of).exists())
    here = (STORES.c.kind == b.kind, STORES.c.root == b.root, b.key == ENTRIES.c.key)
    same = b.digest == ENTRIES.c.digest
    came = sa.select(b.key).where(*here, same, b.stamp.startswith(_BUNDLE), wrong).correlate(ENTRIES, STORES).exists()
    found = rows.indexed(connection, connection.execute(rows.WITHOUT_KERNELS.where(came)))
    return tuple((one, bundle_of(connection, one.entry)) for one in found)


def came_with(wanted: str) -> sa.ColumnElement[bool]:
    """Ask for entries that came with a bundle: named by the beginning of its digest, or by who signed it."""
    b = BUILDS.c
    of = (STORES.c.kind == b.kind, STORES.c.root == b.root, b.key == ENTRIES.c.key, b.digest == ENTRIES.c.digest)
    digest = wanted if wanted.startswith(_BUNDLE) else f"{_BUNDLE}{wanted}"
    signed = sa.and_(b.stamp.startswith(_BUNDLE), sa.func.substr(b.stamp, len(_BUNDLE) + 66) == wanted)
    named = b.stamp.startswith(digest, autoescape=True)
    return sa.select(b.key).where(*of, sa.or_(named, signed)).correlate(ENTRIES, STORES).exists()


_DIGEST: Final = 71
"""The length of a digest, as it is written."""

_BUNDLE: Final = "sha256:"
"""What the stamp of what came with a bundle begins with."""


def forget_old_builds(connection: sa.Connection, now: datetime) -> None:
    """Forget what was compiled, or refused, so long ago that it says nothing any more."""
    refusals.forget_old_refusals(connection, now)
    b = BUILDS.c
    here = sa.select(ENTRIES.c.id).join(STORES).where(STORES.c.kind == b.kind, STORES.c.root == b.root)
    there = sa.and_(b.stamp.startswith(_BUNDLE), here.where(ENTRIES.c.key == b.key).correlate(BUILDS).exists())
    # Where an entry came from is asked as long as it is there: its bundle may be revoked.
    connection.execute(sa.delete(BUILDS).where(b.at < now - _REMEMBERED, ~there))
    connection.execute(sa.delete(VOUCHERS).where(VOUCHERS.c.stamp.not_in(sa.select(b.stamp))))


def build_rates(connection: sa.Connection) -> Mapping[str, float]:
    """Give, by family, the seconds that a compiler takes for a byte of SPIR-V."""
    b = BUILDS.c
    numbered = sa.select(
        b.family,
        b.seconds,
        b.image_size,
        sa.func.row_number().over(partition_by=b.family, order_by=b.at.desc()).label("number"),
    ).subquery()
    rows = connection.execute(
        sa.select(numbered.c.family, sa.func.sum(numbered.c.seconds), sa.func.sum(numbered.c.image_size))
        .where(numbered.c.number <= _ENOUGH)
        .group_by(numbered.c.family)
    )
    return {family: seconds / size for family, seconds, size in rows if size}


# Compilers make the same of the same: what was taken out and is there again is another one, unless it came back with
# the source that it had.  So that stands behind its digest, as in `trusted`, and the digest alone is nobody's.
_TAKEN: Final = (
    "UPDATE builds SET digest = (SELECT trusted FROM entries WHERE id = ?1)"
    " WHERE (kind, root, key) = (SELECT stores.kind, stores.root, entries.key"
    " FROM entries JOIN stores ON stores.id = entries.store_id WHERE entries.id = ?1)"
    " AND digest = (SELECT substr(trusted, 1, instr(trusted, ' ') - 1) FROM entries"
    " WHERE id = ?1 AND instr(trusted, ' ') > 0)"
)
_BACK: Final = (
    "UPDATE builds SET digest = substr(digest, 1, instr(digest, ' ') - 1)"
    " WHERE (kind, root) = (SELECT kind, root FROM stores WHERE id = ?1) AND instr(digest, ' ') > 0"
    " AND EXISTS (SELECT 1 FROM entries"
    " WHERE store_id = ?1 AND entries.key = builds.key AND entries.trusted = builds.digest)"
)
_AMONG: Final = " AND builds.key IN (SELECT value FROM json_each(?2))"


def take_out(connection: sa.Connection, numbers: Iterable[int]) -> None:
    """Note that the entries of these rows were taken out."""
    if rows := [(number,) for number in numbers]:
        connection.exec_driver_sql(_TAKEN, rows)


_MOVE: Final = (
    "UPDATE OR REPLACE builds SET key = ?1, digest = ?5 WHERE (kind, root, key) = (SELECT builds.kind, builds.root,"
    " builds.key FROM builds JOIN stores ON stores.kind = builds.kind AND stores.root = builds.root"
    " WHERE stores.id = ?2 AND builds.key > ?3 AND builds.key < ?4 AND builds.digest IN (?5, ?6)"
    " ORDER BY builds.key <> ?1,"
    " EXISTS (SELECT 1 FROM entries WHERE entries.store_id = ?2 AND entries.key = builds.key) LIMIT 1)"
)


def move(connection: sa.Connection, store: int, moved: Mapping[EntryKey, str]) -> None:
    """Let what is known of what we made go along with it: it has another number in its leaf now.

    ``moved`` are the entries that were in their leaf before, by their keys now, with what they were trusted by.
    """
    rows = [
        (key, store, f"{leaf}/", f"{leaf}0", trusted.partition(" ")[0], trusted)  # a zero stands behind the slash
        for key, trusted in moved.items()
        if (leaf := key.rpartition("/")[0])
    ]
    if rows:
        connection.exec_driver_sql(_MOVE, rows)


def claim(connection: sa.Connection, store: int, keys: Collection[EntryKey] | None = None) -> None:
    """Set the origin and cost of the entries of a store that are still exactly what we compiled, or of some of them."""
    some, what = ("", (store,)) if keys is None else (_AMONG, (store, json.dumps(list(keys))))
    connection.exec_driver_sql(_BACK + some, what)
    b, e = BUILDS.c, ENTRIES.c
    here = sa.and_(STORES.c.kind == b.kind, STORES.c.root == b.root)

    def ours(column: sa.ColumnElement[object]) -> sa.Select[object]:
        same = (STORES.c.id == store, b.key == e.key, b.digest == e.digest)
        return sa.select(column).join(STORES, here).where(*same)

    mine = sa.select(b.key).join(STORES, here).where(STORES.c.id == store)
    connection.execute(
        sa.update(ENTRIES)
        .values(origin=ours(b.origin).scalar_subquery(), cost=ours(sa.func.nullif(b.seconds, 0.0)).scalar_subquery())
        .where(e.store_id == store, e.key.in_(mine) if keys is None else among(e.key, keys), ours(b.key).exists())
    )

    connection.exec_driver_sql(_BEQUEATH + some, what)
    connection.exec_driver_sql(_BEQUEATHED + some, what)


# Once for each build: what a model does not use any more by the word of a later run, it must not get back.
_FOUND: Final = (
    "SELECT 1 FROM stores JOIN entries ON entries.store_id = stores.id"
    " WHERE stores.id = ?1 AND stores.kind = builds.kind AND stores.root = builds.root AND entries.key = builds.key"
    " AND entries.digest = builds.digest"
)
_BEQUEATH: Final = (
    "INSERT OR IGNORE INTO inherited (entry_id, model) SELECT entries.id, models.name FROM builds"
    " JOIN stores ON stores.kind = builds.kind AND stores.root = builds.root"
    " JOIN entries ON entries.store_id = stores.id AND entries.key = builds.key AND entries.digest = builds.digest"
    " JOIN json_each(builds.models) AS named JOIN models ON models.name = named.value"
    " WHERE stores.id = ?1 AND builds.models IS NOT NULL AND NOT EXISTS (SELECT 1 FROM attributions"
    " JOIN runs ON runs.id = attributions.run_id"
    " WHERE attributions.entry_id = entries.id AND runs.model = models.name)"
)
_BEQUEATHED: Final = (
    "UPDATE builds SET models = NULL WHERE (kind, root) = (SELECT kind, root FROM stores WHERE id = ?1)"  # noqa: S608 - ours
    f" AND models IS NOT NULL AND EXISTS ({_FOUND})"
)


def count_built(connection: sa.Connection, ids: frozenset[EntryId]) -> int:
    """Count those of these entries that we compiled."""
    b = BUILDS.c
    return sum(
        connection.execute(
            sa.select(sa.func.count())
            .select_from(BUILDS)
            .where(b.kind == one.store.kind, b.root == str(one.store.root), b.key == one.key)
        ).scalar_one()
        for one in ids
    )
