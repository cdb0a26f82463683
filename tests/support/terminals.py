"""Programs on a terminal of their own."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

LEFT: Final = r"\x1b\[\?7h\x1b\[\?25h\x1b\[\?1049l"
"""What is written when a program that had another screen leaves it."""

LAUNCHER: Final = """
import fcntl, signal, sys, termios
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from xpucached.cli import main
{first}
sys.exit(main())
"""


class Terminal:
    """A program on a terminal of its own."""

    def __init__(
        self,
        *words: str,
        columns: int = 100,
        rows: int = 24,
        term: str = "xterm",
        first: str = "",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """``first`` is run before the program."""
        self.ours, self.its = pty.openpty()
        self.resize(columns, rows)
        self.before = termios.tcgetattr(self.its)
        self.text = ""
        self.program = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER.format(first=first), *words],
            stdin=self.its,
            stdout=self.its,
            stderr=self.its,
            env={**os.environ, **(variables or {}), "TERM": term, "NO_COLOR": "1"},
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.program.kill()
        self.program.wait()

    def resize(self, columns: int, rows: int) -> None:
        """Make the window so large."""
        fcntl.ioctl(self.its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, pattern: str) -> str:
        """Read until something was written since the last time, and give all that was."""
        end = time.monotonic() + 30
        while not re.search(pattern, self.text, re.DOTALL):
            assert time.monotonic() < end, (pattern, self.text[-2000:])
            if select.select([self.ours], [], [], 0.2)[0]:
                self.text += os.read(self.ours, 65536).decode("utf-8", "replace")
        text, self.text = self.text, ""
        return text

    def close(self) -> int:
        """Wait for its end; gives its status.  The terminal must be as it was."""
        status = self.program.wait(30)
        assert termios.tcgetattr(self.its) == self.before
        os.close(self.ours)
        os.close(self.its)
        return status
