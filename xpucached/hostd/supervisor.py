"""Conduct: the host's daemon, which works in nobody's store.

It knows who is looked after, starts each one's worker through systemd, asks how things stand and remembers the answers,
and notices by files alone that the driver became another one.  A worker is its user's: what it says is believed about
that user only, and it is asked for no more than `host_requests.is_tending` names.

`units` talks with systemd, `user_client` with workers, `users` tells who is here, `state` remembers, `sentences`
says what is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from msgspec.structs import replace

from xpucached import __version__, api, host, systemd
from xpucached.api import host_requests
from xpucached.domain.host import Problem
from xpucached.domain.jobs import Job
from xpucached.domain.names import JobId, ModelName
from xpucached.domain.status import Verdict
from xpucached.domain.users import HostStatus, SavedState, UserSocket, UserStatus, WorkerState
from xpucached.errors import Conflict, Denied, NotFound, Unavailable, XpucachedError, suggest
from xpucached.hostd import units, user_client
from xpucached.hostd.sentences import failure, silence, stranger
from xpucached.hostd.state import StateFile
from xpucached.hostd.user_client import UserClient
from xpucached.hostd.users import read_users

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xpucached.settings import Settings

log = logging.getLogger(__name__)

T = TypeVar("T")

_AT_ONCE: Final = 2
"""So many workers that nobody waits for do their first work at the same time."""

_BUSY: Final = 900.0
"""Seconds after which the next one may begin although this one has not finished."""

_ANSWER: Final = 50.0
"""Seconds that a worker has to answer once it was started."""

_ENDING: Final = 2.0
"""So long systemd may take to notice that a worker has ended."""

_CENSUS: Final = 20.0
"""Seconds for the host's user database (files, LDAP, …) to tell who is looked after."""
_CENSUS_THREADS: Final = 4
"""A question that is never answered keeps its thread."""
_LONG_NUMBER: Final = 11

_WRITING: Final = 5.0
"""Seconds between two writings of what is known: each change may be a user's doing."""

_BEAT: Final = 1.0
_SLOW_BEAT: Final = 10.0

_PAUSE: Final = 20.0
"""Seconds until one that fails is started again for who asks: systemd allows 30 starts in ten minutes."""

_SOON: Final = 0.1
_LATER: Final = 2.0
"""Seconds until a worker that is starting is asked again: at first, and at most."""


class WorkerUnits(Protocol):
    """What starts and stops workers."""

    async def start(self, uid: int, /) -> None:
        """Start one."""

    async def stop(self, uid: int, /) -> None:
        """Stop one."""

    async def fate(self, uid: int, /) -> units.UnitState:
        """Tell what became of one."""


