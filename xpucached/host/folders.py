"""Observe: which SYCL runtimes programs on this host load; looks where models, variables and the loader say."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached.host.drivers import loader_cache
from xpucached.host.places import HERE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from xpucached.domain import Workload
    from xpucached.host.places import Places

_MARK: Final = "libur_loader.so.0"
"""Unified Runtime's library: every SYCL runtime since 2024.1 brings it."""

_MOST: Final = 4
_ONEAPI: Final = Path("/opt/intel/oneapi/compiler/latest/lib")


def runtime_folders(
    workloads: Iterable[Workload], variables: Mapping[str, str], places: Places = HERE
) -> tuple[Path, ...]:
    """Give the folders with the SYCL runtimes of these programs, and of any program on this host; four at most."""
    found: dict[str, Path] = {}
    for folder in _candidates(workloads, variables, places):
        try:
            there = (folder / _MARK).is_file()
        except (OSError, ValueError):
            there = False
        if there:
            found.setdefault(os.path.realpath(folder), folder)
        if len(found) == _MOST:
            break
    return tuple(found.values())


def _candidates(workloads: Iterable[Workload], variables: Mapping[str, str], places: Places) -> Iterator[Path]:
    for workload in workloads:
        yield from _listed(workload.variables)
        # In a virtual environment the interpreter is a link; the libraries lie beside the link, not its target.
        program = Path(workload.command[0])
        if program.is_absolute() and program.parent.name == "bin":
            library = program.parent.parent / "lib"
            yield library
            try:
                yield from itertools.islice(sorted(library.glob("python3*/site-packages/torch/lib")), _MOST)
            except OSError:
                continue
    yield from _listed(variables)
    yield _ONEAPI
    yield from (path.parent for path in loader_cache(places).get(_MARK, []))


def _listed(variables: Mapping[str, str]) -> Iterator[Path]:
    for one in re.split("[:;]", variables.get("LD_LIBRARY_PATH", "")):
        if one.startswith("/"):
            yield Path(one)
