"""Serving HTTP on listening sockets: one application, its connections, and its end."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import sys
from typing import TYPE_CHECKING, Protocol

from xpucached import guarded, sockets
from xpucached.api.endpoints import Right
from xpucached.errors import Denied
from xpucached.server.connection import FOREIGN, Connection, ConnectionLimits, ConnectionPool, configuration
from xpucached.server.routes import Routes
from xpucached.server.unix_sockets import BACKLOG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from starlette.types import ASGIApp

    from xpucached.api.endpoints import Request
    from xpucached.domain.jobs import Event

log = logging.getLogger(__name__)


class RequestHandlers(Protocol):
    """What the server of a user's daemon needs from below.  Refusals are raised as `XpucachedError`."""

    async def answer(self, asked: Request[object], /) -> object:
        """Do what is asked; give what comes back."""

    def subscribe(self, since: int, /) -> AsyncIterator[Event]:
        """Return the events after ``since``, and then each new one, for ever."""


class Answers(Protocol):
    """What answers requests, as an ASGI application."""

    @property
    def application(self) -> ASGIApp:
        """The application."""

    def stop(self) -> None:
        """End the streams and the waits."""


class HttpListener:
    """The socket's end of a daemon."""

    def __init__(
        self,
        answers: Answers,
        limits: ConnectionLimits | None = None,
        admits: Callable[[int], bool] = lambda _uid: True,
        foreign: Denied = FOREIGN,
    ) -> None:
        """``admits`` tells of a uid whether it may ask anything at all: who may not is told ``foreign``, unread."""
        self._limits = limits or ConnectionLimits()
        self._places = ConnectionPool(self._limits, admits, foreign)
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
        config = configuration(self._routes.application, self._limits)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_tell)
        make = functools.partial(Connection, config, self._places, {})
        for one in given:
            sockets.refuse_descriptors(one)
            if one.family != socket.AF_UNIX:
                listener = await loop.create_server(make, sock=one, backlog=BACKLOG)
            # Since 3.13 asyncio would remove the file on close; a socket of systemd's is not ours to remove.
            elif sys.version_info >= (3, 13):
                listener = await loop.create_unix_server(make, sock=one, backlog=BACKLOG, cleanup_socket=False)
            else:
                listener = await loop.create_unix_server(make, sock=one, backlog=BACKLOG)
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
            # One that changes something is not cut off, and may wait for a file system that does not answer.
            await asyncio.wait(late, timeout=self._limits.stop_time)


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
        """When its user or root last asked for something, or somebody for work, by the loop's clock."""
        return self._own.last_asked

    @property
    def last_passed_on(self) -> float:
        """The same of what the host's daemon passed on for an administrator who looks."""
        return self._own.last_passed_on


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Tell of what went wrong; that a socket rests is told once, there."""
    if not isinstance(context.get("exception"), guarded.Resting):
        loop.default_exception_handler(context)
