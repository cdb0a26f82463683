"""What is remembered of the driver's libraries counts for the very same file only."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from xpucached.bundling import library_digests
from xpucached.bundling.library_digests import NAME, LibraryDigests
from xpucached.domain.host import DriverFile
from xpucached.host.compiler_files import compiler_files

if TYPE_CHECKING:
    from collections.abc import Callable

OTHER = "sha256:" + "0" * 64


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libcompiler.so"
    path.write_bytes(b"code")
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where it is remembered; the library counts as older than it is."""
    monkeypatch.setattr(library_digests, "_SETTLED", 0)
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


def ident(library: Path, folder: Path | None) -> str:
    file = DriverFile(library, library, None, 4, datetime.now(UTC), None, None)
    (found,) = compiler_files((file,), LibraryDigests(folder))
    return found.id


def digest(path: Path) -> str:
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def planted(library: Path, folder: Path) -> None:
    """Have a digest remembered that shows where it comes from."""
    LibraryDigests(folder).keep(library.stat(), OTHER)


def test_a_file_that_is_the_same_is_not_read_again(library: Path, folder: Path) -> None:
    assert ident(library, folder) == digest(library)
    assert list(json.loads((folder / NAME).read_bytes()).values()) == [digest(library)]
    planted(library, folder)
    assert ident(library, folder) == OTHER
    assert [path.name for path in folder.iterdir()] == [NAME]


def _written(path: Path) -> None:
    status = path.stat()
    # The clock of a file system may tick slowly.
    while path.stat().st_ctime_ns == status.st_ctime_ns:
        path.write_bytes(b"CODE")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _replaced(path: Path) -> None:
    status = path.stat()
    path.with_name("new").write_bytes(b"CODE")
    path.with_name("new").rename(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("change", [_written, _replaced])
def test_a_file_that_changed_is_read_again_whatever_its_time_says(
    change: Callable[[Path], None], library: Path, folder: Path
) -> None:
    planted(library, folder)
    change(library)
    assert ident(library, folder) == digest(library)


def test_what_changed_just_now_is_not_remembered(library: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_digests, "_SETTLED", 1 << 60)
    assert ident(library, folder) == digest(library)
    assert list(folder.iterdir()) == []


def test_without_a_folder_nothing_is_made(library: Path, folder: Path) -> None:
    folder.rmdir()
    assert ident(library, folder) == ident(library, None) == digest(library)
    assert not folder.exists()


def _by_others(path: Path) -> None:
    path.chmod(0o666)


def _damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _nonsense(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"sha256:", b"sha255:"))


def _link(path: Path) -> None:
    path.rename(path.with_name("aside"))
    path.symlink_to("aside")


@pytest.mark.parametrize("spoil", [_by_others, _damaged, _nonsense, _link])
def test_a_memory_that_cannot_be_trusted_counts_for_nothing(
    spoil: Callable[[Path], None], library: Path, folder: Path
) -> None:
    planted(library, folder)
    spoil(folder / NAME)
    assert ident(library, folder) == digest(library)


def test_the_newest_of_too_many_are_remembered(tmp_path: Path, folder: Path) -> None:
    many = [tmp_path / f"lib{number}.so" for number in range(library_digests._MOST + 3)]
    for path in many:
        path.write_bytes(path.name.encode())
        assert ident(path, folder) == digest(path)
    assert list(json.loads((folder / NAME).read_bytes()).values()) == [digest(path) for path in many[3:]]
