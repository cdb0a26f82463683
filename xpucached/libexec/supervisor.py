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

import contextlib
import ctypes
import getopt  # argparse takes ten times as long to load
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from xpucached.libexec.process_tree import Maps, ProcessTreeUse, descendants, process_tree
else:
    # It is started by its path, isolated: what else it is made of lies beside it, and nothing else is found there.
    sys.modules["xpucached_libexec"] = _package = ModuleType("xpucached_libexec")
    _package.__path__ = [os.path.dirname(os.path.realpath(__file__))]  # noqa: PTH120 - without pathlib it starts faster
    from xpucached_libexec.process_tree import Maps, ProcessTreeUse, descendants, process_tree

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_TICK = 0.05
_ORDERS = {b"t": signal.SIGTERM, b"p": signal.SIGSTOP, b"c": signal.SIGCONT}
_OPTIONS = (
    *("orders=", "report="),
    "pass=",  # a descriptor for the command
    "memory=",  # bytes that all may take together
    *("disk=", "file="),  # bytes in the temporary directory, and in any one file
    *("scratch=", "directory="),  # the temporary directory; where the command starts
    "environment=",  # a descriptor: the command's variables, as JSON
)
_END = 10.0  # so long it tries to end everybody
_HASTE = 200  # times in a row that whoever forks faster than we look is told to end


def _tell(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _reap(main: int) -> tuple[int | None, bool]:
    """Take leave of whoever has ended; give the status of the main child if it was among them, and if nobody is left.

    Whose parent has gone becomes a child of this process: so who has no child has no process tree.
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
            left = process_tree()
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


class SigtermForwarder:
    """Hears SIGTERM, and passes it on: systemd sends it to everybody, somebody else to this process alone."""

    def __init__(self) -> None:
        self.received = False
        signal.signal(signal.SIGTERM, self._forward)

    def _forward(self, *_: object) -> None:
        # Once: a child that sends it back to its parent must not keep both busy.
        if not self.received:
            self.received = True
            _tell(process_tree(), signal.SIGTERM)


def _attend(child: int, orders: int, watch: ProcessTreeUse, maps: Maps) -> tuple[int | None, tuple[str, str] | None]:
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
                maps.look(process_tree(), now=True)
            elif (number := _ORDERS.get(order)) is not None:
                paused = number == signal.SIGSTOP
                _tell(process_tree(), number)
            else:
                return None, None
        # To look at all processes of the host twenty times a second takes a part of a processor from the model.
        alive = process_tree() if paused else descendants()
        if paused:
            # Also who was forked while the others were told.
            _tell(alive, signal.SIGSTOP)
        maps.look(alive)
        exceeded = watch.exceeded(alive)
        if exceeded is not None:
            return None, exceeded


def main() -> int:
    """Start the command, watch it, end what it leaves, and tell."""
    words, command = getopt.getopt(sys.argv[1:], "", _OPTIONS)
    given = dict(words)
    disk, report = int(given["--disk"]), int(given["--report"])
    # A daemon that goes on after an upgrade of the package says nothing of it.
    file_size = int(given.get("--file", disk))
    passed = [int(value) for option, value in words if option == "--pass"]
    prctl, ours = ctypes.CDLL(None, use_errno=True).prctl, os.getpid()
    prctl(_SUBREAPER, 1, 0, 0, 0)
    sigterm = SigtermForwarder()

    def limit() -> None:
        # Its directory, or its program, may lie where nobody answers for long: then this process was ended meanwhile,
        # and nobody would watch it.
        prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != ours:
            os._exit(1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        most = file_size if hard == resource.RLIM_INFINITY else min(file_size, hard)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    # Not in our own environment: what steers the model's loader and interpreter is not for us.
    with open(int(given["--environment"]), encoding="utf-8") as file:  # noqa: PTH123 - it is no path
        variables = json.load(file)

    watch, maps = ProcessTreeUse(int(given["--memory"]), disk, given["--scratch"]), Maps()
    began = time.monotonic()
    try:
        child = subprocess.Popen(  # noqa: S603 - the command is the model's, registered by who may run it
            command,
            cwd=given["--directory"],
            env=variables,
            pass_fds=passed,
            start_new_session=True,
            preexec_fn=limit,  # noqa: PLW1509 - there are no threads here
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        _say(report, {"error": f"{command[0]} could not be started: {error}"})
        return 1
    # The child has its own; what stays open here would keep its readers waiting.
    for descriptor in (0, 1, 2, *passed):
        os.close(descriptor)
    try:
        status, exceeded = _attend(child.pid, int(given["--orders"]), watch, maps)
    except Exception as error:  # noqa: BLE001 - nobody else ends the process tree
        status, exceeded = None, ("failed", f"its supervisor could not go on: {error!r}")
    seconds = time.monotonic() - began
    with contextlib.suppress(OSError, ValueError):
        # Not what limits it, only what it did.
        watch.engine_times(process_tree())
        maps.look(process_tree())
    late, left = _end(child.pid)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    _say(
        report,
        {
            "status": status if status is not None else late,
            "outcome": exceeded[0] if exceeded else "",
            "detail": exceeded[1] if exceeded else "",
            "seconds": seconds,
            "cpu": usage.ru_utime + usage.ru_stime,
            "peak": max(watch.peak, usage.ru_maxrss * 1024),
            "left": left,
            "terminated": sigterm.received,
            "engines": [[device, spent] for (device, _), spent in watch.graphics.worked.items()],
            "graphics": watch.graphics.report(),
            **maps.report(),
            "interpreters": maps.interpreters.report(),
            "bounds": maps.interpreters.bounds(),
            "places": maps.interpreters.places(),
        },
    )
    return 0


def _say(descriptor: int, report: dict[str, object]) -> None:
    view = memoryview(json.dumps(report).encode() + b"\n")
    while view:
        view = view[os.write(descriptor, view) :]
    # A look at its files that is under way may keep this process from its end.
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
