"""Which SYCL runtimes there are: those that a program finds, that its processes had mapped, that this host has."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import itertools
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import deadlines, mounts, reading
from xpucached.domain.libraries import SyclRuntime
from xpucached.host import elf
from xpucached.host.drivers import replaced
from xpucached.host.roots import HERE
from xpucached.host.tools import loader_cache
from xpucached.kinds.sycl.defects import Generation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from xpucached.domain.models import Workload
    from xpucached.host.roots import HostRoots

_NAME: Final = "libsycl.so."
_LIBRARY: Final = re.compile(rf"{re.escape(_NAME)}(\d{{1,3}})")
_MOST_NAMES: Final = 20_000
_MOST_RUNTIMES: Final = 8
_MOST_KNOWN: Final = 64
_LARGEST: Final = 256 << 20
_PIECE: Final = 1 << 20
_FIRST_OF_LAYOUT_3: Final = 9

_Stamp = tuple[int, int, int, int]
"""The device, number, size and time of a file."""

_SYSTEM: Final = (
    Path("/opt/intel/oneapi/compiler/latest/lib"),
    Path("/usr/local/lib"),
    Path("/usr/lib/x86_64-linux-gnu"),
    Path("/usr/lib64"),
    Path("/usr/lib"),
)

_MARK: Final = "libur_loader.so.0"
"""Unified Runtime's library: every SYCL runtime since 2024.1 brings it."""

_MOST_FOLDERS: Final = 4


def runtimes(
    program: Path, variables: Mapping[str, str], system: tuple[Path, ...] = _SYSTEM
) -> tuple[SyclRuntime, ...]:
    """Return the SYCL runtimes that a program with these variables finds, in the order in which it looks.

    In ``LD_LIBRARY_PATH``, then beside the program (``../lib``, where pip and conda put it), then in the system's
    places, which count only if there was none before.  A program may still load another one; it says so to nobody.
    """
    near = [Path(one) for one in variables.get("LD_LIBRARY_PATH", "").split(":") if one.startswith("/")]
    near += [program.parent, program.parent.parent / "lib"]
    found = {one.build: one for one in _in(near)} or {one.build: one for one in _in(system)}
    return tuple(found.values())[:_MOST_RUNTIMES]


def _in(folders: Sequence[Path]) -> Iterator[SyclRuntime]:
    for folder in dict.fromkeys(folders):
        try:
            names = _libraries(folder)
        except (OSError, ValueError):
            continue
        for name in sorted(names, reverse=True):
            match = _LIBRARY.fullmatch(name)
            build = _build(folder / name) if match else None
            if match and build:
                yield _runtime(folder / name, match, build)


def _libraries(folder: Path) -> list[str]:
    """Name what may be a runtime in a folder; where there are too many names, each that one can have is asked for."""
    with os.scandir(folder) as listing:
        names = [entry.name for entry in itertools.islice(listing, _MOST_NAMES + 1)]
    if len(names) <= _MOST_NAMES:
        return names
    return [name for number in range(1000) if os.path.lexists(folder / (name := f"{_NAME}{number}"))]


def mapped(libraries: Iterable[Path], since: datetime) -> tuple[SyclRuntime, ...]:
    """Return the SYCL runtimes among the libraries that processes had mapped, the first of which began at ``since``."""
    found: dict[str, SyclRuntime] = {}
    for path in sorted(libraries):
        match = _LIBRARY.match(path.name)
        build = _build(path) if match and not replaced(path, since) else None
        if match and build:
            found.setdefault(build, _runtime(path, match, build))
    return tuple(found.values())[:_MOST_RUNTIMES]


def _runtime(library: Path, match: re.Match[str], build: str) -> SyclRuntime:
    return SyclRuntime(library, build, 3 if int(match[1]) >= _FIRST_OF_LAYOUT_3 else 2)


def _build(library: Path) -> str | None:
    """Return what tells this build from others: Intel's carry no build id, so it is mostly the content."""
    with contextlib.suppress(OSError, ValueError), _opened(library) as (descriptor, stamp):
        return _digest(library, descriptor, stamp)
    return None


