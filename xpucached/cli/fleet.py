"""Door: the commands about many hosts.  The program for bundles does it, which knows what a host can take."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from msgspec.structs import replace

from xpucached import codec
from xpucached.api import host_requests, requests
from xpucached.api.endpoints import VERSION
from xpucached.cli import connect, terminal
from xpucached.cli.bundles import asked
from xpucached.domain.fleet import AskFingerprint, DiffFleet, FingerprintReport, FleetReport, HostWarm
from xpucached.errors import RequestError, RunFailed, XpucachedError
from xpucached.render import fleet

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping

    from xpucached.domain.fleet import HostFingerprint

_LARGEST: Final = 6 << 20
"""Bytes of standard input: two thousand hosts."""


def _fingerprint(options: Namespace) -> int:
    if options.form and options.json:
        raise RequestError(f"--{options.form} and --json are two forms", hint="leave one out")
    quiet = options.quiet or bool(options.form)
    data = asked(AskFingerprint(options.driver_root, options.device), quiet=quiet)
    told = cast("FingerprintReport", codec.convert(data, FingerprintReport)).told
    # What is warm here is warm for this host's own driver.
    if options.driver_root is None and options.device is None:
        told = replace(told, warm=_warm(options))
    if options.form:
        print(_FORMS[options.form](told), end="")
    elif options.json:
        print(codec.dumps({"api": VERSION, "data": codec.to_json(told)}).decode("ascii"))
    elif options.quiet:
        print(told.fingerprint)
    else:
        print(fleet.fingerprint(told, terminal.style(options)))
    return 0


def _ansible(told: HostFingerprint) -> str:
    return codec.dumps(codec.to_json(told)).decode("ascii") + "\n"


_FORMS: Final[Mapping[str, Callable[[HostFingerprint], str]]] = {
    "prometheus": fleet.prometheus,
    "nfd": fleet.features,
    "ansible": _ansible,
}


def _warm(options: Namespace) -> HostWarm | None:
    """Ask the daemon what is warm; None if nobody answers, or does not know it of all users."""
    try:
        client, hosts = connect.reach(options)
        with client:
            if not hosts:
                status = client.call(requests.GetStatus()).value
                return HostWarm(status.entries, Counter(str(one.warmth) for one in status.models))
            users = client.call(host_requests.GetHost()).value.known
    except XpucachedError:
        return None
    if any(one.seen is None for one in users):
        return None
    models = {"warm": sum(one.warm for one in users), "cold": sum(one.cold for one in users)}
    return HostWarm(sum(one.entries for one in users), models)


def _diff(options: Namespace) -> int:
    given = _given() if "-" in options.sources else None
    # Not resolved: a message names them as they were typed.
    paths = tuple(Path(os.path.abspath(one)) for one in options.sources if one != "-")  # noqa: PTH100 - see above
    data = asked(DiffFleet(paths, given, tuple(options.bundle)), quiet=options.quiet)
    report = cast("FleetReport", codec.convert(data, FleetReport))
    if options.json:
        print(codec.dumps({"api": VERSION, "data": data}).decode("ascii"))
    elif options.quiet:
        print(fleet.names(report))
    else:
        print(fleet.fleet(report, terminal.style(options)))
    return 0 if report.equal else RunFailed.exit


def _given() -> str:
    data = sys.stdin.buffer.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise RequestError(f"standard input has more than {_LARGEST} bytes", hint="name files or a folder")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise RequestError("standard input is not UTF-8") from None


COMMANDS: Final[Mapping[str, Callable[[Namespace], int]]] = {"fingerprint": _fingerprint, "fleet diff": _diff}


def run(options: Namespace) -> int:
    """Have it done, and print what came of it; gives the exit status."""
    return COMMANDS[options.verb](options)
