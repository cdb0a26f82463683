"""Observe: where an interpreter looks for Python packages; lists folders, reads ``pyvenv.cfg`` and ``.pth`` files."""

from __future__ import annotations

import heapq
import itertools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from xpucached import mounts
from xpucached.host.digests import beginning, is_file, told_of_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

PYTHON: Final = re.compile(r"(?:python|pypy)([\d.]*t?)\Z")
WITH_VALUE: Final = frozenset({"-X", "-W", "--check-hash-based-pycs"})
OPTION: Final = re.compile(r"-[bBdEhiIOPqRsSuvVx?]*([mcWX])(.*)", re.DOTALL)
"""One of its options that has a value, which may stand in the same word, as may others before it."""
SITES: Final = ("site-packages", "dist-packages")

_MOST: Final = 1000
"""Files of a folder that are looked at, and lines of a ``.pth`` file."""
_MOST_NAMES: Final = 1_000_000
_TEXT: Final = 1 << 16
_MAPPED: Final = re.compile(r"['\"]([\w.]+)['\"]: ['\"](/[^'\"\n]+)['\"]")
_FINDER: Final = re.compile(r"__editable___.+_finder\.py\Z")


class Interpreter(NamedTuple):
    """What an interpreter is part of."""

    environment: Path | None  #: the virtual one
    prefix: Path | None  #: the installation whose packages it has; None: it has none but its environment's
    version: str  #: ``3.11``; without a dot where its name does not tell


def interpreter(python: Path) -> Interpreter:
    """Return what an interpreter is part of."""
    real = Path(mounts.real(python))
    match = PYTHON.match(real.name)
    version = match[1] if match else ""
    for root in (python.parent.parent, real.parent.parent):
        text = _text(root / "pyvenv.cfg")
        if text:
            settings = _settings(text)
            home = settings.get("home") if settings.get("include-system-site-packages", "").lower() == "true" else None
            return Interpreter(root, Path(home).parent if home else None, version)
    return Interpreter(None, real.parent.parent, version)


def _settings(text: str) -> dict[str, str]:
    """Return what a ``pyvenv.cfg`` says, as Python reads it."""
    found = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip().lower(): value.strip() for name, _, value in found}


def sites(one: Interpreter, variables: Mapping[str, str]) -> list[Path]:
    """Return the folders of packages that an interpreter looks into, each once; a user's own are among them."""
    places = list(_below(one.environment, "")) if one.environment is not None else []
    if one.prefix is not None:
        places += _below(one.prefix, one.version)
        if not variables.get("PYTHONNOUSERSITE"):
            home = variables.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - it raises nothing
            places += _below(Path(variables.get("PYTHONUSERBASE") or f"{home}/.local"), one.version)
    return list({mounts.real(place): place for place in reversed(places)}.values())[::-1]


def _below(prefix: Path, version: str) -> Iterator[Path]:
    """Yield the folders of packages below a prefix, of one version of Python if that is known."""
    roots = (prefix, prefix / "local") if prefix == Path("/usr") else (prefix,)
    for root, library in itertools.product(roots, ("lib", "lib64")):
        for name in _names(root / library, lambda name: _is_of(name, version)):
            places = (root / library / name / site for site in SITES)
            yield from (place for place in places if os.path.isdir(place))  # noqa: PTH112 - it raises nothing


def _is_of(name: str, version: str) -> bool:
    match = PYTHON.match(name)
    return match is not None and (match[1] in {"3", version} or "." not in version)


def added(places: Iterable[Path]) -> Iterator[Path]:
    """Yield the folders that ``.pth`` files name; what their lines of code add is not known."""
    for place in places:
        for name in _names(place, lambda name: name.endswith(".pth")):
            for line in _text(place / name).splitlines()[:_MOST]:
                if line.strip() and not line.startswith(("#", "import ", "import\t")):
                    yield place / line.strip()


def editable(places: Iterable[Path]) -> Iterator[Path]:
    """Yield the folders in which packages lie that were installed to be edited, and are found by code of setuptools."""
    for place in places:
        for name in _names(place, lambda name: _FINDER.match(name) is not None):
            for package, path in itertools.islice(_MAPPED.findall(_text(place / name)), _MOST):
                parts = package.split(".")
                source = Path(path.removesuffix(".py"))
                if source.parts[-len(parts) :] == tuple(parts):
                    yield source.parents[len(parts) - 1]


def activated(python: Path) -> Iterator[Path]:
    """Yield what sets variables where an interpreter's environment is entered, if that is one of conda's."""
    root = python.parent.parent
    scripts = root / "etc/conda/activate.d"
    said = (root / "conda-meta/state", *(scripts / name for name in _names(scripts, lambda _: True)))
    yield from (one for one in said if is_file(os.fspath(one)))


def chosen_by(script: Path, directory: Path) -> Iterator[str]:
    """Yield the file that says what Python a shell's script in the place of one takes there, as pyenv's does."""
    said = (*(place / ".python-version" for place in (directory, *directory.parents)), script.parent / "../version")
    yield from itertools.islice(filter(is_file, map(os.fspath, said)), 1)


def packages(found: Iterable[tuple[str, bool]]) -> dict[str, str]:
    """Return the packages among the names of a directory: name and version, to where that is written down."""
    there: dict[str, str] = {}
    for name, folder in found:
        stem, _, suffix = name.rpartition(".")
        if not stem or suffix not in {"dist-info", "egg-info"}:
            continue
        words = " ".join(stem.split("-", 2)[:2])
        there[words] = f"{name}/{'RECORD' if suffix == 'dist-info' else 'PKG-INFO'}" if folder else name
    return there


def by_hand(found: Iterable[tuple[str, bool]]) -> Iterator[str]:
    """Yield the files among the names of a directory of packages that may be no package's, or say where more lies."""
    yield from (name for name, folder in found if not folder and name.endswith((".egg-link", ".pth", ".py")))


def site_of(path: str) -> str | None:
    """Return the directory of installed packages that a file lies in; None if it is part of none."""
    parts = path.split("/")
    for number in range(len(parts) - 1, 0, -1):
        if parts[number - 1] in SITES:
            return "/".join(parts[:number])
    return None


def _text(path: Path) -> str:
    return beginning(os.fspath(path), _TEXT).decode("utf-8", "replace")


def _names(folder: Path, wanted: Callable[[str], bool]) -> list[str]:
    """Return the names in a folder that are wanted, sorted.  Raises OSError where no folder can be opened now."""
    try:
        with os.scandir(folder) as listed:
            names = (one.name for one in itertools.islice(listed, _MOST_NAMES))
            return heapq.nsmallest(_MOST, filter(wanted, names))
    except OSError as error:
        told_of_file(error)
    except ValueError:
        pass
    return []
