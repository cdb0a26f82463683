"""Door: the commands that register models and forget them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from xpucached.api import requests
from xpucached.cli import arguments, capture_env, commands_jobs, hints, registration, workload_options
from xpucached.domain.models import Added, ModelStatus
from xpucached.domain.workloads import Loader
from xpucached.errors import RequestError
from xpucached.printing import plain, quoted
from xpucached.render import caches, models

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from xpucached.cli.output import Output
    from xpucached.render.text import TextStyle


def _add(output: Output) -> int:
    given = output.options
    exercise = workload_options.read(given)
    plain_command = exercise.loader is Loader.COMMAND
    if given.command and not plain_command:
        raise RequestError(f"the loader {exercise.loader} takes no command", hint="leave out what stands behind --")
    # What is not started by a command is started by its interpreter.
    command = given.command if plain_command else [exercise.python]
    taken = capture_env.capture(command, given.directory, given.env, given.store, os.environ)
    request = requests.AddModel(
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
        if_changed=given.if_changed,
    )
    answer = output.client.call(request)
    if not output.quiet:
        _say_what_is_odd(output, request, answer.value)
    if given.prewarm:
        return commands_jobs.warm(output, answer.value.name)
    output.tell(answer, _added, lambda value: value.model.name)
    return 0


def _added(value: ModelStatus, style: TextStyle) -> str:
    due = f"\n\n{plain(value.due)}; now: xpucachectl prewarm {quoted(value.name)}" if value.due else ""
    return f"{_ADDED.get(value.added, 'registered')}\n{models.model(value, style)}{due}"


def _say_what_is_odd(output: Output, asked: requests.AddModel, added: ModelStatus) -> None:
    """Say what may not be as it is meant, while who registers a model looks."""
    host = output.client.call(requests.GetStatus()).value.host
    own = not output.options.of and output.options.socket is None
    said = [*registration.notes(asked, host, own=own)]
    if own and added.has_no_device and (way := _to_a_device(output.options, added)):
        said.append(way)
    for one in said:
        print(f"note: {hints.aimed(one, hints.flags(output.options), os.environ)}", file=sys.stderr)


def _to_a_device(given: Namespace, added: ModelStatus) -> str:
    bare = vars(arguments.parse(["model", "add", given.name, "--", *given.command]))
    all_of_it = all(getattr(given, key) == bare[key] for key in bare.keys() - _OF_THE_CALL)
    return registration.leads_to_a_device(added, os.environ, given.command if all_of_it else ())


_OF_THE_CALL: Final = frozenset({"replace", "if_changed", "prewarm", "scope", "json", "quiet"})
"""Options that say nothing of the model itself."""

_ADDED: Final[Mapping[Added | None, str]] = {Added.REPLACED: "replaced", Added.SAME: "already so"}


def _remove(output: Output) -> int:
    given = output.options
    request = requests.RemoveModel(name=given.name, caches=given.caches or None, dry_run=given.dry_run or None)
    return output.ask(request, caches.removed, lambda _value: "")


COMMANDS: Final[Mapping[str, Callable[[Output], int]]] = {
    "model add": _add,
    "model remove": _remove,
}
