"""Door: `xpucachectl events`: what happened, and what happens, at one user's daemon or at all users' workers."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import TYPE_CHECKING, Final

from xpucached import codec, messages
from xpucached.api import looking
from xpucached.cli import connect, everyone
from xpucached.domain.jobs import Event
from xpucached.domain.users import UserStatus, WorkerState
from xpucached.errors import RequestError, Unavailable, XpucachedError
from xpucached.render import jobs

if TYPE_CHECKING:
    from xpucached.cli.output import Output

    _Happening = queue.Queue[tuple[UserStatus, str | None]]

_AGAIN: Final = 5.0
"""Seconds between looks at whose worker is awake."""

_MOST: Final = 32
"""Events that wait to be printed: who floods us waits for it."""


def events(output: Output) -> int:
    """Print what happened at one user's, and what happens, if that is wished for."""
    if not output.options.follow:
        return output.show(looking.ListEvents(since=output.options.since))
    for line in output.client.follow(output.options.since):
        # One object a line, without the envelope.
        event = _event(line)
        print(codec.dumps(codec.to_json(event)).decode("ascii") if output.json else jobs.event(event), flush=True)
    return 0


def _event(line: str) -> Event:
    try:
        return codec.from_json(Event, messages.parse(line.encode("ascii"), largest=len(line), escaped_bytes=True))
    except ValueError as error:
        raise Unavailable("an event cannot be read", hint="another program may listen on that socket") from error


def of_everyone(output: Output) -> int:
    """Print what happened at all users', in the order of time; and what happens, if that is wished for."""
    if output.options.since:
        raise RequestError(
            "events are numbered for each user", hint="say whose: xpucachectl --of USER events --since N"
        )
    if not output.options.follow:
        return everyone.show(output, looking.ListEvents())
    parts = everyone.ask(output.client, looking.ListEvents())
    told = {part.user.uid: 0 for part in parts}
    past = [(part.user, one) for part in parts if part.answer is not None for one in part.answer.value]
    for user, one in sorted(past, key=lambda row: row[1].at):
        _tell(output, user, one)
        told[user.uid] = max(told[user.uid], one.id)
    everyone.missing(parts)
    happening: _Happening = queue.Queue(_MOST)
    followed: set[int] = set()
    while True:
        for user in everyone.users(output.client):
            if user.state is WorkerState.AWAKE and user.uid not in followed:
                followed.add(user.uid)
                threading.Thread(target=_follow, args=(user, told.get(user.uid, 0), happening), daemon=True).start()
        end = time.monotonic() + _AGAIN
        while (left := end - time.monotonic()) > 0:
            # A line that cannot be read is nobody's event.
            with contextlib.suppress(queue.Empty, Unavailable):
                user, line = happening.get(timeout=left)
                if line is None:
                    followed.discard(user.uid)
                    continue
                happened = _event(line)
                told[user.uid] = max(0, happened.id)
                _tell(output, user, happened)


def _follow(user: UserStatus, since: int, happening: _Happening) -> None:
    """Pass on what happens at one user's worker until it ends, and then None."""
    try:
        with connect.of_user(user.user) as client:
            for line in client.follow(since):
                happening.put((user, line))
    except XpucachedError:
        pass  # It went to sleep, or failed: who looks at the users sees which, and when it is there again.
    finally:
        happening.put((user, None))


def _tell(output: Output, user: UserStatus, one: Event) -> None:
    if output.json:
        # One object a line, without the envelope.
        line = codec.dumps({"user": user.user, "uid": user.uid, "event": codec.to_json(one)}).decode("ascii")
    else:
        line = jobs.events_of((one,), output.style, (user.user,))
    print(line, flush=True)
