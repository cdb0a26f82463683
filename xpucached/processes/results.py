"""What happened to a child that ran a model: what it did itself, its supervisor saw, and its model runner told."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from xpucached.domain.device_use import GraphicsUse
from xpucached.domain.models import Outcome, Pass
from xpucached.domain.stores import EntryId
from xpucached.processes import child
from xpucached.processes.output import ChildOutput
from xpucached.processes.reports import RunnerReport, SeenInterpreter, SupervisorReport
from xpucached.processes.runs import ChildRun, largest_file

_SHELL: Final = 128
"""A shell says so much more than the number of the signal that ended its command."""
_TOO_LARGE: Final = os.strerror(errno.EFBIG)


class RunResult(Struct, frozen=True):
    """What happened to one child."""

    outcome: Outcome | None  #: None: it ended by itself, with exit status 0
    seconds: float
    cpu_seconds: float
    peak_rss: int
    exit_status: int | None
    detail: str
    output: str
    created: frozenset[EntryId] = frozenset()
    used: frozenset[EntryId] = frozenset()
    traced: bool = False
    told: RunnerReport | None = None  #: what the model runner said
    engines: Mapping[str, int] = msgspec.field(default_factory=dict)
    """PCI address to the time that its engines worked for it."""
    graphics: tuple[GraphicsUse, ...] = ()
    mapped: tuple[str, ...] = ()  #: files that its processes were seen to map as code: programs and libraries
    mapped_data: tuple[str, ...] = ()  #: files that they were seen to map otherwise
    interpreters: tuple[SeenInterpreter, ...] = ()  #: those that were among them
    bounds: tuple[tuple[str, str], ...] = ()  #: variables of theirs by which caches leave out programs
    places: tuple[str, ...] = ()  #: where they look for programs and libraries, or were come to themselves
    unkept: str = ""  #: what is told of programs that none of the stores has
    modules: tuple[str, ...] = ()  #: files that Pythons among them ran code of, save installed packages

    def as_pass(self) -> Pass:
        """Return what the history keeps."""
        return Pass(self.seconds, self.cpu_seconds, self.peak_rss, self.exit_status, len(self.created), len(self.used))


def result_of(
    run: ChildRun,
    output: ChildOutput,
    seen: SupervisorReport | None,
    told: RunnerReport | None,
    stopped: Outcome | None,
    seconds: float,
) -> RunResult:
    """Judge how a child ended; ``stopped`` says why we ended it, if we did."""
    outcome, detail = stopped, ""
    status = seen.status if seen is not None else None
    if seen is None:
        outcome, detail = stopped or Outcome.FAILED, "its supervisor was ended"
    elif seen.error:
        outcome, detail = stopped or Outcome.FAILED, seen.error
    elif stopped is None:
        outcome, detail = _judged(run, seen, told, output)
    if stopped is Outcome.TIMED_OUT:
        detail = f"still running after {run.workload.timeout:g} s"
    elif stopped is Outcome.CANCELLED:
        detail = "cancelled"
    elif output.endless:
        outcome, detail = Outcome.FAILED, output.endless
    if seen is not None and seen.left:
        detail += f"; processes that could not be ended: {', '.join(map(str, seen.left))}"
    return RunResult(
        outcome,
        seen.seconds if seen is not None and not seen.error else seconds,
        seen.cpu if seen is not None else 0.0,
        seen.peak if seen is not None else 0,
        status,
        detail,
        output.text if outcome is None else output.text_and_complaint,
        frozenset(output.created),
        frozenset(output.used - output.created),
        output.traced,
        told,
        seen.engines if seen is not None else {},
        seen.graphics if seen is not None else (),
        seen.mapped if seen is not None else (),
        seen.mapped_data if seen is not None else (),
        seen.interpreters if seen is not None else (),
        seen.bounds if seen is not None else (),
        seen.places if seen is not None else (),
        output.unkept,
    )


def ended_by_another(seen: SupervisorReport | None) -> bool:
    """Return whether a child may have ended because somebody else, and not the daemon, told it or its supervisor to."""
    if seen is None:
        return True
    return seen.terminated or seen.status in {-signal.SIGTERM, _SHELL + signal.SIGTERM}


def _judged(
    run: ChildRun, seen: SupervisorReport, told: RunnerReport | None, output: ChildOutput
) -> tuple[Outcome | None, str]:
    """Return how a child ended that nobody stopped, save its supervisor."""
    status = seen.status
    if seen.outcome is not None:
        return seen.outcome, seen.detail
    if seen.terminated:
        # Whatever its status says: it may have ended in good order, with half of its work done.
        return Outcome.FAILED, "somebody else told it to end (SIGTERM)"
    if status is None:
        return Outcome.FAILED, "its end was not seen"
    # By the signal itself, as a shell tells of it, or as those say who ignore it, Python among them.
    if status in {-signal.SIGXFSZ, _SHELL + signal.SIGXFSZ} or (status > 0 and _TOO_LARGE in output.last_complaint):
        limit = run.workload.exercise.disk
        which = "the model's disk" if limit is not None else "unless the model's disk says otherwise"
        return Outcome.OVER_DISK, f"it wrote more than {largest_file(limit)} bytes to one file, the limit ({which})"
    if status < 0:
        return Outcome.FAILED, f"ended by {child.signal_name(-status)}"
    if told is not None and told.outcome is not None:
        return told.outcome, told.problem
    if status > 0:
        return Outcome.FAILED, f"exit status {status}"
    if (run.by_runner or run.is_server) and told is None:
        return Outcome.FAILED, "the model's code left the process before its end was told"
    return None, ""
