"""Observe: which SYCL runtimes a program finds, and whether the cache may be switched on with one of them.

A child loads the runtime, never the daemon.  It runs in an empty directory of its own, first with the cache off (can
this kind of program be built at all?), then on.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import signal
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached.domain.defects import Generation
from xpucached.domain.diagnosis import RuntimeCheck, Safety
from xpucached.domain.libraries import Libraries, SyclRuntime
from xpucached.host import elf
from xpucached.processes import child, scratch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

log = logging.getLogger(__name__)

SYCL_CHECK: Final = Path(__file__).resolve().parent.parent / "libexec" / "sycl_check.py"

_LIBRARY: Final = re.compile(r"libsycl\.so\.(\d{1,3})")
_DRIVERS: Final = ("libintelocl.so", "libigdrcl.so", "libze_intel_gpu.so")
_MOST_NAMES: Final = 20_000
_MOST_RUNTIMES: Final = 8
_DEEPEST: Final = 8
_MOST_KNOWN: Final = 64
_LARGEST: Final = 256 << 20
_FIRST_OF_LAYOUT_3: Final = 9
_COMPLAINT: Final = re.compile(rb"what\(\):\s*([^\n]{1,300})")

_Stamp = tuple[int, int, int, int]
"""The device, number, size and time of a file."""

_SYSTEM: Final = (
    Path("/opt/intel/oneapi/compiler/latest/lib"),
    Path("/usr/local/lib"),
    Path("/usr/lib/x86_64-linux-gnu"),
    Path("/usr/lib64"),
    Path("/usr/lib"),
)

# The commands are the caller's; what else steers a runtime must not: a trace, a size limit, a configuration file.
_OURS: Final = re.compile(r"SYCL_CACHE_\w+|SYCL_CONFIG_FILE_NAME|SYCL_IN_MEM_\w+|LD_PRELOAD|PYTHON\w+")


def runtimes(
    program: Path, variables: Mapping[str, str], system: tuple[Path, ...] = _SYSTEM
) -> tuple[SyclRuntime, ...]:
    """Give the SYCL runtimes that a program with these variables finds, in the order in which it looks.

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
            with os.scandir(folder) as listing:
                names = [entry.name for entry, _ in zip(listing, range(_MOST_NAMES), strict=False)]
        except (OSError, ValueError):
            continue
        for name in sorted(names, reverse=True):
            match = _LIBRARY.fullmatch(name)
            build = _build(folder / name) if match else None
            if match and build:
                yield _runtime(folder / name, match, build)


def mapped(libraries: Iterable[Path], since: datetime) -> Libraries:
    """Tell which SYCL runtimes and drivers are among the libraries that processes had mapped.

    One that was replaced after ``since``, when the first of these processes began, may not be what was mapped: it is
    left out.  One from the future was put there while the clock was wrong.
    """
    runtimes: dict[str, SyclRuntime] = {}
    drivers: list[Path] = []
    for path in sorted(libraries):
        match = _LIBRARY.match(path.name)
        if match is None and not path.name.startswith(_DRIVERS):
            continue
        try:
            changed = path.stat().st_ctime
        except (OSError, ValueError):
            continue
        if since.timestamp() < changed <= time.time():
            continue
        if match is None:
            drivers.append(path)
        elif (build := _build(path)) is not None:
            runtimes.setdefault(build, _runtime(path, match, build))
    return Libraries(tuple(runtimes.values())[:_MOST_RUNTIMES], tuple(drivers)[:_MOST_RUNTIMES])


def _runtime(library: Path, match: re.Match[str], build: str) -> SyclRuntime:
    return SyclRuntime(library, build, 3 if int(match[1]) >= _FIRST_OF_LAYOUT_3 else 2)


def _build(library: Path) -> str | None:
    """Give what tells this build from others: Intel's carry no build id, so it is mostly the content."""
    with contextlib.suppress(OSError, ValueError), _opened(library) as (descriptor, stamp):
        return _digest(library, descriptor, stamp)
    return None


