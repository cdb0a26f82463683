"""What is said of troubles."""

from __future__ import annotations

import pytest

from xpucached.service.problems import clock_jumped


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (400 * 86400, "forward by 400 days; "),
        (-86400.4, "back by 1 day; "),
        (86400 + 90, "forward by 1 day, 0:01:30; "),
        (-7200, "back by 2:00:00; "),
    ],
)
def test_it_is_said_by_how_much_the_clock_was_set(seconds: float, words: str) -> None:
    assert words in clock_jumped(seconds).message
