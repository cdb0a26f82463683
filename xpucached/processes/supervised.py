"""Act: one job, one child.  Touches processes, and a temporary directory of the child's own.

A model is not our code: it may print without end, fork daemons, ignore SIGTERM, take all memory, or fail.  Whatever
happens becomes an `RunResult`; nothing that it started outlives it: its parent is a `libexec.supervisor`, which ends
the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import selectors
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec
import psutil
from msgspec import Struct
from msgspec.structs import asdict, replace

from xpucached.domain.models import Outcome, Pass, Workload
from xpucached.domain.stores import EntryId
from xpucached.domain.targets import Target
from xpucached.domain.workloads import Loader, Variant
from xpucached.processes import child, scratch, signals
from xpucached.processes.cgroup import Cgroup
from xpucached.processes.compiler import CompilerProcess
from xpucached.processes.output import ChildOutput, Trace
from xpucached.processes.pause import PauseControl, RunLimits
from xpucached.processes.reports import RunnerReport, SupervisorReport, read_seen, read_told

_GRACE: Final = 5.0
"""So long a child may take to end itself after SIGTERM."""
_LAST: Final = 30.0
"""So long the supervisor may take to end everybody."""
_MOMENT: Final = 10.0
"""So long after a child was ended by somebody else it may take until we hear that we are to end, too."""
_DISK: Final = 10 << 30
"""Bytes that a child may write to its temporary directory: compilers leave some hundred megabytes there."""
_SHELL: Final = 128
"""A shell says so much more than the number of the signal that ended its command."""
_TOO_LARGE: Final = os.strerror(errno.EFBIG)
_REST: Final = 4.0
"""So many times as long as reading a piece of its output took us, a child is not read: it waits, not the others."""
_SHARE: Final = 0.9
"""Of the memory that is free when a child starts, so much it may take."""
_LEAST: Final = 256 << 20

_LIBEXEC: Final = Path(__file__).resolve().parent.parent / "libexec"


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
    mapped: tuple[str, ...] = ()  #: files that its processes were seen to map as code: programs and libraries
    mapped_data: tuple[str, ...] = ()  #: files that they were seen to map otherwise

    def as_pass(self) -> Pass:
        """Give what the history keeps."""
        return Pass(self.seconds, self.cpu_seconds, self.peak_rss, self.exit_status, len(self.created), len(self.used))


class ProcessStarter:
    """Runs children, one at a time per call, with the variables that all of them get."""

    def __init__(self, base: Mapping[str, str], instance: str) -> None:
        """``base`` are the variables that every child gets; ``instance`` is unique to the daemon's state directory."""
        self._instance = instance
        self._fence = Cgroup(base)
        self._base = child.environment({}, base=base)

    def compiler(
        self, environment: Target, variables: Mapping[str, str], command: Sequence[str] = ()
    ) -> CompilerProcess:
        """Give a compiler for an environment, for programs with these variables; it starts with its first recipe.

        ``command`` is what its command begins with: a dynamic loader, for a driver that needs its own.
        """
        return CompilerProcess({**self._base, **variables}, environment, self._instance, command)

    async def end_orphans(self) -> int:
        """End what a predecessor of this daemon that was killed left running; say how many there were."""
        return await asyncio.to_thread(signals.end_marked, f"{self._instance}:")

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
        job = "measure" if variant is not None or workload.exercise.loader is not Loader.COMMAND else ""
        return await self._run(
            _Run(workload, variant or Variant(workload.exercise.device), job, compare=compare, run_limits=run_limits),
            variables,
            trace,
            polite,
        )

    async def devices(self, workload: Workload, variables: Mapping[str, str]) -> tuple[str, ...] | RunResult:
        """Ask the workload's interpreter for one device of each distinct environment; or give how that failed."""
        job = _Run(workload, Variant(workload.exercise.device), "devices", compare=False)
        done = await self._run(job, variables, Trace(), polite=False)
        if done.told is not None and done.told.devices and done.outcome is None:
            return done.told.devices
        return done

    async def _run(self, job: _Run, variables: Mapping[str, str], trace: Trace, polite: bool) -> RunResult:  # noqa: FBT001
        mark = f"{self._instance}:{uuid4().hex}"
        environment = {**self._base, **job.workload.variables, **variables, signals.MARK: mark}
        cancel = threading.Event()
        fence = self._fence if job.run_limits is not None and job.run_limits.isolate else None
        work = asyncio.to_thread(_execute, job, environment, trace, cancel, polite=polite, fence=fence)
        thread = asyncio.create_task(work)
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            cancel.set()
            with contextlib.suppress(asyncio.CancelledError):
                await thread
            raise


