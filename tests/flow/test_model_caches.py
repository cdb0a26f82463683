"""A model that is warm by what other compilers cached for it, and what becomes of it when that goes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.daemons import Daemon, daemon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMPILES = 'mkdir -p "$TRITON_CACHE_DIR"; cd "$TRITON_CACHE_DIR"; test -e kernel || echo compiled >kernel'


@pytest.fixture
def host(home: Path, short_dir: Path) -> Iterator[Daemon]:
    """Return a daemon that is not started yet."""
    with daemon(home, short_dir) as one:
        yield one


def test_a_model_whose_cache_was_evicted_is_not_warm_until_it_is_proven_again(host: Daemon) -> None:
    host.configure("[schedule]\nprewarm = false\nsettle = '0.2s'\n[policy]\nmax_bytes = '1kB'\n")
    host.start()
    host.ctl("model", "add", "net", "--device", "cpu", "--", "/bin/sh", "-c", COMPILES)
    host.ctl("prewarm", "net")
    assert host.ask("model", "show", "net")["warmth"] == "warm"
    kernel = host.home / ".cache/xpucached/models/net/triton/kernel"
    then = time.time() - 3600
    os.utime(kernel, (then, then))
    shown = host.ctl("evict", "--dry-run").stdout
    assert "over-budget" in shown
    assert "would evict 1 directory and free" in shown
    assert "evicted 1 directory" in host.ctl("evict").stdout
    assert not kernel.exists()
    assert host.ask("model", "show", "net")["warmth"] != "warm"
    host.ctl("prewarm", "net")
    assert host.ask("model", "show", "net")["warmth"] == "warm"
    assert "in the trash: " in host.ctl("model", "remove", "net").stdout
    assert not kernel.exists()
