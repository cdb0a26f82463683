"""Door: HTTP on a unix socket.  Turns requests into calls of the service, and its values into answers.

`bind` and `activated` give the listeners, `connection` bounds what a client may cost, `routes` answers.  The loop and
the signals belong to the daemon.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
import socket
import stat
import sys
from typing import TYPE_CHECKING, Final, Protocol

import uvicorn

from xpucached import sockets
from xpucached.api.endpoints import Right
from xpucached.errors import Denied, RunningError, SettingsError
from xpucached.server.connection import FOREIGN, Connection, ConnectionLimits, ConnectionPool
from xpucached.server.routes import Routes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
    from pathlib import Path

    from starlette.applications import Starlette

    from xpucached.api.endpoints import Request
    from xpucached.domain.jobs import Event

log = logging.getLogger(__name__)


class RequestHandlers(Protocol):
    """What the server of a user's daemon needs from below.  Refusals are raised as `XpucachedError`."""

    async def answer(self, asked: Request[object], /) -> object:
        """Do what is asked; give what comes back."""

    def subscribe(self, since: int, /) -> AsyncIterator[Event]:
        """Give the events after ``since``, and then each new one, for ever."""


class Answers(Protocol):
    """What answers requests, as an ASGI application."""

    @property
    def application(self) -> Starlette:
        """The application."""

    def stop(self) -> None:
        """End the streams and the waits."""


class HttpListener:
    """The socket's end of a daemon."""

    def __init__(
        self,
        answers: Answers,
        limits: ConnectionLimits | None = None,
        welcome: Callable[[int], bool] = lambda _uid: True,
        foreign: Denied = FOREIGN,
    ) -> None:
        """``welcome`` tells of a uid whether it may ask anything at all: who may not is told ``foreign``, unread."""
        self._limits = limits or ConnectionLimits()
        self._places = ConnectionPool(self._limits, welcome, foreign)
        self._routes = answers
        self._listeners: list[asyncio.Server] = []

    @property
    def busy(self) -> bool:
        """Whether somebody waits for an answer."""
        return any(isinstance(one, Connection) and one.busy for one in self._places.connections)

    async def start(self, given: Sequence[socket.socket]) -> None:
        """Answer on these listening sockets from now on."""
        # We use uvicorn's configuration and protocol but not its `Server`: that one wakes up ten times a second and
        # wants the signals, and the daemon has both a loop and signal handlers of its own.
        config = uvicorn.Config(
            self._routes.application,
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=self._limits.idle_time,  # type: ignore[arg-type] # handed to call_later, which takes both
            h11_max_incomplete_event_size=self._limits.head,
        )
        config.load()
        loop = asyncio.get_running_loop()
        make = functools.partial(Connection, config, self._places, {})
        for one in given:
            # Since 3.13 asyncio would remove the file on close; a socket of systemd's is not ours to remove.
            if sys.version_info >= (3, 13):
                listener = await loop.create_unix_server(make, sock=one, backlog=_BACKLOG, cleanup_socket=False)
            else:
                listener = await loop.create_unix_server(make, sock=one, backlog=_BACKLOG)
            self._listeners.append(listener)
            log.info("listening: %s", one.getsockname())

    async def stop(self) -> None:
        """Take no more requests, let the running ones end within `ConnectionLimits.stop_time`, then cut."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            for listening in listener.sockets:
                loop.remove_reader(listening.fileno())
        self._routes.stop()
        for _ in range(3):
            # Who was accepted a moment ago is known a few turns of the loop later; and asyncio forgets, and does not
            # close, whom it accepted for a listener that is closed before that.
            await asyncio.sleep(0)
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        connections = [one for one in self._places.connections if isinstance(one, Connection)]
        for connection in connections:
            if not connection.transport.is_closing():
                connection.shutdown()
        ends = {*self._places.tasks, *(one.ended for one in connections)}
        if ends:
            await asyncio.wait(ends, timeout=self._limits.stop_time)
        for connection in connections:
            connection.abort()
        # One turn of the loop, in which the transports tell their protocols that they are gone: no task waits for a
        # reader then.
        await asyncio.sleep(0)
        late = set(self._places.tasks)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)


class Server(HttpListener):
    """The socket's end of a user's daemon."""

    def __init__(
        self,
        service: RequestHandlers,
        allowed: Callable[[int, Right], bool],
        *,
        limits: ConnectionLimits | None = None,
        tends: Callable[[int], bool] | None = None,
    ) -> None:
        """``allowed`` tells whether a uid has a right, ``tends`` whether it may tend; asked for every request."""
        limits = limits or ConnectionLimits()
        self._own = Routes(service, allowed, limits, tends)
        rights = tuple(Right)
        super().__init__(
            self._own,
            limits,
            lambda uid: any(allowed(uid, right) for right in rights) or (tends is not None and tends(uid)),
        )

    @property
    def last_asked(self) -> float:
        """When somebody last asked for something that did not only look in, by the loop's clock."""
        return self._own.last_asked