@dataclass(frozen=True, slots=True)
class _Run:
    """What one child is to do."""

    workload: Workload
    variant: Variant
    what: str
    compare: bool
    run_limits: RunLimits | None = None

    @property
    def by_runner(self) -> bool:
        return self.what == "devices" or self.workload.exercise.loader is not Loader.COMMAND

    def command(self, descriptor: int) -> tuple[str, ...]:
        """Give the words to start; of a plain command, with the variant in the places that ask for it."""
        if self.by_runner:
            return (self.workload.exercise.python, str(_LIBEXEC / "model_runner.py"), "--fd", str(descriptor))
        if self.workload.exercise.is_plain:
            return self.workload.command
        return tuple(self._filled(word) for word in self.workload.command)

    def _filled(self, word: str) -> str:
        variant = self.variant
        for key, text in (("device", variant.device), ("precision", variant.precision), ("shape", variant.shape)):
            word = word.replace(f"{{{key}}}", text)
        return word

    def order(self, token: str) -> bytes:
        """Give what the model runner reads."""
        if not self.by_runner:
            return b""
        return json.dumps(
            {
                "token": token,
                "what": self.what,
                "compare": self.compare,
                "variant": asdict(self.variant),
                "exercise": asdict(self.workload.exercise),
            },
            default=str,
        ).encode()


@contextlib.contextmanager
def _descriptors() -> Iterator[set[int]]:
    """Give a set; what is in it at the end is closed."""
    ours: set[int] = set()
    try:
        yield ours
    finally:
        for descriptor in ours:
            os.close(descriptor)


def _in_memory(name: str, content: bytes) -> int:
    """Give a descriptor from which these bytes can be read."""
    descriptor = os.memfd_create(name)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _execute(
    job: _Run,
    environment: Mapping[str, str],
    trace: Trace,
    cancel: threading.Event,
    *,
    polite: bool,
    fence: Cgroup | None,
) -> RunResult:
    try:
        return _run_once(job, environment, trace, cancel, polite=polite, fence=fence)
    except OSError as error:
        # The host has no room for it: no memory, processes, descriptors or disk.
        return _unstarted(error)


def _unstarted(error: Exception) -> RunResult:
    return RunResult(Outcome.FAILED, 0.0, 0.0, 0, None, f"it could not be started: {error}", "")


