"""Door: model files, one model each.  Reads the directory; what is wrong with one file does not hide the others."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Struct
from msgspec.structs import replace

from xpucached.domain.host import Problem
from xpucached.domain.models import Model, Workload, check_name
from xpucached.domain.names import ModelName
from xpucached.domain.workloads import Loader, RunSpec
from xpucached.errors import SettingsError
from xpucached.printing import quoted
from xpucached.settings.toml import TOLD, Toml, read, refuse
from xpucached.settings.values import Unexpected, Wrong, declared, filled, table

if TYPE_CHECKING:
    from collections.abc import Mapping

_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
"""Where a command is looked for when the model's variables have no PATH.  Not in ours: it depends on who started us."""

_MOST: Final = 4096
"""Files that are read: nobody has so many models, and a directory named by mistake may have more files."""

_NO_COMMAND: Final = "is required, unless loader is another one"


def _command(value: object) -> tuple[str, ...]:
    words = value if isinstance(value, list) else []
    if not words or not all(isinstance(word, str) and "\0" not in word for word in words) or not words[0]:
        raise Unexpected('expected an array of strings, such as ["/usr/bin/python3", "app.py"]')
    return tuple(words)


def _name(value: object) -> ModelName:
    if not isinstance(value, str):
        raise Unexpected("expected a string")
    return check_name(value)


class _File(Struct, frozen=True):
    """What only a model file says; the rest of its keys are fields of the model's."""

    command: Annotated[tuple[str, ...] | None, _command] = None
    name: Annotated[ModelName | None, _name] = None
    user: str = ""
    directory: Path = Path("/")


_OTHERS: Final = ("variables", "timeout", "store", "priority", "pinned", "before")

KEYS: Final = {
    **declared(_File),
    **{name: declared(Workload, Model)[name] for name in _OTHERS},
    **declared(RunSpec),
}
"""What may stand in a model file."""


def models(
    directory: Path, *, user: str | None = None, uid: int = -1, known: bool = False
) -> tuple[tuple[Model, ...], tuple[Problem, ...]]:
    """Read every ``*.toml`` of a directory, in the order of their names.

    Gives the models, and what is wrong: one `Problem` per mistake, its subject the file.  Without the directory there
    are no models, which is fine; where it cannot be read, it is itself the subject.  So it is where models of its files
    are ``known``, and it is away with all that it lies in.  ``user`` says that the directory is the host's, and with
    ``uid`` whose models are wanted of it.
    """
    found, problems = _all(directory, host=user is not None, known=known)
    return tuple(model for model, whose in found if user is None or means(whose, uid, user)), problems


def owners(directory: Path) -> tuple[Mapping[ModelName, str], tuple[Problem, ...]]:
    """Tell whose each model of the host's directory is, and what is wrong there, as far as we may see programs."""
    found, problems = _all(directory, host=True, foreign=True)
    return {model.name: whose for model, whose in found}, problems


def means(whose: str, uid: int, name: str) -> bool:
    """Return whether a model file means the user of this number and name: his worker and the host's daemon agree."""
    return whose == (str(uid) if whose.isdecimal() else name)


def _all(
    directory: Path, *, host: bool, foreign: bool = False, known: bool = False
) -> tuple[list[tuple[Model, str]], tuple[Problem, ...]]:
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(".toml") and not name.startswith("."))
    except FileNotFoundError:
        # A home that is not mounted or unlocked yet is no word of its user's, nor is a link to what is away.
        gone = os.path.isdir(directory.parent) and not os.path.lexists(directory)  # noqa: PTH112 - it raises nothing
        if gone or not known:
            return [], ()
        message = f"{directory}: it is away, and the models of its files stay as they were, and wait"
        hint = f"if there shall be none: mkdir -p {quoted(str(directory))}"
        return [], (Problem("models-away", message, hint, str(directory)),)
    except OSError as error:
        return [], (_problem(f"{directory}: model files cannot be read: {error.strerror}", directory),)
    found: dict[ModelName, tuple[Model, str]] = {}
    problems: list[Problem] = []
    if len(names) > _MOST:
        message = f"{directory}: only the first {_MOST} of {len(names)} model files are read"
        problems.append(_problem(message, directory / "*.toml"))
    for name in names[:_MOST]:
        path = directory / name
        try:
            model, whose = _model(path, host=host, foreign=foreign)
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


def _model(path: Path, *, host: bool, foreign: bool) -> tuple[Model, str]:
    """Read one file: the model, and of the host's directory whose it is.

    Raises `SettingsError` with all its mistakes, or `FileNotFoundError`.
    """
    toml = Toml.parse(path, read(path))
    try:
        given = table(KEYS, toml.values)
    except Wrong as error:
        mistakes = [toml.mistake(place, what) for place, what in error.mistakes[:TOLD]]
        if not {"command", "loader"} & set(toml.values):
            mistakes.append(toml.mistake(("command",), _NO_COMMAND))
        raise refuse(mistakes, untold=len(error.mistakes[TOLD:])) from error

    file, exercise = filled(_File, given), filled(RunSpec, given)
    try:
        name = check_name(path.stem) if file.name is None else file.name
    except ValueError as error:
        raise refuse([toml.mistake((), f"the file's name is the model's: {error}; or give a name")]) from error
    mistakes = [toml.mistake((key,), expected) for key, expected in exercise.mistakes()]
    if host and not file.user:
        mistakes.append(toml.mistake(("user",), 'is required here: whose model it is, such as user = "llm"'))
    elif not host and "user" in given:
        mistakes.append(toml.mistake(("user",), "only in the host's models.d; a model of yours is yours"))
    command: tuple[str, ...] = ()
    workload = filled(Workload, given, command=command, directory=file.directory, exercise=exercise)
    if exercise.loader is not Loader.COMMAND:
        if file.command is not None:
            mistakes.append(toml.mistake(("command",), f"the loader {exercise.loader} has none"))
    elif file.command is None:
        mistakes.append(toml.mistake(("command",), _NO_COMMAND))
    else:
        try:
            command = (_program(file.command[0], workload.variables, foreign=foreign), *file.command[1:])
        except ValueError as error:
            mistakes.append(toml.mistake(("command",), str(error)))
    if mistakes:
        raise refuse(mistakes)
    model = filled(Model, given, name=name, workload=replace(workload, command=command), source=str(path))
    return model, file.user


def _program(name: str, variables: Mapping[str, str], *, foreign: bool) -> str:
    """Return the absolute path of a program.  An absolute one need not be there yet: it may not be mounted.

    With ``foreign`` it is others who run it, and who may look where we may not.
    """
    if name.startswith("/"):
        return name
    path = variables.get("PATH", _PATH)
    shut = ""
    for folder in path.split(":") if "/" not in name else ():
        candidate = f"{folder.rstrip('/')}/{name}"
        if not folder.startswith("/"):
            continue
        try:
            # Links are not followed: the python3 of a virtual environment is one, and knows by its name where it is.
            if stat.S_ISREG(Path(candidate).stat().st_mode) and os.access(candidate, os.X_OK):
                return candidate
        except PermissionError:
            shut = shut or candidate
        except (OSError, ValueError):
            continue
    if shut and foreign:
        return shut
    message = f"expected an absolute path, or a program that is in {path}; found {name!r}"
    raise ValueError(message)
