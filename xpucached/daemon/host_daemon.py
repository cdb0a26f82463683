"""The life of the host's daemon: its two sockets, signals, and what systemd hears of it.

It has no privileges: no capability, no device, no home, no network (but a port of the loopback address where one is
configured, and its unit permits it).  See `hostd` for what it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import resource
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import __version__, deadlines, systemd
from xpucached.api import looking
from xpucached.domain.host import Problem
from xpucached.errors import SettingsError
from xpucached.host import capacity, core_slots
from xpucached.hostd import figures
from xpucached.hostd.sentences import stranger
from xpucached.hostd.supervisor import HostDaemon
from xpucached.render.metrics import host_metrics
from xpucached.server import http_listener, unix_sockets
from xpucached.server.connection import ConnectionLimits
from xpucached.server.hosting import HostRoutes
from xpucached.server.metrics_port import MetricsPort
from xpucached.server.public_thread import PublicListener, across
from xpucached.threads import STOP, renew

if TYPE_CHECKING:
    from collections.abc import Callable

    from xpucached.settings import Settings

log = logging.getLogger(__name__)

ADMIN = "admin"
"""What the unit of the administrators' socket calls it."""

_DESCRIPTORS: Final = 8192

_READING: Final = 30.0
"""Seconds that a new configuration may take to be read."""

_BODY: Final = 128 << 10
"""Bytes of a request: the longest names a thousand models.

All that all who connect may have sent and not finished has to fit into the memory of our unit.
"""


async def serve(config: Settings, load: Callable[[], Settings]) -> None:
    """Run the host's daemon until a signal says stop; ``load`` reads the configuration again."""
    loop = asyncio.get_running_loop()
    renew(loop)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    runtime = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    host_daemon = HostDaemon(config, runtime=Path(runtime) if runtime else config.paths.socket.parent)
    if runtime:
        _share_cores(Path(runtime))
    outdated = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, outdated.set)
    given = unix_sockets.activated_by_name()
    # Without systemd there is the public one, at which root may do all.
    listening = given or [("", unix_sockets.bind(config.paths.socket, config.paths.socket_mode))]
    made = None if given else unix_sockets.identity(config.paths.socket)
    _more_descriptors()
    listeners: list[http_listener.HttpListener | PublicListener] = []
    tasks: list[asyncio.Task[None]] = []
    port = MetricsPort(functools.partial(_figures, host_daemon), [one for _, one in given])
    try:
        for name, one in listening:
            listener: http_listener.HttpListener | PublicListener
            if name == ADMIN:
                listener = _admin(host_daemon)
            else:
                listener = PublicListener(functools.partial(_public, host_daemon, loop))
            listeners.append(listener)
            await listener.start([one])
        host_daemon.port_problem = await port.take(config.metrics.listen)
        tasks = [
            asyncio.create_task(host_daemon.run(), name="host"),
            asyncio.create_task(_follow_configuration(host_daemon, port, load, outdated), name="configuration"),
            asyncio.create_task(systemd.ping(), name="watchdog"),
            asyncio.create_task(figures.keep(host_daemon, os.environ.get("RUNTIME_DIRECTORY")), name="figures"),
        ]
        stop = asyncio.create_task(_until(stopping), name="stop")
        tasks.append(stop)
        systemd.notify("READY=1", "STATUS=looking after the users of this host")
        systemd.tell("started", f"xpucached {__version__} looks after this host's users")
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended - {stop}:
            # It never returns, so it failed: better to end, and be started again, than to live on deaf.
            task.result()
    finally:
        systemd.notify("STOPPING=1")
        # Threads may wait for a user database that does not answer: what is to be saved does not.
        renew(loop)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP):
                for task in tasks:
                    task.cancel()
                if tasks:
                    await asyncio.wait(tasks)
                await host_daemon.stop()
                await port.stop()
                for listener in listeners:
                    await listener.stop()
        unix_sockets.remove(config.paths.socket, made)


def _admin(host_daemon: HostDaemon) -> http_listener.HttpListener:
    limits = ConnectionLimits(body=_BODY)
    return http_listener.HttpListener(HostRoutes(host_daemon, __version__, limits, admin=True), limits)


def _public(host_daemon: HostDaemon, loop: asyncio.AbstractEventLoop) -> http_listener.HttpListener:
    limits = ConnectionLimits(body=_BODY)
    routes = HostRoutes(host_daemon, __version__, limits, admin=False, run=across(loop))
    return http_listener.HttpListener(routes, limits, host_daemon.admits, stranger())


async def _figures(host_daemon: HostDaemon, asked: looking.GetMetrics) -> str:
    """Return what stands in the file for everybody, too."""
    openmetrics = asked.format is looking.MetricsFormat.OPENMETRICS
    return host_metrics(host_daemon.status(None), datetime.now(UTC), openmetrics=openmetrics)


def _share_cores(runtime: Path) -> None:
    """Let the users' daemons see how many compilers may work on this host; without it each has its own bound only."""
    try:
        core_slots.make(runtime, capacity.cores())
    except OSError as error:
        log.warning("users' compilers have no common bound: %s", error)


def _more_descriptors() -> None:
    """See that connections do not use up our descriptors: the places at all sockets are fewer, by far."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _until(event: asyncio.Event) -> None:
    await event.wait()


async def _follow_configuration(
    host_daemon: HostDaemon, port: MetricsPort, load: Callable[[], Settings], outdated: asyncio.Event
) -> None:
    while True:
        await outdated.wait()
        outdated.clear()
        await _reload(host_daemon, port, load)


async def _reload(host_daemon: HostDaemon, port: MetricsPort, load: Callable[[], Settings]) -> None:
    systemd.notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
    try:
        fresh = await asyncio.to_thread(deadlines.ask, "configuration", load, _READING)
    except SettingsError as error:
        log.error("the configuration is refused, the old one stays: %s", error.message)  # noqa: TRY400 - expected
        problem = Problem("bad-settings", f"the new configuration is refused: {error.message}", error.hint)
        host_daemon.settings_problems = (problem,)
    except Exception as error:  # noqa: BLE001 - whatever it is, the old one goes on
        why = f"the new configuration cannot be read now: {getattr(error, 'strerror', error)}"
        log.error("the old configuration stays: %s", why)  # noqa: TRY400 - expected
        host_daemon.settings_problems = (Problem("bad-settings", why, "reload it again"),)
    else:
        host_daemon.take_settings(fresh)
        host_daemon.port_problem = await port.take(fresh.metrics.listen)
        logging.getLogger().setLevel(fresh.log.level.upper())
        log.info("configuration read by process %d", os.getpid())
    systemd.notify("READY=1")
