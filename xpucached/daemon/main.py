"""The command ``xpucached``: what it is asked for, and which of the two daemons runs."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import pwd
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from xpucached import __version__, guarded, logs, settings, sockets
from xpucached.daemon import configuration, memory, worker
from xpucached.daemon.lock import alone
from xpucached.errors import Denied, DiskError, SettingsError, XpucachedError
from xpucached.options import OptionParser
from xpucached.printing import lines, safe
from xpucached.settings import model_files
from xpucached.streams import arriving
from xpucached.threads import all_end

log = logging.getLogger(__name__)

_NO_ANSWER: Final = 255
"""The exit status by which a condition of a unit fails it; others pass over it."""

_ENDING: Final = 3.0
"""Seconds that threads have to end when all is saved."""


def parser() -> OptionParser:
    """Describe the daemon's options."""
    options = OptionParser(prog="xpucached", description="Looks after the SYCL kernel caches of this host.")
    who = options.add_mutually_exclusive_group()
    who.add_argument("--user", action="store_true", default=None, help="serve this user (default unless root)")
    who.add_argument("--system", dest="user", action="store_false", help="serve the host (default for root)")
    who.add_argument("--worker", action="store_true", help="serve this user for the host's daemon, which starts it")
    asks = "say by the exit status whether the host's PAM lets anything be run for this account; for root"
    who.add_argument("--account", type=int, metavar="UID", help=asks)
    options.add_argument("--config", type=Path, metavar="FILE", help="read this configuration")
    options.add_argument("--check", action="store_true", help="only say whether the configuration is in order")
    options.add_argument("--version", action="version", version=f"xpucached {__version__}")
    return options


def _settings(options: argparse.Namespace) -> settings.Settings:
    """Read the settings; as a worker see also whether our user may have one."""
    config = configuration.first(options)
    if options.worker:
        worker.require_permitted(config.paths.state)
    return config


def _become_the_service() -> None:
    """Be the account of the host's daemon from now on, where we may: root may read what that account may not."""
    with contextlib.suppress(KeyError, OSError):
        account = pwd.getpwnam(sockets.ACCOUNT)
        os.setgroups(os.getgrouplist(account.pw_name, account.pw_gid))
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)


def _check(config: settings.Settings, *, user: bool) -> int:
    """Say what is wrong with model files; return the exit status.  Who serves reads them as any other look does."""
    found, problems = (model_files.models if user else model_files.owners)(config.paths.models)
    if isinstance(found, Mapping):
        from xpucached.hostd import users  # noqa: PLC0415 - users' daemons need none of it

        problems += tuple(users.misnamed(found.values(), users.Accounts()).values())
    for message in (*config.unknown_users.values(), *(problem.message for problem in problems)):
        print(f"xpucached: {safe(message)}", file=sys.stderr)  # noqa: T201 - this is what --check is for
    refused = f", {len(problems)} refused" if problems else ""
    order = "names users whom nobody knows now" if config.unknown_users else "is in order"
    with arriving():
        print(f"the configuration {order}; model files: {len(found)}{refused}")  # noqa: T201 - the same
    return SettingsError.exit if problems or config.unknown_users else 0


def _serve(options: argparse.Namespace, config: settings.Settings, runner: asyncio.Runner) -> None:
    if options.user:
        with memory.loading():
            from xpucached.daemon import user_daemon  # noqa: PLC0415 - the host's daemon needs none of it
        runner.run(user_daemon.serve(options, config))
    else:
        with memory.loading():
            from xpucached.daemon import host_daemon  # noqa: PLC0415 - users' daemons need none of it
        with alone(config.paths.state):
            runner.run(host_daemon.serve(config, lambda: configuration.load(options)))


def _admit(uid: int) -> int:
    """Say whether a user may have a worker, as far as PAM is concerned; return the exit status."""
    from xpucached.daemon import account  # noqa: PLC0415 - nothing else needs it

    if os.geteuid() != 0:
        return _tell(Denied("PAM tells root alone whether an account has expired", hint="run it as root"))
    try:
        why = account.admit(uid, Path(sockets.denial_path(uid)))
    except Exception as error:  # noqa: BLE001 - whatever it is, systemd would take another status for a no
        _tell(error if isinstance(error, XpucachedError) else DiskError(f"what PAM says cannot be noted: {error}"))
        return _NO_ANSWER
    if why is not None:
        print(f"xpucached: nothing may be run for user {uid}: {safe(why)}", file=sys.stderr)  # noqa: T201 - the unit asks
    return 0 if why is None else 1


def _tell(error: XpucachedError) -> int:
    print(f"xpucached: {lines(error.message)}", file=sys.stderr)  # noqa: T201 - the log may not be set up yet
    if error.hint:
        print(f"hint: {safe(error.hint)}", file=sys.stderr)  # noqa: T201 - the same
    return error.exit


def _begin_log(config: settings.Settings) -> None:
    """Begin the log: not in the shell in which somebody started us with ``&``, and works on."""
    level, file = config.log.level.upper(), config.paths.state / "xpucached.log"
    if not logs.in_background():
        logs.begin(level)
        return
    try:
        logs.begin(level, file)
    except OSError as error:
        logs.begin(level)
        log.warning("the log cannot be written to %s, and comes here: %s", file, error.strerror or error)
    else:
        print(f"xpucached: works in the background; its log is {safe(str(file))}", file=sys.stderr)  # noqa: T201 - see above


def _end(runner: asyncio.Runner, status: int) -> None:
    """End what is left of a daemon that has saved everything; what does not answer is left as it is."""
    if all_end(_ENDING):
        runner.close()
        return
    # Python would wait for these threads, and with them for a file system that never answers.
    log.warning("something that was begun does not end, and is left as it is", exc_info=sys.exception())
    logging.shutdown()
    guarded.close_left(last=True)
    os._exit(status)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``xpucached``; return its exit status."""
    try:
        with arriving():
            options = parser().understood(arguments)
    except XpucachedError as error:
        return _tell(error)
    if options.account is not None:
        return _admit(options.account)
    if options.user is None:
        options.user = options.worker or os.getuid() != 0
    if options.worker:
        # Its unit says so for what root asks before; programs of this user have their own packages.
        os.environ.pop("PYTHONNOUSERSITE", None)
    memory.share()
    runner = asyncio.Runner()
    status, serving = 1, False
    try:
        if options.check and not options.user and options.config is None:
            _become_the_service()
        config = _settings(options)
        if options.check:
            return _check(config, user=options.user)
        _begin_log(config)
        serving = True
        if options.worker:
            worker.step_aside()
        _serve(options, config, runner)
        status = 0
    except XpucachedError as error:
        status = _tell(error)
    except KeyboardInterrupt:
        status = 130
    finally:
        if serving:
            _end(runner, status)
    return status
