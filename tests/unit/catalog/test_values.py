"""What the catalog gives does not change."""

from __future__ import annotations

from tests.support.values import changeable
from xpucached import catalog


def test_values_do_not_change() -> None:
    assert changeable(catalog) == set()
