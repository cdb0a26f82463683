"""What tests of the command line share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import REPOSITORY
from tests.support.api_stub import Running, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def served(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """Return a server with sample answers, which `xpucachectl` asks."""
    with running(short_dir) as one:
        monkeypatch.setenv("XPUCACHED_SOCKET", str(one.path))
        monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
        yield one
