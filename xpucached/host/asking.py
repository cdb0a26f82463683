"""Act: start the probe in fresh children and turn whatever happens to them into a report."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached.domain import Environment, ProbeReport, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

log = logging.getLogger(__name__)

PROBE: Final = Path(__file__).resolve().parent.parent / "probe.py"
BACKENDS: Final = ("opencl", "level-zero")

_LONGEST_ANSWER = 1 << 20
_LONGEST_COMPLAINT = 2000  # characters of stderr that go into a problem
_MOST_ENVIRONMENTS = 256
_MOST_PROBLEMS = 64
_LONGEST_TEXT = 1024
_CODE = re.compile(r"[a-z][a-z0-9-]{0,39}")
_STEP = 0.1  # seconds between two looks at a child whose descriptors are silent
_SHORT_STEP = 0.005  # the same, once they are closed: it is about to end


def ask(
    variables: Mapping[str, str],
    timeout: float = 60.0,
    *,
    probe: Path = PROBE,
    backends: Sequence[str] = BACKENDS,
    command: Sequence[str] = (),
) -> ProbeReport:
    """Ask the drivers who they are, as programs with these variables would meet them.

    ``command`` is what the children's command begins with: a dynamic loader, for a driver that needs its own.

    Blocks for at most ``timeout`` seconds per backend.  Each backend has a child of its own, so that one that crashes
    does not hide the other.  Never raises for what a driver does: a crash, silence or nonsense is a problem.
    """
    asked = [(backend, ("--backend", backend)) for backend in backends]
    reports = [
        _ask_one(who, question, variables, timeout, (*command, *python(command), probe)) for who, question in asked
    ]
    environments = dict.fromkeys(one for report in reports for one in report.environments)
    problems = dict.fromkeys(one for report in reports for one in report.problems)
    return ProbeReport(tuple(environments), tuple(problems))


def ask_runtime(
    folder: Path, variables: Mapping[str, str], timeout: float = 60.0, *, command: Sequence[str] = ()
) -> ProbeReport:
    """Ask the SYCL runtime whose libraries lie in a folder which devices its programs meet; otherwise as `ask`."""
    places = [os.fspath(folder), *filter(None, [variables.get("LD_LIBRARY_PATH")])]
    theirs = {**variables, "LD_LIBRARY_PATH": ":".join(places)}
    before = (*beside(command, folder), *python(command))
    question = ("--backend", "runtime", "--folder", os.fspath(folder))
    return _ask_one("SYCL runtime's", question, theirs, timeout, (*before, PROBE))


def beside(command: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Let a loader that is named find a folder's libraries, too: it takes its path from its arguments."""
    if "--library-path" not in command:
        return tuple(command)
    place = command.index("--library-path") + 1
    return (*command[:place], f"{command[place]}:{folder}", *command[place + 1 :])


def python(command: Sequence[str]) -> tuple[str, ...]:
    """Give this Python, for a child; a loader that is named takes no link and starts no script."""
    interpreter = os.path.realpath(sys.executable) if command else sys.executable
    # Isolated and without site: nothing that the variables or the place say to Python changes what runs.
    return (interpreter, "-I", "-S", "-B")


