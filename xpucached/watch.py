"""Observe: "look again", from watchdog; touches directories only to listen at them.

Shallow on purpose: an inotify watch per cached program would end at the kernel's limit, without a word, and lose events
long before.  The root of a store and its device directories show every new program, for each makes a new directory
there.  What is not shown (another slot in a leaf that is known) waits for the periodic look, as does everything else
when the kernel gives us no watches.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers.inotify import InotifyObserver

from xpucached.domain import DriverTouched, Due, ModelsTouched, StoreTouched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from watchdog.observers.api import ObservedWatch

    from xpucached.domain import Wake

log = logging.getLogger(__name__)

_DIRECTORIES: Final[list[type[FileSystemEvent]]] = [DirCreatedEvent, DirDeletedEvent, DirMovedEvent]

# Closed after writing, not modified: a library that is copied would be thousands of events.  And nothing about opening
# and reading, which every program that starts does in the directories of the driver.
_FILES: Final[list[type[FileSystemEvent]]] = [
    *_DIRECTORIES,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileMovedEvent,
]

_MOST_DEVICES: Final = 16
"""Device directories that are watched in one store.  Each costs a thread; a store with more holds mostly what is stale,
and its newest directories are those in which something happens."""

INOTIFY: Final = "inotify"
POLLING: Final = "polling"


@dataclass(frozen=True, slots=True)
class _Interest:
    """Whom to wake when something happens in a directory; with ``towards`` only if it happens on the way there."""

    wake: Wake
    towards: Path | None = None
    files: bool = False


class _Ear(FileSystemEventHandler):
    """Hears what happens in one directory.  Called from watchdog's thread."""

    def __init__(self, post: Callable[[Wake], None], interests: frozenset[_Interest]) -> None:
        self._post = post
        self.interests = interests

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Post the wakes of those whom it concerns."""
        places = [Path(os.fsdecode(path)) for path in (event.src_path, event.dest_path) if path]
        for wake in dict.fromkeys(one.wake for one in self.interests if _concerns(one, places)):
            try:
                self._post(wake)
            except Exception:
                # watchdog's thread must live on, and the wake is only a hint.
                log.exception("a wake could not be posted: %s", wake)


def _concerns(interest: _Interest, places: Iterable[Path]) -> bool:
    towards = interest.towards
    return towards is None or any(towards.is_relative_to(place) for place in places)


@dataclass(slots=True)
class _Watched:
    """A directory that is watched."""

    ear: _Ear
    watch: ObservedWatch
    identity: tuple[int, int]  #: device and inode
    files: bool


class _Overflow(logging.Handler):
    """Hears watchdog say that the kernel's queue was full; it tells nobody else."""

    def __init__(self, lost: Callable[[], None]) -> None:
        super().__init__(logging.WARNING)
        self._lost = lost

    def emit(self, record: logging.LogRecord) -> None:
        """Pass it on."""
        if "overflow" in record.getMessage():
            self._lost()


