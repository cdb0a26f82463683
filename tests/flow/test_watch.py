"""`watch` at real directories: what happens there posts a wake, and nothing is left behind."""

from __future__ import annotations

import errno
import logging
import os
import queue
import shutil
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final

import pytest
from watchdog.observers.inotify import InotifyObserver
from watchdog.observers.inotify_c import InotifyConstants, InotifyEvent, WatchDescriptor

from tests import REPOSITORY
from xpucached.domain.activity import WatchMode
from xpucached.domain.triggers import DriverChanged, EventsLost, KeysChanged, ModelsChanged, StoreChanged
from xpucached.host import drivers
from xpucached.host.roots import HostRoots
from xpucached.watch import inotify, places
from xpucached.watch.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from xpucached.domain.triggers import Trigger

# Only a failing test waits that long.
PATIENCE: Final = 20.0


class Wakes:
    """Takes wakes from other threads."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Trigger] = queue.SimpleQueue()

    def post(self, wake: Trigger) -> None:
        self._queue.put(wake)

    def next(self) -> Trigger:
        """Wait for the next wake."""
        return self._queue.get(timeout=PATIENCE)

    def clear(self) -> list[Trigger]:
        """Return those that came already."""
        came: list[Trigger] = []
        while not self._queue.empty():
            came.append(self._queue.get())
        return came


@pytest.fixture
def wakes() -> Wakes:
    return Wakes()


@pytest.fixture
def watcher(wakes: Wakes) -> Iterator[Watcher]:
    one = Watcher(wakes.post)
    yield one
    one.stop()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with one device directory and one image in it."""
    root = tmp_path / "store"
    (root / "device" / "image" / "constants" / "options").mkdir(parents=True)
    return root


def settle(watcher: Watcher, wakes: Wakes, mark: Path) -> list[Trigger]:
    """Wait until everything that happened before was heard: until something that happens now in ``mark`` is.

    Gives the wakes that came, without the marks own.
    """
    (mark / "mark").mkdir()
    came: list[Trigger] = []
    while (wake := wakes.next()) != StoreChanged(mark):
        came.append(wake)
    assert watcher.mode == WatchMode.INOTIFY
    return came


def test_nothing_is_started_before_it_is_told_what_to_watch(wakes: Wakes) -> None:
    before = threading.active_count()
    watcher = Watcher(wakes.post)

    assert threading.active_count() == before
    assert watcher.mode == WatchMode.POLLING
    watcher.stop()


def test_what_is_newly_watched_is_posted_at_once_and_only_then(watcher: Watcher, wakes: Wakes, store: Path) -> None:
    watcher.watch([store], [store.parent], [])

    assert set(wakes.clear()) == {StoreChanged(store), DriverChanged()}
    assert watcher.mode == WatchMode.INOTIFY
    assert watcher.reason == ""

    watcher.watch([store], [store.parent], [])

    assert wakes.clear() == []


def test_only_the_root_and_its_device_directories_are_watched(watcher: Watcher, store: Path) -> None:
    (store / "file").write_text("")
    (store / "link").symlink_to(store / "device")

    watcher.watch([store], [], [])

    assert watcher.directories == {store, store / "device"}


def test_what_is_moved_with_all_that_is_above_it_is_found_to_be_gone(
    watcher: Watcher, wakes: Wakes, tmp_path: Path
) -> None:
    root = tmp_path / "home/cache/store"
    root.mkdir(parents=True)
    watcher.watch([root], [], [])
    wakes.clear()
    watcher.glance()
    assert wakes.clear() == []

    (tmp_path / "home").rename(tmp_path / "elsewhere")
    watcher.glance()
    assert wakes.clear() == [StoreChanged(root)]
    watcher.watch([root], [], [])
    wakes.clear()
    # What comes back is another one for who listens.
    (tmp_path / "elsewhere").rename(tmp_path / "home")
    assert wakes.next() == StoreChanged(root)


