"""Start users' workers, and hear how they stand until they end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final, Protocol

from xpucached.api import requests
from xpucached.domain.status import Verdict
from xpucached.domain.users import UserStatus, WorkerState
from xpucached.errors import Unavailable, XpucachedError
from xpucached.hostd import units, user_client
from xpucached.hostd.sentences import silence
from xpucached.hostd.work_turns import WorkTurns

if TYPE_CHECKING:
    from xpucached.hostd.known_users import KnownUsers
    from xpucached.hostd.user_client import UserClient

log = logging.getLogger(__name__)

_BUSY: Final = 900.0
"""Seconds after which one that has not finished is no more counted among those that are at work."""

_ANSWER: Final = 40.0
"""Seconds that a worker has to answer once systemd says that it was started."""

_WAITING: Final = 55.0
"""So long who asks for a worker waits: the time of one that was started and says nothing is over by then, and that of a
client (60 s) is not."""

_ENDING: Final = 2.0
"""So long systemd may take to notice that a worker has ended."""

_GONE: Final = 75.0
"""So long a worker may take to leave: systemd gives up after twice the time that its unit says (TimeoutStopSec=)."""

_BEAT: Final = 1.0
_SLOW_BEAT: Final = 10.0

_LEAVING: Final = 6
"""Beats in which a worker that has done what it had to, and whom nobody needs, leaves."""

_PAUSE: Final = 20.0
"""Seconds until one that fails, or may not start, is started again for who asks: systemd allows 30 in ten minutes."""

_DENIED: Final = "the host's PAM lets nothing be run for this account"
_RESTING: Final = frozenset({WorkerState.FAILED, WorkerState.DENIED})

_SOON: Final = 0.1
_LATER: Final = 2.0
"""Seconds until a worker that is starting, or leaving, is asked again: at first, and at most."""


class _Stopped(Unavailable):
    """Somebody stopped a worker while it started."""


class WorkerUnits(Protocol):
    """What starts and stops workers."""

    async def start(self, uid: int, /) -> None:
        """Start one."""

    async def stop(self, uid: int, /) -> None:
        """Stop one."""

    async def unit_state(self, uid: int, /) -> units.UnitState:
        """Return what became of one."""


class WorkerFollower:
    """Follows the workers of users.  Used from one event loop."""

    def __init__(self, known: KnownUsers, clients: UserClient, worker_units: WorkerUnits) -> None:
        self._known = known
        self._clients = clients
        self._units = worker_units
        self._starts: dict[int, float] = {}
        """When a user's worker was last started, on the loop's clock."""
        self._unasked: set[int] = set()
        """Whose worker ended the last time while its account was asked about, and nobody said no."""
        self._following: dict[int, asyncio.Task[None]] = {}
        self._answering: dict[int, asyncio.Event] = {}
        self._silent: dict[int, asyncio.Task[None]] = {}
        """Waits until somebody who runs and keeps silent does so no more."""
        self._urgent: set[int] = set()
        self.aside: set[int] = set()
        """Whose worker said that its user runs a daemon of their own."""
        self.forbidden: units.Forbidden | None = None
        """Why systemd let us start no worker when we last asked; None if it did."""
        self._turns = WorkTurns()

    async def stop(self) -> None:
        """Let go; workers go on by themselves."""
        tasks = (*self._following.values(), *self._silent.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def dismiss(self, uid: int) -> None:
        """Stop the worker of a user who is not looked after any more."""
        for task in (self._following.pop(uid, None), self._silent.pop(uid, None)):
            if task is not None:
                task.cancel()
        try:
            await self._units.stop(uid)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are still looked after
            log.warning("a worker cannot be stopped: uid %d: %s", uid, getattr(error, "message", error))

    def follow_owed(self) -> None:
        """Follow those who are to look again; one that failed since is not started anew for the same."""
        for uid in self._known.owed.take():
            self.follow(uid)

    def follows(self, uid: int) -> bool:
        """Return whether somebody sees to this worker."""
        task = self._following.get(uid)
        return task is not None and not task.done()

    def follow(self, uid: int, *, urgent: bool = False, silent: bool = False) -> asyncio.Event:
        """See to it that somebody sees to this worker; gives what is set when it answers.

        ``urgent``: somebody waits for it, so it waits for no turn.  ``silent``: whatever it did before, it does not
        answer now.
        """
        task = self._following.get(uid)
        if task is not None and not task.done():
            answered = self._answering[uid].is_set()
            if not ((silent and answered) or (urgent and not answered and uid not in self._urgent)):
                return self._answering[uid]
            task.cancel()
        (self._urgent.add if urgent else self._urgent.discard)(uid)
        self._answering[uid] = asyncio.Event()
        self._following[uid] = asyncio.create_task(self._attend(uid, urgent=urgent), name=f"worker {uid}")
        return self._answering[uid]

    async def _attend(self, uid: int, *, urgent: bool) -> None:
        """Start a worker, let it look at what is owed to it, and hear how it stands until it ends for good."""
        try:
            while await self._life(uid, urgent=urgent):
                # Who waits for one that has not answered yet goes on waiting for it.
                if self._answering[uid].is_set():
                    self._answering[uid] = asyncio.Event()
        except XpucachedError as error:
            log.warning("a worker refuses: uid %d: %s", uid, error.message)
            self._known.say_failed(uid, user_client.brief(error.message))
        except Exception:
            # Whatever a worker makes us stumble over, the others are still looked after.
            log.exception("a worker could not be attended to: uid %d", uid)
            self._known.say_failed(uid, "what it said could not be read")
        finally:
            self._known.changed.set()

    async def _life(self, uid: int, *, urgent: bool) -> bool:
        """Attend to a worker until it ends; True if systemd starts it again."""
        answering = self._answering[uid]
        try:
            async with contextlib.AsyncExitStack() as turn:
                if not urgent:
                    await turn.enter_async_context(self._turns.turn())
                # Whatever it does, it keeps the turn no longer than this: others wait for it.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_BUSY):
                        await self._begin(uid)
                        answering.set()
                        await self._listen(uid, until_quiet=True)
                        # Its memory is free before the next one takes as much; who has nothing needs little.
                        known = self._known.said.get(uid)
                        for _ in range(_LEAVING if known is not None and known.matters and not urgent else 0):
                            await asyncio.sleep(_BEAT)
                            await self._quiet(uid)
            if not answering.is_set():
                raise Unavailable(f"it did not answer within {_BUSY:.0f} s")  # noqa: TRY301 - as if nobody answered
            await self._listen(uid, until_quiet=False)
        except Unavailable as error:
            return await self._ended(uid, error, began=answering.is_set())
        return False

    async def _listen(self, uid: int, *, until_quiet: bool) -> None:
        """Hear how a worker stands, until it has done what it had to, or until it ends (raises `Unavailable`)."""
        while True:
            if (news := self._known.owed.news(uid)) is not None:
                await self._clients.ask(uid, requests.Refresh(), own=True)
                self._known.owed.acknowledge(uid, news)
            quiet = await self._quiet(uid)
            if quiet and until_quiet:
                return
            await asyncio.sleep(_SLOW_BEAT if quiet else _BEAT)

    async def _begin(self, uid: int) -> None:
        """Start a worker and wait until it answers.  Raises `Unavailable`."""
        with contextlib.suppress(Unavailable):
            await self._clients.ask(uid, requests.GetSummary(), own=True)
            return
        self._known.say(uid, state=WorkerState.STARTING)
        self.aside.discard(uid)
        state = await self._unit_state(uid)
        if state.deaf:
            log.warning("a worker has no socket any more, and is started again: uid %d", uid)
            await self._units.stop(uid)
        pause, end = _SOON, asyncio.get_running_loop().time() + _GONE
        while state.ending or state.deaf:
            # systemd starts its socket only when it has ended, and it would come without one.
            if asyncio.get_running_loop().time() > end:
                raise Unavailable("the one before it does not end")
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LATER)
            state = await self._unit_state(uid)
        end = asyncio.get_running_loop().time() + _ANSWER
        came = state.came
        # One that systemd starts again by itself has a pause to keep, which a start would end.
        if not state.starting:
            self._starts[uid] = asyncio.get_running_loop().time()
            await self._start(uid)
            came, state = await self._come(uid, end)
        pause, begins = _SOON, state.coming
        while True:
            try:
                await self._clients.ask(uid, requests.GetSummary(), own=True)
            except Unavailable as error:
                state, now = await self._units.unit_state(uid), asyncio.get_running_loop().time()
                came, begins = came or state.came, begins or state.coming
                if state.coming or state.asked:
                    # On a busy host a start takes its time: as long as its unit says (TimeoutStartSec=).
                    end = now + _ANSWER
                elif came and not (state.active or state.failed):
                    # One that ends by itself before it is ready has failed, and one that may not start never comes.
                    raise self._stopped(uid, unasked=not (begins or state.denied)) from error
                elif now > end or not state.active:
                    raise
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LATER)
            else:
                self._unasked.discard(uid)
                return

    def _stopped(self, uid: int, *, unasked: bool) -> Unavailable:
        """Say that one ended while it started; ``unasked``: before anything of it ran, and nobody said no.

        Somebody stopped it then, or what asks about its account cannot be run, which comes again.
        """
        if unasked and uid in self._unasked:
            return Unavailable("its account could not be asked about")
        (self._unasked.add if unasked else self._unasked.discard)(uid)
        return _Stopped("it was stopped while it started")

    async def _come(self, uid: int, end: float) -> tuple[bool, units.UnitState]:
        """Wait until one that was asked for has a process, or shall have none; give what systemd says then.

        Also, whether it has begun to start it.  Who asks at its socket before may hear nothing until all is over.
        """
        came, pause = False, _SOON
        while True:
            state = await self._units.unit_state(uid)
            came = came or state.came
            waits = state.active and not (state.starting or state.running or state.ending)
            if not waits or asyncio.get_running_loop().time() > end:
                return came, state
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LATER)

    async def _start(self, uid: int) -> None:
        try:
            await self._units.start(uid)
        except units.Forbidden as error:
            self.forbidden = error
            raise
        self.forbidden = None

    async def _quiet(self, uid: int) -> bool:
        """Hear how a worker stands; whether it has done what it had to."""
        said = (await self._clients.ask(uid, requests.GetSummary(), own=True)).value
        self._known.note_summary(uid, said)
        return said.verdict is not Verdict.STARTING and not said.look_due and not said.jobs

    async def _ended(self, uid: int, error: Unavailable, *, began: bool) -> bool:
        """Note why a worker does not answer; True if it was there, and systemd starts it again."""
        state = await self._unit_state(uid)
        if state.running or state.ending:
            # One that has just ended may not be known for it yet; one that is still there then keeps silent.
            await asyncio.sleep(_ENDING)
            state = await self._unit_state(uid)
        aside = uid in self.aside
        if state.deaf and began:
            return True
        if aside:
            self._known.say(uid, state=WorkerState.ASIDE, sentence="this user runs a daemon of their own")
        elif state.running:
            log.warning("a worker runs and does not answer: uid %d: %s", uid, error.message)
            self._known.say_failed(uid, "it runs and does not answer: is it stopped, or stuck?")
            if uid not in self._silent:
                self._silent[uid] = asyncio.create_task(self._await_silent(uid, error), name=f"silent worker {uid}")
        elif state.denied:
            log.info("PAM lets nothing be run for an account: uid %d", uid)
            self._known.say(uid, state=WorkerState.DENIED, sentence=_DENIED)
        elif state.refused:
            log.warning("a worker's configuration is refused: uid %d", uid)
            asks = f"xpucached --user --check, or journalctl -u xpucached-worker@{uid}, says why"
            self._known.say_failed(uid, f"its configuration is refused: {asks}", refused=True)
        elif state.failed or not (began or isinstance(error, _Stopped)):
            log.warning("a worker does not answer: uid %d: %s", uid, error.message)
            self._known.say_failed(uid, user_client.brief(error.message))
        elif state.starting or state.asked:
            log.warning("a worker ended, and is started again: uid %d", uid)
            return True
        else:
            sentence = error.message if isinstance(error, _Stopped) else None
            self._known.say(uid, state=WorkerState.ASLEEP, sentence=sentence)
            if self._known.owed.should_wake(uid):
                return True
            self._known.owed.forget(uid)
        if aside or state.denied:
            self._known.owed.forget(uid)
        return False

    async def _await_silent(self, uid: int, error: Unavailable) -> None:
        """Wait until one that keeps silent answers, or ends, or somebody follows it: then it fails no more."""
        while True:
            await asyncio.sleep(_SLOW_BEAT)
            answers = False
            with contextlib.suppress(Exception):
                await self._clients.ask(uid, requests.GetHello(), own=True)
                answers = True
            state = await self._unit_state(uid)
            if answers or state.deaf or not state.running or self.follows(uid):
                break
        del self._silent[uid]
        if not self.follows(uid) and (answers or state.deaf or await self._ended(uid, error, began=True)):
            self.follow(uid)
        self._known.changed.set()

    async def _unit_state(self, uid: int) -> units.UnitState:
        try:
            return await self._units.unit_state(uid)
        except Unavailable:
            return units.UnitState(active=False, failed=True)

    async def wake(self, uid: int) -> None:
        """See that a user's worker answers.  Raises `Unavailable`, or `Busy` if it has not started yet."""
        try:
            await self._clients.ask(uid, requests.GetHello())
            self.follow(uid, urgent=True)
        except Unavailable:
            if self._rests(uid) or not await self._answers(uid):
                raise silence(self._known.said.get(uid, UserStatus(str(uid), uid))) from None

    def _rests(self, uid: int) -> bool:
        """Return whether a worker failed or may not start, and was started too short a time ago to be started again."""
        known = self._known.said.get(uid)
        if known is None or known.state not in _RESTING or uid not in self._starts:
            return False
        return asyncio.get_running_loop().time() - self._starts[uid] < _PAUSE

    async def _answers(self, uid: int) -> bool:
        """See to it that a user's worker is started; whether it answers in time."""
        answering = self.follow(uid, urgent=True, silent=True)
        waiting = asyncio.create_task(answering.wait())
        try:
            both = {waiting, self._following[uid]}
            await asyncio.wait(both, timeout=_WAITING, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        return answering.is_set()
