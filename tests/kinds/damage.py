"""Every way in which a SYCL entry gets damaged, as functions on a leaf, with the defect that the scan must name.

The rows are those of ``docs/kinds.md``; ``test_sycl_damage.py`` also shows each to a real runtime.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xpucached.domain.defects import Defect
from xpucached.domain.stores import EntryState
from xpucached.kinds import sycl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OLD = 3600


def _cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def _overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def _lock(leaf: Path, *, age: float) -> None:
    lock = leaf / "0.lock"
    lock.touch(mode=0o200)
    then = time.time() - age
    os.utime(lock, (then, then))


def _second_slot(leaf: Path) -> None:
    for path in list(leaf.iterdir()):
        if path.name.startswith("0"):
            shutil.copy2(path, leaf / path.name.replace("0", "1", 1))


def _only(leaf: Path, *names: str) -> None:
    for path in list(leaf.iterdir()):
        if path.name not in names:
            path.unlink()


def _instead(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def _zero_payload(leaf: Path) -> None:
    size = (leaf / "0.bin").stat().st_size
    _overwrite(leaf / "0.bin", 16, bytes(size - 16))


def _zero_end(leaf: Path) -> None:
    """Leave the length that was written, and zeros for the last page, as a power cut may."""
    size = (leaf / "0.bin").stat().st_size
    _overwrite(leaf / "0.bin", size - 100, bytes(100))


def _misplace(leaf: Path) -> None:
    """Change one byte inside the image: the path no longer is its hash."""
    path = leaf / "0.src"
    size = path.stat().st_size
    data = path.read_bytes()
    _overwrite(path, size - 4, bytes(byte ^ 0xFF for byte in data[-4:]))


def _truncate_and_grow(leaf: Path) -> None:
    _second_slot(leaf)
    _cut(leaf / "0.bin", 100)


def _gap(leaf: Path) -> None:
    _second_slot(leaf)
    _only(leaf, *[path.name for path in leaf.iterdir() if path.name.startswith("1")])


def _elsewhere(leaf: Path, name: str) -> None:
    target = leaf.parent.parent.parent.parent.parent / f"elsewhere-{name}"
    (leaf / name).rename(target)
    (leaf / name).symlink_to(target)


def _interrupt(leaf: Path, *names: str) -> None:
    """Leave a dead writer's lock and only these files."""
    _only(leaf, *names)
    _lock(leaf, age=OLD)


def _link(leaf: Path) -> None:
    _elsewhere(leaf, "0.bin")
    _elsewhere(leaf, "0.src")


def _link_to_a_pipe(leaf: Path) -> None:
    os.mkfifo(leaf.parent / "pipe")
    _instead(leaf / "0.src", lambda path: path.symlink_to("../pipe"))


def _link_to_nothing(leaf: Path) -> None:
    _only(leaf)
    for name in ("0.bin", "0.src"):
        (leaf / name).symlink_to("nowhere")


def _empty(leaf: Path) -> None:
    _only(leaf)
    (leaf / "0_access_time.txt").write_text("1700000000000000000")


@dataclass(frozen=True, slots=True)
class Row:
    """One way: what is done to a whole slot 0, and what the scan must say of each slot.

    ``hits`` and ``fails`` are what a real program then meets: at its first and at its second start.
    """

    name: str
    act: Callable[[Path], object]
    defects: dict[str, Defect | None]
    state: EntryState = EntryState.DEFECTIVE
    writes: tuple[int, int] = (0, 0)
    fails: bool = False
    hangs: bool = False
    older: tuple[tuple[int, int], ...] = ()  #: what 2024.2 writes, and 2025.0, where that is not the same

    def written_by(self, runtime: str) -> tuple[int, int]:
        """Return how many slots a program writes at its first and second start, with this runtime."""
        names = ("rt2024.2", "rt2025.0")
        return self.older[names.index(runtime)] if self.older and runtime in names else self.writes


