"""Ahead: what is in use is compiled for a driver that lies on this host, before it is installed.

The packages are unpacked by a child, as the user that this daemon works for, into a folder of the daemon's own that
lasts as long as it is compiled with; what is compiled goes the way of ``replay --driver-root``.  It gives way to
whatever else wants to change entries.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached import codec, deadlines, messages, state_files
from xpucached.catalog.preselect import store_subtotals
from xpucached.domain.ahead import Ahead, AheadState, PreparedDriver
from xpucached.domain.host import OtherDriver
from xpucached.domain.jobs import JobState
from xpucached.domain.plans import NoRecipe
from xpucached.errors import NotPrepared
from xpucached.host import power, staged
from xpucached.processes import scratch
from xpucached.processes.cancellation import ended, to_its_end
from xpucached.processes.unpacking import NoRoomLeft, UnpackFailed, UnpackLimits, unpack
from xpucached.service.replay import ReplayRequest

if TYPE_CHECKING:
    from datetime import datetime

    from xpucached.domain.ahead import StagedDriver
    from xpucached.domain.reports import ReplayReport
    from xpucached.service.context import Context
    from xpucached.service.jobs import Handle
    from xpucached.service.replay import Replayer
    from xpucached.service.throttle import Throttle

log = logging.getLogger(__name__)

_LOOKING: Final = 120.0
"""Seconds for the package managers' tools to tell what lies there."""
_LARGEST: Final = 1 << 20
_MOST: Final = 16
"""Drivers that are prepared for, and remembered."""
_PREFIX: Final = "unpacked-"
_PAUSE: Final = 3600.0
"""Seconds before what failed, or brought nothing, is tried again as it stands; twice as long each time …"""
_LONGEST_PAUSE: Final = 86400.0

_AS_ROOT: Final = "it is not loaded by root: the users' own workers do it"
_ON_BATTERY: Final = "it waits for mains power"


