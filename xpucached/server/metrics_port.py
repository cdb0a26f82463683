"""Door: figures for Prometheus on a port of the loopback address, where the configuration names one.  Listens.

Every local user and every program reaches such a port, and nobody knows who it is: it answers one path, by reading,
with what those may see who may only read.  Like the public socket it has a thread of its own, and however many ask, the
figures are taken once a second.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import re
import socket
import struct
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response

from xpucached.api import endpoints, looking, requests
from xpucached.api.endpoints import Endpoint
from xpucached.domain.host import Problem
from xpucached.errors import NotFound, Unavailable
from xpucached.render import metrics
from xpucached.server.app import CLOSE, HttpApplication, check_origin, done, refusal
from xpucached.server.connection import ConnectionLimits, Peer
from xpucached.server.http_listener import HttpListener
from xpucached.server.public_thread import PublicListener, across
from xpucached.server.unix_sockets import BACKLOG

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

log = logging.getLogger(__name__)

OFF: Final = "off"
"""What stands in place of an address where nothing shall listen."""

NO_PORT_HERE: Final = Problem(
    "metrics-port",
    "no figures at metrics.listen: a worker of the host's daemon opens no port",
    "set it in /etc/xpucached/xpucached.toml for the figures of all users, or run your own daemon",
)

PROBLEM: Final = NO_PORT_HERE.code
"""The code of each problem for which the port is not open."""

_AGE: Final = 1.0
"""Seconds for which the figures stay: whoever asks more often costs the daemon no more."""

_REACHED: Final = 1.0
"""Seconds in which we must reach our own port.  The kernel answers at once, unless packets are dropped."""

_COOKIE: Final = 71  # SO_NETNS_COOKIE, which the module does not name
_HTTP: Final = 80
_UNIT: Final = "see docs/looking.md#prometheus: a drop-in of the unit permits it; then restart the service"


class MetricsRoutes(HttpApplication):
    """Answers ``GET /v1/metrics``, and nothing else, as an ASGI application."""

    def __init__(
        self,
        figures: Callable[[looking.GetMetrics], Coroutine[None, None, object]],
        address: tuple[str, int],
        limits: ConnectionLimits,
        run: Callable[[Coroutine[None, None, object]], Awaitable[object]],
    ) -> None:
        """``figures`` takes them, by way of ``run`` in the daemon's own loop; ``address`` is where we listen."""
        super().__init__((row for row in requests.ENDPOINTS if row.request is looking.GetMetrics), limits)
        host, port = address
        own = f"[{host}]" if ":" in host else host
        names = "|".join(re.escape(one) for one in ("localhost", "127.0.0.1", "[::1]", own))
        # Clients leave out the usual port.
        self._hosts = re.compile(rf"(?:{names}):{port}" + (rf"|(?:{names})" if port == _HTTP else ""), re.IGNORECASE)
        self._url = f"http://{own}:{port}/v1/metrics"
        self._figures = figures
        self._run = run
        self._taken: dict[looking.MetricsFormat, tuple[float, asyncio.Task[object]]] = {}

    def stop(self) -> None:
        """End what is under way."""
        super().stop()
        for _, task in self._taken.values():
            task.cancel()

    def _admit(self, row: Endpoint, peer: Peer) -> None:
        """Let everybody ask: of who comes by a port nothing is known."""

    async def _not_found(self, _request: Request) -> Response:
        return refusal(404, NotFound.code, "there is nothing here but /v1/metrics", headers=CLOSE)

    def _check_origin(self, request: Request) -> None:
        check_origin(request, self._hosts, "the Host header must name this address and port", f"curl {self._url}")

    async def _respond(self, row: Endpoint, asked: endpoints.Request[object], request: Request, _user: str) -> Response:
        given = asked.format if isinstance(asked, looking.GetMetrics) else looking.MetricsFormat.TEXT
        if "openmetrics" in request.headers.get("accept", ""):
            given = looking.MetricsFormat.OPENMETRICS
        text = await done(row, request, self._recent(given))
        media = metrics.OPENMETRICS if given is looking.MetricsFormat.OPENMETRICS else metrics.TEXT
        return Response(str(text).encode(), headers={"Content-Type": media})

    async def _recent(self, given: looking.MetricsFormat) -> object:
        """Return figures that are at most `_AGE` old; all who wait, wait for the same."""
        now = asyncio.get_running_loop().time()
        begun, task = self._taken.get(given, (now - _AGE, None))
        if task is None or (task.done() and begun + _AGE <= now):
            task = asyncio.ensure_future(_awaited(self._run(self._figures(looking.GetMetrics(format=given)))))
            # Who asked may be gone when it fails.
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            self._taken[given] = now, task
        try:
            # Who hangs up ends it for nobody else, and makes no room for one more.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise Unavailable("the daemon stops, or listens elsewhere now") from None
            raise


