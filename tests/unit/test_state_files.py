"""Small files of ours: written whole, for us alone, and read only if nobody else can have written them."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from xpucached import state_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_what_is_written_is_read_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    before = os.umask(0)
    try:
        # Whatever another life left half written is in nobody's way.
        (tmp_path / ".kept.json.new").symlink_to("kept.json")
        for data in (b"one", b"another"):
            state_files.write(path, data)
            assert state_files.read(path, 100) == data
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not (tmp_path / ".kept.json.new").is_symlink()


def test_what_is_too_large_is_for_its_reader_to_refuse(tmp_path: Path) -> None:
    state_files.write(tmp_path / "kept", b"12345")
    assert len(state_files.read(tmp_path / "kept", 3)) == 4


def _of_others(path: Path) -> None:
    path.write_bytes(b"x")
    path.chmod(0o620)


def _linked(path: Path) -> None:
    path.with_name("other").write_bytes(b"x")
    path.symlink_to("other")


def _pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize("make", [_of_others, _linked, _pipe])
def test_what_others_can_have_written_is_not_read(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "kept")
    with pytest.raises(OSError, match=r"kept"):
        state_files.read(tmp_path / "kept", 100)
