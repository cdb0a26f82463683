"""Links in the place of files: each is judged by what it leads to, and nobody else's file system is asked."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from xpucached.domain.defects import Defect, Effect
from xpucached.domain.stores import FoundStore, Store, StoreOrigin
from xpucached.kinds import fs, sycl

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.builders import SyclStore


def judged(root: Path) -> Defect | None:
    found = FoundStore(Store(sycl.NAME, root), StoreOrigin.FOUND, "test")
    (entry,) = sycl.scanner.scan(found, datetime.now(UTC), {}, None).entries
    return entry.defect


@pytest.mark.parametrize("how", ["relative", "absolute"])
@pytest.mark.parametrize(
    ("target", "source", "binary"),
    [
        ("file", sycl.defects.LINK, sycl.defects.LINK),
        ("pipe", sycl.defects.SRC_FIFO, sycl.defects.BIN_FIFO),
        ("directory", sycl.defects.SRC_NOT_A_FILE, sycl.defects.BIN_NOT_A_FILE),
        ("nothing", sycl.defects.DANGLING_LINK, sycl.defects.DANGLING_LINK),
        ("file/below", sycl.defects.DANGLING_LINK, sycl.defects.DANGLING_LINK),
    ],
)
def test_a_link_is_judged_by_what_it_leads_to(
    sycl_store: SyclStore, tmp_path: Path, how: str, target: str, source: Defect, binary: Defect
) -> None:
    slot = sycl_store.add()
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    for path, expected in ((slot.src, source), (slot.bin, binary)):
        path.rename(path.with_suffix(".aside"))
        there = tmp_path / target
        path.symlink_to(there if how == "absolute" else os.path.relpath(there, path.parent))
        assert judged(sycl_store.root) is expected
        path.unlink()
        path.with_suffix(".aside").rename(path)


@pytest.mark.parametrize(
    "target", ["/proc/version", "/dev/zero", "/proc/self/fd/0", "../../../../../../../../../../dev"]
)
def test_what_is_mounted_elsewhere_is_not_asked(sycl_store: SyclStore, target: str) -> None:
    slot = sycl_store.add()
    slot.src.unlink()
    slot.src.symlink_to(target)

    assert judged(sycl_store.root) == sycl.defects.LINK_AWAY
    assert sycl.defects.LINK_AWAY.effect is Effect.HANGS


@pytest.mark.parametrize("linked", ["src", "bin"])
def test_a_link_hides_nothing_of_its_neighbour(sycl_store: SyclStore, tmp_path: Path, linked: str) -> None:
    slot = sycl_store.add()
    link, other = (slot.src, slot.bin) if linked == "src" else (slot.bin, slot.src)
    link.rename(tmp_path / "aside")
    link.symlink_to(tmp_path / "aside")
    other.unlink()
    assert judged(sycl_store.root) == (sycl.defects.BIN_MISSING if linked == "src" else sycl.defects.SRC_MISSING)
    os.mkfifo(other)
    assert judged(sycl_store.root) == (sycl.defects.BIN_FIFO if linked == "src" else sycl.defects.SRC_FIFO)


def test_a_pipe_in_the_place_of_a_program_hangs(sycl_store: SyclStore) -> None:
    slot = sycl_store.add()
    slot.bin.unlink()
    os.mkfifo(slot.bin)

    assert judged(sycl_store.root) == sycl.defects.BIN_FIFO
    assert sycl.defects.BIN_FIFO.effect is Effect.HANGS


def test_a_root_that_became_a_loop_is_told_as_what_the_disk_says(tmp_path: Path) -> None:
    (tmp_path / "store").symlink_to(tmp_path / "store")
    (tmp_path / "link").symlink_to("/somewhere")
    with fs.folder(str(tmp_path)) as directory, pytest.raises(OSError, match="symbolic links"):
        fs.leads_to(directory, "link", str(tmp_path / "store"))
