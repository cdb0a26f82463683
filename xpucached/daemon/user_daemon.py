"""The life of a user's daemon: start, wake, reconcile, reload, stop; and what systemd hears of it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import logging
import math
import os
import signal
import time
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import Final

from xpucached import __version__, deadlines, logs, settings, systemd
from xpucached.catalog import Catalog
from xpucached.catalog.stores import all_stores
from xpucached.daemon import configuration, memory, rights, watching, worker
from xpucached.daemon.lock import alone, instance
from xpucached.daemon.schedule import ClockSchedule
from xpucached.domain.host import Problem
from xpucached.domain.secrecy import HIDDEN, of_event
from xpucached.domain.triggers import DriverChanged, EventsLost, ModelsChanged, Periodic, Started, StoreChanged, Trigger
from xpucached.errors import CatalogError, HostError, QuotaError, SettingsError, XpucachedError
from xpucached.incidents import unexpected
from xpucached.processes.supervised import ProcessStarter
from xpucached.server import http_listener, unix_sockets
from xpucached.server.metrics_port import NO_PORT_HERE, PROBLEM, MetricsPort
from xpucached.service import Service, automatic, quota
from xpucached.service.context import Context
from xpucached.service.handlers import Handlers
from xpucached.service.jobs import SAVING
from xpucached.threads import STOP, renew
from xpucached.watch.watcher import Watcher

log = logging.getLogger(__name__)

_SETTLE_LIMIT: Final = 10.0
"""A package manager touches driver files for minutes; after so many times the settling time we look all the same."""

_RETRY: Final = 5.0
"""Seconds after which to look again when a look has failed: a disk was full, a catalog was locked or corrupt."""

_DIGEST: Final = 3.0
"""Seconds between two looks at what programs did in the stores …"""
_LONGEST_DIGEST: Final = 600.0
"""… and at most, while they fail."""

_GLANCE: Final = 15.0
"""Seconds between two looks at the clock, and of a worker at whether it is still wanted."""

_MESSAGES: Final = 200
"""So many messages of one kind may go to the journal at once; after that, one a second."""

_WATCHING: Final = 60.0
"""Seconds that it may take to listen at everything."""

_READING: Final = 30.0
"""Seconds that a new configuration may take to be read; work goes on meanwhile."""

_LOSSES: Final = 60.0
"""Seconds between two looks because events were lost (a neighbour may do that at will), or nobody knows why."""

_STOPPING: Final = 5.0
"""Seconds that what is going on may take to end when the daemon stops."""

_RUNS: Final = {"warmed": "model-warmed", "cancelled": "", "uncached": ""}
"""What the journal hears of runs that did not fail; of those that prove nothing it hears nothing."""


class Daemon:
    """Turns wakes into looks, one after the other."""

    def __init__(
        self,
        options: argparse.Namespace,
        config: settings.Settings,
        service: Service,
        listener: http_listener.Server,
        port: MetricsPort,
    ) -> None:
        self._options = options
        self._settings = config
        self._service = service
        self._door = listener
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._triggers: set[Trigger] = set()
        self._woken = asyncio.Event()
        self._stopping = asyncio.Event()
        self.end = math.inf  # of the stop, on the loop's clock
        self._outdated = asyncio.Event()
        self._later: asyncio.TimerHandle | None = None
        self._loss_look = -math.inf
        self._watcher = Watcher(self.post, watching.means(config), service.tracker.take)
        self._schedule = ClockSchedule(lambda: self._take(Periodic()), self._scrub, service.verifier.progress.wait)
        self._need = worker.WorkerNeed(self._loop.time())
        service.context.on_look = lambda: self._take(DriverChanged())
        service.context.look_later = self._look_later
        service.context.on_models = lambda: self._take(ModelsChanged())
        # A look that somebody asks for finds new stores, and a watcher that was started since, as any other does.
        service.context.on_scan = self._watch

    def post(self, trigger: Trigger) -> None:
        """Take a hint, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: we are stopping
            self._loop.call_soon_threadsafe(self._take, trigger)

    def _take(self, trigger: Trigger) -> None:
        if isinstance(trigger, EventsLost):
            self._find_again()
            return
        if isinstance(trigger, StoreChanged | ModelsChanged):
            self._need.note_activity(self._loop.time())
        self._service.context.notices += isinstance(trigger, DriverChanged)
        self._triggers.add(trigger)
        self._woken.set()

    def _find_again(self) -> None:
        """Look at everything, for events were lost; not at once if such a look was a moment ago."""
        now = self._loop.time()
        if self._loss_look <= now:
            self._loss_look = max(now, self._loss_look + _LOSSES)
            self._loop.call_at(self._loss_look, self._take, Periodic())

    async def run(self) -> None:
        """Work until a signal says stop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stopping.set)
        self._loop.add_signal_handler(signal.SIGHUP, self._outdated.set)
        self._take(Started())
        self._schedule.take_settings(self._settings)
        self._schedule.start()
        await self._open_port()
        tasks = [
            asyncio.create_task(self._reconcile(), name="reconcile"),
            asyncio.create_task(self._follow_configuration(), name="configuration"),
            asyncio.create_task(systemd.ping(), name="watchdog"),
            asyncio.create_task(self._mind_the_clock(), name="clock"),
            asyncio.create_task(self._digest(), name="digest"),
            asyncio.create_task(self._tell(), name="journal"),
            asyncio.create_task(self._service.keep(), name="accounts"),
        ]
        if self._options.worker:
            tasks.append(asyncio.create_task(self._mind_the_others(), name="others"))
        stop = asyncio.create_task(self._stopping.wait(), name="stop")
        systemd.notify("READY=1", "STATUS=looking at the host")
        try:
            ended, _ = await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in ended - {stop}:
                # It never returns, so it failed: better to end, and be started again, than to live on deaf.
                task.result()
        finally:
            self.end = self._loop.time() + STOP
            systemd.notify("STOPPING=1")
            log.info("stopping")
            # A thread may be in a store that does not answer: what is to be saved does not wait for it.
            renew(self._loop)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                self._loop.remove_signal_handler(number)
            self._schedule.stop()
            for task in (stop, *tasks):
                task.cancel()
            watcher = asyncio.create_task(self._end_watch())
            await asyncio.wait([stop, *tasks, watcher], timeout=_STOPPING)
            await self._service.stop(self.end - self._loop.time())

    async def _end_watch(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.to_thread(deadlines.ask, "watch", self._watcher.stop)

    async def _reconcile(self) -> None:
        while True:
            await self._woken.wait()
            await self._settled()
            triggers, self._triggers = self._triggers, set()
            self._woken.clear()
            if Started() not in triggers:
                # What was lost is said while it is looked for.
                self._tell_watch()
            try:
                if Started() in triggers:
                    # Who listens before he looks need not look a second time at what happened in between.
                    async with self._service.context.automatic.part(automatic.WATCH):
                        await self._watch(await asyncio.to_thread(self._service.finder.places))
                    triggers |= self._triggers
                    self._triggers.clear()
                    self._woken.clear()
                again = await self._service.reconciler.reconcile(triggers)
                await asyncio.to_thread(memory.trim)
                if again is not None:
                    self._look_later(again)
                async with self._service.context.automatic.part(automatic.WATCH):
                    await self._watch()
                stands = (await self._service.status.get()).sentence
                systemd.notify(f"STATUS={worker.STATUS if self._options.worker else stands}")
            except XpucachedError as error:
                log.warning("a look failed: %s", error.message)
                self._look_later(_RETRY)
            except Exception as error:  # noqa: BLE001 - one bad look must not end the daemon: the next one comes
                unexpected(log, "in a look", error)
                self._look_later(_LOSSES)

    def _look_later(self, delay: float) -> None:
        """Look again by ourselves after so many seconds, or sooner if that was meant before."""
        # One at a time: each look asks for the next one, so that two would go on side by side for ever.
        if self._later is not None and self._loop.time() < self._later.when() <= self._loop.time() + delay:
            return
        if self._later is not None:
            self._later.cancel()
        self._later = self._loop.call_later(delay, self._take, Periodic())

    async def _settled(self) -> None:
        """Wait until hints stop coming: a driver's package is unpacked file by file."""
        if self._triggers <= {Started(), Periodic()}:
            return
        quiet = self._settings.schedule.settle
        end = self._loop.time() + quiet * _SETTLE_LIMIT
        while self._loop.time() < end:
            self._woken.clear()
            try:
                async with asyncio.timeout(quiet):
                    await self._woken.wait()
            except TimeoutError:
                return

    async def _watch(self, places: Iterable[Path] = ()) -> None:
        """Listen to what happens in the stores, or in these places before it is known what they are."""
        stores = list(places) or [status.store for status in await self._service.context.read(all_stores)]
        stores = await asyncio.to_thread(watching.answering, stores)
        drivers = await asyncio.to_thread(watching.driver_places, self._service.surveyor.watched())
        others = watching.model_folders(self._settings), watching.means(self._settings), self._settings.key_folders
        # What does not answer all the same holds up the watching, and not the looks.
        try:
            watch = functools.partial(self._watcher.watch, stores, drivers, *others)
            await asyncio.to_thread(deadlines.ask, "watch", watch, _WATCHING)
        except TimeoutError as error:
            raise HostError("a directory that is to be watched does not answer", hint="see: findmnt") from error
        self._tell_watch()

    def _tell_watch(self) -> None:
        watcher = self._watcher
        self._service.status.take_watch(watcher.mode, watcher.better, loads=watcher.loads, unwatched=watcher.reason)

    async def _scrub(self) -> None:
        """Read the next part of the stores again."""
        await self._service.context.until_ready()
        async with self._service.context.automatic.part(automatic.SCRUB):
            await self._service.verifier.scrub()

    async def _digest(self) -> None:
        """See what programs did in the stores, as the watcher heard it."""
        delay = _DIGEST
        while True:
            await asyncio.sleep(delay)
            async with self._service.context.automatic.part(automatic.ACTIVITY):
                await self._service.tracker.digest()
                await asyncio.to_thread(watching.glance, self._watcher)
            failing = automatic.ACTIVITY.name in self._service.context.automatic.failing
            delay = min(delay * 2, _LONGEST_DIGEST) if failing else _DIGEST

    async def _mind_the_clock(self) -> None:
        """Begin anew to count when the clock was set: the scheduler would wait until the old time comes again."""
        jumps = 0
        while True:
            await asyncio.sleep(_GLANCE)
            before, jumps = jumps, self._service.context.mind_the_clock()
            if jumps != before:
                self._schedule.take_settings(self._settings)
            if jumps != before or self._service.context.catalog.trouble is not None:
                self._take(Periodic())

    async def _mind_the_others(self) -> None:
        """As a worker: go when nobody needs us, and step aside for a daemon of our user's own."""
        while True:
            self._need.know(self._loop.time(), local=await worker.seen())
            door, idle, now = self._door, self._settings.workers.idle, self._loop.time()
            awaited = self._later is not None and now <= self._later.when() < now + (idle or 0)
            works = self._schedule.scrubbing or self._service.busy or door.busy
            if busy := bool(awaited or self._triggers or works):
                self._need.work(now)
            if (rest := self._need.end(idle, door.last_asked, door.last_passed_on) - now) <= 0:
                log.info("nobody needs us any more")
                self._stopping.set()
            await asyncio.sleep(1.0 if busy else min(_GLANCE, max(0.2, rest)))

    async def _tell(self) -> None:
        """Tell the journal what others may wait for."""
        user = {"user": await worker.named()} if self._options.worker else {}
        systemd.tell("started", f"xpucached {__version__} looks after the caches of uid {os.getuid()}", user)
        told = logs.Allowance(_MESSAGES, 1.0)
        async for event in self._service.context.events.subscribe(self._service.context.events.began):
            what = event.topic
            if what == "run-finished":
                what = _RUNS.get(event.fields.get("outcome", ""), "model-failed")
            if what in systemd.MESSAGES and told.spend(what) is not None:
                # The journal has other readers, too.
                shown = of_event(event)
                fields = {name: text for name, text in shown.fields.items() if text != HIDDEN}
                message = systemd.SENTENCES[what] if shown.message == HIDDEN else shown.message
                systemd.tell(what, message, {**fields, **user})

    async def _follow_configuration(self) -> None:
        while True:
            await self._outdated.wait()
            self._outdated.clear()
            await self._reload()

    async def _reload(self) -> None:
        """Read the configuration again; a refused one leaves everything as it is, and `status` shows why."""
        systemd.notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        read = functools.partial(configuration.load, self._options)
        try:
            fresh = await asyncio.to_thread(deadlines.ask, "configuration", read, _READING)
        except SettingsError as error:
            shown = configuration.loggable(error, worker=self._options.worker)
            log.error("the old configuration stays: %s", shown.message)  # noqa: TRY400 - expected
            problem = Problem("bad-settings", f"the new configuration is refused: {error.message}", error.hint)
            self._service.context.settings_problems = (problem,)
        except Exception as error:  # noqa: BLE001 - whatever it is, the old one goes on
            why = f"the new configuration cannot be read now: {getattr(error, 'strerror', error)}"
            log.error("the old configuration stays: %s", why)  # noqa: TRY400 - expected
            self._service.context.settings_problems = (Problem("bad-settings", why, "reload it again"),)
        else:
            if (own := attrgetter("state", "cache", "socket", "socket_mode"))(fresh.paths) != own(self._settings.paths):
                problem = Problem("restart-needed", "paths changed in the configuration", "restart xpucached")
                self._service.context.settings_problems = (problem,)
            elif short := await self._too_small(fresh):
                log.error("the old configuration stays: %s", short.message)
                problem = Problem("quota-too-small", f"the new configuration is refused: {short.message}", short.hint)
                self._service.context.settings_problems = (problem,)
            else:
                self._settings = self._service.context.settings = fresh
                self._service.context.settings_problems = ()
                logging.getLogger().setLevel(fresh.log.level.upper())
                self._schedule.take_settings(self._settings)
                await self._open_port()
                log.info("configuration read")
        self._take(ModelsChanged())
        self._take(DriverChanged())
        systemd.notify("READY=1")

    async def _open_port(self) -> None:
        """Give figures at the port that the configuration names."""
        problem = await self._port.take(self._settings.metrics.listen)
        if problem is None:
            self._service.context.problems.clear(PROBLEM)
        else:
            self._service.context.problems.note(problem)

    async def _too_small(self, fresh: settings.Settings) -> QuotaError | None:
        """Return which of new limits is below what models need; what was lacking already is only told of."""
        if fresh.policy == self._settings.policy:
            return None
        try:
            return await quota.too_small(self._service.context, fresh.policy, self._settings.policy)
        except (CatalogError, RuntimeError):  # what it holds, or a thread to ask it, cannot be had now
            return None