def generation(library: Path) -> Generation | None:
    """Tell how a SYCL runtime meets damage, by the words that it would trace; None if it cannot be told."""
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
    descriptor = os.open(library, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
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
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            content = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        _KNOWN[stamp] = elf.build_id(library) or content
    return _KNOWN[stamp]


@dataclass(frozen=True, slots=True)
class _End:
    status: int | None  #: as `child.Ended` has it; None: it took too long
    said: str

    @property
    def crashed(self) -> bool:
        # A runtime that is ended by its own exception says so; a crash says nothing of the kind.
        return self.status in {-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE} or (
            self.status == -signal.SIGABRT and not self.said
        )

    @property
    def words(self) -> str:
        if self.status is None:
            return "did not end in time"
        if self.said:
            return f"failed: {self.said}"
        if self.status < 0:
            return f"was ended by {child.signal_name(-self.status)}"
        return f"ended with status {self.status}"


_WHAT: Final = {
    "library": "a program with a device library that has no kernels (as every program with bfloat16 has)",
    "parts": "a program of two device images",
    "single": "a program of one device image",
}


def check_runtime(
    runtime: SyclRuntime, variables: Mapping[str, str], now: datetime, timeout: float = 60.0
) -> RuntimeCheck:
    """Find out whether programs crash when the cache is on with this runtime.

    ``variables`` are those of programs on this host.  Blocks for at most twice ``timeout`` seconds for each of three
    kinds of programs.  Never raises for what the runtime does.
    """
    because = ""
    for shape, what in _WHAT.items():
        control, _ = _build_once(runtime, shape, variables, timeout, cache=False)
        if control.status != 0:
            because = because or f"{what} cannot be built with it even with the cache off: it {control.words}"
            if control.crashed or control.status is None:
                break
            continue
        tried, kept = _build_once(runtime, shape, variables, timeout, cache=True)
        if tried.crashed:
            evidence = f"{what} is built with SYCL_CACHE_PERSISTENT=0; with 1 and an empty cache it {tried.words}"
            return RuntimeCheck(runtime.build, runtime.library, Safety.UNSAFE, evidence, now)
        if tried.status == 0:
            entries = f"{what} is built with the cache off and on, {'and' if kept else 'but not'} kept in the cache"
            evidence = f"{entries}; {because}" if because else entries
            return RuntimeCheck(runtime.build, runtime.library, Safety.SAFE, evidence, now)
        because = f"{what} is built with the cache off; with the cache on it {tried.words}"
        break
    return RuntimeCheck(runtime.build, runtime.library, Safety.UNKNOWN, because, now)


def _build_once(
    runtime: SyclRuntime, shape: str, variables: Mapping[str, str], timeout: float, *, cache: bool
) -> tuple[_End, bool]:
    """Run the child once; tell how it ended, and whether it left anything in the cache."""
    folder = str(runtime.library.parent)
    further = variables.get("LD_LIBRARY_PATH", "")
    environment = {name: value for name, value in child.environment(variables).items() if not _OURS.fullmatch(name)}
    words = ["--library", os.fspath(runtime.library), "--layout", str(runtime.layout), "--shape", shape]
    try:
        with scratch.directory("xpucached-check-") as place:
            environment |= {
                "LD_LIBRARY_PATH": f"{folder}:{further}" if further else folder,
                "SYCL_CACHE_PERSISTENT": "1" if cache else "0",
                "SYCL_CACHE_DIR": f"{place}/cache",
            }
            done = child.run(
                [*child.python(SYCL_CHECK), *words], variables=environment, seconds=timeout, directory=place
            )
            kept = _keeps(f"{place}/cache")
    except (OSError, ValueError) as error:
        return _End(127, f"cannot be started: {error}"), False
    complaint = _COMPLAINT.search(done.complaint)
    said = complaint[1].decode("utf-8", "backslashreplace").strip() if complaint else ""
    log.debug("check of %s, %s, cache %s: %s", runtime.library, shape, cache, done.status)
    return _End(done.status, said), kept


def _keeps(cache: str) -> bool:
    """Tell whether there is a program in a cache; what lies deeper than programs do is not looked for."""
    ahead = [(cache, 0)]
    looked = 0
    while ahead and looked < _MOST_NAMES:
        place, depth = ahead.pop()
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                looked += 1
                if entry.name.endswith(".bin"):
                    return True
                if depth < _DEEPEST and looked < _MOST_NAMES and entry.is_dir(follow_symlinks=False):
                    ahead.append((entry.path, depth + 1))
    return False
