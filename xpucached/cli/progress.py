"""Door: seeing a job through, with live progress for whoever watches.  Touches the terminal."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from xpucached.api import requests
from xpucached.cli import hints
from xpucached.domain.jobs import JobState
from xpucached.printing import plain
from xpucached.render import jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xpucached.api.client import Answer, Client
    from xpucached.domain.jobs import Job

_ENDED: Final = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED})

# How long the daemon may hold an answer back, and so how old a figure on the screen may be.
_BEAT: Final = 1.0


def wait(client: Client, job: Job, *, quiet: bool, limit: float | None = None, given: str = "") -> Answer[Job]:
    """Wait until a job has ended, and give it with its report; or as it is after ``limit`` seconds.

    Ctrl-C ends the waiting, not the job: says so, with the flags that were ``given``, and raises `KeyboardInterrupt`.
    """
    end = time.monotonic() + limit if limit is not None else None
    try:
        with _interrupts() as stop_if_asked, shower(quiet=quiet) as show:
            while True:
                stop_if_asked()
                beat = _BEAT if end is None else min(_BEAT, max(0.0, end - time.monotonic()))
                answer = client.call(requests.WaitJob(id=job.id, timeout=beat))
                now = answer.value
                if ended(now) or (end is not None and time.monotonic() >= end):
                    return answer
                show(now)
    except KeyboardInterrupt:
        ending = hints.to_end_a_job(plain(job.id), given, root=os.geteuid() == 0)
        print(f"\njob {plain(job.id)} goes on; to end it: {ending}", file=sys.stderr)
        raise


@contextmanager
def _interrupts() -> Iterator[Callable[[], None]]:
    """Remember Ctrl-C, and give what raises it again: while Python clears an answer away, it would be lost."""
    seen: list[int] = []

    def note(number: int, _frame: object) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        # In the background of a script, Ctrl-C is somebody else's; and only a program's first thread hears signals.
        yield lambda: None
        return

    def stop_if_asked() -> None:
        if seen:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield stop_if_asked
    finally:
        signal.signal(signal.SIGINT, before)


def ended(job: Job) -> bool:
    """Return whether a job is over."""
    return job.state in _ENDED


def shower(*, quiet: bool) -> AbstractContextManager[Callable[[Job], None]]:
    """Return what shows how far a job is, to whoever watches."""
    if quiet:
        return nullcontext(lambda _job: None)
    return _live() if sys.stderr.isatty() else nullcontext(_LineProgress().show)


class _LineProgress:
    """One line per change, for logs and pipes."""

    def __init__(self) -> None:
        self._last = ""

    def show(self, job: Job) -> None:
        line = jobs.progress(job)
        if line != self._last:
            # How long it may last changes all the time, and is no news by itself.
            print(jobs.progress(job, datetime.now(UTC)), file=sys.stderr, flush=True)
            self._last = line


@contextmanager
def _live() -> Iterator[Callable[[Job], None]]:
    with _bar() as update:
        yield lambda job: update(job.progress.done, job.progress.total, jobs.progress(job, datetime.now(UTC)))


@contextmanager
def _bar() -> Iterator[Callable[[int, int, str], None]]:
    # Most commands never watch anything, and rich takes longer to load than they take to run.
    from rich.console import Console  # noqa: PLC0415 - see above
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - see above

    # Its escapes are its own; what it writes about a job is safe already.
    console = Console(file=sys.__stderr__, highlight=False, markup=False)
    columns = (BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)

        def show(done: int, total: int, words: str) -> None:
            progress.update(task, description=plain(words), completed=done, total=total or None)

        yield show


@contextmanager
def told_in_steps(*, quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """Give what shows how far something is that is no job: how much is done, of how much, and of what."""
    if quiet or not sys.stderr.isatty():
        said: list[str] = []

        def line(_done: int, _total: int, words: str) -> None:
            if not quiet and said[-1:] != [words]:
                said.append(words)
                print(plain(words), file=sys.stderr, flush=True)

        yield line
        return
    with _bar() as update:
        yield update


@contextmanager
def told_what_is_read(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Give what shows whoever sits at a terminal what is read just now; logs have no use for it."""
    if quiet or not sys.stderr.isatty():
        yield lambda _name: None
        return
    with _bar() as update:
        yield lambda name: update(0, 0, plain(name)[-_LONGEST_NAME:])


_LONGEST_NAME: Final = 50
"""Characters of a path that fit beside the bar: its end says most."""
