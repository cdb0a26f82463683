"""A small registry, for which there is an account."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import registries

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.registries import SmallRegistry


@pytest.fixture
def registry(home: Path) -> Iterator[SmallRegistry]:
    """Return one that is empty."""
    with registries.small() as one:
        registries.log_in(home / ".docker", one.host)
        yield one
