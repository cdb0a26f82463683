"""Observe: "look again", from watchdog; touches directories only to listen at them.

A ladder.  The best is fanotify (`fanotify`): one mark for a whole file system shows every file and who closed it, but
it needs rights, ours or those of the host's watcher.  Below it is inotify, shallow on purpose: a watch per cached
program would end at the kernel's limit, without a word, and lose events long before.  The root of a store and its
device directories show every new program, for each makes a new directory there.  What is not shown (another slot in a
leaf that is known) waits for the periodic look, as does everything else when the kernel gives us no watches.
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

from xpucached.domain.activity import FileAct, WatchMode
from xpucached.domain.triggers import DriverChanged, EventsLost, ModelsChanged, StoreChanged
from xpucached.watch.fanotify_client import Fanotify, WatchCoverage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from watchdog.observers.api import ObservedWatch

    from xpucached.domain.activity import FileEvent
    from xpucached.domain.triggers import Trigger

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
"""Device directories that are watched in one store.  Each costs a thread; of more it is the newest that are used."""
_LISTED: Final = 100_000


@dataclass(frozen=True, slots=True)
class _Interest:
    """Whom to wake when something happens in a directory; with ``towards`` only if it happens on the way there."""

    trigger: Trigger
    towards: Path | None = None
    files: bool = False


class _DirectoryHandler(FileSystemEventHandler):
    """Hears what happens in one directory.  Called from watchdog's thread."""

    def __init__(self, post: Callable[[Trigger], None], interests: frozenset[_Interest]) -> None:
        self._post = post
        self.interests = interests

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Post the wakes of those whom it concerns."""
        places = [Path(os.fsdecode(path)) for path in (event.src_path, event.dest_path) if path]
        for trigger in dict.fromkeys(one.trigger for one in self.interests if _concerns(one, places)):
            try:
                self._post(trigger)
            except Exception:
                # watchdog's thread must live on, and the wake is only a hint.
                log.exception("a wake could not be posted: %s", trigger)


def _concerns(interest: _Interest, places: Iterable[Path]) -> bool:
    towards = interest.towards
    return towards is None or any(towards.is_relative_to(place) for place in places)


@dataclass(slots=True)
class _Watched:
    """A directory that is watched."""

    ear: _DirectoryHandler
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


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What may be used to notice changes."""

    watch_socket: Path | None = None  #: the host's watcher, or rather a socket where it would be; None: no fanotify
    loads: bool = False  #: with fanotify, also what is only read
    inotify: bool = True


