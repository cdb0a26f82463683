"""Act: a control group of its own for a child, where systemd gives one; starts nothing but ``systemd-run``."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from uuid import uuid4

from xpucached.domain.throttling import RunPriority
from xpucached.processes import child

log = logging.getLogger(__name__)

_PATIENCE: Final = 10.0
_SPARE: Final = 64 << 20
_TALK: Final = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
"""The variables by which ``systemd-run`` finds the user's systemd."""


class Cgroup:
    """Puts ``systemd-run --scope`` before a command, if this host and this user have what that takes.

    Asked once, because it starts something: a host without systemd, a daemon that is fenced in itself, and a user
    without a manager get no group; there the nice level, the I/O class and the limits of the supervisor have to do.
    """

    def __init__(self, variables: Mapping[str, str], running: Path = Path("/run/systemd/system")) -> None:
        """``variables`` are the daemon's own."""
        self._variables = {name: variables[name] for name in _TALK if name in variables}
        self._path = child.search_path(variables)
        self._running = running
        self._asking = threading.Lock()
        self._known: tuple[str, ...] | None = None

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables that the command needs."""
        return self._variables if self._start() else {}

    def command(self, run_priority: RunPriority, *, memory: int, tasks: int, seconds: float) -> tuple[str, ...]:
        """Return the words to put before a command; none where there is no group to be had."""
        start = self._start()
        if not start:
            return ()
        properties = {
            "CPUWeight": run_priority.cpu_weight,
            "IOWeight": run_priority.io_weight,
            # The supervisor counts first, and says what happened; this is for what grows faster than it looks.
            "MemoryMax": memory + memory // 10 + _SPARE,
            "TasksMax": tasks,
            "RuntimeMaxSec": f"{seconds:.0f}s",
        }
        words = [f"--property={name}={value}" for name, value in properties.items()]
        return (
            *start,
            f"--unit=xpucached-{uuid4().hex}",
            f"--description=xpucached: {run_priority.occasion}",
            *words,
            "--",
        )

    def give_up(self) -> None:
        """Use no groups any more: one could not be had."""
        with self._asking:
            self._known = ()

    def _start(self) -> tuple[str, ...]:
        with self._asking:
            if self._known is None:
                self._known = self._ask()
            return self._known

    def _ask(self) -> tuple[str, ...]:
        program = shutil.which("systemd-run", path=self._path)
        if program is None or not self._running.is_dir():
            return ()
        whose = "--system" if os.geteuid() == 0 else "--user"
        start = (program, whose, "--scope", "--quiet", "--collect", "--no-ask-password")
        try:
            variables = {**self._variables, "PATH": self._path}
            done = child.run([*start, "true"], variables=variables, seconds=_PATIENCE)
        except (OSError, ValueError) as error:
            log.info("no control groups for models: %s", error)
            return ()
        if done.status != 0:
            said = done.complaint.decode(errors="replace").strip()[:200]
            log.info("no control groups for models: systemd-run %s: %s", done.words, said)
            return ()
        return start
