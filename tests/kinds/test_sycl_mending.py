"""Every row of the damage table, healed: a real program before and after, on both generations of the runtime."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from tests.kinds.damage import ROWS, Row
from tests.kinds.meeting import Met, fill, meet
from tests.kinds.test_sycl_damage import leaves, look
from xpucached.domain.defects import Effect, RepairAction
from xpucached.domain.plans import EvictReason
from xpucached.domain.stores import Entry, EntryState
from xpucached.domain.trash import TrashLabel
from xpucached.kinds import sycl
from xpucached.planning.repair import plan_mending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.runtimes import Runtime

pytestmark = pytest.mark.flow

HEALED = [row for row in ROWS if row.state is not EntryState.UNFINISHED]


def mend(root: Path) -> int:
    """Do as `verify --fix` does, until nothing is left to do; give how much was done."""
    done = 0
    for _ in range(8):
        repairs = [one for one in plan_mending(look(root).entries) if one.action is not RepairAction.LEAVE]
        if not repairs:
            return done
        staying = [one for one in repairs if one.action in {RepairAction.UNLOCK, RepairAction.CLOSE_GAP}]
        going = [one.entry for one in repairs if one not in staying]
        now = datetime.now(UTC)
        notes = {one.id: TrashLabel(now, EvictReason.DEFECTIVE, "damaged") for one in going}
        assert all(sycl.doctor.mend(staying).values())
        assert all(sycl.remover.remove(going, notes).values())
        done += len(repairs)
    pytest.fail("it never ends")


@dataclass(frozen=True, slots=True)
class Healed:
    """What became of one row, done to an entry of its own in a store where every row was done and healed."""

    leaf: Path
    repaired: int
    first: Met  #: what it met at its first start after the healing
    second: Met


@dataclass(frozen=True, slots=True)
class Ward:
    """A store in which every row was done and healed."""

    root: Path
    entries: tuple[Entry, ...]
    by_row: dict[str, Healed]


def heal(real: Runtime, root: Path, factory: pytest.TempPathFactory) -> Ward:
    """Do every row to an entry of its own and heal it; start a real program twice afterwards.

    What one meets at the damage itself, `test_sycl_damage` shows.
    """
    own = list(zip(sorted(fill(real, root, factory).items()), HEALED, strict=False))
    assert len(own) == len(HEALED), "too few programs for the table"
    calls = [call for (call, _), _ in own]
    repaired = {}
    for (call, leaf), row in own:
        row.act(leaf)
        repaired[call] = mend(root)
    first, second = meet(real, root, calls)[0], meet(real, root, calls)[0]
    by_row = {row.name: Healed(leaf, repaired[call], first[call], second[call]) for (call, leaf), row in own}
    return Ward(root, look(root).entries, by_row)


@pytest.fixture(scope="module")
def ward(
    runtime: Callable[[str], Runtime], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Ward]]:
    """Return what became of every row, by runtime; made once."""
    made: dict[str, Ward] = {}
    home = tmp_path_factory.mktemp("ward")

    def by_name(name: str) -> Ward:
        if name not in made:
            (home / name).mkdir()
            made[name] = heal(runtime(name), home / name / "store", tmp_path_factory)
        return made[name]

    yield by_name
    shutil.rmtree(home)


@pytest.mark.runtime
@pytest.mark.parametrize("name", ["rt2024.2", "rt2026.2"])  # one that honours the count, one that does not
@pytest.mark.parametrize("row", HEALED, ids=lambda row: row.name)
def test_every_damage_is_healed(ward: Callable[[str], Ward], row: Row, name: str) -> None:
    store = ward(name)
    one = store.by_row[row.name]
    harmless = all(defect is None or defect.effect is Effect.HARMLESS for defect in row.defects.values())
    assert (one.repaired == 0) == harmless

    assert (one.first.failed, one.second.failed) == (False, False), (one.first, one.second)
    assert not one.second.created, "it compiles at every start"
    assert one.second.used
    # What was whole and only hidden is used again at once.
    if (
        set(row.defects.values()) & {sycl.defects.STALE_LOCK, sycl.defects.BEHIND_GAP, sycl.defects.SHADOWED}
        or harmless
    ):
        assert not one.first.created
    assert one.leaf in leaves(store.root)


@pytest.mark.runtime
@pytest.mark.parametrize("name", ["rt2024.2", "rt2026.2"])
def test_healed_stores_hold_nothing_damaged(ward: Callable[[str], Ward], name: str) -> None:
    store = ward(name)
    assert [entry for entry in store.entries if entry.state is not EntryState.OK] == []
    assert not list(store.root.glob("[0-9]*/**/*.lock"))
