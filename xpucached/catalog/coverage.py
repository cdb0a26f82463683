"""Answer: how far runs cover their models: which proved them, what of their entries is there, what failed since."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from msgspec.structs import replace

from xpucached.catalog import predicted, surveys
from xpucached.catalog.lists import among
from xpucached.catalog.runs import PROOFS, read_runs, selected
from xpucached.catalog.tables import ATTRIBUTIONS, ENTRIES, INHERITED, MODELS, RUNS, STORES, TARGETS
from xpucached.domain.dependencies import MEANWHILE
from xpucached.domain.models import DENYING, Coverage, Layer, Model, Outcome, Proof, WarmReason
from xpucached.domain.names import KindName, ModelName
from xpucached.domain.stores import EntryState, Store, StoreState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from datetime import datetime

    from xpucached.domain.models import Run


def model_coverage(
    connection: sa.Connection, places: Mapping[ModelName, Collection[Store]] | None = None
) -> tuple[Coverage, ...]:
    """Tell of each model how its last runs went, and what is left of the good one.  A cancelled run says nothing.

    ``places`` are the stores that each model caches in now, its own first: what lies in another one is of no use to its
    programs.  What the runs printed is left out: of many models, drivers and variants it fills the memory.
    """
    rows = connection.execute(sa.select(MODELS.c.name, MODELS.c.workload).order_by(MODELS.c.name))
    workloads: dict[str, str] = {row.name: row.workload for row in rows}
    finished = sa.and_(RUNS.c.finished.is_not(None), RUNS.c.outcome != Outcome.CANCELLED.value)
    last = _newest_by_model(connection, finished)
    good = _newest_by_model(connection, RUNS.c.outcome == Outcome.WARMED.value)
    proofs, denials = (_newest_by_host(connection, outcomes) for outcomes in ((Outcome.WARMED,), DENYING))
    some = {row.id: row for row in (*last.values(), *good.values(), *(row for rows in proofs.values() for row in rows))}
    denying = [row for rows in denials.values() for row in rows]
    both = {**some, **{row.id: row for row in denying}}
    runs = {run.id: run for run in read_runs(connection, list(both.values()), outputs=False)}
    there = _remaining(connection, list(some))
    shut = _unreadable(connection)
    successors = predicted.successors(
        connection, (row.id for rows in (*proofs.values(), list(good.values())) for row in rows)
    )
    left = {
        number: _proof(runs[number], row, there[number], None if places is None else places.get(row.model, ()), shut)
        for number, row in some.items()
    }
    began = {number: runs[number].started for number in left}
    appeared = surveys.appeared_since(connection, frozenset(began.values()))
    left = {
        number: replace(one, successors=successors.get(number, ()), appeared=appeared[began[number]])
        for number, one in left.items()
    }
    failures = _failures(connection, workloads)
    again = _again(connection, [name for name, row in last.items() if runs[row.id].reason is WarmReason.PROGRAM])
    inherited = _inherited(connection)
    return tuple(
        Coverage(
            ModelName(name),
            runs[last[name].id] if name in last else None,
            best.run if best is not None else None,
            failures[name],
            best.entries if best is not None else 0,
            best.remaining if best is not None else 0,
            inherited=inherited.get(name, 0),
            layers=best.layers if best is not None else (),
            elsewhere=best.elsewhere if best is not None else 0,
            proofs=tuple(left[row.id] for row in proofs[name]),
            denials=tuple(runs[row.id] for row in denials[name]),
            again=again.get(name, 0),
            successors=best.successors if best is not None else (),
            appeared=best.appeared if best is not None else (),
            unread=best.unread if best is not None else 0,
            unreadable=best.unreadable if best is not None else _of_own((places or {}).get(ModelName(name), ()), shut),
        )
        for name in workloads
        for best in (left[good[name].id] if name in good else None,)
    )


def proven_kinds(connection: sa.Connection, model: Model) -> frozenset[KindName]:
    """Return the kinds of entries that the newest proof of a model, as it is now, was given with."""
    c = RUNS.c
    mine = sa.and_(c.model == model.name, c.workload == model.workload.digest, c.outcome == Outcome.WARMED.value)
    row = connection.execute(sa.select(c.layers).where(mine).order_by(c.id.desc()).limit(1)).first()
    return frozenset(map(KindName, (row.layers if row is not None else None) or ()))


def _newest_by_host(
    connection: sa.Connection, outcomes: Collection[Outcome]
) -> defaultdict[str, list[sa.Row[tuple[object, ...]]]]:
    """Return the runs that ended so of models as they are now: the newest of each host as it was, newest first."""
    numbers = (
        sa.select(sa.func.max(RUNS.c.id))
        .join(MODELS, sa.and_(MODELS.c.name == RUNS.c.model, MODELS.c.workload == RUNS.c.workload))
        .where(RUNS.c.outcome.in_([one.value for one in outcomes]))
        .group_by(RUNS.c.model, RUNS.c.host)
    )
    found: defaultdict[str, list[sa.Row[tuple[object, ...]]]] = defaultdict(list)
    asked = selected(RUNS, outputs=False).where(RUNS.c.id.in_(numbers))
    for row in connection.execute(asked.order_by(RUNS.c.id.desc())):
        if len(found[row.model]) < PROOFS:
            found[row.model].append(row)
    return found


def _newest_by_model(
    connection: sa.Connection, condition: sa.ColumnElement[bool]
) -> dict[str, sa.Row[tuple[object, ...]]]:
    numbers = sa.select(sa.func.max(RUNS.c.id)).where(condition).group_by(RUNS.c.model)
    asked = selected(RUNS, outputs=False).where(RUNS.c.id.in_(numbers))
    return {row.model: row for row in connection.execute(asked)}


@dataclass(frozen=True, slots=True)
class _Left:
    """What of a run's entries is in one store, as far as is known."""

    count: int
    unread: int  #: of these, those that cannot be read now …
    why: str  #: … and why


