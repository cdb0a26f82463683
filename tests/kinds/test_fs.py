"""Files and directories of somebody else, opened by descriptors: no link followed, nothing left open."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import pytest

from tests.support.users import unused
from xpucached import shortage
from xpucached.kinds import folders, fs, statx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return an empty directory."""
    made = tmp_path / "place"
    made.mkdir()
    return made


@pytest.fixture
def here(place: Path) -> Iterator[int]:
    """Return a descriptor of that directory; in the end nothing else there is open."""
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)
    assert [path for path in opened() if path.startswith(str(place))] == []


def opened() -> list[str]:
    """Name what this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(str(Path(f"/proc/self/fd/{number}").readlink()))
    return found


@pytest.fixture(params=[True, False], ids=["openat2", "older kernel"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a kernel that has ``openat2``, and one that has not."""
    if not request.param:
        monkeypatch.setattr(fs, "_has_openat2", lambda: False)
    elif not fs._has_openat2():
        pytest.skip("this kernel has no openat2")


@contextlib.contextmanager
def refusal(number: int) -> Iterator[None]:
    with pytest.raises(OSError, match=r".") as error:
        yield
    assert error.value.errno == number


needs_openat2 = pytest.mark.skipif(not fs._has_openat2(), reason="this kernel has no openat2")


def device(here: int) -> int:
    return os.fstat(here).st_dev


# -- what an error says -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "ours", "passing", "refused"),
    [
        (errno.EMFILE, True, True, True),
        (errno.ENFILE, True, True, True),
        (errno.ENOMEM, True, True, True),
        (errno.ENOSPC, False, True, True),
        (errno.EIO, False, True, True),
        (errno.EACCES, False, False, True),
        (errno.ENOENT, False, False, False),
        (errno.ELOOP, False, False, False),
        (errno.EAGAIN, False, True, False),
    ],
)
def test_an_error_is_of_us_of_this_moment_or_of_the_disk(
    number: int, *, ours: bool, passing: bool, refused: bool
) -> None:
    error = OSError(number, "said")
    assert (shortage.is_ours(error), fs.passing(error), fs.refused(error)) == (ours, passing, refused)


# -- directories ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("kernel")
def test_a_directory_below_is_entered_and_no_link_to_one(place: Path, here: int) -> None:
    (place / "below").mkdir()
    (place / "link").symlink_to("below")
    (place / "file").touch()
    with fs.directory_in(here, "below", device(here)) as descriptor:
        assert os.fstat(descriptor).st_ino == (place / "below").stat().st_ino
    with pytest.raises(OSError, match=r"."), fs.directory_in(here, "link", device(here)):
        pass
    with refusal(errno.ENOTDIR), fs.directory_in(here, "file", device(here)):
        pass


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a"])
def test_what_is_no_name_is_not_entered(place: Path, here: int, name: str) -> None:
    (place / "a" / "b").mkdir(parents=True)
    with refusal(errno.EINVAL):
        fs.enter(here, name, device(here), os.geteuid())


@pytest.mark.usefixtures("kernel")
def test_a_directory_of_another_file_system_or_owner_is_not_entered(
    place: Path, here: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "below").mkdir()
    mine = os.geteuid()
    with refusal(errno.EXDEV):
        fs.enter(here, "below", device(here) + 1, mine)
    descriptor, status = fs.enter(here, "below", device(here), unused())
    os.close(descriptor)
    assert (status.st_ino, status.st_uid) == ((place / "below").stat().st_ino, mine), "what is ours is entered"
    monkeypatch.setattr(os, "geteuid", unused)
    with refusal(errno.EXDEV):
        fs.enter(here, "below", device(here), unused(1))
    descriptor, _ = fs.enter(here, "below", device(here), mine)
    os.close(descriptor)


@needs_openat2
def test_without_openat2_a_mount_is_told_by_its_directory(
    place: Path, here: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "below").mkdir()
    mounts = {"/proc": True, str(place): False}
    for path, mounted in mounts.items():
        with fs.folder(path) as descriptor:
            assert statx.mounted(descriptor) is mounted
    monkeypatch.setattr(statx, "mounted", lambda _: True)
    os.close(fs.enter(here, "below", device(here), os.geteuid())[0])
    monkeypatch.setattr(fs, "_has_openat2", lambda: False)
    with refusal(errno.EXDEV):
        fs.enter(here, "below", device(here), os.geteuid())


