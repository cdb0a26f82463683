"""Every row of the damage table, healed: a real program before and after, on both generations of the runtime."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from tests.kinds.damage import ROWS, Row
from tests.kinds.test_sycl_damage import damaged, leaves, look, start, written
from xpucached import planning
from xpucached.domain import Effect, EntryState, EvictReason, Flaw, MendAction, Note
from xpucached.kinds import sycl

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
        remedies = [one for one in planning.plan_mending(look(root).entries) if one.action is not MendAction.LEAVE]
        if not remedies:
            return done
        staying = [one for one in remedies if one.action in {MendAction.UNLOCK, MendAction.CLOSE_GAP}]
        going = [one.entry for one in remedies if one not in staying]
        now = datetime.now(UTC)
        notes = {one.id: Note(now, EvictReason.FLAWED, "damaged") for one in going}
        assert all(sycl.mend(staying).values())
        assert all(sycl.remove(going, notes).values())
        done += len(remedies)
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
    harmless = all(flaw is None or flaw.effect is Effect.HARMLESS for flaw in row.flaws.values())

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
    if set(row.flaws.values()) & {Flaw.STALE_LOCK, Flaw.BEHIND_GAP, Flaw.SHADOWED} or harmless:
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
