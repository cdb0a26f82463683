"""Door: `xpucachectl events`: what happened, and what happens, at one user's daemon or at all users' workers."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from xpucached import answers, codec, messages
from xpucached.api import looking, requests
from xpucached.api.client import Answer
from xpucached.cli import connect, everyone
from xpucached.cli.progress import until_back
from xpucached.domain.jobs import Event
from xpucached.domain.users import UserStatus, WorkerState
from xpucached.errors import RequestError, Restarted, Unavailable, XpucachedError
from xpucached.render import jobs

if TYPE_CHECKING:
    from xpucached.cli.output import Output

    _Happening = queue.Queue[tuple[UserStatus, str | None]]

_AGAIN: Final = 5.0
"""Seconds between looks at whose worker is awake."""

_MOMENT: Final = 0.2
"""Seconds until a daemon that ended a stream is asked for the next one: some end each of them."""

_MOST: Final = 32
"""Events that wait to be printed: who floods us waits for it."""


def events(output: Output) -> int:
    """Print what happened at one user's, and what happens, if that is wished for."""
    given = output.options
    since = given.since if isinstance(given.since, int) else 0
    if not given.follow or given.limit is not None:
        answer = output.client.call(looking.ListEvents(since=since))
        known = answer.value
        kept = [at for at, one in enumerate(known) if _fits(output, one)][-(given.limit or 0) :]
        if not given.follow:
            rows = answer.data if isinstance(answer.data, list) else []
            look = answers.of(looking.ListEvents)
            output.tell(Answer([rows[at] for at in kept], answer.kind), look.write, look.names)
            return 0
        for at in kept:
            _print(output, known[at])
        since = max((since, *(one.id for one in known)))
    while True:
        try:
            for line in output.client.follow(since):
                event = _event(line)
                since = max(since, event.id)
                if _fits(output, event):
                    _print(output, event)
        except Restarted:
            pass  # as if it had ended the stream
        print("xpucachectl: the daemon went away; waiting for it", file=sys.stderr, flush=True)
        time.sleep(_MOMENT)
        until_back(lambda: output.client.call(requests.GetHello()))


def _fits(output: Output, one: Event) -> bool:
    """Return whether an event is of those topics, and of that time, that are asked for."""
    given = output.options
    late = not isinstance(given.since, timedelta) or one.at >= output.style.now - given.since
    return late and (not given.patterns or any(fnmatchcase(one.topic, pattern) for pattern in given.patterns))


def _print(output: Output, event: Event) -> None:
    # One object a line, without the envelope.
    print(codec.dumps(codec.to_json(event)).decode("ascii") if output.json else jobs.event(event), flush=True)


def _event(line: str) -> Event:
    try:
        return codec.from_json(Event, messages.parse(line.encode("ascii"), largest=len(line), escaped_bytes=True))
    except ValueError as error:
        raise Unavailable("an event cannot be read", hint="another program may listen on that socket") from error


def of_everyone(output: Output) -> int:
    """Print what happened at all users', in the order of time; and what happens, if that is wished for."""
    given = output.options
    if isinstance(given.since, int) and given.since:
        raise RequestError(
            "events are numbered for each user", hint="say whose: xpucachectl --of USER events --since N"
        )
    if given.since or given.patterns or given.limit is not None:
        raise RequestError("events of all users cannot be narrowed", hint="say whose: xpucachectl --of USER events")
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