ROWS = (
    Row("whole", lambda _: None, {"0": None}, EntryState.OK),
    Row("bin empty", lambda leaf: _cut(leaf / "0.bin", 0), {"0": sycl.defects.BIN_EMPTY}, writes=(1, 1)),
    Row("bin header only", lambda leaf: _cut(leaf / "0.bin", 16), {"0": sycl.defects.BIN_TRUNCATED}, writes=(1, 1)),
    Row("bin half a header", lambda leaf: _cut(leaf / "0.bin", 9), {"0": sycl.defects.BIN_TRUNCATED}, writes=(1, 1)),
    Row("bin cut", lambda leaf: _cut(leaf / "0.bin", 1000), {"0": sycl.defects.BIN_TRUNCATED}, writes=(1, 1)),
    Row(
        "bin is a directory",
        lambda leaf: _instead(leaf / "0.bin", lambda path: path.mkdir()),
        {"0": sycl.defects.BIN_NOT_A_FILE},
        writes=(1, 1),
    ),
    Row("bin is a pipe", lambda leaf: _instead(leaf / "0.bin", os.mkfifo), {"0": sycl.defects.BIN_FIFO}, hangs=True),
    Row("bin absent", lambda leaf: (leaf / "0.bin").unlink(), {"0": sycl.defects.BIN_MISSING}, writes=(1, 0)),
    Row(
        "bin length 2^36",
        lambda leaf: _overwrite(leaf / "0.bin", 8, (1 << 36).to_bytes(8, "little")),
        {"0": sycl.defects.BIN_LENGTH_ABSURD},
        writes=(1, 0),
    ),
    Row(
        "bin length 2^62",
        lambda leaf: _overwrite(leaf / "0.bin", 8, (1 << 62).to_bytes(8, "little")),
        {"0": sycl.defects.BIN_LENGTH_ABSURD},
        writes=(1, 0),
    ),
    Row("bin payload zeroed", _zero_payload, {"0": sycl.defects.BIN_PAYLOAD_DAMAGED}, fails=True),
    Row("bin with zeros at its end", _zero_end, {"0": sycl.defects.BIN_PAYLOAD_DAMAGED}, fails=True),
    Row(
        "bin section table broken",
        lambda leaf: _overwrite(leaf / "0.bin", 16 + 40, b"\xff" * 8),
        {"0": sycl.defects.BIN_PAYLOAD_DAMAGED},
        fails=True,
    ),
    Row(
        "bin longer", lambda leaf: _append(leaf / "0.bin", b"x" * 100), {"0": sycl.defects.BIN_TRAILING}, EntryState.OK
    ),
    Row(
        "bin count 0",
        lambda leaf: _overwrite(leaf / "0.bin", 0, (0).to_bytes(8, "little")),
        {"0": sycl.defects.BIN_COUNT_WRONG},
        older=((1, 1),) * 2,
    ),
    Row(
        "bin count 2",
        lambda leaf: _overwrite(leaf / "0.bin", 0, (2).to_bytes(8, "little")),
        {"0": sycl.defects.BIN_COUNT_WRONG},
        older=((1, 1),) * 2,
    ),
    Row("src empty", lambda leaf: _cut(leaf / "0.src", 0), {"0": sycl.defects.SRC_EMPTY}, writes=(1, 0)),
    Row("src cut in a length", lambda leaf: _cut(leaf / "0.src", 5), {"0": sycl.defects.SRC_TRUNCATED}, writes=(1, 0)),
    Row(
        "src cut in the device", lambda leaf: _cut(leaf / "0.src", 30), {"0": sycl.defects.SRC_TRUNCATED}, writes=(1, 0)
    ),
    Row(
        "src cut in the image", lambda leaf: _cut(leaf / "0.src", 600), {"0": sycl.defects.SRC_TRUNCATED}, writes=(1, 0)
    ),
    Row("src absent", lambda leaf: (leaf / "0.src").unlink(), {"0": sycl.defects.SRC_MISSING}, writes=(1, 0)),
    Row("src other content", _misplace, {"0": sycl.defects.MISPLACED}, writes=(1, 0)),
    Row(
        "src length absurd",
        lambda leaf: _overwrite(leaf / "0.src", 0, (1 << 62).to_bytes(8, "little")),
        {"0": sycl.defects.SRC_LENGTH_ABSURD},
        fails=True,
    ),
    Row(
        "src longer", lambda leaf: _append(leaf / "0.src", b"x" * 100), {"0": sycl.defects.SRC_TRAILING}, EntryState.OK
    ),
    Row("src is a pipe", lambda leaf: _instead(leaf / "0.src", os.mkfifo), {"0": sycl.defects.SRC_FIFO}, hangs=True),
    Row(
        "src is a directory",
        lambda leaf: _instead(leaf / "0.src", lambda path: path.mkdir()),
        {"0": sycl.defects.SRC_NOT_A_FILE},
        writes=(1, 0),
    ),
    Row("lock left, whole", lambda leaf: _lock(leaf, age=OLD), {"0": sycl.defects.STALE_LOCK}, writes=(1, 0)),
    Row("lock held, whole", lambda leaf: _lock(leaf, age=0), {"0": None}, EntryState.UNFINISHED, writes=(1, 0)),
    Row(
        "lock left, no files",
        _interrupt,
        {"0": sycl.defects.LOCK_ONLY},
        writes=(1, 1),
        older=((0, 0), (1, 1)),
    ),
    Row(
        "lock left, writer killed",
        lambda leaf: _interrupt(leaf, "0.bin"),
        {"0": sycl.defects.INTERRUPTED},
        writes=(1, 0),
    ),
    Row("only slot 1", _gap, {"1": sycl.defects.BEHIND_GAP}, writes=(1, 0)),
    Row("the same twice", _second_slot, {"0": None, "1": sycl.defects.DUPLICATE}, EntryState.OK),
    Row(
        "cut before a whole one",
        _truncate_and_grow,
        {"0": sycl.defects.BIN_TRUNCATED, "1": sycl.defects.SHADOWED},
        writes=(1, 1),
    ),
    Row("links", _link, {"0": sycl.defects.LINK}, EntryState.OK),
    Row("src links to a pipe", _link_to_a_pipe, {"0": sycl.defects.SRC_FIFO}, hangs=True),
    Row(
        "bin links to a directory",
        lambda leaf: _instead(leaf / "0.bin", lambda path: path.symlink_to("..")),
        {"0": sycl.defects.BIN_NOT_A_FILE},
        writes=(1, 1),
    ),
    Row(
        "link to nothing",
        _link_to_nothing,
        {"0": sycl.defects.DANGLING_LINK},
        writes=(1, 1),
    ),
    Row(
        "emptied by the runtime",
        _empty,
        {"0": sycl.defects.SKELETON},
        writes=(1, 0),
    ),
)
