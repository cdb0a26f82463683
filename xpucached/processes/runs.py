"""What a child is to do that runs a model: the words to start, and the order that the model runner reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from msgspec.structs import asdict

from xpucached.domain.models import Workload
from xpucached.domain.workloads import SHIPPED, Loader, Variant
from xpucached.processes import child, serving
from xpucached.processes.pause import RunLimits

LIBEXEC: Final = Path(__file__).resolve().parent.parent / "libexec"

PROMPTS: Final = LIBEXEC.parent / "data" / "prompts.txt"

DISK: Final = 10 << 30
"""Bytes that a child may write to its temporary directory: compilers leave some hundred megabytes there."""


def largest_file(disk: int | None) -> int:
    """Return how large one file may become; shared memory is a file, so by default as large as the machine's memory."""
    return disk or max(DISK, psutil.virtual_memory().total)


@dataclass(frozen=True, slots=True)
class ChildRun:
    """What one child is to do."""

    workload: Workload
    variant: Variant
    what: str
    compare: bool
    run_limits: RunLimits | None = None
    ask: serving.Ask = serving.at_once

    @property
    def by_runner(self) -> bool:
        """Whether it is the model runner that is started, and not the model's own command."""
        return self.what == "devices" or self.workload.exercise.loader is not Loader.COMMAND

    @property
    def is_server(self) -> bool:
        """Whether it is the server runner that is started, which starts the model's own command."""
        return not self.by_runner and self.workload.exercise.serves

    def command(self, descriptor: int) -> tuple[str, ...]:
        """Return the words to start; of a plain command, with the variant in the places that ask for it."""
        if self.is_server:
            return (*child.python(LIBEXEC / "server_runner.py"), "--fd", str(descriptor))
        if self.by_runner:
            return (self.workload.exercise.python, str(LIBEXEC / "model_runner.py"), "--fd", str(descriptor))
        return self._words()

    def _words(self) -> tuple[str, ...]:
        if self.workload.exercise.is_plain:
            return self.workload.command
        return tuple(self._filled(word) for word in self.workload.command)

    def _filled(self, word: str) -> str:
        variant = self.variant
        for key, text in (("device", variant.device), ("precision", variant.precision), ("shape", variant.shape)):
            word = word.replace(f"{{{key}}}", text)
        return word

    def order(self, token: str) -> bytes:
        """Return what the model runner reads, or the server runner.

        Raises `BadRequestsFile` if a server's requests cannot be read now.
        """
        if self.is_server:
            exercise = self.workload.exercise
            requests = serving.read(exercise.requests, exercise.ready_url, self.ask) if exercise.requests else ()
            return json.dumps(
                {
                    "token": token,
                    "command": self._words(),
                    "ready_url": exercise.ready_url,
                    "ready_line": exercise.ready_line,
                    "ready_timeout": exercise.ready_timeout,
                    "requests": [asdict(one) for one in requests],
                }
            ).encode()
        if not self.by_runner:
            return b""
        given = asdict(self.workload.exercise)
        shipped = given["inputs"] == SHIPPED
        if shipped:
            given["inputs"] = str(PROMPTS)
        return json.dumps(
            {
                "token": token,
                "what": self.what,
                "compare": self.compare,
                "variant": asdict(self.variant),
                "exercise": given,
                "every": shipped,
            },
            default=str,
        ).encode()
