"""What is known of a client, and what he may cost, does not change."""

from __future__ import annotations

from tests.support.values import changeable
from xpucached import server


def test_values_do_not_change() -> None:
    assert changeable(server) == set()
