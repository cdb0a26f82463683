"""A job is begun when there is room for it, as long as somebody said that they wait."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from xpucached.cli import progress
from xpucached.cli.progress import in_time
from xpucached.errors import Busy, Unavailable


def test_who_says_how_long_to_wait_waits_for_a_worker_that_is_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    now, naps = [0.0], list[float]()

    def nap(seconds: float) -> None:
        naps.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(progress, "time", SimpleNamespace(sleep=nap, monotonic=lambda: now[0]))
    ask = MagicMock(side_effect=[Busy("starting"), Busy("starting"), begun := MagicMock()])
    assert in_time(ask, 600.0) is begun
    assert naps == [1.0, 1.0]
    ask.side_effect = Busy("starting")
    with pytest.raises(Busy):
        in_time(ask, 5.0)
    assert now[0] < 10
    # Nobody said how long, or nobody is there.
    naps.clear()
    with pytest.raises(Busy):
        in_time(ask, 0.0)
    ask.side_effect = Unavailable("nobody")
    with pytest.raises(Unavailable):
        in_time(ask, 600.0)
    assert naps == []
