"""Listen at directories by inotify.  Home of watchdog."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from itertools import islice
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
from watchdog.observers.api import BaseObserver
from watchdog.observers.inotify import InotifyEmitter, InotifyObserver
from watchdog.observers.inotify_c import InotifyConstants, InotifyFD, Mask
from watchdog.observers.inotify_move_event_grouper import PathedInotifyEvent

from xpucached.watch.places import Interest, identity, may_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from watchdog.observers.api import ObservedWatch
    from watchdog.observers.inotify_c import InotifyEvent
    from watchdog.observers.inotify_move_event_grouper import GroupedInotifyEvent

    from xpucached.domain.triggers import Trigger

log = logging.getLogger(__name__)

MOST: Final = 512
"""Directories that are watched.  Each costs a thread, and programs name as many stores as they like."""

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


_AWAY: Final = InotifyConstants.IN_MOVE_SELF | InotifyConstants.IN_UNMOUNT


class _Emitter(InotifyEmitter):
    """Ends, with a word, also when its directory was moved away or unmounted: at its path there is another, or none.

    The library's own goes on, and hears nothing any more: what is mounted again has the same device and inode.
    """

    def get_event_mask_from_filter(self) -> Mask:
        """Return what the kernel is to tell of; of what is unmounted it tells by itself."""
        return Mask(super().get_event_mask_from_filter() | InotifyConstants.IN_MOVE_SELF)

    def build_and_queue_event(self, event: GroupedInotifyEvent, *, full_events: bool = False) -> None:
        """Tell of what the kernel said."""
        if isinstance(event, PathedInotifyEvent) and event.ev.mask & _AWAY:
            self.queue_event(DirDeletedEvent(self.watch.path))
            self.stop()
        else:
            super().build_and_queue_event(event, full_events=full_events)


class _Queue(InotifyFD):
    """Tells also that the kernel's queue was full: of that the library writes a log, which may be off."""

    def __init__(self, lost: Callable[[], None]) -> None:
        super().__init__()
        self._lost = lost

    def handle_event(self, event: InotifyEvent) -> None:
        """Take what the kernel said."""
        super().handle_event(event)
        if event.is_queue_overflow:
            self._lost()


class _Observer(InotifyObserver):
    """Listens by these."""

    def __init__(self, lost: Callable[[], None]) -> None:
        self._inotify_fd = _Queue(lost)
        try:
            self._inotify_fd.start()
        except RuntimeError:
            # No thread of its own will close what it opened when it was made.
            self._inotify_fd._close_resources()  # noqa: SLF001 - the library has no other way
            raise
        BaseObserver.__init__(self, _Emitter, inotify_fd=self._inotify_fd)

    def is_alive(self) -> bool:
        """Return whether it hears the kernel, and passes on what it hears."""
        return super().is_alive() and self._inotify_fd.is_alive()


