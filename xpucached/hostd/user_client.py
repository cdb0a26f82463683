"""Ask and tell one worker, through its socket.  What it says is its user's word: bounded, typed, and about him only."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

from msgspec.structs import replace

from xpucached import codec, sockets
from xpucached.api import requests
from xpucached.api.client import Client
from xpucached.api.endpoints import Request
from xpucached.domain.jobs import UNDER_WAY, Job
from xpucached.domain.models import check_name
from xpucached.domain.names import JobId, ModelName
from xpucached.domain.status import MOST_NAMES
from xpucached.domain.users import UserStatus, WorkerState
from xpucached.errors import Busy, Denied, Unavailable, Untrusted, XpucachedError
from xpucached.printing import plain
from xpucached.threads import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from xpucached.domain.status import StatusSummary

log = logging.getLogger(__name__)

T = TypeVar("T")

LARGEST: Final = 1 << 20
"""Bytes of an answer that are read: those of what some 400 models are, in full."""

LARGEST_FOR_ADMINISTRATORS: Final = 4 << 20
"""The same, for what an administrator asks of a worker: a plan names every entry."""

_LEAST: Final = 12
"""Bytes that a value takes in the shortest answers there are, and so how many values: each may cost 250 of memory."""
_PATIENCE: Final = 15.0
_JOB: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONGEST: Final = 300  # characters of a sentence
_LONGEST_CODE: Final = 60
_MOST_PROBLEMS: Final = 100
_MOST_COUNTED: Final = 1 << 50
"""More than anybody has, of whatever: the sum of all users is a number that every reader of JSON takes."""

_PER_USER: Final = 4
_OWN_PER_USER: Final = 2
"""So many questions to one worker, for people and of our own, may wait for an answer at the same time."""

_THREADS: Final = 48
_OWN_THREADS: Final = 32
"""The same for all workers together."""

_WAITING: Final = 64
"""So many more may wait until they can be asked."""

_TURN: Final = 10.0
"""Seconds for which a job is waited for at a time; the thread is another's then."""
_PAUSE: Final = 1.0
"""Seconds between two such waits: a worker that does not wait must not keep us busy."""

_READING: Final = threading.Semaphore(1)
"""One answer at a time is read: so what many hostile ones cost together is what one costs."""


def socket_of(uid: int) -> Path:
    """Return the socket of a user's worker."""
    return Path(sockets.worker_path(uid))


@dataclass(frozen=True, slots=True)
class WorkerAnswer(Generic[T]):
    """What a worker answered: read as what it must be, and written again for who asked."""

    value: T
    text: bytes = b""  #: what may take many times as much memory otherwise


def ask(
    uid: int,
    request: Request[T],
    place: Callable[[int], Path] = socket_of,
    *,
    largest: int = LARGEST,
    written: bool = False,
) -> WorkerAnswer[T]:
    """Ask a worker, and read its answer; blocks.  With ``written`` it is written again, too.

    Raises `Unavailable` if nobody answers there, or somebody who is not this user, and what the worker refused with.
    """
    failed: Exception
    try:
        return _ask(uid, request, place, largest, written=written)
    except XpucachedError as error:
        failed = error
    except Exception as error:
        log.exception("what a worker said could not be read: uid %d", uid)
        failed = error
    # Where it was raised knows the whole answer, and who waits for it keeps it until the collector comes: with a user
    # who asks again and again, for what nobody can read, that would be gigabytes.
    failed.__cause__ = failed.__context__ = None
    raise failed.with_traceback(None)


def _ask(
    uid: int, request: Request[T], place: Callable[[int], Path], largest: int, *, written: bool
) -> WorkerAnswer[T]:
    with Client(
        place(uid),
        owner=uid,
        largest=largest,
        most=largest // _LEAST,
        patience=_PATIENCE,
        hint="the worker may have ended; ask again",
    ) as client:
        try:
            text = client.fetch(request)
        except (Denied, Untrusted) as error:
            # Whoever it is, it is not this worker; and one that is starting has a socket that is not its user's yet.
            raise Unavailable(error.message, hint=error.hint) from error
        with _READING:
            answer = client.read(request, text)
            found = WorkerAnswer(answer.value, codec.dumps(answer.data) if written else b"")
            del answer
            return found


