"""Door: `xpucachectl status --wait`: until a daemon answers, and has looked at the host and its stores once."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached.api import host_requests, requests
from xpucached.cli import connect
from xpucached.domain.jobs import UNDER_WAY
from xpucached.domain.status import Verdict
from xpucached.errors import Busy, Unavailable
from xpucached.printing import plain
from xpucached.render import jobs

if TYPE_CHECKING:
    from collections.abc import Callable

    from xpucached.cli.output import Output

_PAUSE: Final = 0.2
"""Seconds between two looks: who has just started a daemon looks at the screen."""


def for_daemon(output: Output) -> tuple[bool, Output]:
    """Wait for a user's daemon; False if the time was up before it had looked at everything; and give whom to ask."""

    def look() -> str:
        nonlocal output
        try:
            status = output.client.call(requests.GetStatus()).value
        except (Busy, Unavailable):
            # It may have been a worker, which left for a daemon of one's own.
            output = replace(output, client=connect.reach(output.options)[0])
            raise
        if status.verdict is not Verdict.STARTING:
            return ""
        going = next((one for one in status.jobs if one.state in UNDER_WAY), None)
        return f"{plain(status.sentence)}{f' ({jobs.progress(going)})' if going is not None else ''}"

    return _wait(output, look), output


def for_host(output: Output) -> bool:
    """Wait for the host's daemon; False if the time was up before it knew users and driver."""

    def look() -> str:
        status = output.client.call(host_requests.GetHost()).value
        return "Starting: looking at users and the driver" if status.looked is None else ""

    return _wait(output, look)


def _wait(output: Output, look: Callable[[], str]) -> bool:
    """Look until nothing is said any more; what is said is shown as it changes.  Raises what it met at the end."""
    end, shown = time.monotonic() + output.options.timeout, ""
    while True:
        late = time.monotonic() >= end
        try:
            said = look()
        except (Busy, Unavailable):
            # It may not listen yet, or be about to start again.
            if late:
                raise
            said = "Waiting for the daemon to answer"
        if late or not said:
            return not said
        if said != shown and not output.quiet:
            print(said, file=sys.stderr, flush=True)
        shown = said
        time.sleep(_PAUSE)
