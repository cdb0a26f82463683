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
from io import TextIOWrapper
from typing import TYPE_CHECKING, Final

from xpucached.printing import lines, safe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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


_LARGEST: Final = 1 << 20
"""Bytes of a file of log lines; the one before it is kept."""


def in_background() -> bool:
    """Return whether stderr is a terminal at which somebody works with another program."""
    try:
        return os.isatty(2) and os.tcgetpgrp(2) != os.getpgrp()
    except OSError:
        return False


def begin(level: str, file: Path | None = None) -> None:
    """Write the log of this process to a file, or to stderr, from now on.  Raises `OSError`."""
    journal = file is None and "JOURNAL_STREAM" in os.environ
    handler = logging.StreamHandler(sys.stderr) if file is None else _to(file)
    # The journal keeps time and unit itself; it takes the priority from the head of the line.
    shape = "%(name)s: %(message)s" if journal else "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler.setFormatter(Formatter(shape, journal=journal))
    handler.addFilter(Bounded())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))


def _to(file: Path) -> logging.Handler:
    from logging.handlers import RotatingFileHandler  # noqa: PLC0415 - it takes memory, and few need it

    def private(name: str) -> int:
        return os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    class File(RotatingFileHandler):
        def _open(self) -> TextIOWrapper:
            return TextIOWrapper(os.fdopen(private(self.baseFilename), "ab"), "utf-8")

    file.parent.mkdir(0o700, parents=True, exist_ok=True)
    return File(file, maxBytes=_LARGEST, backupCount=1)