class _Turns:
    """Who may ask next: in the order in which they came, so many at a time, and so many of one user.

    More than one of a user only while more than half of all are free: some users whose workers let us wait leave the
    other half to the rest, one for each.
    """

    def __init__(self, all_together: int, per_user: int) -> None:
        self._all = all_together
        self._per_user = per_user
        self._held: Counter[int] = Counter()
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    def waiting(self, uid: int) -> int:
        """Count what waits for a user's worker."""
        return sum(one == uid for one, _ in self._queue)

    async def take(self, uid: int) -> None:
        """Wait for one's turn."""
        turn = asyncio.get_running_loop().create_future()
        self._queue.append((uid, turn))
        self._share()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._queue.remove((uid, turn))
            else:
                self.give(uid)
            raise

    def give(self, uid: int) -> None:
        """Let the next one have it."""
        self._held[uid] -= 1
        self._held += Counter()  # only who holds something is remembered
        self._share()

    def _share(self) -> None:
        for uid, turn in tuple(self._queue):
            held, free = self._held[uid], self._all - self._held.total()
            if held < self._per_user and free > (self._all // 2 if held else 0) and not turn.done():
                self._held[uid] += 1
                self._queue.remove((uid, turn))
                turn.set_result(None)


_MOST_AHEAD: Final = 4
"""Drivers that are not installed yet, of which is kept how far a user's worker is prepared for them."""


class UserClient:
    """Asks workers in threads, so many at a time.  Used from one event loop.

    A worker that lets us wait takes places of its own user only: a place is taken until the thread has ended, even if
    nobody waits for the answer any more.  What we ask by ourselves has places that people's requests cannot take.
    """

    def __init__(self, place: Callable[[int], Path]) -> None:
        """``place`` tells where a user's worker answers."""
        self._place = place
        self._turns = {False: _Turns(_THREADS, _PER_USER), True: _Turns(_OWN_THREADS, _OWN_PER_USER)}
        self._threads = ThreadPool(_THREADS + _OWN_THREADS, thread_name_prefix="ask-worker")

    async def ask(
        self, uid: int, request: Request[T], *, own: bool = False, largest: int = LARGEST, written: bool = False
    ) -> WorkerAnswer[T]:
        """Ask a user's worker; ``own`` for what nobody asked us to.  Raises as `ask`, and `Busy`."""
        if isinstance(request, requests.WaitJob):
            return await self._wait_for_job(uid, request, largest, written=written)
        return await self._ask(uid, request, own=own, largest=largest, written=written)

    async def _wait_for_job(
        self, uid: int, request: requests.WaitJob, largest: int, *, written: bool
    ) -> WorkerAnswer[T]:
        loop = asyncio.get_running_loop()
        end = loop.time() + request.timeout
        while True:
            left = max(0.0, end - loop.time())
            turn = replace(request, timeout=min(left, _TURN))
            answer = await self._ask(uid, turn, own=False, largest=largest, written=written)
            if answer.value.state not in UNDER_WAY or left <= _TURN:
                return cast("WorkerAnswer[T]", answer)
            await asyncio.sleep(_PAUSE)

    async def _ask(self, uid: int, request: Request[T], *, own: bool, largest: int, written: bool) -> WorkerAnswer[T]:
        turns = self._turns[own]
        if not own and (waiting := turns.waiting(uid)) >= _WAITING:
            raise Busy(
                f"{waiting} requests to the worker of user {uid} wait for an answer",
                hint=f"try again in a while; if it stays so: systemctl status xpucached-worker@{uid}",
            )
        await turns.take(uid)
        loop = asyncio.get_running_loop()

        def over(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: we are stopping
                loop.call_soon_threadsafe(turns.give, uid)

        try:
            asking = self._threads.submit(ask, uid, request, self._place, largest=largest, written=written)
        except RuntimeError as error:
            # The limit of our unit, or of the host: the next question may find one.
            turns.give(uid)
            raise Busy(f"no thread can be started: {error}", hint="try again in a while") from error
        asking.add_done_callback(over)
        try:
            return await asyncio.wrap_future(asking)
        finally:
            # What it raised knows this frame: both would wait for the collector, with what they hold.
            del asking

    def stop(self) -> None:
        """Ask nobody any more; what is being asked ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def brief(sentence: str) -> str:
    """Return as much of a sentence of a worker's as is kept and shown."""
    return plain(sentence, _LONGEST)


def digest(known: UserStatus, said: StatusSummary, now: datetime) -> UserStatus:
    """Keep of what a worker says of itself as much as the host's daemon shows."""
    return replace(
        known,
        state=WorkerState.AWAKE,
        verdict=said.verdict,
        sentence=brief(said.sentence),
        entries=_counted(said.entries),
        allocated=_counted(said.allocated),
        warm=_counted(said.warm),
        cold=_counted(said.cold),
        models=tuple(_names(said.models[:MOST_NAMES])),
        problems=tuple(dict.fromkeys(plain(one, _LONGEST_CODE) for one in said.problems[:_MOST_PROBLEMS])),
        seen=now,
        looked=min(said.looked, now) if said.looked is not None else None,
        failed=tuple(_names(said.failed[:MOST_NAMES])),
        working=said.working,
        busy=said.busy or said.look_due,
        ahead=tuple((state, brief(words)) for state, words in said.ahead[:_MOST_AHEAD]),
    )


def _counted(said: int) -> int:
    return min(max(0, said), _MOST_COUNTED)


def _names(names: Iterable[ModelName]) -> Iterable[ModelName]:
    """Yield those that can be a model's: what else a worker says would be kept, and shown, at any length."""
    for name in names:
        with contextlib.suppress(ValueError):
            yield check_name(name)


def outward(uid: int, job: Job) -> Job:
    """Return a worker's job the name by which the host's daemon finds it again, and which stands in a header."""
    if _JOB.fullmatch(job.id) is None:
        message = "the worker's answer cannot be read: no job has such a name"
        raise Unavailable(message)
    return replace(job, id=JobId(f"{uid}.{job.id}"))


def inward(name: str) -> tuple[int, JobId] | None:
    """Return the user and the job that a name means."""
    uid, point, job = name.partition(".")
    return (int(uid), JobId(job)) if point and uid.isdecimal() and len(uid) <= len("4294967295") else None
