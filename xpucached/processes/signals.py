"""Act: what is done with any child: politeness, signals, and the mark by which a lost one is found."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import TYPE_CHECKING, Final

import psutil

from xpucached.processes import live_threads
from xpucached.processes.environ import Environments, variables

if TYPE_CHECKING:
    from xpucached.domain.throttling import RunPriority

log = logging.getLogger(__name__)

MARK: Final = "XPUCACHED_RUN"
"""Every process of a run carries this variable, so that a successor of this daemon finds it."""

TICK: Final = 0.1


def be_polite(pid: int, run_priority: RunPriority | None = None) -> None:
    """Let programs that serve somebody go first.  Threads and children that come later inherit it."""
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        process.nice(run_priority.nice if run_priority is not None else 10)
        if run_priority is None or run_priority.idle_io:
            process.ionice(psutil.IOPRIO_CLASS_IDLE)


def end_marked(mark: str) -> int:
    """Kill every process whose mark begins so; say how many there were."""
    ended: set[int] = set()
    # A process may fork between the look and the signal, so look until nobody is there.
    for _ in range(20):
        environments = Environments()
        left = [process for process in psutil.process_iter() if _carries(process, mark, environments)]
        if not left:
            if environments.passed_over:
                log.warning("processes with too many variables to look for a run's: %d", environments.passed_over)
            break
        for process in left:
            ended.add(process.pid)
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(TICK / 2)
    else:
        log.warning("processes of a run cannot be ended: %s", sorted(ended))
    return len(ended)


def _carries(process: psutil.Process, mark: str, environments: Environments) -> bool:
    try:
        if process.pid == os.getpid() or process.uids().real != os.getuid():
            return False
        told = environments.read(live_threads.live_thread(process.pid)) or b""
        return any(value.startswith(mark) for _, value in variables(told, MARK))
    except (psutil.Error, OSError):
        return False
