"""Hear a child until its supervisor ends, and have it ended when its time is up.

A supervisor that the kernel holds, for a file system that somebody mounted, cannot be ended: it is left, in the end.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from dataclasses import dataclass, field
from typing import Final

from xpucached.domain.models import Outcome
from xpucached.processes import child, signals
from xpucached.processes.output import ChildOutput
from xpucached.processes.pause import PauseControl

GRACE: Final = 5.0
"""So long a child may take to end itself after SIGTERM."""
LAST: Final = 30.0
"""So long the supervisor may take to end everybody."""
_REST: Final = 4.0
"""So many times as long as reading a piece of its output took us, a child is not read: it waits, not the others."""


@dataclass(slots=True)
class ChildPipes:
    """What is heard of one child: what it prints, and what is said on other descriptors."""

    supervisor: child.Process
    output: ChildOutput
    received: dict[int, bytearray]
    resting: dict[int, float] = field(default_factory=dict)  #: until when a descriptor is not read, so that others run
    _silent_at: float | None = None

    def silent(self, now: float, *, heard: bool) -> float:
        """Return for how many seconds all has been closed on which something could be ``heard``."""
        self._silent_at = None if heard or self.resting else self._silent_at or now
        return now - (self._silent_at or now)


def _reason_to_stop(cancel: threading.Event, *, late: bool, endless: bool) -> Outcome | None:
    if cancel.is_set():
        return Outcome.CANCELLED
    if late:
        return Outcome.TIMED_OUT
    return Outcome.FAILED if endless else None


def attend(
    pipes: ChildPipes, timeout: float, cancel: threading.Event, began: float, pause: PauseControl
) -> Outcome | None:
    """Read what the child prints until its supervisor ends; have it ended when its time is up."""
    stopped: Outcome | None = None
    looked = False
    next_at: float | None = None
    steps = iter((b"t", b"k", b""))
    with selectors.DefaultSelector() as selector:
        streams = [
            stream.fileno() for stream in (pipes.supervisor.stdout, pipes.supervisor.stderr) if stream is not None
        ]
        for descriptor in (*streams, *pipes.received):
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ)
        while True:
            _read_some(selector, pipes)
            if pipes.output.traced and not looked:
                # Who tells of an entry has the runtime mapped just now, however short its life is.
                looked = True
                pause.say(b"l")
            if pipes.supervisor.poll() is not None:
                # What was printed last is still in the pipe.  Somebody who got away may hold the other end for ever,
                # so only what is there is read.
                for _ in range(64):
                    if not _read_some(selector, pipes, wait=0.0):
                        break
                return stopped
            now = time.monotonic()
            if pipes.silent(now, heard=bool(selector.get_map())) >= LAST:
                return stopped
            late = now - began - pause.paused >= timeout
            stopped = stopped or _reason_to_stop(cancel, late=late, endless=bool(pipes.output.endless))
            if stopped is None:
                pause.step(now)
            if stopped is not None and (next_at is None or now >= next_at):
                order = next(steps, None)
                next_at = now + (GRACE if order == b"t" else LAST)
                if order is None:
                    return stopped
                if not order:
                    pipes.supervisor.kill()
                else:
                    # Who stands still cannot end himself.
                    pause.say(b"c" + order)


def _read_some(selector: selectors.BaseSelector, pipes: ChildPipes, wait: float = signals.TICK) -> bool:
    if not selector.get_map() and not pipes.resting:
        if wait:
            # Everything is closed, so the end is near.
            child.wait(pipes.supervisor, wait)
        return False
    read = False
    now = time.monotonic()
    for descriptor in [descriptor for descriptor, until in pipes.resting.items() if until <= now or not wait]:
        del pipes.resting[descriptor]
        selector.register(descriptor, selectors.EVENT_READ)
    if pipes.resting:
        wait = min(wait, max(0.0, min(pipes.resting.values()) - now))
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
            if key.fd in pipes.received:
                # The model's code may write there too: of what is too long, the end counts.
                pipes.received[key.fd] += data
                del pipes.received[key.fd][: -(1 << 20)]
                pipes.output.told += len(data)
            else:
                pipes.output.feed(key.fd, data)
            pipes.resting[key.fd] = time.monotonic() + _REST * (time.monotonic() - began)
        read = read or bool(data)
    return read
