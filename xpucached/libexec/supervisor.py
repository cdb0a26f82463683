"""Act: the small parent of one model's child, who ends all that it started; touches processes and /proc.

Whatever a process does to get away (a session of its own, an empty environment, two forks), once its parent has gone
the kernel makes it a child of its nearest ancestor that asked to be told, and that is this one.  It is started with no
more than the standard library.  It takes one byte at a time on the descriptor ``--orders``: ``t`` asks everybody to
end, ``p`` stops everybody where he is, ``c`` lets all go on, ``l`` looks at once at what they have mapped, ``k`` ends
them; the end of that pipe means that the daemon has gone, and ends them too.  When nobody is left it writes what it
saw, as one line of JSON, on the descriptor ``--report``.  SIGTERM, which systemd sends to all of a group that it stops,
is passed on and reported, so that a run which the end of the host cut short is not taken for one that failed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_TICK = 0.05
_LOOK = 0.5  # seconds between looks at what is slow to look at
_ORDERS = {b"t": signal.SIGTERM, b"p": signal.SIGSTOP, b"c": signal.SIGCONT}
_END = 10.0  # so long it tries to end everybody
_HASTE = 200  # times in a row that whoever forks faster than we look is told to end
_FILES = 200_000  # of a temporary directory that are looked at
# A look that took minutes would leave orders unread, and who does not obey is killed: then nobody ends the family.
_OPEN = 20_000  # descriptors that are looked at each time
_CLIENTS = 1000  # of graphics devices that are counted
_LINES = 200_000  # of maps that are read each time
_SPARE = 0.05  # of the machine's memory, and of the temporary directory's file system, that others keep
_MAPPED = 4096  # mapped files that are reported
_MAPPED_TEXT = 384 << 10  # bytes of their paths, as JSON; whoever reads the report keeps a mebibyte of it
_MAPS_SHARE = 20  # reading maps takes at most one part in so many of the time
_NO_FILES = ("/dev/", "/proc/", "/sys/", "/memfd:", "/SYSV", "/anon_hugepage", "/[")


class Watch:
    """What the family of processes takes."""

    def __init__(self, memory: int, disk: int, scratch: str) -> None:
        self.memory, self.disk, self.scratch = memory, disk, scratch
        self.peak = 0
        self.engines: dict[tuple[str, str], int] = {}  # device and client to nanoseconds
        self.resident = 0
        self._looked = 0.0
        self._free = _free(scratch)

    def exceeded(self, family: list[int]) -> tuple[str, str] | None:
        """Tell the outcome and a sentence if the family takes more than it may."""
        taken = sum(_resident(pid) for pid in family)
        self.peak = max(self.peak, taken)
        if taken > self.memory:
            return "over-memory", f"it took {taken} bytes of memory, {self.memory} are allowed"
        total, available = _machine()
        if available < total * _SPARE and taken > total * _SPARE:
            return "over-memory", f"it took {taken} bytes of memory, and left {available} of {total} to the machine"
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return None
        self._looked = now
        self.engine_times(family)
        written = _written(self.scratch)
        if written > self.disk:
            return "over-disk", f"it wrote {written} bytes to its temporary directory, {self.disk} are allowed"
        free, size = _free(self.scratch)
        if free < size * _SPARE and written > self._free[0] * _SPARE:
            return "over-disk", f"it wrote {written} bytes to its temporary directory, and left {free} free"
        return None

    def engine_times(self, family: list[int]) -> None:
        """Read what the kernel's graphics drivers say about the family's use of their engines."""
        resident = 0
        for text in itertools.islice(_drm(family), _CLIENTS):
            values = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
            key = (values.get("drm-pdev", "?").strip(), values.get("drm-client-id", "?").strip())
            if len(self.engines) < _CLIENTS or key in self.engines:
                spent = sum(_number(text) for name, text in values.items() if name.startswith("drm-engine-"))
                # The xe driver counts cycles, per class of engines.
                spent += sum(_number(text) for name, text in values.items() if name.startswith("drm-cycles-"))
                self.engines[key] = max(self.engines.get(key, 0), spent)
            resident += sum(_number(text) for name, text in values.items() if name.startswith("drm-resident-"))
        self.resident = max(self.resident, resident)


class Maps:
    """Which files the family of processes has mapped: libraries above all.

    Seen by looking again and again, whenever the size of a process's address space has changed: what somebody maps and
    lets go between two looks stays unseen.
    """

    def __init__(self) -> None:
        self.files: dict[str, bool] = {}  # path to whether it was mapped as code
        self._sizes: dict[int, str] = {}
        self._next = 0.0
        self._text = 0
        self._left = 0

    def look(self, family: list[int], *, now: bool = False) -> None:
        """Read the maps of those whose address space has changed since the last look; ``now``, however short ago."""
        began = time.monotonic()
        if began < self._next and not now:
            return
        sizes = {pid: self._sizes[pid] for pid in family if pid in self._sizes}
        self._left = _LINES
        # Who had no turn at the last look has it now.
        for pid in sorted(family, key=self._sizes.__contains__):
            if not self._left:
                break
            with contextlib.suppress(OSError, IndexError):
                with open(f"/proc/{pid}/statm", encoding="ascii") as file:  # noqa: PTH123 - many of them
                    sizes[pid] = file.read().split()[0]
                if self._sizes.get(pid) != sizes[pid]:
                    self._read(pid)
        self._sizes = sizes
        ended = time.monotonic()
        self._next = ended + (ended - began) * _MAPS_SHARE

    def _read(self, pid: int) -> None:
        with open(f"/proc/{pid}/maps", "rb") as file:  # noqa: PTH123 - many of them
            for line in itertools.islice(file, self._left):
                self._left -= 1
                # ADDRESSES MODE OFFSET DEVICE INODE PATH
                fields = line.rstrip(b"\n").split(None, 5)
                if len(fields) == 6 and fields[4] != b"0":  # noqa: PLR2004 - so many are in a line with a path
                    self._note(fields[5], code=b"x" in fields[1])

    def _note(self, raw: bytes, *, code: bool) -> None:
        # The kernel writes a line break in a name as \012; such a name is nobody's library.
        if raw.endswith(b" (deleted)") or b"\\" in raw:
            return
        try:
            path = raw.decode("utf-8")
        except UnicodeDecodeError:
            return
        if path in self.files:
            self.files[path] = self.files[path] or code
        elif path.startswith("/") and not path.startswith(_NO_FILES):
            text = len(json.dumps(path)) + 2
            # Data may be anything, and many: it must not take the place of libraries.
            share = 1 if code else 4
            if len(self.files) < _MAPPED // share and self._text + text <= _MAPPED_TEXT // share:
                self.files[path] = code
                self._text += text

    def report(self) -> dict[str, list[str]]:
        """Give the paths: mapped as code, and only as data."""
        return {
            "mapped": sorted(path for path, code in self.files.items() if code),
            "mapped_data": sorted(path for path, code in self.files.items() if not code),
        }


def _number(text: str) -> int:
    words = text.split()
    if not words or not words[0].isdigit():
        return 0
    return int(words[0]) * {"KiB": 1 << 10, "MiB": 1 << 20}.get(words[1] if len(words) > 1 else "", 1)


def _drm(family: list[int]) -> Iterator[str]:
    """Give the descriptions of open graphics devices, of what so many descriptors of these processes lead to."""
    left = _OPEN
    for pid in family:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as numbers:
            for one in itertools.islice(numbers, left):
                left -= 1
                with contextlib.suppress(OSError, UnicodeDecodeError):
                    if os.readlink(one.path).startswith("/dev/dri/"):  # noqa: PTH115 - many of them
                        with open(f"/proc/{pid}/fdinfo/{one.name}", encoding="ascii") as file:  # noqa: PTH123 - many of them
                            yield file.read(1 << 16)


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:  # noqa: PTH123 - many of them
            pages = file.read().split()
    except OSError:
        return 0
    # What is shared with others, libraries above all, is counted once too often rather than not at all.
    return (int(pages[1]) - int(pages[2])) * resource.getpagesize() if pages else 0


def _machine() -> tuple[int, int]:
    with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123 - often
        lines = dict(line.split(":", 1) for line in file)
    return _number(lines["MemTotal"].replace("kB", "KiB")), _number(lines["MemAvailable"].replace("kB", "KiB"))


def _free(scratch: str) -> tuple[int, int]:
    try:
        answer = os.statvfs(scratch)
    except OSError:
        return 1, 1
    return answer.f_bavail * answer.f_frsize, answer.f_blocks * answer.f_frsize


def _written(scratch: str) -> int:
    size = count = 0
    places = [scratch]
    while places and count < _FILES:
        with contextlib.suppress(OSError), os.scandir(places.pop()) as entries:
            for entry in itertools.islice(entries, _FILES - count):
                count += 1
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        places.append(entry.path)
                    else:
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
    return size


def family() -> list[int]:
    """Give all living descendants of this process."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - many of them
                # Its name may have blanks and brackets: what comes after the last one is plain.
                state, parent = file.read().rpartition(b")")[2].split()[:2]
            if state != b"Z":
                children.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    ahead = [os.getpid()]
    while ahead:
        mine = children.get(ahead.pop(), [])
        found += mine
        ahead += mine
    return found


