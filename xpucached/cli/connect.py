"""Door: which daemon a command line means, and how it is reached.  Touches sockets.

A user's is his own daemon if he runs one, else his worker, which the host's daemon starts.  The host's is for status,
for models by name, and for everything of one user with ``--of``: root then talks with that user's worker, or
daemon if the user runs one, an administrator with the host's daemon, which passes on what an administrator may ask.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import sockets
from xpucached.api import client, host_requests
from xpucached.api.client import Client, untrusted
from xpucached.errors import Conflict, NotFound, RequestError, Unavailable, Untrusted, XpucachedError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable


_MANAGERS: Final = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd", "/lib/systemd")
"""Where systemd looks for units, in a directory for the host's and one for users'."""
_HOMES: Final = {"XDG_CONFIG_HOME": "~/.config", "XDG_DATA_HOME": "~/.local/share"}


def _start_it() -> str:
    root = "" if os.geteuid() == 0 else "sudo "
    if _has_unit(f"{place}/system" for place in _MANAGERS):
        # It may run without its socket, which somebody stopped alone: then a start would do nothing.
        return f"(re)start it: {root}systemctl restart xpucached"
    return f"no service of the host's is installed here: {root}xpucachectl setup"


def _start_own() -> str:
    homes = (os.environ.get(name) or os.path.expanduser(home) for name, home in _HOMES.items())  # noqa: PTH111 - it raises nothing
    places = (f"{home}/systemd/user" for home in homes)
    if _has_unit((*places, *(f"{place}/user" for place in _MANAGERS))):
        return "(re)start it: systemctl --user restart xpucached, or xpucached --user &"
    return "start it: xpucached --user &; as a service: xpucachectl setup --user"


def _has_unit(places: Iterable[str]) -> bool:
    # Not Path.exists: it raises where a directory on the way may not be entered.  Root may have another user's HOME.
    is_there = sockets.is_there if os.geteuid() == 0 else os.path.exists
    return any(is_there(f"{place}/xpucached.service") for place in places)


def reach(options: Namespace) -> tuple[Client, bool]:
    """Return who is to be asked, and whether that is the host's daemon itself."""
    if options.of and (options.scope == "user" or options.socket is not None):
        raise RequestError("--of asks the host's daemon: it goes with neither --user nor --socket")
    if options.socket is not None:
        return _named(options.socket, "that path came with --socket; leave it out to ask the usual daemon"), False
    if options.of:
        return of_user(options.of), False
    if options.scope is None and os.environ.get("XPUCACHED_SOCKET"):
        return _by_variable(), False
    user = options.scope != "system" if options.scope else os.geteuid() != 0
    if not user:
        return _host(), True
    return _own(options.scope), False


def own() -> Client:
    """Return the daemon that runs as we do, whoever else would be asked; root may have one in a container."""
    return _own("user")


def _own(scope: str | None) -> Client:
    """Return the daemon of our own, or the worker that the host's daemon runs for us."""
    try:
        path = Path(sockets.socket_path(user=True, environ=os.environ))
    except sockets.NoRuntimeDirectory as error:
        # That is where our own daemon is then, as the hint says.
        if scope == "user" and os.environ.get("XPUCACHED_SOCKET"):
            return _by_variable()
        # Without a place for it there is no daemon of our own; there may be a worker.
        if scope is None and (worker := _worker()) is not None:
            return worker
        raise Unavailable(str(error), hint=error.hint) from error
    source = "that path came from XDG_RUNTIME_DIR" if os.environ.get("XDG_RUNTIME_DIR") else ""
    if scope is None and not _answers(path, source):
        try:
            worker = _worker()
        except Conflict:
            worker = None
        # A daemon of our own may have begun meanwhile, and the worker steps back for it.
        if worker is not None and not _answers(path, source):
            return worker
    hint = _start_own()
    if os.path.exists(sockets.PUBLIC):  # noqa: PTH110 - see above
        hint += "; or ask the system's: xpucachectl --system"
    return Client(path, hint=hint, source=source)