async def _awaited(one: Awaitable[object]) -> object:
    return await one


class MetricsPort:
    """The port: opened, closed and moved as the configuration says."""

    def __init__(
        self,
        figures: Callable[[looking.GetMetrics], Coroutine[None, None, object]],
        given: Sequence[socket.socket] = (),
        *,
        refused: Problem | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        """``given`` are sockets that systemd made outside the unit, by which we see whether others can reach us.

        ``refused`` is why there is no port, whatever the configuration says.
        """
        self._refused = refused
        self._figures = figures
        self._given = given
        self._limits = limits or ConnectionLimits()
        self._listener: PublicListener | None = None
        self._listen = OFF

    async def take(self, listen: str) -> Problem | None:
        """Listen there, or nowhere if it is `OFF`; return why that cannot be."""
        try:
            problem = await self._take(listen)
        except (OSError, RuntimeError) as error:
            # There is no descriptor or thread for it now; the next reload tries again.
            await self.stop()
            problem = _not_open(listen, error if isinstance(error, OSError) else OSError(errno.EAGAIN, str(error)))
        if problem is not None:
            log.warning("%s", problem.message)
        return problem

    async def _take(self, listen: str) -> Problem | None:
        if self._refused is not None:
            return None if listen == OFF else self._refused
        if listen == self._listen and (self._listener is not None or listen == OFF):
            return None
        await self.stop()
        self._listen = listen
        if listen == OFF:
            return None
        host, _, port = listen.rpartition(":")
        address = host.strip("[]"), int(port)
        try:
            one = bind(address)
        except OSError as error:
            return _not_open(listen, error)
        try:
            reachable = await asyncio.to_thread(_reachable, one, self._given)
        except BaseException:
            one.close()
            raise
        if not reachable:
            one.close()
            message = f"nobody could reach {listen}, where metrics.listen wants figures: the unit keeps packets out"
            return Problem(PROBLEM, message, _UNIT)
        loop = asyncio.get_running_loop()
        self._listener = PublicListener(functools.partial(self._make, address, across(loop)))
        await self._listener.start([one])
        return None

    async def stop(self) -> None:
        """Listen no more, and end what is asked."""
        listener, self._listener, self._listen = self._listener, None, OFF
        if listener is not None:
            await listener.stop()

    def _make(
        self, address: tuple[str, int], run: Callable[[Coroutine[None, None, object]], Awaitable[object]]
    ) -> HttpListener:
        return HttpListener(MetricsRoutes(self._figures, address, self._limits, run), self._limits)


def bind(address: tuple[str, int]) -> socket.socket:
    """Make a listening socket at this address and port.  Raises `OSError`."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    one = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        # Else a daemon that is started again would wait for what the kernel still knows of ended connections.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(address)
        one.listen(BACKLOG)
    except OSError:
        one.close()
        raise
    return one


def _not_open(listen: str, error: OSError) -> Problem:
    message = f"no figures at {listen} (metrics.listen): {error.strerror or error}"
    if error.errno == errno.EADDRINUSE:
        return Problem(
            PROBLEM, message, "choose another port, or end what listens there; then reload the configuration"
        )
    if error.errno == errno.EACCES:
        return Problem(PROBLEM, message, "choose a port above 1023, and reload the configuration")
    if error.errno == errno.EADDRNOTAVAIL:
        return Problem(PROBLEM, message, "choose 127.0.0.1, and reload the configuration")
    if error.errno in {errno.EAFNOSUPPORT, errno.EPERM}:
        return Problem(PROBLEM, f"{message}: the unit forbids it, or the kernel has no such addresses", _UNIT)
    return Problem(PROBLEM, message, "choose another address, and reload the configuration")


def _reachable(one: socket.socket, given: Sequence[socket.socket]) -> bool:
    """Return whether others of this host can reach a port: in a unit it may be bound, and yet be shut off."""
    network = _network(one)
    if network and any(_network(other) not in {0, network} for other in given):
        return False
    with socket.socket(one.family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(_REACHED)
        try:
            probe.connect(one.getsockname())
        except OSError:
            return False
    return True


def _network(one: socket.socket) -> int:
    """Return which network a socket was made in; 0 is unknown, before Linux 5.14."""
    try:
        return int(struct.unpack("Q", one.getsockopt(socket.SOL_SOCKET, _COOKIE, 8))[0])
    except OSError:
        return 0