# -- listening sockets ----------------------------------------------------------------------------------------------

# The kernel's sun_path has 108 bytes, and one is the null at the end.
_LONGEST: Final = 107
# A burst of clients must not meet a full queue: for them that looks like a daemon that is not there.
_BACKLOG: Final = 256
_FIRST_DESCRIPTOR: Final = 3


def bind(path: Path, mode: int) -> socket.socket:
    """Make a listening socket at ``path`` that is never open to more than ``mode`` says.

    Makes the directory if only that is missing.  Raises `RunningError` if a daemon answers there, `SettingsError` if
    the path cannot or must not be used.
    """
    size = len(os.fsencode(path))
    if size > _LONGEST:
        message = f"the socket's path has {size} bytes, more than the {_LONGEST} that a unix socket may have: {path}"
        raise SettingsError(message, hint="use a shorter path")
    _check_directory(path.parent, mode)
    clear(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        # Linux gives the new file the descriptor's mode (less the umask); nobody can connect before we listen.
        os.fchmod(listener.fileno(), mode)
        listener.bind(str(path))
        path.chmod(mode)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        message = f"cannot listen on {path}: {error.strerror}"
        raise SettingsError(message) from error
    return listener


def _check_directory(directory: Path, mode: int) -> None:
    try:
        # Who may connect must be able to get through; nobody else needs to.
        directory.mkdir(mode=0o755 if mode & 0o077 else 0o700, exist_ok=True)
        # Where a client would not believe us, we do not answer.
        folder, _ = sockets.enter(str(directory / "socket"), sockets.Trusted())
    except sockets.UntrustedPeer as error:
        raise SettingsError(str(error), hint=f"{error.hint}; or choose another place: paths.socket") from error
    except OSError as error:
        message = f"cannot use {directory} for the socket: {error.strerror}"
        raise SettingsError(message) from error
    os.close(folder)


def clear(path: Path) -> None:
    """Remove the socket that a dead daemon left.  Nothing there is fine.

    Raises `RunningError` if somebody answers, `SettingsError` if it is not ours to remove.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            message = f"{path} exists and is not a socket"
            raise SettingsError(message, hint="move it away, or choose another socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            status = probe.connect_ex(str(path))
        # EAGAIN is a full queue: somebody listens, and has much to do.
        if status in {0, errno.EAGAIN, errno.EINPROGRESS}:
            message = f"a daemon already answers on {path}"
            raise RunningError(message, hint="xpucachectl status asks it; stop it before you start another")
        if status == errno.ECONNREFUSED:
            path.unlink()
        elif status != errno.ENOENT:
            message = f"cannot tell who owns {path}: {os.strerror(status)}"
            raise SettingsError(message)
    except FileNotFoundError:
        return
    except OSError as error:
        message = f"cannot replace {path}: {error.strerror}"
        raise SettingsError(message) from error


def activated(environ: MutableMapping[str, str] = os.environ) -> list[socket.socket]:
    """Take the sockets that systemd opened for us; see `activated_by_name`."""
    return [one for _, one in activated_by_name(environ)]


def activated_by_name(environ: MutableMapping[str, str] = os.environ) -> list[tuple[str, socket.socket]]:
    """Take the sockets that systemd opened for us, with their names; none if it did not start us that way.

    Removes the variables, so that no child believes they are meant for it.  Raises `SettingsError` for a socket that
    is not a listening unix stream socket.
    """
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    taken: list[socket.socket] = []
    for number in range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + int(count)):
        try:
            os.set_inheritable(number, False)  # noqa: FBT003 - the standard library's signature
            one = socket.socket(fileno=number)
        except OSError as error:
            message = f"descriptor {number} from systemd is not a socket: {error.strerror}"
            raise SettingsError(message) from error
        taken.append(one)
        listening = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if one.family != socket.AF_UNIX or one.type != socket.SOCK_STREAM or not listening:
            for other in taken:
                other.close()
            message = f"descriptor {number} from systemd is not a listening unix stream socket"
            raise SettingsError(message, hint="use ListenStream= with an absolute path in the socket unit")
        one.setblocking(False)  # noqa: FBT003 - the standard library's signature
    names += [""] * (len(taken) - len(names))
    return list(zip(names, taken, strict=False))
