"""Answer: how far runs cover their models: which proved them, what of their entries is there, what failed since."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from xpucached.catalog import predicted
from xpucached.catalog.lists import among
from xpucached.catalog.runs import PROOFS, read_runs
from xpucached.catalog.tables import ATTRIBUTIONS, ENTRIES, INHERITED, MODELS, RUNS, STORES, TARGETS
from xpucached.domain.models import Coverage, Layer, Model, Outcome, Proof
from xpucached.domain.names import KindName, ModelName
from xpucached.domain.stores import EntryState, Store, StoreState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping


def model_coverage(
    connection: sa.Connection, places: Mapping[ModelName, Collection[Store]] | None = None
) -> tuple[Coverage, ...]:
    """Tell of each model how its last runs went, and what is left of the good one.  A cancelled run says nothing.

    ``places`` are the stores that each model caches in now: what lies in another one is of no use to its programs.
    """
    rows = connection.execute(sa.select(MODELS.c.name, MODELS.c.workload).order_by(MODELS.c.name))
    workloads: dict[str, str] = {row.name: row.workload for row in rows}
    finished = sa.and_(RUNS.c.finished.is_not(None), RUNS.c.outcome != Outcome.CANCELLED.value)
    last = _newest_by_model(connection, finished)
    good = _newest_by_model(connection, RUNS.c.outcome == Outcome.WARMED.value)
    proofs = _proofs(connection)
    some = {row.id: row for row in (*last.values(), *good.values(), *(row for rows in proofs.values() for row in rows))}
    runs = {run.id: run for run in read_runs(connection, list(some.values()))}
    there = _remaining(connection, list(some))
    remaining: dict[int, Counter[str]] = {}
    elsewhere: dict[int, int] = {}
    for number, row in some.items():
        mine = there[number] if places is None else _in(there[number], places.get(row.model, ()))
        remaining[number] = Counter()
        for store, count in mine.items():
            remaining[number][store.kind] += count
        elsewhere[number] = there[number].total() - mine.total()
    layers = {number: _layers(row.layers, remaining[number]) for number, row in some.items()}
    successors = predicted.successors(
        connection, (row.id for rows in (*proofs.values(), list(good.values())) for row in rows)
    )
    failures = _failures(connection, workloads)
    inherited = _inherited(connection)
    return tuple(
        Coverage(
            ModelName(name),
            runs[last[name].id] if name in last else None,
            runs[good[name].id] if name in good else None,
            failures[name],
            good[name].attributed if name in good else 0,
            remaining[good[name].id].total() if name in good else 0,
            inherited=inherited.get(name, 0),
            layers=layers[good[name].id] if name in good else (),
            elsewhere=elsewhere[good[name].id] if name in good else 0,
            proofs=tuple(
                Proof(
                    runs[row.id],
                    row.attributed,
                    remaining[row.id].total(),
                    layers[row.id],
                    successors.get(row.id, ()),
                    elsewhere[row.id],
                )
                for row in proofs[name]
            ),
            successors=successors.get(good[name].id, ()) if name in good else (),
        )
        for name in workloads
    )


def proven_kinds(connection: sa.Connection, model: Model) -> frozenset[KindName]:
    """Return the kinds of entries that the newest proof of a model, as it is now, was given with."""
    c = RUNS.c
    mine = sa.and_(c.model == model.name, c.workload == model.workload.digest, c.outcome == Outcome.WARMED.value)
    row = connection.execute(sa.select(c.layers).where(mine).order_by(c.id.desc()).limit(1)).first()
    return frozenset(map(KindName, (row.layers if row is not None else None) or ()))


def _proofs(connection: sa.Connection) -> defaultdict[str, list[sa.Row[tuple[object, ...]]]]:
    """Return each model's good runs of its present workload, the newest of each host as it was, newest first."""
    numbers = (
        sa.select(sa.func.max(RUNS.c.id))
        .join(MODELS, sa.and_(MODELS.c.name == RUNS.c.model, MODELS.c.workload == RUNS.c.workload))
        .where(RUNS.c.outcome == Outcome.WARMED.value)
        .group_by(RUNS.c.model, RUNS.c.host)
    )
    found: defaultdict[str, list[sa.Row[tuple[object, ...]]]] = defaultdict(list)
    for row in connection.execute(sa.select(RUNS).where(RUNS.c.id.in_(numbers)).order_by(RUNS.c.id.desc())):
        if len(found[row.model]) < PROOFS:
            found[row.model].append(row)
    return found


