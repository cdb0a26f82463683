"""The daemon and ``xpucachectl``, forked from a process that has loaded them already.

Loading is most of what a start costs: a second for the daemon, a third of one for a command, and a flow makes dozens.
What is forked is a process of its own with its own environment, directory and output, and runs the same ``main``.  What
it cannot show is how it is started: its ``/proc/PID/cmdline`` and ``environ`` are those of the process that loaded it.

``python -m tests.support.forks`` is that process.  It gets requests from its standard input, a socket, and
ends with it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

from tests import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


DAEMON: Final = "xpucached.daemon.main"
CTL: Final = "xpucached.cli"

_LOADED: Final = (
    *(DAEMON, "xpucached.daemon.user_daemon", CTL, "xpucached.cli.program", "xpucached.cli.commands"),
    *("xpucached.cli.quick", "xpucached.cli.running", "xpucached.cli.setup", "xpucached.cli.dry_imports"),
    *("apscheduler.triggers.interval", "apscheduler.executors.asyncio"),
)
"""The programs, and what they load when they know what is asked."""

_AT_START: Final = ("FAULTS_", "GLIBC_", "LANG", "LC_", "LD_", "MALLOC_", "PYTHON", "TZ")
"""Variables that a program reads before its ``main``: each set of them has a process of its own to fork from."""

_LARGEST: Final = 1 << 17
_PACKED: Final = struct.Struct("=i")

REMEMBERED: Final[list[str]] = []
"""Where the runtimes lie, which no test changes, and where the digests of their files are kept; nothing: nowhere."""

LOADED: Final[dict[tuple[tuple[str, str], ...], _Loaded]] = {}
"""The processes to fork from."""


class _Asked(TypedDict):
    """What is to be forked."""

    program: str
    arguments: list[str]
    environment: dict[str, str]
    directory: str


class Forked:
    """A process that was forked, as `subprocess.Popen` shows those that were started."""

    def __init__(self, report: socket.socket) -> None:
        self.returncode: int | None = None
        self._report = report
        (self.pid,) = _PACKED.unpack(report.recv(_PACKED.size, socket.MSG_WAITALL))

    def poll(self) -> int | None:
        """Return the exit status if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and give the exit status."""
        if self.returncode is None:
            if not select.select([self._report], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            told = self._report.recv(_PACKED.size, socket.MSG_WAITALL)
            self._report.close()
            (status,) = _PACKED.unpack(told)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            # It may end just now, and then its parent has taken leave of it before it tells.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A process to fork from."""

    process: subprocess.Popen[bytes]
    control: socket.socket

    def end(self) -> None:
        self.control.close()
        self.process.wait()


def copy(work: Callable[[], object]) -> int:
    """Do something in a copy of this process, and return its pid.  It ends then, with 1 if that failed."""
    pid = os.fork()
    if pid:
        return pid
    # A copy that came back would run the tests as well, and answer for them.
    try:
        work()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - whatever it is
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(1)


def kill(pid: int) -> bool:
    """Kill such a copy, and return whether it had ended before.  Raises AssertionError if it had failed."""
    os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in {0, -signal.SIGKILL}, f"the copy ended with {status}"
    return status == 0


def pids() -> set[int]:
    """Return the processes that stay from test to test."""
    return {one.process.pid for one in LOADED.values()}


def start(program: str, arguments: Sequence[str], environment: Mapping[str, str], stdout: int, stderr: int) -> Forked:
    """Fork a program, and let it run: a module, whose ``main`` reads ``sys.argv``."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    asked: _Asked = {
        "program": program,
        "arguments": list(arguments),
        "environment": dict(environment),
        "directory": str(Path.cwd()),
    }
    with theirs, Path(os.devnull).open("rb") as stdin:
        files = [theirs.fileno(), stdin.fileno(), stdout, stderr]
        socket.send_fds(_loaded(environment).control, [json.dumps(asked).encode()], files)
    return Forked(ours)


def run(
    program: str, arguments: Sequence[str], environment: Mapping[str, str], timeout: float | None
) -> subprocess.CompletedProcess[str]:
    """Fork a program, and wait for its end, as `subprocess.run` does with what it starts."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        child = start(program, arguments, environment, stdout.fileno(), stderr.fileno())
        try:
            status = child.wait(timeout)
        finally:
            child.kill()
            child.wait()
        printed = []
        for file in (stdout, stderr):
            file.seek(0)
            printed.append(file.read().decode())
    return subprocess.CompletedProcess([program, *arguments], status, *printed)


