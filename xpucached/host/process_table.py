"""Observe: the live processes of a user, as far as they tell where they keep a cache; reads /proc."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import shortage
from xpucached.domain.activity import Program
from xpucached.domain.host import Process
from xpucached.host import process_times, process_units
from xpucached.host.digests import told_of_file
from xpucached.host.directory_users import others
from xpucached.host.roots import HERE
from xpucached.processes import environ, live_threads
from xpucached.processes.driver_probe import PROBE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from xpucached.host.roots import HostRoots

log = logging.getLogger(__name__)

# An environment holds secrets, and what we take travels: only what says something about drivers and caches is kept.
_TELLING: Final = (
    r"(?:SYCL|ONEAPI|UR|ZE|ZES|ZET|NEO|IGC|OCL|OPENCL|CL_CONFIG|TRITON|TORCHINDUCTOR|XPUCACHED|XDG)_\w+"
    r"|HOME|USER|TMPDIR|LD_LIBRARY_PATH|VIRTUAL_ENV|INVOCATION_ID|INTEL_ENABLE_OFFLOAD_ANNOTATIONS"
)
_LIBRARIES = ("libze", "libOpenCL", "libur")
_PROGRAMS = os.fspath(PROBE.parent)
_LONGEST_MAPS = 8 << 20  # bytes; browsers have the longest, about one
_LONGEST_VALUE = 1 << 16
_LONGEST_COMMAND = 1000
_LONGEST_NAME = 15  # of what the kernel keeps

# Of one process, and of all in one look: who may start programs may start thousands, and have each of them keep as much
# as he likes.  Of what is more nothing is kept, for half of it would say something else.
_PROCESSES: Final = 20_000
_VARIABLES: Final = 200
_VARIABLES_TEXT: Final = 256 << 10
_VARIABLES_IN_ALL: Final = 16 << 20
_MAPPED: Final = 64
_MAPPED_IN_ALL: Final = 20_000
_MAPS_IN_ALL: Final = 256 << 20
_OPEN: Final = 10_000
_OPEN_IN_ALL: Final = 500_000
_NOBODY: Final = -1
"""The number of a process that stands for others."""
_LONGEST_HELD: Final = 400  # characters below a root; no cache's files have longer paths


_Mapped = dict[tuple[object, ...], tuple[Path, ...]]
_last: Final[_Mapped] = {}
"""What processes had mapped at the last look at all; to have the kernel list that is most of what a look costs."""


@dataclass(slots=True)
class _Share:
    """How much one look at all processes may still read and keep, and how often there was more."""

    processes: int = _PROCESSES
    variables: int = _VARIABLES_IN_ALL
    maps: int = _MAPS_IN_ALL
    mapped: int = _MAPPED_IN_ALL
    environments: environ.Environments = field(default_factory=environ.Environments)
    passed_over: int = 0
    last: _Mapped = field(default_factory=dict)
    now: _Mapped = field(default_factory=dict)

    def tell(self) -> None:
        if self.passed_over:
            log.warning("of so many processes not all could be looked at, for they are too many: %d", self.passed_over)


def processes(uid: int, libraries: tuple[str, ...] = (), places: HostRoots = HERE) -> tuple[Process, ...]:
    """Return the live processes of a user, without our own and its probes.

    Of what they have mapped the drivers are told, and what begins like one of ``libraries``.

    A process that vanishes, or that we may not read, is left out or has the empty values: a look never fails.  So has
    one with too much to be read; then it is not ``known``.  Nor is one that stands for all those that could not be
    looked at because we have no more room.
    """
    ours = os.getpid()
    share = _Share(last=dict(_last))
    found: list[Process] = []
    short = False
    for pid in process_times.pids():
        try:
            one = _look(pid, uid, libraries, places, ours, share) if pid != ours else None
        except OSError as error:
            one, short = None, short or shortage.is_ours(error)
        except (ValueError, IndexError):
            one = None
        if one is not None:
            found.append(one)
    if short:
        log.warning("there was no room to look at all processes: what they do is unknown")
        found.append(Process(_NOBODY, uid, EVER, "", None, {}, known=False))
    _last.clear()
    _last.update(share.now)
    share.tell()
    return tuple(found)


def of_units(
    units: Collection[str], libraries: tuple[str, ...] = (), places: HostRoots = HERE
) -> dict[str, tuple[Process, ...]]:
    """Return the live processes of these units of systemd, whoever they run as; units without any are left out.

    Another user's has no variables, unless we may read them.  ``libraries`` as for `processes`.  Raises OSError.
    """
    found: dict[str, list[Process]] = {}
    if not units:
        return {}
    share = _Share()
    for pid in process_times.pids():
        with contextlib.suppress(ValueError, IndexError), others():
            unit = process_units.unit_of(places.proc / str(pid) / "cgroup")
            if unit in units and (one := _look(pid, process_times.uid(pid), libraries, places, os.getpid(), share)):
                found.setdefault(unit, []).append(one)
    share.tell()
    return {unit: tuple(some) for unit, some in found.items()}


def program(pid: int, before: float, libraries: tuple[str, ...] = (), places: HostRoots = HERE) -> Program | None:
    """Return what a process is that did something ``before`` so many seconds since boot; None if that is not known.

    A process that began later has only got its number.  ``libraries`` as for `processes`.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        began = process_times.started(pid, places)
        if began is None or began > before:
            return None
        uid = process_times.uid(pid)
        look = _look(pid, uid, libraries, places, -1, _Share())
        # Had it died in between, and another one taken its number, the two would have mixed.
        if look is None or process_times.started(pid, places) != began:
            return None
        return Program(
            pid,
            look.started,
            uid,
            look.name,
            " ".join(_words(pid))[:_LONGEST_COMMAND],
            process_units.unit_of(places.proc / str(pid) / "cgroup"),
            libraries=tuple(path.name for path in look.libraries if path.name.startswith(libraries)),
            ours="XPUCACHED_RUN" in look.variables,
        )
    return None


