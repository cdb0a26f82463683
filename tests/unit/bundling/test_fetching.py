"""Two who fetch at the same time: neither takes away what the other one collects."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import bundles
from xpucached.bundle import members
from xpucached.bundle.layout import Descriptor
from xpucached.bundle.writing import LayoutWriter
from xpucached.bundling import fetching, registries
from xpucached.bundling.staging import staging
from xpucached.errors import AlreadyThere, BadBundle, Conflict, DiskError
from xpucached.registry import part


def test_who_comes_second_leaves_what_the_first_one_collects(tmp_path: Path) -> None:
    with staging(tmp_path / "bundle") as place:
        with pytest.raises(Conflict), staging(tmp_path / "bundle"):
            pass
        assert place.is_dir()


@pytest.mark.parametrize("names", [("file",), ("lock", "file"), ("oci-layout", "index.json")])
def test_another_directory_of_ours_that_somebody_gave_such_a_name_is_not_pulled_into(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    """As whoever may write where the bundle shall be can: the members of a group, or whose home it is."""
    mine = tmp_path / ".bundle.pulling"
    mine.mkdir()
    for name in names:
        (mine / name).touch()
    with pytest.raises(Conflict, match="something else"), staging(tmp_path / "bundle"):
        pass
    assert {path.name for path in mine.iterdir()} == {*names}


@pytest.mark.parametrize("error", [BadBundle, KeyboardInterrupt, None])
@pytest.mark.parametrize("what", ["link", "directory"])
def test_what_takes_the_place_of_what_is_pulled_is_not_touched(
    what: str, error: type[BaseException] | None, tmp_path: Path
) -> None:
    """By whoever may write where the bundle shall be: it would be written to, and removed in the end."""
    place, mine = tmp_path / ".bundle.pulling", tmp_path / "mine"
    (mine / "blobs/sha256").mkdir(parents=True)
    (mine / "blobs/sha256/file").touch()
    with contextlib.suppress(BadBundle, KeyboardInterrupt), staging(tmp_path / "bundle") as inside:
        place.rename(tmp_path / "away")
        if what == "link":
            place.symlink_to(mine)
        else:
            mine.rename(place)
        (inside / "blobs/sha256/other").touch()
        if error is not None:
            raise error("refused")
    assert [path.name for path in (place / "blobs/sha256").iterdir()] == ["file"]


def test_what_is_refused_names_the_place_where_it_lies(tmp_path: Path) -> None:
    with (
        pytest.raises(BadBundle) as told,
        staging(tmp_path / "bundle") as inside,
    ):
        raise BadBundle(f"{inside} holds no index")
    assert told.value.message == f"{tmp_path / '.bundle.pulling'} holds no index"


def test_nothing_is_pulled_to_where_all_directories_begin() -> None:
    with pytest.raises(AlreadyThere), staging(Path("/")):
        pass


def test_what_another_fetch_collects_stays_and_what_a_killed_one_left_goes(tmp_path: Path) -> None:
    folder = tmp_path / "bundles"
    folder.mkdir()
    name, left = f"{'a' * 12}-{'b' * 12}", f"{'c' * 12}-{'d' * 12}"
    with contextlib.suppress(KeyboardInterrupt), staging(folder / left) as place:
        (place / "blobs/sha256" / ("0" * 64)).touch()
        raise KeyboardInterrupt
    assert (folder / f".{left}.pulling").is_dir()
    (folder / f".{left}.partial-1").mkdir()
    with staging(folder / name) as pulling, LayoutWriter(folder / name) as making:
        fetching._tidy(folder, ())

        assert pulling.is_dir()
        making.put_file("index.json", b"{}")
        assert sorted(folder.iterdir()) == sorted([pulling.resolve(), making.scratch.parent.resolve()])


def test_what_came_of_a_layer_needs_no_room_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull that broke off late, where the disk is tight, was refused for ever: it did not go on."""
    layer = Descriptor("x", "sha256:" + "ab" * 32, 1 << 30)
    bundle = SimpleNamespace(members=[SimpleNamespace(layer=layer)])
    asked: list[int] = []

    def fetch(_digest: str, _size: int, path: Path, _tell: object) -> int:
        there = part.beside(path)
        asked.append(there.stat().st_size if there.exists() else 0)
        return 0

    with staging(tmp_path / "bundle") as place:
        pull = registries._Pull(SimpleNamespace(fetch=fetch), place, lambda *_: None)  # type: ignore[arg-type]
        disk = os.statvfs(place)
        monkeypatch.setattr(registries, "_ROOM", disk.f_bavail * disk.f_frsize - (1 << 29))
        with pytest.raises(DiskError, match="less room"):
            pull.layers(bundle)  # type: ignore[arg-type]
        came = part.beside(place / "blobs/sha256" / layer.digest[7:])
        came.touch()
        os.truncate(came, layer.size - 1)
        pull.layers(bundle)  # type: ignore[arg-type]
    assert asked == [layer.size - 1]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENFILE, errno.ENOMEM, errno.ESTALE])
def test_a_bundle_that_cannot_be_read_just_now_is_neither_removed_nor_is_what_came_of_it(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.open

    def failing(path: str, *given: int, **more: int) -> int:
        if path == "index.json":
            raise OSError(number, os.strerror(number))
        return really(path, *given, **more)

    fetched = bundles.write(tmp_path / "fetched", bundles.layout())
    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(DiskError, match=os.strerror(number)):
        fetching._is_there(fetched, "")
    with pytest.raises(DiskError) as told, staging(tmp_path / "bundle") as inside:
        members.opened(bundles.write(inside, bundles.layout()))
    monkeypatch.undo()
    assert told.value.message.startswith(f"index.json of {tmp_path / '.bundle.pulling'} cannot be read")
    assert bundles.content(fetched).items() <= bundles.content(tmp_path / ".bundle.pulling").items()
