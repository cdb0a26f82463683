"""What the daemon is doing and has done: jobs, in memory and bounded."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import astuple, replace

from xpucached.domain.jobs import ErrorInfo, Job, JobState, Progress
from xpucached.domain.models import Outcome
from xpucached.domain.names import JobId
from xpucached.domain.reports import PrewarmReport, Report, VerifyReport
from xpucached.errors import Busy, Conflict, NotFound, Restarted, RunFailed, XpucachedError
from xpucached.incidents import unexpected
from xpucached.service.events import Clock

log = logging.getLogger(__name__)

Work = Callable[["Handle"], Awaitable[Report]]

_KEPT_JOBS: Final = 200

_KEPT_ROWS: Final = 100_000
"""Entries in the reports of jobs that are remembered: of an eviction of as many they take 130 MB …"""
_ROW: Final = 1300
"""… and so many bytes of what programs printed count as one of them …"""
_NEWEST: Final = 3
"""… but of so many that ended last whoever waits for them hears, whatever they report."""

_MOST_WAITING: Final = 500
"""Jobs that go on or wait, beyond which nobody may ask for more."""

ENDING: Final = 10.0
"""Seconds that who cancels a job waits for its end."""

SAVING: Final = 3.0
"""Seconds that each thing which is written down before a daemon's end may take."""

_OVER: Final = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED})


class Handle:
    """How a job's work tells how far it is."""

    def __init__(self, jobs: Jobs, job: JobId) -> None:
        self._jobs = jobs
        self._id = job

    def progress(self, done: int, total: int, detail: str = "", left: float | None = None) -> None:
        """Tell how far it is; ``left`` are the seconds that the rest usually takes, where that is known."""
        ends = None if left is None else self._jobs.clock() + timedelta(seconds=left)
        self._jobs.change(self._id, progress=Progress(done, total, detail, ends))

    def mended(self, report: VerifyReport) -> None:
        """Tell what was mended before the job's own work."""
        self._jobs.change(self._id, mended=report)