class HostDaemon:
    """The host's daemon.  Used from one event loop."""

    def __init__(
        self,
        config: Settings,
        worker_units: WorkerUnits = units,
        place: Callable[[int], Path] = user_client.socket_of,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        runtime: Path,
    ) -> None:
        """``place`` tells where a user's worker answers; ``runtime`` is a directory of ours that a reboot empties."""
        self.settings = config
        self._worker_units = worker_units
        self._place = place
        self._clock = clock
        self._started = clock()
        self._memory = StateFile(config.state, runtime)
        self._unwritten = asyncio.Event()
        kept = self._memory.recall()
        self._stamp, self._changed = kept.stamp, kept.changed
        self._said: dict[int, UserStatus] = dict(kept.of())
        """In the order of their names."""
        self._owed: dict[int, None] = dict.fromkeys(kept.owed)
        self._people: Mapping[int, str] = {}
        self._numbers: tuple[Mapping[int, str], Mapping[str, int]] = ({}, {})  # the people, and the same by name
        self._owners: Mapping[ModelName, int] = {}
        self._failing: dict[int, datetime] = {}
        """Since when a user's worker does not do what it should."""
        self._starts: dict[int, float] = {}
        """When a user's worker was last started, on the loop's clock."""
        self._problems: tuple[Problem, ...] = ()
        self._following: dict[int, asyncio.Task[None]] = {}
        self._answering: dict[int, asyncio.Event] = {}
        self._urgent: set[int] = set()
        self._unwanted: set[int] = set()
        self._aside: set[int] = set()
        """Whose worker said that its user runs a daemon himself."""
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._user_clients = UserClient(place)
        self._census = ThreadPoolExecutor(_CENSUS_THREADS, thread_name_prefix="census")
        self._look = asyncio.Event()
        self._pokes = 0

    # -- the life of it -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look, wake whom it concerns, and look again, for ever; and write down what is known."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_after_all(), name="users")
            tasks.create_task(self._write(), name="memory")

    async def _look_after_all(self) -> None:
        await self._meet()
        if await asyncio.to_thread(self._memory.first_since_boot):
            # What happened while the host was off, nobody told us.
            self._owe(lambda _one: True)
        else:
            self._owe(lambda one: one.state in {WorkerState.AWAKE, WorkerState.STARTING})
        await self._compare()
        while True:
            await self._dismiss()
            # Whoever is new here has yet to be asked.
            self._owe(lambda one: one.seen is None)
            self._wake_owed()
            self._unwritten.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.workers.every):
                    await self._look.wait()
            poked = self._look.is_set()
            await self._settled()
            await self._meet()
            await self._compare()
            if not poked:
                self._owe(lambda one: one.matters)

    async def stop(self) -> None:
        """Let go; workers go on by themselves."""
        tasks = tuple(self._following.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._user_clients.stop()
        self._census.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._memory.keep, self._known())

    def _known(self) -> SavedState:
        return SavedState(self._stamp, self._changed, tuple(self._said.values()), tuple(self._owed))

    async def _write(self) -> None:
        """Write down what is known, now and then.  What is lost when we are killed before is asked for again."""
        while True:
            await self._unwritten.wait()
            self._unwritten.clear()
            await asyncio.to_thread(self._memory.keep, self._known())
            await asyncio.sleep(_WRITING)

    def take_settings(self, config: Settings) -> None:
        """Go on with other settings."""
        self.settings = config
        self._look.set()

    def look(self) -> None:
        """Hear that something may have changed."""
        self._pokes += 1
        self._look.set()

    async def _settled(self) -> None:
        """Wait until nobody pokes any more: in the middle of a transaction half of a driver is there."""
        quiet = self.settings.settle
        for _ in range(10):
            before = self._pokes
            self._look.clear()
            await asyncio.sleep(quiet)
            if self._pokes == before:
                return

    async def _meet(self) -> None:
        """See who is looked after, and whose models are whose; if nobody tells us in time, it stays as it was."""
        look = functools.partial(read_users, self.settings)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CENSUS):
                found = await loop.run_in_executor(self._census, look)
        except TimeoutError:
            self._see_no_names(f"did not answer within {_CENSUS:.0f} s")
            return
        except Exception as error:
            # Whatever it stumbled over may be gone at the next look; meanwhile those who are known are looked after.
            log.exception("the host's user database cannot be read")
            self._see_no_names(f"cannot be read ({error})")
            return
        self._people, self._owners, self._problems = found.people, found.owners, found.problems
        # A number that is another account's now is somebody else, and the worker that runs is not his.
        for uid in [uid for uid, one in self._said.items() if self._people.get(uid) != one.user]:
            if self._said.pop(uid).state in {WorkerState.AWAKE, WorkerState.STARTING}:
                self._unwanted.add(uid)
            self._owed.pop(uid, None)
        new = {uid: UserStatus(name, uid) for uid, name in self._people.items() if uid not in self._said}
        self._said = dict(sorted((self._said | new).items(), key=lambda one: one[1].user))

    def _see_no_names(self, why: str) -> None:
        log.warning("the host's user database %s", why)
        problem = Problem(
            "names-silent",
            f"the host's user database {why}; who is looked after stays as it was",
            "see: getent passwd; systemctl status sssd; journalctl -u xpucached",
        )
        self._problems = (*(one for one in self._problems if one.code != problem.code), problem)

    def welcome(self, uid: int) -> bool:
        """Tell whether somebody may ask at the public socket.  A person has one account, and 65536 numbers (subuid)."""
        return not self._people or uid in self._people or uid in {0, os.getuid()}

    async def _compare(self) -> None:
        """See whether the driver is another one, by its files alone."""
        found = await asyncio.to_thread(host.fingerprint, self.settings.variables)
        if found == self._stamp:
            return
        before, self._stamp = self._stamp, found
        if before:
            self._changed = self._clock()
            systemd.tell("driver-changed", "the driver's files changed: whom it concerns is woken", {"stamp": found})
            log.info("the driver's files changed: %s to %s", before, found)
            self._owe(lambda one: one.matters)

    async def _dismiss(self) -> None:
        """Stop the workers of users who are not looked after any more."""
        while self._unwanted:
            uid = self._unwanted.pop()
            task = self._following.pop(uid, None)
            if task is not None:
                task.cancel()
            try:
                await self._worker_units.stop(uid)
            except Unavailable as error:
                log.warning("a worker cannot be stopped: uid %d: %s", uid, error.message)

    def _owe(self, whom: Callable[[UserStatus], bool]) -> None:
        self._owed |= dict.fromkeys(uid for uid, one in self._said.items() if whom(one))

    def _wake_owed(self) -> None:
        for uid in tuple(self._owed):
            self._follow(uid)

    # -- one worker ---------------------------------------------------------------------------------------------------

    def _follow(self, uid: int, *, urgent: bool = False, silent: bool = False) -> asyncio.Event:
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
                self._answering[uid] = asyncio.Event()
        except XpucachedError as error:
            log.warning("a worker refuses: uid %d: %s", uid, error.message)
            self._say(uid, state=WorkerState.FAILED, sentence=error.message[:300])
        except Exception:
            # Whatever a worker makes us stumble over, the others are still looked after.
            log.exception("a worker could not be attended to: uid %d", uid)
            self._say(uid, state=WorkerState.FAILED, sentence="what it said could not be read")
        finally:
            self._unwritten.set()

    async def _life(self, uid: int, *, urgent: bool) -> bool:
        """Attend to a worker until it ends; True if systemd starts it again."""
        answering = self._answering[uid]
        try:
            async with contextlib.AsyncExitStack() as turn:
                if not urgent:
                    await turn.enter_async_context(self._turn)
                # Whatever it does, it keeps the turn no longer than this: others wait for it.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_BUSY):
                        await self._begin(uid)
                        answering.set()
                        await self._listen(uid, until_quiet=True)
            if not answering.is_set():
                raise Unavailable(f"it did not answer within {_BUSY:.0f} s")  # noqa: TRY301 - as if nobody answered
            await self._listen(uid, until_quiet=False)
        except Unavailable as error:
            return await self._ended(uid, error, began=answering.is_set())
        return False

    async def _listen(self, uid: int, *, until_quiet: bool) -> None:
        """Hear how a worker stands, until it has done what it had to, or until it ends (raises `Unavailable`)."""
        while True:
            if uid in self._owed:
                await self._user_clients.ask(uid, api.Refresh(), own=True)
                self._owed.pop(uid, None)
            quiet = await self._quiet(uid)
            if quiet and until_quiet:
                return
            await asyncio.sleep(_SLOW_BEAT if quiet else _BEAT)

    async def _begin(self, uid: int) -> None:
        """Start a worker and wait until it answers.  Raises `Unavailable`."""
        with contextlib.suppress(Unavailable):
            await self._user_clients.ask(uid, api.GetHello(), own=True)
            return
        self._say(uid, state=WorkerState.STARTING)
        self._aside.discard(uid)
        # One that systemd starts again by itself has a pause to keep, which a start would end.
        if not (await self._fate(uid)).starting:
            self._starts[uid] = asyncio.get_running_loop().time()
            await self._worker_units.start(uid)
        end = asyncio.get_running_loop().time() + _ANSWER
        pause = _SOON
        while True:
            try:
                await self._user_clients.ask(uid, api.GetHello(), own=True)
            except Unavailable:
                if asyncio.get_running_loop().time() > end or not (await self._worker_units.fate(uid)).active:
                    raise
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LATER)
            else:
                return

    async def _quiet(self, uid: int) -> bool:
        """Hear how a worker stands; whether it has done what it had to."""
        said = (await self._user_clients.ask(uid, api.GetStatus(), own=True)).value
        known = self._said.get(uid)
        if known is not None:
            fresh = user_client.digest(known, said, self._clock())
            if replace(fresh, seen=None) != replace(known, seen=None):
                self._unwritten.set()
            self._said[uid] = fresh
            self._failing.pop(uid, None)
        return said.verdict is not Verdict.STARTING and not said.jobs

    async def _ended(self, uid: int, error: Unavailable, *, began: bool) -> bool:
        """Note why a worker does not answer; True if it was there, and systemd starts it again."""
        fate = await self._fate(uid)
        if fate.running or fate.ending:
            # One that has just ended may not be known for it yet; one that is still there then keeps silent.
            await asyncio.sleep(_ENDING)
            fate = await self._fate(uid)
        aside = uid in self._aside
        if aside:
            self._say(uid, state=WorkerState.ASIDE, sentence="this user runs a daemon himself")
        elif fate.running:
            log.warning("a worker runs and does not answer: uid %d: %s", uid, error.message)
            self._say(uid, state=WorkerState.FAILED, sentence="it runs and does not answer: is it stopped, or stuck?")
        elif fate.failed or not began:
            log.warning("a worker does not answer: uid %d: %s", uid, error.message)
            self._say(uid, state=WorkerState.FAILED, sentence=error.message[:300])
        elif fate.starting:
            log.warning("a worker ended, and is started again: uid %d", uid)
            return True
        else:
            self._say(uid, state=WorkerState.ASLEEP)
        if began or aside:
            self._owed.pop(uid, None)
        return False

    async def _fate(self, uid: int) -> units.UnitState:
        try:
            return await self._worker_units.fate(uid)
        except Unavailable:
            return units.UnitState(active=False, failed=True)

    def _say(self, uid: int, *, state: WorkerState, sentence: str | None = None) -> None:
        if state is WorkerState.FAILED:
            self._failing.setdefault(uid, self._clock())
        if known := self._said.get(uid):
            self._said[uid] = replace(known, state=state, sentence=known.sentence if sentence is None else sentence)

    # -- what is asked of us ------------------------------------------------------------------------------------------

    def find(self, name: str | int | None, caller: int) -> int:
        """Give the number of a user whom we look after, by name, or by a number as text where nobody has it as name.

        A number is that one and nobody else.  Raises `NotFound`, or `Denied` for the caller himself.
        """
        if isinstance(name, str):
            # Not asked of the host's user database: anybody may ask us, and it may be slow, or not answer.
            if self._numbers[0] is not self._people:
                self._numbers = self._people, {user: uid for uid, user in self._people.items()}
            number = int(name) if name.isdecimal() and len(name) < _LONG_NUMBER else None
            found = self._numbers[1].get(name, number)
            if found is None:
                hint = "an administrator can add a user: include in [workers] of /etc/xpucached/xpucached.toml"
                raise NotFound(f"the host's daemon knows no user {name}", hint=hint)
            uid = found
        else:
            uid = caller if name is None else name
        if uid not in self._people:
            if uid == caller:
                raise stranger()
            hint = "an administrator can add him: include in [workers] of /etc/xpucached/xpucached.toml"
            raise Denied(f"the host's daemon does not look after user {name}", hint=hint)
        return uid

    def status(self, only: int | None) -> HostStatus:
        """Tell how the host stands: all users, or one, who may ask again and again, and looks at nobody else."""
        shown = tuple(one for one in (self._said.values() if only is None else [self._said.get(only)]) if one)
        failing = tuple(failure(one, self._failing.get(one.uid)) for one in shown if one.state is WorkerState.FAILED)
        problems = (*(self._problems if only is None else ()), *failing)
        return HostStatus(__version__, self._started, self._stamp, self._changed, problems, shown)

    def step_aside(self, uid: int) -> None:
        """Hear from a user's worker that this user runs a daemon himself; whoever says so, it is his own row."""
        self._aside.add(uid)

    async def wake(self, uid: int) -> UserSocket:
        """See that a user's worker answers.  Raises `Unavailable`."""
        try:
            await self._user_clients.ask(uid, api.GetHello())
            self._follow(uid, urgent=True)
        except Unavailable:
            if self._rests(uid) or not await self._answers(uid):
                raise silence(self._said.get(uid, UserStatus(str(uid), uid))) from None
        return UserSocket(self._people.get(uid, str(uid)), uid, self._place(uid))

    def _rests(self, uid: int) -> bool:
        """Tell whether a user's worker failed, and was started too short a time ago to be started again."""
        known = self._said.get(uid)
        if known is None or known.state is not WorkerState.FAILED or uid not in self._starts:
            return False
        return asyncio.get_running_loop().time() - self._starts[uid] < _PAUSE

    async def _answers(self, uid: int) -> bool:
        """See to it that a user's worker is started; whether it answers then."""
        answering = self._follow(uid, urgent=True, silent=True)
        waiting = asyncio.create_task(answering.wait())
        await asyncio.wait({waiting, self._following[uid]}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return answering.is_set()

    def meaning(self, names: tuple[ModelName, ...]) -> tuple[int, tuple[ModelName, ...]]:
        """Give the one user whose models these are, and what that user calls them.  Raises `NotFound` and `Conflict`.

        Names belong to their owners: a name alone is a model that the host's directory declares, and any other one is
        USER:NAME.  So nobody comes between a model and who asks for it by giving a model of his own that name.
        """
        found: dict[int, list[ModelName]] = {}
        for name in names:
            uid, bare = self._owner(name)
            found.setdefault(uid, []).append(bare)
        if len(found) != 1:
            raise Conflict("these models are of several users", hint="ask for those of one at a time")
        ((uid, theirs),) = found.items()
        return uid, tuple(theirs)

    def _owner(self, name: ModelName) -> tuple[int, ModelName]:
        declared = self._owners.get(name)
        if declared is not None:
            return declared, name
        whose, point, bare = name.partition(":")
        if point and bare:
            with contextlib.suppress(NotFound, Denied):
                return self.find(whose, -1), ModelName(bare)
        known = {*self._owners, *(f"{one.user}:{model}" for one in self._said.values() for model in one.models)}
        hint = "a user's model is USER:NAME; see: xpucachectl --system status"
        raise NotFound(f"the host declares no model {name}", hint=suggest(name, known, hint))

    def own(self, name: ModelName, uid: int) -> ModelName:
        """Give what a user calls a model that the same user may have called USER:NAME."""
        whose, _, bare = name.partition(":")
        return ModelName(bare) if bare and whose in {str(uid), self._people.get(uid)} else name

    async def prewarm(self, uid: int, request: api.PrewarmModels) -> Job:
        """Let a user's worker warm models of his."""
        await self.wake(uid)
        return user_client.outward(uid, (await self._user_clients.ask(uid, request)).value)

    async def job(self, uid: int, request: api.GetJob | api.WaitJob) -> Job:
        """Give a job of a user's worker."""
        return user_client.outward(uid, (await self._user_clients.ask(uid, request)).value)

    def meant(self, name: JobId) -> tuple[int, JobId]:
        """Give the user and the job that a job's name here means.  Raises `NotFound`."""
        found = user_client.inward(name)
        if found is None:
            raise NotFound(f"no job {name}", hint="jobs are their users': xpucachectl --of USER jobs")
        return found

    async def tend(self, uid: int, request: api.Request[object], *, admin: bool) -> api.Json:
        """Pass on what may be passed on; gives the answer as it came, which may be longer for an administrator.

        Raises `Denied` for the rest.
        """
        if not host_requests.is_tending(request):
            raise Denied(
                "that is for its user and root: an administrator may look, warm, replay, evict and scan",
                hint="as root: xpucachectl --of USER …",
            )
        await self.wake(uid)
        # It was read as what it must be, so that nothing else gets through.
        largest = user_client.LARGEST_FOR_ADMINISTRATORS if admin else user_client.LARGEST
        return (await self._user_clients.ask(uid, request, largest=largest)).data
