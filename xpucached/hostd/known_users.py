"""What the host's daemon knows of users and of their workers."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from xpucached.domain.users import SavedState, UserStatus, WorkerState
from xpucached.errors import SettingsError
from xpucached.hostd import user_client
from xpucached.hostd.owed import Owed

if TYPE_CHECKING:
    from collections.abc import Callable

    from xpucached.domain.status import StatusSummary


class KnownUsers:
    """Users by their numbers.  Used from one event loop."""

    def __init__(self, kept: SavedState, clock: Callable[[], datetime]) -> None:
        """``kept`` is what was known before."""
        self._clock = clock
        self.said: dict[int, UserStatus] = dict(kept.of())
        """In the order of their names."""
        self.owed = Owed(kept.owed)
        """Whose workers are to look again."""
        self.failing: dict[int, datetime] = {}
        """Since when a user's worker does not do what it should."""
        self.changed = asyncio.Event()
        """Set when something is to be written down."""

    def owe(self, whom: Callable[[UserStatus], bool]) -> None:
        """Note that some users' workers are to look again."""
        self.owed.add(uid for uid, one in self.said.items() if whom(one))

    def begin_anew(self) -> None:
        """Rest on no look that was made before now, and have all look again."""
        self.said = {uid: replace(one, looked=None) for uid, one in self.said.items()}
        self.owe(lambda _one: True)

    def note_summary(self, uid: int, summary: StatusSummary) -> None:
        """Take what a user's worker says of itself."""
        known = self.said.get(uid)
        if known is None:
            return
        fresh = user_client.digest(known, summary, self._clock())
        if replace(fresh, seen=None, looked=None) != replace(known, seen=None, looked=None):
            self.changed.set()
        self.said[uid] = fresh
        self.failing.pop(uid, None)

    def say(self, uid: int, *, state: WorkerState, sentence: str | None = None) -> None:
        """Note what a worker does now."""
        if state is WorkerState.FAILED:
            self.failing.setdefault(uid, self._clock())
        if known := self.said.get(uid):
            self.said[uid] = replace(known, state=state, sentence=known.sentence if sentence is None else sentence)

    def say_failed(self, uid: int, sentence: str, *, refused: bool = False) -> None:
        """Note that a worker does not do what it should; ``refused``: because its user's configuration is."""
        self.say(uid, state=WorkerState.FAILED, sentence=sentence)
        if known := self.said.get(uid):
            # What it said of its files when it ran is not why it fails now.
            others = tuple(code for code in known.problems if code != SettingsError.code)
            self.said[uid] = replace(known, problems=(*others, SettingsError.code) if refused else others)
