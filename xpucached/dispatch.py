"""Act: one job, one child.  Touches processes only.

A model's command is not our code: it may print without end, fork daemons, ignore SIGTERM, or fail.  Whatever happens
becomes an `Execution`; nothing that it started outlives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import select
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

import psutil

from xpucached.domain import EntryKey, Environment, Outcome, Pass, Recipe, Workload

log = logging.getLogger(__name__)

Trace = Callable[[Iterable[str]], tuple[frozenset[EntryKey], frozenset[EntryKey]]]
"""Reads trace lines: keys created, keys used."""

_MARK: Final = "XPUCACHED_RUN"
"""Every process of a run carries this variable, so that one which left the process group is still found."""

_TICK: Final = 0.1
_GRACE: Final = 5.0
"""So long a child may take to end itself after SIGTERM."""
_TAIL: Final = 16 << 10
"""So much of a child's output is kept: enough for a traceback."""
_LINE: Final = 64 << 10
"""A longer line is no trace; it is kept in pieces."""

_NOT_FOR_CHILDREN: Final = (
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
)


@dataclass(frozen=True, slots=True)
class Execution:
    """What happened to one child."""

    outcome: Outcome | None  #: None: it ended by itself, with exit status 0
    seconds: float
    cpu_seconds: float
    peak_rss: int
    exit_status: int | None
    detail: str
    output: str
    created: frozenset[EntryKey] = frozenset()
    used: frozenset[EntryKey] = frozenset()
    traced: bool = False

    def as_pass(self) -> Pass:
        """Give what the history keeps."""
        return Pass(self.seconds, self.cpu_seconds, self.peak_rss, self.exit_status, len(self.created), len(self.used))


@dataclass(slots=True)
class _Output:
    """What a child prints: the trace is read as it comes, of the rest the end is kept."""

    trace: Trace
    tail: bytearray = field(default_factory=bytearray)
    partial: dict[int, bytes] = field(default_factory=dict)
    created: set[EntryKey] = field(default_factory=set)
    used: set[EntryKey] = field(default_factory=set)
    traced: bool = False

    def feed(self, descriptor: int, data: bytes) -> None:
        lines = (self.partial.pop(descriptor, b"") + data).split(b"\n")
        rest = lines.pop()
        if len(rest) > _LINE:
            lines.append(rest)
            rest = b""
        self.partial[descriptor] = rest
        self._take(lines)

    def finish(self) -> None:
        self._take([rest for rest in self.partial.values() if rest])
        self.partial.clear()

    def _take(self, lines: list[bytes]) -> None:
        texts = [line.decode("utf-8", "surrogateescape") for line in lines]
        created, used = self.trace(texts)
        self.traced = self.traced or bool(created or used)
        self.created |= created
        self.used |= used
        for line, text in zip(lines, texts, strict=True):
            if "ersistent Cache]: " not in text and "*** Code caching: " not in text:
                self.tail += line + b"\n"
        del self.tail[:-_TAIL]

    @property
    def text(self) -> str:
        return self.tail.decode("utf-8", "backslashreplace").replace("\0", "\\x00").strip()


class Dispatch:
    """Runs children, one at a time per call, with the variables that all of them get."""

    def __init__(self, base: Mapping[str, str], instance: str) -> None:
        """``base`` are the variables that every child gets; ``instance`` is unique to the daemon's state directory."""
        self._instance = instance
        self._base = {name: value for name, value in base.items() if name not in _NOT_FOR_CHILDREN}
        self._base = {name: value for name, value in self._base.items() if not name.startswith("XPUCACHED_")}

    def builder(self, environment: Environment, variables: Mapping[str, str], command: Sequence[str] = ()) -> Builder:
        """Give a compiler for an environment, for programs with these variables; it starts with its first recipe.

        ``command`` is what its command begins with: a dynamic loader, for a driver that needs its own.
        """
        return Builder({**self._base, **variables}, environment, self._instance, command)

    async def end_orphans(self) -> int:
        """End what a predecessor of this daemon that was killed left running; say how many there were."""
        return await asyncio.to_thread(_end_marked, f"{self._instance}:")

    async def execute(
        self, workload: Workload, variables: Mapping[str, str], trace: Trace, *, polite: bool
    ) -> Execution:
        """Run a workload once.  ``variables`` stand above the workload's own.

        When the calling task is cancelled the child ends first, and `asyncio.CancelledError` goes on.
        """
        environment = {**self._base, **workload.variables, **variables, _MARK: f"{self._instance}:{uuid4().hex}"}
        cancel = threading.Event()
        thread = asyncio.create_task(asyncio.to_thread(_execute, workload, environment, trace, cancel, polite=polite))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            cancel.set()
            with contextlib.suppress(asyncio.CancelledError):
                await thread
            raise


