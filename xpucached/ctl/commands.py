"""Door: what each command asks, and how its answer is printed."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Final, TypeVar

from xpucached import __version__, api, messages, render
from xpucached.api import codec, hosting
from xpucached.api.client import refusal
from xpucached.ctl import capture, exercising, reaching
from xpucached.ctl.desk import Desk, say
from xpucached.ctl.waiting import ended, wait
from xpucached.domain import Effect, Event, Job, JobState, Loader, Outcome, Verdict
from xpucached.errors import Conflict, NotFound, RequestError, RunFailed, Unavailable
from xpucached.render import advice, people
from xpucached.render.text import Look, plain, section

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping

    from xpucached.api import Json, Request
    from xpucached.domain import ModelStatus

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
    look = Look(datetime.now(UTC), get_terminal_size().columns if terminal else None, colour)
    client, hosts = reaching.reach(options)
    commands = _HOST_COMMANDS if hosts else _COMMANDS
    if hosts and options.verb not in _HOST_COMMANDS:
        raise reaching.whose(options.verb)
    try:
        return commands[options.verb](Desk(options, client, look, options.json, options.quiet))
    except ValueError as error:
        # A request that cannot be meant refuses to exist; what it says is for people.
        raise RequestError(str(error)) from error
    finally:
        client.close()


# -- looking --------------------------------------------------------------------------------------------------------


def _status(desk: Desk) -> int:
    if not desk.options.check:
        return desk.show(api.GetStatus(), render.status, lambda value: value.verdict)
    answer = desk.client.call(api.GetStatus())
    level = CHECKS[answer.value.verdict]
    sentence = answer.value.sentence
    warnings = [problem.message for problem in answer.value.problems if problem.code in _WARNINGS]
    if warnings and not level:
        level, sentence = 1, f"{sentence} But {warnings[0]}"
    desk.tell(answer, lambda _value, _look: f"XPUCACHED {_LEVELS[level]} - {plain(sentence)}")
    return level


def _ls(desk: Desk) -> int:
    given = desk.options
    smallest = [low for low, _ in given.size if low is not None]
    largest = [high for _, high in given.size if high is not None]
    values: list[Json] = []
    after: str | None = None
    while True:
        left = given.limit - len(values) if given.limit else api.MAX_PAGE
        answer = desk.client.call(
            api.ListEntries(
                kind=given.kind,
                store=given.store,
                driver=given.driver,
                architecture=given.arch,
                device=given.device,
                model=given.model,
                state=given.state,
                flaw=given.flaw,
                kernel=given.kernel,
                min_size=max(smallest, default=None),
                max_size=min(largest, default=None),
                unused=given.unused,
                limit=min(left, api.MAX_PAGE),
                after=after,
            )
        )
        page = answer.data
        rows = page.get("entries") if isinstance(page, dict) else None
        if not isinstance(page, dict) or not isinstance(rows, list):
            raise Unavailable("the answer is not xpucached's")
        values += rows
        after = answer.value.next
        if after is None or (given.limit and len(values) >= given.limit):
            break
    # All pages as one: whoever asked does not care how they travelled.
    whole = type(answer)({**page, "entries": values}, answer.kind)
    if not values:
        _check_names(desk)
    narrowed = any(getattr(given, name) for name in _NARROWING)
    desk.tell(
        whole,
        lambda value, look: "no entries match" if narrowed and not value.entries else render.entries(value, look),
        lambda value: "\n".join(one.entry.id.ref for one in value.entries),
    )
    return 0


_NARROWING: Final = (
    *("kind", "driver", "arch", "device", "model", "store"),
    *("state", "flaw", "kernel", "size", "unused"),
)


def _check_names(desk: Desk) -> None:
    # Nothing found for a name that does not exist is a slip of the finger, not an answer.
    model, store = desk.options.model, desk.options.store
    if model is not None:
        desk.client.call(api.GetModel(name=model))
    if store is not None and all(one.store.root != store for one in desk.client.call(api.ListStores()).value):
        raise NotFound(f"no store {store}", hint="see: xpucachectl stores")


def _show(desk: Desk) -> int:
    return desk.show(api.GetEntry(ref=desk.options.ref), render.entry, lambda value: value.entry.id.ref)


def _stores(desk: Desk) -> int:
    return desk.show(
        api.ListStores(), render.stores, lambda value: "\n".join(plain(str(one.store.root)) for one in value)
    )


def _devices(desk: Desk) -> int:
    return desk.show(
        api.ListDevices(), render.devices, lambda value: "\n".join(plain(one.name) for one in value.devices)
    )


def _runs(desk: Desk) -> int:
    asked = api.ListRuns(model=desk.options.model, limit=desk.options.limit)
    return desk.show(asked, render.runs, lambda value: "\n".join(str(one.id) for one in value))


def _env(desk: Desk) -> int:
    syntax, model = desk.options.syntax, desk.options.model
    answer = desk.client.call(api.GetEnv(model=model))
    # What is printed here is run by shells: whatever answers, it sets nothing but what a cache needs.
    left_out = render.unknown_variables(answer.value)
    if left_out:
        print(f"xpucachectl: left out, as no cache needs it: {plain(', '.join(left_out))[:500]}", file=sys.stderr)
        known = {name: text for name, text in answer.value.items() if name not in left_out}
        answer = type(answer)(codec.to_json(known), answer.kind)
    lines: tuple[str, ...] = ()
    if not desk.json and not desk.quiet:
        if model is not None:
            lines = advice.caution(desk.client.call(api.GetWhy(name=model)).value)
        else:
            lines = advice.unsafe(desk.client.call(api.GetStatus()).value.problems)
    # All three syntaxes take a line that begins so for a remark.
    head = "".join(f"# {line}\n" for line in lines)
    desk.tell(answer, lambda value, _look: head + render.variables(value, syntax))
    return 0


def _why(desk: Desk) -> int:
    asked = api.GetWhy(name=desk.options.model)
    return desk.show(asked, advice.why, lambda value: "\n".join(one.cause for one in value.findings[:1]))


def _config(desk: Desk) -> int:
    return desk.show(api.GetConfig(), render.settings, lambda value: "\n".join(sorted(value)))


def _version(desk: Desk) -> int:
    try:
        daemon: str | None = desk.client.call(api.GetHello()).value.version
    except Unavailable:
        daemon = None
    if desk.json:
        desk.dump({"client": __version__, "daemon": daemon})
    else:
        print(f"xpucachectl {__version__}\n{f'xpucached {plain(daemon)}' if daemon else 'no daemon answers'}")
    return 0


def _events(desk: Desk) -> int:
    since = desk.options.since
    if not desk.options.follow:
        return desk.show(
            api.ListEvents(since=since),
            lambda value, _look: "\n".join(render.event(one) for one in value) or "no events",
        )
    for line in desk.client.follow(since):
        # One object a line, without the envelope.
        event = _event(line)
        print(codec.dumps(codec.to_json(event)).decode("ascii") if desk.json else render.event(event), flush=True)
    return 0


def _event(line: str) -> Event:
    try:
        return codec.from_json(Event, messages.parse(line.encode("ascii"), largest=len(line), escaped_bytes=True))
    except ValueError as error:
        raise Unavailable("an event cannot be read", hint="another program may listen on that socket") from error


# -- models ---------------------------------------------------------------------------------------------------------


def _model_add(desk: Desk) -> int:
    given = desk.options
    exercise = exercising.read(given)
    plain_command = exercise.loader is Loader.COMMAND
    if given.command and not plain_command:
        raise RequestError(f"the loader {exercise.loader} takes no command", hint="leave out what stands behind --")
    # What is not started by a command is started by its interpreter.
    command = given.command if plain_command else [exercise.python]
    taken = capture.capture(command, given.directory, given.env, given.store, os.environ)
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
    answer = desk.client.call(request)
    desk.tell(answer, lambda value, look: f"registered\n{render.model(value, look)}", lambda value: value.model.name)
    return 0


def _model_list(desk: Desk) -> int:
    return desk.show(api.ListModels(), render.models, lambda value: "\n".join(one.model.name for one in value))


def _model_show(desk: Desk) -> int:
    name = desk.options.name
    answer = desk.client.call(api.GetModel(name=name))
    figures = () if desk.json or desk.quiet else desk.client.call(api.GetHistory(name=name)).value

    def write(value: ModelStatus, look: Look) -> str:
        text = render.model(value, look)
        return f"{text}\n\n{section('Usually', advice.usual(figures, look), look)}" if figures else text

    desk.tell(answer, write, lambda value: value.model.name)
    return 0


def _model_history(desk: Desk) -> int:
    asked = api.GetHistory(name=desk.options.name)
    return desk.show(asked, advice.history, lambda value: "\n".join(one.figure for one in value if one.worse))


def _model_remove(desk: Desk) -> int:
    name = desk.options.name
    return desk.show(api.RemoveModel(name=name), lambda _value, _look: f"removed {plain(name)}", lambda _value: "")


# -- jobs -----------------------------------------------------------------------------------------------------------


def _job_names(job: Job) -> str:
    return job.id


def _begin(desk: Desk, request: Request[Job], names: Callable[[Job], str] = _job_names) -> int:
    return _ended(desk, request, names)[1]


def _ended(desk: Desk, request: Request[Job], names: Callable[[Job], str]) -> tuple[Job | None, int]:
    """Begin a job and see it through: give it (None if nobody waits for it), and the exit status."""
    begun = desk.client.call(request)
    if not desk.options.wait:
        desk.tell(begun, lambda value, _look: f"job {value.id}: {render.progress(value)}", _job_names)
        return None, 0
    limit = getattr(desk.options, "timeout", None)
    last = wait(desk.client, begun.value, quiet=desk.quiet, limit=limit)
    desk.tell(last, render.job, names)
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


def _prewarm(desk: Desk) -> int:
    given = desk.options
    if given.models and (given.all or given.stale):
        raise RequestError("expected exactly one of MODEL…, --all and --stale", hint="xpucachectl prewarm --help")
    stale = given.stale or not (given.models or given.all)
    request = api.PrewarmModels(models=tuple(given.models), all=given.all, stale=stale, force=given.force)
    return _begin(desk, request, lambda job: "\n".join(one.model for one in job.prewarm.runs) if job.prewarm else "")


def _evict(desk: Desk) -> int:
    given = desk.options
    request = api.EvictEntries(
        dry_run=given.dry_run, refs=tuple(given.refs), reasons=tuple(given.reason), plan=given.plan
    )
    return _begin(desk, request, _evicted)


def _evicted(job: Job) -> str:
    if job.evict is None:
        return ""
    planned = (one.entry.entry.id.ref for one in job.evict.plan.evict)
    return "\n".join(planned if job.evict.dry_run else job.evict.removed)


def _trash_list(desk: Desk) -> int:
    return desk.show(api.ListTrash(), render.trash, lambda value: "\n".join(one.ref for one in value))


def _trash_restore(desk: Desk) -> int:
    request = api.RestoreTrash(refs=tuple(desk.options.refs), all=desk.options.all)
    job, status = _ended(
        desk, request, lambda job: "\n".join(one.ref for one in job.trash.restored) if job.trash else ""
    )
    left = [one for one in job.trash.restored if one.key is None] if job is not None and job.trash else []
    return status or (Conflict.exit if left else 0)


def _trash_empty(desk: Desk) -> int:
    request = api.EmptyTrash(refs=tuple(desk.options.refs))
    return _begin(desk, request, lambda job: "\n".join(job.trash.dropped) if job.trash else "")


def _verify(desk: Desk) -> int:
    request = api.VerifyStores(stores=tuple(desk.options.stores), fix=desk.options.fix, deep=desk.options.deep)
    job, status = _ended(desk, request, _found)
    return status or _sound(job)


def _doctor(desk: Desk) -> int:
    if not desk.json and not desk.quiet:
        known = desk.client.call(api.GetStatus()).value
        say(f"watching: {render.watching(known.watching, desk.look)}")
        say(render.problems(known.problems, desk.look))
    job, status = _ended(desk, api.VerifyStores(fix=desk.options.fix, hazards_only=True), _found)
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


def _replay(desk: Desk) -> int:
    given = desk.options
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
    return _begin(desk, request, _replayed)


def _replayed(job: Job) -> str:
    return "\n".join(one.entry.entry.id.ref for one in job.replay.plan.rebuild) if job.replay is not None else ""


def _scan(desk: Desk) -> int:
    request = api.ScanStores(stores=tuple(desk.options.stores), full=desk.options.full)
    return _begin(desk, request, lambda _job: "")


def _jobs(desk: Desk) -> int:
    given = desk.options
    if given.cancel is not None:
        return desk.show(api.CancelJob(id=given.cancel), _cancelled, _job_names)
    if given.id is not None:
        return desk.show(api.GetJob(id=given.id), render.job, _job_names)
    return desk.show(api.ListJobs(), render.jobs, lambda value: "\n".join(one.id for one in value))


def _cancelled(job: Job, look: Look) -> str:
    if job.state in {JobState.DONE, JobState.FAILED}:
        return f"too late: {plain(job.id)} has ended\n{render.job(job, look)}"
    return render.job(job, look)


# -- the host's daemon ----------------------------------------------------------------------------------------------


def _host(desk: Desk) -> int:
    if not desk.options.check:
        return desk.show(hosting.GetHost(), people.household, lambda value: "\n".join(one.user for one in value.users))
    answer = desk.client.call(hosting.GetHost())
    level, sentence = people.check(answer.value)
    desk.tell(answer, lambda _value, _look: f"XPUCACHED {_LEVELS[level]} - {plain(sentence)}")
    return level


def _driver_changed(desk: Desk) -> int:
    return desk.show(api.LookAgain(), lambda _value, _look: "" if desk.options.no_wait else "told")


_HOST_COMMANDS: Final[Mapping[str, Callable[[Desk], int]]] = {
    "status": _host,
    "prewarm": _prewarm,
    "jobs": _jobs,
    "driver-changed": _driver_changed,
    "version": _version,
}
"""What is asked of the host's daemon itself."""

_COMMANDS: Final[Mapping[str, Callable[[Desk], int]]] = {
    "status": _status,
    "ls": _ls,
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