def readers(libraries: Iterable[Path]) -> frozenset[Generation]:
    """Return which runtimes there are among libraries; empty if any may be, because one of them cannot be told."""
    known = {generation(path) for path in libraries if path.name.startswith("libsycl.so")}
    return frozenset() if None in known else frozenset(one for one in known if one is not None)


def generation(library: Path) -> Generation | None:
    """Return how a SYCL runtime meets damage, by the words that it would trace; None if it cannot be told."""
    with contextlib.suppress(OSError, ValueError), _opened(library) as (descriptor, stamp):
        if stamp not in _GENERATIONS:
            if len(_GENERATIONS) >= _MOST_KNOWN:
                _GENERATIONS.clear()
            with os.fdopen(descriptor, "rb", closefd=False) as stream:
                content = stream.read(_LARGEST)
            older, newer = b"Code caching: " in content, b"[Persistent Cache]: " in content
            known = Generation.UP_TO_2025_0 if older else Generation.FROM_2025_1
            _GENERATIONS[stamp] = known if older != newer else None
        return _GENERATIONS[stamp]
    return None


@contextlib.contextmanager
def _opened(library: Path) -> Iterator[tuple[int, _Stamp]]:
    """Open a library, and tell its content from others; raise OSError or ValueError for what we do not read."""
    # What is there could be a pipe, which would hold us for ever.
    descriptor = reading.opened(library)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise OSError(errno.EINVAL, "not a regular file, or too large", str(library))
        yield descriptor, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    finally:
        os.close(descriptor)


_GENERATIONS: Final[dict[_Stamp, Generation | None]] = {}

_KNOWN: Final[dict[_Stamp, str]] = {}
"""Reading a whole library for every question takes longer than the rest of the answer."""


def _digest(library: Path, descriptor: int, stamp: _Stamp) -> str:
    if stamp not in _KNOWN:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        content, left = hashlib.blake2b(digest_size=16), stamp[2]
        # No further than it was long: somebody may write on and on.
        while left > 0 and (piece := os.read(descriptor, min(left, _PIECE))):
            content.update(piece)
            left -= len(piece)
        _KNOWN[stamp] = elf.build_id(library) or content.hexdigest()
    return _KNOWN[stamp]


def folders(workloads: Iterable[Workload], variables: Mapping[str, str], places: HostRoots = HERE) -> tuple[Path, ...]:
    """Return the folders with the SYCL runtimes of these programs, and of any program on this host; four at most."""
    found: dict[str, Path] = {}
    for folder in _candidates(workloads, variables, places):
        try:
            # A model's programs may lie where nobody answers.
            there = deadlines.ask(folder, (folder / _MARK).is_file)
        except (OSError, ValueError):
            there = False
        if there:
            found.setdefault(mounts.real(folder), folder)
        if len(found) == _MOST_FOLDERS:
            break
    return tuple(found.values())


def _of_torch(library: Path) -> list[Path]:
    return sorted(library.glob("python3*/site-packages/torch/lib"))[:_MOST_FOLDERS]


def _candidates(workloads: Iterable[Workload], variables: Mapping[str, str], places: HostRoots) -> Iterator[Path]:
    for workload in workloads:
        yield from _listed(workload.variables)
        # In a virtual environment the interpreter is a link; the libraries lie beside the link, not its target.
        program = Path(workload.program)
        if program.is_absolute() and program.parent.name == "bin":
            library = program.parent.parent / "lib"
            yield library
            try:
                yield from deadlines.ask(library, functools.partial(_of_torch, library))
            except OSError:
                continue
    yield from _listed(variables)
    yield _SYSTEM[0]
    with contextlib.suppress(OSError):
        yield from (Path(path).parent for path in loader_cache(places).get(_MARK, []))


def _listed(variables: Mapping[str, str]) -> Iterator[Path]:
    for one in re.split("[:;]", variables.get("LD_LIBRARY_PATH", "")):
        if one.startswith("/"):
            yield Path(one)
