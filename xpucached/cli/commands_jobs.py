"""Door: the commands that begin something and see it through, and those about jobs."""

from __future__ import annotations

import itertools
import os
import sys
import time
from typing import TYPE_CHECKING, Final

from xpucached.api import requests
from xpucached.api.client import refusal
from xpucached.cli import driver_changed, errands, everyone, hints, listing, narrowing
from xpucached.cli.progress import ended, in_time, wait
from xpucached.domain.defects import Effect
from xpucached.domain.jobs import Job, JobState
from xpucached.domain.models import Outcome
from xpucached.domain.reports import EvictionReport, PrewarmReport, ReplayReport, TrashReport, VerifyReport
from xpucached.domain.trash import UNTRUSTED, Finding
from xpucached.errors import Conflict, NotFound, RequestError, RunFailed
from xpucached.printing import plain
from xpucached.render import host, jobs, status
from xpucached.render.text import TextStyle, fold

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Mapping

    from xpucached.api.endpoints import Request
    from xpucached.cli.output import Output
    from xpucached.domain.names import ModelName


def _job_names(job: Job) -> str:
    return job.id


def _begin(output: Output, request: Request[Job], names: Callable[[Job], str] = _job_names) -> int:
    return _ended(output, request, names)[1]


def _ended(output: Output, request: Request[Job], names: Callable[[Job], str]) -> tuple[Job | None, int]:
    """Begin a job and see it through: give it (None if nobody waits for it), and the exit status."""
    limit = getattr(output.options, "timeout", None)
    if not output.options.wait:
        answer = output.client.call(request)
        output.tell(answer, lambda value, _style: f"job {value.id}: {jobs.progress(value)}", _job_names)
        return None, 0
    asked = time.monotonic()
    begun = in_time(lambda: output.client.call(request), limit or 0.0)
    if limit is not None:
        limit = max(0.0, limit - (time.monotonic() - asked))
    given = hints.flags(output.options)
    last = wait(output.client, request, begun.value, quiet=output.quiet, limit=limit, given=given)
    output.tell(last, jobs.job, names)
    if not ended(last.value):
        job = plain(last.value.id)
        see, end = hints.to_see_a_job(job, given), hints.to_end_a_job(job, given, root=os.geteuid() == 0)
        print(f"xpucachectl: the time is up, and job {job} goes on; see: {see}; to end it: {end}", file=sys.stderr)
        return None, RunFailed.exit
    return last.value, _verdict(last.value)


def _of_everyone(
    output: Output,
    request: Request[Job],
    names: Callable[[Job], str],
    judge: Callable[[Job], int] = lambda _job: 0,
    write: Callable[[Job, TextStyle], str] = jobs.job,
) -> int:
    """Begin a job at every user's and see all through; gives the exit status."""
    if any(getattr(request, name, None) for name in _OF_ONE):
        verb = output.options.verb
        message = f"{verb} for all users takes no names of entries, stores, plans and models: these are one user's"
        raise RequestError(message, hint=f"say whose: xpucachectl --of USER {verb}")
    return errands.run(output, request, write, names, lambda job, owner: _verdict(job, owner) or judge(job))


_OF_ONE: Final = ("refs", "plan", "stores", "models", "into", "driver_cache")
"""What a request may name that is one user's."""


def _verdict(job: Job, owner: str = "") -> int:
    """Return the exit status of a job that has ended, whosever it is.  Its report is printed already."""
    whose = f"{plain(owner)}: " if owner else ""
    if job.error is not None:
        return refusal(job.error.code, job.error.message, job.error.hint).exit
    if job.state is not JobState.DONE:
        return RunFailed.exit
    report = job.report
    if isinstance(report, ReplayReport) and report.failed:
        print(f"xpucachectl: {whose}not everything was rebuilt: {report.failed} failed", file=sys.stderr)
        return RunFailed.exit
    if isinstance(report, PrewarmReport):
        # What uses no cache that is known is as warm as it can be.
        cold = sum(one.outcome not in {Outcome.WARMED, Outcome.UNCACHED} for one in report.runs)
        cold += sum(not one.uncached for one in report.deferred)
        if cold:
            print(f"xpucachectl: {whose}not every model is warm: {cold} not", file=sys.stderr)
            return RunFailed.exit
    return 0


def warm(output: Output, model: ModelName) -> int:
    """Warm one model, and wait until it is."""
    request = requests.PrewarmModels(models=(model,))
    begun = output.client.call(request)
    last = wait(output.client, request, begun.value, quiet=output.quiet, given=hints.flags(output.options))
    output.tell(last, jobs.job, _warmed)
    return _verdict(last.value)


def prewarm(output: Output) -> int:
    """Warm models."""
    return _begin(output, _prewarm_request(output.options), _warmed)


def _prewarm_everyone(output: Output) -> int:
    """Warm the models that are named, of the one user whose they are, or all users'."""
    return prewarm(output) if output.options.models else _of_everyone(output, _prewarm_request(output.options), _warmed)


