"""Looks at what clients hand in, where nobody waits for it: a file system may be a user's own, and never answer."""

from __future__ import annotations

import errno
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from xpucached.lookout import places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xpucached.lookout.places import Root

T = TypeVar("T")

_MOST: Final = 8  # threads


@dataclass(eq=False, slots=True)
class Asked(Generic[T]):
    """A directory that a client handed in, and what was found out about it."""

    client: T
    uid: int
    number: int
    descriptor: int
    opens: bool
    found: Root | OSError | None = None


class Judges(Generic[T]):
    """One thread for each user who hands something in; a user whose file system does not answer waits for that alone.

    Used from one thread, but for `ring`, which is called from others when something is to be had from `done`.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._waiting: dict[int, deque[Asked[T]]] = {}
        self._done: deque[Asked[T]] = deque()

    def of(self, uid: int) -> int:
        """Tell how many directories of a user are held here."""
        return len(self._waiting.get(uid, ()))

    @property
    def held(self) -> int:
        """How many of all users are."""
        return sum(map(len, self._waiting.values()))

    def take(self, asked: Asked[T]) -> bool:
        """Take one in, after those that the same user handed in before; False if there are no threads left."""
        if asked.uid in self._waiting:
            self._waiting[asked.uid].append(asked)
            return True
        if len(self._waiting) >= _MOST:
            return False
        self._waiting[asked.uid] = deque([asked])
        self._begin(asked)
        return True

    def done(self) -> Iterator[Asked[T]]:
        """Give those that were looked at, and begin with the next of the same users."""
        while self._done:
            asked = self._done.popleft()
            waiting = self._waiting[asked.uid]
            waiting.popleft()
            if waiting:
                self._begin(waiting[0])
            else:
                del self._waiting[asked.uid]
            yield asked

    def _begin(self, asked: Asked[T]) -> None:
        threading.Thread(target=self._look, args=(asked,), name="judge", daemon=True).start()

    def _look(self, asked: Asked[T]) -> None:
        try:
            asked.found = places.judged(asked.uid, asked.number, asked.descriptor)
        except OSError as error:
            asked.found = error
        except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits for the answer
            asked.found = OSError(errno.EIO, str(error))
        self._done.append(asked)
        self._ring()
