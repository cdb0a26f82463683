"""Door: seeing a job through, with live progress for whoever watches.  Touches the terminal."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar

from xpucached.api import requests
from xpucached.cli import hints
from xpucached.cli.bars import bar
from xpucached.domain.jobs import JobState
from xpucached.errors import Busy, NotFound, Restarted, Unavailable
from xpucached.printing import plain
from xpucached.render import jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xpucached.api.client import Answer, Client
    from xpucached.api.endpoints import Request
    from xpucached.domain.jobs import Job

_ENDED: Final = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED})

# How long the daemon may hold an answer back, and so how old a figure on the screen may be.
_BEAT: Final = 1.0

_AWAY = 15.0
"""Seconds for which a daemon that went away is waited for: one that is started again is back in two."""
_PAUSE: Final = 0.2

_T = TypeVar("_T")


class _Gone(Restarted):
    """A daemon answers that knows nothing of a job that it was asked for: it is another one than began it."""


def asked(client: Client, job: Job, timeout: float) -> Answer[Job]:
    """Ask for a job, and let the answer be held back so long.  Raises `Restarted` if it ended with its daemon.

    After a start, numbers of jobs begin anew: one of the same name is another.
    """
    try:
        answer = client.call(requests.WaitJob(id=job.id, timeout=timeout))
    except NotFound:
        raise lost(job) from None
    error = answer.value.error
    if answer.value.created != job.created or (error is not None and error.code == Restarted.code):
        raise lost(job)
    return answer


def lost(job: Job) -> _Gone:
    """Say that a job ended with its daemon."""
    message = f"the daemon ended, and job {plain(job.id)} with it: what it had done before stays done"
    return _Gone(message, hint="see how it stands, and ask again: xpucachectl status --wait")


def _seen_to(client: Client, job: Job, request: Request[Job], beat: float, left: float) -> Answer[Job]:
    """Ask for a job; where its daemon ended, wait for the next one, and begin anew what may be done twice.

    ``left`` are the seconds for which somebody wants to wait, if they said so.
    """
    with suppress(Unavailable):
        return asked(client, job, beat)
    print(f"xpucachectl: the daemon went away in the midst of job {plain(job.id)}; waiting for it", file=sys.stderr)
    try:
        return until_back(lambda: asked(client, job, 0.0), left)
    except _Gone:
        if not _may_be_done_twice(request):
            raise
    except Unavailable as error:
        raise Restarted(lost(job).message, hint=error.hint) from error
    begun = until_back(lambda: client.call(request), left)
    anew = f"the daemon was started again: job {plain(job.id)} is begun anew, as {plain(begun.value.id)}"
    print(f"xpucachectl: {anew}", file=sys.stderr)
    return begun


def _may_be_done_twice(request: Request[Job]) -> bool:
    """Return whether what is asked for comes to the same if a part of it was done already."""
    match request:
        case requests.VerifyStores(fix=fix):
            return not fix
        case requests.EvictEntries(dry_run=dry_run):
            return dry_run
        case _:
            return isinstance(request, requests.PrewarmModels | requests.ReplayEntries | requests.ScanStores)


def until_back(ask: Callable[[], _T], left: float = 0.0) -> _T:
    """Ask until a daemon that went away answers.  Raises `Unavailable` if it does not come back in ``left`` seconds.

    Those may be more than `_AWAY`, and not less: on a busy host a start takes long.
    """
    end = time.monotonic() + max(_AWAY, left)
    while True:
        try:
            return ask()
        except _Gone:
            raise
        except Unavailable:
            if time.monotonic() >= end:
                raise
            time.sleep(_PAUSE)


def in_time(ask: Callable[[], _T], limit: float) -> _T:
    """Ask; who says how long to wait waits as long for a daemon that is starting, or has too much to do."""
    end = time.monotonic() + limit
    while True:
        try:
            return ask()
        except Busy:
            if time.monotonic() + _BEAT >= end:
                raise
            time.sleep(_BEAT)


def wait(
    client: Client, request: Request[Job], job: Job, *, quiet: bool, limit: float | None = None, given: str = ""
) -> Answer[Job]:
    """Wait until a job has ended, and give it with its report; or as it is after ``limit`` seconds.

    Where its daemon was started again meanwhile, what was asked for is begun anew, if that comes to the same; else
    raises `Restarted`.  Ctrl-C ends the waiting, not the job: says so, with the flags that were ``given``, and raises
    `KeyboardInterrupt`.
    """
    end = time.monotonic() + limit if limit is not None else None
    try:
        with _interrupts() as stop_if_asked, shower(quiet=quiet) as show:
            while True:
                stop_if_asked()
                left = 0.0 if end is None else max(0.0, end - time.monotonic())
                began, beat = time.monotonic(), _BEAT if end is None else min(_BEAT, left)
                answer = _seen_to(client, job, request, beat, left)
                now = job = answer.value
                if ended(now) or (end is not None and time.monotonic() >= end):
                    return answer
                show(now)
                # Who does not hold an answer back must not keep us busy.
                time.sleep(max(0.0, min(_PAUSE, beat) - (time.monotonic() - began)))
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
    with bar() as update:
        yield lambda job: update(job.progress.done, job.progress.total, jobs.progress(job, datetime.now(UTC)))