def test_a_root_is_looked_at_through_a_link_and_by_its_owner(
    place: Path, here: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "root").mkdir()
    (place / "link").symlink_to("root")
    for name in ("root", "link"):
        with fs.root_directory(str(place / name)) as (descriptor, status):
            assert status.st_ino == os.fstat(descriptor).st_ino == (place / "root").stat().st_ino
    uid, euid = place.stat().st_uid, unused()
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    with fs.root_directory(str(place)):
        assert uid != euid, "who may read it may look"
    assert os.fstat(here).st_uid == uid


def test_root_does_nothing_in_the_place_of_an_owner(place: Path, here: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    status = os.fstat(here)
    for uid, refused in ((0, False), (1, True)):
        fields = [*status]
        fields[stat.ST_UID] = uid
        with monkeypatch.context() as changed:
            changed.setattr(os, "fstat", lambda _, fields=fields: os.stat_result(fields))
            outcome = pytest.raises(PermissionError) if refused else contextlib.nullcontext()
            with outcome, fs.root_directory(str(place)):
                pass


@pytest.mark.usefixtures("kernel")
def test_what_is_changed_is_reached_through_no_link(place: Path, here: int) -> None:
    (place / "a" / "b").mkdir(parents=True)
    (place / "to-a").symlink_to("a")
    (place / "a" / "to-b").symlink_to("b")
    with fs.root_to_change(str(place / "a" / "b")) as (descriptor, status):
        assert status.st_ino == os.fstat(descriptor).st_ino == (place / "a" / "b").stat().st_ino
    with fs.root_to_change("/") as (descriptor, _):
        assert os.fstat(descriptor).st_ino == Path("/").stat().st_ino
    for path in ("to-a", "to-a/b", "a/to-b", "a/none"):
        with pytest.raises(OSError, match=r"."), fs.root_to_change(str(place / path)):
            pass
    assert stat.S_ISDIR(os.fstat(here).st_mode)


# -- reading must not look like use -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("kernel")
def test_to_read_a_file_moves_no_time(place: Path, here: int) -> None:
    (place / "file").write_bytes(b"content")
    os.utime(place / "file", (1, 1000))
    with fs.regular_file(here, "file") as (descriptor, status):
        assert fs.read(descriptor, 100) == b"content"
        assert status.st_size == 7
    assert (place / "file").stat().st_atime == 1


@needs_openat2
def test_where_the_kernel_does_not_grant_it_a_file_is_read_all_the_same(
    place: Path, here: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "file").touch()
    asked: list[int] = []

    def opening(flags: int) -> int:
        asked.append(flags)
        if flags & os.O_NOATIME:
            raise PermissionError
        return 7

    assert fs._quietly(opening) == 7
    assert asked == [os.O_NOATIME, 0]
    call = fs._openat2

    def openat2(directory: int, name: str, flags: int, resolve: int) -> int:
        opening(flags)
        return call(directory, name, flags, resolve)

    monkeypatch.setattr(fs, "_openat2", openat2)
    monkeypatch.setattr(fs, "_has_openat2", lambda: True)
    with fs.regular_file(here, "file") as (descriptor, _):
        assert os.fstat(descriptor).st_size == 0


@needs_openat2
def test_a_signal_does_not_end_the_opening_of_a_file(place: Path, here: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "file").touch()
    real = fs._syscall()
    assert real is not None
    answers = [errno.EINTR, errno.EINTR, 0]

    def call(*given: object) -> int:
        answer = answers.pop(0)
        ctypes.set_errno(answer)
        return -1 if answer else int(real(*given))

    monkeypatch.setattr(fs, "_syscall", lambda: call)
    os.close(fs._openat2(here, "file", os.O_RDONLY, 0))
    assert answers == []
    answers = [errno.EPERM]
    with refusal(errno.EPERM):
        fs._openat2(here, "file", os.O_RDONLY, 0)
    monkeypatch.setattr(fs, "_syscall", lambda: None)
    with refusal(errno.ENOSYS):
        fs._openat2(here, "file", os.O_RDONLY, 0)


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_what_is_no_regular_file_is_not_read_even_if_it_was_one(place: Path, here: int, kind: str) -> None:
    (place / "file").touch()
    before = (place / "file").stat()
    make: dict[str, Callable[[Path], object]] = {
        "folder": os.mkdir,
        "pipe": os.mkfifo,
        "link": lambda path: path.symlink_to("file"),
    }
    make[kind](place / "other")
    with pytest.raises(IsADirectoryError), fs.regular_file(here, "other"):
        pass
    with pytest.raises(OSError, match=r"."), fs.regular_file(here, "other", before):
        pass
    with fs.regular_file(here, "file", before) as (descriptor, _):
        assert os.fstat(descriptor).st_ino == before.st_ino


PIECE: Final = 1 << 20


@pytest.mark.parametrize(
    ("limit", "offset", "expected"),
    [
        (0, 0, b""),
        (5, 0, b"a" * 5),
        (5, PIECE - 2, b"aabbb"),
        (PIECE, 0, b"a" * PIECE),
        (PIECE + 2, 0, b"a" * PIECE + b"bb"),
        (3 * PIECE, 0, b"a" * PIECE + b"b" * 9),
        (100, PIECE + 4, b"b" * 5),
        (5, PIECE + 9, b""),
    ],
)
def test_so_many_bytes_are_read_from_a_place(place: Path, here: int, limit: int, offset: int, expected: bytes) -> None:
    (place / "file").write_bytes(b"a" * PIECE + b"b" * 9)
    with fs.regular_file(here, "file") as (descriptor, _):
        assert fs.read(descriptor, limit, offset) == expected


def test_a_file_was_made_when_the_file_system_says(place: Path, here: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "file").touch()
    made = (place / "file").stat().st_mtime_ns
    os.utime(place / "file", (1, 1))
    with fs.regular_file(here, "file") as (descriptor, _):
        born = statx.birth(descriptor)
        assert born is None or abs(born - made) < 1_000_000_000
        status = statx._Statx(mask=statx._BIRTH, birth_seconds=3, birth_nanoseconds=7)
        monkeypatch.setattr(statx, "_status", lambda _: status)
        assert statx.birth(descriptor) == 3_000_000_007
        status.mask = 0x7FF
        assert statx.birth(descriptor) is None
        monkeypatch.undo()
        monkeypatch.setattr(statx, "_statx", lambda: None)
        assert statx.birth(descriptor) is None
        assert not statx.mounted(descriptor)
    monkeypatch.undo()
    assert statx._status(-1) is None


# -- what a link leads to ---------------------------------------------------------------------------------------------


@needs_openat2
def test_a_link_leads_to_what_is_on_the_same_file_system(
    place: Path, here: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "file").touch()
    inode = (place / "file").stat().st_ino
    for name, target in {
        "near": "file",
        "twice": "near",
        "far": str(place / "file"),
        "up": f"../{place.name}/file",
    }.items():
        (place / name).symlink_to(target)
        before = opened()
        assert fs.leads_to(here, name, str(place)).st_ino == inode
        assert opened().count(fs._top(str(place))) == before.count(fs._top(str(place)))
    for name, target in {"proc": "/proc/self/stat", "odd": f"{place}/../{place.name}/file"}.items():
        (place / name).symlink_to(target)
        with refusal(errno.EXDEV):
            fs.leads_to(here, name, str(place))
    (place / "nowhere").symlink_to("none")
    with refusal(errno.ENOENT):
        fs.leads_to(here, "nowhere", str(place))
    monkeypatch.setattr(fs, "_has_openat2", lambda: False)
    with refusal(errno.EXDEV):
        fs.leads_to(here, "near", str(place))


def test_the_highest_directory_of_a_file_system_is_where_it_is_mounted(place: Path) -> None:
    top, device = Path(fs._top(str(place))), place.stat().st_dev
    assert place.is_relative_to(top)
    assert top.stat().st_dev == device
    assert top == Path("/") or top.parent.stat().st_dev != device
    assert fs._top("/proc/self/fd") == "/proc"


def test_a_link_below_what_was_bound_from_elsewhere_is_followed_from_there(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "store").mkdir()
    store, bound, before = str(place / "store"), place.stat().st_ino, opened()
    highest = fs._top(store)
    monkeypatch.setattr(statx, "mounted", lambda descriptor: os.fstat(descriptor).st_ino == bound)
    assert fs._top(store, f"{store}/file") == fs._top(store, f"{place}/file") == str(place)
    assert fs._top(store, f"{place}file") == fs._top(store, "/") == fs._top(store) == highest
    assert opened() == before


# -- making files -----------------------------------------------------------------------------------------------------


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "the disk is full")