class Watcher:
    """Posts a wake whenever something happened where it matters; each wake is a hint, and may come twice.

    ``post`` is called from other threads, and so is ``heard``, which is told every touch that fanotify shows, and
    tells whether more must follow before it means anything.  `watch`
    and `stop` may be called from any thread.
    """

    def __init__(
        self,
        post: Callable[[Trigger], None],
        means: WatchOptions = WatchOptions(),
        heard: Callable[[FileEvent], bool | None] = lambda _: None,
    ) -> None:
        self._post = post
        self._means = means
        self._heard = heard
        self._fanotify: Fanotify | None = None
        self._covered: dict[Path, WatchCoverage | str] = {}
        self._stores: dict[Path, frozenset[Path]] = {}
        self._lock = threading.Lock()
        self._observer: InotifyObserver | None = None
        self._watched: dict[Path, _Watched] = {}
        self._stopped = False
        self._reason = "nothing is watched yet"
        self._overflow = _Overflow(lambda: self._lose("the kernel's queue of events was full, and some were lost"))
        logging.getLogger("watchdog").addHandler(self._overflow)

    @property
    def mode(self) -> WatchMode:
        """The worst of all stores; ``polling`` if something is not watched, and only the periodic look notices it."""
        if self._reason:
            return WatchMode.POLLING
        if self._fanotify is None or self._fanotify.reason:
            return WatchMode.INOTIFY
        covered = list(self._covered.values())
        if any(isinstance(one, str) for one in covered):
            return WatchMode.INOTIFY
        names = all(isinstance(one, WatchCoverage) and one.names for one in covered)
        return WatchMode.FANOTIFY if names else WatchMode.CLASSIC

    @property
    def loads(self) -> bool:
        """Whether what is only read is heard of as well, in every store."""
        told = [isinstance(one, WatchCoverage) and one.loads for one in self._covered.values()]
        return bool(told) and all(told)

    @property
    def better(self) -> str:
        """Why the mode is no better one; empty if there is none."""
        if self._reason:
            return self._reason
        if self._fanotify is None:
            return "the configuration asks for it"
        if self._fanotify.reason:
            return self._fanotify.reason
        for place, one in sorted(self._covered.items()):
            why = one if isinstance(one, str) else one.why
            if why:
                return f"{place}: {why}"
        return ""

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

        To be called before the first look, and after each, because directories come and go.  What is newly watched is
        also posted at once: something may have happened there after a look and before we listened.
        Never raises for what it meets.
        """
        stores = list(stores)
        with self._lock:
            if self._stopped:
                return
            fresh = self._cover(stores)
            whole = {place for place, one in self._covered.items() if isinstance(one, WatchCoverage) and one.names}
            wanted: dict[Path, set[_Interest]] = {}
            for place, interest in _places(stores, drivers, models, whole):
                wanted.setdefault(place, set()).add(interest)
            if self._means.inotify:
                fresh += self._set({place: frozenset(some) for place, some in wanted.items()})
            else:
                if self._observer is not None:
                    self._set({})
                self._give_up("the configuration asks for it")
        for trigger in dict.fromkeys(fresh):
            self._post(trigger)

    def use(self, means: WatchOptions) -> None:
        """Use other means from the next `watch` on."""
        with self._lock:
            if means == self._means:
                return
            self._means = means
            fanotify, self._fanotify = self._fanotify, None
            self._covered = {}
        if fanotify is not None:
            fanotify.stop()

    def _cover(self, stores: Iterable[Path]) -> list[Trigger]:
        """Have whole stores watched, as far as somebody can; give the wakes for what is new."""
        if self._means.watch_socket is None or not self._means.inotify:
            return []
        if self._fanotify is None:
            self._fanotify = Fanotify(
                self._touched, self._lose, place=self._means.watch_socket, loads=self._means.loads
            )
        roots: dict[Path, set[Path]] = {}
        for root in stores:
            place = _resolved(root)
            if _is_directory(place):
                roots.setdefault(place, set()).add(root)
        self._stores = {place: frozenset(some) for place, some in roots.items()}
        before = {place for place, one in self._covered.items() if isinstance(one, WatchCoverage)}
        self._covered = self._fanotify.cover(roots)
        now = {place for place, one in self._covered.items() if isinstance(one, WatchCoverage)}
        return [StoreChanged(root) for place in sorted(now - before) for root in sorted(roots[place])]

    def _touched(self, file_event: FileEvent) -> None:
        if self._stopped:
            return
        half = self._heard(file_event)
        if file_event.act is not FileAct.READ and not half:
            for root in self._stores.get(file_event.store, ()):
                self._post(StoreChanged(root))

    def stop(self) -> None:
        """Stop watching for good, and wait until no thread of ours is left."""
        logging.getLogger("watchdog").removeHandler(self._overflow)
        with self._lock:
            self._stopped = True
            observer, self._observer = self._observer, None
            fanotify, self._fanotify = self._fanotify, None
            self._watched.clear()
            self._covered = {}
            self._reason = "stopped"
        if fanotify is not None:
            fanotify.stop()
        if observer is not None:
            observer.stop()
            observer.join()

    def _set(self, wanted: dict[Path, frozenset[_Interest]]) -> list[Trigger]:
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
        fresh: list[Trigger] = []
        reason = ""
        for place, interests in sorted(wanted.items()):
            known = self._watched.get(place)
            if known is not None:
                fresh += [one.trigger for one in interests - known.ear.interests]
                known.ear.interests = interests
                continue
            identity = _identity(place)
            if identity is None or not os.access(place, os.R_OK | os.X_OK):
                # The next look will find what became of it; what we may not read we cannot watch.
                reason = reason or (f"{place}: permission denied" if identity is not None else "")
                continue
            ear = _DirectoryHandler(self._hear, interests)
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
            fresh += [one.trigger for one in interests]
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

    def _lose(self, why: str) -> None:
        """Events were lost, nobody knows of what: say so until the next look at everything."""
        if not self._stopped:
            self._reason = why
        self._hear(EventsLost())

    def _hear(self, trigger: Trigger) -> None:
        if not self._stopped:
            self._post(trigger)

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
    stores: Iterable[Path], drivers: Iterable[Path], models: Iterable[Path], whole: Collection[Path]
) -> Iterator[tuple[Path, _Interest]]:
    """Give the directories to listen at, links resolved, and for what.  ``whole`` are the stores heard of otherwise."""
    for root in stores:
        place = _resolved(root)
        if _is_directory(place):
            yield place, _Interest(StoreChanged(root))
            for device in _devices(place) if place not in whole else ():
                yield device, _Interest(StoreChanged(root))
        else:
            yield _missing(place, StoreChanged(root))
    for trigger, directories in ((DriverChanged(), drivers), (ModelsChanged(), models)):
        for directory in directories:
            place = _resolved(directory)
            if _is_directory(place):
                yield place, _Interest(trigger, files=True)
            else:
                yield _missing(place, trigger)


def _is_directory(place: Path) -> bool:
    # pathlib's own question raises where we may not look.
    try:
        return stat.S_ISDIR(place.stat().st_mode)
    except (OSError, ValueError):
        return False


def _resolved(path: Path) -> Path:
    # A watch on a link hears nothing of what happens in the directory.
    return Path(os.path.realpath(path))


def _missing(place: Path, trigger: Trigger) -> tuple[Path, _Interest]:
    """Give the nearest parent that is there, in which the way to a missing directory will begin."""
    for parent in place.parents:
        if _is_directory(parent):
            return parent, _Interest(trigger, towards=place)
    return Path("/"), _Interest(trigger, towards=place)


def _devices(root: Path) -> list[Path]:
    """Give the device directories of a store; the newest ones if there are very many."""
    try:
        with os.scandir(root) as children:
            some = [child for child, _ in zip(children, range(_LISTED), strict=False)]
            found = [Path(child.path) for child in some if child.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    if len(found) > _MOST_DEVICES:
        found.sort(key=_modified, reverse=True)
    return found[:_MOST_DEVICES]


def _modified(place: Path) -> int:
    try:
        return place.lstat().st_mtime_ns
    except OSError:
        return 0