def test_a_new_device_directory_posts(watcher: Watcher, wakes: Wakes, store: Path) -> None:
    watcher.watch([store], [], [])
    wakes.clear()

    (store / "another").mkdir()

    assert wakes.next() == StoreChanged(store)


def test_a_new_image_directory_in_a_device_directory_posts(watcher: Watcher, wakes: Wakes, store: Path) -> None:
    watcher.watch([store], [], [])
    wakes.clear()

    (store / "device" / "another").mkdir()

    assert wakes.next() == StoreChanged(store)


def test_a_new_image_in_a_device_directory_that_was_new_itself_posts(
    watcher: Watcher, wakes: Wakes, store: Path
) -> None:
    watcher.watch([store], [], [])
    (store / "another").mkdir()
    watcher.watch([store], [], [])
    wakes.next()
    wakes.clear()

    (store / "another" / "image").mkdir()

    assert wakes.next() == StoreChanged(store)


def test_an_image_that_goes_posts(watcher: Watcher, wakes: Wakes, store: Path) -> None:
    watcher.watch([store], [], [])
    wakes.clear()

    (store / "device" / "image").rename(store.parent / "elsewhere")

    assert wakes.next() == StoreChanged(store)


def test_each_store_posts_its_own_root(watcher: Watcher, wakes: Wakes, store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    watcher.watch([store, other], [], [])
    wakes.clear()

    (other / "device").mkdir()

    assert wakes.next() == StoreChanged(other)


def test_reading_and_what_is_deeper_post_nothing(watcher: Watcher, wakes: Wakes, store: Path, tmp_path: Path) -> None:
    library = tmp_path / "driver" / "lib.so"
    library.parent.mkdir()
    library.write_bytes(b"x")
    mark = tmp_path / "mark"
    mark.mkdir()
    watcher.watch([store, mark], [library.parent], [])
    wakes.clear()

    library.read_bytes()
    sorted(os.walk(store))
    (store / "device" / "image" / "constants" / "more").mkdir()
    (store / "cache_size.txt").write_text("1")

    assert settle(watcher, wakes, mark) == []


def test_a_swapped_link_in_a_driver_directory_posts(watcher: Watcher, wakes: Wakes, tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    place = tmp_path / "opt"
    place.mkdir()
    (place / "driver").symlink_to(tmp_path / "old")
    watcher.watch([], [place], [])
    wakes.clear()

    (place / "next").symlink_to(tmp_path / "new")
    (place / "next").rename(place / "driver")

    assert wakes.next() == DriverChanged()


@pytest.mark.parametrize("how", ["written", "replaced", "removed", "first"])
def test_a_folder_of_keys_that_changes_posts(how: str, watcher: Watcher, wakes: Wakes, tmp_path: Path) -> None:
    place = tmp_path / "configuration" / "trust.d"
    if how != "first":
        place.mkdir(parents=True)
        (place / "revoked").write_text("")
    (tmp_path / "fresh").write_text("")
    watcher.watch([], [], [], keys=[place])
    wakes.clear()

    match how:
        case "written":
            (place / "revoked").write_text("more")
        case "replaced":
            (tmp_path / "fresh").rename(place / "revoked")
        case "removed":
            (place / "revoked").unlink()
        case _:
            place.mkdir(parents=True)
    assert wakes.next() == KeysChanged()


@pytest.mark.parametrize("how", ["written", "replaced", "removed"])
def test_a_driver_file_that_changes_posts(how: str, watcher: Watcher, wakes: Wakes, tmp_path: Path) -> None:
    place = tmp_path / "lib"
    place.mkdir()
    library = place / "libigdrcl.so"
    library.write_bytes(b"old")
    fresh = tmp_path / "fresh"
    fresh.write_bytes(b"new")
    watcher.watch([], [place], [])
    wakes.clear()

    match how:
        case "written":
            library.write_bytes(b"new")
        case "replaced":
            fresh.rename(library)
        case _:
            library.unlink()

    assert wakes.next() == DriverChanged()


def test_a_driver_that_is_missing_posts_when_it_comes_and_when_it_goes_again(
    watcher: Watcher, wakes: Wakes, tmp_path: Path
) -> None:
    real, link = tmp_path / "real", tmp_path / "opt" / "driver"
    real.mkdir()
    link.parent.mkdir()
    variables = {"OCL_ICD_FILENAMES": f"{link}/libintelocl.so"}
    watcher.watch([], drivers.watched(variables, HostRoots(etc=tmp_path / "nothing", libraries=())), [])
    wakes.clear()

    link.symlink_to(real)
    assert wakes.next() == DriverChanged()
    wakes.clear()
    # The look that sees that it came is not over yet.
    link.unlink()
    assert wakes.next() == DriverChanged()


def test_a_link_to_model_files_that_comes_posts(watcher: Watcher, wakes: Wakes, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "models.d"
    watcher.watch([], [], [link])
    wakes.clear()

    link.symlink_to(tmp_path / "real")

    assert wakes.next() == ModelsChanged()


def test_a_model_file_posts(watcher: Watcher, wakes: Wakes, tmp_path: Path) -> None:
    place = tmp_path / "models.d"
    place.mkdir()
    watcher.watch([], [], [place])
    wakes.clear()

    (place / "net.toml").write_text("")

    assert wakes.next() == ModelsChanged()


def test_a_directory_of_two_kinds_posts_both(watcher: Watcher, wakes: Wakes, tmp_path: Path) -> None:
    watcher.watch([], [tmp_path], [tmp_path])
    wakes.clear()

    (tmp_path / "file").write_text("")

    assert {wakes.next(), wakes.next()} == {DriverChanged(), ModelsChanged()}


def test_a_missing_store_posts_when_the_way_to_it_begins(watcher: Watcher, wakes: Wakes, tmp_path: Path) -> None:
    root = tmp_path / "a" / "b" / "store"
    watcher.watch([root], [], [])
    assert watcher.directories == {tmp_path}
    wakes.clear()

    (tmp_path / "a").mkdir()
    assert wakes.next() == StoreChanged(root)
    watcher.watch([root], [], [])
    assert watcher.directories == {tmp_path / "a"}
    wakes.clear()

    root.mkdir(parents=True)
    assert wakes.next() == StoreChanged(root)
    watcher.watch([root], [], [])
    assert watcher.directories == {root}


def test_what_happens_beside_a_missing_store_posts_nothing(watcher: Watcher, wakes: Wakes, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.mkdir()
    watcher.watch([tmp_path / "store", mark], [], [])
    wakes.clear()

    (tmp_path / "something").mkdir()
    (tmp_path / "store2").mkdir()

    assert settle(watcher, wakes, mark) == []


def test_a_store_that_vanishes_and_comes_again_is_watched_again(watcher: Watcher, wakes: Wakes, tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    watcher.watch([root], [], [])
    wakes.clear()

    root.rmdir()
    assert wakes.next() == StoreChanged(root)
    # Whether or not it got the same inode: a look in between is not needed for it to be watched again.
    root.mkdir()
    watcher.watch([root], [], [])
    wakes.clear()
    (root / "device").mkdir()

    assert wakes.next() == StoreChanged(root)


def test_a_store_that_is_moved_away_posts(watcher: Watcher, wakes: Wakes, store: Path, tmp_path: Path) -> None:
    watcher.watch([store], [], [])
    wakes.clear()

    store.rename(tmp_path / "away")

    assert wakes.next() == StoreChanged(store)
    # Who looks then listens for it to come again.
    watcher.watch([store], [], [])
    wakes.clear()
    (tmp_path / "away").rename(store)
    assert wakes.next() == StoreChanged(store)


UNMOUNTED: Final = """
import os, subprocess, sys
from pathlib import Path
from tests.flow.test_watch import Wakes
from xpucached.watch.watcher import Watcher

store, wakes = Path(sys.argv[1]), Wakes()
mount = ["mount", "-t", "tmpfs", "tmpfs", sys.argv[1]]
subprocess.run(mount, check=True)
print("mounted")
watcher = Watcher(wakes.post)
watcher.watch([store], [], [])
wakes.clear()
subprocess.run(["umount", sys.argv[1]], check=True)
print(wakes.next().root)
# Mounted again before anybody looked, it has the same number, and its root the same inode.
subprocess.run(mount, check=True)
watcher.watch([store], [], [])
print(wakes.next().root)
wakes.clear()
(store / "device").mkdir()
print(wakes.next().root)
watcher.stop()
"""


def test_a_file_system_that_is_unmounted_posts_and_one_mounted_again_is_watched(store: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare")
    inside = [unshare, "--map-root-user", "--mount", sys.executable, "-c", UNMOUNTED, os.fspath(store)]
    done = subprocess.run(inside, cwd=REPOSITORY, capture_output=True, text=True, check=False)

    if not done.stdout:
        pytest.skip(f"no mounts here: {done.stderr}")
    assert done.stdout.splitlines() == ["mounted", *[os.fspath(store)] * 3], done.stderr


def test_a_store_that_another_directory_replaced_is_watched(watcher: Watcher, wakes: Wakes, tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    watcher.watch([root], [], [])

    root.rename(tmp_path / "old")
    root.mkdir()
    watcher.watch([root], [], [])
    wakes.clear()
    (tmp_path / "old" / "device").mkdir()
    (root / "device").mkdir()

    assert wakes.next() == StoreChanged(root)
    assert watcher.directories == {root}


def test_a_store_behind_a_link_is_watched_under_the_name_that_was_given(
    watcher: Watcher, wakes: Wakes, store: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(store)
    watcher.watch([link], [], [])
    wakes.clear()

    (store / "another").mkdir()

    assert wakes.next() == StoreChanged(link)


def test_what_is_no_longer_wanted_is_not_watched(watcher: Watcher, wakes: Wakes, store: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.mkdir()
    watcher.watch([store, mark], [], [])
    watcher.watch([mark], [], [])
    assert watcher.directories == {mark}
    wakes.clear()

    (store / "another").mkdir()

    assert settle(watcher, wakes, mark) == []


def test_of_very_many_device_directories_the_newest_are_watched(watcher: Watcher, tmp_path: Path) -> None:
    root = tmp_path / "store"
    devices = [root / str(number) for number in range(places._MOST_DEVICES + 6)]
    for number, device in enumerate(devices):
        device.mkdir(parents=True)
        os.utime(device, (number, number))

    watcher.watch([root], [], [])

    assert watcher.directories == {root, *devices[6:]}


def test_more_directories_than_a_bound_are_not_watched_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, watcher: Watcher, store: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(inotify, "MOST", 4)
    stores = [store, tmp_path / "another"]
    (stores[1] / "device").mkdir(parents=True)
    driver, models = tmp_path / "driver", tmp_path / "models"
    driver.mkdir()
    models.mkdir()

    watcher.watch(stores, [driver], [models])

    # What matters most: of its devices a store is told of by the periodic look.
    assert watcher.directories == {*stores, driver, models}
    assert watcher.mode == WatchMode.POLLING
    assert "more than 4 directories" in watcher.reason
    watcher.watch([store], [driver], [models])
    assert watcher.directories == {store, store / "device", driver, models}
    assert str(watcher.mode) == WatchMode.INOTIFY


@pytest.mark.parametrize("limit", ["watches", "instances", "threads"])
def test_at_a_limit_of_the_kernel_we_poll_and_say_why(
    limit: str, monkeypatch: pytest.MonkeyPatch, watcher: Watcher, wakes: Wakes, store: Path
) -> None:
    # The one thing that is pretended: the limits are those of the whole machine.
    def refuse(*_: object, **__: object) -> None:
        if limit == "threads":
            raise RuntimeError("can't start new thread")
        raise OSError(28 if limit == "watches" else 24, f"inotify {limit} limit reached")

    with monkeypatch.context() as patch:
        patch.setattr(InotifyObserver, "start" if limit == "instances" else "schedule", refuse)
        watcher.watch([store], [], [])

        assert watcher.mode == WatchMode.POLLING
        assert ("can't start new thread" if limit == "threads" else limit) in watcher.reason
        assert watcher.directories == frozenset()

    watcher.watch([store], [], [])

    assert str(watcher.mode) == WatchMode.INOTIFY
    wakes.clear()
    (store / "another").mkdir()
    assert wakes.next() == StoreChanged(store)


def test_where_no_thread_can_be_had_each_try_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch, watcher: Watcher, store: Path
) -> None:
    def full(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", full)
        for _ in range(20):
            watcher.watch([store], [], [])
            assert "can't start new thread" in watcher.reason

    assert len(os.listdir("/proc/self/fd")) < len(before) + 20
    watcher.watch([store], [], [])
    assert str(watcher.mode) == WatchMode.INOTIFY


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_that_we_may_not_read_is_polled(watcher: Watcher, store: Path) -> None:
    (store / "device").chmod(0)

    watcher.watch([store], [], [])

    assert watcher.mode == WatchMode.POLLING
    assert watcher.reason == f"{store / 'device'}: permission denied"
    assert watcher.directories == {store}
    (store / "device").chmod(0o700)


def test_events_that_the_kernel_lost_are_looked_for(
    watcher: Watcher, wakes: Wakes, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # As with `log.level = "error"`: whether it is told must not depend on what is logged.
    caplog.set_level(logging.ERROR, "watchdog")
    watcher.watch([store], [], [])
    wakes.clear()
    observer = watcher._inotify._observer
    assert observer is not None
    # What the kernel says when its queue is full; to fill it would take the whole machine's limit.
    event = InotifyEvent(WatchDescriptor(-1), InotifyConstants.IN_Q_OVERFLOW, 0, b"")
    observer._inotify_fd.handle_event(event)

    assert wakes.next() == EventsLost()
    assert watcher.mode == WatchMode.POLLING
    assert "lost" in watcher.reason
    watcher.watch([store], [], [])
    assert str(watcher.mode) == WatchMode.INOTIFY


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_hears_the_kernel_no_more_is_replaced(watcher: Watcher, wakes: Wakes, store: Path) -> None:
    watcher.watch([store], [], [])
    wakes.clear()
    observer = watcher._inotify._observer
    assert observer is not None
    hears = observer._inotify_fd

    def failing(**_: object) -> list[InotifyEvent]:
        raise OSError(errno.ENOMEM, "the kernel has no memory")

    # Its next question to the kernel, after this event, fails, and ends it.
    hears.read_events = failing  # type: ignore[method-assign] # it cannot be made to fail from outside
    (store / "one").mkdir()
    assert wakes.next() == StoreChanged(store)
    hears.join(PATIENCE)
    assert not hears.is_alive()
    watcher.watch([store], [], [])
    wakes.clear()
    (store / "another").mkdir()

    assert wakes.next() == StoreChanged(store)


def test_a_post_that_fails_does_not_end_the_watching(store: Path, wakes: Wakes) -> None:
    def post(wake: Trigger) -> None:
        wakes.post(wake)
        if (store / "first").exists() and not (store / "second").exists():
            raise ValueError("the loop is closed")

    watcher = Watcher(post)
    try:
        watcher.watch([store], [], [])
        wakes.clear()
        (store / "first").mkdir()
        assert wakes.next() == StoreChanged(store)
        (store / "second").mkdir()
        assert wakes.next() == StoreChanged(store)
    finally:
        watcher.stop()


def test_after_stop_nothing_is_left_and_nothing_starts_again(wakes: Wakes, store: Path) -> None:
    before = set(threading.enumerate())
    watcher = Watcher(wakes.post)
    watcher.watch([store], [store], [store])
    assert set(threading.enumerate()) > before

    watcher.stop()

    assert set(threading.enumerate()) == before
    wakes.clear()
    watcher.watch([store], [], [])
    (store / "another").mkdir()
    watcher.stop()
    assert watcher.mode == WatchMode.POLLING
    assert set(threading.enumerate()) == before
    assert wakes.clear() == []
