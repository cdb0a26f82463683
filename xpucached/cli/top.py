"""Door: `xpucachectl top`: how the host stands, live in the terminal.  Touches the terminal.

It is written by hand and not with rich: every line is placed by itself and is cut where the terminal ends, so nothing
in a name can move anything else.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import tty
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NoReturn

from msgspec.structs import replace

from xpucached.api import looking
from xpucached.cli import connect, hints
from xpucached.errors import XpucachedError
from xpucached.render import top as picture
from xpucached.render.text import TextStyle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xpucached.cli.output import Output
    from xpucached.domain.overview import Overview

_EVERY: Final = 2.0
"""Seconds between two questions."""
_TURN: Final = 0.5
"""Seconds after which the size of the terminal is looked at again."""

_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # another screen, no cursor, no line goes on below
_LEAVE: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"


class _Asking:
    """Asks the daemon again and again, in a thread: one that does not answer keeps no key waiting."""

    def __init__(self, output: Output, first: Overview) -> None:
        self._output = output
        self.value, self.complaint = first, ""
        self.ears, self._mouth = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._ended = threading.Event()
        threading.Thread(target=self._ask, name="top", daemon=True).start()

    def end(self) -> None:
        """Ask nothing more."""
        self._ended.set()

    def _ask(self) -> None:
        while not self._ended.wait(_EVERY):
            try:
                # A connection each, so that a daemon that was started again is found.
                client, _ = connect.reach(self._output.options)
                with client:
                    self.value, self.complaint = client.call(looking.GetOverview()).value, ""
            except (XpucachedError, OSError) as error:
                self.complaint = error.message if isinstance(error, XpucachedError) else str(error)
            try:
                os.write(self._mouth, b".")
            except BlockingIOError:
                continue  # enough words wait there


def top(output: Output) -> int:
    """Show how the host stands until q is pressed, or once where nobody can press it; gives the exit status."""
    answer = output.client.call(looking.GetOverview())
    live = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    live = live and os.environ.get("TERM", "dumb") not in {"", "dumb"}
    if output.options.once or output.json or output.quiet or not live:
        output.tell(answer, _once, lambda value: value.verdict)
        return 0
    asking = _Asking(output, answer.value)
    try:
        with _terminal():
            _show(output, asking)
    finally:
        asking.end()
    return 0


def _once(value: Overview, style: TextStyle) -> str:
    return "\n".join(picture.lines(value, style, height=None))


def _show(output: Output, asking: _Asking) -> None:
    order, last, size = picture.Order.STATE, list[str](), (0, 0)
    keyboard = sys.stdin.fileno()
    while True:
        width, height = os.get_terminal_size(sys.stdout.fileno())
        style = TextStyle(datetime.now(UTC), max(1, width), colour=output.style.colour)
        value, complaint = asking.value, asking.complaint
        aimed = hints.aimed(value.sentence, hints.flags(output.options), os.environ)
        value = replace(value, sentence=aimed)
        if complaint:
            complaint = f"no answer; shown is {value.at:%H:%M:%S} UTC: {complaint}"
        lines = picture.lines(value, style, height=max(1, height), order=order, complaint=complaint)
        if lines != last or size != (width, height):
            body = "".join(f"\x1b[{row};1H\x1b[2K{line}" for row, line in enumerate(lines, 1))
            _write(f"{body}\x1b[J" if len(lines) < height else body)
            last, size = lines, (width, height)
        ready, _, _ = select.select([keyboard, asking.ears], [], [], _TURN)
        if asking.ears in ready:
            os.read(asking.ears, 4096)
        if keyboard in ready:
            try:
                keys = os.read(keyboard, 64).decode("ascii", "replace")
            except OSError:
                return  # the terminal went away
            if not keys or keys[0] in "qQ\x04":
                return
            order = picture.KEYS.get(keys[0], order)


def _write(text: str) -> None:
    # What `sys.stdout` is lets no escapes through; these are ours, and the lines between them are safe already.
    sys.stdout.flush()
    left = text.encode(sys.stdout.encoding or "ascii", "backslashreplace")
    while left:
        left = left[os.write(sys.stdout.fileno(), left) :]


@contextmanager
def _terminal() -> Iterator[None]:
    """Have the terminal for ourselves; it is as before whatever happens."""

    def go(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    handlers = {one: signal.signal(one, go) for one in (signal.SIGTERM, signal.SIGHUP)}
    try:
        tty.setcbreak(keyboard)
        ours = termios.tcgetattr(keyboard)
        # Who is stopped by Ctrl-Z would leave the terminal as it is now.
        ours[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(keyboard, termios.TCSANOW, ours)
        _write(_ENTER)
        yield
    finally:
        # A terminal that went away takes nothing.
        with suppress(OSError):
            _write(_LEAVE)
        with suppress(termios.error):
            termios.tcsetattr(keyboard, termios.TCSANOW, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
