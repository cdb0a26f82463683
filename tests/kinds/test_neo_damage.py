"""Damage, shown to the GPU's real driver: what each costs a program, and that it runs once the damage is removed.

Compiling and caching are real on a simulated device; kernels are not executed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kinds import fakes
from tests.kinds.test_neo_store import DAMAGE, RIGHTS
from tests.support.users import mere_user
from xpucached.domain.defects import Effect
from xpucached.domain.stores import FoundStore, Store, StoreOrigin
from xpucached.kinds.neo import defects, doctor, layout, scanner, totals
from xpucached.kinds.neo import kind as neo

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.runtimes import SimulatedGpu
    from xpucached.domain.defects import Defect
    from xpucached.domain.stores import Entry

pytestmark = pytest.mark.runtime

TEXT = fakes.NEO / "recorded" / "14393921d7ce9d06.input"
SPIRV = fakes.NEO / "recorded" / "fda88f9b82d687e4.input"


class Program:
    """A program that has two device programs built, one by OpenCL and one by Level Zero, and its cache."""

    def __init__(self, gpu: SimulatedGpu, place: Path) -> None:
        self.gpu = gpu
        self.root = place / "neo_compiler_cache"
        self.text = place / "noinc.cl"
        self.text.write_bytes(TEXT.read_bytes().rstrip(b"\0"))
        self.root.mkdir()
        self.found = FoundStore(Store(neo.KIND.name, self.root), StoreOrigin.FOUND, "test")
        assert self.run() == "miss"
        assert self.run() == "hit"

    def run(self, options: str = "", *, mere: bool = False) -> str:
        """Run it; say whether it found all that it looked for, failed, or waited for ever.

        With ``mere`` it may not read what its user may not.
        """
        for path in self.root.rglob("stats"):
            path.unlink()
        child = self.gpu.start([("text", self.text, options), ("ze", SPIRV, options)], self.root, mere=mere)
        try:
            said, _ = child.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            return "hang"
        if child.returncode or said.split() != ["0", "0"]:
            return "fail"
        told = totals.lookups((self.root / "stats").read_bytes())
        assert told is not None
        return {0: "hit", 1: "half", 2: "miss"}[told.misses]

    def files(self) -> list[Path]:
        return sorted(self.root.rglob("*.*_cache"))

    def entries(self) -> list[Entry]:
        now = datetime.now(UTC) + timedelta(hours=1)
        return [one for part in scanner.parts(self.found, now, (), None) for one in part.entries]

    @property
    def exact(self) -> bool:
        """Whether the driver's own number is the sum of what is there."""
        size = sum(path.stat().st_size for path in self.files())
        return totals.total((self.root / layout.TOTAL).read_bytes()) == size