def _run_once(
    job: _Run,
    environment: Mapping[str, str],
    trace: Trace,
    cancel: threading.Event,
    *,
    polite: bool,
    fence: Cgroup | None,
) -> RunResult:
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(scratch.directory())
        ours = stack.enter_context(_descriptors())
        token = uuid4().hex
        variables = {**environment, "TMPDIR": place, "TMP": place, "TEMP": place}
        ours |= {stdin := _in_memory("order", job.order(token))}
        ours |= {given := _in_memory("environment", json.dumps(variables).encode())}
        (hears, orders), (reports, seen), (answers, told) = pipes = os.pipe(), os.pipe(), os.pipe()
        ours |= {descriptor for pair in pipes for descriptor in pair}
        exercise = job.workload.exercise
        memory = exercise.memory or max(int(psutil.virtual_memory().available * _SHARE), _LEAST)
        began = time.monotonic()
        talk = fence.variables if fence is not None else {}
        words = [
            *_fenced(job, fence, memory),
            *child.python(_LIBEXEC / "supervisor.py"),
            *("--orders", str(hears), "--report", str(seen), "--pass", str(told), "--environment", str(given)),
            *("--memory", str(memory), "--disk", str(exercise.disk or _DISK), "--scratch", place),
            *("--directory", str(job.workload.directory), "--", *job.command(told)),
        ]
        heard = (hears, seen, told, given)
        try:
            supervisor = child.start(
                words, variables=talk, stdin=stdin, stdout=child.PIPE, stderr=child.PIPE, passed=heard
            )
        except ValueError as error:
            return _unstarted(error)
        for descriptor in (hears, seen, told):
            ours.remove(descriptor)
            os.close(descriptor)
        if polite:
            signals.be_polite(supervisor.pid, job.run_limits.run_priority if job.run_limits is not None else None)
        complaining = supervisor.stderr.fileno() if supervisor.stderr is not None else -1
        ear = _ChildPipes(supervisor, ChildOutput(trace, complaining), {reports: bytearray(), answers: bytearray()})
        pacer = PauseControl(job.run_limits, supervisor.pid, orders)
        try:
            stopped = _attend(ear, job.workload.timeout, cancel, began, pacer)
        finally:
            # If something failed here, only its supervisor can end all that it started.
            pacer.say(b"k")
            child.wait(supervisor, _LAST)
            child.end(supervisor)
            # What outlived a supervisor that was killed is found by the mark, if it still carries it.
            signals.end_marked(environment[signals.MARK])
        ear.output.finish()
        known = read_seen(bytes(ear.heard[reports]))
        if known is None and fence is not None and stopped is None and (supervisor.returncode or 0) > 0:
            # It may be the group that could not be had; without one it is tried again.
            fence.give_up()
            return _run_once(job, environment, trace, cancel, polite=polite, fence=None)
        if known is not None and pacer.paused:
            known = replace(known, seconds=max(0.0, known.seconds - pacer.paused))
        said = read_told(bytes(ear.heard[answers]), token)
        if stopped is None and _ended_by_another(known) and cancel.wait(_MOMENT):
            # At the end of the host systemd ends the groups of runs beside us, and not after us.
            stopped = Outcome.CANCELLED
        return _execution(job, ear.output, known, said, stopped, time.monotonic() - began)


def _execution(
    job: _Run,
    output: ChildOutput,
    seen: SupervisorReport | None,
    told: RunnerReport | None,
    stopped: Outcome | None,
    seconds: float,
) -> RunResult:
    outcome, detail = stopped, ""
    status = seen.status if seen is not None else None
    if seen is None:
        outcome, detail = stopped or Outcome.FAILED, "its supervisor was ended"
    elif seen.error:
        outcome, detail = stopped or Outcome.FAILED, seen.error
    elif stopped is None:
        outcome, detail = _judged(job, seen, told, output)
    if stopped is Outcome.TIMED_OUT:
        detail = f"still running after {job.workload.timeout:g} s"
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
        seen.mapped if seen is not None else (),
        seen.mapped_data if seen is not None else (),
    )


def _ended_by_another(seen: SupervisorReport | None) -> bool:
    """Tell whether a child may have ended because somebody else, and not the daemon, told it or its supervisor to."""
    if seen is None:
        return True
    return seen.terminated or seen.status in {-signal.SIGTERM, _SHELL + signal.SIGTERM}


def _judged(
    job: _Run, seen: SupervisorReport, told: RunnerReport | None, output: ChildOutput
) -> tuple[Outcome | None, str]:
    """Say how a child ended that nobody stopped, save its supervisor."""
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
        limit = job.workload.exercise.disk
        which = "the model's disk" if limit is not None else "unless the model's disk says otherwise"
        return Outcome.OVER_DISK, f"it wrote more than {limit or _DISK} bytes to one file, the limit ({which})"
    if status < 0:
        return Outcome.FAILED, f"ended by {child.signal_name(-status)}"
    if told is not None and told.outcome is not None:
        return told.outcome, told.problem
    if status > 0:
        return Outcome.FAILED, f"exit status {status}"
    if job.by_runner and told is None:
        return Outcome.FAILED, "the model's code left the process before its end was told"
    return None, ""


