"""Whom the host's daemon looks after: who matters to it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import pytest
from msgspec.structs import replace

from xpucached.domain.host import AUTOMATIC
from xpucached.domain.names import ModelName
from xpucached.domain.status import MOST_NAMES
from xpucached.domain.users import UserStatus, WorkerState

SEEN: Final = UserStatus("ann", 1001, WorkerState.ASLEEP, seen=datetime(2026, 5, 4, tzinfo=UTC))


@pytest.mark.parametrize(
    ("said", "matters"),
    [
        (SEEN, False),
        (replace(SEEN, seen=None), True),
        (replace(SEEN, entries=1), True),
        (replace(SEEN, models=(ModelName("net"),)), True),
        # The host declares one for him, and his worker knows nothing of it yet.
        (replace(SEEN, declared=(ModelName("net"),)), True),
        (replace(SEEN, state=WorkerState.FAILED), True),
        # A bundle that was refused for what passes is tried again, though its worker sleeps.
        (replace(SEEN, problems=(AUTOMATIC,)), True),
        (replace(SEEN, problems=("no-gpu",)), False),
    ],
)
def test_who_has_something_or_has_failed_is_looked_at_again(said: UserStatus, *, matters: bool) -> None:
    assert said.matters is matters


def test_a_declared_model_of_which_nobody_has_told_is_cold() -> None:
    net, other = ModelName("net"), ModelName("other")
    one = replace(SEEN, models=(net,), warm=1)
    assert one.with_declared((net,)) == replace(one, declared=(net,))
    told = one.with_declared((net, other))
    assert (told.declared, told.untold, told.warm, told.cold) == ((net, other), (other,), 1, 1)
    # Who runs a daemon of their own sees to it, and a worker names so many at most.
    for silent in (replace(one, state=WorkerState.ASIDE), replace(one, models=(net,) * MOST_NAMES)):
        assert silent.with_declared((net, other)).cold == 0
