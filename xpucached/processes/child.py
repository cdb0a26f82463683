"""Start programs: the one way for everything that this package starts.  Touches processes.

Each has a session of its own, starts in ``/``, inherits no descriptor that is not named, reads nothing, and gets
variables that are built from nothing: `environment`.  `run` asks one question: it has a deadline, reads what it is
told with bounds, and ends all that is left of the group.  `start` is for those that are talked with, by `Pipes`;
whoever starts one calls `end`, save for those that end by themselves (`guarded`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final, Self

from xpucached import mounts
from xpucached.processes import polling

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

Process = subprocess.Popen[bytes]

NOTHING: Final = subprocess.DEVNULL
PIPE: Final = subprocess.PIPE

_INHERITED: Final = re.compile(
    # Who and where the user is, the language, the way to the network …
    r"PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|XDG_(?:CACHE|CONFIG|DATA|STATE|RUNTIME)_(?:HOME|DIR)"
    r"|(?i:http|https|all|no)_(?i:proxy)"
    # … and what leads to a driver, its compiler and its runtime, or steers them.
    r"|LD_LIBRARY_PATH|(?:SYCL|ONEAPI|OCL|OPENCL|ZE|ZES|ZET|ZEL|UR|IGC|CL_CONFIG|XPU)_\w+|NEO\w*"
)
"""The variables of ours that a child gets.  None of them makes a program run further code, save the drivers' own."""

_SYSTEM: Final = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")

_LARGEST: Final = 1 << 20
_MOST: Final = 64 << 20
"""Who prints more than that while it is asked a question has something else in mind."""
_TAIL: Final = 16 << 10
_STEP: Final = 0.1  # seconds between two looks at a child whose descriptors are silent
_SHORT_STEP: Final = 0.005  # the same, once they are closed: it is about to end
_REAPED: Final = 10.0
"""So long a child that was killed may take to go; one that hangs in a driver may never."""