class AheadPreparer:
    """Knows which drivers lie there, and prepares for them.  Used from one event loop."""

    def __init__(self, context: Context, replayer: Replayer, throttle: Throttle) -> None:
        self._context = context
        self._replayer = replayer
        self._throttle = throttle
        self._file = context.settings.paths.state / "ahead.json"
        self._kept: dict[str, PreparedDriver] | None = None
        self._lying = staged.Lying()
        self._states: dict[str, Ahead] = {}
        self._pauses: dict[str, tuple[float, float]] = {}  # until when (monotonic), and how long
        self._failures: dict[str, str] = {}
        self._now = ""  # the driver that is prepared for just now
        self._signature = ""
        self._working: asyncio.Task[object] | None = None
        self._cancel = threading.Event()
        context.locks.changing.on_wait = self.give_way

    @property
    def shown(self) -> tuple[Ahead, ...]:
        """How far it is prepared for what lies there."""
        return tuple(self._states.values())

    @property
    def refused(self) -> tuple[str, ...]:
        """Why some of what lies there is not looked at."""
        return self._lying.refused

    def give_way(self) -> None:
        """Let go of the turn for whoever waits for it; what was compiled stays."""
        if self._working is not None and self._working is not asyncio.current_task():
            self._cancel.set()
            self._working.cancel()

    # -- looking ------------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """See what lies there, and how far it is prepared for it."""
        if not self._context.settings.schedule.ahead:
            self._lying, self._states = staged.Lying(), {}
            self._stop_unless(())
            await asyncio.to_thread(self._begin)
            return
        installed = [one.package for one in self._context.present.driver if one.package]
        look = functools.partial(staged.find, installed, self._context.settings.driver.staged)
        self._lying = await asyncio.to_thread(deadlines.ask, "staged", look, _LOOKING)
        drivers = {one.id: one for one in self._lying.drivers[:_MOST]}
        self._stop_unless(drivers)
        await asyncio.to_thread(self._remember, drivers)
        await self._judge()

    def _stop_unless(self, drivers: object) -> None:
        """Go on with a driver only while it lies there and the present one is what it was."""
        there = isinstance(drivers, dict) and self._now in drivers
        if self._now and not (there and self._context.present.signature == self._signature):
            self.give_way()

    def _remember(self, drivers: dict[str, StagedDriver]) -> None:
        """Keep what is known of these drivers, and forget the others."""
        before, now = self._begin(), self._context.clock()
        self._kept = {id_: before.get(id_) or PreparedDriver(id_, now) for id_ in drivers}
        for some in (self._pauses, self._failures):
            for id_ in some.keys() - drivers.keys():
                del some[id_]
        if self._kept != before:
            self._write()

    def _begin(self) -> dict[str, PreparedDriver]:
        """Return what is kept; the first time, read it, and remove what a predecessor left."""
        if self._kept is None:
            self._kept = {one.id: one for one in self._recalled()}
            self._sweep()
        return self._kept

    async def _judge(self) -> None:
        """Say of each driver how far it is prepared for it."""
        states: dict[str, Ahead] = {}
        if any(one.entries for one in await self._context.read(store_subtotals)):
            for driver in self._lying.drivers[:_MOST]:
                judged = await self._judged(driver)
                if judged is not None:
                    states[driver.id] = judged
        for id_, ahead in states.items():
            if ahead.state is AheadState.READY and self._states.get(id_, ahead).state is not AheadState.READY:
                words = f"{ahead.words} ({ahead.what})"
                self._context.events.post("driver-ahead", words, {"drivers": ", ".join(ahead.drivers)})
        self._states = states

    async def _judged(self, driver: StagedDriver) -> Ahead | None:
        kept = (self._kept or {}).get(driver.id) or PreparedDriver(driver.id, self._context.clock())
        new = [one for one in kept.environments if one not in self._context.present.offered]
        if kept.environments and not new and driver.image is not None:
            return None  # the same driver as here
        names = tuple(sorted({one.toolchain for one in new or kept.environments}))
        ahead = Ahead(driver.id, driver.what, AheadState.WAITING, names, since=kept.since)
        if self._now == driver.id:
            return replace(ahead, state=AheadState.PREPARING)
        if self._is_late(kept.since):
            return replace(ahead, state=AheadState.GIVEN_UP, detail="see: policy.ahead_keep")
        if driver.missing:
            return replace(ahead, state=AheadState.INCOMPLETE, detail="; ".join(driver.missing))
        if kept.environments:
            plan = await self._replayer.lacking(OtherDriver(kept.environments, kept.stamp, {}))
            ahead = replace(ahead, entries=plan.covered)
            refused = plan.skipped.get(NoRecipe.FAILED, 0)
            if refused and not plan.rebuild:
                words = f"its compiler refuses {refused} of {plan.covered + refused} entries"
                return replace(ahead, state=AheadState.FAILED, detail=f"{words}: their programs will compile them")
            if not plan.rebuild:
                return replace(ahead, state=AheadState.READY)
        if driver.id in self._failures:
            return replace(ahead, state=AheadState.FAILED, detail=self._failures[driver.id])
        return replace(ahead, detail=self._states[driver.id].detail if driver.id in self._states else "")

    def _is_late(self, since: datetime) -> bool:
        limit = self._context.settings.policy.ahead_keep
        return limit is not None and (self._context.clock() - since).total_seconds() > limit

    # -- preparing ----------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Compile for each driver for which that is due, one after the other, if nothing speaks against it."""
        for driver in self._lying.drivers[:_MOST]:
            known = self._states.get(driver.id)
            if known is None or known.state not in {AheadState.WAITING, AheadState.FAILED}:
                continue
            if self._pauses.get(driver.id, (0.0, 0.0))[0] > time.monotonic():
                continue
            if why := await self._hindrance():
                self._states[driver.id] = replace(known, state=AheadState.WAITING, detail=why)
                continue
            await self._prepare(driver, known)

    async def _hindrance(self) -> str:
        """Say why nothing is compiled ahead now; empty if nothing speaks against it."""
        if os.geteuid() == 0:
            return _AS_ROOT
        if await asyncio.to_thread(power.on_battery):
            return _ON_BATTERY
        return await self._throttle.busy()

    async def _prepare(self, driver: StagedDriver, known: Ahead) -> None:
        self._now, self._signature = driver.id, self._context.present.signature
        self._states[driver.id] = replace(known, state=AheadState.PREPARING, detail="")
        job = self._context.jobs.start("replay", functools.partial(self._work, driver), asked=False)
        try:
            while job.finished is None:
                job = await self._context.jobs.wait(job.id, 60.0)
        except asyncio.CancelledError:
            await self._context.jobs.cancel(job.id)
            raise
        finally:
            self._now = ""
        if job.state is JobState.CANCELLED:
            # It gave way, or somebody cancelled it: the next look goes on.
            self._failures.pop(driver.id, None)
        elif job.error is not None:
            self._failures[driver.id] = job.error.message
        else:
            self._failures.pop(driver.id, None)
        await self._judge()
        if job.state is not JobState.CANCELLED and self._states.get(driver.id, known).state is not AheadState.READY:
            _, pause = self._pauses.get(driver.id, (0.0, _PAUSE / 2))
            pause = min(2 * pause, _LONGEST_PAUSE)
            self._pauses[driver.id] = (time.monotonic() + pause, pause)

    async def _work(self, driver: StagedDriver, handle: Handle) -> ReplayReport:
        """Unpack what has to be unpacked, and rebuild for it."""
        self._working = self._context.locks.changing.patient = asyncio.current_task()
        self._cancel = threading.Event()
        stack = contextlib.ExitStack()
        try:
            root = driver.image
            if root is None:
                handle.progress(0, 0, "unpacking the driver's packages")
                root = await self._unpacked(driver, stack)
            replaced = frozenset(one.name for one in driver.packages) if driver.packages else None
            wish = ReplayRequest(driver_root=root, replaced=replaced)
            return await self._replayer.work(wish, told=functools.partial(self._told, driver))(handle)
        finally:
            self._working = self._context.locks.changing.patient = None
            await to_its_end(stack.close)

    async def _unpacked(self, driver: StagedDriver, stack: contextlib.ExitStack) -> Path:
        """Unpack in a thread, which ends before we do."""
        doing = asyncio.ensure_future(asyncio.to_thread(self._unpack, driver, stack, self._cancel))
        return await ended(doing, self._cancel.set)

    def _told(self, driver: StagedDriver, answered: OtherDriver) -> None:
        """Keep what programs will meet with a driver."""
        if self._kept is not None and driver.id in self._kept:
            known = self._kept[driver.id]
            self._kept[driver.id] = replace(known, environments=answered.environments, stamp=answered.stamp)
            self._write()

    def _unpack(self, driver: StagedDriver, stack: contextlib.ExitStack, cancel: threading.Event) -> Path:
        """Unpack its packages into a folder that lasts as long as the stack.  Raises `NotPrepared`."""
        limits = UnpackLimits()
        try:
            place = Path(stack.enter_context(scratch.directory(_PREFIX, self._context.settings.paths.state)))
            there = os.statvfs(place)
            room = there.f_bavail * there.f_frsize - limits.reserve
            wanted = sum(one.unpacked for one in driver.packages)
            if wanted > room:
                raise NoRoomLeft(
                    f"unpacked it takes {wanted >> 20} MiB, and {max(room, 0) >> 20} MiB of {place.parent} may be used"
                )
            left = limits.most_bytes
            for package in driver.packages:
                before = package.path.lstat()
                left -= unpack(package.path, place, dataclasses.replace(limits, most_bytes=left), cancel)
                after = package.path.lstat()
                if (before.st_ino, before.st_mtime_ns, before.st_size) != (
                    after.st_ino,
                    after.st_mtime_ns,
                    package.size,
                ):
                    raise UnpackFailed(  # noqa: TRY301 - as above
                        f"{package.path.name} changed while it was read"
                    )
        except UnpackFailed as error:
            raise NotPrepared(str(error)) from error
        except OSError as error:
            raise NotPrepared(f"the driver's packages cannot be unpacked: {error.strerror or error}") from error
        return place

    # -- what is kept -------------------------------------------------------------------------------------------------

    def _recalled(self) -> tuple[PreparedDriver, ...]:
        try:
            kept = messages.parse(state_files.read(self._file, _LARGEST), largest=_LARGEST, escaped_bytes=True)
            return codec.from_json(tuple[PreparedDriver, ...], kept)[:_MOST]
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            log.warning("what was prepared for a driver that is not installed is not known any more: %s", error)
        return ()

    def _write(self) -> None:
        try:
            state_files.write(self._file, codec.dumps(codec.to_json(tuple((self._kept or {}).values()))))
        except OSError as error:
            # It is found out again.
            log.warning("what is prepared for a driver that is not installed cannot be kept: %s", error)

    def _sweep(self) -> None:
        """Remove what a predecessor that was killed had unpacked."""
        with contextlib.suppress(OSError):
            for entry in self._context.settings.paths.state.glob(f"{_PREFIX}*"):
                scratch.remove(os.fspath(entry))
