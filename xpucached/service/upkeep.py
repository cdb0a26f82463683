"""After each look: mend, rebuild, warm what is left, and then evict; and beside that prepare for the next driver.

What waits for a calm host holds nobody up.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from xpucached.domain.models import Warmth
from xpucached.domain.plans import EvictReason
from xpucached.service import automatic, quota
from xpucached.service.replay import ReplayRequest

if TYPE_CHECKING:
    from xpucached.domain.models import ModelStatus
    from xpucached.service.ahead import AheadPreparer
    from xpucached.service.automatic import Part
    from xpucached.service.context import Context
    from xpucached.service.evict import Evictor
    from xpucached.service.jobs import Work
    from xpucached.service.prewarm import Prewarmer
    from xpucached.service.replay import Replayer
    from xpucached.service.survey import Surveyor
    from xpucached.service.taking import BundleTaker
    from xpucached.service.trash import TrashKeeper
    from xpucached.service.verify import Verifier

_LEFT_ALONE: Final = frozenset({Warmth.WARM, Warmth.UNCACHED, Warmth.WARMING, Warmth.UNKNOWN})
"""A model that stands so is not about to be warmed."""

_LOOK: Final = 2.0
"""Seconds between looks at the host while models wait for it to be calm."""


class Upkeep:
    """Does what is due, one thing after the other: the host is never colder than it was."""

    def __init__(
        self,
        context: Context,
        surveyor: Surveyor,
        verifier: Verifier,
        replayer: Replayer,
        prewarmer: Prewarmer,
        evictor: Evictor,
        trash: TrashKeeper,
        ahead: AheadPreparer,
        taker: BundleTaker,
    ) -> None:
        self._context = context
        self._parts = context.automatic
        self._surveyor = surveyor
        self._verifier = verifier
        self._replayer = replayer
        self._prewarmer = prewarmer
        self._evictor = evictor
        self._trash = trash
        self._ahead = ahead
        self._taker = taker
        self._task: asyncio.Task[None] | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._revoking: asyncio.Task[None] | None = None
        self._one_revokes = asyncio.Lock()
        self._again = False
        self._evict_due = False
        self._replay_due = False
        self._put_off = False
        """Whether something had to be done before a model of this round."""
        self._trusted: tuple[object, ...] = ()
        self._replayed: tuple[object, ...] = ()
        """The drivers that programs met when replay was last thought of."""

    def begin(self, *, whole: bool, booting: bool = False) -> None:
        """Do what is due, soon; after a look at the whole host everything is, and replay whenever the driver changed.

        ``booting`` says that the daemon has just started: what is cold now is cold for that.
        """
        self._prewarmer.throttle.booting = self._prewarmer.throttle.booting or booting
        self._evict_due = self._evict_due or whole
        self._replay_due = self._replay_due or whole
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_up(), name="upkeep")

    async def heed(self) -> None:
        """Do what is due, soon, if other keys or revocations are there than when it was done last."""
        if await asyncio.to_thread(self._taker.trusted) != self._trusted or await self._evictor.revoked():
            self.revoke()
            self.begin(whole=False)

    def revoke(self) -> None:
        """Take out what is revoked, soon: it waits for who changes entries just now, and not for all that is due."""
        if self._revoking is None or self._revoking.done():
            self._revoking = asyncio.create_task(self._revoke(), name="revoke")

    @property
    def busy(self) -> bool:
        """Whether something is done, or waits until it may be."""
        return any(task is not None and not task.done() for task in self._tasks)

    @property
    def _tasks(self) -> tuple[asyncio.Task[None] | None, ...]:
        return self._task, self._waiting, self._preparing, self._revoking

    def due(self, model: ModelStatus) -> str:
        """Say when a model that was just registered is warmed without being asked for; empty if it need not be."""
        settings, closed = self._context.settings, self._prewarmer.throttle.closed()
        if model.warmth in _LEFT_ALONE:
            return ""
        if not settings.schedule.prewarm:
            return "It is not warmed by itself, as schedule.prewarm is off"
        if model.warmth is Warmth.FAILED:
            return ""  # its state says when it is tried again, if it is
        if not self._context.ready:
            when = "as soon as this host has been looked at"
        elif model.has_no_device:
            when = "as soon as there is a device for it, which its own variables may lead to (--env)"
        else:
            when = "in a moment"
        return f"It is warmed by itself {when}{f'; {closed}' if closed else ', once the host is calm'}"

    async def stop(self) -> None:
        """Begin nothing more."""
        self._again = False
        for task in self._tasks:
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        self._context.run_slot.give_back()

    async def _keep_up(self) -> None:
        while self._again:
            self._again = False
            await self._revoke()
            # No model is to run into what is damaged.
            mended = await self._mend()
            # What others compiled need not be compiled here; what is left of it after a turn comes in the next round.
            async with self._parts.part(automatic.TAKE):
                await self._taker.take()
            await self._replay()
            await self._prewarm()
            self._context.run_slot.give_back()
            throttle = self._prewarmer.throttle
            # What was put off, or waits for a calm host, is cold for the start later, too.
            throttle.booting = throttle.booting and (self._put_off or bool(throttle.waiting))
            # A run, or who asked for something, may have met another driver, and no look follows.
            self._again = self._again or self._replay_comes_first() or self._taker.unfinished
            if mended and not self._replay_comes_first():
                # Else the models are not warmed yet, and what they need of an older driver would stay.
                await self._evict()
        if (seconds := self._taker.again) is not None:
            self._context.look_later(seconds)
        self._wait()
        self._prepare()

    async def _revoke(self) -> None:
        """Take out what came with a bundle that is revoked: before anything is compiled from it, or run with it.

        Whoever revokes it has asked for that, so neither the policy nor the clock is.
        """
        async with self._one_revokes, self._parts.part(automatic.REVOKE):
            self._trusted = await asyncio.to_thread(self._taker.trusted)
            if await self._evictor.revoked():
                await self._do(automatic.REVOKE, self._evictor.work(reasons=(EvictReason.REVOKED,)))
                await self._evictor.revoked()

    async def _mend(self) -> bool:
        """Mend what would be evicted for a defect; what cannot be mended goes.  False if somebody cancelled it.

        Then nothing goes before the next look, which takes it up again.
        """
        mended = True
        if not self._may_evict:
            self._parts.forget(automatic.MEND)
        elif self._evict_due and self._context.trusts_the_clock():
            async with self._parts.part(automatic.MEND):
                if await self._evictor.damaged() or self._verifier.unfinished:
                    try:
                        await self._do(automatic.MEND, self._verifier.mending(self._evictor.damaged))
                    except automatic.Cancelled:
                        mended = False
                        raise
        return mended

    @property
    def _may_evict(self) -> bool:
        """Whether entries may go by themselves; settings that are not read yet may forbid it, or keep more."""
        return self._context.settings.schedule.evict and not self._context.settings_unread

    async def _replay(self) -> None:
        if not self._context.settings.schedule.replay:
            self._parts.forget(automatic.REPLAY)
        elif self._replay_comes_first():
            # Other users' models may be run meanwhile …
            self._context.run_slot.give_back()
            # … but ours would compile what it did not.
            await self._parts.insist(automatic.REPLAY, self._replay_once, lambda: self._context.present.drivers_met)

    async def _replay_once(self) -> None:
        self._replay_due, self._replayed = False, self._context.present.drivers_met
        if await self._replayer.wanted():
            await self._do(automatic.REPLAY, self._replayer.work(ReplayRequest()))

    async def _prewarm(self) -> None:
        if not self._context.settings.schedule.prewarm:
            self._prewarmer.throttle.admit((), "")
            self._parts.forget(automatic.PREWARM)
            return
        self._put_off = False
        async with self._parts.part(automatic.PREWARM):
            if await self._prewarmer.startable():
                work = self._prewarmer.work(automatic=True, gives_way=self._give_way)
                await self._do(automatic.PREWARM, work)

    async def _give_way(self) -> bool:
        self._put_off = await self._must_wait()
        return self._put_off

    async def _must_wait(self) -> bool:
        """Return whether a model that is about to be run must not be: something has to be done before.

        That a driver's files are others shows in what a model was proven with, and may be all that shows by now: we
        may have stood still, or the package manager may be at work, and the look that asks that driver is yet to come.
        """
        async with self._parts.part(automatic.SURVEY):
            await self._surveyor.survey(retry=False)
        if self._surveyor.unsettled is not None:
            # There is no driver for the moment; the look tells when there is one, or that there is none any more.
            self._context.on_look()
            return True
        return self._replay_comes_first()

    def _replay_comes_first(self) -> bool:
        """Return whether there are entries that may have to be rebuilt before models are run.

        It is so after a look at the whole host, and as soon as it is known that there is another driver: the look that
        finds it out ends much later, and who else may find it out is no look at all.
        """
        changed = self._replayed != self._context.present.drivers_met
        return (self._replay_due or changed) and self._context.settings.schedule.replay

    async def _evict(self) -> None:
        steady = self._context.trusts_the_clock()
        if not self._may_evict:
            self._parts.forget(automatic.EVICT)
            self._parts.forget(automatic.TIDY)
        elif self._evict_due and steady:
            self._evict_due = False
            async with self._parts.part(automatic.EVICT):
                await quota.note(self._context)
                caches = await self._evictor.caches()
                if (plan := await self._evictor.plan(asked=False, caches=caches)).evict or plan.caches:
                    await self._do(automatic.EVICT, self._evictor.work(asked=False, caches=caches))
            if self._is_preparing:
                return  # it would be sent away for that; the trash has time until the next look
            async with self._parts.part(automatic.TIDY), self._context.locks.changing:
                await self._trash.tidy()

    async def _do(self, part: Part, work: Work) -> None:
        job = self._context.jobs.start(part.name, work, asked=False)
        while job.finished is None:
            job = await self._context.jobs.wait(job.id, 60.0)
        automatic.check(job)

    # -- for the next driver ------------------------------------------------------------------------------------------

    @property
    def _is_preparing(self) -> bool:
        return self._preparing is not None and not self._preparing.done()

    def _prepare(self) -> None:
        if not self._is_preparing:
            self._preparing = asyncio.create_task(self._until_prepared(), name="ahead")

    async def _until_prepared(self) -> None:
        """Compile for drivers that are not installed yet: last of all, and not in the way of what comes meanwhile."""
        async with self._parts.part(automatic.AHEAD):
            await self._ahead.prepare()

    # -- until the host is calm ---------------------------------------------------------------------------------------

    def _wait(self) -> None:
        throttle = self._prewarmer.throttle
        # When a window opens, the daemon looks anyway.
        if throttle.waiting and not throttle.closed() and (self._waiting is None or self._waiting.done()):
            self._waiting = asyncio.create_task(self._until_calm(), name="calm")

    async def _until_calm(self) -> None:
        """Look again and again whether models that wait may be warmed, and then decide anew what is to be done."""
        throttle = self._prewarmer.throttle
        end = time.monotonic() + self._context.settings.throttle.max_wait
        async with self._parts.part(automatic.CALM):
            while throttle.waiting and time.monotonic() < end:
                await asyncio.sleep(_LOOK)
                if self._task is not None and not self._task.done():
                    continue  # what goes on decides that itself, and would hold a place of others meanwhile
                if throttle.tell(await throttle.hold()):
                    self.begin(whole=False)
                    return