def _newest_by_model(
    connection: sa.Connection, condition: sa.ColumnElement[bool]
) -> dict[str, sa.Row[tuple[object, ...]]]:
    numbers = sa.select(sa.func.max(RUNS.c.id)).where(condition).group_by(RUNS.c.model)
    return {row.model: row for row in connection.execute(sa.select(RUNS).where(RUNS.c.id.in_(numbers)))}


def _remaining(connection: sa.Connection, numbers: Iterable[int]) -> Mapping[int, Counter[Store]]:
    """Count by stores the entries of each run that are there and whole: what has a lock is skipped by programs.

    Where something else stands in a store's place, what is known of its entries stays, and none of them is there.
    """
    a, s = ATTRIBUTIONS.c, STORES.c
    found: defaultdict[int, Counter[Store]] = defaultdict(Counter)
    for number, kind, root, count in connection.execute(
        sa.select(a.run_id, s.kind, s.root, sa.func.count())
        .join(ENTRIES, ENTRIES.c.id == a.entry_id)
        .join(STORES, s.id == ENTRIES.c.store_id)
        .where(
            among(a.run_id, numbers),
            ENTRIES.c.state == EntryState.OK.value,
            s.state != StoreState.NOT_A_DIRECTORY.value,
        )
        .group_by(a.run_id, s.id)
    ):
        found[number][Store(KindName(kind), Path(root))] = count
    return found


def _in(some: Counter[Store], places: Collection[Store]) -> Counter[Store]:
    return Counter({store: count for store, count in some.items() if store in places})


def _layers(noted: Mapping[str, int] | None, remaining: Mapping[str, int]) -> tuple[Layer, ...]:
    return tuple(Layer(KindName(kind), count, remaining.get(kind, 0)) for kind, count in sorted((noted or {}).items()))


def _inherited(connection: sa.Connection) -> dict[str, int]:
    """Count what replay has made for each model and present drivers, and no run has seen yet."""
    rows = connection.execute(
        sa.select(INHERITED.c.model, sa.func.count())
        .join(ENTRIES, ENTRIES.c.id == INHERITED.c.entry_id)
        .join(TARGETS, TARGETS.c.id == ENTRIES.c.target_id)
        .where(ENTRIES.c.state == EntryState.OK.value, TARGETS.c.present)
        .group_by(INHERITED.c.model)
    )
    return {model: count for model, count in rows}  # noqa: C416 - a result has keys of its own, which dict() takes


_NO_FAILURES: Final = frozenset({Outcome.WARMED.value, Outcome.UNCACHED.value})


def _failures(connection: sa.Connection, workloads: dict[str, str]) -> dict[str, int]:
    """Count, back from the newest finished run, those that did not warm their model as it is now.

    Another workload or another host ends the count, for what failed there may work here.  A cancelled run says
    nothing.  A lost one counts: it may be the model that took the daemon down with it.
    """
    counts = dict.fromkeys(workloads, 0)
    c = RUNS.c
    rows = connection.execute(
        sa.select(c.model, c.workload, c.host, c.outcome).where(c.finished.is_not(None)).order_by(c.id.desc())
    )
    hosts: dict[str, str] = {}
    over: set[str] = set()
    for model, workload, host, outcome in rows:
        if model in over or outcome == Outcome.CANCELLED.value:
            continue
        if outcome in _NO_FAILURES or workload != workloads[model] or host != hosts.setdefault(model, host):
            over.add(model)
        else:
            counts[model] += 1
    return counts
