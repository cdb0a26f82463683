"""Record: runs, whose entries they were, and how far they cover their models."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final, cast

import msgspec
import sqlalchemy as sa
from msgspec.structs import asdict

from xpucached import codec
from xpucached.catalog import days, dependencies, entries, targets
from xpucached.catalog.libraries import libraries_row, libraries_value
from xpucached.catalog.lists import among
from xpucached.catalog.moments import microseconds
from xpucached.catalog.surveys import last_survey
from xpucached.catalog.tables import (
    ATTRIBUTIONS,
    CHANGES,
    ENTRIES,
    INHERITED,
    MODELS,
    RUN_TARGETS,
    RUNS,
    TARGETS,
    TRIALS,
)
from xpucached.domain.beside_cpu import CpuComparison
from xpucached.domain.device_use import DeviceUse
from xpucached.domain.models import DENYING, Figures, Outcome, Pass, RanOn, Run, Trial, WarmReason
from xpucached.domain.names import ModelName
from xpucached.domain.workloads import Variant
from xpucached.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from xpucached.domain.dependencies import Dependency
    from xpucached.domain.libraries import Libraries
    from xpucached.domain.models import Attribution, Model
    from xpucached.domain.targets import Target

#: Runs that are kept of each model, and with them what it was seen to use.
KEPT: Final = 200

#: Good runs that are kept of each model beyond those, of different workloads, hosts or drivers.
PROOFS: Final = 16

_NEITHER: Final = frozenset({Outcome.WARMED, Outcome.UNCACHED, Outcome.CANCELLED, Outcome.LOST})
"""Outcomes of runs that did not fail."""

_AT_ONCE: Final = 200
"""Models whose runs are asked for at once."""

_LOST_DETAIL: Final = "the daemon ended while it ran"
_ENDING_DETAIL: Final = "the daemon was told to end while it ran"


def begin_run(
    connection: sa.Connection,
    model: Model,
    reason: WarmReason,
    host: str,
    now: datetime,
    kernel: str = "",
    changes: Sequence[str] = (),
) -> Run:
    """Note that a run of the model begins, with the workload that it is given with.  Raises `NotFound` without it."""
    if connection.execute(sa.select(MODELS.c.name).where(MODELS.c.name == model.name)).first() is None:
        raise NotFound(f"no model {model.name}", hint="see: xpucachectl model list")
    begun = connection.execute(
        sa.insert(RUNS).values(
            model=model.name,
            workload=model.workload.digest,
            reason=reason.value,
            started=now,
            host=host,
            passes=[],
            attributed=0,
            detail="",
            output="",
            kernel=kernel or None,
            changes=list(changes) or None,
        )
    )
    return find_run(connection, begun.lastrowid)


def finish_run(
    connection: sa.Connection,
    number: int,
    outcome: Outcome,
    passes: Sequence[Pass],
    attribution: Attribution,
    environments: Sequence[Target],
    detail: str,
    output: str,
    now: datetime,
    trials: Sequence[Trial] = (),
    needs: Sequence[Dependency] | None = None,
    libraries: Libraries | None = None,
) -> Run:
    """Note how a run ended, and whose entries it made and used.

    Raises `NotFound` if it is not under way: its model may have been removed.  Attributed entries that the catalog does
    not hold count, but are not kept: scan before this.
    """
    both = attribution.created | attribution.used
    # By a clock that was ahead: the run met what had come, and is not to be made again until that time.
    # What came in its midst it may not have met.
    run, host = find_run(connection, number), last_survey(connection)
    same = host is not None and host.seen_by(run.model).signature == run.host
    ahead = sa.select(sa.func.max(CHANGES.c.at)).where(CHANGES.c.at > now, sa.literal(same)).scalar_subquery()
    updated = connection.execute(
        sa.update(RUNS)
        .where(RUNS.c.id == number, RUNS.c.finished.is_(None))
        .values(
            started=sa.func.coalesce(ahead, RUNS.c.started),
            finished=now,
            outcome=outcome.value,
            passes=[asdict(one) for one in passes],
            attributed=len(both),
            layers=Counter(one.store.kind for one in both),
            detail=detail,
            output=output,
            libraries=libraries_row(libraries),
        )
    ).rowcount
    if not updated:
        raise NotFound(f"no such run under way: {number}", hint="its model may have been removed while it ran")
    rows = entries.rows_of(connection, both)
    if rows:
        connection.execute(
            sa.insert(ATTRIBUTIONS),
            [{"run_id": number, "entry_id": row, "created": one in attribution.created} for one, row in rows.items()],
        )
        connection.execute(
            sa.update(ENTRIES)
            .where(ENTRIES.c.id == sa.bindparam("row"))
            .values(run_used=sa.func.max(sa.func.coalesce(ENTRIES.c.run_used, microseconds(now)), microseconds(now))),
            [{"row": row} for row in rows.values()],
        )
    cold = [each.seconds for each in passes if each.created]
    compiling = 0.0
    if outcome is Outcome.WARMED and cold and len(passes) > 1:
        # What a warm pass takes is the workload itself; the rest was compiling.
        compiling = max(0.0, cold[0] - passes[-1].seconds)
        entries.note_costs(connection, attribution.created, compiling)
    days.add(
        connection,
        now,
        prewarmed=len(attribution.created),
        prewarm_seconds=compiling,
        warmed=int(outcome is Outcome.WARMED),
        failed=int(outcome not in _NEITHER),
    )
    ids = targets.ensure(connection, dict.fromkeys(environments))
    if ids:
        connection.execute(
            sa.insert(RUN_TARGETS),
            [
                {"run_id": number, "position": position, "target_id": ids[one.fingerprint]}
                for position, one in enumerate(dict.fromkeys(environments))
            ],
        )
    if trials:
        connection.execute(sa.insert(TRIALS), [_trial_row(number, *place) for place in enumerate(trials)])
    run = find_run(connection, number)
    _replace_inherited(connection, run, rows.values(), frozenset(ids.values()))
    _prune(connection, run.model)
    if outcome is Outcome.WARMED and needs is not None:
        dependencies.record_dependencies(connection, number, needs)
    return run


def _replace_inherited(
    connection: sa.Connection, run: Run, seen: Iterable[int], environments_seen: frozenset[int]
) -> None:
    """Let what a run saw take the place of what replay had made for its model.

    A run that warmed it saw all that it uses for these drivers; what else it had inherited for them is not its own.
    """
    c = INHERITED.c
    mine = sa.delete(INHERITED).where(c.model == run.model)
    numbers = [{"row": row} for row in seen]
    if numbers:
        connection.execute(mine.where(c.entry_id == sa.bindparam("row")), numbers)
    if run.outcome is Outcome.WARMED and environments_seen:
        known = sa.select(ENTRIES.c.id).where(ENTRIES.c.target_id.in_(environments_seen))
        connection.execute(mine.where(c.entry_id.in_(known)))


def _prune(connection: sa.Connection, model: ModelName) -> None:
    mine = RUNS.c.model == model
    newest = sa.select(RUNS.c.id).where(mine).order_by(RUNS.c.id.desc()).limit(KEPT)
    # However long ago: these are what the model's entries are known by, for each driver that may come back, or denied.
    telling = (
        sa.select(sa.func.max(RUNS.c.id).label("id"))
        .where(mine, RUNS.c.outcome.in_(outcomes))
        .group_by(RUNS.c.workload, RUNS.c.host)
        .order_by(sa.desc("id"))
        .limit(PROOFS)
        for outcomes in ((Outcome.WARMED.value,), sorted(DENYING))
    )
    old = (RUNS.c.id.not_in(one) for one in (newest, *telling))
    connection.execute(sa.delete(RUNS).where(mine, *old))


def note_ending(connection: sa.Connection) -> None:
    """Note of every unfinished run that we are about to end it: if we do not come to say so, it was not lost."""
    connection.execute(sa.update(RUNS).where(RUNS.c.finished.is_(None)).values(detail=_ENDING_DETAIL))


def open_runs(connection: sa.Connection) -> dict[ModelName, datetime]:
    """Return the models of the unfinished runs, and when these began."""
    rows = connection.execute(sa.select(RUNS.c.model, RUNS.c.started).where(RUNS.c.finished.is_(None)))
    return {row.model: row.started for row in rows}


def close_lost_runs(connection: sa.Connection, now: datetime) -> int:
    """Note of every unfinished run that its end was not seen; give their number."""
    ending = RUNS.c.detail == _ENDING_DETAIL
    values = {
        "finished": now,
        "outcome": sa.case((ending, Outcome.CANCELLED.value), else_=Outcome.LOST.value),
        "detail": sa.case((ending, RUNS.c.detail), else_=_LOST_DETAIL),
    }
    return connection.execute(sa.update(RUNS).where(RUNS.c.finished.is_(None)).values(values)).rowcount


def find_run(connection: sa.Connection, number: int) -> Run:
    """Return a run."""
    found = _values(connection, RUNS.c.id == number)
    if not found:
        raise NotFound(f"no such run: {number}")
    return found[0]


def newest_runs(
    connection: sa.Connection, model: ModelName | None = None, limit: int = 50, *, outputs: bool = True
) -> tuple[Run, ...]:
    """Return the newest runs, newest first; with what they printed if ``outputs`` are shown, which fill the memory."""
    condition = sa.true() if model is None else RUNS.c.model == model
    return tuple(_values(connection, condition, limit, outputs=outputs))


def read_newest_runs(connection: sa.Connection, limit: int) -> None:
    """Read the newest runs as others do, a few at a time: what they printed fills the memory.

    Raises what a forged row raises.
    """
    ids = connection.scalars(sa.select(RUNS.c.id).order_by(RUNS.c.id.desc()).limit(limit)).all()
    for start in range(0, len(ids), _AT_ONCE):
        _values(connection, among(RUNS.c.id, ids[start : start + _AT_ONCE]))


def with_newest_runs(
    connection: sa.Connection, models: Sequence[Model], limit: int
) -> Iterator[tuple[Model, tuple[Run, ...]]]:
    """Yield each of these models with its newest runs, newest first; only the first of each has what it printed.

    It is for use within `Catalog.moment`.  Of many models are asked for at once, for there may be thousands, but not of
    all: their runs fill the memory.
    """
    for start in range(0, len(models), _AT_ONCE):
        some = models[start : start + _AT_ONCE]
        found: defaultdict[ModelName, list[Run]] = defaultdict(list)
        for run in _values(connection, _are_newest(some, 1)):
            found[run.model].append(run)
        for run in _values(connection, _are_newest(some, limit), outputs=False):
            if run.id != found[run.model][0].id:
                found[run.model].append(run)
        for model in some:
            yield model, tuple(found[model.name])


def _are_newest(models: Iterable[Model], limit: int) -> sa.ColumnElement[bool]:
    """Return the condition that a run is one of so many newest ones of one of these models."""
    place = sa.func.row_number().over(partition_by=RUNS.c.model, order_by=RUNS.c.id.desc()).label("place")
    placed = sa.select(RUNS.c.id, place).where(among(RUNS.c.model, (one.name for one in models))).subquery()
    return RUNS.c.id.in_(sa.select(placed.c.id).where(placed.c.place <= limit))


def newest_libraries(
    connection: sa.Connection, models: Sequence[Model], limit: int
) -> Mapping[ModelName, Libraries | None]:
    """Return what each of these models, as it is now, had mapped in the newest run that was seen; None if none was.

    Of each model only so many newest runs count.
    """
    c = RUNS.c
    found: dict[ModelName, Libraries | None] = dict.fromkeys(one.name for one in models)
    for start in range(0, len(models), _AT_ONCE):
        some = {one.name: one for one in models[start : start + _AT_ONCE]}
        known = sa.and_(c.libraries.is_not(None), _are_newest(some.values(), limit))
        for row in connection.execute(sa.select(c.model, c.workload, c.libraries).where(known).order_by(c.id.desc())):
            name = ModelName(row.model)
            if found[name] is None and row.workload == some[name].workload.digest:
                found[name] = libraries_value(row.libraries)
    return found


def _values(
    connection: sa.Connection, condition: sa.ColumnElement[bool], limit: int | None = None, *, outputs: bool = True
) -> list[Run]:
    asked = selected(RUNS, outputs=outputs).where(condition).order_by(RUNS.c.id.desc()).limit(limit)
    return read_runs(connection, connection.execute(asked).all(), outputs=outputs)


def selected(table: sa.Table, *, outputs: bool) -> sa.Select[tuple[object, ...]]:
    """Return the question for runs, or their trials; without ``outputs`` what they printed is empty."""
    some = (sa.literal("").label(one.name) if one.name == "output" and not outputs else one for one in table.c)
    return cast("sa.Select[tuple[object, ...]]", sa.select(*some))


def read_runs(
    connection: sa.Connection, rows: Sequence[sa.Row[tuple[object, ...]]], *, outputs: bool = True
) -> list[Run]:
    """Return runs by their rows, the trials with what they printed if there are to be ``outputs``."""
    of: defaultdict[int, list[Target]] = defaultdict(list)
    for row in connection.execute(
        sa.select(RUN_TARGETS.c.run_id, TARGETS)
        .join(TARGETS, TARGETS.c.id == RUN_TARGETS.c.target_id)
        .where(among(RUN_TARGETS.c.run_id, (row.id for row in rows)))
        .order_by(RUN_TARGETS.c.position)
    ):
        of[row.run_id].append(targets.value(row))
    trials: defaultdict[int, list[Trial]] = defaultdict(list)
    for row in connection.execute(
        selected(TRIALS, outputs=outputs)
        .where(among(TRIALS.c.run_id, (row.id for row in rows)))
        .order_by(TRIALS.c.position)
    ):
        trials[row.run_id].append(_trial(row))
    return [
        Run(
            row.id,
            ModelName(row.model),
            row.workload,
            WarmReason(row.reason),
            row.started,
            row.finished,
            Outcome(row.outcome) if row.outcome else None,
            row.host,
            tuple(Pass(**one) for one in row.passes),
            tuple(of[row.id]),
            row.detail,
            row.output,
            tuple(trials[row.id]),
            libraries_value(row.libraries),
            row.kernel or "",
            tuple(row.changes or ()),
        )
        for row in rows
    ]


def _trial_row(run: int, position: int, trial: Trial) -> dict[str, object]:
    return {
        "run_id": run,
        "position": position,
        **asdict(trial.variant),
        "outcome": trial.outcome.value,
        "ran_on": trial.ran_on.value,
        "seen_on": trial.device,
        "evidence": list(trial.evidence),
        "passes": [asdict(one) for one in trial.passes],
        "figures": [asdict(one) for one in trial.figures],
        "detail": trial.detail,
        "output": trial.output,
        "use": msgspec.to_builtins(trial.use),
        "cpu": msgspec.to_builtins(trial.cpu),
    }


def _trial(row: sa.Row[tuple[object, ...]]) -> Trial:
    return Trial(
        Variant(row.device, row.precision, row.shape),
        Outcome(row.outcome),
        tuple(Pass(**one) for one in row.passes),
        RanOn(row.ran_on),
        row.seen_on,
        tuple(row.evidence),
        tuple(Figures(**one) for one in row.figures),
        row.detail,
        row.output,
        cast("DeviceUse | None", codec.convert(row.use, DeviceUse | None)),
        cast("CpuComparison | None", codec.convert(row.cpu, CpuComparison | None)),
    )