def _prewarm_request(given: Namespace) -> requests.PrewarmModels:
    if given.models and (given.all or given.stale):
        raise RequestError("expected exactly one of MODEL…, --all and --stale", hint="xpucachectl prewarm --help")
    stale = given.stale or not (given.models or given.all)
    return requests.PrewarmModels(models=tuple(given.models), all=given.all, stale=stale, force=given.force)


def _warmed(job: Job) -> str:
    return "\n".join(one.model for one in job.report.runs) if isinstance(job.report, PrewarmReport) else ""


def _evict_request(given: Namespace) -> requests.EvictEntries:
    return requests.EvictEntries(
        dry_run=given.dry_run, refs=tuple(given.refs), reasons=tuple(given.reason), plan=given.plan
    )


def _evict(output: Output) -> int:
    """Evict what is named: by ref, by reason, or by where it came from."""
    given = output.options
    if given.origin is None and given.bundle is None:
        return _begin(output, _evict_request(given), _evicted)
    if given.refs or given.plan:
        raise RequestError("expected either REF… or where entries came from", hint="xpucachectl evict --help")

    def query(_shown: int, after: str | None) -> requests.ListEntries:
        return requests.ListEntries(origin=given.origin, bundle=given.bundle, limit=requests.MAX_PAGE, after=after)

    def every() -> Iterator[str]:
        return (one.entry.id.ref for page in listing.pages(output.client, query) for one in page.value.entries)

    coming, stay = every(), set[str]()
    for number in range(_MOST_STEPS):
        refs = tuple(itertools.islice((ref for ref in coming if ref not in stay), _STEP))
        if not refs and not number:
            raise NotFound("no entry came from there", hint="see: xpucachectl ls --origin imported")
        last = len(refs) < _STEP
        if not (last or output.options.wait):
            raise RequestError(f"{_STEP} entries and more go in steps, which are waited for", hint="without --no-wait")
        request = requests.EvictEntries(dry_run=given.dry_run, refs=refs, reasons=tuple(given.reason))
        job, status = _ended(output, request, _evicted) if refs else (None, 0)
        if last or status or job is None:
            return status
        if not given.dry_run:
            # From the beginning: what stays may have moved into a place that was passed already.
            coming = every()
            stay.update(refs)
            stay.difference_update(job.report.removed if isinstance(job.report, EvictionReport) else ())
            if len(stay) > _MOST_STAYING:
                raise RequestError(
                    f"more than {_MOST_STAYING} entries stay", hint="see why: xpucachectl evict --dry-run"
                )
    return 0


_STEP: Final = 5000
"""Entries that one request names: no request has room for more than twice as many."""
_MOST_STEPS: Final = 10_000
"""Fifty million entries; whoever answers so long names none that there are."""
_MOST_STAYING: Final = 200_000
"""Entries that were named and are still there: they are remembered, and read anew at each step."""


def _evict_everyone(output: Output) -> int:
    """Evict what the policy lets go, of all users."""
    if output.options.origin is not None or output.options.bundle is not None:
        hint = "say whose: xpucachectl --of USER evict"
        raise RequestError("where entries came from is told by one user's catalog", hint=hint)
    return _of_everyone(output, _evict_request(output.options), _evicted)


def _evicted(job: Job) -> str:
    report = job.report
    if not isinstance(report, EvictionReport):
        return ""
    return "\n".join((one.entry.entry.id.ref for one in report.plan.evict) if report.dry_run else report.removed)


def _trash_restore(output: Output) -> int:
    if bool(output.options.refs) == output.options.all:
        raise RequestError("expected either REF… or --all", hint="see: xpucachectl trash list")
    request = requests.RestoreTrash(refs=tuple(output.options.refs), all=output.options.all)
    job, status = _ended(output, request, lambda job: "\n".join(one.ref for one in _trashed(job).restored))
    return status or (Conflict.exit if any(one.key is None for one in _trashed(job).restored) else 0)


