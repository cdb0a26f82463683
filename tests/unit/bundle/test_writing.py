"""What lies beside while a bundle is made: nobody takes away what somebody works at, wherever that one is."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from xpucached.bundle import words
from xpucached.bundle.writing import LayoutWriter
from xpucached.domain.bundles import Compression
from xpucached.errors import AlreadyThere, DiskError, RequestError


def test_what_one_in_another_container_makes_stays_and_what_a_killed_one_left_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    dest = tmp_path / "there/bundle"
    left = dest.parent / f".{dest.name}.partial-1"
    (left / "xpucached.layout/blobs").mkdir(parents=True)
    with monkeypatch.context() as inside:
        # Nobody has this number here.
        inside.setattr(os, "getpid", lambda: 1 << 23)
        other = LayoutWriter(dest)
    with other, LayoutWriter(dest) as mine:
        assert not left.exists()
        other.put_file("index.json", b"{}")
        mine.finish()

    assert list(dest.parent.iterdir()) == [dest]


def test_another_directory_of_ours_that_somebody_gave_such_a_name_stays(tmp_path: Path) -> None:
    """As whoever may write where the bundle shall be can: the members of a group, or whose home it is."""
    mine = tmp_path / ".bundle.partial-1"
    (mine / "blobs").mkdir(parents=True)
    (mine / "blobs/file").touch()
    with LayoutWriter(tmp_path / "bundle") as layout:
        layout.finish()

    assert (mine / "blobs/file").exists()


@pytest.mark.parametrize("name", ["bundle", "bundle.tar", ""])
def test_what_takes_the_place_of_what_is_made_is_not_touched(name: str, tmp_path: Path) -> None:
    """It would be filled, emptied, and opened to all."""
    mine, there = tmp_path / "mine", tmp_path / "there"
    mine.mkdir(0o700)
    there.mkdir()
    for one in ("xpucached.layout/index.json", "index.json", "scratch/file"):
        (mine / one).parent.mkdir(exist_ok=True, parents=True)
        (mine / one).write_text("mine")
    with LayoutWriter(there / (name or "bundle")) as layout:
        (place,) = there.iterdir()
        place.rename(there / "away")
        place.symlink_to(mine)
        layout.put_file("index.json", b"{}")
        (layout.scratch / "file").touch()
        if name:
            layout.finish()

    assert sorted(path.read_text() for path in mine.rglob("*") if path.is_file()) == ["mine"] * 3
    assert mine.stat().st_mode & 0o777 == 0o700


def test_what_takes_the_place_of_what_was_just_made_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is open, as whoever waits for it can do in time."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "file").touch()
    mkdtemp = tempfile.mkdtemp

    def exchanged(**given: str) -> str:
        place = mkdtemp(**given)
        Path(place).rename(tmp_path / "away")
        mine.rename(place)
        return place

    monkeypatch.setattr(tempfile, "mkdtemp", exchanged)
    with pytest.raises(DiskError, match="took the place"):
        LayoutWriter(tmp_path / "bundle")
    assert [path.name for path in tmp_path.glob(".bundle.*/*")] == ["file"]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another user")
def test_nothing_is_made_in_a_directory_that_somebody_else_put_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who owns it could have any file of ours written over by a link in it."""
    mkdtemp = tempfile.mkdtemp

    def theirs(**given: str) -> str:
        place = mkdtemp(**given)
        os.chown(place, 65534, 65534)
        return place

    monkeypatch.setattr(tempfile, "mkdtemp", theirs)
    with pytest.raises(DiskError, match="took the place"):
        LayoutWriter(tmp_path / "bundle")


@pytest.mark.parametrize(
    ("limit", "most"), [("MOST_FILES", 4), ("LARGEST_FILE", 9), ("LARGEST_BLOB", 9), ("EXPANSION", 0)]
)
def test_a_layer_that_nobody_would_read_is_not_made(
    limit: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, limit, most)
    with LayoutWriter(tmp_path / "bundle") as layout:
        layer = layout.layer(Compression.GZIP, words.LAYER)
        with pytest.raises(RequestError, match="nobody would read a layer"):  # noqa: PT012 - at some of them
            for number in range(2):
                layer.add(f"sycl/{number}/0.bin", bytes(1 << 20))
            layer.finish()
    assert list(tmp_path.iterdir()) == [tmp_path / "home"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_tar_file_is_made_where_there_are_no_hard_links(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on memory sticks: all was written there, and then refused."""

    def link(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    dest = tmp_path / "there/bundle.tar"
    dest.parent.mkdir()
    with LayoutWriter(dest) as layout, LayoutWriter(dest) as other:
        layout.put_file("index.json", b"{}")
        layout.finish()
        made = dest.read_bytes()
        with pytest.raises(AlreadyThere, match="is there already"):
            other.finish()

    assert [path.read_bytes() for path in dest.parent.iterdir()] == [made]
    assert b"index.json" in made
