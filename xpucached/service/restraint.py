"""Restraint: runs that nobody waits for start when the host is calm, and pause when others need it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from xpucached import host, planning
from xpucached.domain import Strain

if TYPE_CHECKING:
    from collections.abc import Callable

    from xpucached.domain import Effort, Manners, WarmReason
    from xpucached.service.observing import Observing

_LOOK: Final = 2.0
"""Seconds between looks while something waits."""

_OURS: Final = 30.0
"""Pressure that comes back so soon after a pause was our own doing."""

_IGNORE: Final = 600.0
"""So long our own pressure is no reason to pause again."""


class Restraint:
    """Knows whether a run may start, and gives each run somebody who says when to pause."""

    def __init__(self, observing: Observing) -> None:
        self._observing = observing
        self.booting = False
        """The daemon has just started: what is cold now is cold for that."""
        self._news = 0

    def news(self) -> None:
        """Say that something changed on the host: who waits gives way, for something else may come first now."""
        self._news += 1

    @property
    def _manners(self) -> Manners:
        return self._observing.settings.manners

    def effort(self, reason: WarmReason) -> Effort:
        """Give the effort of a run with this reason."""
        return planning.effort(reason, booting=self.booting)

    def closed(self) -> str:
        """Say that this is not the time for runs that nobody waits for; empty if it is."""
        now = self._observing.clock().astimezone()
        if planning.is_open(self._manners, now.hour * 60 + now.minute):
            return ""
        begin, end = self._manners.window or (0, 0)
        return f"it waits for its time, {begin // 60:02}:{begin % 60:02} to {end // 60:02}:{end % 60:02}"

    async def wait(self, effort: Effort, tell: Callable[[str], None]) -> str:
        """Wait until the host is calm; say why not, if it was not for as long as our patience lasts."""
        if not effort.waits:
            return ""
        meter = host.Meter()
        news = self._news
        end = time.monotonic() + self._manners.patience
        await asyncio.to_thread(meter.look)
        while True:
            strain = await asyncio.to_thread(meter.look)
            why = planning.strained(strain, self._manners, starting=True)
            if not why or time.monotonic() >= end or news != self._news:
                return why
            tell(f"waiting: {why}")
            await asyncio.sleep(_LOOK)

    def watcher(self, effort: Effort, tell: Callable[[str], None]) -> Callable[[int], bool] | None:
        """Give who is asked about once a second, with the number of the run's first process, whether it must pause."""
        return Watcher(self._manners, host.Meter(), tell).pause if effort.pauses else None


class Watcher:
    """Says of one run when it must pause.  Used from one thread."""

    def __init__(
        self,
        manners: Manners,
        meter: host.Meter,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manners = manners
        self._meter = meter
        self._tell = tell
        self._clock = clock
        self._paused = False
        self._resumed: float | None = None
        self._ignored_until = 0.0

    def pause(self, pid: int) -> bool:
        """Tell whether the run whose first process this is must stand still now."""
        now = self._clock()
        strain = self._meter.look(host.family(pid))
        manners = self._manners
        gpu = planning.strained(Strain(gpu=strain.gpu), manners, starting=False)
        other = planning.strained(Strain(memory=strain.memory, io=strain.io), manners, starting=False)
        if other and not self._paused and self._resumed is not None and now - self._resumed < _OURS:
            # It was gone while the run stood still: it is the run itself that makes it.
            self._ignored_until = now + _IGNORE
        why = gpu or (other if now >= self._ignored_until else "")
        if why and not self._paused:
            self._tell(f"paused: {why}")
        elif self._paused and not why:
            self._resumed = now
            self._tell("goes on")
        self._paused = bool(why)
        return self._paused