def held(roots: frozenset[Path]) -> Mapping[Path, frozenset[str]]:
    """Return which files below these directories are open in a process, ours left out, by their paths below them.

    Processes that we may not look into are left out: they are not those of the stores' owner.  So is what some have
    open beyond thousands of files; our own user's processes come first.  Raises OSError where we have no room
    to look.
    """
    found: dict[Path, set[str]] = {}
    prefixes = {root: os.fspath(root).rstrip("/") + "/" for root in roots}
    ours = str(os.getpid())
    left, passed_over = _OPEN_IN_ALL, 0
    for pid in sorted(filter(str.isdigit, os.listdir("/proc")), key=_is_others) if roots else ():
        if pid == ours:
            continue
        most = min(_OPEN, left)
        try:
            links = list(itertools.islice(_links(f"/proc/{live_threads.live_thread(int(pid))}/fd"), most + 1))
        except OSError as error:
            told_of_file(error)
            continue
        passed_over += len(links) > most
        left -= len(links[:most])
        for target in links[:most]:
            for root, prefix in prefixes.items():
                if target is not None and target.startswith(prefix) and len(target) <= len(prefix) + _LONGEST_HELD:
                    found.setdefault(root, set()).add(target.removeprefix(prefix))
    if passed_over:
        log.warning("processes have more files open than are looked at: %d", passed_over)
    return {root: frozenset(paths) for root, paths in found.items()}


def _is_others(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}").stat().st_uid != os.geteuid()
    except OSError:
        return True


def _links(folder: str) -> Iterator[str | None]:
    """Yield what a process has open, one after the other; None where it cannot be told.  Raises OSError."""
    with os.scandir(folder) as numbers:
        for number in numbers:
            try:
                yield os.readlink(number.path)  # noqa: PTH115 - many of them
            except FileNotFoundError:
                yield ""  # it is closed by now
            except OSError:
                yield None


