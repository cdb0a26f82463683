"""Observe: "look again".  Home of watchdog.  A wake is a hint; the truth is on disk, and the periodic look needs no hint.

Shallow and never recursive: a SYCL entry has three directories of its own, and a watch for each loses most of a burst and
exhausts the kernel's watches, silently.  A new program always makes a directory in its device's directory, so the root
and the device directories tell of everything but new slots in old leaves, which the periodic look finds.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch

from xpucached.domain import DriverTouched, ModelsTouched, StoreTouched, Wake

log = logging.getLogger(__name__)

_CHANGES: Final = frozenset({"created", "deleted", "moved", "modified", "closed"})
"""What counts: reading a directory or opening a file changes nothing."""

_DEVICES: Final = 64
"""So many device directories of one store are watched.  More are a store of many drivers' remains."""


class _Handler(FileSystemEventHandler):
    def __init__(self, post: Callable[[Wake], None], wakes: frozenset[Wake], deep: frozenset[str]) -> None:
        self._post = post
        self._wakes = wakes
        self._awaited = deep

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type not in _CHANGES:
            return
        if self._awaited:
            # We only wait for one of these names to appear here; what else happens is none of our business.
            names = {os.path.basename(os.fsdecode(path)) for path in (event.src_path, event.dest_path) if path}
            if not names & self._awaited:
                return
        for wake in self._wakes:
            self._post(wake)


class Watcher:
    """Watches directories and posts wakes, from watchdog's threads."""

    def __init__(self, post: Callable[[Wake], None]) -> None:
        """``post`` must be safe to call from any thread."""
        self._post = post
        self._lock = threading.Lock()
        self._observer: BaseObserver | None = None
        self._watches: dict[str, tuple[ObservedWatch, frozenset[Wake], frozenset[str], int]] = {}
        self._mode = "none"

    @property
    def mode(self) -> str:
        """Tell how we watch: ``inotify``, or ``polling`` and why."""
        return self._mode

    def watch(self, stores: Iterable[Path], drivers: Iterable[Path], models: Iterable[Path]) -> None:
        """Watch these and nothing else from now on.  Cheap if little changed; never raises."""
        wanted: dict[str, set[Wake]] = {}
        awaited: dict[str, set[str]] = {}

        def add(path: Path, wake: Wake) -> None:
            missing = ""
            while not path.is_dir():
                missing, parent = path.name, path.parent
                if parent == path:
                    return
                path = parent
            name = os.fspath(path)
            if missing:
                awaited.setdefault(name, set()).add(missing)
            else:
                awaited.setdefault(name, set()).add("")
            wanted.setdefault(name, set()).add(wake)

        for root in stores:
            add(root, StoreTouched(root))
            for device in _devices(root):
                add(device, StoreTouched(root))
        for path in drivers:
            add(path, DriverTouched())
        for path in models:
            add(path, ModelsTouched())
        # A directory that is wanted for itself reports everything.
        names = {name: frozenset() if "" in given else frozenset(given) for name, given in awaited.items()}
        with self._lock:
            self._apply({name: (frozenset(wakes), names[name]) for name, wakes in wanted.items()})

    def _apply(self, wanted: Mapping[str, tuple[frozenset[Wake], frozenset[str]]]) -> None:
        if self._observer is None:
            self._observer = Observer()
            try:
                self._observer.start()
            except OSError as error:
                self._observer = None
                self._mode = f"polling: {error.strerror}"
                return
        for name, (watch, wakes, awaited, inode) in list(self._watches.items()):
            # A directory that was removed and made again has lost its watch without a word.
            if wanted.get(name) != (wakes, awaited) or _inode(name) != inode:
                self._observer.unschedule(watch)
                del self._watches[name]
        self._mode = "inotify"
        for name, (wakes, awaited) in wanted.items():
            if name in self._watches:
                continue
            try:
                watch = self._observer.schedule(_Handler(self._post, wakes, awaited), name, recursive=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._mode = f"polling: {error.strerror}: {name}"
                log.warning("cannot watch, the periodic look will do: %s: %s", error.strerror, name)
                return
            self._watches[name] = (watch, wakes, awaited, _inode(name))

    def stop(self) -> None:
        """Watch nothing, and leave no thread."""
        with self._lock:
            observer, self._observer = self._observer, None
            self._watches.clear()
            self._mode = "none"
        if observer is not None:
            observer.stop()
            observer.join()


def _devices(root: Path) -> list[Path]:
    try:
        with os.scandir(root) as found:
            return sorted(Path(one.path) for one in found if one.name.isdigit() and one.is_dir(follow_symlinks=False))[
                :_DEVICES
            ]
    except OSError:
        return []


def _inode(name: str) -> int:
    try:
        return os.stat(name).st_ino
    except OSError:
        return -1