def _execute(
    workload: Workload, environment: Mapping[str, str], trace: Trace, cancel: threading.Event, *, polite: bool
) -> Execution:
    output = _Output(trace)
    began = time.monotonic()
    try:
        child = subprocess.Popen(  # noqa: S603 - the command is the model's, registered by who may run it
            workload.command,
            cwd=workload.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        detail = f"{workload.command[0]} could not be started: {error}"
        return Execution(Outcome.FAILED, 0.0, 0.0, 0, None, detail, "")
    if polite:
        _be_polite(child.pid)
    try:
        stopped, status, usage = _attend(child, output, workload.timeout, cancel, began)
    finally:
        _end_all(child.pid, environment[_MARK])
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()
    seconds = time.monotonic() - began
    output.finish()
    outcome, detail = stopped, ""
    if stopped is Outcome.TIMED_OUT:
        detail = f"still running after {workload.timeout:g} s"
    elif stopped is Outcome.CANCELLED:
        detail = "cancelled"
    elif status < 0:
        outcome, detail = Outcome.FAILED, f"ended by {_signal_name(-status)}"
    elif status > 0:
        outcome, detail = Outcome.FAILED, f"exit status {status}"
    return Execution(
        outcome,
        seconds,
        usage.cpu,
        usage.peak,
        status,
        detail,
        output.text,
        frozenset(output.created),
        frozenset(output.used - output.created),
        output.traced,
    )


@dataclass(frozen=True, slots=True)
class _Usage:
    cpu: float
    peak: int


def _attend(
    child: subprocess.Popen[bytes], output: _Output, timeout: float, cancel: threading.Event, began: float
) -> tuple[Outcome | None, int, _Usage]:
    """Read what the child prints until it ends; end it when its time is up."""
    stopped: Outcome | None = None
    kill_at: float | None = None
    with selectors.DefaultSelector() as selector:
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream.fileno(), selectors.EVENT_READ)
        while True:
            _read_some(selector, output)
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                child.returncode = os.waitstatus_to_exitcode(status)
                # What it printed last is still in the pipe.  A daemon that it left behind may hold the other end for
                # ever, so only what is there is read.
                for _ in range(64):
                    if not _read_some(selector, output, wait=0.0):
                        break
                return stopped, child.returncode, _Usage(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)
            now = time.monotonic()
            if stopped is None and cancel.is_set():
                stopped = Outcome.CANCELLED
            elif stopped is None and now - began >= timeout:
                stopped = Outcome.TIMED_OUT
            if stopped is not None and kill_at is None:
                kill_at = now + _GRACE
                _signal_group(child.pid, signal.SIGTERM)
            elif kill_at is not None and now >= kill_at:
                _signal_group(child.pid, signal.SIGKILL)


def _read_some(selector: selectors.BaseSelector, output: _Output, wait: float = _TICK) -> bool:
    if not selector.get_map():
        if wait:
            time.sleep(wait)
        return False
    read = False
    for key, _ in selector.select(wait):
        try:
            data = os.read(key.fd, 1 << 16)
        except BlockingIOError:
            continue
        except OSError:
            data = b""
        if data:
            output.feed(key.fd, data)
            read = True
        else:
            selector.unregister(key.fd)
    return read


def _be_polite(pid: int) -> None:
    """Let programs that serve somebody go first.  Threads and children that come later inherit it."""
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        process.nice(10)
        process.ionice(psutil.IOPRIO_CLASS_IDLE)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _end_all(pid: int, mark: str) -> None:
    """End what the child left behind: its process group, and whatever carries the run's mark."""
    _signal_group(pid, signal.SIGKILL)
    _end_marked(mark)


def _end_marked(mark: str) -> int:
    ended: set[int] = set()
    # A process may fork between the look and the signal, so look until nobody is there.
    for _ in range(20):
        left = [process for process in psutil.process_iter() if _carries(process, mark)]
        if not left:
            break
        for process in left:
            ended.add(process.pid)
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(_TICK / 2)
    else:
        log.warning("processes of a run cannot be ended: %s", sorted(ended))
    return len(ended)


def _carries(process: psutil.Process, mark: str) -> bool:
    try:
        if process.pid == os.getpid() or process.uids().real != os.getuid():
            return False
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(_MARK, "").startswith(mark)
    except (psutil.Error, OSError):
        return False


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# -- compiling ----------------------------------------------------------------------------------------------------

_START_LIMIT: Final = 60.0
"""Seconds for a driver to load."""
_BUILD_MEMORY: Final = 12 << 30
"""Bytes of address space for one compiler; a device that maps its memory takes most of it."""
_BUILD_RESIDENT: Final = 4 << 30
"""Bytes of memory that one compiler may really hold; the largest programs seen take one and a half."""
_BUILD_LARGEST: Final = 256 << 20
"""Bytes of one binary that we take into this process."""
_BUILD_HEAD: Final = 64 << 10


class BuildFailed(Exception):
    """A compiler refused a recipe, crashed on it, or took too long."""


class BuildHung(BuildFailed):
    """A compiler took too long."""