class Watcher:
    """Posts a wake whenever something happened where it matters; each wake is a hint, and may come twice.

    ``post`` is called from other threads.  `watch` and `stop` may be called from any thread.
    """

    def __init__(self, post: Callable[[Wake], None]) -> None:
        self._post = post
        self._lock = threading.Lock()
        self._observer: InotifyObserver | None = None
        self._watched: dict[Path, _Watched] = {}
        self._stopped = False
        self._reason = "nothing is watched yet"
        self._overflow = _Overflow(self._lose)
        logging.getLogger("watchdog").addHandler(self._overflow)

    @property
    def mode(self) -> str:
        """``inotify``; or ``polling``, if something is not watched and only the periodic look will notice it."""
        return POLLING if self._reason else INOTIFY

    @property
    def reason(self) -> str:
        """Why something is not watched; empty if all is."""
        return self._reason

    @property
    def directories(self) -> frozenset[Path]:
        """The directories that are watched now."""
        return frozenset(self._watched)

    def watch(self, stores: Iterable[Path], drivers: Iterable[Path], models: Iterable[Path]) -> None:
        """Watch these and nothing else: the roots of stores, and directories of the driver and of model files.

        To be called after each look, because directories come and go.  What is newly watched is also posted at once:
        something may have happened there after the look and before we listened.  Never raises for what it meets.
        """
        wanted: dict[Path, set[_Interest]] = {}
        for place, interest in _places(stores, drivers, models):
            wanted.setdefault(place, set()).add(interest)
        with self._lock:
            if self._stopped:
                return
            fresh = self._set({place: frozenset(some) for place, some in wanted.items()})
        for wake in dict.fromkeys(fresh):
            self._post(wake)

    def stop(self) -> None:
        """Stop watching for good, and wait until no thread of ours is left."""
        logging.getLogger("watchdog").removeHandler(self._overflow)
        with self._lock:
            self._stopped = True
            observer, self._observer = self._observer, None
            self._watched.clear()
            self._reason = "stopped"
        if observer is not None:
            observer.stop()
            observer.join()

    def _set(self, wanted: dict[Path, frozenset[_Interest]]) -> list[Wake]:
        """Make the watched set equal to the wanted one; give the wakes for what is new."""
        try:
            observer = self._started()
        except (OSError, RuntimeError) as error:
            self._give_up(str(error))
            return []
        alive = {emitter.watch for emitter in observer.emitters if emitter.is_alive()}
        for place, one in list(self._watched.items()):
            interests = wanted.get(place, frozenset())
            kept = (
                interests and one.watch in alive and one.identity == _identity(place) and one.files == _files(interests)
            )
            if not kept:
                # Gone, or another directory of that name by now: the watch is on the old one.
                del self._watched[place]
                _release(observer, one.watch)
        fresh: list[Wake] = []
        reason = ""
        for place, interests in sorted(wanted.items()):
            known = self._watched.get(place)
            if known is not None:
                fresh += [one.wake for one in interests - known.ear.interests]
                known.ear.interests = interests
                continue
            identity = _identity(place)
            if identity is None or not os.access(place, os.R_OK | os.X_OK):
                # The next look will find what became of it; what we may not read we cannot watch.
                reason = reason or (f"{place}: permission denied" if identity is not None else "")
                continue
            ear = _Ear(self._hear, interests)
            files = _files(interests)
            try:
                watch = observer.schedule(ear, os.fspath(place), event_filter=_FILES if files else _DIRECTORIES)
            except FileNotFoundError:
                continue
            except (OSError, RuntimeError) as error:
                # The kernel's limit of watches, instances or threads: the others would meet it as well.
                reason = f"{place}: {error}"
                break
            self._watched[place] = _Watched(ear, watch, identity, files)
            fresh += [one.wake for one in interests]
        self._give_up(reason)
        return fresh

    def _started(self) -> InotifyObserver:
        if self._observer is None or not self._observer.is_alive():
            self._watched.clear()
            observer = InotifyObserver()
            try:
                observer.start()
            except BaseException:
                # It began a thread of its own when it was made.
                observer.stop()
                raise
            self._observer = observer
        return self._observer

    def _lose(self) -> None:
        """Events were lost, nobody knows of what: say so until the next look, and ask for one at everything."""
        self._reason = "the kernel's queue of events was full, and some were lost"
        self._hear(Due())

    def _hear(self, wake: Wake) -> None:
        if not self._stopped:
            self._post(wake)

    def _give_up(self, reason: str) -> None:
        """Note why not all is watched, and log it when that changes."""
        if reason and reason != self._reason:
            log.warning("not everything is watched, the periodic look will notice the rest: %s", reason)
        elif self._reason and not reason:
            log.info("watching directories: %d", len(self._watched))
        self._reason = reason


def _release(observer: InotifyObserver, watch: ObservedWatch) -> None:
    try:
        observer.unschedule(watch)
    except (KeyError, OSError):
        log.debug("a watch was gone already: %s", watch.path)


def _files(interests: Iterable[_Interest]) -> bool:
    return any(one.files for one in interests)


def _identity(place: Path) -> tuple[int, int] | None:
    try:
        status = place.stat()
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino)


def _places(
    stores: Iterable[Path], drivers: Iterable[Path], models: Iterable[Path]
) -> Iterator[tuple[Path, _Interest]]:
    """Give the directories to listen at, links resolved, and for what."""
    for root in stores:
        place = _resolved(root)
        if _is_directory(place):
            yield place, _Interest(StoreTouched(root))
            for device in _devices(place):
                yield device, _Interest(StoreTouched(root))
        else:
            yield _missing(place, StoreTouched(root))
    for wake, directories in ((DriverTouched(), drivers), (ModelsTouched(), models)):
        for directory in directories:
            place = _resolved(directory)
            if _is_directory(place):
                yield place, _Interest(wake, files=True)
            else:
                yield _missing(place, wake)


def _is_directory(place: Path) -> bool:
    # pathlib's own question raises where we may not look.
    try:
        return stat.S_ISDIR(place.stat().st_mode)
    except (OSError, ValueError):
        return False


def _resolved(path: Path) -> Path:
    # A watch on a link hears nothing of what happens in the directory.
    return Path(os.path.realpath(path))


def _missing(place: Path, wake: Wake) -> tuple[Path, _Interest]:
    """Give the nearest parent that is there, in which the way to a missing directory will begin."""
    for parent in place.parents:
        if _is_directory(parent):
            return parent, _Interest(wake, towards=place)
    return Path("/"), _Interest(wake, towards=place)


def _devices(root: Path) -> list[Path]:
    """Give the device directories of a store; the newest ones if there are very many."""
    try:
        with os.scandir(root) as children:
            names = [child.path for child in children if child.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    found = [Path(name) for name in names]
    if len(found) > _MOST_DEVICES:
        found.sort(key=_modified, reverse=True)
    return found[:_MOST_DEVICES]


def _modified(place: Path) -> int:
    try:
        return place.lstat().st_mtime_ns
    except OSError:
        return 0
