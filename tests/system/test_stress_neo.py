"""Entries of the GPU driver's cache go and come back beside three programs that write, and the driver's own eviction.

A short round here; `make stress` lets 10,000 entries go (XPUCACHED_STRESS_EVICTIONS).
"""

from __future__ import annotations

import os
import random
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest

from tests.kinds import fakes
from xpucached.domain.plans import EvictReason
from xpucached.domain.stores import FoundStore, Store, StoreOrigin
from xpucached.domain.trash import TrashLabel
from xpucached.kinds.neo import doctor, layout, scanner
from xpucached.kinds.neo import kind as neo

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.runtimes import SimulatedGpu
    from xpucached.domain.stores import Entry

pytestmark = pytest.mark.runtime

EVICTIONS: Final = int(os.environ.get("XPUCACHED_STRESS_EVICTIONS") or 300)
BUILDERS: Final = 3
PROGRAMS: Final = 60
"""Different device programs, of some 5 kB each."""
EACH: Final = 40
"""So many of them a builder has built before another process takes its place."""
LIMIT: Final = 60_000
"""What the driver lets the cache have: a fifth of all of them, so that it evicts, too."""


@dataclass(slots=True)
class Record:
    """What came of it all."""

    built: int = 0
    failed: list[str] = field(default_factory=list)
    evicted: int = 0
    busy: int = 0  #: those that stayed, because a program held the lock
    vanished: int = 0  #: those that the driver had evicted since we looked
    restored: int = 0


def builder(gpu: SimulatedGpu, root: Path, seed: int, record: Record, stop: threading.Event) -> None:
    """Have programs built, process after process."""
    choose = random.Random(seed)  # noqa: S311 - no secret
    spirv = fakes.NEO / "recorded" / "fda88f9b82d687e4.input"
    while not stop.is_set():
        jobs = [("ze", spirv, f"-cl-mad-enable -DN={choose.randrange(PROGRAMS)}") for _ in range(EACH)]
        child = gpu.start(jobs, root, mere=False, NEO_CACHE_MAX_SIZE=str(LIMIT))
        said, _ = child.communicate()
        answers = said.split()
        record.built += answers.count("0")
        if child.returncode or answers != ["0"] * EACH:
            record.failed.append(f"{child.returncode}: {answers}")


def entries(found: FoundStore) -> list[Entry]:
    """Look at the store as the daemon does."""
    return [one for part in scanner.parts(found, datetime.now(UTC), (), None) for one in part.entries]


def test_no_program_fails_while_entries_go_and_come_back_and_the_total_stays_exact(
    gpu: SimulatedGpu, tmp_path: Path
) -> None:
    root = tmp_path / "neo_compiler_cache"
    root.mkdir()
    found = FoundStore(Store(neo.NAME, root), StoreOrigin.FOUND, "test")
    trash, record, stop = neo.KIND.trash, Record(), threading.Event()
    assert trash is not None
    threads = [threading.Thread(target=builder, args=(gpu, root, number, record, stop)) for number in range(BUILDERS)]
    for one in threads:
        one.start()
    try:
        while record.evicted < EVICTIONS:
            some = entries(found)
            label = TrashLabel(datetime.now(UTC), EvictReason.BUDGET, "stress")
            gone = neo.KIND.remover.remove(some, dict.fromkeys((one.id for one in some), label))
            refs = tuple(one.ref for one in trash.trash(found.store))
            record.evicted += len(refs)
            record.vanished += sum(gone.values()) - len(refs)
            record.busy += len(gone) - sum(gone.values())
            back = tuple(ref for number, ref in enumerate(refs) if number % 4)
            record.restored += sum(one.key is not None for one in trash.restore(found.store, back))
            # The others, and those that a program has made again.
            trash.discard(found.store, refs)
            stop.wait(0.005)
    finally:
        stop.set()
        for one in threads:
            one.join()
    print(f"\n{record}")  # with -s: the figures
    assert record.failed == []
    assert record.built >= BUILDERS * EACH
    assert doctor.faults(found, datetime.now(UTC) + timedelta(hours=1), None) == ()
    assert not [path for path in root.iterdir() if layout.TEMPORARY.match(path.name)]
    left = {one.id.key: one.defect for one in entries(found)}
    assert set(left.values()) <= {None}
