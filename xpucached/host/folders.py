"""Observe: where the SYCL runtimes of programs on this host lie, and a tiny program that is built with one.

Looks where models, variables and the loader say.
"""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached.host.drivers import loader_cache
from xpucached.host.roots import HERE
from xpucached.host.runtimes import SYCL_CHECK, runtimes
from xpucached.processes import child
from xpucached.processes.driver_probe import beside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from xpucached.domain.models import Workload
    from xpucached.host.roots import HostRoots

_MARK: Final = "libur_loader.so.0"
"""Unified Runtime's library: every SYCL runtime since 2024.1 brings it."""

_MOST: Final = 4
_ONEAPI: Final = Path("/opt/intel/oneapi/compiler/latest/lib")


def runtime_folders(
    workloads: Iterable[Workload], variables: Mapping[str, str], places: HostRoots = HERE
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


def build_tiny_program(
    folder: Path,
    cache: Path,
    variables: Mapping[str, str],
    selector: str,
    timeout: float = 60.0,
    *,
    command: Sequence[str] = (),
) -> bool:
    """Build a program of a few words with the SYCL runtime in a folder, which keeps it in ``cache``; tell if it did.

    ``selector`` says which devices it sees (``ONEAPI_DEVICE_SELECTOR``), unless ``variables`` do; ``command`` is what
    the child's command begins with: a dynamic loader, for a driver that needs its own.
    """
    runtime = next(iter(runtimes(folder / "program", {}, ())), None)
    if runtime is None:
        return False
    places = [os.fspath(folder), *filter(None, [variables.get("LD_LIBRARY_PATH")])]
    environment = child.environment(
        {
            "ONEAPI_DEVICE_SELECTOR": selector,
            **variables,
            "LD_LIBRARY_PATH": ":".join(places),
            "SYCL_CACHE_PERSISTENT": "1",
            "SYCL_CACHE_DIR": os.fspath(cache),
        }
    )
    program = child.python(SYCL_CHECK, beside(command, folder))
    words = ["--shape", "single", "--library", os.fspath(runtime.library), "--layout", str(runtime.layout)]
    try:
        done = child.run([*program, *words], variables=environment, seconds=timeout, directory=cache.parent)
    except (OSError, ValueError):
        return False
    return done.status == 0


def _candidates(workloads: Iterable[Workload], variables: Mapping[str, str], places: HostRoots) -> Iterator[Path]:
    for workload in workloads:
        yield from _listed(workload.variables)
        # In a virtual environment the interpreter is a link; the libraries lie beside the link, not its target.
        program = Path(workload.program)
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