_left: list[Process] = []
_leaving = threading.Lock()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended that was asked one question, and what it said."""

    status: int | None  #: exit status, or the negative number of a signal; None: it was not over in time
    output: bytes = b""  #: the answer, where it was given a descriptor for that, else what it printed on stdout
    complaint: bytes = b""  #: the end of what else it printed
    endless: bool = False  #: it was ended because it said too much

    @property
    def words(self) -> str:
        """Return how it ended."""
        if self.endless:
            return "printed without end"
        if self.status is None:
            return "did not end in time"
        return f"was ended by {signal_name(-self.status)}" if self.status < 0 else f"ended with status {self.status}"


class Pipes:
    """What a child gets besides stdin, stdout and stderr, and our ends of it; all is closed with it."""

    def __init__(self) -> None:
        self._ours: list[int] = []
        self._theirs: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def theirs(self) -> tuple[int, ...]:
        """The descriptors that the child gets."""
        return tuple(self._theirs)

    def from_child(self) -> tuple[int, int]:
        """Make a pipe that the child writes to; give our end, and the child's.  Raise OSError."""
        ours, theirs = os.pipe()
        return self._keep(ours, theirs)

    def to_child(self) -> tuple[int, int]:
        """Make a pipe that the child reads; give our end, and the child's.  Raise OSError."""
        theirs, ours = os.pipe()
        return self._keep(ours, theirs)

    def content(self, name: str, content: bytes) -> int:
        """Give the child a file that exists only in memory.  Raise OSError."""
        descriptor = os.memfd_create(name)
        self._theirs.append(descriptor)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor

    def hand_over(self) -> None:
        """Close the child's ends, which it has got, or never will."""
        _close(self._theirs)

    def close(self) -> None:
        """Close what is open."""
        _close(self._theirs)
        _close(self._ours)

    def _keep(self, ours: int, theirs: int) -> tuple[int, int]:
        self._ours.append(ours)
        self._theirs.append(theirs)
        return ours, theirs


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def environment(variables: Mapping[str, str], *, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables for a child: of ours those that drivers and people need, and above them ``variables``."""
    inherited = os.environ if base is None else base
    return {**{name: text for name, text in inherited.items() if _INHERITED.fullmatch(name)}, **variables}


def search_path(environ: Mapping[str, str]) -> str:
    """Return where the host's own tools are looked for: what is absolute in ``PATH``, and the system's places."""
    places = [part for part in environ.get("PATH", "").split(":") if part.startswith("/")]
    return ":".join(dict.fromkeys((*places, *_SYSTEM)))


def python(file: Path, loader: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the words that start a file of ours, which needs only the standard library, with this Python.

    It is isolated, and without site: nothing that variables, the working directory or an installed package say to
    Python changes what runs.  ``loader`` is a dynamic loader that the command begins with; it takes no link.
    """
    interpreter = mounts.real(sys.executable) if loader else sys.executable
    return (*loader, interpreter, "-I", "-S", "-B", os.fspath(file))


def module(name: str) -> tuple[str, ...]:
    """Return the words that start a module of ours that needs the libraries which we are installed with."""
    return (sys.executable, "-I", "-B", "-m", name)


def start(
    command: Sequence[str],
    *,
    variables: Mapping[str, str],
    directory: str | os.PathLike[str] = "/",
    stdin: int = NOTHING,
    stdout: int = NOTHING,
    stderr: int = NOTHING,
    pipes: Pipes | None = None,
    shared: Sequence[int] = (),
) -> Process:
    """Start a program.  Raise OSError, or ValueError for words that no program can be given.

    It gets its ends of ``pipes``, which are closed here then: it alone has them; ``shared`` stay open here, too.
    """
    _reap()
    pipes = pipes or Pipes()
    try:
        return subprocess.Popen(  # noqa: S603 - the callers say what: it is no shell's line anywhere
            list(command),
            cwd=directory,
            env=dict(variables),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            close_fds=True,
            pass_fds=[descriptor for descriptor in (*pipes.theirs, *shared) if descriptor != stdin],
            start_new_session=True,
        )
    finally:
        pipes.hand_over()


def end(child: Process) -> int | None:
    """Kill a child and its group, if they are still there; return its status, or None if it cannot be ended."""
    if child.returncode is None:
        # It is not reaped yet, so the number is its own.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            child.kill()
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    status = wait(child, _REAPED)
    if status is None:
        log.warning("a process was killed and does not end, the kernel may hold it: %d", child.pid)
        with _leaving:
            _left.append(child)
    return status


def wait(child: Process, seconds: float) -> int | None:
    """Wait for the end of a child; return its status, or None if it did not end meanwhile."""
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def run(
    command: Sequence[str],
    *,
    variables: Mapping[str, str],
    seconds: float,
    directory: str | os.PathLike[str] = "/",
    answering: str = "",
    largest: int = _LARGEST,
    stdin: bytes = b"",
) -> Ended:
    """Start a program, hear what it says until it ends, and end it if it takes too long or says too much.

    ``answering`` is the option by which it is told on which descriptor to answer; then stdout counts as stderr.
    ``stdin`` is what it reads there.  Of the answer, or else of stdout, ``largest`` bytes are taken, of stderr the
    end.  Raise OSError, or ValueError for words that cannot be given.
    """
    deadline = time.monotonic() + seconds
    words = list(command)
    with Pipes() as pipes:
        answers = -1
        if answering:
            answers, theirs = pipes.from_child()
            words += [answering, str(theirs)]
        given = pipes.content("stdin", stdin) if stdin else NOTHING
        child = start(
            words, variables=variables, directory=directory, stdin=given, stdout=PIPE, stderr=PIPE, pipes=pipes
        )
        reader = _ChildReader(child, answers, largest)
        try:
            in_time = reader.listen(deadline)
        finally:
            status = end(child)
    return Ended(
        status if in_time and not reader.endless else None,
        bytes(reader.output),
        bytes(reader.complaint),
        reader.endless,
    )


class _ChildReader:
    """What a child says: its output, its complaints, its answer."""

    def __init__(self, child: Process, answering: int, largest: int) -> None:
        self._child = child
        self._largest = largest
        # Who answers elsewhere only complains on stdout.
        self._output = answering if answering >= 0 else _number(child.stdout)
        self._open = {self._output, _number(child.stdout), _number(child.stderr)}
        self._total = 0
        self.output = bytearray()
        self.complaint = bytearray()
        self.endless = False

    def listen(self, deadline: float) -> bool:
        """Hear the child until it has ended, says too much, or its time is up; False if it was still alive then."""
        while True:
            ended = over(self._child)
            left = deadline - time.monotonic()
            # The time is up even for one that has ended: something that it left behind could talk for ever.
            if left <= 0 or self.endless:
                return ended
            came = self._read(0 if ended else min(_STEP, left))
            if ended and not came:
                return True
            if not self._open and not ended:
                time.sleep(_SHORT_STEP)

    def _read(self, patience: float) -> bool:
        """Wait for something to be said, and take it; False if nothing was."""
        if not self._open:
            return False
        ready = polling.readable(*self._open, seconds=patience)
        for descriptor in ready:
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                self._open.remove(descriptor)
            elif descriptor == self._output:
                self.output += piece
            else:
                self.complaint += piece
                del self.complaint[:-_TAIL]
            self._total += len(piece)
        self.endless = self._total > _MOST or len(self.output) > self._largest
        return bool(ready)


def _number(stream: IO[bytes] | None) -> int:
    if stream is None:
        message = "it has no pipe"
        raise ValueError(message)
    return stream.fileno()


def over(child: Process) -> bool:
    """Return whether a child has ended, and leave it unreaped: its number must stay taken until its group is gone."""
    if child.returncode is not None:
        return True
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def signal_name(number: int) -> str:
    """Name a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _reap() -> None:
    """Take leave of those that did not end when they were killed, and have since."""
    with _leaving:
        _left[:] = [child for child in _left if child.poll() is None]
