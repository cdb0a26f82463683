"""The command ``xpucached``: what it is asked for, and which of the two daemons runs."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from xpucached import __version__, logs, settings
from xpucached.daemon import configuration, worker
from xpucached.daemon.lock import alone
from xpucached.errors import SettingsError, XpucachedError
from xpucached.printing import lines, safe
from xpucached.settings import model_files
from xpucached.threads import ThreadPool

_ARENA_MAX: Final = -8  # M_ARENA_MAX of malloc.h


def share_memory() -> None:
    """Let all threads take their memory from one place: each scan has another thread, and each would keep its own."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None)["mallopt"](_ARENA_MAX, 1)


def parser() -> argparse.ArgumentParser:
    """Describe the daemon's options."""
    options = argparse.ArgumentParser(prog="xpucached", description="Looks after the SYCL kernel caches of this host.")
    who = options.add_mutually_exclusive_group()
    who.add_argument("--user", action="store_true", default=None, help="serve this user (default unless root)")
    who.add_argument("--system", dest="user", action="store_false", help="serve the host (default for root)")
    who.add_argument("--worker", action="store_true", help="serve this user for the host's daemon, which starts it")
    options.add_argument("--config", type=Path, metavar="FILE", help="read this configuration")
    options.add_argument("--check", action="store_true", help="only say whether the configuration is in order")
    options.add_argument("--version", action="version", version=f"xpucached {__version__}")
    return options


def _settings(options: argparse.Namespace) -> settings.Settings:
    """Read the settings; as a worker see also whether our user may have one."""
    config = configuration.first(options)
    if options.worker:
        worker.require_permitted()
    return config


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``xpucached``; return its exit status."""
    options = parser().parse_args(arguments)
    if options.user is None:
        options.user = options.worker or os.getuid() != 0
    share_memory()
    try:
        with ThreadPool(1) as waiting:
            reading = waiting.submit(_settings, options)
            if not options.check:
                # The half of a second that this takes is what a process of its own needs to read them.
                importlib.import_module(f"xpucached.daemon.{'user' if options.user else 'host'}_daemon")
            config = reading.result()
        if options.user:
            models, problems = model_files.models(config.paths.models)
            found = len(models)
        else:
            whose, problems = model_files.owners(config.paths.models)
            found = len(whose)
        if options.check:
            for problem in problems:
                print(f"xpucached: {safe(problem.message)}", file=sys.stderr)  # noqa: T201 - this is what --check is for
            print(f"the configuration is in order; {found} model files")  # noqa: T201 - the same
            return SettingsError.exit if problems else 0
        logs.begin(config.log.level.upper())
        if options.worker:
            worker.step_aside()
        if options.user:
            from xpucached.daemon import user_daemon  # noqa: PLC0415 - the host's daemon needs none of it

            asyncio.run(user_daemon.serve(options, config))
        else:
            from xpucached.daemon import host_daemon  # noqa: PLC0415 - users' daemons need none of it

            with alone(config.paths.state):
                asyncio.run(host_daemon.serve(config, lambda: configuration.load(options)))
    except XpucachedError as error:
        print(f"xpucached: {lines(error.message)}", file=sys.stderr)  # noqa: T201 - the log may not be set up yet
        if error.hint:
            print(f"hint: {safe(error.hint)}", file=sys.stderr)  # noqa: T201 - the same
        return error.exit
    except KeyboardInterrupt:
        return 130
    return 0