def _fenced(job: _Run, fence: Cgroup | None, memory: int) -> tuple[str, ...]:
    run_limits = job.run_limits
    if run_limits is None or fence is None:
        return ()
    seconds = job.workload.timeout + run_limits.max_wait + _GRACE + 2 * _LAST
    return fence.command(run_limits.run_priority, memory=memory, tasks=run_limits.tasks, seconds=seconds)


@dataclass(slots=True)
class _ChildPipes:
    """What is heard of one child: what it prints, and what is said on other descriptors."""

    supervisor: child.Process
    output: ChildOutput
    heard: dict[int, bytearray]
    resting: dict[int, float] = field(default_factory=dict)  #: until when a descriptor is not read, so that others run


def _reason_to_stop(cancel: threading.Event, *, late: bool, endless: bool) -> Outcome | None:
    if cancel.is_set():
        return Outcome.CANCELLED
    if late:
        return Outcome.TIMED_OUT
    return Outcome.FAILED if endless else None


def _attend(
    ear: _ChildPipes, timeout: float, cancel: threading.Event, began: float, pacer: PauseControl
) -> Outcome | None:
    """Read what the child prints until its supervisor ends; have it ended when its time is up."""
    stopped: Outcome | None = None
    looked = False
    next_at: float | None = None
    steps = iter((b"t", b"k"))
    with selectors.DefaultSelector() as selector:
        streams = [stream.fileno() for stream in (ear.supervisor.stdout, ear.supervisor.stderr) if stream is not None]
        for descriptor in (*streams, *ear.heard):
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ)
        while True:
            _read_some(selector, ear)
            if ear.output.traced and not looked:
                # Who tells of an entry has the runtime mapped just now, however short its life is.
                looked = True
                pacer.say(b"l")
            if ear.supervisor.poll() is not None:
                # What was printed last is still in the pipe.  Somebody who got away may hold the other end for ever,
                # so only what is there is read.
                for _ in range(64):
                    if not _read_some(selector, ear, wait=0.0):
                        break
                return stopped
            now = time.monotonic()
            late = now - began - pacer.paused >= timeout
            stopped = stopped or _reason_to_stop(cancel, late=late, endless=bool(ear.output.endless))
            if stopped is None:
                pacer.step(now)
            if stopped is not None and (next_at is None or now >= next_at):
                order = next(steps, None)
                next_at = now + (_GRACE if order == b"t" else _LAST)
                if order is None:
                    ear.supervisor.kill()
                else:
                    # Who stands still cannot end himself.
                    pacer.say(b"c" + order)


def _read_some(selector: selectors.BaseSelector, ear: _ChildPipes, wait: float = signals.TICK) -> bool:
    if not selector.get_map() and not ear.resting:
        if wait:
            # Everything is closed, so the end is near.
            child.wait(ear.supervisor, wait)
        return False
    read = False
    now = time.monotonic()
    for descriptor in [descriptor for descriptor, until in ear.resting.items() if until <= now or not wait]:
        del ear.resting[descriptor]
        selector.register(descriptor, selectors.EVENT_READ)
    if ear.resting:
        wait = min(wait, max(0.0, min(ear.resting.values()) - now))
    for key, _ in selector.select(wait):
        began = time.monotonic()
        try:
            data = os.read(key.fd, 1 << 16)
        except BlockingIOError:
            continue
        except OSError:
            data = b""
        selector.unregister(key.fd)
        if data:
            if key.fd in ear.heard:
                # The model's code may write there too: of what is too long, the end counts.
                ear.heard[key.fd] += data
                del ear.heard[key.fd][: -(1 << 20)]
                ear.output.told += len(data)
            else:
                ear.output.feed(key.fd, data)
            ear.resting[key.fd] = time.monotonic() + _REST * (time.monotonic() - began)
        read = read or bool(data)
    return read
