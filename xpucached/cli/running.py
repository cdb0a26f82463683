"""Door: `xpucachectl run`: a program with the variables that make it find what was warmed."""

from __future__ import annotations

import contextlib
import shutil
import sys
from typing import TYPE_CHECKING

from xpucached.api import requests
from xpucached.cli import belonging, connect, launching
from xpucached.errors import Denied, NotFound, RequestError, Untrusted, XpucachedError
from xpucached.printing import plain
from xpucached.render import diagnosis

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping


def run(options: Namespace) -> int:
    """Become the program; gives an exit status only if that fails.  Raises what the daemon refuses with.

    Where no daemon answers, or it cannot just now, the program runs all the same, as if it had been started without us.
    """
    if not options.command:
        # One word is a model, unless there is a program of that name.
        given: str = options.model or ""
        what = f"-- {given}" if given and shutil.which(given) else f"{given} -- python3 app.py".strip()
        raise RequestError("the program stands behind --", hint=f"xpucachectl run {what}")
    try:
        values = _variables(options)
    except (RequestError, NotFound, Denied, Untrusted):
        raise  # nobody can give what is asked for
    except XpucachedError as error:
        without = "runs without the variables of the cache, and may compile what is kept"
        print(f"xpucachectl: {plain(error.message)}; {plain(options.command[0])} {without}", file=sys.stderr)
        if error.hint:
            print(f"hint: {plain(error.hint)}", file=sys.stderr)
        values = {}
    return launching.become(options.command, values)


def _variables(options: Namespace) -> Mapping[str, str]:
    client, hosts = connect.reach(options)
    with client:
        if hosts:
            raise connect.whose(options.verb, of=False)
        values = taken_over(client.call(requests.GetEnv(model=options.model)).value)
        if not options.quiet and options.model is not None:
            # With the variables it runs as it should, whether or not there is an answer to this.
            with contextlib.suppress(XpucachedError):
                for line in diagnosis.caution(client.call(requests.GetWhy(name=options.model)).value):
                    print(f"xpucachectl: {plain(line)}", file=sys.stderr)
    return values


def taken_over(values: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables that are taken over, and say which are not, and why."""
    taken, unknown, open_ = belonging.taken(values)
    for why, names in (("as no cache needs it", unknown), ("as others may write where it leads", open_)):
        if names:
            print(f"xpucachectl: left out, {why}: {plain(', '.join(names))[:500]}", file=sys.stderr)
    return taken
