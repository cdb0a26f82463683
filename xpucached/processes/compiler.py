"""Act: the compiler of one environment, in a child of its own.  Touches processes only."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from xpucached import messages
from xpucached.domain.plans import CompilerSpec, Recipe
from xpucached.processes import child, polling, signals

_LIBEXEC: Final = Path(__file__).resolve().parents[1] / "libexec"

_START: Final = 60.0
"""Seconds for a driver to load."""
_END: Final = 5.0
"""Seconds for a child to end that has closed its pipes."""
_RESIDENT: Final = 4 << 30
"""Bytes of memory that one compiler may really hold; the largest programs seen take one and a half."""
_MEMORY: Final = 12 << 30
"""Bytes of address space for one compiler; a device that maps its memory takes most of it."""
_LARGEST: Final = 256 << 20
"""Bytes of one binary that we take into this process."""
_HEAD: Final = 64 << 10


class BuildFailed(Exception):
    """A compiler refused a recipe, crashed on it, or took too long."""


class BuildHung(BuildFailed):
    """A compiler took too long."""


class NoCompiler(BuildFailed):
    """There was no compiler, which says nothing about a recipe: the driver was away, or there was no room."""


class CompilerKilled(NoCompiler):
    """Somebody ended the compiler: that is what a host does that runs out of memory, or ends."""


class CompilerProcess:
    """A compiler in a child of its own, started again when a recipe has crashed it.  Used from one thread."""

    def __init__(
        self,
        base: Mapping[str, str],
        spec: CompilerSpec,
        instance: str,
        command: Sequence[str] = (),
        place: str = "/",
    ) -> None:
        """``base`` are the variables of programs on this host; ``spec`` says what to compile for.

        It works in the directory ``place``: drivers may read their switches from files there.
        """
        self._base = {**base, **dict(spec.variables), signals.MARK: f"{instance}:builder"}
        self._command = child.python(_LIBEXEC / spec.program, command)
        self._spec = spec
        self._place = place
        self._child: child.Process | None = None
        self._pipes = child.Pipes()
        self._answers = -1
        self._weighed = 0.0

    def build(self, recipe: Recipe, cancel: threading.Event, limit: float = 300.0) -> tuple[bytes, float]:
        """Compile within ``limit`` seconds: the binary, and the seconds it took.

        Raises `BuildFailed`, and of its kinds `BuildHung` and `NoCompiler`.
        """
        if self._child is None:
            self._start(cancel)
        compiler = self._child
        if compiler is None or compiler.stdin is None:
            raise NoCompiler("the compiler could not be started")
        sizes = {"options": len(recipe.options), "image": len(recipe.input)}
        head = json.dumps({"id": 1, **sizes, "facts": dict(recipe.facts)}).encode()
        try:
            self._write(compiler.stdin.fileno(), head + b"\n" + recipe.options + recipe.input, cancel, limit)
            end = time.monotonic() + limit
            answer = self._line(cancel, limit, end)
            seconds = answer.get("seconds")
            size = answer.get("binary")
            if isinstance(size, int) and isinstance(seconds, float) and 0 < size <= _LARGEST:
                return self._read(size, cancel, limit, end), seconds
        except OSError as error:
            ended = self._ended()
            self.close()
            raise ended from error
        except BuildFailed:
            self.close()
            raise
        if not isinstance(answer.get("error"), str):
            self.close()
        raise BuildFailed(str(answer.get("error", "the compiler gave no binary")))

    def close(self) -> None:
        """End the child."""
        compiler, self._child = self._child, None
        self._pipes.close()
        if compiler is not None:
            child.end(compiler)

    def _start(self, cancel: threading.Event) -> None:
        try:
            self._answers, theirs = self._pipes.from_child()
            command = [*self._command, *self._spec.arguments, "--fd", str(theirs), "--memory", str(_MEMORY)]
            self._child = child.start(
                command, variables=self._base, directory=self._place, stdin=child.PIPE, pipes=self._pipes
            )
        except OSError as error:
            self._pipes.close()
            raise NoCompiler(f"the compiler could not be started: {error.strerror}") from error
        if self._child.stdin is not None:
            os.set_blocking(self._child.stdin.fileno(), False)
        signals.be_polite(self._child.pid)
        try:
            ready = self._line(cancel, _START, time.monotonic() + _START)
        except BuildFailed as error:
            self.close()
            if isinstance(error, CompilerKilled):
                raise
            raise NoCompiler(str(error)) from error
        if ready.get("ready") is not True:
            self.close()
            raise NoCompiler(str(ready.get("error", "the compiler is not ready")))

    def _check_memory(self) -> None:
        """Stop a compiler that takes too much memory, before the host runs out of it."""
        now = time.monotonic()
        if self._child is None or now - self._weighed < signals.TICK:
            return
        self._weighed = now
        with contextlib.suppress(psutil.Error, OSError):
            resident: int = psutil.Process(self._child.pid).memory_info().rss
            if resident > _RESIDENT:
                raise BuildFailed(f"the compiler took more than {_RESIDENT >> 20} MiB of memory")

    def _line(self, cancel: threading.Event, patience: float, end: float) -> Mapping[str, object]:
        """Read one answer's head.  The child runs foreign code: it may say anything, nothing, or a byte a second."""
        line = bytearray()
        while not line.endswith(b"\n"):
            line += self._read(1, cancel, patience, end)
            if len(line) > _HEAD:
                raise BuildFailed("the compiler's answer cannot be read")
        try:
            return messages.members(messages.parse(bytes(line), largest=_HEAD))
        except messages.BadMessage as error:
            raise BuildFailed(f"the compiler's answer cannot be read: {error}") from error

    def _write(self, descriptor: int, content: bytes, cancel: threading.Event, patience: float) -> None:
        """Give the child something to read; one that has stopped reading does not hold us."""
        end = time.monotonic() + patience
        left = memoryview(content)
        while left:
            if cancel.is_set():
                raise BuildFailed("cancelled")
            if time.monotonic() > end:
                raise BuildHung(f"the compiler took longer than {patience:g} s")
            self._check_memory()
            if not polling.writable(descriptor, seconds=signals.TICK):
                continue
            left = left[os.write(descriptor, left) :]

    def _read(self, size: int, cancel: threading.Event, patience: float, end: float) -> bytes:
        """Read so much of an answer, all of which has to be there at ``end``: ``patience`` seconds after its order."""
        content = bytearray()
        while len(content) < size:
            if cancel.is_set():
                raise BuildFailed("cancelled")
            if time.monotonic() > end:
                raise BuildHung(f"the compiler took longer than {patience:g} s")
            self._check_memory()
            if not polling.readable(self._answers, seconds=signals.TICK):
                continue
            part = os.read(self._answers, min(size - len(content), 1 << 20))
            if not part:
                raise self._ended()
            content += part
        return bytes(content)

    def _ended(self) -> BuildFailed:
        """Return how the child ended, which neither listens nor answers any more."""
        status = child.wait(self._child, _END) if self._child is not None else 0
        if status is None:
            return BuildFailed("the compiler went silent")
        if status in {-signal.SIGKILL, -signal.SIGTERM}:
            return CompilerKilled("the compiler was killed; the host may have run out of memory, or be shutting down")
        how = f"by {child.signal_name(-status)}" if status < 0 else f"with status {status}"
        return BuildFailed(f"the compiler ended {how}")
