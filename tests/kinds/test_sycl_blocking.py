"""Something stands where a program needs a directory: it is named, and moved aside with all that is in it."""

from __future__ import annotations

import os
import shutil
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kinds.test_sycl_damage import leaves, start
from xpucached.domain.defects import StoreFault
from xpucached.domain.stores import FoundStore, Store, StoreOrigin
from xpucached.kinds import sycl
from xpucached.kinds.sycl import blocking

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.builders import SyclStore
    from tests.support.runtimes import Runtime

pytestmark = pytest.mark.flow


def found(root: Path) -> FoundStore:
    return FoundStore(Store(sycl.NAME, root), StoreOrigin.FOUND, "test")


def faults(root: Path) -> tuple[StoreFault, ...]:
    return sycl.doctor.faults(found(root), datetime.now(UTC), None)


def notes(root: Path) -> tuple[str, ...]:
    return sycl.scanner.scan(found(root), datetime.now(UTC), {}, None).notes


def clear(root: Path) -> bool:
    return sycl.doctor.clear(Store(sycl.NAME, root), sycl.defects.BLOCKED, datetime.now(UTC), None)


def aside(root: Path) -> list[Path]:
    return sorted((root / ".xpucached.trash").glob("blocking-*"))


def listen(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


THINGS: dict[str, Callable[[Path], object]] = {
    "file": lambda path: path.write_text("mine"),
    "pipe": os.mkfifo,
    "socket": listen,
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a file": lambda path: path.symlink_to("/etc/passwd"),
}


@pytest.mark.parametrize("level", [1, 2, 3, 4])
@pytest.mark.parametrize("thing", THINGS)
def test_what_is_no_directory_is_named_and_moved_aside(sycl_store: SyclStore, level: int, thing: str) -> None:
    root = sycl_store.root
    sycl_store.add("_ZTS1k")
    assert faults(root) == ()
    place = (root.joinpath(*leaves(root)[0].relative_to(root).parts[:level])).with_name("12345678901234567890")
    THINGS[thing](place)
    before = place.lstat().st_ino

    assert faults(root) == (sycl.defects.BLOCKED,)
    assert notes(root) == (sycl.defects.BLOCKED.message,)
    assert clear(root)

    assert not os.path.lexists(place)
    assert [path.lstat().st_ino for path in aside(root)] == [before]
    assert (faults(root), notes(root)) == ((), ())


def test_what_blocks_nothing_stays(sycl_store: SyclStore, tmp_path: Path) -> None:
    root = sycl_store.root
    sycl_store.add("_ZTS1k")
    leaf = leaves(root)[0]
    moved = tmp_path / "elsewhere"
    shutil.copytree(leaf, moved)
    left = [root / "20261122", root / "notes.txt", leaf.parent / "readme", leaf / "12345678901234567890"]
    for path in left:
        path.write_text("mine")
    link = leaf.with_name("12345678901234567890")
    link.symlink_to(moved)

    assert faults(root) == ()
    assert clear(root)

    assert all(path.read_text() == "mine" for path in left)
    assert link.is_symlink()
    assert aside(root) == []


@pytest.mark.runtime
@pytest.mark.timeout(300)
def test_a_real_program_stores_again_when_nothing_blocks_it(runtime: Callable[[str], Runtime], tmp_path: Path) -> None:
    real = runtime("rt2025.2")
    root = tmp_path / "store"
    assert start(real, root)[:2] == (0, 1)
    leaf = leaves(root)[0]
    shutil.rmtree(leaf)
    leaf.write_text("mine")

    for _ in range(2):  # it is compiled each time, and cannot be kept
        assert start(real, root) == (0, 1, 0)
    assert faults(root) == (sycl.defects.BLOCKED,)
    assert clear(root)

    assert [path.read_text() for path in aside(root)] == ["mine"]
    assert start(real, root) == (0, 1, 0)
    assert start(real, root) == (0, 0, 1)


@pytest.mark.parametrize(
    ("path", "level"),
    [
        (("1",), True),
        (("1", "2"), True),
        (("ext_kernel_compiler",), True),
        (("1", "ext_kernel_compiler"), False),
        (("ext_kernel_compiler", "A" * 43), True),
        (("1", "A" * 43), False),
        (("A" * 43,), False),
        (("ext_kernel_compiler", "x"), False),
    ],
)
def test_the_runtime_makes_directories_of_these_names(path: tuple[str, ...], *, level: bool) -> None:
    assert blocking._is_level(path[-1], path[:-1]) is level
