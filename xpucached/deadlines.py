"""Ask what may never be answered: a path can lie on a server that is away, or on a file system of a silent program.

Nobody but such a question's own thread waits for it without end; and while it waits, nothing more is asked about the
same place.
"""

from __future__ import annotations

import errno
import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

SECONDS = 5.0
"""How long an answer is waited for."""

_MOST: Final = 32
"""Questions that may be waiting for ever."""

_PAUSE: Final = 0.05
"""Seconds between two tries to start a thread."""

_stuck: Final[dict[object, threading.Thread]] = {}
_changing: Final = threading.Lock()


def ask(place: object, question: Callable[[], T], seconds: float | None = None) -> T:
    """Return or raise what a question gives.  Raises `TimeoutError` (an OSError) if there is no answer in time.

    ``place`` is what it is about.  Blocks for `SECONDS` at most, or so many.
    """
    with _changing:
        for one in [one for one, thread in _stuck.items() if not thread.is_alive()]:
            del _stuck[one]
        if place in _stuck or len(_stuck) >= _MOST:
            raise _silence(place)
    answers: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            answers.append(question())
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    until = time.monotonic() + (SECONDS if seconds is None else seconds)
    thread = started(work, "patience", until)
    thread.join(max(0.0, until - time.monotonic()))
    if errors:
        raise errors[0]
    if answers:
        return answers[0]
    with _changing:
        _stuck[place] = thread
    raise _silence(place)


def started(work: Callable[[], object], name: str, until: float) -> threading.Thread:
    """Start a thread that nobody need wait for.  Raises `TimeoutError` if none could be had until then.

    A host that has no room for a thread now has it in a moment.
    """
    while True:
        thread = threading.Thread(target=work, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if time.monotonic() + _PAUSE > until:
                raise TimeoutError(errno.EAGAIN, "the host has no room for a thread to ask it") from None
            time.sleep(_PAUSE)
        else:
            return thread


def _silence(place: object) -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, "its file system does not answer", str(place))
