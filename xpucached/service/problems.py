"""What does not work just now: each trouble has a code, is shown by `status`, and goes when it works again."""

from __future__ import annotations

import errno
import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from xpucached.domain.host import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from xpucached.domain.defects import StoreFault
    from xpucached.service.events import Clock

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_JUMP: Final = 60.0
"""A clock that is corrected by less than this changes no decision: the shortest times in a policy are minutes."""
_DISTRUST: Final = 3600.0
"""So long nothing goes for its age after the clock has jumped: a wrong clock is put right within minutes, or seen."""


_REMEMBERED: Final = 3600.0
"""So long a failed write is shown, unless one succeeds before: nobody may try again."""


class ProblemList:
    """The troubles of this moment.  Used from any thread: each step is one operation on a dictionary."""

    def __init__(self) -> None:
        self._now: dict[tuple[str, str], Problem] = {}
        self._failed: dict[str, float] = {}
        """When something last could not be written, by the store: a quota is not seen by looking."""

    def note(self, problem: Problem) -> None:
        """Show a trouble, in place of one with its code and subject."""
        self._now[problem.code, problem.subject] = problem

    def clear(self, code: str, subject: str = "") -> None:
        """Show a trouble no longer."""
        self._now.pop((code, subject), None)

    def forget(self, subject: str) -> None:
        """Show no trouble of something that is gone."""
        for key in [key for key in list(self._now) if key[1] == subject]:
            self._now.pop(key, None)

    def all(self) -> tuple[Problem, ...]:
        """Give them in an order that stays."""
        return tuple(self._now[key] for key in sorted(self._now) if key in self._now)

    # -- stores ---------------------------------------------------------------------------------------------------

    def unreadable(self, root: Path, why: str) -> None:
        """Note that a store could not be read; what was known of it stays known."""
        self.note(
            Problem(
                "store-unreadable",
                f"{root} cannot be read: {why or 'permission denied'}; what was known of it before stays",
                "look at its permissions and at the kernel's log; it is tried again at each look",
                str(root),
            )
        )

    def faults(self, root: Path, found: Iterable[StoreFault]) -> None:
        """Note what is wrong with a store as a whole and can be put right; called after a look at all of it."""
        wrong = "; ".join(one.message for one in found if one.clearable)
        if wrong:
            self.note(Problem("store-fault", f"{root}: {wrong}", "run: xpucachectl doctor --fix", str(root)))
        else:
            self.clear("store-fault", str(root))

    def failed(self, root: Path, error: OSError) -> None:
        """Note that something could not be written or removed in a store."""
        self._failed[str(root)] = time.monotonic()
        message = f"{root} cannot be written: {error.strerror or error}"
        if error.errno in _FULL:
            self.note(Problem("store-full", message, "make room, or raise the quota", str(root)))
        else:
            hint = "look at its permissions and at the kernel's log"
            self.note(Problem("store-failing", message, hint, str(root)))

    def worked(self, root: Path) -> None:
        """Note that something could be written in a store."""
        if self._failed.pop(str(root), None) is not None:
            self.clear("store-full", str(root))
            self.clear("store-failing", str(root))

    def look(self, root: Path) -> None:
        """Note whether there is room for changes where a store lies; called after a look that could read it."""
        subject = str(root)
        self.clear("store-unreadable", subject)
        self.clear("store-read-only", subject)
        if time.monotonic() - self._failed.get(subject, -_REMEMBERED) >= _REMEMBERED:
            self._failed.pop(subject, None)
            self.clear("store-full", subject)
            self.clear("store-failing", subject)
        try:
            room = os.statvfs(root)
        except OSError:
            return
        if room.f_flag & os.ST_RDONLY:
            self.note(
                Problem(
                    "store-read-only",
                    f"{root} is on a file system that is mounted read-only: nothing there can be evicted or rebuilt",
                    "after an error the kernel mounts so by itself: look at its log, then mount it for writing again",
                    subject,
                )
            )
        elif room.f_blocks and not room.f_bavail:
            self.note(
                Problem(
                    "store-full",
                    f"{root} is on a file system that is full: programs cannot cache there",
                    "make room; xpucachectl evict frees what may go",
                    subject,
                )
            )


class ClockGuard:
    """Tells whether the wall clock goes as time does; ages are believed only while it did."""

    def __init__(self, clock: Clock, steady: Callable[[], float] | None = None) -> None:
        """``steady`` counts seconds that no administrator sets, also while the machine sleeps."""
        self._clock = clock
        self._steady = steady or (lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
        self._offset = self._now()
        self._distrusted_until = 0.0
        self.jumps = 0  #: how often the clock was set

    def _now(self) -> float:
        return self._clock().timestamp() - self._steady()

    def jumped(self) -> float | None:
        """Return the seconds by which the clock was set since this was last asked; None if it was not."""
        offset = self._now()
        jump, self._offset = offset - self._offset, offset
        if abs(jump) < _JUMP:
            return None
        self.jumps += 1
        self._distrusted_until = self._steady() + _DISTRUST
        return jump

    @property
    def distrusted(self) -> bool:
        """Whether the clock jumped a short while ago."""
        return self._steady() < self._distrusted_until


def clock_jumped(seconds: float) -> Problem:
    """Say that the clock was set."""
    way = "forward" if seconds > 0 else "back"
    by = str(timedelta(seconds=round(abs(seconds)))).removesuffix(", 0:00:00")
    return Problem(
        "clock-jumped",
        f"the clock was set {way} by {by}; for an hour nothing is evicted by itself",
        "nothing, if the clock is right now; xpucachectl evict --dry-run shows what would go",
    )


def catalog_failing(message: str, hint: str) -> Problem:
    """Say that what is seen cannot be recorded."""
    return Problem("catalog-failing", f"{message}; what is shown may be old", hint)


def catalog_rebuilt(message: str) -> Problem:
    """Say that the catalog is a new one."""
    hint = "register again what is missing in: xpucachectl model list; then remove the old catalog, which is kept"
    return Problem("catalog-rebuilt", message, hint)


def not_watched(reason: str) -> Problem:
    """Say that changes are noticed late."""
    return Problem(
        "not-watched",
        f"not every change is noticed at once, but at the next look: {reason}",
        "where it is the kernel's limit, raise fs.inotify.max_user_watches; or nothing, if ten minutes are soon enough",
    )
