"""Act: one run, one child.  Touches processes, and a temporary directory of the child's own.

A model is not our code: it may print without end, fork daemons, ignore SIGTERM, take all memory, or fail.  Whatever
happens becomes a `RunResult`; nothing that it started outlives it: its parent is a `libexec.supervisor`, which ends
the rest.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import uuid4

import psutil
from msgspec.structs import replace

from xpucached.domain.models import Outcome, Workload
from xpucached.domain.plans import CompilerSpec
from xpucached.domain.workloads import Loader, Variant
from xpucached.processes import child, conversation, module_record, scratch, serving, signals
from xpucached.processes.cancellation import ended
from xpucached.processes.cgroup import Cgroup
from xpucached.processes.compiler import CompilerProcess
from xpucached.processes.conversation import ChildPipes
from xpucached.processes.output import ChildOutput, Trace
from xpucached.processes.pause import PauseControl, RunLimits
from xpucached.processes.reports import read_seen, read_told
from xpucached.processes.results import RunResult, ended_by_another, result_of
from xpucached.processes.runs import DISK, LIBEXEC, ChildRun, largest_file

_MOMENT: Final = 10.0
"""So long after a child was ended by somebody else it may take until we hear that we are to end, too."""
_SHARE: Final = 0.9
"""Of the memory that is free when a child starts, so much it may take."""
_LEAST: Final = 256 << 20


class ProcessStarter:
    """Runs children, one at a time per call, with the variables that all of them get."""

    def __init__(self, base: Mapping[str, str], instance: str, ask: serving.Ask = serving.at_once) -> None:
        """``base`` are the variables that every child gets; ``instance`` is unique to the daemon's state directory.

        ``ask`` asks about a file of requests, which may lie where nobody answers.
        """
        self._instance = instance
        self._ask = ask
        self._cgroup = Cgroup(base)
        self._base = child.environment({}, base=base)

    def compiler(
        self, spec: CompilerSpec, variables: Mapping[str, str], command: Sequence[str] = (), place: str = "/"
    ) -> CompilerProcess:
        """Return a compiler, for programs with these variables; it starts with its first recipe.

        ``command`` is what its command begins with: a dynamic loader, for a driver that needs its own.  It works in
        the directory ``place``.
        """
        return CompilerProcess({**self._base, **variables}, spec, self._instance, command, place)

    async def end_orphans(self) -> int:
        """End what a predecessor of this daemon that was killed left running, and remove its temporary directories.

        Say how many processes there were.
        """
        ended = await asyncio.to_thread(signals.end_marked, f"{self._instance}:")
        await asyncio.to_thread(scratch.sweep, _prefix(self._instance))
        return ended

    async def execute(
        self,
        workload: Workload,
        variables: Mapping[str, str],
        trace: Trace,
        *,
        polite: bool,
        variant: Variant | None = None,
        compare: bool = False,
        run_limits: RunLimits | None = None,
    ) -> RunResult:
        """Run one variant of a workload once.  ``variables`` stand above the workload's own.

        With ``compare`` a low precision is compared with float32, if the workload asks for it.  When the calling task
        is cancelled the child ends first, and `asyncio.CancelledError` goes on.  With a ``run_limits`` it has a control
        group of its own, where there is one to be had, and stands still when it is told to.
        """
        mode = "measure" if variant is not None or workload.exercise.loader is not Loader.COMMAND else ""
        return await self._run(
            ChildRun(
                workload,
                variant or Variant(workload.exercise.device),
                mode,
                compare=compare,
                run_limits=run_limits,
                ask=self._ask,
            ),
            variables,
            trace,
            polite,
        )

    async def devices(self, workload: Workload, variables: Mapping[str, str]) -> tuple[str, ...] | RunResult:
        """Ask the workload's interpreter for one device of each distinct environment; or give how that failed."""
        run = ChildRun(workload, Variant(workload.exercise.device), "devices", compare=False)
        done = await self._run(run, variables, Trace(), polite=False)
        if done.told is not None and done.told.devices and done.outcome is None:
            return done.told.devices
        return done

    async def _run(self, run: ChildRun, variables: Mapping[str, str], trace: Trace, polite: bool) -> RunResult:  # noqa: FBT001
        mark = f"{self._instance}:{uuid4().hex}"
        everything = {**self._base, **run.workload.variables, **variables, signals.MARK: mark}
        cancel = threading.Event()
        cgroup = self._cgroup if run.run_limits is not None and run.run_limits.isolate else None
        work = asyncio.to_thread(_execute, run, everything, trace, cancel, polite=polite, cgroup=cgroup)
        return await ended(asyncio.create_task(work), cancel.set)


