"""Record: the entries that a plan has to look at one by one, out of a million, and the sums of the others."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import sqlalchemy as sa

from xpucached.catalog import entries, targets
from xpucached.catalog.lists import among
from xpucached.catalog.moments import microseconds
from xpucached.catalog.recipe_tables import RECIPES
from xpucached.catalog.tables import (
    AHEAD,
    ATTRIBUTIONS,
    ENTRIES,
    INHERITED,
    LAST_USED,
    MODELS,
    RUNS,
    STORES,
    TARGETS,
)
from xpucached.catalog.totals import whole
from xpucached.domain.names import KindName
from xpucached.domain.plans import Subtotal
from xpucached.domain.stores import UNSETTLED, EntryState, Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from xpucached.domain.names import ModelName
    from xpucached.domain.plans import IndexedEntry, Preselection
    from xpucached.domain.targets import Target

_E: Final = ENTRIES.c

# Tables of the connection: the rows that went through the sieve; and those of least worth in one pool, with the bytes
# that each surely gives back.
_PRESELECTED: Final = sa.Table(
    "preselected", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), prefixes=["TEMPORARY"]
)
_WORST: Final = sa.Table(
    "worst",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("frees", sa.BigInteger, nullable=False),
    prefixes=["TEMPORARY"],
)

_USED: Final = sa.type_coerce(_E.last_used, sa.BigInteger)
_CREATED: Final = sa.type_coerce(_E.created, sa.BigInteger)

# So many rows of a pool, or up to twice as many, tell nearly what all of them would.
_SAMPLE: Final = 20_000

# What a sample says is met by chance; with so many standard deviations to spare it nearly always is enough.
_SPARE: Final = 3


class _Sampled(NamedTuple):
    """A row of a sample."""

    id: int
    frees: int
    rank: int
    value: float


def store_subtotals(connection: sa.Connection) -> tuple[Subtotal, ...]:
    """Return what the stores hold for each environment."""
    return _subtotals(connection, _stores(connection), _environments(connection))


def _subtotals(connection: sa.Connection, stores: dict[int, Store], known: dict[int, Target]) -> tuple[Subtotal, ...]:
    return tuple(
        Subtotal(stores[store], known[environment] if environment else None, count, whole(allocated))
        for store, environment, count, allocated in connection.exec_driver_sql(_SUMS)
    )


_SUMS: Final = (
    "SELECT store_id, target_id, sum(entries), total(allocated) FROM figures"
    " WHERE entries > 0 GROUP BY store_id, target_id"
)


def preselect_entries(
    connection: sa.Connection, preselection: Preselection, rate: float, half: float, absent: float
) -> tuple[tuple[IndexedEntry, ...], tuple[Subtotal, ...], float]:
    """Return the entries that go through the sieve, the sums of those that do not, and what a byte costs.

    ``rate`` is what a byte costs where nothing was measured, ``half`` the seconds that halve an entry's worth, and
    ``absent`` the part of it that is left without a driver.
    """
    stores, known = _stores(connection), _environments(connection)
    numbers = {environment: number for number, environment in known.items()}
    _PRESELECTED.create(connection, checkfirst=False)
    if preselection.worst:
        _WORST.create(connection, checkfirst=False)
    if preselection.defective:
        connection.exec_driver_sql(_TAKE_DEFECTIVE, (EntryState.DEFECTIVE.value,))
    for environment in preselection.environments & numbers.keys():
        _take(connection, _E.target_id == numbers[environment])
    if never := [numbers[environment] for environment in preselection.never_here & numbers.keys()]:
        _take(connection, among(_E.target_id, never), AHEAD)
    _take_unused(connection, preselection, stores, known)
    if preselection.worst:
        rate = measured_rate(connection) or rate
        _take_worst(connection, preselection, stores, known, (rate, half, absent))
    through = entries.all_entries(connection, _E.id.in_(sa.select(_PRESELECTED.c.id)), kernels=False)
    rest = _rest(connection, preselection, stores, known, through)
    # Not where it fails: then the transaction is taken back, and these with it; by SQLite itself, where a disk fails.
    if preselection.worst:
        _WORST.drop(connection, checkfirst=False)
    _PRESELECTED.drop(connection, checkfirst=False)
    return through, rest, rate


def _stores(connection: sa.Connection) -> dict[int, Store]:
    rows = connection.exec_driver_sql("SELECT id, kind, root FROM stores")
    return {number: Store(KindName(kind), Path(root)) for number, kind, root in rows}


def _environments(connection: sa.Connection) -> dict[int, Target]:
    return {row.id: targets.value(row) for row in connection.execute(sa.select(TARGETS))}


def _take(connection: sa.Connection, *where: sa.ColumnElement[bool]) -> None:
    statement = sa.insert(_PRESELECTED).from_select(["id"], sa.select(_E.id).where(*where)).prefix_with("OR IGNORE")
    connection.execute(statement)


# The sums tell whether there are any, and of which stores and environments: then an index finds them.
_TAKE_DEFECTIVE: Final = (
    "INSERT OR IGNORE INTO preselected (id) SELECT entries.id FROM figures CROSS JOIN entries"
    " ON entries.store_id = figures.store_id AND entries.target_id IS nullif(figures.target_id, 0)"
    " AND entries.state = figures.state AND entries.defect IS nullif(figures.defect, '')"
    " WHERE figures.state = ? AND figures.entries > 0"
)


def _take_unused(
    connection: sa.Connection, preselection: Preselection, stores: dict[int, Store], known: dict[int, Target]
) -> None:
    rows: list[tuple[int | None, int, int, bool]] = []
    for number, store in stores.items():
        if store in preselection.unused:
            before, kept = preselection.unused[store]
            rows += [(environment, number, microseconds(before), kept) for environment in (None, *known)]
    if rows:
        connection.exec_driver_sql(_TAKE_UNUSED, rows)


_TAKE_UNUSED: Final = (
    "INSERT OR IGNORE INTO preselected (id) SELECT id FROM entries"
    " WHERE target_id IS ?1 AND store_id = ?2 AND last_used <= ?3"
    " AND (?4 OR run_used IS NOT NULL OR restored IS NOT NULL OR witnessed IS NOT NULL)"
)


def measured_rate(connection: sa.Connection) -> float | None:
    """Return the middle one of what a byte was measured to cost, as `planning` reckons it."""
    size = sa.case((_E.image_size > 0, _E.image_size), else_=_E.allocated)
    measured = (_E.cost.is_not(None), size > 0)
    count = connection.execute(sa.select(sa.func.count()).select_from(ENTRIES).where(*measured)).scalar_one()
    if not count:
        return None
    middle = sa.select(_E.cost / size).where(*measured).order_by(_E.cost / size).offset(count // 2).limit(1)
    return float(connection.execute(middle).scalar_one())


def _take_worst(
    connection: sa.Connection,
    preselection: Preselection,
    stores: dict[int, Store],
    known: dict[int, Target],
    worth: tuple[float, float, float],
) -> None:
    """Take the least worth of each pool, as many as are enough.

    To sort a million would take longer than all the rest: a sample tells up to which worth to take, and the sum of what
    that gives whether it was right.
    """
    _make_exp2(connection)
    rate, half, absent = worth
    usable = sa.or_(
        _E.target_id.is_(None),
        _E.target_id.in_([number for number, one in known.items() if one in preselection.present]),
    )
    size = sa.case((_E.image_size > 0, _E.image_size), else_=_E.allocated)
    cost = sa.func.coalesce(_E.cost, rate * size) / _E.allocated
    idle = sa.func.max(0, microseconds(preselection.now) - sa.literal_column(LAST_USED, sa.BigInteger)) / (half * 1e6)
    value = (cost * sa.func.exp2(-idle) * sa.case((usable, 1.0), else_=absent)).label("value")
    rank, needed = _rank(connection, preselection, stores, usable)
    pinned = (
        sa.select(ATTRIBUTIONS.c.entry_id)
        .join(RUNS, RUNS.c.id == ATTRIBUTIONS.c.run_id)
        .join(MODELS, MODELS.c.name == RUNS.c.model)
        .where(MODELS.c.pinned)
    )
    # What is only perhaps protected is let through and not counted: then there is enough whatever the plan says.
    sure = sa.and_(microseconds(preselection.young) >= _CREATED, _E.restored.is_(None))
    where = [_E.state.not_in(UNSETTLED), _E.allocated > 0]
    if preselection.pinned:
        inherited = (
            sa.select(INHERITED.c.entry_id).join(MODELS, MODELS.c.name == INHERITED.c.model).where(MODELS.c.pinned)
        )
        where.append(sa.not_(sa.and_(usable, sa.or_(_E.id.in_(pinned), _E.id.in_(inherited)))))
    if preselection.upheld and needed is not None:
        where.append(sa.not_(needed))
    held = frozenset(entries.rows_of(connection, preselection.held).values())
    frees = sa.case((sure, _E.allocated), else_=0).label("frees")
    counts: defaultdict[Store, int] = defaultdict(int)
    for one in _subtotals(connection, stores, known):
        counts[one.store] += one.entries
    for pool, excess in preselection.worst:
        mine = [number for number, store in stores.items() if store in pool]
        # Nothing added, so that no index of stores leads away from the one that covers the question.
        there = ((_E.store_id + 0).in_(mine), *where)
        every = max(1, sum(counts[store] for store in pool) // _SAMPLE)
        # Mixed (by two primes), because rows that were recorded one after the other may be alike in a rhythm.
        chosen = _E.id * 40_487 % 65_521 % every == 0
        asked = sa.select(_E.id, frees, rank.label("rank"), value).where(*there, chosen).order_by("rank", "value")
        # All at once: one by one takes longer than the question.
        sample = [row for row in map(_Sampled._make, connection.execute(asked).all()) if row.id not in held]
        wanted = excess
        while True:
            bound = _bound(sample, every, wanted)
            below = [] if bound is None else [sa.tuple_(rank, value) <= sa.tuple_(*map(sa.literal, bound))]
            connection.execute(sa.delete(_WORST))
            connection.execute(
                sa.insert(_WORST).from_select(["id", "frees"], sa.select(_E.id, frees).where(*there, *below))
            )
            if held:
                spared = sa.update(_WORST).where(_WORST.c.id == sa.bindparam("row")).values(frees=0)
                connection.execute(spared, [{"row": number} for number in held])
            enough = connection.execute(sa.select(sa.func.total(_WORST.c.frees))).scalar_one() >= excess
            if bound is None or enough:
                break
            wanted *= 1.5
        connection.execute(sa.insert(_PRESELECTED).from_select(["id"], sa.select(_WORST.c.id)).prefix_with("OR IGNORE"))


def _rank(
    connection: sa.Connection, preselection: Preselection, stores: dict[int, Store], usable: sa.ColumnElement[bool]
) -> tuple[sa.ColumnElement[int], sa.ColumnElement[bool] | None]:
    """Return the `Rank` of `planning`, and which entries are needed, if any: what none can be no row is asked."""
    owned = [
        _E.id.in_(sa.select(of.c.entry_id))
        for of in (ATTRIBUTIONS, INHERITED)
        if connection.execute(sa.select(of.c.entry_id).limit(1)).first() is not None
    ]
    told = frozenset(connection.execute(sa.select(RECIPES.c.kind).distinct()).scalars())
    here = [number for number, store in stores.items() if store.kind in told]
    recorded = (
        sa.select(_E.id)
        .join(STORES, STORES.c.id == _E.store_id)
        .join(RECIPES, sa.and_(RECIPES.c.kind == STORES.c.kind, RECIPES.c.key == _E.key))
        .where(_E.store_id.in_(here))
    )
    never_again = _E.id.in_(recorded.where(RECIPES.c.seen == 0)) if here else sa.false()
    needed = sa.and_(usable, sa.or_(*owned), sa.not_(never_again)) if owned else None
    ranks: list[tuple[sa.ColumnElement[bool], int]] = []
    if preselection.predicted:
        ranks.append((sa.and_(sa.not_(usable), _owned_by(preselection.predicted)), 3))
    if here:
        ranks += [(sa.and_(sa.not_(usable), _E.id.in_(recorded)), 0), (never_again, 1)]
    if needed is not None:
        ranks.append((needed, 3))
    return sa.case(*ranks, else_=2) if ranks else sa.literal(2), needed


def _make_exp2(connection: sa.Connection) -> None:
    driver = connection.connection.driver_connection
    if driver is not None:
        # Not every SQLite was built with it.
        driver.create_function("exp2", 1, math.exp2, deterministic=True)


def _owned_by(models: Iterable[ModelName]) -> sa.ColumnElement[bool]:
    names = list(models)
    seen = (
        sa.select(ATTRIBUTIONS.c.entry_id)
        .join(RUNS, RUNS.c.id == ATTRIBUTIONS.c.run_id)
        .where(among(RUNS.c.model, names))
    )
    inherited = sa.select(INHERITED.c.entry_id).where(among(INHERITED.c.model, names))
    return sa.or_(_E.id.in_(seen), _E.id.in_(inherited))


def _bound(sample: Iterable[_Sampled], every: int, wanted: float) -> tuple[int, float] | None:
    """Say up to which worth a pool must be taken for so many bytes, by one of ``every`` so many rows; None: all."""
    seen = squares = 0.0
    for one in sample:
        seen += one.frees
        squares += one.frees * one.frees
        if every * (seen - _SPARE * math.sqrt(squares * (1 - 1 / every))) >= wanted:
            # The plan reckons by itself, and the last digit may be another one.
            return one.rank, one.value * (1 + 1e-9)
    return None


def _rest(
    connection: sa.Connection,
    preselection: Preselection,
    stores: dict[int, Store],
    known: dict[int, Target],
    through: Sequence[IndexedEntry],
) -> tuple[Subtotal, ...]:
    counts: defaultdict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for one in through:
        count = counts[id(one.entry.id.store), id(one.entry.environment)]
        count[0] += 1
        count[1] += one.entry.allocated
    taken: defaultdict[tuple[Store, Target | None], list[int]] = defaultdict(lambda: [0, 0])
    for one in through:
        found = counts.pop((id(one.entry.id.store), id(one.entry.environment)), None)
        if found is not None:
            taken[one.entry.id.store, one.entry.environment] = found
    traces: dict[int, tuple[datetime, datetime]] = {}
    numbers = {environment: number for number, environment in known.items()}
    for environment in preselection.traced & numbers.keys():
        number = numbers[environment]
        newest = sa.select(
            sa.func.max(_E.created, type_=_E.created.type), sa.func.max(_E.last_used, type_=_E.created.type)
        )
        row = connection.execute(newest.where(_E.target_id == number, _E.id.not_in(sa.select(_PRESELECTED.c.id)))).one()
        if row[0] is not None:
            traces[number] = (row[0], row[1])
    rest: list[Subtotal] = []
    for subtotal in _subtotals(connection, stores, known):
        number_taken, bytes_taken = taken[subtotal.store, subtotal.environment]
        if subtotal.entries > number_taken:
            left, allocated = subtotal.entries - number_taken, subtotal.allocated - bytes_taken
            trace = traces.get(numbers[subtotal.environment]) if subtotal.environment else None
            created, used = trace or (None, None)
            rest.append(Subtotal(subtotal.store, subtotal.environment, left, allocated, created, used))
    return tuple(rest)