@pytest.fixture(scope="module")
def warm(gpu: SimulatedGpu, tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(gpu, tmp_path_factory.mktemp("warm"))


@pytest.fixture
def program(warm: Program, tmp_path: Path) -> Program:
    """Return the program with a cache of its own that is warm."""
    made = object.__new__(Program)
    made.gpu, made.root, made.text = warm.gpu, tmp_path / "neo_compiler_cache", warm.text
    shutil.copytree(warm.root, made.root)
    made.found = FoundStore(Store(neo.KIND.name, made.root), StoreOrigin.FOUND, "test")
    return made


MET: dict[Effect, tuple[str, str]] = {
    Effect.HARMLESS: ("hit", "hit"),
    Effect.GROWS: ("miss", "miss"),
    Effect.ONCE: ("miss", "hit"),
    Effect.DEAD: ("miss", "hit"),  # another one is written where it is looked for
    Effect.FAILS: ("fail", "fail"),
    Effect.UNKNOWN: ("miss", "miss"),  # of a link to a device
}
"""What two starts of the program meet."""


@pytest.mark.parametrize(
    ("how", "defect"),
    [row[1:] for row in DAMAGE if row[0] != "pipe"],
    ids=[row[0] for row in DAMAGE if row[0] != "pipe"],
)
def test_the_driver_meets_damage_as_the_table_says_and_what_is_removed_is_healed(
    program: Program, how: Callable[[Path], object], defect: Defect
) -> None:
    for path in program.files():
        how(path)
    broken = program.entries()
    assert {one.defect for one in broken} == {defect}
    assert (program.run(), program.run()) == MET[defect.effect]
    if not defect.repairs or defect.effect is Effect.ONCE:
        return
    keys = {one.id.key for one in broken}
    again = [one for one in program.entries() if one.id.key in keys]
    assert set(neo.KIND.remover.remove(again).values()) == {True}
    program.run()
    assert program.run() == "hit"
    doctor.clear(program.found.store, defects.TOTAL_HIGH, datetime.now(UTC), None)
    assert program.exact


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to somebody else")
@pytest.mark.parametrize(("how", "defect"), [row[1:] for row in RIGHTS], ids=[row[0] for row in RIGHTS])
def test_what_is_closed_or_somebody_else_s_is_met_as_the_table_says_and_healed(
    program: Program, how: Callable[[Path], object], defect: Defect
) -> None:
    for path in program.files():
        how(path)
    with mere_user():
        broken = program.entries()
        assert {one.defect for one in broken} == {defect}
        assert (program.run(mere=True), program.run(mere=True)) == MET[defect.effect]
        if not defect.repairs:
            return
        assert set(neo.KIND.remover.remove(broken).values()) == {True}
        program.run(mere=True)
        assert program.run(mere=True) == "hit"
    doctor.clear(program.found.store, defects.TOTAL_HIGH, datetime.now(UTC), None)
    assert program.exact


def test_a_pipe_makes_the_program_wait_until_it_is_removed(program: Program) -> None:
    pipe = program.files()[0]
    pipe.unlink()
    os.mkfifo(pipe)
    child = program.gpu.start([("text", program.text, ""), ("ze", SPIRV, "")], program.root)
    end = time.monotonic() + 60
    while True:
        assert time.monotonic() < end
        # A writer that finds a reader there is proof that the program waits.
        try:
            writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.05)
            continue
        break
    child.kill()
    child.communicate()
    os.close(writer)
    (found,) = [one for one in program.entries() if one.defect == defects.FIFO]
    assert neo.KIND.remover.remove([found]) == {found.id: True}
    program.run()
    assert program.run() == "hit"


@pytest.mark.parametrize("surplus", [1 << 31, -5000])
def test_a_wrong_total_is_put_right(program: Program, surplus: int) -> None:
    total = program.root / layout.TOTAL
    total.write_bytes(totals.total_bytes(totals.total(total.read_bytes()) + surplus))
    program.run("-DNEW=1" if surplus < 0 else "")
    (fault,) = doctor.faults(program.found, datetime.now(UTC), None)
    assert fault == (defects.TOTAL_OVER if surplus > 0 else defects.TOTAL_LOW)
    assert doctor.clear(program.found.store, fault, datetime.now(UTC), None)
    assert program.exact
    program.run("-cl-mad-enable")
    assert program.run("-cl-mad-enable") == "hit"
    assert program.exact
    assert program.run() == "hit"


def test_a_total_above_the_limit_keeps_nothing_and_one_that_is_no_file_lets_nothing_be_written(
    program: Program,
) -> None:
    total = program.root / layout.TOTAL
    before = total.read_bytes()
    total.write_bytes(totals.total_bytes(1 << 31))
    program.run("-cl-mad-enable")
    assert len(program.files()) == 1
    total.unlink()
    total.mkdir()
    program.run("-cl-mad-enable")
    assert program.run("-cl-mad-enable") != "hit"
    assert doctor.clear(program.found.store, defects.TOTAL_BLOCKED, datetime.now(UTC), None)
    program.run("-cl-mad-enable")
    assert program.run("-cl-mad-enable") == "hit"
    assert program.exact
    assert total.read_bytes() != before


def test_entries_go_and_come_back_beside_programs_that_write(program: Program) -> None:
    jobs = [("text", program.text, f"-DN={number}") for number in range(8)]
    jobs += [("ze", SPIRV, f"-cl-mad-enable -DN={number}") for number in range(20)]
    builders = [program.gpu.start(some, program.root) for some in (jobs, jobs[::-1])]
    gone = 0
    while any(one.poll() is None for one in builders):
        for entry in program.entries():
            gone += neo.KIND.remover.remove([entry])[entry.id]
        time.sleep(0.01)
    for one in builders:
        said, _ = one.communicate()
        assert said.split() == ["0"] * len(jobs)
    assert gone > 0
    assert program.exact
    assert not [path for path in program.root.iterdir() if layout.TEMPORARY.match(path.name)]