def _execute(
    run: ChildRun,
    variables: Mapping[str, str],
    trace: Trace,
    cancel: threading.Event,
    *,
    polite: bool,
    cgroup: Cgroup | None,
) -> RunResult:
    try:
        return _run_once(run, variables, trace, cancel, polite=polite, cgroup=cgroup)
    except serving.BadRequestsFile as error:
        return RunResult(Outcome.FAILED, 0.0, 0.0, 0, None, str(error), "")
    except OSError as error:
        # The host has no room for it: no memory, processes, descriptors or disk.
        return _unstarted(error)


def _prefix(instance: str) -> str:
    """Return what the names of the temporary directories of a daemon's runs begin with.

    Short, for what programs make there: of a socket's path the kernel takes 107 bytes.
    """
    return f"xpu-{instance}-"


def _unstarted(error: Exception) -> RunResult:
    return RunResult(Outcome.FAILED, 0.0, 0.0, 0, None, f"it could not be started: {error}", "")


def _run_once(
    run: ChildRun,
    variables: Mapping[str, str],
    trace: Trace,
    cancel: threading.Event,
    *,
    polite: bool,
    cgroup: Cgroup | None,
) -> RunResult:
    instance = variables[signals.MARK].partition(":")[0]
    with (
        scratch.directory(_prefix(instance)) as place,
        module_record.recording(_prefix(instance), variables) as record,
        child.Pipes() as pipes,
    ):
        token = uuid4().hex
        inside = {**variables, "TMPDIR": place, "TMP": place, "TEMP": place, **record.variables}
        stdin = pipes.content("order", run.order(token))
        given = pipes.content("environment", json.dumps(inside).encode())
        orders, hears = pipes.to_child()
        reports, seen = pipes.from_child()
        answers, told = pipes.from_child()
        exercise = run.workload.exercise
        memory = exercise.memory or max(int(psutil.virtual_memory().available * _SHARE), _LEAST)
        began = time.monotonic()
        talk = cgroup.variables if cgroup is not None else {}
        words = [
            *_in_cgroup(run, cgroup, memory),
            *child.python(LIBEXEC / "supervisor.py"),
            *("--orders", str(hears), "--report", str(seen), "--pass", str(told), "--environment", str(given)),
            *("--memory", str(memory), "--disk", str(exercise.disk or DISK), "--scratch", place),
            *("--file", str(largest_file(exercise.disk))),
            *("--directory", str(run.workload.directory), "--", *run.command(told)),
        ]
        try:
            supervisor = child.start(
                words, variables=talk, stdin=stdin, stdout=child.PIPE, stderr=child.PIPE, pipes=pipes
            )
        except ValueError as error:
            return _unstarted(error)
        if polite:
            signals.be_polite(supervisor.pid, run.run_limits.run_priority if run.run_limits is not None else None)
        complaining = supervisor.stderr.fileno() if supervisor.stderr is not None else -1
        child_pipes = ChildPipes(
            supervisor, ChildOutput(trace, complaining), {reports: bytearray(), answers: bytearray()}
        )
        pause = PauseControl(run.run_limits, supervisor.pid, orders)
        try:
            stopped = conversation.attend(child_pipes, run.workload.timeout, cancel, began, pause)
        finally:
            # If something failed here, only its supervisor can end all that it started.
            pause.say(b"k")
            child.wait(supervisor, conversation.LAST)
            child.end(supervisor)
            # What outlived a supervisor that was killed is found by the mark, if it still carries it.
            signals.end_marked(variables[signals.MARK])
        child_pipes.output.finish()
        known = read_seen(bytes(child_pipes.received[reports]))
        if known is None and cgroup is not None and stopped is None and (supervisor.returncode or 0) > 0:
            # It may be the group that could not be had; without one it is tried again.
            cgroup.give_up()
            return _run_once(run, variables, trace, cancel, polite=polite, cgroup=None)
        if known is not None and pause.paused:
            known = replace(known, seconds=max(0.0, known.seconds - pause.paused))
        said = read_told(bytes(child_pipes.received[answers]), token)
        if stopped is None and ended_by_another(known) and cancel.wait(_MOMENT):
            # At the end of the host systemd ends the groups of runs beside us, and not after us.
            stopped = Outcome.CANCELLED
        done = result_of(run, child_pipes.output, known, said, stopped, time.monotonic() - began)
        return replace(done, modules=record.read())


def _in_cgroup(run: ChildRun, cgroup: Cgroup | None, memory: int) -> tuple[str, ...]:
    run_limits = run.run_limits
    if run_limits is None or cgroup is None:
        return ()
    seconds = run.workload.timeout + run_limits.max_wait + conversation.GRACE + 2 * conversation.LAST
    return cgroup.command(run_limits.run_priority, memory=memory, tasks=run_limits.tasks, seconds=seconds)
