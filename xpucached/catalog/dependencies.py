"""Record: what the programs of models needed when they were proven warm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from xpucached.catalog.lists import among
from xpucached.catalog.readable import Row, document, readable, stored
from xpucached.catalog.tables import DEPENDENCIES, RUN_TARGETS, RUNS
from xpucached.domain.dependencies import Dependency, Role
from xpucached.domain.models import Outcome

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_KEPT: Final = 16
"""Proofs of one model whose dependencies are kept: one of each set of environments."""


def record_dependencies(connection: sa.Connection, run: int, needs: Iterable[Dependency]) -> None:
    """Note what a run needed; what an equal proof of the same model needed before is forgotten."""
    statement = insert(DEPENDENCIES).values(run_id=run, document=[_row(one) for one in needs])
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[DEPENDENCIES.c.run_id], set_={"document": statement.excluded.document}
        )
    )
    _prune(connection, run)


def refresh_dependencies(connection: sa.Connection, run: int, needs: Iterable[Dependency]) -> None:
    """Note the times that files have now whose content is what it was; a run that is forgotten stays so."""
    document = [_row(one) for one in needs]
    connection.execute(sa.update(DEPENDENCIES).where(DEPENDENCIES.c.run_id == run).values(document=document))


def run_dependencies(connection: sa.Connection, runs: Collection[int]) -> Mapping[int, tuple[Dependency, ...]]:
    """Return what these runs needed; those of which nothing is known, or can be read, are left out."""
    rows = connection.execute(stored(DEPENDENCIES).where(among(DEPENDENCIES.c.run_id, runs)))
    return dict(readable(rows, _value))


def noted_runs(connection: sa.Connection, runs: Collection[int]) -> frozenset[int]:
    """Return those of these runs of which anything is known, whether it can be read or not."""
    c = DEPENDENCIES.c
    return frozenset(connection.scalars(sa.select(c.run_id).where(among(c.run_id, runs))))


def _row(one: Dependency) -> list[object]:
    return [
        *(one.role.value, one.path, one.size, one.modified, one.changed, one.inode, one.digest, one.version),
        one.unsettled,
    ]


# As `_row` writes it.
_Saved = tuple[Role, str, int, int, int, int, str, str, bool]


def _value(row: Row) -> tuple[int, tuple[Dependency, ...]]:
    return row.run_id, tuple(Dependency(*one) for one in document(row.document, list[_Saved]))


def _prune(connection: sa.Connection, run: int) -> None:
    """Keep the newest of each workload, host and set of environments: an earlier one of them may come back."""
    model = sa.select(RUNS.c.model).where(RUNS.c.id == run).scalar_subquery()
    rows = connection.execute(
        sa.select(RUNS.c.id, RUNS.c.workload, RUNS.c.host, RUNS.c.outcome)
        .join(DEPENDENCIES, DEPENDENCIES.c.run_id == RUNS.c.id)
        .where(RUNS.c.model == model)
        .order_by(RUNS.c.id.desc())
    ).all()
    c = RUN_TARGETS.c
    pairs = connection.execute(sa.select(c.run_id, c.target_id).where(among(c.run_id, (row.id for row in rows)))).all()
    seen: set[tuple[str, str, frozenset[int]]] = set()
    gone: list[int] = []
    for row in rows:
        of_run = frozenset(pair.target_id for pair in pairs if pair.run_id == row.id)
        key = (row.workload, row.host, of_run)
        if row.outcome != Outcome.WARMED.value or key in seen or len(seen) >= _KEPT:
            gone.append(row.id)
        else:
            seen.add(key)
    if gone:
        connection.execute(sa.delete(DEPENDENCIES).where(among(DEPENDENCIES.c.run_id, gone)))