class Builder:
    """A compiler in a child of its own, started again when a recipe has crashed it.  Used from one thread."""

    def __init__(
        self, base: Mapping[str, str], environment: Environment, instance: str, command: Sequence[str] = ()
    ) -> None:
        """``base`` are the variables of programs on this host; ``environment`` is what to compile for."""
        self._base = {**base, _MARK: f"{instance}:builder"}
        self._command = [sys.executable]
        if command:
            # A loader that is named starts no link, and the program does not see where its modules were installed.
            self._command = [*command, os.path.realpath(sys.executable)]
            self._base["PYTHONPATH"] = os.fspath(Path(__file__).resolve().parent.parent)
        self._environment = environment
        self._child: subprocess.Popen[bytes] | None = None
        self._answers = -1

    def build(self, recipe: Recipe, cancel: threading.Event, limit: float = 300.0) -> tuple[bytes, float]:
        """Compile within ``limit`` seconds: the binary, and the seconds it took.  Raises `BuildFailed`, `BuildHung`."""
        if self._child is None:
            self._start(cancel)
        child = self._child
        if child is None or child.stdin is None:
            raise BuildFailed("the compiler could not be started")
        head = json.dumps({"id": 1, "options": len(recipe.options), "image": len(recipe.image)}).encode()
        try:
            child.stdin.write(head + b"\n" + recipe.options + recipe.image)
            child.stdin.flush()
            answer = self._line(cancel, limit)
            seconds = answer.get("seconds")
            size = answer.get("binary")
            if isinstance(size, int) and isinstance(seconds, float) and 0 < size <= _BUILD_LARGEST:
                return self._read(size, cancel, limit), seconds
        except OSError as error:
            self.close()
            raise BuildFailed(f"the compiler ended: {error.strerror}") from error
        except BuildFailed:
            self.close()
            raise
        if not isinstance(answer.get("error"), str):
            self.close()
        raise BuildFailed(str(answer.get("error", "the compiler gave no binary")))

    def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if self._answers >= 0:
            os.close(self._answers)
            self._answers = -1
        if child is not None:
            _signal_group(child.pid, signal.SIGKILL)
            child.wait()
            if child.stdin is not None:
                with contextlib.suppress(OSError):
                    child.stdin.close()

    def _start(self, cancel: threading.Event) -> None:
        one = self._environment
        backend = "level-zero" if "level-zero" in one.platform.lower() else "opencl"
        reading, writing = os.pipe()
        command = [*self._command, "-B", "-m", "xpucached.builder", "--backend", backend, "--fd", str(writing)]
        command += ["--memory", str(_BUILD_MEMORY)]
        command += ["--environment", json.dumps([one.platform, one.device, one.version, one.driver])]
        try:
            self._child = subprocess.Popen(  # noqa: S603 - our own module
                command,
                env=self._base,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(writing,),
                start_new_session=True,
            )
        except OSError as error:
            os.close(reading)
            raise BuildFailed(f"the compiler could not be started: {error.strerror}") from error
        finally:
            os.close(writing)
        self._answers = reading
        _be_polite(self._child.pid)
        try:
            ready = self._line(cancel, _START_LIMIT)
        except BuildFailed:
            self.close()
            raise
        if ready.get("ready") is not True:
            self.close()
            raise BuildFailed(str(ready.get("error", "the compiler is not ready")))

    def _weigh(self) -> None:
        """Stop a compiler that takes too much memory, before the host runs out of it."""
        if self._child is None:
            return
        with contextlib.suppress(psutil.Error, OSError):
            resident: int = psutil.Process(self._child.pid).memory_info().rss
            if resident > _BUILD_RESIDENT:
                raise BuildFailed(f"the compiler took more than {_BUILD_RESIDENT >> 20} MiB of memory")

    def _line(self, cancel: threading.Event, patience: float) -> Mapping[str, object]:
        """Read one answer's head.  The child runs foreign code: it may say anything, or nothing."""
        line = bytearray()
        while not line.endswith(b"\n"):
            line += self._read(1, cancel, patience)
            if len(line) > _BUILD_HEAD:
                raise BuildFailed("the compiler's answer cannot be read")
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise BuildFailed("the compiler's answer cannot be read") from error
        if not isinstance(answer, dict):
            raise BuildFailed("the compiler's answer cannot be read")
        return answer

    def _read(self, size: int, cancel: threading.Event, patience: float) -> bytes:
        content = bytearray()
        end = time.monotonic() + patience
        while len(content) < size:
            if cancel.is_set():
                raise BuildFailed("cancelled")
            if time.monotonic() > end:
                raise BuildHung(f"the compiler took longer than {patience:g} s")
            if not select.select([self._answers], [], [], _TICK)[0]:
                self._weigh()
                continue
            part = os.read(self._answers, min(size - len(content), 1 << 20))
            if not part:
                status = self._child.wait() if self._child is not None else 0
                how = f"by {_signal_name(-status)}" if status < 0 else f"with status {status}"
                raise BuildFailed(f"the compiler ended {how}")
            content += part
        return bytes(content)
