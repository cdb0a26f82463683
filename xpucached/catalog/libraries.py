"""Record: which libraries the processes of a run had mapped, as a run's row has them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypedDict

from xpucached.domain.libraries import Libraries, SyclRuntime


class LibraryRows(TypedDict):
    """What is written of them."""

    runtimes: list[tuple[str, str, int]]
    drivers: list[str]
    further: list[str]


def libraries_row(libraries: Libraries | None) -> LibraryRows | None:
    """Return what is written of libraries."""
    if libraries is None:
        return None
    return {
        "runtimes": [(os.fspath(one.library), one.build, one.layout) for one in libraries.runtimes],
        "drivers": [os.fspath(path) for path in libraries.drivers],
        "further": [os.fspath(path) for path in libraries.further],
    }


def libraries_value(saved: LibraryRows | None) -> Libraries | None:
    """Return libraries by what was written of them."""
    if saved is None:
        return None
    runtimes = tuple(SyclRuntime(Path(library), build, layout) for library, build, layout in saved["runtimes"])
    return Libraries(runtimes, tuple(map(Path, saved["drivers"])), tuple(map(Path, saved["further"])))