def _look(pid: int, uid: int, names: tuple[str, ...], places: HostRoots, ours: int, share: _Share) -> Process | None:
    """Return what a process is; None if it is another user's, has ended, or is a part of the kernel.

    Raises OSError, ValueError and IndexError.
    """
    facts = process_times.facts(process_times.read(f"{places.proc}/{pid}/stat"))
    if facts.ended or facts.of_kernel or process_times.uid(pid) != uid:
        return None
    thread = live_threads.live_thread(pid, places.proc) if facts.leader_ended else pid
    if facts.parent == ours and any(map(_is_ours, _words(thread))):
        return None
    share.processes -= 1
    variables: Mapping[str, str] | None = {}
    directory: Path | None = None
    libraries: tuple[Path, ...] | None = None
    if share.processes >= 0:
        with contextlib.suppress(PermissionError):
            variables = _variables(thread, share)
        with contextlib.suppress(OSError):
            there = Path(f"/proc/{thread}/cwd").readlink()
            directory = None if there.name.endswith(" (deleted)") else there
        maps = places.proc / str(thread) / "maps"
        # Whatever is mapped is touched, so that the kernel counts it.
        state = (maps, names, facts.began, *facts.touched)
        libraries = share.last.get(state)
        if libraries is None or len(libraries) > share.mapped:
            libraries = _libraries(maps, (*_LIBRARIES, *names), share)
        else:
            share.mapped -= len(libraries)
        if libraries is not None:
            share.now[state] = libraries
    share.passed_over += variables is None or libraries is None
    return Process(
        pid=pid,
        uid=uid,
        started=process_times.moment(facts.began),
        name=_name(pid, thread),
        directory=directory,
        variables=variables or {},
        libraries=libraries or (),
        known=libraries is not None,
    )


def _is_ours(word: str) -> bool:
    """Return whether a word of a command names one of the programs that we start beside a driver."""
    return os.path.dirname(word) == _PROGRAMS  # noqa: PTH120 - a text, of which nothing is asked


def _variables(pid: int, share: _Share) -> dict[str, str] | None:
    """Return the variables that tell something; None if they are too many.  Raises OSError."""
    data = share.environments.read(pid)
    if data is None:
        return None
    found: dict[str, str] = {}
    text = 0
    for name, value in environ.variables(data, _TELLING):
        if len(value) <= _LONGEST_VALUE:
            found.setdefault(name, value)
            text += len(name) + len(value)
        if len(found) > _VARIABLES or text > min(_VARIABLES_TEXT, share.variables):
            return None
    share.variables -= text
    return found


def _words(pid: int) -> list[str]:
    """Return the beginning of a process's command line.  Raises OSError."""
    with Path(f"/proc/{pid}/cmdline").open("rb") as stream:
        return os.fsdecode(stream.read(_LONGEST_VALUE).removesuffix(b"\0")).split("\0")


def _name(pid: int, thread: int) -> str:
    """Return the name of a process, whole where its command line tells it; the kernel cuts it.  Raises OSError."""
    name = process_times.read(f"/proc/{pid}/comm").removesuffix(b"\n")
    if len(name) >= _LONGEST_NAME:
        with contextlib.suppress(PermissionError):
            whole = os.fsencode(_words(thread)[0]).rpartition(b"/")[2]
            name = whole if whole.startswith(name) else name
    # It goes into the catalog, and the kernel cuts it amid a character.
    return name.decode("utf-8", "backslashreplace")


