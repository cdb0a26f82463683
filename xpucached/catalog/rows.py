"""Record: how the rows of entries become values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import sqlalchemy as sa

from xpucached.catalog import targets
from xpucached.catalog.defects import known_defects
from xpucached.catalog.moments import EPOCH, TICK
from xpucached.catalog.recipe_tables import RECIPES
from xpucached.catalog.tables import ATTRIBUTIONS, ENTRIES, INHERITED, RUNS, STORES, TARGETS
from xpucached.domain.defects import Defect
from xpucached.domain.names import Architecture, EntryKey, KindName, ModelName
from xpucached.domain.plans import IndexedEntry
from xpucached.domain.recipes import RecipeState
from xpucached.domain.stores import Entry, EntryId, EntryState, ImageFormat, Kernel, Store
from xpucached.domain.targets import Origin

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from xpucached.domain.targets import Target

_E: Final = ENTRIES.c

Row = sa.Row[tuple[object, ...]]

# A row of `SELECT`.
_Values = tuple[
    int,
    int,
    int | None,
    int,
    int | None,
    int | None,
    int | None,
    int | None,
    int,
    EntryKey,
    str,
    int,
    int,
    str,
    str,
    str | None,
    int,
    str | None,
    str | None,
    str,
    str,
    str | None,
    str,
    str | None,
    float | None,
    int | None,
    str | None,
    str | None,
    str | None,
    str,
    str,
    str,
    int | None,
]

_MODELS: Final = (
    sa.select(sa.func.json_group_array(RUNS.c.model.distinct()))
    .select_from(ATTRIBUTIONS.join(RUNS, RUNS.c.id == ATTRIBUTIONS.c.run_id))
    .where(ATTRIBUTIONS.c.entry_id == _E.id)
    .scalar_subquery()
)

_INHERITED: Final = (
    sa.select(sa.func.json_group_array(INHERITED.c.model)).where(INHERITED.c.entry_id == _E.id).scalar_subquery()
)

_ASKED: Final = (
    sa.select(RECIPES.c.seen).where(RECIPES.c.kind == STORES.c.kind, RECIPES.c.key == _E.key).scalar_subquery()
)

JOINED: Final = ENTRIES.join(STORES, STORES.c.id == _E.store_id).outerjoin(TARGETS, TARGETS.c.id == _E.target_id)

_TIMES: Final = tuple(sa.type_coerce(_E[name], sa.BigInteger) for name in ("created", "accessed", "run_used"))

_LATER: Final = tuple(sa.type_coerce(_E[name], sa.BigInteger) for name in ("restored", "witnessed", "first_seen"))

_IMAGES: Final[Mapping[str | None, ImageFormat | None]] = {None: None, **{one.value: one for one in ImageFormat}}

_ORIGINS: Final[Mapping[str | None, Origin | None]] = {None: None, **{one.value: one for one in Origin}}


_RECIPES: Final = (RecipeState.NEVER_AGAIN, RecipeState.ONCE, RecipeState.RECORDED)
"""By how many passes told it."""

_STATES: Final[Mapping[str, EntryState]] = {one.value: one for one in EntryState}


# In the order in which `_value` takes them apart; times are numbers, so that each costs one conversion and no more.
def _selected(kernels: sa.ColumnElement[str]) -> sa.Select[tuple[object, ...]]:
    return sa.select(
        _E.id,
        _E.store_id,
        _E.target_id,
        *_TIMES,
        *_LATER,
        _E.key,
        _E.stamp,
        _E.size,
        _E.allocated,
        _E.options,
        _E.constants,
        _E.image,
        _E.image_size,
        _E.binary,
        _E.digest,
        kernels,
        _E.state,
        _E.defect,
        _E.detail,
        _E.origin,
        _E.cost,
        _E.hits,
        _E.program,
        _E.input,
        _E.facts,
        _E.ref,
        _MODELS.label("models"),
        _INHERITED.label("inherited"),
        _ASKED.label("asked"),
    ).select_from(JOINED)


SELECT: Final = _selected(_E.kernels)

WITHOUT_KERNELS: Final = _selected(sa.literal_column("'[]'", sa.Text))


def indexed(connection: sa.Connection, rows: Iterable[Row]) -> tuple[IndexedEntry, ...]:
    """Read rows of `SELECT`.  The entries share their few stores and environments, instead of one copy each."""
    stores = {
        row.id: Store(KindName(row.kind), Path(row.root))
        for row in connection.execute(sa.select(STORES.c.id, STORES.c.kind, STORES.c.root))
    }
    known: dict[int | None, tuple[Target | None, Architecture | None]] = {None: (None, None)}
    for row in connection.execute(sa.select(TARGETS)):
        known[row.id] = (targets.value(row), Architecture(row.architecture) if row.architecture else None)
    wrong = known_defects(connection)
    return tuple(_value(row, stores, known, wrong) for row in rows)


def _value(
    row: Row,
    stores: Mapping[int, Store],
    known: Mapping[int | None, tuple[Target | None, Architecture | None]],
    wrong: Mapping[str, Defect],
) -> IndexedEntry:
    (
        _,
        store_id,
        target_id,
        created,
        accessed,
        run_used,
        restored,
        witnessed,
        first_seen,
        key,
        stamp,
        size,
        allocated,
        options,
        constants,
        image,
        image_size,
        binary,
        digest,
        kernels,
        state,
        defect,
        detail,
        origin,
        cost,
        hits,
        program,
        given,
        facts,
        _,
        models,
        inherited,
        asked,
    ) = cast("_Values", row)
    seen, to_be_seen = _models(models), _models(inherited)
    last_used, how = created, "created"
    if accessed is not None and accessed > last_used:
        last_used, how = accessed, "access-time"
    if witnessed is not None and witnessed > last_used:
        last_used, how = witnessed, "observed-loads"
    if run_used is not None and run_used >= last_used:
        last_used, how = run_used, "run"
    if restored is not None and restored > last_used:
        last_used, how = restored, "restored"
    environment, architecture = known[target_id]
    born = EPOCH + created * TICK
    entry = Entry(
        EntryId(stores[store_id], key),
        stamp,
        size,
        allocated,
        born,
        None if accessed is None else EPOCH + accessed * TICK,
        environment,
        options,
        constants,
        _IMAGES[image],
        image_size,
        _IMAGES[binary],
        digest,
        _kernels(kernels),
        _STATES[state],
        None if defect is None else wrong[defect],
        detail,
        observed=origin == Origin.OBSERVED.value,
        input=given,
        facts=() if facts is None else tuple((name, text) for name, text in json.loads(facts)),
    )
    return IndexedEntry(
        entry,
        _ORIGINS[origin],
        architecture,
        tuple(sorted({*seen, *to_be_seen})) if to_be_seen else seen,
        EPOCH + first_seen * TICK,
        born if last_used == created else EPOCH + last_used * TICK,
        how,
        cost,
        None if restored is None else EPOCH + restored * TICK,
        hits=hits or 0,
        program=program or "",
        inherited=tuple(name for name in to_be_seen if name not in seen) if to_be_seen else (),
        recipe=None if asked is None else _RECIPES[min(asked, 2)],
    )


def _models(text: str) -> tuple[ModelName, ...]:
    return () if text == "[]" else tuple(sorted(ModelName(name) for name in json.loads(text)))


def _kernels(text: str) -> tuple[Kernel, ...]:
    if text == "[]":
        return ()
    return tuple(
        Kernel(name, name if display is None else display, library) for name, display, library in json.loads(text)
    )