def _tell(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _reap(main: int) -> tuple[int | None, bool]:
    """Take leave of whoever has ended; give the status of the main child if it was among them, and if nobody is left.

    Whose parent has gone becomes a child of this process: so who has no child has no family.
    """
    status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, ended = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return status, False
            if pid == main:
                status = os.waitstatus_to_exitcode(ended)
    return status, True


def _end(main: int) -> tuple[int | None, list[int]]:
    """End everybody; give the main child's status if it ended meanwhile, and who could not be ended."""
    status = None
    deadline = time.monotonic() + _END
    while True:
        left: list[int] = []
        # There may be no descriptor to be had just now: they are asked for again.
        with contextlib.suppress(OSError):
            left = family()
            # Whoever is stopped cannot fork while the others are told.
            _tell(left, signal.SIGSTOP)
            _tell(left, signal.SIGKILL)
        ended, alone = _reap(main)
        status = ended if ended is not None else status
        if alone or time.monotonic() > deadline:
            return status, [] if alone else left
        # Who forks and ends at once is another one whenever all are looked at; our own children are told at once.
        for _ in range(_HASTE if not left else 0):
            _tell(_children(), signal.SIGKILL)
        time.sleep(0.005)


def _children() -> list[int]:
    with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:  # noqa: PTH123
        return [int(pid) for pid in file.read().split()]
    return []


class Terminations:
    """Hears SIGTERM, and passes it on: systemd sends it to everybody, somebody else to this process alone."""

    def __init__(self) -> None:
        self.heard = False
        signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, *_: object) -> None:
        # Once: a child that sends it back to its parent must not keep both busy.
        if not self.heard:
            self.heard = True
            _tell(family(), signal.SIGTERM)


