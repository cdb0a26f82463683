"""Observe: the live processes of a user, as far as they tell where they keep a cache; reads /proc through psutil."""

from __future__ import annotations

import contextlib
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from xpucached.domain.activity import Program
from xpucached.domain.host import Process
from xpucached.host.roots import HERE
from xpucached.host.runtimes import SYCL_CHECK
from xpucached.processes.driver_probe import PROBE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from xpucached.host.roots import HostRoots

# An environment holds secrets, and what we take travels: only what says something about drivers and caches is kept.
_TELLING = re.compile(
    r"(?:SYCL|ONEAPI|UR|ZE|ZES|ZET|NEO|IGC|OCL|OPENCL|CL_CONFIG|TRITON|TORCHINDUCTOR|XPUCACHED|XDG)_\w+"
    r"|HOME|USER|TMPDIR|LD_LIBRARY_PATH|VIRTUAL_ENV|INVOCATION_ID|INTEL_ENABLE_OFFLOAD_ANNOTATIONS"
)
_LIBRARIES = ("libsycl", "libze", "libOpenCL", "libur")
_LONGEST_MAPS = 8 << 20  # bytes; browsers have the longest, about one
_LONGEST_VALUE = 1 << 16
_LONGEST_COMMAND = 1000
_TICKS = os.sysconf("SC_CLK_TCK")


def processes(uid: int, places: HostRoots = HERE) -> tuple[Process, ...]:
    """Give the live processes of a user, without our own and its probes.

    A process that vanishes, or that we may not read, is left out or has the empty values: a look never fails.
    """
    ours = os.getpid()
    found: list[Process] = []
    for process in psutil.process_iter():
        if process.pid == ours:
            continue
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            one = _look(process, uid, places, ours)
            if one is not None:
                found.append(one)
    return tuple(found)


