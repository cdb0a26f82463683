"""Door: the commands that begin something and see it through, and those about jobs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from xpucached.api import requests
from xpucached.api.client import refusal
from xpucached.cli import driver_changed, everyone, hints
from xpucached.cli.progress import ended, wait
from xpucached.domain.defects import Effect
from xpucached.domain.jobs import Job, JobState
from xpucached.domain.models import Outcome
from xpucached.domain.plans import EvictionReport, PrewarmReport, ReplayReport
from xpucached.domain.trash import Finding, TrashReport, VerifyReport
from xpucached.errors import Conflict, RequestError, RunFailed
from xpucached.printing import plain
from xpucached.render import host, jobs, status
from xpucached.render.text import TextStyle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xpucached.api.endpoints import Request
    from xpucached.cli.output import Output


def _job_names(job: Job) -> str:
    return job.id


def _begin(output: Output, request: Request[Job], names: Callable[[Job], str] = _job_names) -> int:
    return _ended(output, request, names)[1]


def _ended(output: Output, request: Request[Job], names: Callable[[Job], str]) -> tuple[Job | None, int]:
    """Begin a job and see it through: give it (None if nobody waits for it), and the exit status."""
    begun = output.client.call(request)
    if not output.options.wait:
        output.tell(begun, lambda value, _style: f"job {value.id}: {jobs.progress(value)}", _job_names)
        return None, 0
    limit = getattr(output.options, "timeout", None)
    given = hints.flags(output.options)
    last = wait(output.client, begun.value, quiet=output.quiet, limit=limit, given=given)
    output.tell(last, jobs.job, names)
    if not ended(last.value):
        job = plain(last.value.id)
        see, end = hints.to_see_a_job(job, given), hints.to_end_a_job(job, given, root=os.geteuid() == 0)
        print(f"xpucachectl: the time is up, and job {job} goes on; see: {see}; to end it: {end}", file=sys.stderr)
        return None, RunFailed.exit
    return last.value, _verdict(last.value)


def _verdict(job: Job) -> int:
    """Return the exit status of a job that has ended.  Its report is printed already."""
    if job.error is not None:
        return refusal(job.error.code, job.error.message, job.error.hint).exit
    if job.state is not JobState.DONE:
        return RunFailed.exit
    report = job.report
    if isinstance(report, ReplayReport) and report.failed:
        print(f"xpucachectl: not everything was rebuilt: {report.failed} failed", file=sys.stderr)
        return RunFailed.exit
    if isinstance(report, PrewarmReport):
        cold = sum(one.outcome is not Outcome.WARMED for one in report.runs) + len(report.deferred)
        if cold:
            print(f"xpucachectl: not every model is warm: {cold} not", file=sys.stderr)
            return RunFailed.exit
    return 0


def prewarm(output: Output) -> int:
    """Warm models."""
    given = output.options
    if given.models and (given.all or given.stale):
        raise RequestError("expected exactly one of MODEL…, --all and --stale", hint="xpucachectl prewarm --help")
    stale = given.stale or not (given.models or given.all)
    request = requests.PrewarmModels(models=tuple(given.models), all=given.all, stale=stale, force=given.force)
    return _begin(output, request, _warmed)


def _warmed(job: Job) -> str:
    return "\n".join(one.model for one in job.report.runs) if isinstance(job.report, PrewarmReport) else ""


def _evict(output: Output) -> int:
    given = output.options
    request = requests.EvictEntries(
        dry_run=given.dry_run, refs=tuple(given.refs), reasons=tuple(given.reason), plan=given.plan
    )
    return _begin(output, request, _evicted)


def _evicted(job: Job) -> str:
    report = job.report
    if not isinstance(report, EvictionReport):
        return ""
    return "\n".join((one.entry.entry.id.ref for one in report.plan.evict) if report.dry_run else report.removed)


def _trash_restore(output: Output) -> int:
    request = requests.RestoreTrash(refs=tuple(output.options.refs), all=output.options.all)
    job, status = _ended(output, request, lambda job: "\n".join(one.ref for one in _trashed(job).restored))
    return status or (Conflict.exit if any(one.key is None for one in _trashed(job).restored) else 0)


def _trash_empty(output: Output) -> int:
    request = requests.EmptyTrash(refs=tuple(output.options.refs))
    return _begin(output, request, lambda job: "\n".join(_trashed(job).dropped))


def _trashed(job: Job | None) -> TrashReport:
    return job.report if job is not None and isinstance(job.report, TrashReport) else TrashReport()


def _verify(output: Output) -> int:
    request = requests.VerifyStores(
        stores=tuple(output.options.stores), fix=output.options.fix, deep=output.options.deep
    )
    job, status = _ended(output, request, _found)
    return status or _sound(job)


def _doctor(output: Output) -> int:
    if not output.json and not output.quiet:
        known = output.client.call(requests.GetStatus()).value
        output.say(f"watching: {status.watching(known.watching, output.style)}")
        output.say(host.problems(known.problems, output.style))
    job, code = _ended(output, requests.VerifyStores(fix=output.options.fix, faults_only=True), _found)
    return code or _sound(job)


def _found(job: Job) -> str:
    return "\n".join(one.ref or plain(str(one.store.root)) for one in _findings(job))


def _findings(job: Job | None) -> tuple[Finding, ...]:
    return job.report.findings if job is not None and isinstance(job.report, VerifyReport) else ()


def _sound(job: Job | None) -> int:
    """Return 1 while something costs programs time, fails them or hangs them, or nobody knows whether it does."""
    bad = any(not one.done and one.effect is not Effect.HARMLESS for one in _findings(job))
    report = job.report if job is not None and isinstance(job.report, VerifyReport) else None
    unread = report is not None and (report.unread or report.unread_parts)
    return RunFailed.exit if bad or unread else 0


def _replay(output: Output) -> int:
    given = output.options
    request = requests.ReplayEntries(
        dry_run=given.dry_run,
        stores=tuple(given.store),
        models=tuple(given.model),
        to=given.to,
        driver_root=given.driver_root,
        device=given.device,
        into=given.into,
        driver_cache=given.driver_cache,
    )
    return _begin(output, request, _replayed)


def _replayed(job: Job) -> str:
    report = job.report
    return "\n".join(one.entry.entry.id.ref for one in report.plan.rebuild) if isinstance(report, ReplayReport) else ""


def _scan(output: Output) -> int:
    request = requests.ScanStores(stores=tuple(output.options.stores), full=output.options.full)
    return _begin(output, request, lambda _job: "")


def job_list(output: Output) -> int:
    """List jobs, or show or cancel one."""
    given = output.options
    if given.cancel is not None:
        return output.ask(requests.CancelJob(id=given.cancel), _cancelled, _job_names)
    return output.show(requests.ListJobs()) if given.id is None else output.show(requests.GetJob(id=given.id))


def jobs_of_everyone(output: Output) -> int:
    """List the jobs of all users, or show or cancel one of theirs."""
    listed = output.options.id is None and output.options.cancel is None
    return everyone.show(output, requests.ListJobs()) if listed else job_list(output)


def _cancelled(job: Job, style: TextStyle) -> str:
    if job.state in {JobState.DONE, JobState.FAILED}:
        return f"too late: {plain(job.id)} has ended\n{jobs.job(job, style)}"
    return jobs.job(job, style)


COMMANDS: Final[Mapping[str, Callable[[Output], int]]] = {
    "prewarm": prewarm,
    "evict": _evict,
    "replay": _replay,
    "trash restore": _trash_restore,
    "trash empty": _trash_empty,
    "verify": _verify,
    "doctor": _doctor,
    "scan": _scan,
    "jobs": job_list,
    "driver-changed": driver_changed.of_daemon,
}
