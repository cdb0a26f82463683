"""Door: `xpucachectl inspect`: what files, wheels and environments bring; a daemon is asked if there is one."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from xpucached import sockets
from xpucached.cli import option_values, terminal
from xpucached.errors import RequestError, RunFailed
from xpucached.inspection import devices
from xpucached.inspection.report import Inspector
from xpucached.printing import plain
from xpucached.render.inspection import inspection

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from contextlib import AbstractContextManager


def run(options: Namespace) -> int:
    """Look through it, and print what was found; gives the exit status."""
    if not options.target:
        raise RequestError("inspect: no name is empty", hint="name a file, a wheel, a folder or a model")
    path = option_values.absolute(options.target)
    paths, found, known = [path], devices.asked(options.device or ()), None
    if not os.path.lexists(path) or _somebody_listens(options):
        from xpucached.cli import inspecting_models  # noqa: PLC0415 - a quarter of the start; most files need no daemon

        paths, known = inspecting_models.told(options, path)
        found = found or known.meant
    found = found or devices.here()
    with _shown(quiet=options.quiet) as tell:
        if known is None:
            one = Inspector(found, tell=tell)
        else:
            one = Inspector(found, rate=known.rate, used=known.used, kept_in=known.kept_in, tell=tell)
        value = one.inspect(options.target, paths)
    if options.json:
        from xpucached import codec  # noqa: PLC0415 - slow to load
        from xpucached.api.endpoints import VERSION  # noqa: PLC0415 - as above

        print(codec.dumps({"api": VERSION, "data": codec.to_json(value)}).decode("ascii"))
    elif options.quiet:
        sys.stdout.writelines(f"{plain(file.name)}\n" for file in value.files)
    else:
        print(inspection(value, terminal.style(options)))
    unread = any(one.unknown for one in value.totals) or any(file.notes for file in value.files) or value.unread
    return RunFailed.exit if unread else 0


def _somebody_listens(options: Namespace) -> bool:
    """Return whether there may be a daemon to ask, which knows more than the files."""
    paths = [options.socket, os.environ.get("XPUCACHED_SOCKET"), sockets.PUBLIC, sockets.ADMIN]
    if any(os.path.exists(path) for path in paths if path):  # noqa: PTH110 - who may not look gets no error
        return True
    with suppress(sockets.NoRuntimeDirectory):
        return sockets.is_there(sockets.socket_path(user=True, environ=os.environ))
    return False


def _shown(*, quiet: bool) -> AbstractContextManager[Callable[[str], None]]:
    """Give what shows whoever sits at a terminal what is read just now; logs have no use for it."""
    if quiet or not sys.stderr.isatty():
        return nullcontext(lambda _name: None)
    from xpucached.cli.bars import told_what_is_read  # noqa: PLC0415 - slow to load

    return told_what_is_read(quiet=quiet)
