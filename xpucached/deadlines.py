"""Ask what may never be answered: a path can lie on a server that is away, or on a file system of a silent program.

Nobody but such a question's own thread waits for it without end.  While it waits, nothing more is asked about the same
place, and little about its file system: for others there is room.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

from xpucached import mounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T = TypeVar("T")

SECONDS = 5.0
"""How long an answer is waited for."""

OF_HOMES: Final = 30.0
"""How long a command waits for what lies in a home, which may have to be mounted first."""

_MOST: Final = 32
"""Questions that may be waiting for ever …"""
_SHARE: Final = 8
"""… and so many of them for one file system; but one, where half of all are waiting."""

_PAUSE: Final = 0.05
"""Seconds between two tries to start a thread."""

_stuck: Final[dict[object, tuple[threading.Thread, str]]] = {}
"""What is asked about, by whom, and the number of the file system that does not answer; empty if that is not known."""
_changing: Final = threading.Lock()


def ask(place: object, question: Callable[[], T], seconds: float | None = None) -> T:
    """Return or raise what a question gives.  Raises `TimeoutError` (an OSError) if there is no answer in time.

    ``place`` is what it is about: a path, or values among which there may be some.  Blocks for `SECONDS` at most, or so
    many.
    """
    with _changing:
        for one in [one for one, (thread, _) in _stuck.items() if not thread.is_alive()]:
            del _stuck[one]
        waiting = bool(_stuck)
        if place in _stuck or len(_stuck) >= _MOST:
            raise _silence(place)
    answers: list[T] = []
    errors: list[BaseException] = []
    here = ""

    def work() -> None:
        nonlocal here
        try:
            known = mounts.mounted() if waiting else {}
            paths = [*_paths(place)]
            for path in paths:
                for here in mounts.way(path):
                    _admit(here, known, place)
            if len(paths) != 1:
                here = ""
            _admit(here, known, place)
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
        _stuck[place] = thread, _device(here, mounts.mounted())
    raise _silence(place)


def _paths(place: object) -> Iterator[str]:
    """Yield the paths that stand in what a question is about."""
    if isinstance(place, tuple):
        for one in place:
            yield from _paths(one)
    elif isinstance(place, str | os.PathLike):
        yield from (one for one in os.fspath(place).split(":") if one.startswith("/"))


def _device(step: str, known: Mapping[str, mounts.Mount]) -> str:
    return mounts.at(step, known).device if step else ""


def _admit(step: str, known: Mapping[str, mounts.Mount], place: object) -> None:
    """Raise `TimeoutError` if the file system here keeps its share waiting; where none is ``known``, nobody waits.

    Who asks this is not counted: it may have been given up already.
    """
    asking = threading.current_thread()
    with _changing:
        others = [one for thread, one in _stuck.values() if thread is not asking and thread.is_alive()]
    silent = others if known else []
    if silent.count(_device(step, known)) >= (_SHARE if len(silent) < _MOST // 2 else 1):
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
