"""Looks at what clients hand in, where nobody waits for it: a file system may be a user's own, and never answer."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from xpucached.watchd import ownership

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xpucached.watchd.ownership import Root
    from xpucached.watchd.uids import Holder

T = TypeVar("T")

_MOST: Final = 8  # threads from which an answer is expected
_PATIENCE: Final = 10.0  # seconds for which it is
_MOST_STUCK: Final = 64  # threads from which none is expected any more
_MOST_STUCK_UNKNOWN: Final = 32  # of those who have no account


@dataclass(eq=False, slots=True)
class Asked(Generic[T]):
    """A directory that a client handed in, and what was found out about it."""

    client: T
    uid: int
    holder: Holder
    number: int
    descriptor: int
    loads: bool
    found: Root | OSError | None = None


class Judges(Generic[T]):
    """One thread for each holder who hands something in; one whose file system does not answer waits for that alone.

    Used from one thread, but for `ring`, which is called from others when something is to be had from `done`.
    """

    def __init__(self, ring: Callable[[], None], patience: float = _PATIENCE) -> None:
        self._ring = ring
        self._patience = patience
        self._waiting: dict[Holder, deque[Asked[T]]] = {}
        self._began: dict[Holder, float] = {}
        self._stuck: dict[Holder, Asked[T]] = {}
        self._done: deque[Asked[T]] = deque()

    def of(self, holder: Holder) -> int:
        """Tell how many directories of somebody are held here."""
        return len(self._waiting.get(holder, ())) + (holder in self._stuck)

    def held(self, *, known: bool = True) -> int:
        """Tell how many of all are; without ``known`` of those only who have no account."""
        return sum(self.of(holder) for holder in {*self._waiting, *self._stuck} if known or not holder.known)

    def take(self, asked: Asked[T]) -> str:
        """Take one in, after those that the same holder handed in before; return why not, if it is not."""
        holder = asked.holder
        if holder in self._stuck:
            return "a directory that was handed in before does not answer, and no more is looked at meanwhile"
        if holder in self._waiting:
            self._waiting[holder].append(asked)
            return ""
        unknown = sum(not one.known for one in self._stuck)
        full = len(self._stuck) >= _MOST_STUCK or (not holder.known and unknown >= _MOST_STUCK_UNKNOWN)
        if full or len(self._waiting) >= _MOST:
            return "there are file systems that do not answer, and no more is looked at meanwhile"
        self._waiting[holder] = deque([asked])
        self._begin(asked)
        return ""

    def done(self) -> Iterator[Asked[T]]:
        """Give those that were looked at, and begin with the next of the same holders."""
        while self._done:
            asked = self._done.popleft()
            if self._stuck.get(asked.holder) is asked:
                # It was given up; nobody else closes it, for its thread used it until now.
                del self._stuck[asked.holder]
                os.close(asked.descriptor)
                continue
            waiting = self._waiting[asked.holder]
            waiting.popleft()
            if waiting:
                self._begin(waiting[0])
            else:
                self._forget(asked.holder)
            yield asked

    def overdue(self) -> Iterator[tuple[Asked[T], bool]]:
        """Give up those that do not answer, and what the same holders handed in after them.

        The second of each pair tells whether the descriptor may be closed: a thread still uses the first.
        """
        late = time.monotonic() - self._patience
        for holder in [holder for holder, began in self._began.items() if began < late]:
            first, *others = self._waiting[holder]
            if first in self._done:
                continue
            self._stuck[holder] = first
            self._forget(holder)
            first.found = OSError(errno.ETIMEDOUT, "its file system does not answer")
            yield first, False
            for asked in others:
                yield asked, True

    def _forget(self, holder: Holder) -> None:
        del self._waiting[holder], self._began[holder]

    def _begin(self, asked: Asked[T]) -> None:
        self._began[asked.holder] = time.monotonic()
        try:
            threading.Thread(target=self._look, args=(asked,), name="judge", daemon=True).start()
        except (RuntimeError, MemoryError):
            asked.found = OSError(errno.EAGAIN, "there is no thread to look at it; it may be tried again")
            self._done.append(asked)
            self._ring()

    def _look(self, asked: Asked[T]) -> None:
        found: Root | OSError
        try:
            found = ownership.judged(asked.uid, asked.number, asked.descriptor)
        except OSError as error:
            found = error
        except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits for the answer
            found = OSError(errno.EIO, str(error))
        asked.found = found
        self._done.append(asked)
        self._ring()