def without(monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    """Take from this process files without a name, or /proc."""
    opening, linking = os.open, os.link

    def open_(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if lacking == "nameless files" and flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "none here")
        return opening(path, flags, mode, dir_fd=dir_fd)

    def link(*given: object, **more: object) -> None:
        if lacking == "proc":
            raise FileNotFoundError
        linking(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "link", link)


def test_rights_are_given_to_directories_that_were_just_made_and_to_no_others(place: Path, here: int) -> None:
    (place / "before").mkdir(0o700)
    (place / "other").mkdir(0o700)
    (place / "other/private").write_bytes(b"")
    mask = os.umask(0o077)
    try:
        with contextlib.ExitStack() as stack:
            folders.below(stack, here, ("before", "new", "newer"), 0o775)
        with fs.directory_in(here, "other", os.fstat(here).st_dev) as swapped:
            folders.allow_all(swapped, 0o775)
    finally:
        os.umask(mask)
    modes = [(place / name).stat().st_mode & 0o777 for name in ("before", "before/new", "before/new/newer", "other")]
    assert modes == [0o700, 0o775, 0o775, 0o700]


@pytest.mark.parametrize("lacking", ["nothing", "nameless files", "proc"])
def test_a_small_file_appears_with_its_content_for_its_owner(
    place: Path, here: int, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    without(monkeypatch, lacking)
    mask = os.umask(0)
    try:
        fs.appear(here, "file", b"content")
        with pytest.raises(FileExistsError):
            fs.appear(here, "file", b"other")
        with monkeypatch.context() as broken:
            broken.setattr(os, "write", full)
            fs.appear(here, "empty", b"content")
    finally:
        os.umask(mask)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == {"file": b"content", "empty": b""}
    assert {stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()} == {0o600}


@pytest.mark.parametrize("mode", [0o600, 0o644])
@pytest.mark.parametrize("sync", [True, False])
def test_a_file_is_made_with_its_rights_and_on_its_way_to_the_disk(
    place: Path, here: int, monkeypatch: pytest.MonkeyPatch, mode: int, *, sync: bool
) -> None:
    synced: list[int] = []
    hinted: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    monkeypatch.setattr(
        os, "posix_fadvise", lambda descriptor, *given: hinted.append((os.fstat(descriptor).st_size, *given))
    )
    fs.make(here, "file", b"content", mode=mode, sync=sync)
    assert (place / "file").read_bytes() == b"content"
    assert stat.S_IMODE((place / "file").stat().st_mode) == mode
    assert synced == [7] * sync
    assert hinted == [(7, 0, 0, os.POSIX_FADV_DONTNEED)]
    with pytest.raises(FileExistsError):
        fs.make(here, "file", b"other")
    assert (place / "file").read_bytes() == b"content"


def test_what_cannot_be_made_whole_is_not_there(place: Path, here: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", full)
    with refusal(errno.ENOSPC):
        fs.make(here, "file", b"content", sync=True)
    fs.make(here, "other", b"content")
    assert [path.name for path in place.iterdir()] == ["other"]
    assert stat.S_IMODE((place / "other").stat().st_mode) == 0o600


@pytest.mark.parametrize("error", [OSError(errno.EIO, "a disk that fails"), MemoryError()])
def test_what_cannot_be_asked_of_what_was_opened_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"x")
    root = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        device, before = os.fstat(root).st_dev, set(os.listdir("/proc/self/fd"))

        def fail(_descriptor: int) -> NoReturn:
            raise error

        with monkeypatch.context() as failing:
            failing.setattr(os, "fstat", fail)
            with pytest.raises(type(error)):
                fs.enter(root, "folder", device, os.getuid())
            with pytest.raises(type(error)), fs.regular_file(root, "file"):
                pass
        assert set(os.listdir("/proc/self/fd")) == before
    finally:
        os.close(root)
