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
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from xpucached import __version__, deadlines, systemd
from xpucached.api import host_requests, requests
from xpucached.api.endpoints import Request
from xpucached.domain.host import Problem
from xpucached.domain.jobs import Job
from xpucached.domain.names import JobId, ModelName
from xpucached.domain.users import HostStatus, SavedState, UserSocket, UserStatus, WorkerState
from xpucached.errors import Conflict, Denied, NotFound, suggest
from xpucached.host import driver_stamp
from xpucached.hostd import stamps, units, user_client
from xpucached.hostd.known_users import KnownUsers
from xpucached.hostd.rounds import Rounds
from xpucached.hostd.sentences import failure, files_silent, names_silent, not_looked_after, stranger, unknown
from xpucached.hostd.state import StateFile
from xpucached.hostd.user_client import UserClient
from xpucached.hostd.users import by_owner, read_users
from xpucached.hostd.worker_follower import WorkerFollower, WorkerUnits
from xpucached.threads import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xpucached.settings import Settings

log = logging.getLogger(__name__)

_CENSUS: Final = 20.0
"""Seconds for the host's user database (files, LDAP, …) to tell who is looked after."""
_CENSUS_THREADS: Final = 4
"""A question that is never answered keeps its thread."""
_COMPARING: Final = 60.0
"""Seconds for the driver's files to answer: a library that is looked for may lie on a server that is away."""
_LONG_NUMBER: Final = 11
_COMPARED: Final = 1000
"""Models of users that a mistyped name is compared with: others wait meanwhile."""

