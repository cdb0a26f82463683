"""The damage table: what the scan says of each kind of damage, and that a real runtime meets just that."""

from __future__ import annotations

import functools
import os
import shutil
import stat
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kinds.damage import ROWS, Row
from tests.kinds.meeting import fill, meet
from tests.support.runtimes import told
from xpucached.domain.defects import Effect, RepairAction
from xpucached.domain.stores import Entry, EntryState, FoundStore, Scan, Store, StoreOrigin, StoreState
from xpucached.kinds import sycl
from xpucached.kinds.sycl.defects import Generation, effect_for
from xpucached.kinds.sycl.runtimes import generation
from xpucached.planning.repair import plan_mending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.builders import SyclStore
    from tests.support.runtimes import Runtime

pytestmark = pytest.mark.flow

PROGRAM = """
import sys
try:
    import dpctl.tensor as xp
    xp.full
except Exception:
    import dpnp as xp
a = xp.arange(1, 65, dtype="float32")
print(float(xp.asnumpy(a).sum()))
"""


def look(root: Path) -> Scan:
    found = FoundStore(Store(sycl.NAME, root), StoreOrigin.FOUND, "test")
    return sycl.scanner.scan(found, datetime.now(UTC), {}, None)


@functools.cache
def without_cache(runtime: Runtime) -> str:
    """Return what the program prints where nothing is cached."""
    variables = runtime.environment(runtime.root) | {"SYCL_CACHE_PERSISTENT": "0"}
    command = [str(runtime.python), "-W", "ignore", "-c", PROGRAM]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout


def start(runtime: Runtime, root: Path, seconds: float = 30) -> tuple[int, int, int]:
    """Run a real program; give its exit status, and how many entries it wrote and used."""
    environment = runtime.environment(root, trace=True, plain=True)
    done = subprocess.run(
        [runtime.python, "-W", "ignore", "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    created, used = told(root, done.stderr.splitlines())
    if done.returncode == 0:
        # An old driver may calculate wrongly on a CPU that is newer than it, whatever lies in the cache.
        assert "2080.0" in done.stdout or done.stdout == without_cache(runtime), done.stdout
    return done.returncode, len(created), len(used)


def leaves(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.glob("[0-9]*/*/*/*/0.src"))


@pytest.fixture(scope="module")
def written(
    runtime: Callable[[str], Runtime], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Path]]:
    """Return a store that a real program has just filled, by runtime; made once."""
    made: dict[str, Path] = {}
    home = tmp_path_factory.mktemp("written")

    def by_name(name: str) -> Path:
        if name not in made:
            root = home / name
            os.environ.setdefault("HOME", str(home))
            status, created, _ = start(runtime(name), root)
            assert status == 0
            assert created
            made[name] = root
        return made[name]

    yield by_name
    shutil.rmtree(home)


def damaged(whole: Path, tmp_path: Path, row: Row) -> tuple[Path, Path]:
    root = tmp_path / "store"
    shutil.copytree(whole, root, symlinks=True)
    leaf = leaves(root)[0]
    row.act(leaf)
    return root, leaf


def snapshot(root: Path) -> dict[str, tuple[int, int, int, int, int, bytes]]:
    """Everything about every file that a reader could change."""
    result = {}
    for path in [root, *sorted(root.rglob("*"))]:
        status = path.lstat()
        # The runtime makes its locks readable for nobody; they are empty.
        readable = path.is_file() and not path.is_symlink() and path.suffix != ".lock"
        content = path.read_bytes() if readable else b""
        if content:
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        result[str(path)] = (
            status.st_mode,
            status.st_size,
            status.st_mtime_ns,
            status.st_ino,
            status.st_nlink,
            content,
        )
    return result


def pipes_of(leaf: Path) -> set[Path]:
    return {path for path in leaf.iterdir() if stat.S_ISFIFO(path.stat().st_mode)}


def slots_of(scan: Scan, root: Path, leaf: Path) -> dict[str, Entry]:
    prefix = leaf.relative_to(root).as_posix() + "/"
    return {entry.id.key.removeprefix(prefix): entry for entry in scan.entries if entry.id.key.startswith(prefix)}


@pytest.mark.runtime
@pytest.mark.parametrize("name", ["rt2025.2", "rt2026.2"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_scan_names_the_damage_and_changes_nothing(
    written: Callable[[str], Path], tmp_path: Path, row: Row, name: str
) -> None:
    root, leaf = damaged(written(name), tmp_path, row)
    before = snapshot(root)
    scan = look(root)
    assert snapshot(root) == before
    assert scan.state is StoreState.OK
    slots = slots_of(scan, root, leaf)
    assert {slot: entry.defect for slot, entry in slots.items()} == row.defects
    first = slots[min(slots)]
    assert first.state is row.state
    if first.defect:
        assert (first.defect.effect is Effect.HARMLESS) == (first.state is EntryState.OK)
    others = [entry for entry in scan.entries if entry not in slots.values()]
    assert all(entry.state is EntryState.OK and entry.defect is None for entry in others)


@pytest.mark.runtime
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["rt2024.2", "rt2025.1", "rt2025.2", "rt2025.3", "rt2026.2"])
def test_real_programs_meet_what_the_table_says(
    runtime: Callable[[str], Runtime], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    """Every row in two starts of one program: each is done to an entry of its own."""
    real = runtime(name)
    assert generation(next(real.lib.glob("libsycl.so.?"))) is generation_of(name)
    root = tmp_path / "store"
    own = dict(zip(sorted(fill(real, root, tmp_path_factory).items()), ROWS, strict=False))
    assert len(own) == len(ROWS), "too few programs for the table"
    for (_, leaf), row in own.items():
        row.act(leaf)
    pipes = {path for (_, leaf), row in own.items() if row.hangs for path in pipes_of(leaf)}
    calls = [call for call, _ in own]
    (first, waited), (second, _) = meet(real, root, calls, pipes), meet(real, root, calls, pipes)
    assert waited == pipes
    for (call, _), row in own.items():
        then, again = first[call], second[call]
        assert (then.failed, again.failed) == (row.fails, row.fails), (row.name, then, again)
        if not row.fails and not row.hangs:
            assert (len(then.created), len(again.created)) == row.written_by(name), row.name
            # And the effect says so: what is compiled at the second start is compiled at every start.
            readers = frozenset({generation_of(name)})
            effects = {effect_for(defect, readers) for defect in row.defects.values() if defect is not None}
            # (A runtime up to 2025.0 claims that it uses what it could not read.)
            cold = bool(again.created) or not again.used
            assert (Effect.GROWS in effects) == cold, row.name


@pytest.mark.runtime
@pytest.mark.parametrize("name", ["rt2024.2", "rt2025.1", "rt2025.2", "rt2025.3", "rt2026.2"])
def test_a_program_that_the_store_cannot_take_is_told_as_compiled_at_each_start(
    written: Callable[[str], Path], runtime: Callable[[str], Runtime], tmp_path: Path, name: str
) -> None:
    root = tmp_path / "store"
    shutil.copytree(written(name), root, symlinks=True)
    leaf = min(root.glob("*/*/*/*/0.src")).parent
    shutil.rmtree(leaf)
    leaf.touch()
    key = str(leaf.relative_to(root) / "0")
    for _ in range(2):
        command = [str(runtime(name).python), "-W", "ignore", "-c", PROGRAM]
        variables = runtime(name).environment(root, trace=True)
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
        created, used = told(root, done.stderr.splitlines())
        assert key in created - used, done.stderr


@pytest.mark.runtime
@pytest.mark.parametrize("name", ["rt2024.2", "rt2025.1", "rt2025.2", "rt2025.3", "rt2026.2"])
def test_a_program_that_does_without_the_cache_says_so(
    runtime: Callable[[str], Runtime], tmp_path: Path, name: str
) -> None:
    root = tmp_path / "store"
    command = [str(runtime(name).python), "-W", "ignore", "-c", PROGRAM]
    said = {}
    for off in ("0", "1"):
        variables = {**runtime(name).environment(root, trace=True), "SYCL_CACHE_PERSISTENT": off}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
        said[off] = done.stderr.splitlines()
    ours, other = Store(sycl.NAME, root), Store(sycl.NAME, tmp_path / "stor")
    assert "with the cache off" in sycl.trace.unkept([ours], said["0"])
    assert sycl.trace.unkept([other, ours], said["1"]) == ""
    assert f"elsewhere: {root}/" in sycl.trace.unkept([other], said["1"])


def generation_of(name: str) -> Generation:
    return Generation.UP_TO_2025_0 if name in {"rt2024.2", "rt2025.0"} else Generation.FROM_2025_1


def test_what_an_unknown_runtime_meets_is_the_worst() -> None:
    assert sycl.defects.BIN_COUNT_WRONG.effect is Effect.GROWS
    assert effect_for(sycl.defects.BIN_COUNT_WRONG, {Generation.FROM_2025_1}) is Effect.HARMLESS
    assert effect_for(sycl.defects.BIN_COUNT_WRONG, set(Generation)) is Effect.GROWS


@pytest.mark.parametrize(
    "readers",
    [
        (),
        (Generation.UP_TO_2025_0,),
        (Generation.FROM_2025_1,),
        tuple(Generation),
    ],
)
def test_who_reads_a_store_decides_what_a_wrong_count_costs(
    sycl_store: SyclStore, readers: tuple[Generation, ...]
) -> None:
    made = sycl_store.add("_ZTS1k")
    made.bin.write_bytes((2).to_bytes(8, "little") + made.bin.read_bytes()[8:])
    found = FoundStore(Store(sycl.NAME, sycl_store.root), StoreOrigin.FOUND, "test", frozenset(readers))
    (entry,) = sycl.scanner.scan(found, datetime.now(UTC), {}, None).entries
    harmless = readers == (Generation.FROM_2025_1,)
    assert entry.defect == sycl.defects.BIN_COUNT_WRONG
    assert entry.state is (EntryState.OK if harmless else EntryState.DEFECTIVE)
    assert entry.effect is (Effect.HARMLESS if harmless else Effect.GROWS)
    (repair,) = plan_mending([entry])
    assert (repair.action is RepairAction.LEAVE) == harmless
