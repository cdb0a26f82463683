"""Questions that may never be answered, on a host that has no room for the thread that would ask."""

from __future__ import annotations

import errno
import threading
import time

import pytest

from xpucached import deadlines


def full(monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    """Let no thread be started so many times."""
    starting, tries = threading.Thread.start, 0

    def start(thread: threading.Thread) -> None:
        nonlocal tries
        tries += 1
        if tries <= times:
            raise RuntimeError("can't start new thread")
        starting(thread)

    monkeypatch.setattr(threading.Thread, "start", start)


def test_where_there_is_room_in_a_moment_it_is_asked_then(monkeypatch: pytest.MonkeyPatch) -> None:
    full(monkeypatch, 3)
    assert deadlines.ask("place", lambda: 7, 5.0) == 7


def test_where_there_is_none_the_answer_is_late_and_the_place_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as host:
        full(host, 1e9)
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="no room for a thread") as told:
            deadlines.ask("place", lambda: 7, 0.2)
        assert time.monotonic() - began < 60
    assert told.value.errno == errno.EAGAIN
    assert deadlines.ask("place", lambda: 7, 5.0) == 7
