"""Act: start the probe in fresh children and turn whatever happens to them into a report."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import messages
from xpucached.domain.host import DriverAnswer, ProbeReport, Problem
from xpucached.processes import child

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

log = logging.getLogger(__name__)

PROBE: Final = Path(__file__).resolve().parent.parent / "libexec" / "driver_probe.py"
BACKENDS: Final = ("opencl", "level-zero")

_LONGEST_ANSWER = 1 << 20
_LONGEST_COMPLAINT = 2000  # characters of stderr that go into a problem
_MOST_ENVIRONMENTS = 256
_MOST_PROBLEMS = 64
_LONGEST_TEXT = 1024
_CODE = re.compile(r"[a-z][a-z0-9-]{0,39}")


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
    program = child.python(probe, command)
    reports = [_ask_one(who, question, variables, timeout, program) for who, question in asked]
    answers = dict.fromkeys(one for report in reports for one in report.answers)
    problems = dict.fromkeys(one for report in reports for one in report.problems)
    return ProbeReport(tuple(answers), tuple(problems))


def ask_runtime(
    folder: Path, variables: Mapping[str, str], timeout: float = 60.0, *, command: Sequence[str] = ()
) -> ProbeReport:
    """Ask the SYCL runtime whose libraries lie in a folder which devices its programs meet; otherwise as `ask`."""
    places = [os.fspath(folder), *filter(None, [variables.get("LD_LIBRARY_PATH")])]
    theirs = {**variables, "LD_LIBRARY_PATH": ":".join(places)}
    program = child.python(PROBE, beside(command, folder))
    question = ("--backend", "runtime", "--folder", os.fspath(folder))
    return _ask_one("SYCL runtime's", question, theirs, timeout, program)


def beside(command: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Let a loader that is named find a folder's libraries, too: it takes its path from its arguments."""
    if "--library-path" not in command:
        return tuple(command)
    place = command.index("--library-path") + 1
    return (*command[:place], f"{command[place]}:{folder}", *command[place + 1 :])


def _ask_one(
    backend: str, question: Sequence[str], variables: Mapping[str, str], timeout: float, program: Sequence[str]
) -> ProbeReport:
    try:
        done = child.run(
            [*program, *question],
            variables=child.environment(variables),
            seconds=timeout,
            answering="--fd",
            largest=_LONGEST_ANSWER,
        )
    except (OSError, ValueError) as error:
        return _failed(backend, "probe-failed", f"cannot be started: {error}", "")
    said = " ".join(done.complaint.decode("utf-8", "replace").split())[-_LONGEST_COMPLAINT:]
    if len(done.output) > _LONGEST_ANSWER:
        return _failed(backend, "probe-garbled", f"answered more than {_LONGEST_ANSWER} bytes", said)
    if done.endless:
        return _failed(backend, "probe-garbled", done.words, said)
    if done.status is None:
        return _failed(backend, "probe-timed-out", f"did not answer within {timeout:g} s", said)
    if done.status != 0:
        return _failed(backend, "probe-crashed", done.words, said)
    report = _read(done.output)
    if report is None:
        return _failed(backend, "probe-garbled", "gave an answer that cannot be read", said)
    return report


def _failed(backend: str, code: str, what: str, said: str) -> ProbeReport:
    log.info("probe failed: %s: %s", backend, what)
    message = f"the question to the {backend} drivers {what}: their devices are not seen"
    return ProbeReport(problems=(Problem(code, f"{message}; it said: {said}" if said else message),))


# -- the answer, which is not ours --------------------------------------------------------------------------------


def _read(answer: bytes) -> ProbeReport | None:
    """Turn an answer into a report; None unless it is exactly what a probe gives."""
    try:
        parsed = messages.parse(answer, largest=_LONGEST_ANSWER)
    except messages.BadMessage:
        return None
    if not isinstance(parsed, dict) or set(parsed) != {"environments", "problems"}:
        return None
    environments = _rows(parsed["environments"], 4, _MOST_ENVIRONMENTS)
    problems = _rows(parsed["problems"], 3, _MOST_PROBLEMS)
    if environments is None or problems is None or not all(_CODE.fullmatch(row[0]) for row in problems):
        return None
    return ProbeReport(
        tuple(DriverAnswer(row[0], row[1], row[2], row[3]) for row in environments),
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
