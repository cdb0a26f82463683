"""Act: the compiler of one environment, in a child of its own.  Touches processes only."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Final

from xpucached.dispatch import children
from xpucached.domain import Environment, Recipe

_LIMIT: Final = 300.0
"""Seconds for one program: the largest ones seen take a minute."""
_MEMORY: Final = 12 << 30
"""Bytes of address space for one compiler; a device that maps its memory takes most of it."""
_LARGEST: Final = 256 << 20
"""Bytes of one binary that we take into this process."""
_HEAD: Final = 64 << 10


class BuildFailed(Exception):
    """A compiler refused a recipe, crashed on it, or took too long."""


class Builder:
    """A compiler in a child of its own, started again when a recipe has crashed it.  Used from one thread."""

    def __init__(self, base: Mapping[str, str], environment: Environment, instance: str) -> None:
        """``base`` are the variables of programs on this host; ``environment`` is what to compile for."""
        self._base = {**base, children.MARK: f"{instance}:builder"}
        self._environment = environment
        self._child: subprocess.Popen[bytes] | None = None
        self._answers = -1

    def build(self, recipe: Recipe, cancel: threading.Event) -> tuple[bytes, float]:
        """Compile: the binary, and the seconds it took.  Raises `BuildFailed`."""
        if self._child is None:
            self._start(cancel)
        child = self._child
        if child is None or child.stdin is None:
            raise BuildFailed("the compiler could not be started")
        head = json.dumps({"id": 1, "options": len(recipe.options), "image": len(recipe.image)}).encode()
        try:
            child.stdin.write(head + b"\n" + recipe.options + recipe.image)
            child.stdin.flush()
            answer = self._line(cancel, _LIMIT)
            seconds = answer.get("seconds")
            size = answer.get("binary")
            if isinstance(size, int) and isinstance(seconds, float) and 0 < size <= _LARGEST:
                return self._read(size, cancel, _LIMIT), seconds
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
            children.signal_group(child.pid, signal.SIGKILL)
            child.wait()
            if child.stdin is not None:
                with contextlib.suppress(OSError):
                    child.stdin.close()

    def _start(self, cancel: threading.Event) -> None:
        one = self._environment
        backend = "level-zero" if "level-zero" in one.platform.lower() else "opencl"
        reading, writing = os.pipe()
        command = [sys.executable, "-B", "-m", "xpucached.builder", "--backend", backend, "--fd", str(writing)]
        command += ["--memory", str(_MEMORY)]
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
        children.be_polite(self._child.pid)
        try:
            ready = self._line(cancel, _LIMIT)
        except BuildFailed:
            self.close()
            raise
        if ready.get("ready") is not True:
            self.close()
            raise BuildFailed(str(ready.get("error", "the compiler is not ready")))

    def _line(self, cancel: threading.Event, patience: float) -> Mapping[str, object]:
        """Read one answer's head.  The child runs foreign code: it may say anything, or nothing."""
        line = bytearray()
        while not line.endswith(b"\n"):
            line += self._read(1, cancel, patience)
            if len(line) > _HEAD:
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
                raise BuildFailed(f"the compiler took longer than {patience:g} s")
            if not select.select([self._answers], [], [], children.TICK)[0]:
                continue
            part = os.read(self._answers, min(size - len(content), 1 << 20))
            if not part:
                status = self._child.wait() if self._child is not None else 0
                how = f"by {children.signal_name(-status)}" if status < 0 else f"with status {status}"
                raise BuildFailed(f"the compiler ended {how}")
            content += part
        return bytes(content)