_STARTED: Final = frozenset({WorkerState.AWAKE, WorkerState.STARTING, WorkerState.FAILED})
"""A worker that fails may run all the same."""
_LONG_UNHEARD: Final = timedelta(days=1)
"""After so long one of whom nothing is known is asked again: by now he may have compiled something."""
_WRITING: Final = 5.0
"""Seconds between two writings of what is known: each change may be a user's doing."""


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
        self._place = place
        self._clock = clock
        self._started = clock()
        self._memory = StateFile(config.paths.state, runtime)
        kept = self._memory.recall()
        self._stamp, self._changed, self._staged = kept.stamp, kept.changed, kept.staged
        self._looked: datetime | None = None
        self._known = KnownUsers(kept, clock)
        self._people: Mapping[int, str] = {uid: one.user for uid, one in self._known.said.items()}
        self._numbers: tuple[Mapping[int, str], Mapping[str, int]] = ({}, {})  # the people, and the same by name
        self._named, self._elsewhere, self._files = kept.named, dict(kept.elsewhere), kept.files
        self._owners: Mapping[ModelName, int] = {}
        self._declared: tuple[Mapping[ModelName, int], Mapping[int, tuple[ModelName, ...]]] = ({}, {})  # by their users
        self._problems: tuple[Problem, ...] = ()
        self._unseen: tuple[Problem, ...] = ()  # why nobody knows whether the driver is another one
        self.settings_problems: tuple[Problem, ...] = ()
        """What is wrong with a configuration that was not taken."""
        self.port_problem: Problem | None = None
        """Why nobody listens where the configuration wants figures for Prometheus."""
        self._unwanted: set[int] = set()
        self._user_clients = UserClient(place)
        self._workers = WorkerFollower(self._known, self._user_clients, worker_units)
        self._census = ThreadPool(_CENSUS_THREADS, thread_name_prefix="census")
        self._rounds = Rounds()

    # -- the life of it -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look, wake whom it concerns, and look again, for ever; and write down what is known."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_after_all(), name="users")
            tasks.create_task(self._write(), name="memory")

    async def _look_after_all(self) -> None:
        await self.meet()
        if await asyncio.to_thread(self._memory.first_since_boot):
            # What happened while the host was off, nobody told us.
            self._known.begin_anew()
            await asyncio.to_thread(self._memory.keep, self._saved())
            await asyncio.to_thread(self._memory.note_boot)
        else:
            # What kept a worker from starting may be why we were started again.
            self._known.owe(lambda one: one.state in _STARTED or one.seen is None)
        await self._compare()
        while True:
            await self._dismiss()
            # Whoever is new here has yet to be asked; whose worker came to nothing waits for the round for everybody.
            self._known.owe(lambda one: one.state is WorkerState.NEVER)
            self._workers.follow_owed()
            self._known.changed.set()
            everybody = await self._rounds.next(self.settings.workers.every, self.settings.schedule.settle)
            await self.meet()
            await self._compare()
            if everybody:
                self._known.owe(self._concerns)
                # Who had nothing may have something by now.
                self._known.owe(self._is_long_unheard)

    def _concerns(self, one: UserStatus) -> bool:
        """Return whether a look concerns a user: he has something, or the host declares something for him."""
        return one.matters or one.uid in self._declarations()

    def _is_long_unheard(self, one: UserStatus) -> bool:
        return one.seen is None or not timedelta(0) <= self._clock() - one.seen < _LONG_UNHEARD

    async def stop(self) -> None:
        """Let go; workers go on by themselves."""
        await self._workers.stop()
        self._user_clients.stop()
        self._census.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WRITING):
                await asyncio.to_thread(self._memory.keep, self._saved(), last=True)

    def _saved(self) -> SavedState:
        users, owed, elsewhere = self._known.said.values(), tuple(self._known.owed), tuple(self._elsewhere.items())
        files = self._named, self._staged, elsewhere, self._files
        return SavedState(self._stamp, self._changed, tuple(users), owed, *files)

    async def _write(self) -> None:
        """Write down what is known, now and then.  What is lost when we are killed before is asked for again."""
        while True:
            await self._known.changed.wait()
            self._known.changed.clear()
            try:
                await asyncio.to_thread(self._memory.keep, self._saved())
            except Exception as error:  # noqa: BLE001 - what is not kept is asked for again
                self._memory.fail(error)
                self._known.changed.set()
            await asyncio.sleep(_WRITING)

    def take_settings(self, config: Settings) -> None:
        """Go on with other settings."""
        self.settings, self.settings_problems = config, ()
        self._rounds.ask(everybody=True)

    def look(self) -> None:
        """Hear that something may have changed."""
        self._rounds.ask()

    async def meet(self) -> None:
        """See who is looked after, and whose models are whose; if nobody tells us in time, it stays as it was."""
        look = functools.partial(read_users, self.settings, self._named, self._people, self._elsewhere)
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
        if (found.named, found.elsewhere) != (self._named, self._elsewhere):
            self._known.changed.set()
        whose: set[int] = set()
        if found.files != self._files:
            self._files, whose = found.files, {*self._owners.values(), *found.owners.values()}
        self._people, self._named, self._owners = found.people, found.named, found.owners
        self._problems, self._elsewhere = found.problems, found.elsewhere
        # A number that is another account's now is somebody else, and the worker that runs is not his.
        for uid in [uid for uid, one in self._known.said.items() if self._people.get(uid) != one.user]:
            if self._known.said.pop(uid).state in _STARTED or self._workers.follows(uid):
                self._unwanted.add(uid)
            self._known.owed.forget(uid)
            self._known.failing.pop(uid, None)
        new = {uid: UserStatus(name, uid) for uid, name in self._people.items() if uid not in self._known.said}
        self._known.said = dict(sorted((self._known.said | new).items(), key=lambda one: one[1].user))
        # A model file was written: those who have some there read them.
        self._known.owe(lambda one: one.uid in whose)

    def _see_no_names(self, why: str) -> None:
        log.warning("the host's user database %s", why)
        problem = names_silent(why)
        self._problems = (*(one for one in self._problems if one.code != problem.code), problem)

    def admits(self, uid: int) -> bool:
        """Tell whether somebody may ask at the public socket.  A person has one account, and 65536 numbers (subuid)."""
        return not self._people or uid in self._people or uid in {0, os.getuid()}

    async def _compare(self) -> None:
        """See whether the driver is another one, by its files alone; if that cannot be told, it stays as it was."""
        began = self._clock()
        if self._changed is not None and self._changed > began:
            # The clock was ahead: by what it says now nobody can tell who has looked since.
            self._changed = began
            self._known.begin_anew()
        look = functools.partial(driver_stamp.fingerprint, self.settings.driver.variables)
        try:
            found = await asyncio.to_thread(deadlines.ask, "driver", look, _COMPARING)
        except Exception as error:  # whatever is wrong with them, users are looked after
            log.warning("the driver's files cannot be looked at: %s", error, exc_info=not isinstance(error, OSError))
            self._unseen = (files_silent(error),)
            return
        self._unseen = ()
        before, self._stamp = self._stamp, found
        if before not in {"", found}:
            self._changed = self._clock()
            systemd.tell("driver-changed", "the driver's files changed: whom it concerns is woken", {"stamp": found})
            log.info("the driver's files changed: %s to %s", before, found)
            self._known.owe(self._concerns)
            # Who had nothing when he last was asked may have something that is to be replayed by now.
            self._known.owe(lambda _one: True)
        await self._look_ahead()
        # Who reads that it was looked finds all owed that came of it.
        self._looked = began

    async def _look_ahead(self) -> None:
        """See whether another driver lies here that is not installed yet, or another word on whose bundles count."""
        look = functools.partial(stamps.beside, self.settings.driver.staged)
        try:
            found = await asyncio.to_thread(deadlines.ask, "staged", look, _COMPARING)
        except Exception as error:  # noqa: BLE001 - the same
            log.warning("what was downloaded, or which keys there are, cannot be looked at: %r", error)
            return
        if found != self._staged:
            self._staged = found
            self._known.changed.set()
            log.info("packages or images of drivers, or keys of bundles, are here that were not here before, or went")
            self._known.owe(self._concerns)

    async def _dismiss(self) -> None:
        """Stop the workers of users who are not looked after any more."""
        while self._unwanted:
            uid = self._unwanted.pop()
            await self._workers.dismiss(uid)

    # -- what is asked of us ------------------------------------------------------------------------------------------

    def find(self, name: str | int | None, caller: int) -> int:
        """Return the number of a user whom we look after, by name, or by a number as text where nobody has it as name.

        A number is that one and nobody else.  Raises `NotFound`, or `Denied` for the caller himself.
        """
        if isinstance(name, str):
            # Not asked of the host's user database: anybody may ask us, and it may be slow, or not answer.
            if self._numbers[0] is not self._people:
                self._numbers = self._people, {user: uid for uid, user in self._people.items()}
            number = int(name) if name.isdecimal() and len(name) < _LONG_NUMBER else None
            found = self._numbers[1].get(name, number)
            if found is None:
                raise unknown(name)
            uid = found
        else:
            uid = caller if name is None else name
        if uid not in self._people:
            raise stranger() if uid == caller else not_looked_after(name)
        return uid

    def status(self, only: int | None) -> HostStatus:
        """Return how the host stands: all users, or one, who may ask again and again, and looks at nobody else."""
        declared = self._declarations()
        shown = tuple(
            replace(one.with_declared(declared.get(one.uid, ())), due=self._is_due(one))
            for one in (self._known.said.values() if only is None else [self._known.said.get(only)])
            if one
        )
        failing = tuple(
            failure(one, self._known.failing.get(one.uid)) for one in shown if one.state is WorkerState.FAILED
        )
        port = [self.port_problem] if self.port_problem else []
        ours = (*self.settings_problems, *port, *self._problems, *self._memory.problems, *self._unseen)
        ours = ours if only is None else ()
        problems = (*ours, *failing)
        if forbidden := self._workers.forbidden:
            problems = (Problem("workers-forbidden", forbidden.message, forbidden.hint), *problems)
        every = self.settings.workers.every
        return HostStatus(__version__, self._started, self._stamp, self._changed, problems, shown, self._looked, every)

    def _declarations(self) -> Mapping[int, tuple[ModelName, ...]]:
        """Return by users what the host declares for them."""
        if self._declared[0] is not self._owners:
            # Once for each change: anybody may ask, as often as they like.
            self._declared = self._owners, by_owner(self._owners)
        return self._declared[1]

    def _is_due(self, one: UserStatus) -> bool:
        """Return whether a user's worker has yet to be told, and is going to be, as one that failed may not."""
        owed = self._known.owed.news(one.uid) is not None
        return owed and (one.state is not WorkerState.FAILED or self._workers.follows(one.uid))

    def step_aside(self, uid: int) -> None:
        """Hear from a user's worker that this user runs a daemon of their own; whoever says so, it is their own row."""
        self._workers.aside.add(uid)

    async def wake(self, uid: int) -> UserSocket:
        """See that a user's worker answers.  Raises `Unavailable`, or `Busy` if it has not started yet."""
        await self._workers.wake(uid)
        return UserSocket(self._people.get(uid, str(uid)), uid, self._place(uid))

    def meaning(self, names: tuple[ModelName, ...]) -> tuple[int, tuple[ModelName, ...]]:
        """Return the one user whose models these are, and what that user calls them.  Raises `NotFound` and `Conflict`.

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
        known = (
            *self._owners,
            *islice((f"{one.user}:{model}" for one in self._known.said.values() for model in one.models), _COMPARED),
        )
        hint = "a user's model is USER:NAME; see: xpucachectl --system status"
        raise NotFound(f"the host declares no model {name}", hint=suggest(name, known, hint))

    def own(self, name: ModelName, uid: int) -> ModelName:
        """Return what a user calls a model that the same user may have called USER:NAME."""
        whose, _, bare = name.partition(":")
        return ModelName(bare) if bare and whose in {str(uid), self._people.get(uid)} else name

    async def prewarm(self, uid: int, request: requests.PrewarmModels) -> Job:
        """Let a user's worker warm models of his."""
        await self.wake(uid)
        return user_client.outward(uid, (await self._user_clients.ask(uid, request)).value)

    async def job(self, uid: int, request: requests.GetJob | requests.WaitJob) -> Job:
        """Return a job of a user's worker."""
        return user_client.outward(uid, (await self._user_clients.ask(uid, request)).value)

    def meant(self, name: JobId) -> tuple[int, JobId]:
        """Return the user and the job that a job's name here means.  Raises `NotFound`."""
        found = user_client.inward(name)
        if found is None:
            raise NotFound(f"no job {name}", hint="jobs are their users': xpucachectl --of USER jobs")
        return found

    async def tend(self, uid: int, request: Request[object], *, admin: bool) -> bytes:
        """Pass on what may be passed on; gives the answer as JSON, which may be longer for an administrator.

        Raises `Denied` for the rest.
        """
        if not host_requests.is_tending(request):
            raise Denied(
                "that is for its user and root: an administrator may look, warm, replay, evict and scan",
                hint="its user does it without --of",
            )
        await self.wake(uid)
        # It was read as what it must be, so that nothing else gets through.
        largest = user_client.LARGEST_FOR_ADMINISTRATORS if admin else user_client.LARGEST
        return (await self._user_clients.ask(uid, request, largest=largest, written=True)).text
