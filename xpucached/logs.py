"""How a daemon writes its log: lines that nobody can forge, flood, or fill with escapes.

Much of what is logged was said by others: a request, a worker, a child, a store.  So a line is one line, of a bounded
length and of safe text; and of one kind of line (one place in the program) only so many are written in a while: those
that were left out are counted, and told with the next one.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import TYPE_CHECKING, Final

from xpucached.printing import lines, safe

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST: Final = 2000
"""Characters of a message; a traceback may have several times as many."""

BURST: Final = 20
"""So many lines of one kind may come at once."""

EVERY: Final = 10.0
"""Seconds after which one more of a kind may come."""

_TRACEBACK: Final = 10 * LONGEST
_KINDS: Final = 2000
_NOISY: Final = ("alembic", "apscheduler", "uvicorn", "watchdog")


class Allowance:
    """How often something may still happen: ``burst`` times at once, and once more every so many seconds."""

    def __init__(self, burst: int = BURST, every: float = EVERY, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._every = every
        self._clock = clock
        self._left: dict[object, tuple[float, float, int]] = {}

    def spend(self, kind: object) -> int | None:
        """Spend one of a kind: None if there is none left, else how many have been refused since the last one."""
        now = self._clock()
        if kind not in self._left and len(self._left) >= _KINDS:
            self._left.pop(next(iter(self._left)))
        left, then, refused = self._left.get(kind, (float(self._burst), now, 0))
        left = min(float(self._burst), left + (now - then) / self._every)
        if left < 1:
            self._left[kind] = (left, now, refused + 1)
            return None
        self._left[kind] = (left - 1, now, 0)
        return refused


class Bounded(logging.Filter):
    """Lets only so many lines of one kind through."""

    def __init__(self, allowance: Allowance | None = None) -> None:
        super().__init__()
        self._allowance = allowance or Allowance()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written; says with it how many were not."""
        refused = self._allowance.spend((record.name, record.levelno, record.pathname, record.lineno))
        if refused is None:
            return False
        record.left_out = refused
        return True


class Formatter(logging.Formatter):
    """Writes a line as it may be seen; for the journal with the priority before it."""

    def __init__(self, shape: str, *, journal: bool) -> None:
        super().__init__(shape)
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        """Write one line, and below it the traceback if there is one."""
        message = safe(" ".join(record.getMessage().split("\n")))
        left_out = getattr(record, "left_out", 0)
        more = f" ({left_out} lines like this were left out before)" if left_out else ""
        bounded = logging.makeLogRecord({**record.__dict__, "msg": _cut(message, LONGEST) + more, "args": None})
        bounded.exc_text = None
        text = super().format(bounded)
        if not self._journal:
            return text
        priority = 3 if record.levelno >= logging.ERROR else 4 if record.levelno >= logging.WARNING else 6
        if record.levelno < logging.INFO:
            priority = 7
        return "\n".join(f"<{priority}>{line}" for line in text.split("\n"))

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's name
        """Write a traceback; its last words count most.  It is indented, so that none of it looks like a line."""
        text = lines(super().formatException(ei))  # type: ignore[arg-type] # as logging hands it in
        text = text if len(text) <= _TRACEBACK else f"…{text[-_TRACEBACK:]}"
        return "\n".join(f"  {line}" for line in text.split("\n"))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def begin(level: str) -> None:
    """Write the log of this process to stderr from now on."""
    journal = "JOURNAL_STREAM" in os.environ
    handler = logging.StreamHandler(sys.stderr)
    # The journal keeps time and unit itself; it takes the priority from the head of the line.
    shape = "%(name)s: %(message)s" if journal else "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler.setFormatter(Formatter(shape, journal=journal))
    handler.addFilter(Bounded())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
