"""What takes long to make is made once for all processes of the tests."""

from __future__ import annotations

import fcntl
import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that the first process that asks has made, and that nobody changes; others wait for it."""
    base = factory.getbasetemp()
    # With several processes each has a folder of its own in that of all.
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    place, part = base / f"once-{name}", base / f"part-{name}"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            make(part)
            part.rename(place)
    return place
