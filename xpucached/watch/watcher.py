"""Notice what happens in the stores, and at the driver, the model files and keys, by the best means there is."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from xpucached.domain.activity import FileAct, WatchMode
from xpucached.domain.triggers import EventsLost, StoreChanged
from xpucached.watch.fanotify_client import Fanotify, WatchCoverage
from xpucached.watch.inotify import DirectoryWatcher
from xpucached.watch.places import Interest, is_directory, places, resolved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from xpucached.domain.activity import FileEvent
    from xpucached.domain.triggers import Trigger

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What may be used to notice changes."""

    watch_socket: Path | None = None  #: the host's watcher, or rather a socket where it would be; None: no fanotify
    loads: bool = False  #: with fanotify, also what is only read
    inotify: bool = True


class Watcher:
    """Posts a wake whenever something happened where it matters; each wake is a hint, and may come twice.

    ``post`` is called from other threads, and so is ``on_event``, which is told every touch that fanotify shows, and
    tells whether more must follow before it means anything.  `watch`
    and `stop` may be called from any thread.
    """

    def __init__(
        self,
        post: Callable[[Trigger], None],
        options: WatchOptions = WatchOptions(),
        on_event: Callable[[FileEvent], bool | None] = lambda _: None,
    ) -> None:
        self._post = post
        self._options = options
        self._on_event = on_event
        self._fanotify: Fanotify | None = None
        self._covered: dict[Path, WatchCoverage | str] = {}
        self._stores: dict[Path, frozenset[Path]] = {}
        self._lock = threading.Lock()
        self._stopped = False
        self._reason = "nothing is watched yet"
        lost = "the kernel's queue of events was full, and some were lost"
        self._inotify = DirectoryWatcher(self._notify, lambda: self._lose(lost))

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
        return self._inotify.directories

    def watch(
        self,
        stores: Iterable[Path],
        drivers: Iterable[Path],
        models: Iterable[Path],
        options: WatchOptions | None = None,
        keys: Iterable[Path] = (),
    ) -> None:
        """Watch these and nothing else: the roots of stores, and directories of the driver, of model files and of keys.

        With ``options``, by these means from now on.

        To be called before the first look, and after each, because directories come and go.  What is newly watched is
        also posted at once: something may have happened there after a look and before we listened.
        Never raises for what it meets.
        """
        stores = list(stores)
        if options is not None:
            self.use(options)
        with self._lock:
            if self._stopped:
                return
            fresh = self._cover(stores)
            whole = {place for place, one in self._covered.items() if isinstance(one, WatchCoverage) and one.names}
            wanted: dict[Path, set[Interest]] = {}
            for place, interest in places(stores, drivers, models, keys, whole):
                wanted.setdefault(place, set()).add(interest)
            if self._options.inotify:
                new, why = self._inotify.set({place: frozenset(some) for place, some in wanted.items()})
                fresh += new
                self._give_up(why)
            else:
                self._inotify.set({})
                self._give_up("the configuration asks for it")
        for trigger in dict.fromkeys(fresh):
            self._post(trigger)

    def glance(self) -> None:
        """Post a wake for each directory that is not where it was, though nothing was heard of it.  Blocks."""
        with self._lock:
            moved = self._inotify.moved()
        for trigger in moved:
            self._post(trigger)

    def use(self, options: WatchOptions) -> None:
        """Use other means from the next `watch` on."""
        with self._lock:
            if options == self._options:
                return
            self._options = options
            fanotify, self._fanotify = self._fanotify, None
            self._covered = {}
        if fanotify is not None:
            fanotify.stop()

    def _cover(self, stores: Iterable[Path]) -> list[Trigger]:
        """Have whole stores watched, as far as somebody can; give the wakes for what is new."""
        if self._options.watch_socket is None or not self._options.inotify:
            return []
        if self._fanotify is None:
            self._fanotify = Fanotify(
                self._touched, self._lose, place=self._options.watch_socket, loads=self._options.loads
            )
        roots: dict[Path, set[Path]] = {}
        for root in stores:
            place = resolved(root)
            if is_directory(place):
                roots.setdefault(place, set()).add(root)
        self._stores = {place: frozenset(some) for place, some in roots.items()}
        before = {place for place, one in self._covered.items() if isinstance(one, WatchCoverage)}
        self._covered = self._fanotify.cover(roots)
        now = {place for place, one in self._covered.items() if isinstance(one, WatchCoverage)}
        return [StoreChanged(root) for place in sorted(now - before) for root in sorted(roots[place])]

    def _touched(self, file_event: FileEvent) -> None:
        if self._stopped:
            return
        half = self._on_event(file_event)
        if file_event.act is not FileAct.READ and not half:
            for root in self._stores.get(file_event.store, ()):
                self._post(StoreChanged(root))

    def stop(self) -> None:
        """Stop watching for good, and wait until no thread of ours is left."""
        with self._lock:
            self._stopped = True
            fanotify, self._fanotify = self._fanotify, None
            wait = self._inotify.stop()
            self._covered = {}
            self._reason = "stopped"
        if fanotify is not None:
            fanotify.stop()
        wait()

    def _lose(self, why: str) -> None:
        """Events were lost, nobody knows of what: say so until the next look at everything."""
        if not self._stopped:
            self._reason = why
        self._notify(EventsLost())

    def _notify(self, trigger: Trigger) -> None:
        if not self._stopped:
            self._post(trigger)

    def _give_up(self, reason: str) -> None:
        """Note why not all is watched, and log it when that changes."""
        if reason and reason != self._reason:
            log.warning("not everything is watched, the periodic look will notice the rest: %s", reason)
        elif self._reason and not reason:
            log.info("watching directories: %d", len(self._inotify.directories))
        self._reason = reason
