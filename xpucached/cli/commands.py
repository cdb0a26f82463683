"""Door: what each command asks, and how its answer is printed."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Final, TypeVar

from xpucached import __version__, api, codec, messages, render
from xpucached.api import host_requests
from xpucached.api.client import refusal
from xpucached.cli import capture_env, connect, listing, workload_options
from xpucached.cli.output import Output, say
from xpucached.cli.progress import ended, wait
from xpucached.domain.defects import Effect
from xpucached.domain.jobs import Event, Job, JobState
from xpucached.domain.models import Outcome
from xpucached.domain.status import Verdict
from xpucached.domain.workloads import Loader
from xpucached.errors import Conflict, RequestError, RunFailed, Unavailable
from xpucached.kinds.variables import CACHE_VARIABLES
from xpucached.render import diagnosis, users
from xpucached.render.text import TextStyle, plain, section

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping

    from xpucached.api import Request
    from xpucached.domain.models import ModelStatus

T = TypeVar("T")

CHECKS: Final[Mapping[Verdict | None, int]] = {
    Verdict.WARM: 0,
    Verdict.UNCACHED: 0,
    Verdict.COLD: 1,
    Verdict.WAITING: 1,
    Verdict.WARMING: 1,
    Verdict.STARTING: 1,
    Verdict.NO_MODELS: 1,
    Verdict.FAILED: 2,
    Verdict.NO_DEVICE: 3,
    None: 3,  # nobody answers
}
"""Exit status of ``status --check``, as monitoring systems expect it."""
_WARNINGS: Final = frozenset({"automatic-job-failed", "catalog-failing", "store-fault"})
"""Problems with which a host is not well, however warm it is."""
_LEVELS: Final = ("OK", "WARNING", "CRITICAL", "UNKNOWN")


def run(options: Namespace) -> int:
    """Do what the command line says; gives the exit status."""
    terminal = sys.stdout.isatty()
    colour = terminal and not options.no_color and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    style = TextStyle(datetime.now(UTC), get_terminal_size().columns if terminal else None, colour)
    client, hosts = connect.reach(options)
    commands = _HOST_COMMANDS if hosts else _COMMANDS
    if hosts and options.verb not in _HOST_COMMANDS:
        raise connect.whose(options.verb)
    try:
        return commands[options.verb](Output(options, client, style, options.json, options.quiet))
    except ValueError as error:
        # A request that cannot be meant refuses to exist; what it says is for people.
        raise RequestError(str(error)) from error
    finally:
        client.close()


# -- looking --------------------------------------------------------------------------------------------------------


def _status(output: Output) -> int:
    if not output.options.check:
        return output.show(api.GetStatus(), render.status, lambda value: value.verdict)
    answer = output.client.call(api.GetStatus())
    level = CHECKS[answer.value.verdict]
    sentence = answer.value.sentence
    warnings = [problem.message for problem in answer.value.problems if problem.code in _WARNINGS]
    if warnings and not level:
        level, sentence = 1, f"{sentence} But {warnings[0]}"
    output.tell(answer, lambda _value, _style: f"XPUCACHED {_LEVELS[level]} - {plain(sentence)}")
    return level


def _show(output: Output) -> int:
    return output.show(api.GetEntry(ref=output.options.ref), render.entry, lambda value: value.entry.id.ref)


def _stores(output: Output) -> int:
    return output.show(api.ListStores(), render.stores, lambda value: "\n".join(plain(str(one.store)) for one in value))


def _devices(output: Output) -> int:
    return output.show(
        api.ListDevices(), render.devices, lambda value: "\n".join(plain(one.name) for one in value.devices)
    )


def _runs(output: Output) -> int:
    asked = api.ListRuns(model=output.options.model, limit=output.options.limit)
    return output.show(asked, render.runs, lambda value: "\n".join(str(one.id) for one in value))


def _env(output: Output) -> int:
    syntax, model = output.options.syntax, output.options.model
    answer = output.client.call(api.GetEnv(model=model))
    # What is printed here is run by shells: whatever answers, it sets nothing but what a cache needs.
    left_out = render.unknown_variables(answer.value, CACHE_VARIABLES)
    if left_out:
        print(f"xpucachectl: left out, as no cache needs it: {plain(', '.join(left_out))[:500]}", file=sys.stderr)
        known = {name: text for name, text in answer.value.items() if name not in left_out}
        answer = type(answer)(codec.to_json(known), answer.kind)
    lines: tuple[str, ...] = ()
    if not output.json and not output.quiet:
        if model is not None:
            lines = diagnosis.caution(output.client.call(api.GetWhy(name=model)).value)
        else:
            lines = diagnosis.unsafe(output.client.call(api.GetStatus()).value.problems)
    # All three syntaxes take a line that begins so for a remark.
    head = "".join(f"# {line}\n" for line in lines)
    output.tell(answer, lambda value, _style: head + render.variables(value, syntax, CACHE_VARIABLES))
    return 0


def _why(output: Output) -> int:
    asked = api.GetWhy(name=output.options.model)
    return output.show(asked, diagnosis.why, lambda value: "\n".join(one.cause for one in value.explanations[:1]))


def _config(output: Output) -> int:
    return output.show(api.GetConfig(), render.settings, lambda value: "\n".join(sorted(value)))


def _version(output: Output) -> int:
    try:
        daemon: str | None = output.client.call(api.GetHello()).value.version
    except Unavailable:
        daemon = None
    if output.json:
        output.dump({"client": __version__, "daemon": daemon})
    else:
        print(f"xpucachectl {__version__}\n{f'xpucached {plain(daemon)}' if daemon else 'no daemon answers'}")
    return 0


def _events(output: Output) -> int:
    since = output.options.since
    if not output.options.follow:
        return output.show(
            api.ListEvents(since=since),
            lambda value, _style: "\n".join(render.event(one) for one in value) or "no events",
        )
    for line in output.client.follow(since):
        # One object a line, without the envelope.
        event = _event(line)
        print(codec.dumps(codec.to_json(event)).decode("ascii") if output.json else render.event(event), flush=True)
    return 0


def _event(line: str) -> Event:
    try:
        return codec.from_json(Event, messages.parse(line.encode("ascii"), largest=len(line), escaped_bytes=True))
    except ValueError as error:
        raise Unavailable("an event cannot be read", hint="another program may listen on that socket") from error


# -- models ---------------------------------------------------------------------------------------------------------


def _model_add(output: Output) -> int:
    given = output.options
    exercise = workload_options.read(given)
    plain_command = exercise.loader is Loader.COMMAND
    if given.command and not plain_command:
        raise RequestError(f"the loader {exercise.loader} takes no command", hint="leave out what stands behind --")
    # What is not started by a command is started by its interpreter.
    command = given.command if plain_command else [exercise.python]
    taken = capture_env.capture(command, given.directory, given.env, given.store, os.environ)
    request = api.AddModel(
        name=given.name,
        command=taken.command if plain_command else (),
        exercise=exercise,
        directory=taken.directory,
        variables=taken.variables,
        timeout=given.timeout,
        store=taken.store,
        priority=given.priority,
        pinned=given.pinned,
        before=tuple(given.before),
        replace=given.replace,
    )
    answer = output.client.call(request)
    output.tell(
        answer, lambda value, style: f"registered\n{render.model(value, style)}", lambda value: value.model.name
    )
    return 0


def _model_list(output: Output) -> int:
    return output.show(api.ListModels(), render.models, lambda value: "\n".join(one.model.name for one in value))


def _model_show(output: Output) -> int:
    name = output.options.name
    answer = output.client.call(api.GetModel(name=name))
    figures = () if output.json or output.quiet else output.client.call(api.GetHistory(name=name)).value

    def write(value: ModelStatus, style: TextStyle) -> str:
        text = render.model(value, style)
        return f"{text}\n\n{section('Usually', diagnosis.usual(figures, style), style)}" if figures else text

    output.tell(answer, write, lambda value: value.model.name)
    return 0


def _model_history(output: Output) -> int:
    asked = api.GetHistory(name=output.options.name)
    return output.show(asked, diagnosis.history, lambda value: "\n".join(one.figure for one in value if one.worse))


def _model_remove(output: Output) -> int:
    name = output.options.name
    return output.show(api.RemoveModel(name=name), lambda _value, _style: f"removed {plain(name)}", lambda _value: "")


# -- jobs -----------------------------------------------------------------------------------------------------------


def _job_names(job: Job) -> str:
    return job.id


def _begin(output: Output, request: Request[Job], names: Callable[[Job], str] = _job_names) -> int:
    return _ended(output, request, names)[1]


def _ended(output: Output, request: Request[Job], names: Callable[[Job], str]) -> tuple[Job | None, int]:
    """Begin a job and see it through: give it (None if nobody waits for it), and the exit status."""
    begun = output.client.call(request)
    if not output.options.wait:
        output.tell(begun, lambda value, _style: f"job {value.id}: {render.progress(value)}", _job_names)
        return None, 0
    limit = getattr(output.options, "timeout", None)
    last = wait(output.client, begun.value, quiet=output.quiet, limit=limit)
    output.tell(last, render.job, names)
    if not ended(last.value):
        job = plain(last.value.id)
        print(f"xpucachectl: the time is up, and job {job} goes on; see: xpucachectl jobs {job}", file=sys.stderr)
        return None, RunFailed.exit
    return last.value, _verdict(last.value)


def _verdict(job: Job) -> int:
    """Give the exit status of a job that has ended.  Its report is printed already."""
    if job.error is not None:
        return refusal(job.error.code, job.error.message, job.error.hint).exit
    if job.state is not JobState.DONE:
        return RunFailed.exit
    if job.replay is not None and job.replay.failed:
        print(f"xpucachectl: not everything was rebuilt: {job.replay.failed} failed", file=sys.stderr)
        return RunFailed.exit
    if job.prewarm is not None:
        cold = sum(one.outcome is not Outcome.WARMED for one in job.prewarm.runs) + len(job.prewarm.deferred)
        if cold:
            print(f"xpucachectl: not every model is warm: {cold} not", file=sys.stderr)
            return RunFailed.exit
    return 0


def _prewarm(output: Output) -> int:
    given = output.options
    if given.models and (given.all or given.stale):
        raise RequestError("expected exactly one of MODEL…, --all and --stale", hint="xpucachectl prewarm --help")
    stale = given.stale or not (given.models or given.all)
    request = api.PrewarmModels(models=tuple(given.models), all=given.all, stale=stale, force=given.force)
    return _begin(output, request, lambda job: "\n".join(one.model for one in job.prewarm.runs) if job.prewarm else "")


def _evict(output: Output) -> int:
    given = output.options
    request = api.EvictEntries(
        dry_run=given.dry_run, refs=tuple(given.refs), reasons=tuple(given.reason), plan=given.plan
    )
    return _begin(output, request, _evicted)


def _evicted(job: Job) -> str:
    if job.evict is None:
        return ""
    planned = (one.entry.entry.id.ref for one in job.evict.plan.evict)
    return "\n".join(planned if job.evict.dry_run else job.evict.removed)


def _trash_list(output: Output) -> int:
    return output.show(api.ListTrash(), render.trash, lambda value: "\n".join(one.ref for one in value))


def _trash_restore(output: Output) -> int:
    request = api.RestoreTrash(refs=tuple(output.options.refs), all=output.options.all)
    job, status = _ended(
        output, request, lambda job: "\n".join(one.ref for one in job.trash.restored) if job.trash else ""
    )
    left = [one for one in job.trash.restored if one.key is None] if job is not None and job.trash else []
    return status or (Conflict.exit if left else 0)


def _trash_empty(output: Output) -> int:
    request = api.EmptyTrash(refs=tuple(output.options.refs))
    return _begin(output, request, lambda job: "\n".join(job.trash.dropped) if job.trash else "")


def _verify(output: Output) -> int:
    request = api.VerifyStores(stores=tuple(output.options.stores), fix=output.options.fix, deep=output.options.deep)
    job, status = _ended(output, request, _found)
    return status or _sound(job)


def _doctor(output: Output) -> int:
    if not output.json and not output.quiet:
        known = output.client.call(api.GetStatus()).value
        say(f"watching: {render.watching(known.watching, output.style)}")
        say(render.problems(known.problems, output.style))
    job, status = _ended(output, api.VerifyStores(fix=output.options.fix, faults_only=True), _found)
    return status or _sound(job)


def _found(job: Job) -> str:
    findings = job.verify.findings if job.verify is not None else ()
    return "\n".join(one.ref or plain(str(one.store.root)) for one in findings)


def _sound(job: Job | None) -> int:
    """Give 1 while something costs programs time, fails them or hangs them."""
    if job is None or job.verify is None:
        return 0
    bad = [one for one in job.verify.findings if not one.done and one.effect is not Effect.HARMLESS]
    return RunFailed.exit if bad else 0


def _replay(output: Output) -> int:
    given = output.options
    request = api.ReplayEntries(
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
    return "\n".join(one.entry.entry.id.ref for one in job.replay.plan.rebuild) if job.replay is not None else ""


def _scan(output: Output) -> int:
    request = api.ScanStores(stores=tuple(output.options.stores), full=output.options.full)
    return _begin(output, request, lambda _job: "")


def _jobs(output: Output) -> int:
    given = output.options
    if given.cancel is not None:
        return output.show(api.CancelJob(id=given.cancel), _cancelled, _job_names)
    if given.id is not None:
        return output.show(api.GetJob(id=given.id), render.job, _job_names)
    return output.show(api.ListJobs(), render.jobs, lambda value: "\n".join(one.id for one in value))


def _cancelled(job: Job, style: TextStyle) -> str:
    if job.state in {JobState.DONE, JobState.FAILED}:
        return f"too late: {plain(job.id)} has ended\n{render.job(job, style)}"
    return render.job(job, style)


# -- the host's daemon ----------------------------------------------------------------------------------------------


def _host(output: Output) -> int:
    if not output.options.check:
        return output.show(
            host_requests.GetHost(), users.host_users, lambda value: "\n".join(one.user for one in value.users)
        )
    answer = output.client.call(host_requests.GetHost())
    level, sentence = users.check(answer.value)
    output.tell(answer, lambda _value, _style: f"XPUCACHED {_LEVELS[level]} - {plain(sentence)}")
    return level


def _driver_changed(output: Output) -> int:
    return output.show(api.Refresh(), lambda _value, _style: "" if output.options.no_wait else "told")


_HOST_COMMANDS: Final[Mapping[str, Callable[[Output], int]]] = {
    "status": _host,
    "prewarm": _prewarm,
    "jobs": _jobs,
    "driver-changed": _driver_changed,
    "version": _version,
}
"""What is asked of the host's daemon itself."""

_COMMANDS: Final[Mapping[str, Callable[[Output], int]]] = {
    "status": _status,
    "ls": listing.ls,
    "show": _show,
    "stores": _stores,
    "devices": _devices,
    "model add": _model_add,
    "model list": _model_list,
    "model show": _model_show,
    "model history": _model_history,
    "model remove": _model_remove,
    "prewarm": _prewarm,
    "evict": _evict,
    "replay": _replay,
    "trash list": _trash_list,
    "trash restore": _trash_restore,
    "trash empty": _trash_empty,
    "verify": _verify,
    "doctor": _doctor,
    "scan": _scan,
    "jobs": _jobs,
    "driver-changed": _driver_changed,
    "events": _events,
    "runs": _runs,
    "why": _why,
    "env": _env,
    "config show": _config,
    "version": _version,
}