def _worker() -> Client | None:
    """Return the worker that the host's daemon runs for us; None if there is no such daemon."""
    if not os.path.exists(sockets.PUBLIC):  # noqa: PTH110 - as above
        return None
    with Client(Path(sockets.PUBLIC)) as host:
        try:
            host.call(host_requests.WakeWorker())
            return _worker_of(os.getuid())
        except Unavailable:
            # The host's daemon is not there, or does not get our worker to run.  If it said why, so do we.
            if _answers(Path(sockets.PUBLIC)):
                raise
    return None


def _by_variable() -> Client:
    source = "that path came from XPUCACHED_SOCKET: xpucached --user & starts a daemon there"
    with contextlib.suppress(sockets.NoRuntimeDirectory):
        sockets.runtime_directory(os.environ)
        source += "; or unset it"
    return _named(Path(os.environ["XPUCACHED_SOCKET"]), source)


def _named(path: Path, source: str) -> Client:
    return Client(path, hint=source, source=source)


def whose(verb: str, *, of: bool = True) -> XpucachedError:
    """Say that the host's daemon has nothing of its own; ``of`` is whether the command may be about another user."""
    message = f"the host's daemon has no stores and models of its own, so {verb} needs a user"
    hint = f"say whose: xpucachectl --of USER {verb}; or " if of else ""
    return RequestError(message, hint=f"{hint}ask your own: xpucachectl --user")


def _host() -> Client:
    hint = _start_it()
    with contextlib.suppress(sockets.NoRuntimeDirectory):
        if sockets.is_there(sockets.socket_path(user=True, environ=os.environ)):
            hint += "; or ask your own: xpucachectl --user"
    return Client(_door(), hint=hint)


def _door() -> Path:
    """Return the administrators' socket if we may open it, else everybody's."""
    return Path(sockets.ADMIN if os.access(sockets.ADMIN, os.R_OK | os.W_OK) else sockets.PUBLIC)


def of_user(user: str, largest: int | None = None) -> Client:
    """Return what answers for a user: the user's own daemon, as root reaches it, or the worker, which is started.

    ``largest`` bounds answers, in bytes.
    """
    hint = _start_it()
    if os.geteuid() != 0:
        return Client(_door(), hint=hint, of=user, largest=largest)
    uid = _number(user)
    if uid != 0 and _runs_one(uid):
        return Client(Path(sockets.own_path(uid)), owner=uid, strict=True, largest=largest)
    with Client(_door(), hint=hint) as host:
        there = host.call(host_requests.WakeWorker(user=user)).value
    # Its account may be in other hands than ours.
    if there.uid != uid:
        message = f"the host's daemon says that {user} is user {there.uid}, and the password file that it is user {uid}"
        raise Untrusted(message, hint=f"see: getent passwd {user}; journalctl -u xpucached")
    return _worker_of(uid, largest)


def _number(user: str) -> int:
    """Return the number of a user as this host's password file has it.  Raises `NotFound`."""
    import pwd  # noqa: PLC0415 - only who names a user has to wait for it

    try:
        return pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError):
        if user.isdecimal() and len(user) <= len("4294967295"):
            return int(user)
    raise NotFound(f"there is no user {user} on this host", hint=f"see: getent passwd {user}")


def _worker_of(uid: int, largest: int | None = None) -> Client:
    """Return the worker of a user where it must be, whatever anybody says."""
    return Client(Path(sockets.worker_path(uid)), owner=uid, largest=largest)


def _runs_one(uid: int) -> bool:
    """Return whether a user runs a daemon.  What stands at its place is the user's word, and may lead anywhere."""
    try:
        client.connect(sockets.own_path(uid), owner=uid, strict=True).close()
    except OSError:
        return False
    return True


def _answers(path: Path, source: str = "") -> bool:
    try:
        sockets.connect(path).close()
    except sockets.UntrustedPeer as error:
        raise untrusted(error, source) from error
    except OSError:
        return False
    return True