def _ask_one(
    backend: str, question: Sequence[str], variables: Mapping[str, str], timeout: float, program: Sequence[str | Path]
) -> ProbeReport:
    reading, writing = os.pipe()
    try:
        command = [*map(str, program), *question, "--fd", str(writing)]
        child = subprocess.Popen(  # noqa: S603 - our own file
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env={**os.environ, **variables},
            pass_fds=(writing,),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        os.close(reading)
        return _failed(backend, "probe-failed", f"cannot be started: {error}", "")
    finally:
        os.close(writing)
    with child.stdout or io.BytesIO() as complaints:  # it is a pipe, as asked for
        try:
            ears = _Ears(reading, complaints.fileno())
            ended = _listen(child, ears, time.monotonic() + timeout)
        finally:
            os.close(reading)
            # Whatever the driver left running goes too.  The leader is not reaped yet, so the group is still ours.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    said = " ".join(ears.complaint.decode("utf-8", "replace").split())[-_LONGEST_COMPLAINT:]
    if not ended:
        return _failed(backend, "probe-timed-out", f"did not answer within {timeout:g} s", said)
    if len(ears.answer) > _LONGEST_ANSWER:
        return _failed(backend, "probe-garbled", f"answered more than {_LONGEST_ANSWER} bytes", said)
    if child.returncode != 0:
        return _failed(backend, "probe-crashed", _ending(child.returncode), said)
    report = _read(bytes(ears.answer))
    if report is None:
        return _failed(backend, "probe-garbled", "gave an answer that cannot be read", said)
    return report


class _Ears:
    """What a child says: its answer on one descriptor, its complaints on another."""

    def __init__(self, answering: int, complaining: int) -> None:
        self.answering = answering
        self.open = {answering, complaining}
        self.answer = bytearray()
        self.complaint = bytearray()

    def hear(self, patience: float) -> bool:
        """Wait for something to be said, and take it; False if nothing was."""
        if not self.open:
            return False
        poll = select.poll()
        for descriptor in self.open:
            poll.register(descriptor, select.POLLIN)
        ready = poll.poll(patience * 1000)
        for descriptor, _ in ready:
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                self.open.remove(descriptor)
            elif descriptor == self.answering:
                self.answer += piece
            else:
                self.complaint = (self.complaint + piece)[-4 * _LONGEST_COMPLAINT :]
        return bool(ready)


def _listen(child: subprocess.Popen[bytes], ears: _Ears, deadline: float) -> bool:
    """Hear a child until it has ended, says too much, or its time is up; False if it was still alive then."""
    while True:
        ended = _ended(child)
        left = deadline - time.monotonic()
        # The time is up even for one that has ended: something that it left behind could talk for ever.
        if left <= 0 or len(ears.answer) > _LONGEST_ANSWER:
            return ended or left > 0
        heard = ears.hear(0 if ended else min(_STEP, left))
        if ended and not heard:
            return True
        if not ears.open and not ended:
            time.sleep(_SHORT_STEP)


def _ended(child: subprocess.Popen[bytes]) -> bool:
    """Tell whether the child has ended, and leave it unreaped: its number must stay taken until its group is gone."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _ending(status: int) -> str:
    """Say how a child ended."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def _failed(backend: str, code: str, what: str, said: str) -> ProbeReport:
    log.info("probe failed: %s: %s", backend, what)
    message = f"the question to the {backend} drivers {what}: their devices are not seen"
    return ProbeReport(problems=(Problem(code, f"{message}; it said: {said}" if said else message),))


# -- the answer, which is not ours --------------------------------------------------------------------------------


def _read(answer: bytes) -> ProbeReport | None:
    """Turn an answer into a report; None unless it is exactly what a probe gives."""
    try:
        parsed: object = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict) or set(parsed) != {"environments", "problems"}:
        return None
    environments = _rows(parsed["environments"], 4, _MOST_ENVIRONMENTS)
    problems = _rows(parsed["problems"], 3, _MOST_PROBLEMS)
    if environments is None or problems is None or not all(_CODE.fullmatch(row[0]) for row in problems):
        return None
    return ProbeReport(
        tuple(Environment(row[0], row[1], row[2], row[3]) for row in environments),
        tuple(Problem(row[0], row[1], row[2]) for row in problems),
    )


def _rows(value: object, width: int, most: int) -> Sequence[Sequence[str]] | None:
    """Check a list of rows of texts; None if it is anything else."""
    if not isinstance(value, list) or len(value) > most:
        return None
    rows: list[list[str]] = []
    for row in value:
        if not isinstance(row, list) or len(row) != width:
            return None
        texts = [text for text in row if isinstance(text, str) and len(text) <= _LONGEST_TEXT and "\0" not in text]
        if len(texts) != width:
            return None
        rows.append(texts)
    return rows
