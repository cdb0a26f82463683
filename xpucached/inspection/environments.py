"""Where the libraries of a program lie: its Python's packages, and what variables and ``.pth`` files add to them."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import mounts
from xpucached.errors import NotFound
from xpucached.host import python_packages, shell_words
from xpucached.host.digests import head
from xpucached.host.python_packages import PYTHON

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish"})
_SYSTEM: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64")
_SHARED: Final = re.compile(r".+\.so[.\d]*\Z")
_MOST: Final = 1000
"""Files of a folder that are looked at."""
_NAME_THEM: Final = "name them: xpucachectl inspect FOLDER"


def places(command: Sequence[str], directory: Path, variables: Mapping[str, str]) -> list[Path]:
    """Return the files and folders that hold the libraries of a program; of nested ones the outer.

    They are those of its Python, or else the program, what lies beside it, and ``LD_LIBRARY_PATH``.  Raises `NotFound`
    where it is not known what the command starts.
    """
    program = _program(command, directory, variables)
    interpreter = _interpreter(program, directory, variables)
    if interpreter is not None:
        found = [*_of_python(interpreter, variables), *_listed("PYTHONPATH", directory, variables)]
    elif head(os.fspath(program), 4) == b"\x7fELF" and program.name not in _SHELLS:
        found = [program, *_beside(program)]
    else:
        raise NotFound(f"{program}: what it starts is not known, nor where that has its libraries", hint=_NAME_THEM)
    return _outer([*found, *_listed("LD_LIBRARY_PATH", directory, variables)])


def _program(command: Sequence[str], directory: Path, variables: Mapping[str, str]) -> Path:
    words = list(command)
    if words and Path(words[0]).name == "env":
        words = shell_words.of_env(words[1:], variables)[1] or words
    first = next(iter(words), "")
    found = shutil.which(first, path=variables.get("PATH")) if "/" not in first else None
    path = Path(found or directory / first)
    if not stat.S_ISREG(_mode(path)):
        raise NotFound(f"{path}: there is no such program")
    return path


def _interpreter(program: Path, directory: Path, variables: Mapping[str, str]) -> Path | None:
    """Return the Python that runs a program, which may be that itself."""
    if PYTHON.match(program.name):
        return program
    begin = head(os.fspath(program), 256)
    if not begin.startswith(b"#!"):
        return None
    try:
        named = _program(os.fsdecode(begin[2:].partition(b"\n")[0]).split(), directory, variables)
    except NotFound:
        return None
    return named if PYTHON.match(named.name) else None


def _of_python(python: Path, variables: Mapping[str, str]) -> Iterator[Path]:
    """Yield the environment of an interpreter, its packages, and what files there add to its search path."""
    one = python_packages.interpreter(python)
    yield from (
        root
        for root in (python.parent.parent, one.prefix)
        if root is not None and stat.S_ISDIR(_mode(root / "conda-meta"))
    )
    if one.environment is not None:
        yield one.environment
    sites = python_packages.sites(one, variables)
    yield from sites
    yield from python_packages.added(sites)


def _listed(name: str, directory: Path, variables: Mapping[str, str]) -> Iterator[Path]:
    found = (Path(os.path.normpath(directory / one)) for one in variables.get(name, "").split(":") if one)
    return (one for one in found if not _of_system(one))


def _of_system(path: Path) -> bool:
    """Return whether a folder is the system's: it holds the libraries of all programs, and its drivers."""
    return str(path) in _SYSTEM or str(path.parent) in _SYSTEM


def _beside(program: Path) -> Iterator[Path]:
    """Yield the libraries in the folder of a program, and in the ``lib`` next to that."""
    real = Path(mounts.real(program))
    for folder in (real.parent, real.parent.parent / "lib"):
        if _of_system(folder):
            continue
        with contextlib.suppress(OSError), os.scandir(folder) as listed:
            for file in itertools.islice(listed, _MOST):
                if _SHARED.match(file.name) and not file.is_symlink() and head(file.path, 4) == b"\x7fELF":
                    yield Path(file.path)


def _outer(found: Iterable[Path]) -> list[Path]:
    """Return those that are there, without what lies in another one."""
    there = {Path(mounts.real(one)): one for one in reversed(list(found)) if _is_there(one)}
    return [one for real, one in reversed(there.items()) if there.keys().isdisjoint(real.parents)]


def _is_there(path: Path) -> bool:
    """Return whether a file or a folder is there."""
    mode = _mode(path)
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _mode(path: Path) -> int:
    """Return what a path leads to, 0 if to nothing that we may look at: pathlib's own questions raise there."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0
