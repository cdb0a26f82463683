"""Door: what a new model needs of its registrar's surroundings.  Reads the environment that it is given, and PATH."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from xpucached.errors import RequestError
from xpucached.kinds.variables import KNOWN, OURS, STEERING, STORE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NAMES: Final = frozenset(
    {
        *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV"),
        # By these Inductor and Triton find what they compiled: which compiler, for how many threads and what processor.
        *("CC", "CXX", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "ATEN_CPU_CAPABILITY"),
    }
)
# Whatever steers the runtime, the driver, its compiler, or a framework on top: another value, another kernel.
_PREFIXES: Final = (
    *STEERING,
    "ONEAPI_",
    "OCL_",
    "ZE_",
    "ZES_",
    "UR_",
    "IGC_",
    "CL_CONFIG_",
    "ITEX_",
    "IPEX_",
    "XPU_",
    "BIGDL_",
    "TORCHINDUCTOR_",
    "TORCHDYNAMO_",
    "TRITON_",
)


class Captured(Struct, frozen=True):
    """What was taken over from the caller."""

    command: tuple[str, ...]
    directory: Path
    variables: Mapping[str, str]
    store: Path | None


def capture(
    command: Sequence[str],
    directory: Path | None,
    wanted: Sequence[str],
    store: str | None,
    environ: Mapping[str, str],
) -> Captured:
    """Find the program, and take over the variables that decide what it compiles.

    ``wanted`` are ``K=V`` or ``K``.  Raises `RequestError` if the program or a variable is not there.
    """
    if not command:
        raise RequestError("the model's command is missing", hint="xpucachectl model add NAME -- python3 app.py")
    here = Path.cwd()
    variables = {
        name: text
        for name, text in environ.items()
        if (name in _NAMES or name in KNOWN or name.startswith(_PREFIXES)) and not name.startswith(OURS)
    }
    for one in wanted:
        name, given, text = one.partition("=")
        if not name or "\0" in one:
            raise RequestError(f"no name of a variable: {one!r}", hint="expected --env NAME or --env NAME=VALUE")
        if not given and name not in environ:
            message = f"the variable {name} is not set here, so there is no value to take"
            raise RequestError(message, hint=f"--env {name}=VALUE, or export it first")
        variables[name] = text if given else environ[name]
    program = shutil.which(command[0], path=variables.get("PATH"))
    if program is None:
        why = _why_not(here / command[0]) if "/" in command[0] else ""
        what = f"{command[0]!r} cannot be started: {why}" if why else f"there is no program {command[0]!r}"
        raise RequestError(what, hint="name it as you would in this shell")
    where = directory or here
    if not _is_folder(where):
        raise RequestError(f"there is no directory {where}", hint="--directory says where the command runs")
    # Absolute but not resolved: a virtual environment's python is a link, and is what it is by its place.
    return Captured(
        command=(str(here / program), *command[1:]),
        directory=where,
        variables=dict(sorted(variables.items())),
        store=_store(store, environ, here),
    )


def _why_not(path: Path) -> str:
    """Return why a file cannot be started; empty if there is none."""
    try:
        path.stat()
    except (FileNotFoundError, ValueError):
        return ""
    except OSError as error:
        return error.strerror or str(error)
    return "it is a directory" if _is_folder(path) else "it is no program that may be run"


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _store(store: str | None, environ: Mapping[str, str], here: Path) -> Path | None:
    if store == "default":
        return None
    chosen = store or environ.get(STORE)
    return here / os.path.expanduser(chosen) if chosen else None  # noqa: PTH111 - it raises nothing
