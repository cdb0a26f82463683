"""Door: what takes longer, begun at all users' workers and seen through: a job for each, one progress, one exit status.

Two users' jobs go on at a time, as when the driver has changed: a host has others to serve.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached.cli import everyone, hints
from xpucached.cli.output import say
from xpucached.cli.progress import asked, ended, shower
from xpucached.domain.jobs import Job, JobState, Progress
from xpucached.domain.names import JobId
from xpucached.errors import Restarted, RunFailed
from xpucached.printing import plain, quoted
from xpucached.render.jobs import progress
from xpucached.render.text import section

if TYPE_CHECKING:
    from collections.abc import Callable

    from xpucached.api.client import Answer, Client
    from xpucached.api.endpoints import Request
    from xpucached.cli.everyone import UserAnswer
    from xpucached.cli.output import Output
    from xpucached.domain.users import UserStatus
    from xpucached.render.text import TextStyle

_AT_ONCE: Final = 2
_TURN: Final = 5.0
"""Seconds for which a worker may hold an answer back."""


def run(
    output: Output,
    request: Request[Job],
    write: Callable[[Job, TextStyle], str],
    names: Callable[[Job], str],
    judge: Callable[[Job, str], int],
) -> int:
    """Begin a job at every user's worker and see all through; gives the worst exit status."""
    known = _Jobs(request, wait=output.options.wait, limit=getattr(output.options, "timeout", None))

    def see_through(user: UserStatus, client: Client) -> Answer[Job]:
        answer = known.see_through(user, client)
        if not output.json:
            # What cannot be written is that user's failure, and nobody else's.
            _told(everyone.UserAnswer(user, answer), output, write, names)
        return answer

    whom = everyone.users(output.client)
    at_once = _AT_ONCE if output.options.wait else everyone.AT_ONCE
    try:
        with shower(quiet=output.quiet) as show:
            answers = list(everyone.each(whom, see_through, at_once, lambda: show(known.together(len(whom)))))
    except KeyboardInterrupt:
        known.say_what_goes_on()
        raise
    answers.sort(key=lambda one: one.user.user)
    if output.json:
        output.dump({"users": [one.data for one in answers]})
    else:
        say(
            ("\n" if output.quiet else "\n\n").join(filter(None, (_told(one, output, write, names) for one in answers)))
        )
    late = known.say_what_goes_on() if output.options.wait else 0
    judged = [judge(one.answer.value, one.user.user) for one in answers if one.answer and ended(one.answer.value)]
    return max(everyone.missing(answers), late, *judged, 0)


def _told(
    one: UserAnswer[Job], output: Output, write: Callable[[Job, TextStyle], str], names: Callable[[Job], str]
) -> str:
    if one.answer is None:
        return ""
    job, owner = one.answer.value, plain(one.user.user)
    if not output.options.wait:
        return f"{owner}:{plain(job.id)}" if output.quiet else f"{owner}: job {plain(job.id)}: {progress(job)}"
    if output.quiet:
        return "\n".join(f"{owner}:{plain(name)}" for name in names(job).splitlines())
    # A command in it is meant for this user's worker.
    text = hints.aimed(write(job, output.style), f"--of {quoted(owner)} ", os.environ)
    return section(owner, text, output.style)


class _Jobs:
    """The jobs of users that were begun.  Written by several threads."""

    def __init__(self, request: Request[Job], *, wait: bool, limit: float | None) -> None:
        self._request = request
        self._wait = wait
        self._end = time.monotonic() + limit if limit is not None else None
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}

    def see_through(self, user: UserStatus, client: Client) -> Answer[Job]:
        """Begin one user's job, and wait until it has ended or the time is up."""
        if self._left() <= 0:
            raise RunFailed("the time was up before anything was begun")
        answer = client.call(self._request)
        while True:
            with self._lock:
                self._jobs[user.user] = replace(answer.value, report=None, mended=None)
            left = self._left()
            if not self._wait or ended(answer.value) or left <= 0:
                return answer
            began = time.monotonic()
            try:
                answer = asked(client, answer.value, min(_TURN, left))
            except Restarted:
                with self._lock:
                    del self._jobs[user.user]  # it ended with its daemon, and does not go on
                raise
            if not ended(answer.value):
                # A worker that does not wait must not keep us busy.
                time.sleep(max(0.0, min(1.0, left) - (time.monotonic() - began)))

    def _left(self) -> float:
        return _TURN if self._end is None else self._end - time.monotonic()

    def together(self, users: int) -> Job:
        """Return all jobs as one, for who watches."""
        with self._lock:
            some = dict(self._jobs)
        going = {user: job for user, job in some.items() if not ended(job)}
        first = next(iter(some.values()), None)
        about = "; ".join(f"{user} {job.progress.done}/{job.progress.total}" for user, job in going.items())
        detail = f"users{f', now {about}' if about else ''}"
        done = Progress(len(some) - len(going), users, detail)
        kind = first.kind if first else "job"
        return Job(JobId(""), kind, JobState.RUNNING, datetime.now(UTC), progress=done)

    def say_what_goes_on(self) -> int:
        """Say which jobs go on, and how to end them; gives the exit status."""
        with self._lock:
            going = {user: job for user, job in self._jobs.items() if not ended(job)}
        for user, job in sorted(going.items()):
            sudo = "" if os.geteuid() == 0 else "sudo "
            end = sudo + hints.to_end_a_job(plain(job.id), f"--of {quoted(user)} ", root=True)
            print(f"xpucachectl: job {plain(job.id)} of {plain(user)} goes on; to end it: {end}", file=sys.stderr)
        return RunFailed.exit if going else 0