def _attend(child: int, orders: int, watch: Watch, maps: Maps) -> tuple[int | None, tuple[str, str] | None]:
    """Watch until the main child ends or everybody must; give its status, and why it had to end."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll = select.poll()
    poll.register(orders, select.POLLIN)
    poll.register(wake, select.POLLIN)
    paused = False
    while True:
        # It may have ended before we listened, so first of all it is looked for.
        status, _ = _reap(child)
        if status is not None:
            return status, None
        for descriptor, _ in poll.poll(_TICK * 1000):
            if descriptor == wake:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
            elif (order := os.read(orders, 1)) == b"l":
                maps.look(family(), now=True)
            elif (number := _ORDERS.get(order)) is not None:
                paused = number == signal.SIGSTOP
                _tell(family(), number)
            else:
                return None, None
        alive = family()
        if paused:
            # Also who was forked while the others were told.
            _tell(alive, signal.SIGSTOP)
        maps.look(alive)
        exceeded = watch.exceeded(alive)
        if exceeded is not None:
            return None, exceeded


def main() -> int:
    """Start the command, watch it, end what it leaves, and tell."""
    parser = argparse.ArgumentParser(prog="supervisor")
    parser.add_argument("--orders", type=int, required=True)
    parser.add_argument("--report", type=int, required=True)
    parser.add_argument(
        "--pass", type=int, action="append", default=[], dest="passed", help="a descriptor for the child"
    )
    parser.add_argument("--memory", type=int, required=True, help="bytes that all may take together")
    parser.add_argument("--disk", type=int, required=True, help="bytes in the temporary directory, and in any one file")
    parser.add_argument("--scratch", required=True, help="the temporary directory")
    parser.add_argument("--directory", required=True)
    parser.add_argument(
        "--environment", type=int, required=True, help="a descriptor with the child's variables, as JSON"
    )
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
    terminations = Terminations()

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        most = given.disk if hard == resource.RLIM_INFINITY else min(given.disk, hard)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    # Not in our own environment: what steers the model's loader and interpreter is not for us.
    with open(given.environment, encoding="utf-8") as file:  # noqa: PTH123 - it is no path
        variables = json.load(file)

    watch, maps = Watch(given.memory, given.disk, given.scratch), Maps()
    began = time.monotonic()
    try:
        child = subprocess.Popen(  # noqa: S603 - the command is the model's, registered by who may run it
            given.command,
            cwd=given.directory,
            env=variables,
            pass_fds=given.passed,
            start_new_session=True,
            preexec_fn=limit,  # noqa: PLW1509 - there are no threads here
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        _say(given.report, {"error": f"{given.command[0]} could not be started: {error}"})
        return 1
    # The child has its own; what stays open here would keep its readers waiting.
    for descriptor in (0, 1, 2, *given.passed):
        os.close(descriptor)
    try:
        status, exceeded = _attend(child.pid, given.orders, watch, maps)
    except Exception as error:  # noqa: BLE001 - nobody else ends the family
        status, exceeded = None, ("failed", f"its supervisor could not go on: {error!r}")
    seconds = time.monotonic() - began
    with contextlib.suppress(OSError, ValueError):
        # Not what limits it, only what it did.
        watch.engine_times(family())
        maps.look(family())
    late, left = _end(child.pid)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    _say(
        given.report,
        {
            "status": status if status is not None else late,
            "outcome": exceeded[0] if exceeded else "",
            "detail": exceeded[1] if exceeded else "",
            "seconds": seconds,
            "cpu": usage.ru_utime + usage.ru_stime,
            "peak": max(watch.peak, usage.ru_maxrss * 1024),
            "left": left,
            "terminated": terminations.heard,
            "engines": [[device, spent] for (device, _), spent in watch.engines.items()],
            "resident": watch.resident,
            **maps.report(),
        },
    )
    return 0


def _say(descriptor: int, report: dict[str, object]) -> None:
    view = memoryview(json.dumps(report).encode() + b"\n")
    while view:
        view = view[os.write(descriptor, view) :]


if __name__ == "__main__":
    sys.exit(main())
