"""The clock set forward and back while something goes on: nothing goes for it, nothing stops, and order stays order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.daemons import Daemon, daemon
from tests.faults import Faults, faults
from tests.test_faults import keys, old, problems, truth, with_store
from xpucached.domain import Drop, DropReason, EntryKey, EvictReason, Policy, Store, Trashed, TrashRef
from xpucached.kinds import sycl
from xpucached.planning import plan_trash

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.builders import SyclStore

NOW = datetime(2026, 6, 1, tzinfo=UTC)
WEEK = 7 * 86400
JUMPS = (400 * 86400, -400 * 86400, -56 * 365 * 86400)
"""Seconds: more than a year forward and back, and to when a machine without a battery begins."""


@pytest.fixture
def strike(tmp_path: Path) -> Iterator[Faults]:
    """Give what sets the clock of the programs that run with its variables."""
    with faults(tmp_path) as one:
        yield one


@pytest.fixture
def struck(home: Path, short_dir: Path, strike: Faults, sycl_store: SyclStore) -> Iterator[Daemon]:
    """Give a daemon with one store whose clock can be set."""
    with daemon(home, short_dir, **strike.variables) as one:
        with_store(one, sycl_store)
        yield one


def trashed(name: str, at: datetime) -> Trashed:
    key = EntryKey(f"1/2/3/{name}/0")
    store = Store(sycl.NAME, Path("/s"))
    return Trashed(TrashRef(name), store, key, at, EvictReason.UNUSED, "", False, "d", "1", 4096, True)  # noqa: FBT003


def test_the_trash_goes_for_its_age_by_a_clock_that_is_right() -> None:
    policy = Policy(trash_keep=WEEK)
    items = [
        trashed("expired", NOW - timedelta(days=8)),
        trashed("kept", NOW - timedelta(days=6)),
        trashed("future", NOW + timedelta(days=400)),
    ]
    assert plan_trash(items, (), 0, policy, NOW) == (Drop(items[0], DropReason.EXPIRED),)
    assert plan_trash(items, (), 0, policy, None) == ()
    # A machine that starts in 1970 throws nothing away.
    assert plan_trash(items, (), 0, policy, datetime(1970, 1, 1, tzinfo=UTC)) == ()
    # But who wants nothing kept keeps nothing, whatever the time.
    assert len(plan_trash(items, (), 0, Policy(trash_keep=0), None)) == 3


@pytest.mark.parametrize("jump", JUMPS)
def test_what_is_in_the_trash_outlives_a_clock_that_is_set(
    struck: Daemon, strike: Faults, sycl_store: SyclStore, jump: int
) -> None:
    for kernel in ("_ZTS1a", "_ZTS1b"):
        old(sycl_store, kernel)
    before = truth(sycl_store)
    struck.start()
    struck.ctl("evict")
    assert truth(sycl_store) == set()
    for offset in (jump, 0):
        strike.set_clock(offset)
        # What somebody asks for tidies the trash, too.
        struck.ctl("evict")
        assert len(struck.rows("trash", "list")) == 2, offset
    # Nor does a daemon throw it away that starts with a clock of long ago.
    assert struck.end() == 0
    if jump < 0:
        strike.set_clock(jump)
    struck.start()
    struck.ctl("evict")
    struck.ctl("trash", "restore", "--all")
    assert truth(sycl_store) == before == keys(struck)
    assert "Traceback" not in struck.log.read_text()


def test_events_stay_in_order_and_jobs_end_while_the_clock_is_set(
    struck: Daemon, strike: Faults, sycl_store: SyclStore
) -> None:
    for number in range(40):
        sycl_store.add(f"_ZTS3k{number:02}")
    struck.start()
    for number, offset in enumerate((*JUMPS, 0)):
        made = sycl_store.add(f"_ZTS2j{number}")
        strike.set_clock(offset)
        for words in (("scan", "--full"), ("verify", "--fix")):
            done = struck.ctl(*words, check=None)
            assert done.returncode in (0, 1, 65, 69), (words, done.stderr)
        assert made.bin.exists()
        assert keys(struck) == truth(sycl_store)
        assert {row["state"] for row in struck.rows("ls")} == {"ok"}
    numbers = [row["id"] for row in struck.rows("events")]
    assert numbers == sorted(numbers)  # type: ignore[type-var]
    assert len(set(numbers)) == len(numbers)
    assert not [job for job in struck.rows("jobs") if job["state"] == "running"]
    assert "clock-jumped" in problems(struck)
    assert "Traceback" not in struck.log.read_text()