def of_units(units: Collection[str], places: HostRoots = HERE) -> dict[str, tuple[Process, ...]]:
    """Give the live processes of these units of systemd, whoever they run as; units without any are left out.

    A process of another user has no variables, unless we may read them.
    """
    found: dict[str, list[Process]] = {}
    if not units:
        return {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            unit = _unit_of(places.proc / str(process.pid) / "cgroup", units)
            one = _look(process, process.uids().real, places, os.getpid()) if unit is not None else None
            if unit is not None and one is not None:
                found.setdefault(unit, []).append(one)
    return {unit: tuple(some) for unit, some in found.items()}


def program(pid: int, before: float, places: HostRoots = HERE) -> Program | None:
    """Tell what a process is that did something ``before`` so many seconds since boot; None if that is not known.

    A process that began later has only got its number.
    """
    with contextlib.suppress(psutil.Error, OSError, ValueError):
        process = psutil.Process(pid)
        began = started(pid, places)
        if began is None or began > before:
            return None
        uid = process.uids().real
        look = _look(process, uid, places, -1)
        # Had it died in between, and another one taken its number, the two would have mixed.
        if look is None or started(pid, places) != began:
            return None
        return Program(
            pid,
            look.started,
            uid,
            look.name,
            " ".join(process.cmdline())[:_LONGEST_COMMAND],
            _innermost(places.proc / str(pid) / "cgroup"),
            sycl=any(path.name.startswith("libsycl") for path in look.libraries),
            ours="XPUCACHED_RUN" in look.variables,
        )
    return None


def started(pid: int, places: HostRoots = HERE) -> float | None:
    """Tell when a process began, in seconds since boot; None if it is gone."""
    try:
        with (places.proc / str(pid) / "stat").open("rb") as stream:
            # Its name may hold anything, parentheses too; numbers follow behind the last one.
            return int(stream.read(_LONGEST_VALUE).rpartition(b")")[2].split()[19]) / _TICKS
    except (OSError, ValueError, IndexError):
        return None


def _innermost(cgroup: Path) -> str:
    """Give the service or scope that a process is in; empty if none."""
    try:
        with cgroup.open(encoding="utf-8", errors="replace") as stream:
            text = stream.read(_LONGEST_VALUE)
    except OSError:
        return ""
    for line in text.splitlines():
        parts = line.split(":", 2)[-1].split("/")
        unit = next((part for part in reversed(parts) if part.endswith((".service", ".scope"))), "")
        if unit:
            return unit
    return ""


def _unit_of(cgroup: Path, units: Collection[str]) -> str | None:
    with cgroup.open(encoding="utf-8", errors="replace") as stream:
        text = stream.read(_LONGEST_VALUE)
    parts = {part for line in text.splitlines() for part in line.split(":", 2)[-1].split("/")}
    return next((unit for unit in units if unit in parts), None)


def held(roots: frozenset[Path]) -> Mapping[Path, frozenset[str]]:
    """Tell which files below these directories are open in a process, ours left out, by their paths below them.

    Processes that we may not look into are left out: they are not those of the stores' owner.
    """
    found: dict[Path, set[str]] = {}
    prefixes = {root: os.fspath(root).rstrip("/") + "/" for root in roots}
    ours = str(os.getpid())
    for pid in os.listdir("/proc") if roots else ():
        if not pid.isdigit() or pid == ours:
            continue
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    target = os.fspath(Path(f"/proc/{pid}/fd/{number}").readlink())
                    for root, prefix in prefixes.items():
                        if target.startswith(prefix):
                            found.setdefault(root, set()).add(target.removeprefix(prefix))
    return {root: frozenset(paths) for root, paths in found.items()}


def _look(process: psutil.Process, uid: int, places: HostRoots, ours: int) -> Process | None:
    with process.oneshot():
        if process.uids().real != uid or process.status() == psutil.STATUS_ZOMBIE:
            return None
        if process.ppid() == ours and {os.fspath(PROBE), os.fspath(SYCL_CHECK)} & set(process.cmdline()):
            return None
        variables: Mapping[str, str] = {}
        directory: Path | None = None
        with contextlib.suppress(psutil.AccessDenied, PermissionError):
            variables = {
                name: value
                for name, value in process.environ().items()
                if _TELLING.fullmatch(name) and len(value) <= _LONGEST_VALUE
            }
        with contextlib.suppress(psutil.AccessDenied, PermissionError):
            directory = Path(process.cwd()) if process.cwd() else None
        return Process(
            pid=process.pid,
            uid=uid,
            started=datetime.fromtimestamp(process.create_time(), UTC),
            name=process.name(),
            directory=directory,
            variables=variables,
            libraries=_libraries(places.proc / str(process.pid) / "maps"),
        )


def _libraries(maps: Path) -> tuple[Path, ...]:
    """Give the shared objects of a SYCL program that a process has mapped."""
    try:
        with maps.open("rb") as stream:
            text = stream.read(_LONGEST_MAPS)
    except OSError:
        return ()
    found: dict[Path, None] = {}
    if not any(name.encode() in text for name in _LIBRARIES):
        return ()
    for line in text.splitlines():
        fields = line.split(None, 5)
        if len(fields) < 6 or not fields[5].startswith(b"/"):  # noqa: PLR2004 - address, mode, offset, device, inode
            continue
        path = Path(os.fsdecode(fields[5].removesuffix(b" (deleted)")))
        if path.name.startswith(_LIBRARIES) and ".so" in path.name:
            found[path] = None
    return tuple(found)


def writer_since(processes: Iterable[Process], places: HostRoots = HERE) -> datetime | None:
    """Tell when the oldest process started that could be in the midst of writing a SYCL cache; None if there is none.

    Writing takes milliseconds, with the file open.  So a program that runs, and has no such file open, does not hold a
    lock that was made seconds ago.  One that is stopped or waits for the disk may, and so may one that cannot be looked
    into.  Where other processes may live that are not seen here, anybody may.
    """
    if not _sees_all(places):
        return datetime.min.replace(tzinfo=UTC)
    return min(
        (
            one.started
            for one in processes
            if any(path.name.startswith("libsycl") for path in one.libraries) and _may_be_writing(one.pid, places)
        ),
        default=None,
    )


_INITIAL: Final = "pid:[4026531836]"
"""The first namespace of processes, which sees all others (the kernel's ``PROC_PID_INIT_INO``)."""

_WRITTEN: Final = re.compile(r"/(?:\d+|ir)(?:\.bin|\.src|\.lock|_access_time\.txt)(?: \(deleted\))?\Z|cache_size\.txt")


def _sees_all(places: HostRoots) -> bool:
    if places is not HERE:
        return True
    try:
        return os.fspath(Path("/proc/self/ns/pid").readlink()) == _INITIAL
    except OSError:
        return False


def _may_be_writing(pid: int, places: HostRoots) -> bool:
    """Tell whether a process could be between the lock of a slot and its end."""
    here = places.proc / str(pid)
    try:
        for thread in (here / "task").iterdir():
            # After the name, which may hold anything: a state of running or of sleep that a signal may end.
            if (thread / "stat").read_bytes().rpartition(b")")[2].split()[0] not in {b"R", b"S", b"Z", b"X", b"I"}:
                return True
        if _frozen(here, places):
            return True
        for number in os.listdir(here / "fd"):
            with contextlib.suppress(FileNotFoundError):
                if _WRITTEN.search(os.fspath((here / "fd" / number).readlink())):
                    return True
    except FileNotFoundError:
        # It has ended, or this thread of it has.
        return here.exists()
    except (OSError, IndexError):
        return True
    return False


def _frozen(process: Path, places: HostRoots) -> bool:
    """Tell whether the group of a process is frozen, or may be: its tasks look like sleepers then."""
    for line in (process / "cgroup").read_text("utf-8", "replace").splitlines():
        number, _, path = line.split(":", 2)
        if number == "0":
            try:
                events = (places.sysfs / "fs/cgroup" / path.lstrip("/") / "cgroup.events").read_text("ascii", "replace")
            except OSError:
                continue
            return "frozen 1" in events
    return False


def family(pid: int) -> frozenset[int]:
    """Give a process and all that descend from it."""
    with contextlib.suppress(psutil.Error):
        return frozenset({pid, *(one.pid for one in psutil.Process(pid).children(recursive=True))})
    return frozenset({pid})