class _DirectoryHandler(FileSystemEventHandler):
    """Hears what happens in one directory.  Called from watchdog's thread."""

    def __init__(self, post: Callable[[Trigger], None], interests: frozenset[Interest]) -> None:
        self._post = post
        self.interests = interests

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Post the wakes of those whom it concerns."""
        places = [Path(os.fsdecode(path)) for path in (event.src_path, event.dest_path) if path]
        for trigger in dict.fromkeys(one.trigger for one in self.interests if one.concerns(places)):
            try:
                self._post(trigger)
            except Exception:
                # watchdog's thread must live on, and the wake is only a hint.
                log.exception("a wake could not be posted: %s", trigger)


@dataclass(slots=True)
class _Watched:
    """A directory that is watched."""

    handler: _DirectoryHandler
    watch: ObservedWatch
    identity: tuple[int, int]  #: device and inode
    files: bool


class DirectoryWatcher:
    """Posts the triggers of those whom it concerns that something happened in a directory.

    ``post`` and ``lost`` are called from watchdog's threads.  The rest is called from one thread at a time.
    """

    def __init__(self, post: Callable[[Trigger], None], lost: Callable[[], None]) -> None:
        self._post = post
        self._observer: InotifyObserver | None = None
        self._watched: dict[Path, _Watched] = {}
        self._denied: dict[Path, frozenset[Interest]] = {}
        """What is wanted and could not be watched, for we may not read it."""
        self._lost = lost

    @property
    def directories(self) -> frozenset[Path]:
        """The directories that are watched now."""
        return frozenset(self._watched)

    def stop(self) -> Callable[[], None]:
        """Watch nothing any more; what is given waits until no thread of ours is left."""
        observer, self._observer = self._observer, None
        self._watched.clear()
        self._denied.clear()
        if observer is None:
            return lambda: None
        observer.stop()
        return observer.join

    def moved(self) -> frozenset[Trigger]:
        """Return the triggers of those directories that are not where they were, or that we may read by now.

        Of what is moved above one the kernel says nothing to who listens there, and who may not read listens nowhere.
        """
        changed = [one.handler.interests for place, one in self._watched.items() if one.identity != identity(place)]
        changed += [interests for place, interests in self._denied.items() if may_read(place)]
        return frozenset(interest.trigger for interests in changed for interest in interests)

    def set(self, wanted: dict[Path, frozenset[Interest]]) -> tuple[list[Trigger], str]:
        """Watch these and no others; give the triggers for what is new, and why something is not watched, if so.

        Of very many it is the first ones.
        """
        reason = f"there are more than {MOST} directories to watch" if len(wanted) > MOST else ""
        wanted = dict(islice(wanted.items(), MOST))
        self._denied.clear()
        try:
            observer = self._started()
        except (OSError, RuntimeError) as error:
            return [], str(error)
        alive = {emitter.watch for emitter in observer.emitters if emitter.is_alive()}
        for place, one in list(self._watched.items()):
            interests = wanted.get(place, frozenset())
            kept = (
                interests and one.watch in alive and one.identity == identity(place) and one.files == _files(interests)
            )
            if not kept:
                # Gone, or another directory of that name by now: the watch is on the old one.
                del self._watched[place]
                _release(observer, one.watch)
        fresh: list[Trigger] = []
        for place, interests in wanted.items():
            known = self._watched.get(place)
            if known is not None:
                fresh += [one.trigger for one in interests - known.handler.interests]
                known.handler.interests = interests
                continue
            which = identity(place)
            if which is None:
                # The next look will find what became of it.
                continue
            if not may_read(place):
                self._denied[place] = interests
                if not all(one.heard for one in interests):
                    reason = reason or f"{place}: permission denied"
                continue
            handler = _DirectoryHandler(self._post, interests)
            files = _files(interests)
            try:
                watch = observer.schedule(handler, os.fspath(place), event_filter=_FILES if files else _DIRECTORIES)
            except FileNotFoundError:
                continue
            except (OSError, RuntimeError) as error:
                # The kernel's limit of watches, instances or threads: the others would meet it as well.
                reason = f"{place}: {error}"
                break
            self._watched[place] = _Watched(handler, watch, which, files)
            fresh += [one.trigger for one in interests]
        return fresh, reason

    def _started(self) -> InotifyObserver:
        if self._observer is None or not self._observer.is_alive():
            self._watched.clear()
            if self._observer is not None:
                self._observer.stop()
            observer = _Observer(self._lost)
            try:
                observer.start()
            except BaseException:
                # It began a thread of its own when it was made.
                observer.stop()
                raise
            self._observer = observer
        return self._observer


def _release(observer: InotifyObserver, watch: ObservedWatch) -> None:
    try:
        observer.unschedule(watch)
    except (KeyError, OSError):
        log.debug("a watch was gone already: %s", watch.path)


def _files(interests: Iterable[Interest]) -> bool:
    return any(one.files for one in interests)
