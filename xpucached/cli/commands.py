"""Door: what each command does: whom it asks, and which function sees to it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from xpucached.cli import commands_jobs, commands_models, commands_read, connect, driver_changed, several, terminal
from xpucached.cli.output import Output
from xpucached.cli.progress import in_time
from xpucached.errors import RequestError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping

_OF_HOST: Final[Mapping[str, Callable[[Output], int]]] = {
    **commands_read.OF_EVERYONE,
    **commands_jobs.OF_EVERYONE,
    "status": commands_read.host,
    "driver-changed": driver_changed.of_host,
    "metrics": commands_read.host_metrics,
    "usage": commands_read.host_usage,
    "top": commands_read.host_top,
    "report": commands_read.host_report,
    "web": commands_read.host_web,
    "version": commands_read.version,
}
"""What is asked of the host's daemon itself, and of all users' workers."""

COMMANDS: Final[Mapping[str, Callable[[Output], int]]] = {
    **commands_read.COMMANDS,
    **commands_models.COMMANDS,
    **commands_jobs.COMMANDS,
}
"""What is asked of a user's."""


def run(options: Namespace) -> int:
    """Do what the command line says; gives the exit status."""
    style = terminal.style(options)
    limit = (options.timeout or 0.0) if getattr(options, "wait", False) and hasattr(options, "timeout") else 0.0
    began = time.monotonic()
    client, hosts = in_time(lambda: connect.reach(options), limit)
    if limit:
        options.timeout = max(0.0, limit - (time.monotonic() - began))
    commands = _OF_HOST if hosts else COMMANDS
    if options.verb not in commands:
        raise connect.whose(options.verb)
    try:
        return several.run(Output(options, client, style, options.json, options.quiet), commands[options.verb])
    except ValueError as error:
        # A request that cannot be meant refuses to exist; what it says is for people.
        raise RequestError(str(error)) from error
    finally:
        client.close()