class Jobs:
    """What takes longer than an answer may: started, watched, cancelled, remembered for a while."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._jobs: dict[JobId, Job] = {}
        self._tasks: dict[JobId, asyncio.Task[None]] = {}
        self._over: list[JobId] = []  # in the order in which they ended
        self._news = asyncio.Event()
        self._number = 0
        self._stopping = False
        self.on_end: Callable[[], None] = lambda: None
        """What the daemon does when a job is over."""

    def start(self, kind: str, work: Work, *, asked: bool = True) -> Job:
        """Begin a job and return at once.  Raises `Busy` where too many wait, unless nobody ``asked`` for it."""
        if asked and len(self._tasks) >= _MOST_WAITING:
            raise Busy(f"{len(self._tasks)} jobs go on or wait", hint="see: xpucachectl jobs --state running")
        self._number += 1
        job = Job(JobId(f"{kind}-{self._number}"), kind, JobState.RUNNING, self.clock(), self.clock())
        self._jobs[job.id] = job
        self._tasks[job.id] = asyncio.create_task(self._run(job.id, work), name=f"job {job.id}")
        self._forget()
        return job

    async def attend(self, kind: str, work: Work) -> None:
        """Do what the daemon would do anyway, and show it as a job; what is raised is the caller's, too."""
        # It has the number that no other has, so it shifts none of theirs.
        job = Job(JobId(f"{kind}-0"), kind, JobState.RUNNING, self.clock(), self.clock())
        self._jobs[job.id] = job
        await self._perform(job.id, work)

    async def _run(self, job: JobId, work: Work) -> None:
        try:
            await self._perform(job, work)
        except (asyncio.CancelledError, XpucachedError):
            pass  # noted, and nobody waits for it here
        finally:
            self._tasks.pop(job, None)

    async def _perform(self, job: JobId, work: Work) -> None:
        """Do a job's work and note how it ends; what ends it early is raised."""
        try:
            report = await work(Handle(self, job))
        except asyncio.CancelledError:
            self._cancelled(job)
            raise
        except XpucachedError as error:
            self._failed(job, error)
            raise
        except Exception as error:
            told = unexpected(log, f"in the job {job}", error, affected="what the job did before stays done")
            self._failed(job, told)
            raise told from error
        self._finish(job, report)

    def _failed(self, job: JobId, error: XpucachedError) -> None:
        refusal = ErrorInfo(error.code, error.message, error.hint)
        self.change(job, state=JobState.FAILED, finished=self.clock(), error=refusal)

    def _finish(self, job: JobId, report: Report) -> None:
        state, error = JobState.DONE, None
        runs = report.runs if isinstance(report, PrewarmReport) else ()
        if cold := [run for run in runs if run.outcome not in {Outcome.WARMED, Outcome.UNCACHED}]:
            names = ", ".join(run.model for run in cold)
            sentence, hint = f"not warm: {names}: {cold[0].detail}", f"see: xpucachectl runs {cold[0].model}"
            state, error = JobState.FAILED, ErrorInfo(RunFailed.code, sentence, hint)
        # What came to its end has done all of it, whenever it last told how far it was.
        total = self._jobs[job].progress.total
        progress = Progress(total, total) if total else None
        self.change(job, state=state, finished=self.clock(), progress=progress, report=report, error=error)

    def change(
        self,
        job: JobId,
        *,
        state: JobState | None = None,
        finished: datetime | None = None,
        progress: Progress | None = None,
        mended: VerifyReport | None = None,
        report: Report | None = None,
        error: ErrorInfo | None = None,
    ) -> None:
        """Note something about a job, and wake who waits for it."""
        old = self._jobs[job]
        self._jobs[job] = replace(
            old,
            state=state or old.state,
            finished=finished or old.finished,
            progress=progress or old.progress,
            mended=mended or old.mended,
            report=report or old.report,
            error=error or old.error,
        )
        if finished is not None:
            self._over.append(job)
            self.on_end()
        self._news.set()
        self._news = asyncio.Event()

    def _forget(self) -> None:
        going = set(self._over[: max(0, len(self._jobs) - _KEPT_JOBS)])
        rows = 0
        for number, id_ in enumerate(reversed(self._over)):
            job = self._jobs[id_]
            rows += (its := _rows(job.report) + _rows(job.mended))
            if its and rows > _KEPT_ROWS and number >= _NEWEST:
                going.add(id_)
        self._over = [id_ for id_ in self._over if id_ not in going]
        for id_ in going:
            del self._jobs[id_]

    def all(self) -> tuple[Job, ...]:
        """Return the jobs that are remembered, newest first."""
        return tuple(reversed(self._jobs.values()))

    def running(self) -> tuple[Job, ...]:
        """Return the jobs that go on now."""
        return tuple(job for job in self._jobs.values() if job.state not in _OVER)

    def job(self, job: str) -> Job:
        """Return one job."""
        try:
            return self._jobs[JobId(job)]
        except KeyError:
            raise NotFound(f"no job {job}", hint="see: xpucachectl jobs") from None

    async def wait(self, job: str, timeout: float) -> Job:  # noqa: ASYNC109 - the caller's own bound, and no error
        """Return a job once it is over, or as it is after ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while (found := self.job(job)).state not in _OVER:
                    await self._news.wait()
        except TimeoutError:
            return self.job(job)
        return found

    async def cancel(self, job: str) -> Job:
        """End a job; what it has done stays done.  Raises `Conflict` for what the daemon does in any case.

        One that takes long to end is given as it is: it is told to, and nothing new of it begins.
        """
        found = self.job(job)
        task = self._tasks.get(found.id)
        if task is None and found.state not in _OVER:
            raise Conflict(f"{job} is the look that a start begins with: it ends by itself")
        if task is not None:
            task.cancel()
            # A thread of it that changes a store is waited for, and that may lie where nobody answers.
            await asyncio.wait([task], timeout=ENDING)
            if task.done():
                self._never_began(found.id)
        return self.job(job)

    def _never_began(self, job: JobId) -> None:
        """A task that is cancelled before its first step runs none of its code, so nobody noted its end."""
        if self._jobs[job].state not in _OVER:
            self._tasks.pop(job, None)
            self._cancelled(job)

    def _cancelled(self, job: JobId) -> None:
        """Note that somebody ended a job, or that it ended with us."""
        stopped = ErrorInfo(Restarted.code, f"the daemon was stopped, and job {job} with it", "")
        error = stopped if self._stopping else None
        self.change(job, state=JobState.CANCELLED, finished=self.clock(), error=error)

    async def stop(self) -> None:
        """End all jobs; one that does not end in time is left as it is."""
        self._stopping = True
        tasks = dict(self._tasks)
        for task in tasks.values():
            task.cancel()
        if tasks:
            await asyncio.wait(tasks.values(), timeout=ENDING)
        for job, task in tasks.items():
            if task.done():
                self._never_began(job)


def _rows(report: Report | None) -> int:
    """Return how many things a report, or the plan in it, names, and how many what programs printed counts for."""
    parts = [one for one in (report, getattr(report, "plan", None)) if one is not None]
    runs = report.runs if isinstance(report, PrewarmReport) else ()
    printed = sum(sys.getsizeof(text) for run in runs for text in (run.output, *(one.output for one in run.trials)))
    return sum(len(value) for part in parts for value in astuple(part) if isinstance(value, tuple)) + printed // _ROW
