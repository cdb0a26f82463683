"""Whether the cache may be switched on with a SYCL runtime, and whether it looks where a replay would put programs.

A child loads the runtime, never the daemon.  It runs in an empty directory of its own, first with the cache off (can
this kind of program be built at all?), then on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached.domain.diagnosis import RuntimeCheck, Safety
from xpucached.domain.stores import FoundStore, Store, StoreOrigin
from xpucached.errors import Unconfirmed
from xpucached.kinds.sycl import runtimes as installed
from xpucached.kinds.sycl import scanner
from xpucached.kinds.sycl.targets import NAME, identity, target_of
from xpucached.planning.replay import contradicted
from xpucached.processes import child, scratch
from xpucached.processes.driver_probe import ask_runtime, beside

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from xpucached.domain.host import OtherDriver
    from xpucached.domain.libraries import SyclRuntime
    from xpucached.domain.models import Workload
    from xpucached.domain.targets import Target

log = logging.getLogger(__name__)

runtimes = installed.runtimes
mapped = installed.mapped
readers = installed.readers

SYCL_CHECK: Final = Path(__file__).resolve().parents[2] / "libexec" / "sycl_check.py"

_DEEPEST: Final = 8
_MOST_NAMES: Final = 20_000
_COMPLAINT: Final = re.compile(rb"what\(\):\s*([^\n]{1,300})")

# The commands are the caller's; what else steers a runtime must not: a trace, a size limit, a configuration file.
_OURS: Final = re.compile(r"SYCL_CACHE_\w+|SYCL_CONFIG_FILE_NAME|SYCL_IN_MEM_\w+|LD_PRELOAD|PYTHON\w+")


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


def check(runtime: SyclRuntime, variables: Mapping[str, str], now: datetime, timeout: float = 60.0) -> RuntimeCheck:
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
    """Return whether there is a program in a cache; what lies deeper than programs do is not looked for."""
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
    runtime = next(iter(installed.runtimes(folder / "program", {}, ())), None)
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


def confirm(
    targets: Collection[Target],
    driver: OtherDriver,
    workloads: Sequence[Workload],
    now: datetime,
    timeout: float = 60.0,
) -> str:
    """Let the SYCL runtimes of this host say how they name the devices, and stop if that is not what we would write.

    Each is asked, and then a tiny program is built with it, so that the runtime itself writes one entry, in a
    directory of ours.  ``workloads`` are those of the models that use this driver.  Gives what is known, in a
    sentence.  Raises `Unconfirmed`.  Blocks.
    """
    if not targets:
        return ""
    named: set[Target] = set()
    written: set[Target] = set()
    asked: list[str] = []
    for folder in installed.folders(workloads, driver.variables):
        report = ask_runtime(folder, driver.variables, timeout, command=driver.command)
        for problem in report.problems:
            log.info("a SYCL runtime gave no answer: %s", problem.message)
        ours = frozenset(_written(folder, targets, driver, now, timeout))
        written |= ours
        told = frozenset(map(target_of, report.answers))
        named |= ours | told
        if ours or told:
            asked.append(str(folder))
    where = ", ".join(asked)
    wrong = contradicted(targets, named)
    if wrong:
        lineages = {one.lineage for one in wrong}
        theirs = ", ".join(sorted(identity(one) for one in named if one.lineage in lineages))
        driver_says = ", ".join(identity(one) for one in wrong)
        raise Unconfirmed(
            f"the SYCL runtime in {where} names the device {theirs}, the driver {driver_says}: nothing was rebuilt",
            hint="programs would not find it; run the models instead: xpucachectl prewarm --stale",
        )
    if not asked:
        return "no SYCL runtime was found that could confirm the names of the devices"
    unseen = {one.family for one in targets if one not in named}
    but = f", and does not know {', '.join(sorted(unseen))}" if unseen else ""
    if written.intersection(targets):
        return f"the SYCL runtime in {where} itself wrote an entry under such a name{but}"
    return f"the SYCL runtime in {where} names the devices so{but}"


def _written(
    folder: Path, targets: Collection[Target], driver: OtherDriver, now: datetime, timeout: float
) -> list[Target]:
    """Build a tiny program for each kind of device, and give the environments under which the runtime kept it."""
    found: list[Target] = []
    for selector in sorted({_selector(one) for one in targets}):
        with scratch.workplace() as place:
            root = Path(place, "cache")
            if not build_tiny_program(folder, root, driver.variables, selector, timeout, command=driver.command):
                continue
            store = FoundStore(Store(NAME, root), StoreOrigin.FOUND, "a tiny program")
            # Of one entry the first part is all there is; a runtime that writes without end fills no memory.
            part = next(scanner.parts(store, now, (), None))
            found += dict.fromkeys(entry.environment for entry in part.entries if entry.environment is not None)
    return found


def _selector(environment: Target) -> str:
    """Return which devices a program may see, in the words of ``ONEAPI_DEVICE_SELECTOR``."""
    if "Level-Zero" in environment.family:
        return "level_zero:gpu"
    return "opencl:gpu" if environment.family.endswith("Graphics") else "opencl:cpu"
