"""Times as clocks of this place show them."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest

from xpucached.cli import local_times

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW: Final = 1_762_164_000.0  # 2025-11-03 10:00 UTC


@pytest.fixture(params=["Asia/Tokyo", "America/New_York", "UTC"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with monkeypatch.context() as here:
        here.setenv("TZ", {"Asia/Tokyo": "JST-9", "America/New_York": "EST5"}.get(request.param, "UTC"))
        time.tzset()
        yield request.param
    time.tzset()


def test_times_are_those_of_this_place(zone: str) -> None:
    proven, since, made = "2025-11-02 23:30 UTC", "10:12 UTC", "2025-11-03 01:02:03 UTC"
    expected = {
        "Asia/Tokyo": ("2025-11-03 08:30 JST", "19:12 JST", "2025-11-03 10:02:03 JST"),
        "America/New_York": ("2025-11-02 18:30 EST", "05:12 EST", "2025-11-02 20:02:03 EST"),
        "UTC": (proven, since, made),
    }[zone]
    for text, there in zip((proven, since, made), expected, strict=True):
        assert local_times.local(f"it was so on {text}; and", NOW) == f"it was so on {there}; and"


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("text", ["", "UTC", "9999-99-99 99:99 UTC and on", "10:00 UTCX", "110:00", "a UTC b"])
def test_what_is_no_time_stays(text: str) -> None:
    assert local_times.local(text, NOW) == text


def test_days_are_counted_as_the_calendar_does() -> None:
    for day in range(-100_000, 100_000, 29):
        then = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)
        assert local_times._days(then.year, then.month, then.day) == day