def _trash_empty(output: Output) -> int:
    request = requests.EmptyTrash(refs=tuple(output.options.refs))
    if not output.options.yes and not output.json and sys.stdin.isatty() and sys.stderr.isatty():
        what = f"{len(request.refs)} of what is in the trash" if request.refs else "everything in the trash"
        print(f"Delete {what} for good? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            print("nothing was deleted", file=sys.stderr)
            return RunFailed.exit
    return _begin(output, request, lambda job: "\n".join(_trashed(job).dropped))


def _trashed(job: Job | None) -> TrashReport:
    return job.report if job is not None and isinstance(job.report, TrashReport) else TrashReport()


def _verify(output: Output) -> int:
    job, status = _ended(output, _verify_request(output.options), _found)
    return status or _sound(job)


def _verify_request(given: Namespace) -> requests.VerifyStores:
    return requests.VerifyStores(stores=tuple(given.stores), fix=given.fix, deep=given.deep)


def _doctor(output: Output) -> int:
    if not output.json and not output.quiet:
        known = output.client.call(requests.GetStatus()).value
        output.say(fold(f"watching: {status.watching(known.watching, output.style)}", output.style, 2))
        # What the look itself finds, it tells.
        output.say(host.problems([one for one in known.problems if one.code not in UNTRUSTED], output.style))
    job, code = _ended(output, _doctor_request(output.options), _found)
    return code or _sound(job)


def _doctor_request(given: Namespace) -> requests.VerifyStores:
    return requests.VerifyStores(fix=given.fix, faults_only=True)


def _diagnosis(job: Job, style: TextStyle) -> str:
    """Write what a look for faults found, with how it is watched for them and the problems of the daemon."""
    report = job.report
    if not isinstance(report, VerifyReport):
        return jobs.job(job, style)
    watching = f"watching: {status.watching(report.watching, style)}" if report.watching else ""
    problems = host.problems([one for one in report.problems if one.code not in UNTRUSTED], style)
    return "\n".join(filter(None, (watching, problems, jobs.job(job, style))))


def _found(job: Job) -> str:
    return "\n".join(one.ref or plain(str(one.store.root)) for one in _findings(job))


def _findings(job: Job | None) -> tuple[Finding, ...]:
    return job.report.findings if job is not None and isinstance(job.report, VerifyReport) else ()


def _sound(job: Job | None) -> int:
    """Return 1 while something costs programs time, fails them or hangs them, or nobody knows whether it does."""
    bad = any(not one.done and one.effect is not Effect.HARMLESS for one in _findings(job))
    report = job.report if job is not None and isinstance(job.report, VerifyReport) else None
    unread = report is not None and (report.unread or report.unread_parts)
    known = report is not None and (report.untrusted or report.damaged)
    return RunFailed.exit if bad or unread or known else 0


def _replay_request(given: Namespace) -> requests.ReplayEntries:
    return requests.ReplayEntries(
        dry_run=given.dry_run,
        stores=tuple(given.store),
        models=tuple(given.model),
        to=given.to,
        driver_root=given.driver_root,
        device=given.device,
        into=given.into,
        driver_cache=given.driver_cache,
    )


def _replayed(job: Job) -> str:
    report = job.report
    return "\n".join(one.entry.entry.id.ref for one in report.plan.rebuild) if isinstance(report, ReplayReport) else ""


def _scan_request(given: Namespace) -> requests.ScanStores:
    return requests.ScanStores(stores=tuple(given.stores), full=given.full)


def _nothing(_job: Job) -> str:
    return ""


def job_list(output: Output) -> int:
    """List jobs, or show or cancel one."""
    given = output.options
    if given.cancel is not None:
        return output.ask(requests.CancelJob(id=given.cancel), _cancelled, _job_names)
    return (
        narrowing.part(output, requests.ListJobs()) if given.id is None else output.show(requests.GetJob(id=given.id))
    )


def jobs_of_everyone(output: Output) -> int:
    """List the jobs of all users, or show one of theirs."""
    given = output.options
    if given.cancel is not None:
        whose = "" if "." in given.cancel else "--of USER "
        hint = hints.to_end_a_job(given.cancel, whose, root=os.geteuid() == 0)
        raise RequestError(f"say whose job {plain(given.cancel)} is", hint=hint)
    listed = given.id is None
    return everyone.show(output, requests.ListJobs()) if listed else job_list(output)


def _cancelled(job: Job, style: TextStyle) -> str:
    if job.state in {JobState.DONE, JobState.FAILED}:
        return f"too late: {plain(job.id)} has ended\n{jobs.job(job, style)}"
    return jobs.job(job, style)


OF_EVERYONE: Final[Mapping[str, Callable[[Output], int]]] = {
    "prewarm": _prewarm_everyone,
    "evict": _evict_everyone,
    "replay": lambda output: _of_everyone(output, _replay_request(output.options), _replayed),
    "verify": lambda output: _of_everyone(output, _verify_request(output.options), _found, _sound),
    "doctor": lambda output: _of_everyone(output, _doctor_request(output.options), _found, _sound, _diagnosis),
    "scan": lambda output: _of_everyone(output, _scan_request(output.options), _nothing),
    "jobs": jobs_of_everyone,
}
"""What all users' workers are asked."""

COMMANDS: Final[Mapping[str, Callable[[Output], int]]] = {
    "prewarm": prewarm,
    "evict": _evict,
    "replay": lambda output: _begin(output, _replay_request(output.options), _replayed),
    "trash restore": _trash_restore,
    "trash empty": _trash_empty,
    "verify": _verify,
    "doctor": _doctor,
    "scan": lambda output: _begin(output, _scan_request(output.options), _nothing),
    "jobs": job_list,
    "driver-changed": driver_changed.of_daemon,
}
