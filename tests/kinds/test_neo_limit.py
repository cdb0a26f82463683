"""A working set above the GPU driver's limit: without our variables it is never warm, with them it stays so."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pytest

from tests.kinds import fakes
from xpucached.domain.stores import FoundStore, Lookups, Store, StoreOrigin
from xpucached.kinds.neo import discovery, scanner, totals
from xpucached.kinds.neo import kind as neo

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.runtimes import SimulatedGpu

pytestmark = pytest.mark.runtime

PROGRAMS: Final = 12
SIZE: Final = 5000
"""Bytes of an entry, a little less."""


def test_what_is_larger_than_the_driver_s_limit_stays_warm_with_our_variables(
    gpu: SimulatedGpu, tmp_path: Path
) -> None:
    root = tmp_path / "neo_compiler_cache"
    root.mkdir()
    text = tmp_path / "program.cl"
    text.write_bytes((fakes.NEO / "recorded" / "14393921d7ce9d06.input").read_bytes().rstrip(b"\0"))
    jobs = [("text", text, f"-DN={number}") for number in range(PROGRAMS)]

    def hits(variables: dict[str, str]) -> int:
        for path in root.rglob("stats"):
            path.unlink()
        said, _ = gpu.start(jobs, root, mere=False, **variables).communicate(timeout=120)
        assert said.split() == ["0"] * PROGRAMS
        told = totals.lookups((root / "stats").read_bytes())
        assert told is not None
        assert told.hits + told.misses == PROGRAMS
        return told.hits

    ours = dict(discovery.EVERYWHERE)
    limited = {**ours, "NEO_CACHE_MAX_SIZE": str(PROGRAMS * 2 // 3 * SIZE)}
    # Which of those go that were written in one second, the driver does not say: some may be found all the same.
    assert hits(limited) == 0
    assert max(hits(limited), hits(limited)) < PROGRAMS
    assert sum(1 for _ in root.rglob("*.cl_cache")) < PROGRAMS
    assert hits(ours) < PROGRAMS
    assert [hits(ours), hits(ours)] == [PROGRAMS, PROGRAMS]
    found = FoundStore(Store(neo.NAME, root), StoreOrigin.FOUND, "test")
    (look,) = scanner.parts(found, datetime.now(UTC), (), None)
    assert look.lookups == Lookups(PROGRAMS, 0)
    size = sum(path.stat().st_size for path in root.rglob("*.cl_cache"))
    assert size > int(limited["NEO_CACHE_MAX_SIZE"])