def forget(variables: Mapping[str, str]) -> None:
    """End what was loaded for programs with these variables."""
    theirs = set(_variables(variables))
    for one in [one for one in LOADED if theirs and theirs <= set(one)]:
        LOADED.pop(one).end()


def forget_all() -> None:
    """End all of them."""
    while LOADED:
        LOADED.popitem()[1].end()


def _variables(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in environment.items() if name.startswith(_AT_START)))


def _loaded(environment: Mapping[str, str]) -> _Loaded:
    variables = _variables(environment)
    if variables not in LOADED:
        atexit.register(forget_all)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as unless_started, theirs:
            unless_started.enter_context(ours)
            process = subprocess.Popen(
                # Where calls are struck, they are those of the program alone.
                [sys.executable, "-m", "tests.support.forks", *(REMEMBERED if "FAULTS_" not in str(variables) else ())],
                env={"PATH": os.environ.get("PATH", os.defpath), **dict(variables)},
                cwd=REPOSITORY,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
            )
            unless_started.pop_all()
        LOADED[variables] = _Loaded(process, ours)
    return LOADED[variables]


def _serve() -> _Asked:
    """Fork for each request; give the request in the process that was forked for it."""
    control = socket.socket(fileno=0)
    children: dict[int, tuple[int, int]] = {}
    ready = select.poll()
    ready.register(control, select.POLLIN)
    while True:
        for descriptor, _ in ready.poll():
            if descriptor in children:
                pid, report = children.pop(descriptor)
                ready.unregister(descriptor)
                os.close(descriptor)
                with contextlib.suppress(BrokenPipeError):
                    os.write(report, _PACKED.pack(os.waitpid(pid, 0)[1]))
                os.close(report)
                continue
            text, files, _, _ = socket.recv_fds(control, _LARGEST, 4)
            if not text:
                # Not what Python has to tidy up: the children are whoever's who kills them.
                os._exit(0)
            pid = os.fork()
            if not pid:
                for number, file in enumerate(files[1:]):
                    os.dup2(file, number)
                control.detach()
                os.closerange(3, 1 << 16)
                asked: _Asked = json.loads(text)
                return asked
            for file in files[1:]:
                os.close(file)
            os.write(files[0], _PACKED.pack(pid))
            children[os.pidfd_open(pid)] = (pid, files[0])
            ready.register(next(reversed(children)), select.POLLIN)


def _remember(runtimes: str, place: Path) -> None:
    """Have the digests of the runtimes' files taken once for all tests: hundreds of megabytes for each proof.

    They are taken anew of a file that is another one, or was changed, as far as a kernel tells.
    """
    digests = importlib.import_module("xpucached.host.digests")
    take = digests.Reader.digest

    def digest(self: object, path: str) -> str:
        known = None
        if os.path.realpath(path).startswith(f"{runtimes}/"):
            status = Path(path).stat()
            facts = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            known = place / "-".join(map(str, facts))
            with contextlib.suppress(FileNotFoundError):
                return known.read_text("ascii")
        taken: str = take(self, path)
        if known is not None:
            part = known.with_name(f"{os.getpid()}-{threading.get_ident()}")
            with contextlib.suppress(OSError):
                part.write_text(taken, "ascii")
                part.rename(known)
        return taken

    digests.Reader.digest = digest


def main() -> int:
    """Load the programs, fork them, and be them."""
    for module in _LOADED:
        importlib.import_module(module)
    if len(sys.argv) > 1:
        _remember(sys.argv[1], Path(sys.argv[2]))
    # And what each of them would make for itself: the commands that there are, the keys, and questions to a catalog.
    importlib.import_module("xpucached.cli.arguments").parse(["scan"])
    importlib.import_module("xpucached.settings.keys").keys()
    importlib.import_module("xpucached.catalog.soundness")._questions()
    gc.collect()
    gc.freeze()
    asked = _serve()
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["directory"])
    sys.argv = [asked["program"], *asked["arguments"]]
    status: int = importlib.import_module(asked["program"]).main()
    if asked["program"] != DAEMON:
        # It has nothing to end, and letting go of all that was loaded would take longer than all that it did.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
