"""After each look: rebuild, warm what is left, and only then evict.  What waits for a calm host holds nobody up."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from xpucached.service import unasked
from xpucached.service.replaying import Wish

if TYPE_CHECKING:
    from collections.abc import Callable

    from xpucached.service.evicting import Evicting
    from xpucached.service.jobs import Jobs, Work
    from xpucached.service.keeping import Keeping
    from xpucached.service.observing import Observing
    from xpucached.service.replaying import Replaying
    from xpucached.service.unasked import Part, Unasked
    from xpucached.service.warming import Warming

_LOOK: Final = 2.0
"""Seconds between looks at the host while models wait for it to be calm."""


class Upkeep:
    """Does what is due, one thing after the other: the host is never colder than it was."""

    def __init__(
        self,
        observing: Observing,
        jobs: Jobs,
        parts: Unasked,
        warming: Warming,
        replaying: Replaying,
        evicting: Evicting,
        keeping: Keeping,
        changing: asyncio.Lock,
        steady: Callable[[], bool],
    ) -> None:
        """``changing`` is held while entries go for good; ``steady`` tells whether ages may be believed."""
        self._observing = observing
        self._jobs = jobs
        self._parts = parts
        self._warming = warming
        self._replaying = replaying
        self._evicting = evicting
        self._keeping = keeping
        self._changing = changing
        self._steady = steady
        self._task: asyncio.Task[None] | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._again = False
        self._evict_due = False
        self._replay_due = False

    def begin(self, *, whole: bool) -> None:
        """Do what is due, soon; after a look at the whole host everything is."""
        self._evict_due = self._evict_due or whole
        self._replay_due = self._replay_due or whole
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_up(), name="upkeep")

    @property
    def busy(self) -> bool:
        """Whether something is done, or waits until it may be."""
        return any(task is not None and not task.done() for task in (self._task, self._waiting))

    async def stop(self) -> None:
        """Begin nothing more."""
        self._again = False
        for task in (self._task, self._waiting):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])

    async def _keep_up(self) -> None:
        while self._again:
            self._again = False
            await self._replay()
            await self._prewarm()
            self._warming.restraint.booting = False
            if not self._replay_comes_first():
                # Else the models are not warmed yet, and what they need of an older driver would stay.
                await self._evict()
        self._wait()

    async def _replay(self) -> None:
        if not self._observing.settings.replay_automatically:
            self._parts.forget(unasked.REPLAY)
        elif self._replay_due:
            self._replay_due = False
            async with self._parts.part(unasked.REPLAY):
                if await self._replaying.wanted():
                    await self._do(unasked.REPLAY, self._replaying.work(Wish()))

    async def _prewarm(self) -> None:
        if not self._observing.settings.prewarm_automatically:
            self._warming.restraint.waiting = {}
            self._parts.forget(unasked.PREWARM)
            return
        async with self._parts.part(unasked.PREWARM):
            if await self._warming.startable():
                work = self._warming.work(unasked=True, gives_way=self._replay_comes_first)
                await self._do(unasked.PREWARM, work)

    def _replay_comes_first(self) -> bool:
        """Tell whether there was another look meanwhile, after which entries may have to be rebuilt."""
        return self._replay_due and self._observing.settings.replay_automatically

    async def _evict(self) -> None:
        steady = self._steady()
        if not self._observing.settings.evict_automatically:
            self._parts.forget(unasked.EVICT)
            self._parts.forget(unasked.TIDY)
        elif self._evict_due and steady:
            self._evict_due = False
            async with self._parts.part(unasked.EVICT):
                if (await self._evicting.plan(asked=False)).evict:
                    await self._do(unasked.EVICT, self._evicting.work(asked=False))
            async with self._parts.part(unasked.TIDY), self._changing:
                await self._keeping.tidy()

    async def _do(self, part: Part, work: Work) -> None:
        job = self._jobs.start(part.name, work)
        while job.finished is None:
            job = await self._jobs.wait(job.id, 60.0)
        unasked.check(job)

    # -- until the host is calm ---------------------------------------------------------------------------------------

    def _wait(self) -> None:
        restraint = self._warming.restraint
        # When a window opens, the daemon looks anyway.
        if restraint.waiting and not restraint.closed() and (self._waiting is None or self._waiting.done()):
            self._waiting = asyncio.create_task(self._until_calm(), name="calm")

    async def _until_calm(self) -> None:
        """Look again and again whether models that wait may be warmed, and then decide anew what is to be done."""
        restraint = self._warming.restraint
        end = time.monotonic() + self._observing.settings.manners.patience
        async with self._parts.part(unasked.CALM):
            while restraint.waiting and time.monotonic() < end:
                await asyncio.sleep(_LOOK)
                if restraint.tell(await restraint.busy()):
                    self.begin(whole=False)
                    return
