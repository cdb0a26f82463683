"""Restraint: runs that nobody waits for start when the host is calm, and pause when others need it."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Final

from xpucached.domain.throttling import Pressure, Waiting
from xpucached.host import process_times
from xpucached.host.pressure import PressureMeter
from xpucached.planning import throttling
from xpucached.planning.throttling import is_open, strained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from xpucached.domain.models import WarmReason
    from xpucached.domain.names import ModelName
    from xpucached.domain.throttling import RunPriority, ThrottlePolicy
    from xpucached.service.context import Context

_SPAN: Final = 0.2
"""Seconds between two looks at the GPUs, which tell only what they did in between."""

_ALL: Final = Pressure(100.0, 100.0, 100.0, 100.0)
"""The busiest host: where even that is let pass, nothing is measured."""

_OURS: Final = 30.0
"""Pressure that comes back so soon after a pause was our own doing."""

_IGNORE: Final = 600.0
"""So long our own pressure is no reason to pause again."""

_LOOK: Final = 4.0
"""So many seconds between two looks count: whether the host was calm for longer, nobody knows."""

_OTHERS: Final = "models of other users are run, two at a time"


class Throttle:
    """Knows whether a run may start, and gives each run somebody who says when to pause."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.booting = False
        """The daemon has just started: what is cold now is cold for that."""
        self.waiting: dict[ModelName, Waiting] = {}
        """The models that are to be warmed as soon as this is the time for it."""
        self._calm = 0.0  # seconds in which the host was calm, and there was no place
        self._looked: float | None = None  # when that was looked at last (monotonic)
        self._share = 1.0  # of `max_wait`, after so much calm it waits no longer for a place
        self._begin_anew()

    @property
    def _policy(self) -> ThrottlePolicy:
        return self._context.settings.throttle

    def run_priority(self, reason: WarmReason) -> RunPriority:
        """Return the effort of a run with this reason."""
        return throttling.run_priority(reason, booting=self.booting)

    def closed(self) -> str:
        """Say that this is not the time for runs that nobody waits for; empty if it is."""
        now = self._context.clock().astimezone()
        if is_open(self._policy, now.hour * 60 + now.minute):
            return ""
        begin, end = self._policy.window or (0, 0)
        return f"it waits for its time, {begin // 60:02}:{begin % 60:02} to {end // 60:02}:{end % 60:02}"

    async def busy(self) -> str:
        """Return why no run that nobody waits for may start now; empty if it may."""
        throttle = self._policy
        why = self.closed()
        if why or not strained(_ALL, throttle, starting=True):
            return why
        meter = PressureMeter()
        await asyncio.to_thread(meter.look)
        await asyncio.sleep(_SPAN)
        return strained(await asyncio.to_thread(meter.look), throttle, starting=True)

    async def hold(self) -> str:
        """Take a place for runs that nobody waits for, until it is given back; else return why none may start now.

        Anybody may hold all places for ever: who gets none for long, while the host is calm, goes on without.  That is
        not at the same time for all: each is to see what the one before it makes of the host.
        """
        why, now = await self.busy(), time.monotonic()
        since, self._looked = self._looked, now
        if why or self._context.run_slot.hold():
            return why
        if since is not None:
            self._calm += min(now - since, _LOOK)
        return _OTHERS if self._calm < self._share * self._policy.max_wait else ""

    def _begin_anew(self) -> None:
        self._calm, self._looked = 0.0, None
        self._share = random.uniform(0.5, 0.9)  # noqa: S311 - it is no secret

    def admit(self, models: Iterable[ModelName], why: str) -> bool:
        """Let these models start, or if something speaks against it wait; tells whether there are any that may."""
        now = self._context.clock()
        names = tuple(models)
        since = {name: one.since for name, one in self.waiting.items()}
        self.waiting = {name: Waiting(since.get(name, now), why) for name in names} if why else {}
        if not self.waiting:
            self._begin_anew()
        return bool(names) and not why

    def tell(self, why: str) -> bool:
        """Note what those that wait are waiting for now; tells whether nothing is left."""
        return self.admit(self.waiting, why) if why else True

    def watcher(self, run_priority: RunPriority, tell: Callable[[str], None]) -> Callable[[int], bool] | None:
        """Give who is asked about once a second, with the number of the run's first process, whether it must pause."""
        turn = self._context.locks.changing
        # What the daemon does by itself comes one after the other: who waits for this run was asked for.
        watcher = PauseWatcher(self._policy, PressureMeter(), tell, wanted=lambda: turn.waiting > 0)
        return watcher.pause if run_priority.pauses else None


class PauseWatcher:
    """Says of one run when it must pause.  Used from one thread."""

    def __init__(
        self,
        throttle: ThrottlePolicy,
        meter: PressureMeter,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        wanted: Callable[[], bool] = lambda: False,
    ) -> None:
        """``wanted`` says that somebody waits for the run's end: then it does not pause."""
        self._wanted = wanted
        self._policy = throttle
        self._meter = meter
        self._tell = tell
        self._clock = clock
        self._paused = False
        self._resumed: float | None = None
        self._ignored_until = 0.0

    def pause(self, pid: int) -> bool:
        """Return whether the run whose first process this is must stand still now."""
        now = self._clock()
        pressure = self._meter.look(process_times.family(pid))
        throttle = self._policy
        gpu = strained(Pressure(gpu=pressure.gpu), throttle, starting=False)
        other = strained(Pressure(memory=pressure.memory, io=pressure.io), throttle, starting=False)
        if other and not self._paused and self._resumed is not None and now - self._resumed < _OURS:
            # It was gone while the run stood still: it is the run itself that makes it.
            self._ignored_until = now + _IGNORE
        wanted = self._wanted()
        why = "" if wanted else gpu or (other if now >= self._ignored_until else "")
        if why and not self._paused:
            self._tell(f"paused: {why}")
        elif self._paused and not why:
            # The pressure was not gone where it goes on all the same: whose it is, nobody knows.
            self._resumed = None if wanted else now
            self._tell("goes on, as somebody waits for its end" if wanted else "goes on")
        self._paused = bool(why)
        return self._paused
