"""Every row of the damage table, healed: a real program before and after, on both generations of the runtime."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from tests.kinds.damage import ROWS, Row
from tests.kinds.test_sycl_damage import damaged, leaves, look, start, written
from xpucached.domain.defects import Defect, Effect
from xpucached.domain.plans import EvictReason
from xpucached.domain.stores import EntryState
from xpucached.domain.trash import RepairAction, TrashLabel
from xpucached.kinds import sycl
from xpucached.planning.repair import plan_mending

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.runtimes import Runtime

# The fixture comes with the tests that show what the damage costs.
assert written is not None

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
        assert all(sycl.remover.mend(staying).values())
        assert all(sycl.remover.remove(going, notes).values())
        done += len(repairs)
    pytest.fail("it never ends")


@pytest.mark.runtime
@pytest.mark.parametrize("name", ["rt2024.2", "rt2026.2"])  # one that honours the count, one that does not
@pytest.mark.parametrize("row", HEALED, ids=lambda row: row.name)
def test_every_damage_is_healed(
    written: Callable[[str], Path], runtime: Callable[[str], Runtime], tmp_path: Path, row: Row, name: str
) -> None:
    root, leaf = damaged(written(name), tmp_path, row)
    sick = tmp_path / "sick"
    shutil.copytree(root, sick, symlinks=True) if not row.hangs else None
    harmless = all(defect is None or defect.effect is Effect.HARMLESS for defect in row.defects.values())

    assert (mend(root) == 0) == harmless

    real = runtime(name)
    first, second = start(real, root), start(real, root)
    assert (first[0], second[0]) == (0, 0)
    assert second[1] == 0, "it compiles at every start"
    assert second[2] > 0
    again = look(root)
    assert [one for one in again.entries if one.state is not EntryState.OK] == []
    assert not list(root.glob("[0-9]*/**/*.lock"))
    # What was whole and only hidden is used again at once.
    if set(row.defects.values()) & {Defect.STALE_LOCK, Defect.BEHIND_GAP, Defect.SHADOWED} or harmless:
        assert first[1] == 0
    assert leaf in leaves(root)
    if harmless:
        return
    # And before: the same program on the same damage.
    if row.hangs:
        root, _ = damaged(written(name), tmp_path / "again", row)
        with pytest.raises(subprocess.TimeoutExpired):
            start(real, root, seconds=6)
        return
    ill = start(real, sick)
    assert (ill[0] != 0) == row.fails
