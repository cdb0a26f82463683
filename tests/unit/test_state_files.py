"""Small files of ours: written whole, for us alone, and read only if nobody else can have written them."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from xpucached import state_files
from xpucached.bundle import trust
from xpucached.bundle.layout import LayoutReader
from xpucached.bundle.revocations import revocations
from xpucached.bundling import fleet
from xpucached.domain.fleet import DiffFleet
from xpucached.errors import BadBundle, NotFound, RegistryDenied
from xpucached.processes import serving
from xpucached.registry import accounts, reference

if TYPE_CHECKING:
    from collections.abc import Callable


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


def still_open(place: Path) -> list[str]:
    """Return what of a place this process has open."""
    found = []
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(one.readlink()))
    return [one for one in found if one.startswith(str(place))]


def test_a_directory_in_the_place_of_a_file_is_refused_with_words_and_closed(tmp_path: Path) -> None:
    for name in (
        "bundle/oci-layout",
        "hosts/one.json",
        "home/.docker/config.json",
        "keys/revoked",
        "requests",
        "state",
    ):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "keys").chmod(0o700)
    with pytest.raises(BadBundle, match="Is a directory"):
        LayoutReader(tmp_path / "bundle")
    (unread,) = fleet.diff(DiffFleet((tmp_path / "hosts",)), lambda *_: None).unreadable
    assert "Is a directory" in unread.why
    with pytest.raises(RegistryDenied, match="Is a directory"):
        accounts.account(reference.parse("localhost/a"), {"HOME": str(tmp_path / "home")})
    assert "Is a directory" in revocations([tmp_path / "keys"]).doubt
    with pytest.raises(NotFound, match="Is a directory"):
        trust._secret(tmp_path / "keys")
    with pytest.raises(serving.BadRequestsFile, match="Is a directory"):
        serving.read(str(tmp_path / "requests"), "")
    with pytest.raises(IsADirectoryError):
        state_files.read(tmp_path / "state", 10)
    assert still_open(tmp_path) == []
