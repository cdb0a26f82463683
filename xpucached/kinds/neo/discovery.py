"""Where the GPU driver keeps its cache, by its own rules (26.27), and whether it keeps one."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from xpucached import reading, state_files
from xpucached.domain.host import DriverFile, Host, Process
from xpucached.kinds.neo import layout

LIBRARIES: Final = ("libze_intel_gpu", "libigdrcl")

OFF: Final[Mapping[str, str]] = {}
"""Nothing is switched off: what we ask a driver to compile for another store may well be kept here."""

EVERYWHERE: Final[Mapping[str, str]] = {"NEO_CACHE_MAX_SIZE": "0", "NEO_CACHE_STATS": "1"}
"""No limit, so that the driver does not evict what we keep; and it counts what it finds (since 26.14)."""

OPTION_VARIABLES: Final[tuple[str, ...]] = ()

_SWITCH: Final = b"NEO_CACHE_PERSISTENT"
_PIECE: Final = 1 << 20
_PIECES: Final = 256

_NUMBER: Final = re.compile(r"\s*[+-]?\d+", re.ASCII)
_FOLDER: Final = "neo_compiler_cache"
_LOOKED_INTO: Final = 64


def enable(root: Path) -> Mapping[str, str]:
    """Return the variables that lead a driver to this store, which has to be there: it makes none."""
    return {"NEO_CACHE_PERSISTENT": "1", "NEO_CACHE_DIR": os.fspath(root)}


def without_cache(host: Host) -> tuple[DriverFile, ...]:
    """Return the drivers of this host that do not know these variables: of 2022, they keep nothing by themselves.

    What variables of theirs have them keep (``cl_cache_dir``, ``l0_cache_dir``) must not be: specialization constants
    are no part of its name, so programs are given what was compiled with others.
    """
    found = []
    for one in host.driver:
        # One that cannot be read now may know them.
        with contextlib.suppress(OSError):
            if one.target.name.startswith(LIBRARIES) and not _knows_switch(one):
                found.append(one)
    return tuple(found)


@functools.lru_cache(maxsize=64)
def _knows_switch(file: DriverFile) -> bool:
    """Return whether a driver's file holds the variable's name.  Raises OSError."""
    descriptor = reading.opened(file.target)
    with state_files.stream(descriptor) as content:
        before = b""
        for _ in range(_PIECES):
            piece = content.read(_PIECE)
            if not piece or _SWITCH in before + piece:
                return bool(piece)
            before = piece[-len(_SWITCH) :]
    return True


def locate(process: Process) -> tuple[Path, str] | None:
    """Return where a process keeps its store: a directory that is not there is made only below ``HOME``."""
    variables = process.variables
    via = process.name if process.pid == 0 else f"process {process.pid} ({process.name})"
    if not enabled(process):
        return None
    # An empty value counts as none, and `~` is not expanded.
    if root := variables.get("NEO_CACHE_DIR"):
        pass
    elif above := variables.get("XDG_CACHE_HOME"):
        root = f"{above}/{_FOLDER}"
    elif above := variables.get("HOME"):
        root = f"{above}/.cache/{_FOLDER}"
    else:
        return None
    if not root.startswith("/") and process.directory is None:
        return None
    return Path(os.path.normpath(root if root.startswith("/") else f"{process.directory}/{root}")), via


def enabled(process: Process) -> bool:
    """Return whether the cache is on in a process: it is, unless a variable says 0, or no number."""
    said = process.variables.get("NEO_CACHE_PERSISTENT")
    if said is None:
        return True
    match = _NUMBER.match(said)
    # It may have more digits than `int` takes.
    return match is not None and match.group().strip(" \t\n\r\f\v+-0") != ""


def bounds(process: Process) -> str:
    """Return the variable that switches the cache off; see `Discovery.bounds`."""
    return "" if enabled(process) else f"NEO_CACHE_PERSISTENT={process.variables['NEO_CACHE_PERSISTENT']}"


def configuration(process: Process) -> str:  # noqa: ARG001
    """Return nothing: where such a file lies the driver tells nothing, either; see `Discovery.configuration`."""
    return ""


def recognise(root: Path) -> bool:
    """Return whether a directory looks like a store; see `Discovery.recognise`."""
    # Pathlib's questions may raise.
    if not os.path.isfile(root / layout.TOTAL):  # noqa: PTH113
        return False
    return any(map(_holds_entries, [os.fspath(root), *_directories(os.fspath(root))]))


def _directories(root: str) -> list[str]:
    """Return the directories of the second level, a few of them."""
    found = [os.fspath(root)]
    for _ in range(2):
        found = [f"{above}/{name}" for above in found for name in _names(above) if layout.LEVEL.match(name)]
        found = found[:_LOOKED_INTO]
    return found


def _names(place: str) -> list[str]:
    try:
        with os.scandir(place) as listed:
            return [one.name for one in itertools.islice(listed, _LOOKED_INTO)]
    except OSError:
        return []


def _holds_entries(place: str) -> bool:
    return any(layout.ENTRY.match(name) for name in _names(place))


_WRITTEN: Final = re.compile(rf"/(?:{re.escape(layout.TOTAL)}|cl_cache\.[A-Za-z0-9]{{6}})(?: \(deleted\))?\Z")


def writes(path: str) -> bool:
    """Return whether the driver has such a file open while it writes; see `Discovery.writes`."""
    return _WRITTEN.search(path) is not None
