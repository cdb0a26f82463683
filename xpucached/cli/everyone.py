"""Door: one question to the workers of all users of this host, and one answer with an owner for each part.

They are asked beside each other, few at a time: one that sleeps is woken, and costs a start.  What one answers has a
deadline, and is bounded by what all may cost together; whose worker fails is named, and the others' answers stand.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from msgspec import Struct

from xpucached import answers
from xpucached.api import host_requests
from xpucached.api.client import Answer
from xpucached.cli import connect, narrowing
from xpucached.cli.output import say
from xpucached.codec import to_json
from xpucached.domain.jobs import ErrorInfo
from xpucached.domain.users import UNTENDED, UserStatus
from xpucached.errors import Conflict, NotFound, RunFailed, XpucachedError
from xpucached.printing import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from xpucached.api.client import Client
    from xpucached.api.endpoints import Request
    from xpucached.cli.output import Output
    from xpucached.messages import Json

T = TypeVar("T")

AT_ONCE: Final = 4
"""So many workers are asked, and started for it, at the same time."""

_LONG: Final = 120.0
"""Seconds after which the next one is asked beside those that have not answered yet."""

_MOST: Final = 16
"""So many at most, of whom all but the few let us wait for long."""

_TICK: Final = 1.0

_TOGETHER: Final = 64 << 20
_LARGEST: Final = 4 << 20
_SMALLEST: Final = 256 << 10
"""Bytes that all answers may have together, and what one may have at most and at least."""


class UserAnswer(Struct, Generic[T], frozen=True):
    """What one user's worker answered, or why it did not."""

    user: UserStatus
    answer: Answer[T] | None = None
    error: XpucachedError | None = None

    @property
    def failed(self) -> bool:
        """Whether an answer is missing; who has no worker by right, as far as the host's daemon knows, owes none."""
        untended = self.user.state in UNTENDED and isinstance(self.error, Conflict)
        return self.error is not None and not untended

    @property
    def data(self) -> Json:
        """The part as `--json` prints it."""
        whose: dict[str, Json] = {"user": self.user.user, "uid": self.user.uid}
        if self.answer is not None:
            return {**whose, "data": self.answer.data}
        error = self.error or XpucachedError("")
        return {**whose, "error": to_json(ErrorInfo(error.code, error.message, error.hint))}


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Read what one user's worker said, or write it for people: what it makes us stumble over is an `XpucachedError`.

    So it is that user's failure, and the others' answers stand.
    """
    try:
        yield
    except XpucachedError:
        raise
    except Exception as error:
        raise XpucachedError(f"what it said cannot be read: {type(error).__name__}") from error


def users(host: Client) -> tuple[UserStatus, ...]:
    """Return the users whom the host's daemon looks after, and whom the caller may ask for, by name."""
    return tuple(sorted(host.call(host_requests.GetHost()).value.users, key=lambda one: one.user))


def each(
    whom: Sequence[UserStatus],
    work: Callable[[UserStatus, Client], Answer[T]],
    at_once: int = AT_ONCE,
    tick: Callable[[], None] = lambda: None,
) -> Iterator[UserAnswer[T]]:
    """Do something with each one's worker, few at a time; yields what came of it, as it comes.

    Meanwhile there is a ``tick`` every second.
    """
    waiting: queue.SimpleQueue[UserStatus] = queue.SimpleQueue()
    done: queue.SimpleQueue[UserAnswer[T]] = queue.SimpleQueue()
    largest = max(_SMALLEST, min(_LARGEST, _TOGETHER // max(1, len(whom))))

    def one_by_one() -> None:
        while not waiting.empty():
            try:
                one = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                with reading(), connect.of_user(one.user, largest=largest) as client:
                    done.put(UserAnswer(one, work(one, client)))
            except XpucachedError as error:
                done.put(UserAnswer(one, error=error))

    for one in whom:
        waiting.put(one)
    started, left, next_one = 0, len(whom), time.monotonic()
    while left:
        while not waiting.empty() and (started < at_once or (started < _MOST and time.monotonic() >= next_one)):
            # Ctrl-C does not wait for who keeps silent.
            threading.Thread(target=one_by_one, daemon=True).start()
            started, next_one = started + 1, time.monotonic() + _LONG
        try:
            answer = done.get(timeout=_TICK)
        except queue.Empty:
            tick()
            continue
        left, next_one = left - 1, time.monotonic() + _LONG
        yield answer


def ask(
    host: Client, request: Request[T], check: Callable[[T, str], object] = lambda _value, _owner: None
) -> tuple[UserAnswer[T], ...]:
    """Ask every user's worker; gives the parts in the order of the users' names.

    Who knows nothing of what was named has nothing to say; raises `NotFound` if nobody does.  What ``check`` stumbles
    over, given an answer and whose it is, is that user's failure, and nobody else's; it may write it for people.
    """

    def answer(one: UserStatus, client: Client) -> Answer[T]:
        said = client.call(request)
        check(said.value, one.user)
        return said

    parts = sorted(each(users(host), answer), key=lambda part: part.user.user)
    unknown = [part.error for part in parts if isinstance(part.error, NotFound)]
    if unknown and len(unknown) == sum(part.failed or part.answer is not None for part in parts):
        raise unknown[0]
    return tuple(part for part in parts if not isinstance(part.error, NotFound))


def missing(parts: Sequence[UserAnswer[T]]) -> int:
    """Say whose answer is missing; gives the exit status."""
    for part in parts:
        if part.error is not None:
            hint = f" ({plain(part.error.hint)})" if part.error.hint else ""
            print(f"xpucachectl: {plain(part.user.user)}: {plain(part.error.message)}{hint}", file=sys.stderr)
    return RunFailed.exit if any(part.failed for part in parts) else 0


def show(output: Output, request: Request[tuple[T, ...]]) -> int:
    """Ask every user's worker for a list, and print them as one; gives the exit status."""
    narrowing.refuse(output)
    look = answers.of(type(request))
    merged, names = look.merged, look.names
    if merged is None:
        raise AssertionError(type(request).__name__)
    order = merged.order

    def write(rows: list[tuple[str, T]]) -> str:
        if order is not None:
            rows.sort(key=lambda row: order(row[1]))
        if output.quiet and names is not None:
            return "\n".join(f"{plain(owner)}:{plain(name)}" for owner, one in rows if (name := names((one,))))
        return merged.write([one for _, one in rows], output.style, [owner for owner, _ in rows])

    parts = ask(output.client, request, lambda value, owner: output.json or write([(owner, one) for one in value]))
    if output.json:
        output.dump({"users": [part.data for part in parts]})
    else:
        say(write([(part.user.user, one) for part in parts if part.answer is not None for one in part.answer.value]))
    return missing(parts)
