"""Observe and hold: how many compilers of all users of this host work at once, together; a locked file for each.

The host's daemon makes as many empty files as the host has cores.  Whoever compiles holds the lock of one of them, and
the kernel frees it with the holder's life.  Anybody may lock them, so nothing depends on their becoming free: who gets
none for a while goes on with one compiler all the same.

Models' runs hold none of these: a program has threads of its own, which a core held for it would not bound, and for
most of its time it compiles nothing.  Of runs that nobody waits for two go on at once, by two more files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached.host.roots import HERE

if TYPE_CHECKING:
    from collections.abc import Callable

    from xpucached.host.roots import HostRoots

DIRECTORY: Final = "cores"
"""Its name in the directory that the host's daemon has below /run."""

_QUEUE: Final = "next"
"""Whoever waits for a core holds the lock of this file: who had one does not come before it again."""

_RUNS: Final = ("run-0", "run-1")
"""Whose models are run by themselves holds the lock of one of these files."""

_MOST: Final = 256
"""So many files are looked at, and made, at most."""

_TERM: Final = 2.0
"""Seconds after which a core is handed on, if somebody waits for it."""

_BEAT: Final = 0.1
"""Seconds between two looks for a free core."""

_PATIENCE: Final = 60.0
"""Seconds without any core after which one compiler works without."""

_FAIR: Final = 4.0
"""Seconds of waiting that a second with a core makes good: who lends cores for moments starves nobody either."""


def make(runtime: Path, count: int) -> None:
    """Make the files in a directory of ours, for so many cores; what is too many goes.  Raises OSError."""
    place = runtime / DIRECTORY
    place.mkdir(0o755, exist_ok=True)
    place.chmod(0o755)
    wanted = {_QUEUE, *_RUNS, *(str(number) for number in range(max(1, min(count, _MOST))))}
    # Those that are there stay: another file of the same name would be another lock.
    for name in sorted(wanted):
        flags = os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(place / name, flags, 0o444)
        try:
            os.fchmod(descriptor, 0o444)
        finally:
            os.close(descriptor)
    for path in list(place.iterdir()):
        if path.name not in wanted:
            path.unlink()


class CoreSlot:
    """What one compiler at a time works by.  Used from one thread."""

    def __init__(self, budget: CoreBudget) -> None:
        self._budget = budget
        self._descriptor: int | None = None  # holds the lock, if there was one to be had
        self._since = 0.0
        self._until: float | None = None  # None: it is not held

    def hold(self, cancel: threading.Event) -> bool:
        """Wait for a core, or go on with the one that is held for some moments more; False if that was cancelled."""
        if cancel.is_set():
            return False
        if self._until is not None:
            if self._budget.clock() < self._until:
                return True
            self.give_back()
        found, self._descriptor = self._budget.take(cancel)
        if found:
            self._since = self._budget.clock()
            self._until = self._since + _TERM
        return found

    def give_back(self) -> None:
        """Let others have it."""
        had = self._descriptor is not None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        if self._until is not None:
            self._until = None
            self._budget.leave(self._budget.clock() - self._since if had else 0.0)


class CoreBudget:
    """The host's cores, as far as this process gets them.  Any thread may use it."""

    def __init__(
        self, places: HostRoots = HERE, clock: Callable[[], float] = time.monotonic, patience: float = _PATIENCE
    ) -> None:
        self._place = places.run / "xpucached-host" / DIRECTORY
        self.clock = clock
        self._patience = patience
        self._asking = threading.Lock()  # one of ours waits in the queue of all
        self._lock = threading.Lock()
        self._working = 0
        self._without: float | None = None  # since when this process has had none though it wanted one
        self._waited = 0.0  # seconds of waiting before that, less what work with cores has made good

    def slot(self) -> CoreSlot:
        """Return what a thread that drives a compiler holds a core with."""
        return CoreSlot(self)

    def take(self, cancel: threading.Event) -> tuple[bool, int | None]:
        """Wait for a core; gives whether there is one for us, and the descriptor that holds its lock, if it has one."""
        while not self._asking.acquire(timeout=_BEAT):
            if cancel.is_set():
                return False, None
        queue: int | None = None
        try:
            while not cancel.is_set():
                names = self._names()
                if not names:
                    # The host has no daemon: everybody has all cores, as every other program.
                    return self._began(None)
                if queue is None:
                    queue = _locked(self._place / _QUEUE)
                if queue is not None:
                    for name in names:
                        if (descriptor := _locked(self._place / name)) is not None:
                            return self._began(descriptor)
                if self._is_starved():
                    return self._began(None, starved=True)
                cancel.wait(_BEAT)
            with self._lock:
                # From now on it wants none.
                self._count_waiting()
            return False, None
        finally:
            if queue is not None:
                os.close(queue)
            self._asking.release()

    def leave(self, worked: float = 0.0) -> None:
        """Note that one of ours does not work any more, and for how many seconds it had a core."""
        with self._lock:
            self._working -= 1
            self._waited = max(0.0, self._waited - _FAIR * worked)

    def _names(self) -> list[str]:
        """Return the files of cores; none where there are none, or they cannot be seen."""
        try:
            with os.scandir(self._place) as found:
                return [one.name for one in islice(found, _MOST + 1 + len(_RUNS)) if one.name.isdecimal()]
        except OSError:
            return []

    def _is_starved(self) -> bool:
        """Return whether one of ours is to work though there is no core for it."""
        with self._lock:
            if self._working:
                return False
            now = self.clock()
            if self._without is None:
                self._without = now
            return self._waited + now - self._without >= self._patience

    def _count_waiting(self) -> None:
        if self._without is not None:
            self._waited = min(self._patience, self._waited + self.clock() - self._without)
            self._without = None

    def _began(self, descriptor: int | None, *, starved: bool = False) -> tuple[bool, int | None]:
        with self._lock:
            self._working += 1
            if not starved:
                self._count_waiting()
        return True, descriptor


class RunSlot:
    """What a daemon runs models by that nobody waits for.  Used from one event loop."""

    def __init__(self, places: HostRoots = HERE) -> None:
        self._place = places.run / "xpucached-host" / DIRECTORY
        self._descriptor: int | None = None

    def hold(self) -> bool:
        """Take a place, unless one is held; False if others hold all there are.  Where there are none, nobody waits."""
        if self._descriptor is not None:
            return True
        there = [path for path in (self._place / name for name in _RUNS) if os.access(path, os.R_OK)]
        self._descriptor = next((one for one in map(_locked, there) if one is not None), None)
        return self._descriptor is not None or not there

    def give_back(self) -> None:
        """Let others have it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _locked(path: Path) -> int | None:
    """Return a descriptor that holds the lock of a file; None if somebody else does, or it cannot be opened."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    os.close(descriptor)
    return None
