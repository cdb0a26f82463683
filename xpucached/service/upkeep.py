"""After each look: mend, rebuild, warm what is left, and then evict.  What waits for a calm host holds nobody up."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from xpucached.service import automatic
from xpucached.service.replay import ReplayRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from xpucached.service.automatic import AutomaticWork, Part
    from xpucached.service.evict import Evictor
    from xpucached.service.inventory import Inventory
    from xpucached.service.jobs import Jobs, Work
    from xpucached.service.prewarm import Prewarmer
    from xpucached.service.replay import Replayer
    from xpucached.service.trash import TrashKeeper
    from xpucached.service.verify import Verifier

_LOOK: Final = 2.0
"""Seconds between looks at the host while models wait for it to be calm."""


class Upkeep:
    """Does what is due, one thing after the other: the host is never colder than it was."""

    def __init__(
        self,
        inventory: Inventory,
        jobs: Jobs,
        parts: AutomaticWork,
        warming: Prewarmer,
        replaying: Replayer,
        evictor: Evictor,
        verifier: Verifier,
        trash_keeper: TrashKeeper,
        changing: asyncio.Lock,
        steady: Callable[[], bool],
    ) -> None:
        """``changing`` is held while entries go for good; ``steady`` tells whether ages may be believed."""
        self._inventory = inventory
        self._jobs = jobs
        self._parts = parts
        self._prewarmer = warming
        self._replayer = replaying
        self._evictor = evictor
        self._verifier = verifier
        self._trash_keeper = trash_keeper
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
            # No model is to run into what is damaged.
            mended = await self._mend()
            await self._replay()
            await self._prewarm()
            self._prewarmer.throttle.booting = False
            if mended and not self._replay_comes_first():
                # Else the models are not warmed yet, and what they need of an older driver would stay.
                await self._evict()
        self._wait()

    async def _mend(self) -> bool:
        """Mend what would be evicted for a defect; what cannot be mended goes.  False if somebody cancelled it.

        Then nothing goes before the next look, which takes it up again.
        """
        mended = True
        if not self._inventory.settings.evict_automatically:
            self._parts.forget(automatic.MEND)
        elif self._evict_due and self._steady():
            async with self._parts.part(automatic.MEND):
                if await self._evictor.damaged() or self._verifier.unfinished:
                    try:
                        await self._do(automatic.MEND, self._verifier.mending(self._evictor.damaged))
                    except automatic.Cancelled:
                        mended = False
                        raise
        return mended

    async def _replay(self) -> None:
        if not self._inventory.settings.replay_automatically:
            self._parts.forget(automatic.REPLAY)
        elif self._replay_due:
            self._replay_due = False
            async with self._parts.part(automatic.REPLAY):
                if await self._replayer.wanted():
                    await self._do(automatic.REPLAY, self._replayer.work(ReplayRequest()))

    async def _prewarm(self) -> None:
        if not self._inventory.settings.prewarm_automatically:
            self._prewarmer.throttle.waiting = {}
            self._parts.forget(automatic.PREWARM)
            return
        async with self._parts.part(automatic.PREWARM):
            if await self._prewarmer.startable():
                work = self._prewarmer.work(automatic=True, gives_way=self._replay_comes_first)
                await self._do(automatic.PREWARM, work)

    def _replay_comes_first(self) -> bool:
        """Tell whether there was another look meanwhile, after which entries may have to be rebuilt."""
        return self._replay_due and self._inventory.settings.replay_automatically

    async def _evict(self) -> None:
        steady = self._steady()
        if not self._inventory.settings.evict_automatically:
            self._parts.forget(automatic.EVICT)
            self._parts.forget(automatic.TIDY)
        elif self._evict_due and steady:
            self._evict_due = False
            async with self._parts.part(automatic.EVICT):
                if (await self._evictor.plan(asked=False)).evict:
                    await self._do(automatic.EVICT, self._evictor.work(asked=False))
            async with self._parts.part(automatic.TIDY), self._changing:
                await self._trash_keeper.tidy()

    async def _do(self, part: Part, work: Work) -> None:
        job = self._jobs.start(part.name, work)
        while job.finished is None:
            job = await self._jobs.wait(job.id, 60.0)
        automatic.check(job)

    # -- until the host is calm ---------------------------------------------------------------------------------------

    def _wait(self) -> None:
        throttle = self._prewarmer.throttle
        # When a window opens, the daemon looks anyway.
        if throttle.waiting and not throttle.closed() and (self._waiting is None or self._waiting.done()):
            self._waiting = asyncio.create_task(self._until_calm(), name="calm")

    async def _until_calm(self) -> None:
        """Look again and again whether models that wait may be warmed, and then decide anew what is to be done."""
        throttle = self._prewarmer.throttle
        end = time.monotonic() + self._inventory.settings.throttle.max_wait
        async with self._parts.part(automatic.CALM):
            while throttle.waiting and time.monotonic() < end:
                await asyncio.sleep(_LOOK)
                if throttle.tell(await throttle.busy()):
                    self.begin(whole=False)
                    return
