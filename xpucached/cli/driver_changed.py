"""Door: `xpucachectl driver-changed`: say so, and wait until all is as warm as it will be."""

from __future__ import annotations

import os
import pwd
import re
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from xpucached import codec
from xpucached.api import host_requests, requests
from xpucached.domain import readiness
from xpucached.domain.readiness import Readiness
from xpucached.errors import Unavailable
from xpucached.render.readiness import readiness as written
from xpucached.render.readiness import waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from xpucached.cli.output import Output
    from xpucached.domain.readiness import HostReadiness

_PAUSE: Final = 1.0
"""Seconds between two looks at how it stands."""

_NUMBERS: Final = re.compile(r"[\d.,]+")


def of_host(output: Output) -> int:
    """Say to the host's daemon that the driver may have changed."""
    asked = datetime.now(UTC)
    return _say(output, lambda: readiness.of_host(output.client.call(host_requests.GetHost()).value, asked))


def of_daemon(output: Output) -> int:
    """Say the same to a user's daemon."""
    user = _named(output.options.of or str(os.getuid()))

    def look() -> HostReadiness:
        return readiness.of_daemon(output.client.call(requests.GetStatus()).value, user, os.getuid())

    return _say(output, look)


def _named(user: str) -> str:
    """Return the name of a user who is given by number, as far as this host knows one."""
    try:
        return pwd.getpwuid(int(user)).pw_name if user.isascii() and user.isdecimal() else user
    except (KeyError, OverflowError):
        return user


def _say(output: Output, look: Callable[[], HostReadiness]) -> int:
    given, began = output.options, time.monotonic()
    said = output.client.call(requests.Refresh())
    if not given.wait:
        output.tell(said, lambda _value, _style: "" if given.no_wait else "told")
        return 0
    found = _wait(look, began + given.timeout, quiet=output.quiet)
    if output.json:
        output.dump(codec.to_json(found))
    elif output.quiet:
        print(found.state)
    else:
        print(written(found, time.monotonic() - began, output.style))
    return readiness.EXITS[found.state]


def _wait(look: Callable[[], HostReadiness], end: float, *, quiet: bool) -> HostReadiness:
    """Look until nothing more comes, twice in a row, or the time is up."""
    found, sure, shown = readiness.HostReadiness(Readiness.WAITING, None, ()), False, ""
    while True:
        try:
            found = look()
        except Unavailable:
            # A transaction may bring a newer daemon, which starts again, and then looks by itself.
            if time.monotonic() >= end:
                raise
            found = readiness.HostReadiness(Readiness.WAITING, None, ())
        settled = found.state is not Readiness.WAITING and all(
            one.state is not Readiness.WAITING for one in found.users
        )
        if (settled and sure) or time.monotonic() >= end:
            return found
        sure = settled
        # What counts up is no news.
        if not quiet and not settled and (what := _NUMBERS.sub("", line := waiting(found))) != shown:
            print(line, file=sys.stderr, flush=True)
            shown = what
        time.sleep(min(_PAUSE, max(0.0, end - time.monotonic())))