async def serve(options: argparse.Namespace, config: settings.Settings) -> None:
    """Run the daemon on its state, its catalog and its socket."""
    renew(asyncio.get_running_loop())
    with alone(config.paths.state):
        # A worker's state goes by its user's number, and numbers are given away again.
        account = worker.account() if options.worker else None
        other = worker.other_catalog(config, is_worker=options.worker)
        async with systemd.starting():
            catalog = await asyncio.to_thread(
                Catalog.open, config.paths.state / "catalog.sqlite", apart=True, account=account, other=other
            )
        try:
            starter = ProcessStarter(os.environ, instance(config.paths.state), deadlines.ask)
            service = Service(Context(config, catalog, os.environ), starter)
            await service.recover()
            given = worker.activated() if options.worker else unix_sockets.activated()
            listening = given or [unix_sockets.bind(config.paths.socket, config.paths.socket_mode)]
            made = None if given else unix_sockets.identity(config.paths.socket)
            may, tends = (rights.owners_only, await rights.host_daemon()) if options.worker else (rights.allowed, None)
            handlers = Handlers(service)
            listener = http_listener.Server(handlers, may, tends=tends)
            await listener.start(listening)
            log.info("xpucached %s answers on %s", __version__, config.paths.socket)
            port = MetricsPort(handlers.answer, given, refused=NO_PORT_HERE if options.worker else None)
            daemon = Daemon(options, config, service, listener, port)
            try:
                await daemon.run()
            finally:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(daemon.end):
                        await asyncio.gather(listener.stop(), port.stop())
                unix_sockets.remove(config.paths.socket, made)
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SAVING):
                    await asyncio.to_thread(catalog.close)
