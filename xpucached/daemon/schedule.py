"""What a daemon does by the clock.  Home of APScheduler."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import BrokenExecutor
from datetime import UTC, datetime, timedelta
from typing import Final

from xpucached import sparing
from xpucached.service.scrub_progress import PARTS
from xpucached.settings import Settings

# Without what its pools of processes are made of: it has them, and we use none.
_POOLS: Final = {
    "multiprocessing": sparing.DeferredModule("multiprocessing"),
    "concurrent.futures.process": sparing.DeferredModule(
        "concurrent.futures.process", BrokenProcessPool=BrokenExecutor
    ),
}
with sparing.instead(_POOLS):
    from apscheduler.jobstores.base import JobLookupError
    from apscheduler.schedulers.asyncio import AsyncIOScheduler


class ClockSchedule:
    """Calls ``look`` and ``scrub`` as often as the settings say.  Used from one event loop."""

    def __init__(
        self, look: Callable[[], None], scrub: Callable[[], Awaitable[None]], wait: Callable[[float], float]
    ) -> None:
        """Seconds to ``wait`` for the first scrub follow from those between two."""
        self._look = look
        self._scrub = scrub
        self._wait = wait
        self.scrubbing = False  # whether a part is being read
        # Who slept meanwhile, or was busy for a moment, catches up.
        late = {"coalesce": True, "misfire_grace_time": None}
        self._scheduler = AsyncIOScheduler(timezone="UTC", job_defaults=late)

    def start(self) -> None:
        """Begin to call."""
        self._scheduler.start()

    def stop(self) -> None:
        """Call no more."""
        self._scheduler.shutdown(wait=False)

    def take_settings(self, config: Settings) -> None:
        """Go on with these settings; what is due is counted from now on, and the scrub from its last part."""
        self._put("look", self._look, "interval", seconds=config.schedule.scan_interval)
        if config.schedule.scrub is None:
            self._drop("scrub")
        else:
            every = max(1.0, config.schedule.scrub / PARTS)
            first = datetime.now(UTC) + timedelta(seconds=self._wait(every))
            self._put("scrub", self._scrub_part, "interval", seconds=every, next_run_time=first)
        window = config.throttle.window
        if window is None:
            self._drop("window")
        else:
            # The scheduler's own zone is UTC; people mean the time on the wall.
            zone = datetime.now(UTC).astimezone().tzinfo
            self._put("window", self._look, "cron", hour=window[0] // 60, minute=window[0] % 60, timezone=zone)

    async def _scrub_part(self) -> None:
        self.scrubbing = True
        try:
            await self._scrub()
        except asyncio.CancelledError:
            pass  # we stop: the scheduler would log it as a mistake
        finally:
            self.scrubbing = False

    def _put(self, name: str, call: Callable[[], object], trigger: str, **when: object) -> None:
        self._scheduler.add_job(call, trigger, id=name, replace_existing=True, max_instances=1, **when)

    def _drop(self, name: str) -> None:
        with contextlib.suppress(JobLookupError):
            self._scheduler.remove_job(name)