def _remaining(connection: sa.Connection, numbers: Iterable[int]) -> Mapping[int, dict[Store, _Left]]:
    """Count by stores the entries of each run that are there and whole: what has a lock is skipped by programs.

    Where something else stands in a store's place, what is known of its entries stays, and none of them is there.  What
    cannot be read now counts as it was known, and as unread.
    """
    a, s, e = ATTRIBUTIONS.c, STORES.c, ENTRIES.c
    apart = e.state == EntryState.UNREAD.value
    unread = sa.or_(apart, s.state == StoreState.UNREADABLE.value)
    found: defaultdict[int, dict[Store, _Left]] = defaultdict(dict)
    for number, kind, root, *left in connection.execute(
        sa.select(
            a.run_id,
            s.kind,
            s.root,
            sa.func.count(),
            sa.func.sum(sa.case((unread, 1), else_=0)),
            sa.func.coalesce(sa.func.max(sa.case((apart, e.detail))), ""),
        )
        .join(ENTRIES, e.id == a.entry_id)
        .join(STORES, s.id == e.store_id)
        .where(
            among(a.run_id, numbers),
            e.state.in_((EntryState.OK.value, EntryState.UNREAD.value)),
            s.state != StoreState.NOT_A_DIRECTORY.value,
        )
        .group_by(a.run_id, s.id)
    ):
        found[number][Store(KindName(kind), Path(root))] = _Left(*left)
    return found


def _unreadable(connection: sa.Connection) -> dict[Store, str]:
    """Return the stores that could not be read when they were last looked at, and why."""
    s = STORES.c
    rows = connection.execute(sa.select(s.kind, s.root, s.notes).where(s.state == StoreState.UNREADABLE.value))
    return {Store(KindName(kind), Path(root)): "; ".join(notes) or "nobody says why" for kind, root, notes in rows}


def _of_own(places: Iterable[Store], shut: Mapping[Store, str]) -> str:
    """Return why a model's own store cannot be read, if so: where it will cache besides nobody knows."""
    return next((shut.get(store, "") for store in places), "")


def _proof(
    run: Run,
    row: sa.Row[tuple[object, ...]],
    there: Mapping[Store, _Left],
    places: Collection[Store] | None,
    shut: Mapping[Store, str],
) -> Proof:
    """Tell what is left of what a run was given with, in these places."""
    mine = {store: left for store, left in there.items() if places is None or store in places}
    remaining, unread = Counter[str](), Counter[str]()
    for store, left in mine.items():
        remaining[store.kind] += left.count
        unread[store.kind] += left.unread
    # It may need a store of which nothing is known any more.
    why = [shut[store] for store in places or mine if store in shut and store.kind in (row.layers or remaining)]
    why += [left.why for left in mine.values() if left.why]
    noted: Mapping[str, int] = row.layers or {}
    layers = tuple(Layer(KindName(kind), noted[kind], remaining[kind], unread[kind]) for kind in sorted(noted))
    return Proof(
        run,
        row.attributed,
        remaining.total(),
        layers,
        elsewhere=sum(left.count for left in there.values()) - remaining.total(),
        unread=unread.total(),
        unreadable="; ".join(dict.fromkeys(why)),
    )


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


_DAY: Final = timedelta(days=1)


def _again(connection: sa.Connection, models: Collection[str]) -> dict[str, int]:
    """Count, back from the newest finished run, those of a day for what had changed in the midst of the run before."""
    counts: dict[str, int] = {}
    c = RUNS.c
    asked = sa.select(c.model, c.changes, c.outcome, c.finished).where(c.finished.is_not(None), among(c.model, models))
    newest: dict[str, datetime] = {}
    over: set[str] = set()
    for row in connection.execute(asked.order_by(c.id.desc())):
        late = abs(newest.setdefault(row.model, row.finished) - row.finished) > _DAY
        in_the_midst = any(isinstance(one, str) and one.endswith(MEANWHILE) for one in row.changes or ())
        if late or not in_the_midst or row.outcome != Outcome.WARMED.value:
            over.add(row.model)
        elif row.model not in over:
            counts[row.model] = counts.get(row.model, 0) + 1
    return counts


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
