"""Door: the read-only commands: each asks, and prints the answer."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar

from xpucached import __version__, answers, codec
from xpucached.api import host_requests, looking, requests
from xpucached.cli import connect, everyone, following, listing, narrowing, running, waiting
from xpucached.domain import checks
from xpucached.errors import RequestError, RunFailed, Unavailable
from xpucached.kinds.variables import KNOWN
from xpucached.printing import plain
from xpucached.render import diagnosis, inspection, models, status
from xpucached.render.text import TextStyle, section
from xpucached.render.variables import variables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xpucached.api.endpoints import Request
    from xpucached.cli.output import Output
    from xpucached.domain.checks import Check
    from xpucached.domain.models import ModelStatus
    from xpucached.domain.users import HostStatus

_T = TypeVar("_T")


def _check_or_show(output: Output, request: Request[_T], check: Callable[[_T, datetime], Check]) -> int:
    if not output.options.check:
        return output.show(request)
    answer = output.client.call(request)
    # Now, and not when the command began: it may have waited for the first look.
    judged = check(answer.value, datetime.now(UTC))
    output.tell(answer, lambda _value, _style: status.monitoring(judged))
    return judged.level


def _status(output: Output) -> int:
    known, output = waiting.for_daemon(output) if output.options.wait else (True, output)
    with output.client:
        return max(_check_or_show(output, requests.GetStatus(), checks.check), 0 if known else RunFailed.exit)


def host(output: Output) -> int:
    """Return how the host stands."""
    known = not output.options.wait or waiting.for_host(output)
    return max(_check_or_show(output, host_requests.GetHost(), checks.check_host), 0 if known else RunFailed.exit)


def _env(output: Output) -> int:
    syntax, model = output.options.syntax, output.options.model
    answer = output.client.call(requests.GetEnv(model=model))
    values = dict(sorted(running.taken_over(answer.value).items()))
    answer = type(answer)(codec.to_json(values), answer.kind)
    lines: tuple[str, ...] = ()
    if not output.json and not output.quiet:
        if model is not None:
            lines = diagnosis.caution(output.client.call(requests.GetWhy(name=model)).value)
        else:
            lines = diagnosis.unsafe(output.client.call(requests.GetStatus()).value.problems)
    # All syntaxes treat a line starting with # as a comment.
    head = "".join(f"# {line}\n" for line in lines)
    output.tell(answer, lambda value, _style: head + variables(value, syntax, KNOWN))
    return 0


def version(output: Output) -> int:
    """Print the versions of both ends."""
    try:
        daemon: str | None = output.client.call(requests.GetHello()).value.version
    except Unavailable:
        daemon = None
    if output.json:
        output.dump({"client": __version__, "daemon": daemon})
    else:
        print(f"xpucachectl {__version__}\n{f'xpucached {plain(daemon)}' if daemon else 'no daemon answers'}")
    return 0


def _model_show(output: Output) -> int:
    name = output.options.name
    answer = output.client.call(requests.GetModel(name=name))
    history = () if output.json or output.quiet else output.client.call(requests.GetHistory(name=name)).value

    def write(value: ModelStatus, style: TextStyle) -> str:
        text = models.model(value, style)
        return f"{text}\n\n{section('Usually', diagnosis.usual(history, style), style)}" if history else text

    output.tell(answer, write, lambda value: value.model.name)
    return 0


def _usage(output: Output) -> int:
    options = output.options
    if options.days:
        return output.show(looking.ListDays())
    return output.show(looking.ListWarmth() if options.warmth else looking.GetUsage(top=options.top))


def _metrics(output: Output) -> int:
    wanted = looking.MetricsFormat.OPENMETRICS if output.options.openmetrics else looking.MetricsFormat.TEXT
    return output.show(looking.GetMetrics(format=wanted))


def host_metrics(output: Output) -> int:
    """Print the figures of the host's daemon."""
    from xpucached.render import metrics  # noqa: PLC0415 - seldom needed

    answer = output.client.call(host_requests.GetHost())
    given = output.options.openmetrics

    def write(value: HostStatus, style: TextStyle) -> str:
        return metrics.host_metrics(value, style.now, openmetrics=given).rstrip("\n")

    output.tell(answer, write)
    return 0


def host_usage(output: Output) -> int:
    """Print which user has which bytes."""
    if output.options.days or output.options.warmth:
        raise connect.whose("usage --days" if output.options.days else "usage --warmth")
    return output.show(host_requests.GetHostOverview())


