"""Whom the host's daemon looks after, and what is known of them.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from xpucached.domain.ahead import AheadState
from xpucached.domain.host import AUTOMATIC, Problem
from xpucached.domain.names import AwareDatetime, ModelName
from xpucached.domain.status import MOST_NAMES, Verdict


class WorkerState(StrEnum):
    """Where a user's worker is."""

    NEVER = "never"
    STARTING = "starting"
    AWAKE = "awake"
    ASLEEP = "asleep"
    ASIDE = "aside"
    DENIED = "denied"
    FAILED = "failed"


UNTENDED: Final = frozenset({WorkerState.ASIDE, WorkerState.DENIED})
"""States in which nothing is done for a user, so that what was known before tells nothing."""


class UserStatus(Struct, frozen=True):
    """One user, and what his worker last said."""

    user: str
    uid: int
    state: WorkerState = WorkerState.NEVER
    verdict: Verdict | None = None
    sentence: str = ""
    entries: int = 0
    allocated: int = 0
    warm: int = 0
    cold: int = 0
    models: tuple[ModelName, ...] = ()
    problems: tuple[str, ...] = ()  #: codes
    seen: AwareDatetime | None = None  #: when he last said so
    looked: AwareDatetime | None = None  #: when the look began that this rests on; None is before the boot, too
    failed: tuple[ModelName, ...] = ()  #: models that could not be warmed
    declared: tuple[ModelName, ...] = ()  #: models that the host's directory declares for this user
    working: bool = False  #: a replay or prewarm was under way
    busy: bool = False  #: something went on, or had yet to begin
    ahead: tuple[
        tuple[AheadState, str], ...
    ] = ()  #: drivers that are not installed: how far it is, and half a sentence
    due: bool = False  #: their worker has yet to be told that something may have changed

    @property
    def matters(self) -> bool:
        """Whether a change of the driver, or the next look, concerns him, as far as is known.

        What his worker failed to do by itself it tries again, and it may have gone to sleep before that is due.
        """
        has = self.seen is None or self.entries > 0 or bool(self.models or self.declared)
        return has or self.state is WorkerState.FAILED or AUTOMATIC in self.problems

    @property
    def untold(self) -> tuple[ModelName, ...]:
        """Models that are declared for him, and of which his worker, which names so many at most, has told nothing."""
        if not self.declared or self.state in UNTENDED or len(self.models) >= MOST_NAMES:
            return ()
        known = frozenset(self.models)
        return tuple(name for name in self.declared if name not in known)

    def with_declared(self, names: tuple[ModelName, ...]) -> UserStatus:
        """Return how he stands with these declared for him: what nobody has told of is not warm."""
        one = replace(self, declared=names)
        return replace(one, cold=one.cold + len(one.untold))


class HostStatus(Struct, frozen=True):
    """How the host stands, as far as the host's daemon may know."""

    version: str
    started: AwareDatetime
    stamp: str  #: digest of the driver's files and the kernel
    changed: AwareDatetime | None  #: when that last became another
    problems: tuple[Problem, ...]
    users: tuple[UserStatus, ...]
    looked: AwareDatetime | None = None  #: when users and driver were last looked at since the daemon started
    look_every: float = 0.0  #: seconds after which that is done again

    @property
    def known(self) -> tuple[UserStatus, ...]:
        """Users of whom it is known how they stand: of who has no worker by right only what held before."""
        return tuple(one for one in self.users if one.state not in UNTENDED)

    @property
    def in_vain(self) -> tuple[str, ...]:
        """Models that the host's directory declares for who is denied a worker: nobody warms them."""
        denied = [one for one in self.users if one.state is WorkerState.DENIED]
        return tuple(f"{one.user}:{name}" for one in denied for name in one.declared)


class SavedState(Struct, frozen=True):
    """What the host's daemon keeps from one life to the next."""

    stamp: str = ""
    changed: AwareDatetime | None = None
    users: tuple[UserStatus, ...] = ()
    owed: tuple[int, ...] = ()  #: whom it had yet to wake
    named: Mapping[ModelName, str] = {}  #: whose the models of the host's directory are
    staged: str = ""  #: what tells of what lies here of drivers that are not installed, and of keys
    elsewhere: tuple[tuple[int, bool], ...] = ()  #: whom the host's own file does not have, and who is told unasked
    files: str = ""  #: what tells of the files of the host's directory

    def of(self) -> Mapping[int, UserStatus]:
        """Return the users by their numbers."""
        return {one.uid: one for one in self.users}


class UserSocket(Struct, frozen=True):
    """Whose worker answers, and where."""

    user: str
    uid: int
    socket: Path
