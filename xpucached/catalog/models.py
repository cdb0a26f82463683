"""Record: the registered models.  Runs and attributions go with their model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from msgspec.structs import asdict
from sqlalchemy.dialects.sqlite import insert

from xpucached.catalog.lists import among
from xpucached.catalog.tables import MODELS
from xpucached.domain.models import REGISTERED, Added, Model, Workload
from xpucached.domain.names import ModelName
from xpucached.domain.workloads import Loader, RunSpec
from xpucached.errors import Conflict, no_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


MOST: Final = 4096
"""Models that are registered, as many as files of models are read."""


def add_model(connection: sa.Connection, model: Model, *, replaces: bool = True) -> None:
    """Register a model, in the place of one of its name if there is one; the runs of that one stay."""
    statement = insert(MODELS).values(_row(model))
    if not replaces:
        connection.execute(statement.on_conflict_do_nothing())
        return
    facts = {column.name: statement.excluded[column.name] for column in MODELS.c if column.name != "name"}
    connection.execute(statement.on_conflict_do_update(index_elements=[MODELS.c.name], set_=facts))


def register_model(connection: sa.Connection, model: Model, *, replaces: bool, if_changed: bool) -> Added:
    """Register a model; one that is just like that stays as it is, unless it is to be replaced.  Raises `Conflict`."""
    row = connection.execute(sa.select(MODELS).where(MODELS.c.name == model.name)).first()
    old = _value(row) if row is not None else None
    others = differences(old, model) if old is not None else ()
    if old is not None and not others and not (replaces and old.source == REGISTERED):
        return Added.SAME
    if old is not None and old.source != REGISTERED:
        message = f"{model.name} is declared in {old.source}, and differs in: {', '.join(others)}"
        raise Conflict(message, hint="that file owns it: change it there, or take another name")
    if old is not None and not (replaces or if_changed):
        message = f"a model {model.name} is registered already, and differs in: {', '.join(others)}"
        raise Conflict(message, hint="give --replace to change it; see: xpucachectl model show " + model.name)
    registered = sa.select(sa.func.count()).select_from(MODELS).where(MODELS.c.source == REGISTERED)
    if old is None and connection.execute(registered).scalar_one() >= MOST:
        message = f"{MOST} models are registered, and every list of them is asked for as a whole: no more are taken"
        raise Conflict(message, hint="take one out: xpucachectl model remove NAME")
    add_model(connection, model)
    return Added.REGISTERED if old is None else Added.REPLACED


def differences(old: Model, new: Model) -> tuple[str, ...]:
    """Return what is another in two models of one name, whoever owns them."""
    before, after = ({**asdict(one), **asdict(one.workload)} for one in (old, new))
    return tuple(name for name in after if name not in {"workload", "source"} and before[name] != after[name])


def find_model(connection: sa.Connection, name: ModelName) -> Model:
    """Return a model.  Raises `NotFound`."""
    row = connection.execute(sa.select(MODELS).where(MODELS.c.name == name)).first()
    if row is None:
        raise no_model(name, connection.scalars(sa.select(MODELS.c.name)))
    return _value(row)


# Made once, as it is asked for every `status`.
_ALL: Final = sa.select(MODELS).order_by(MODELS.c.name)


def all_models(connection: sa.Connection) -> tuple[Model, ...]:
    """Return all models by name."""
    return tuple(_value(row) for row in connection.execute(_ALL))


def models_by_name(connection: sa.Connection) -> Mapping[ModelName, Model]:
    """Return all models, to look them up."""
    return {model.name: model for model in all_models(connection)}


def registered_model(connection: sa.Connection, name: ModelName) -> Model | None:
    """Return a model that was registered and whose command is what it was; None for any other."""
    row = connection.execute(sa.select(MODELS).where(MODELS.c.name == name, MODELS.c.source == REGISTERED)).first()
    model = _value(row) if row is not None else None
    return model if row is not None and model is not None and model.workload.digest == row.workload else None


def remove_model(connection: sa.Connection, name: ModelName) -> None:
    """Forget a model, its runs and its attributions.  Raises `NotFound`."""
    if connection.execute(sa.delete(MODELS).where(MODELS.c.name == name)).rowcount == 0:
        raise no_model(name, connection.scalars(sa.select(MODELS.c.name)))


def checked_models(connection: sa.Connection, names: Iterable[str]) -> tuple[Model, ...]:
    """Return all models.  Raises `NotFound` if one of these names is no model's."""
    models = all_models(connection)
    known = frozenset(model.name for model in models)
    for name in names:
        if name not in known:
            raise no_model(name, known)
    return models


def sync_file_models(connection: sa.Connection, declared: Iterable[Model]) -> tuple[ModelName, ...]:
    """Make the declared models those of files; give the names that a registered model has taken, which stays."""
    wanted = {model.name: model for model in declared}
    known = {row.name: row._asdict() for row in connection.execute(sa.select(MODELS))}
    taken = {name for name, row in known.items() if row["source"] == REGISTERED}
    gone = known.keys() - taken - wanted.keys()
    if gone:
        connection.execute(sa.delete(MODELS).where(among(MODELS.c.name, gone)))
    for name, model in wanted.items():
        # Of thousands of models few change.
        if name not in taken and known.get(name) != _row(model):
            add_model(connection, model)
    return tuple(sorted(name for name in wanted if name in taken))


def _row(model: Model) -> dict[str, object]:
    return {
        "name": model.name,
        "command": list(model.workload.command),
        "directory": str(model.workload.directory),
        "variables": dict(model.workload.variables),
        "timeout": model.workload.timeout,
        "workload": model.workload.digest,
        "store": str(model.store) if model.store is not None else None,
        "priority": model.priority,
        "pinned": model.pinned,
        "source": model.source,
        "before": list(model.before) or None,
        "exercise": None if model.workload.exercise.is_plain else _exercise_row(model.workload.exercise),
    }


def _exercise_row(exercise: RunSpec) -> dict[str, object]:
    return {**asdict(exercise), "caches": [str(path) for path in exercise.caches]}


def _exercise(row: sa.Row[tuple[object, ...]]) -> RunSpec:
    saved = row.exercise
    if saved is None:
        return RunSpec()
    # What an earlier version wrote lacks the younger fields.
    known = {name: saved[name] for name in RunSpec.__struct_fields__ if name in saved}
    known["loader"] = Loader(saved["loader"])
    for key in ("precisions", "shapes"):
        known[key] = tuple(saved[key])
    known["caches"] = tuple(Path(path) for path in saved["caches"])
    return RunSpec(**known)


def _value(row: sa.Row[tuple[object, ...]]) -> Model:
    return Model(
        ModelName(row.name),
        Workload(tuple(row.command), Path(row.directory), row.variables, row.timeout, _exercise(row)),
        Path(row.store) if row.store is not None else None,
        row.priority,
        row.pinned,
        row.source,
        tuple(row.before or ()),
    )
