"""Limits below what models need."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from xpucached.domain.names import KindName
from xpucached.domain.plans import Limits, Policy
from xpucached.domain.stores import Store
from xpucached.planning.quota import too_small

ONE: Final = Store(KindName("sycl"), Path("/one"))
TWO: Final = Store(KindName("neo"), Path("/two"))
NEEDED: Final = {ONE: 700, TWO: 300}
OWNERS: Final = {ONE: 1000, TWO: 1000}


@pytest.mark.parametrize(
    ("policy", "sums"),
    [
        (Policy(), None),
        (Policy(quota=1000, max_bytes=1000), None),
        # Where a limit is passed the daemon goes down to so much of it, but models may have all.
        (Policy(quota=1000, low_water=10), None),
        (Policy(min_free_bytes=1 << 60), None),
        (Policy(quota=999), (1000, 999)),
        (Policy(max_bytes=10), (1000, 10)),
        (Policy(stores=(Limits(store=Path("/two"), max_bytes=299),)), (300, 299)),
        (Policy(stores=(Limits(store=Path("/two"), max_bytes=300),)), None),
        (Policy(users=(Limits(user=1000, max_bytes=20),), quota=5000), (1000, 20)),
        (Policy(users=(Limits(user=1001, max_bytes=20),)), None),
        # The one that lacks most is told.
        (Policy(quota=500, stores=(Limits(store=Path("/one"), max_bytes=1),)), (700, 1)),
    ],
)
def test_a_limit_below_what_models_need_is_told_with_the_sum(policy: Policy, sums: tuple[int, int] | None) -> None:
    error = too_small(NEEDED, OWNERS, policy)
    assert (error is None) == (sums is None)
    if error is not None and sums is not None:
        needed, limit = sums
        assert (error.code, error.exit) == ("quota-too-small", 78)
        assert f"need {needed} bytes" in error.message
        assert error.message.endswith(f" {limit}")
        assert f"{needed} bytes or more" in error.hint


@pytest.mark.parametrize(
    ("before", "policy", "refused"),
    [
        # What is too small already stands in nobody's way, as long as nothing lacks more.
        (Policy(quota=500), Policy(quota=500, grace=3600.0), False),
        (Policy(quota=500), Policy(quota=600), False),
        (Policy(quota=500), Policy(quota=499), True),
        (Policy(quota=500), Policy(quota=500, stores=(Limits(store=TWO.root, max_bytes=299),)), True),
        (Policy(quota=2000), Policy(quota=600), True),
    ],
)
def test_a_limit_is_new_where_more_is_lacking_than_before(before: Policy, policy: Policy, *, refused: bool) -> None:
    assert (too_small(NEEDED, OWNERS, policy, before) is not None) is refused


def test_without_models_no_limit_is_too_small() -> None:
    assert too_small({}, OWNERS, Policy(quota=1, max_bytes=1)) is None
