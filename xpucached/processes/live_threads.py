"""Observe: by which of its threads a process tells what it has: where the first one has ended alone, another one knows.

The kernel shows the first thread of such a process (``pthread_exit`` in ``main``) as a zombie with nothing mapped, no
variables and no open files, and the process works on.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_MOST: Final = 10_000
_STATE, _THREADS = 0, 17
"""Where these stand in a line of ``/proc/PID/stat``, behind the name."""
_ENDED: Final = {b"Z", b"X"}


def has_ended(fields: list[bytes]) -> bool:
    """Return whether of a process only its exit status is left.  Raises IndexError and ValueError."""
    return fields[_STATE] in _ENDED and int(fields[_THREADS]) <= 1


def live_thread(pid: int, proc: str | Path = "/proc") -> int:
    """Return the number below ``/proc`` under which a process tells what it has.  Raises OSError."""
    fields = _fields(f"{proc}/{pid}")
    if fields[_STATE] in _ENDED and not has_ended(fields):
        for thread in os.listdir(f"{proc}/{pid}/task")[:_MOST]:
            try:
                if _fields(f"{proc}/{pid}/task/{thread}")[_STATE] not in _ENDED:
                    return int(thread)
            except OSError:
                continue
    return pid


def _fields(process: str) -> list[bytes]:
    descriptor = os.open(f"{process}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096).rpartition(b")")[2].split()
    finally:
        os.close(descriptor)