def _libraries(maps: Path, names: tuple[str, ...], share: _Share) -> tuple[Path, ...] | None:
    """Return the shared objects that a process has mapped whose names begin so; None if that is too much to read.

    Raises OSError if we have no more room to look.
    """
    most = min(_LONGEST_MAPS, share.maps)
    try:
        with maps.open("rb") as stream:
            text = stream.read(most + 1)
    except OSError as error:
        told_of_file(error)
        return ()
    share.maps -= len(text)
    if len(text) > most:
        return None
    found: dict[Path, None] = {}
    if not any(name.encode() in text for name in names):
        return ()
    for line in text.split(b"\n"):
        fields = line.split(None, 5)
        if len(fields) < 6 or not fields[5].startswith(b"/"):  # noqa: PLR2004 - address, mode, offset, device, inode
            continue
        path = Path(os.fsdecode(fields[5].removesuffix(b" (deleted)")))
        if path.name.startswith(names) and ".so" in path.name:
            found[path] = None
            if len(found) > min(_MAPPED, share.mapped):
                return None
    share.mapped -= len(found)
    return tuple(found)


EVER: Final = datetime.min.replace(tzinfo=UTC)
"""Before any process began."""


def writer_since(
    processes: Iterable[Process], libraries: tuple[str, ...], writes: Callable[[str], bool], places: HostRoots = HERE
) -> datetime | None:
    """Return when the oldest process started that could be in the midst of writing a cache; None if there is none.

    Who writes has a library mapped whose name begins like one of ``libraries``, and a file open of which ``writes``
    says so.

    Writing takes milliseconds, with the file open.  So a program that runs, and has no such file open, does not hold a
    lock that was made seconds ago.  One that is stopped or waits for the disk may, and so may one that cannot be looked
    into.  Where other processes may live that are not seen here, anybody may.
    """
    if not _sees_all(places):
        return EVER
    left = itertools.count(_OPEN_IN_ALL, -1)
    # Which is the oldest is known from the first one on.
    for one in sorted(processes, key=lambda one: one.started):
        has_runtime = any(path.name.startswith(libraries) for path in one.libraries)
        if not one.known or (has_runtime and _may_be_writing(one.pid, writes, places, left)):
            return one.started
    return None


_INITIAL: Final = "pid:[4026531836]"
"""The first namespace of processes, which sees all others (the kernel's ``PROC_PID_INIT_INO``)."""


def _sees_all(places: HostRoots) -> bool:
    if places is not HERE:
        return True
    try:
        return os.fspath(Path("/proc/self/ns/pid").readlink()) == _INITIAL
    except OSError:
        return False


def _may_be_writing(pid: int, writes: Callable[[str], bool], places: HostRoots, left: Iterator[int]) -> bool:
    """Tell whether a process could be between taking a lock and giving it back; so could one with too much to look at.

    ``left`` tells, at each step, how many more of them may be made.
    """
    here = places.proc / str(pid)
    try:
        for number, thread in enumerate((here / "task").iterdir()):
            if number >= _OPEN or next(left) <= 0:
                return True
            # After the name, which may hold anything: a state of running or of sleep that a signal may end.
            if (thread / "stat").read_bytes().rpartition(b")")[2].split()[0] not in {b"R", b"S", b"Z", b"X", b"I"}:
                return True
        if _frozen(here, places):
            return True
        for number, target in enumerate(_links(f"{places.proc}/{live_threads.live_thread(pid, places.proc)}/fd")):
            if number >= _OPEN or next(left) <= 0 or target is None or writes(target):
                return True
    except FileNotFoundError:
        # It has ended, or this thread of it has.
        return here.exists()
    except (OSError, IndexError):
        return True
    return False


def _frozen(process: Path, places: HostRoots) -> bool:
    """Return whether the group of a process is frozen, or may be: its tasks look like sleepers then."""
    for line in filter(None, (process / "cgroup").read_bytes().decode("utf-8", "replace").split("\n")):
        number, _, path = line.split(":", 2)
        if number == "0":
            try:
                events = (places.sysfs / "fs/cgroup" / path.lstrip("/") / "cgroup.events").read_text("ascii", "replace")
            except OSError:
                continue
            return "frozen 1" in events
    return False
