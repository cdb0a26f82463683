"""Who has yet to be told that something may have changed; nothing that comes meanwhile is lost on who is being told."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Owed:
    """Users whose workers are to look again, each with what stands for the newest reason."""

    def __init__(self, uids: Iterable[int]) -> None:
        self._news: dict[int, object] = {}
        self._woken: dict[int, object] = {}
        self._taken: dict[int, object] = {}
        self.add(uids)

    def __iter__(self) -> Iterator[int]:
        """Return them, in the order in which they came."""
        return iter(tuple(self._news))

    def add(self, uids: Iterable[int]) -> None:
        """Note that there is something new for them."""
        self._news |= dict.fromkeys(uids, object())

    def take(self) -> list[int]:
        """Return whom there is something to be told that was not there the last time, in the order of `__iter__`."""
        before, self._taken = self._taken, dict(self._news)
        return [uid for uid, news in self._news.items() if before.get(uid) is not news]

    def news(self, uid: int) -> object | None:
        """Return what is to be told; None if nothing is."""
        return self._news.get(uid)

    def acknowledge(self, uid: int, news: object) -> None:
        """Note that this was told; what came meanwhile is to be told still."""
        if self._news.get(uid) is news:
            del self._news[uid]

    def should_wake(self, uid: int) -> bool:
        """Return whether one that went to sleep before it could be told is to be started for it: once for the same."""
        news = self._news.get(uid)
        if news is None or news is self._woken.get(uid):
            return False
        self._woken[uid] = news
        return True

    def forget(self, uid: int) -> None:
        """Tell this one nothing."""
        self._news.pop(uid, None)
