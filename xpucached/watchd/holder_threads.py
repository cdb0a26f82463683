"""Does what a client's descriptor may hold up for ever, where nobody else waits for it: looking at it, and closing it.

Its file system may be a user's own, and never answer; to close a connection can take as long as its peer likes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from xpucached.watchd import ownership

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xpucached.watchd.ownership import Root
    from xpucached.watchd.uids import QuotaHolder

T = TypeVar("T")

_MOST: Final = 64  # threads, also those from which no answer is expected any more
_MOST_UNKNOWN: Final = 32  # of those who have no account
_PATIENCE: Final = 10.0  # seconds for which an answer is expected
_FAREWELL: Final = 2.0  # seconds for all at the end


@dataclass(eq=False, slots=True)
class WatchRequest(Generic[T]):
    """A directory that a client handed in, and what was found out about it."""

    client: T
    uid: int
    holder: QuotaHolder
    number: int
    descriptor: int
    loads: bool
    found: Root | OSError | None = None
    given_up: bool = False


@dataclass(eq=False, slots=True)
class _Line(Generic[T]):
    """What is to be done for one holder, in this order: directories to look at, and descriptors to close."""

    jobs: deque[WatchRequest[T] | int] = field(default_factory=deque)
    began: float = 0.0
    thread: threading.Thread | None = None
    stuck: bool = False


class HolderThreads(Generic[T]):
    """One thread for each holder of descriptors; who hands in what never answers waits for that alone.

    Used from one thread; ``ring`` is called from others when something is to be had from `done`, or room was made.
    """

    def __init__(self, ring: Callable[[], None], patience: float = _PATIENCE) -> None:
        self._ring = ring
        self._patience = patience
        self._changing = threading.Lock()
        self._lines: dict[QuotaHolder, _Line[T]] = {}
        self._done: deque[WatchRequest[T]] = deque()

    def of(self, holder: QuotaHolder) -> int:
        """Return how many descriptors of somebody wait here."""
        line = self._lines.get(holder)
        return len(line.jobs) if line else 0

    def held(self, *, known: bool = True) -> int:
        """Return how many of all do; without ``known`` of those only who have no account."""
        with self._changing:
            return sum(len(line.jobs) for holder, line in self._lines.items() if known or not holder.known)

    def longest(self) -> int:
        """Return how many of one holder do, at most."""
        with self._changing:
            return max((len(line.jobs) for line in self._lines.values()), default=0)

    def look(self, asked: WatchRequest[T]) -> str:
        """Look at one, after what the same holder handed in before; return why not, if it is not."""
        line = self._lines.get(asked.holder)
        if line is not None and line.stuck:
            return "what was handed in before does not answer, and no more is looked at meanwhile"
        if (line is None or line.thread is None) and not self._may_begin(asked.holder):
            return "there are file systems that do not answer, and no more is looked at meanwhile"
        self._add(asked.holder, asked)
        return ""

    def close(self, holder: QuotaHolder, *descriptors: int) -> None:
        """Close them, after what is to be done for the same holder before."""
        if descriptors:
            self._add(holder, *descriptors)

    def done(self) -> Iterator[WatchRequest[T]]:
        """Yield those that were looked at."""
        while self._done:
            yield self._done.popleft()

    def overdue(self) -> Iterator[WatchRequest[T]]:
        """Give up what waits for somebody whose descriptors do not answer; and begin with what waited for a thread."""
        late = time.monotonic() - self._patience
        given_up: list[WatchRequest[T]] = []
        with self._changing:
            for line in self._lines.values():
                if line.thread is not None and not line.stuck and line.began < late:
                    line.stuck = True
                    given_up += [job for job in line.jobs if isinstance(job, WatchRequest) and not job.given_up]
            for asked in given_up:
                asked.given_up = True
            idle = [holder for holder, line in self._lines.items() if line.thread is None]
        for holder in idle:
            self._begin(holder)
        yield from given_up

    def finish(self) -> None:
        """Wait until all is done, but not for ever."""
        end = time.monotonic() + _FAREWELL
        for line in tuple(self._lines.values()):
            if line.thread is not None:
                line.thread.join(max(0.0, end - time.monotonic()))

    def _may_begin(self, holder: QuotaHolder) -> bool:
        with self._changing:
            busy = [one for one, line in self._lines.items() if line.thread is not None]
        unknown = sum(not one.known for one in busy)
        return len(busy) < _MOST and (holder.known or unknown < _MOST_UNKNOWN)

    def _add(self, holder: QuotaHolder, *jobs: WatchRequest[T] | int) -> None:
        with self._changing:
            self._lines.setdefault(holder, _Line()).jobs.extend(jobs)
        self._begin(holder)

    def _begin(self, holder: QuotaHolder) -> None:
        """Start the thread of a holder who has something to do and no thread, if there may be one more."""
        may = self._may_begin(holder)
        with self._changing:
            line = self._lines.get(holder)
            if line is None or line.thread is not None or not may:
                return
            line.began = time.monotonic()
            line.thread = threading.Thread(target=self._work, args=(holder, line), name="holder", daemon=True)
        try:
            line.thread.start()
        except (RuntimeError, MemoryError):
            line.thread = None
            # What is only to be closed waits for another moment: rung for, it would be tried at once, without end.
            for job in [job for job in line.jobs if isinstance(job, WatchRequest) and not job.given_up]:
                line.jobs.remove(job)
                job.found = OSError(errno.EAGAIN, "there is no thread to look at it; it may be tried again")
                self._done.append(job)
                self._ring()

    def _work(self, holder: QuotaHolder, line: _Line[T]) -> None:
        while True:
            with self._changing:
                line.stuck = False
                if not line.jobs:
                    del self._lines[holder]
                    break
                line.began = time.monotonic()
                job = line.jobs[0]
                wanted = isinstance(job, WatchRequest) and not job.given_up
            if isinstance(job, WatchRequest) and wanted:
                job.found = _looked_at(job)
            else:
                with contextlib.suppress(OSError):
                    os.close(job.descriptor if isinstance(job, WatchRequest) else job)
            with self._changing:
                if isinstance(job, WatchRequest) and wanted:
                    if job.given_up:
                        # Nobody waits for it any more, and it is closed in its next turn.
                        continue
                    self._done.append(job)
                line.jobs.popleft()
            if isinstance(job, WatchRequest):
                self._ring()
        self._ring()


def _looked_at(asked: WatchRequest[T]) -> Root | OSError:
    try:
        return ownership.judged(asked.uid, asked.number, asked.descriptor)
    except OSError as error:
        return error
    except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits for the answer
        return OSError(errno.EIO, str(error))
