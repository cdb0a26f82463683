"""What decisions are made of does not change, but for what they count on the way."""

from __future__ import annotations

from tests.support.values import changeable
from xpucached import planning


def test_values_do_not_change() -> None:
    assert changeable(planning) == {"Pool", "_Traces"}
