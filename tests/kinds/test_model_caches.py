"""Directories where other compilers cache: what they hold is counted, and one goes and comes back as a whole."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.users import unused
from xpucached.domain.plans import EvictReason
from xpucached.domain.stores import Store, StoreState
from xpucached.domain.trash import TrashLabel
from xpucached.kinds import fs, model_caches
from xpucached.kinds.model_caches import TRASH, measure, take
from xpucached.kinds.removal import GONE

if TYPE_CHECKING:
    from pathlib import Path
    from typing import NoReturn

NOTE: Final = TrashLabel(datetime(2026, 5, 4, tzinfo=UTC), EvictReason.ASKED, "why")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "place"
    made.mkdir()
    return made


# -- counting ---------------------------------------------------------------------------------------------------------


def test_all_files_of_a_directory_are_counted_with_when_one_was_last_used(place: Path) -> None:
    (place / "a" / "b").mkdir(parents=True)
    paths = [place / "one", place / "a" / "two", place / "a" / "b" / "three"]
    for number, path in enumerate(paths):
        path.write_bytes(bytes(5000))
        os.utime(path, (1000 + number, 2000 - number))
    (place / "again").hardlink_to(paths[0])
    (place / "link").symlink_to(place)
    os.utime(place / "link", (1, 1), follow_symlinks=False)
    found = measure(place)

    blocks = [path.lstat().st_blocks * 512 for path in (*paths, place / "link")]
    assert (found.state, found.owner, found.files, found.note) == (StoreState.OK, os.geteuid(), 5, "")
    assert found.allocated == sum(blocks) > 0
    assert found.used == datetime.fromtimestamp(2000, UTC)
    os.utime(paths[2], (3000, 1))
    assert measure(place).used == datetime.fromtimestamp(3000, UTC)


def test_of_what_is_not_there_nothing_is_counted(place: Path) -> None:
    found = measure(place / "none")
    assert (found.state, found.owner, found.files, found.allocated) == (StoreState.MISSING, None, 0, 0)


def test_a_time_to_come_is_now_and_an_empty_directory_was_never_used(place: Path) -> None:
    assert measure(place).used is None
    (place / "file").touch()
    ahead = time.time() + 1000
    os.utime(place / "file", (ahead, ahead))
    used = measure(place).used
    assert used is not None
    assert used < datetime.fromtimestamp(ahead, UTC) - timedelta(seconds=1)


def test_what_is_no_directory_is_said_to_be_none(place: Path) -> None:
    (place / "file").touch()
    assert measure(place / "none").state is StoreState.MISSING
    assert measure(place / "file").state is StoreState.NOT_A_DIRECTORY
    long = measure(place / ("x" * 300))
    assert (long.state, long.note) == (StoreState.UNREADABLE, os.strerror(errno.ENAMETOOLONG))
    null = measure(place / "\0")
    assert null.state is StoreState.UNREADABLE
    assert "embedded null" in null.note


MORE: Final = "it holds more than was counted"


def test_so_much_is_counted_in_so_much_time(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        (place / str(number)).touch()
    monkeypatch.setattr(model_caches, "_MOST", 3)
    assert (measure(place).files, measure(place).note) == (3, "")
    monkeypatch.setattr(model_caches, "_MOST", 2)
    assert (measure(place).files, measure(place).note) == (2, MORE)
    (place / "below").mkdir()
    monkeypatch.undo()
    assert (measure(place, -1.0).files, measure(place, -1.0).note) == (0, MORE)


def test_so_much_is_remembered_of_what_waits_to_be_counted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (place / "a" / f"{number:0200}").mkdir(parents=True)
    monkeypatch.setattr(model_caches, "_AHEAD", 20 * len(str(place / "a" / ("0" * 200))))
    assert measure(place).note == ""
    monkeypatch.setattr(model_caches, "_AHEAD", model_caches._AHEAD // 2)
    assert measure(place).note == MORE


def test_what_cannot_be_read_or_is_mounted_is_said(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (place / name).mkdir()
        (place / name / "file").touch()
    (place / "file").touch()
    scan = os.scandir

    def refuse(path: str) -> object:
        errors = {str(place / "a"): PermissionError(errno.EACCES, "no"), str(place / "b"): FileNotFoundError()}
        if path in errors:
            raise errors[path]
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = measure(place)
    assert (found.files, found.note) == (2, "not all of it can be read (no)")
    monkeypatch.undo()
    there = os.fstat

    def elsewhere(descriptor: int) -> os.stat_result:
        fields = [*there(descriptor)]
        fields[stat.ST_DEV] += 1
        return os.stat_result(fields)

    monkeypatch.setattr(os, "fstat", elsewhere)
    found = measure(place)
    assert (found.files, found.note) == (1, "what is mounted below it is not counted")


# -- out of its place and back ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "known"),
    [
        ("triton", True),
        ("/home/me/cache", True),
        ("/cache", False),
        ("a/b", False),
        ("", False),
        (".", False),
        ("..", False),
        ("/home/../etc", False),
        ("/home//x", False),
        ("a\0b", False),
    ],
)
def test_a_directory_is_called_by_its_name_or_by_a_path(key: str, *, known: bool) -> None:
    assert model_caches._is_place(key.split("/")) is known


def test_a_time_from_the_future_is_no_use_since_it_was_looked_at(tmp_path: Path) -> None:
    """A compiler wrote it while the clock was ahead; it may go at once where the policy says no grace."""
    path = tmp_path / "models" / "net"
    path.mkdir(parents=True)
    (path / "0.so").touch()
    os.utime(path / "0.so", (time.time() + 9000, time.time() + 9000))
    take(path.parent, path, NOTE, measure(path).used)
    assert not path.exists()


@pytest.mark.parametrize("ours", [True, False])
def test_a_directory_goes_as_a_whole_and_comes_back(place: Path, *, ours: bool) -> None:
    root = place / "data" / "models"
    path = (root if ours else place) / "cache"
    (path / "below").mkdir(parents=True)
    (path / "below" / "file").write_bytes(b"kernel")
    take(root, path, NOTE)

    assert not path.exists()
    (trashed,) = TRASH.trash(Store(model_caches.KIND, root))
    assert (trashed.key, trashed.reason, trashed.detail, trashed.at) == (
        "cache" if ours else str(path),
        EvictReason.ASKED,
        "why",
        NOTE.at,
    )
    path.mkdir()
    (path / "new").touch()
    (restored,) = TRASH.restore(Store(model_caches.KIND, root), (trashed.ref,))
    assert (restored.key, restored.detail) == (None, f"something is in its place ({trashed.key}): move that away first")
    (path / "new").unlink()
    (restored,) = TRASH.restore(Store(model_caches.KIND, root), (trashed.ref,))
    assert restored.key == trashed.key
    assert (path / "below" / "file").read_bytes() == b"kernel"
    assert TRASH.trash(Store(model_caches.KIND, root)) == ()


def test_of_the_rights_of_the_directory_above_only_those_of_people_are_noted(place: Path) -> None:
    (place / "cache").mkdir()
    place.chmod(0o3755)
    take(place / "data", place / "cache", NOTE)
    (label,) = place.glob("data/.xpucached.trash/*/about.json")
    assert json.loads(label.read_bytes())["mode"] == 0o755


def test_without_a_note_it_goes_for_good_and_what_was_left_of_another_one_with_it(place: Path) -> None:
    for name in ("cache", f"cache{GONE}"):
        (place / name / "below").mkdir(parents=True)
    (place / "other").touch()
    mask = os.umask(0)
    try:
        take(place / "data" / "models", place / "cache", None)
    finally:
        os.umask(mask)
    assert sorted(path.name for path in place.iterdir()) == ["data", "other"]
    assert stat.S_IMODE((place / "data" / "models").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["bad\udcff", "a"])
def test_what_has_no_name_of_a_model_s_stays(place: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / name).mkdir()
    if name == "a":
        monkeypatch.setattr(model_caches, "_is_place", lambda _: False)
    with pytest.raises(OSError, match="none of a model's"):
        take(place / "data", place / name, NOTE)
    assert [path.name for path in place.iterdir()] == [name]


@pytest.mark.parametrize(("whose", "words"), [("file", "it holds what is user"), ("cache", "it is user")])
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may give files away")
def test_what_holds_files_of_another_user_stays(place: Path, whose: str, words: str) -> None:
    cache = place / "cache"
    cache.mkdir()
    (cache / "file").touch()
    theirs = cache / "file" if whose == "file" else cache
    os.chown(theirs, unused(), -1)
    for note in (NOTE, None):
        with pytest.raises(OSError, match=words if whose == "file" else r"user|somebody else"):
            take(place / "data", cache, note)
    assert (cache / "file").exists()


def test_why_it_cannot_go_is_said(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = place / "cache"
    cache.mkdir()

    def elsewhere(*_: object) -> NoReturn:
        raise OSError(errno.EXDEV, "invalid cross-device link")

    def broken(*_: object) -> NoReturn:
        raise OSError(errno.EIO, "input/output error")

    for made, words in (
        (lambda *_: False, "there is no room for it in the trash"),
        (elsewhere, "the trash lies on another file system"),
        (broken, "input/output error"),
    ):
        monkeypatch.setattr(model_caches._Trash, "take", made)
        with pytest.raises(OSError, match=words):
            take(place / "data", cache, NOTE)
    assert cache.is_dir()


def test_a_link_is_none(place: Path) -> None:
    (place / "real").mkdir()
    (place / "link").symlink_to("real")
    with pytest.raises(OSError, match=r"."):
        take(place / "data", place / "link", NOTE)
    assert (place / "real").is_dir()
    with fs.folder(str(place)) as descriptor:
        assert "link" in os.listdir(descriptor)