def host_top(output: Output) -> int:
    """Show how the users of the host stand, live."""
    from xpucached.cli import top  # noqa: PLC0415 - no other command has the terminal for itself

    return top.of_host(output)


def host_report(output: Output) -> int:
    """Write the host's page."""
    from xpucached.cli import report  # noqa: PLC0415 - seldom needed, and slow to load

    return report.of_host(output)


def host_web(output: Output) -> int:
    """Serve the host's page, and each user's."""
    from xpucached.cli import web  # noqa: PLC0415 - seldom needed, and slow to load

    return web.of_host(output)


def _report(output: Output) -> int:
    from xpucached.cli import report  # noqa: PLC0415 - seldom needed, and slow to load

    return report.report(output)


_LOOK: Final = 5.0
"""Seconds for which `why --programs` looks through what a model's program brings."""


def _why(output: Output) -> int:
    if not output.options.programs:
        status = output.show(requests.GetWhy(name=output.options.model))
        _tell_the_way_to_a_device(output)
        return status
    if output.json or output.quiet:
        raise RequestError("--programs is for people", hint=f"xpucachectl inspect {output.options.model} --json")
    answer = output.client.call(requests.GetWhy(name=output.options.model))
    from xpucached.cli import inspecting_models  # noqa: PLC0415 - no other answer needs it

    output.say(diagnosis.why(answer.value, output.style))
    brought = inspecting_models.of_model(output, output.options.model, _LOOK)
    text = inspection.brought(brought, output.style) if brought is not None else ""
    output.say(f"\n{text}" if text else "")
    return 0


def _tell_the_way_to_a_device(output: Output) -> None:
    """Say to who has a model whose programs have no device how they get one: it takes a look at his files."""
    if output.json or output.quiet or output.options.of or output.options.socket is not None:
        return
    from xpucached.cli import registration  # noqa: PLC0415 - no other answer needs it

    model = output.client.call(requests.GetModel(name=output.options.model)).value
    way = registration.leads_to_a_device(model, os.environ) if model.has_no_device else ""
    output.say(f"\n{way}" if way else "")


def _top(output: Output) -> int:
    from xpucached.cli import top  # noqa: PLC0415 - no other command has the terminal for itself

    return top.top(output)


def _web(output: Output) -> int:
    from xpucached.cli import web  # noqa: PLC0415 - seldom needed, and slow to load

    return web.web(output)


def _config_show(output: Output) -> int:
    answer = output.client.call(requests.GetConfig())
    if not output.json:
        look = answers.of(requests.GetConfig)
        output.tell(answer, look.write, look.names)
        if not output.quiet:
            said = answers.of_settings(output.client.call(requests.GetStatus()).value, output.style)
            output.say(f"\n{said}" if said else "")
        return 0
    output.dump(answers.typed(answer.value))
    return 0


def _runs(output: Output) -> requests.ListRuns:
    return requests.ListRuns(model=output.options.model, limit=narrowing.most(output))


OF_EVERYONE: Final[Mapping[str, Callable[[Output], int]]] = {
    "ls": listing.of_everyone,
    "stores": lambda output: everyone.show(output, requests.ListStores()),
    "model list": lambda output: everyone.show(output, requests.ListModels()),
    "trash list": lambda output: everyone.show(output, requests.ListTrash()),
    "events": following.of_everyone,
    "runs": lambda output: everyone.show(output, _runs(output)),
}
"""What all users' workers are asked."""

COMMANDS: Final[Mapping[str, Callable[[Output], int]]] = {
    "status": _status,
    "ls": listing.ls,
    "show": lambda output: output.show(requests.GetEntry(ref=output.options.ref)),
    "stores": lambda output: narrowing.part(output, requests.ListStores()),
    "df": lambda output: output.show(looking.GetDiskUse()),
    "devices": lambda output: output.show(requests.ListDevices()),
    "model list": lambda output: narrowing.part(output, requests.ListModels()),
    "model show": _model_show,
    "model history": lambda output: output.show(requests.GetHistory(name=output.options.name)),
    "trash list": lambda output: narrowing.part(output, requests.ListTrash()),
    "events": following.events,
    "runs": lambda output: narrowing.part(output, _runs(output)),
    "usage": _usage,
    "report": _report,
    "web": _web,
    "top": _top,
    "metrics": _metrics,
    "seen": lambda output: output.show(looking.SeeShifts(models=tuple(output.options.models))),
    "why": _why,
    "env": _env,
    "config show": _config_show,
    "version": version,
}
