"""Door: model files, one model each.  Reads the directory; what is wrong with one file does not hide the others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from xpucached import quantities
from xpucached.domain.host import Problem
from xpucached.domain.models import Model, Workload, check_name, is_unit
from xpucached.domain.workloads import Loader, RunSpec
from xpucached.errors import SettingsError
from xpucached.settings.schema import AbsolutePath, Section, Variables, absolute, explain
from xpucached.settings.toml import TOLD, Toml, read, refuse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xpucached.domain.names import ModelName

_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
"""Where a command is looked for when the model's variables have no PATH.  Not in ours: it depends on who started us."""

_MOST: Final = 4096
"""Files that are read: nobody has so many models, and a directory named by mistake may have more files."""

_LONGEST_RUN: Final = 86400.0

_NO_COMMAND: Final = "is required, unless loader is another one"


def _timeout(value: object) -> object:
    expected = "expected a duration such as 90s or 30m, above 0 and at most 1d"
    try:
        seconds = quantities.duration(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(expected) from error
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= _LONGEST_RUN:
        raise ValueError(expected)
    return float(seconds)


def _command(value: object) -> object:
    words = value if isinstance(value, list) else []
    if not words or not all(isinstance(word, str) and "\0" not in word for word in words) or not words[0]:
        expected = 'expected an array of strings, such as ["/usr/bin/python3", "app.py"]'
        raise ValueError(expected)
    return words


def _loader(value: object) -> object:
    if value not in set(Loader):
        expected = f"expected one of: {', '.join(Loader)}"
        raise ValueError(expected)
    return Loader(str(value))


def _words(value: object) -> object:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        expected = 'expected an array of strings, such as ["float16", "bfloat16"]'
        raise ValueError(expected)
    return tuple(value)


def _paths(value: object) -> object:
    return tuple(absolute(one) for one in value) if isinstance(value, list) else absolute(value)


def _bytes(value: object) -> object:
    expected = "expected a size above 0 such as 512MB or 10GiB"
    try:
        number = quantities.size(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(expected) from error
    if isinstance(number, bool) or not isinstance(number, int) or number <= 0:
        raise ValueError(expected)
    return number


def _units(value: object) -> object:
    if not isinstance(value, list) or not all(isinstance(one, str) and is_unit(one) for one in value):
        expected = 'expected an array of full names of units, such as ["app.service"]'
        raise ValueError(expected)
    return value


class ModelFile(Section):
    """What may stand in a model file."""

    command: Annotated[list[str] | None, BeforeValidator(_command)] = None
    name: Annotated[str | None, AfterValidator(lambda name: name if name is None else check_name(name))] = None
    user: str | None = None
    directory: AbsolutePath = Path("/")
    variables: Variables = Field(default_factory=dict)
    timeout: Annotated[float, BeforeValidator(_timeout)] = 1800.0
    store: AbsolutePath | None = None
    priority: Annotated[int, Field(ge=0, le=100)] = 50
    pinned: bool = False
    before: Annotated[list[str], BeforeValidator(_units)] = Field(default_factory=list)
    loader: Annotated[Loader, BeforeValidator(_loader)] = Loader.COMMAND
    python: str = ""
    target: str = ""
    inputs: str = ""
    device: str = ""
    precisions: Annotated[tuple[str, ...], BeforeValidator(_words)] = ()
    shapes: Annotated[tuple[str, ...], BeforeValidator(_words)] = ()
    compile: bool = False
    steps: int = 5
    new_tokens: int = 16
    min_output_tokens: int = 1
    tolerance: float | None = None
    require_device: bool = False
    caches: Annotated[tuple[Path, ...], BeforeValidator(_paths)] = ()
    memory: Annotated[int | None, BeforeValidator(_bytes)] = None
    disk: Annotated[int | None, BeforeValidator(_bytes)] = None
    options: Variables = Field(default_factory=dict)

    @property
    def exercise(self) -> RunSpec:
        """Give what the keys say about how the model is exercised."""
        return RunSpec(**{name: getattr(self, name) for name in RunSpec.__struct_fields__})


def models(directory: Path, *, user: str | None = None) -> tuple[tuple[Model, ...], tuple[Problem, ...]]:
    """Read every ``*.toml`` of a directory, in the order of their names.

    Gives the models, and what is wrong: one `Problem` per mistake, its subject the file.  Without the directory there
    are no models, which is fine.  ``user`` says that the directory is the host's, and whose models are wanted of it.
    """
    found, problems = _all(directory, host=user is not None)
    return tuple(model for model, whose in found if user is None or whose == user), problems


def owners(directory: Path) -> tuple[Mapping[ModelName, str], tuple[Problem, ...]]:
    """Tell whose each model of the host's directory is, and what is wrong there."""
    found, problems = _all(directory, host=True)
    return {model.name: whose for model, whose in found}, problems


def _all(directory: Path, *, host: bool) -> tuple[list[tuple[Model, str]], tuple[Problem, ...]]:
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(".toml") and not name.startswith("."))
    except FileNotFoundError:
        return [], ()
    except OSError as error:
        return [], (_problem(f"{directory}: model files cannot be read: {error.strerror}", directory),)
    found: dict[ModelName, tuple[Model, str]] = {}
    problems: list[Problem] = []
    if len(names) > _MOST:
        message = f"{directory}: only the first {_MOST} of {len(names)} model files are read"
        problems.append(_problem(message, directory))
    for name in names[:_MOST]:
        path = directory / name
        try:
            model, whose = _model(path, host=host)
        except FileNotFoundError:
            if path.is_symlink():
                problems.append(_problem(f"{path}: a link to nothing", path))
            continue
        except SettingsError as error:
            problems += [_problem(line, path, error.hint) for line in error.message.split("\n")]
            continue
        other, _ = found.setdefault(model.name, (model, whose))
        if other is not model:
            problems.append(_problem(f"{path}: the name {model.name} is taken by {other.source}", path))
    return list(found.values()), tuple(problems)


def _problem(message: str, path: Path, hint: str = "") -> Problem:
    return Problem("bad-settings", message, hint or "correct the file: it is read again when it changes", str(path))


def _model(path: Path, *, host: bool) -> tuple[Model, str]:
    """Read one file: the model, and of the host's directory whose it is.

    Raises `SettingsError` with all its mistakes, or `FileNotFoundError`.
    """
    toml = Toml.parse(path, read(path))
    known = list(ModelFile.model_fields)
    try:
        file = ModelFile.model_validate(toml.values)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        mistakes = [toml.mistake(fault["loc"], explain(fault, known)) for fault in faults[:TOLD]]
        if not {"command", "loader"} & set(toml.values):
            mistakes.append(toml.mistake(("command",), _NO_COMMAND))
        raise refuse(mistakes, untold=len(faults[TOLD:])) from error
    try:
        name = check_name(file.name if file.name is not None else path.stem)
    except ValueError as error:
        raise refuse([toml.mistake((), f"the file's name is the model's: {error}; or give a name")]) from error
    exercise = file.exercise
    mistakes = [toml.mistake((key,), expected) for key, expected in exercise.mistakes()]
    if host and not file.user:
        mistakes.append(toml.mistake(("user",), 'is required here: whose model it is, such as user = "llm"'))
    elif not host and file.user is not None:
        mistakes.append(toml.mistake(("user",), "only in the host's models.d; a model of yours is yours"))
    command: tuple[str, ...] = ()
    if exercise.loader is not Loader.COMMAND:
        if file.command is not None:
            mistakes.append(toml.mistake(("command",), f"the loader {exercise.loader} has none"))
    elif file.command is None:
        mistakes.append(toml.mistake(("command",), _NO_COMMAND))
    else:
        try:
            command = (_program(file.command[0], file.variables), *file.command[1:])
        except ValueError as error:
            mistakes.append(toml.mistake(("command",), str(error)))
    if mistakes:
        raise refuse(mistakes)
    workload = Workload(command, file.directory, dict(file.variables), file.timeout, exercise)
    model = Model(name, workload, file.store, file.priority, file.pinned, str(path), tuple(file.before))
    return model, file.user or ""


def _program(name: str, variables: Mapping[str, str]) -> str:
    """Give the absolute path of a program.  An absolute one need not be there yet: it may not be mounted."""
    if name.startswith("/"):
        return name
    path = variables.get("PATH", _PATH)
    if "/" not in name:
        for folder in path.split(":"):
            candidate = f"{folder.rstrip('/')}/{name}"
            # Links are not followed: the python3 of a virtual environment is one, and knows by its name where it is.
            if folder.startswith("/") and Path(candidate).is_file() and os.access(candidate, os.X_OK):
                return candidate
    message = f"expected an absolute path, or a program that is in {path}; found {name!r}"
    raise ValueError(message)
