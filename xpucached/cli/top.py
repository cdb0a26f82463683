"""Door: `xpucachectl top`: how the host stands, live in the terminal.  Touches the terminal.

It is written by hand and not with rich: every line is placed by itself and is cut where the terminal ends, so nothing
in a name can move anything else.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
import threading
import tty
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Generic, NoReturn, TypeVar

from msgspec.structs import replace

from xpucached.api import host_requests, looking
from xpucached.cli import connect, hints
from xpucached.domain.host_overview import HostOverview
from xpucached.domain.overview import Overview
from xpucached.errors import Denied, XpucachedError
from xpucached.processes import polling
from xpucached.render import host_usage
from xpucached.render import top as picture
from xpucached.render.text import TextStyle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xpucached.api.client import Client
    from xpucached.api.endpoints import Request
    from xpucached.cli.output import Output

V = TypeVar("V", Overview, HostOverview)

_EVERY: Final = 2.0
"""Seconds between two questions while something is under way, and where nobody tells what happens."""
_WAIT: Final = 20.0
"""Seconds after which it is asked anew though nothing happened and nothing is under way."""
_TURN: Final = 0.5
"""Seconds after which the size of the terminal is looked at again."""

_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # another screen, no cursor, no line goes on below
_LEAVE: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"


class _Picture(Generic[V]):
    """What is asked for and how it is drawn."""

    def __init__(self, request: Request[V], draw: Callable[..., list[str]], busy: Callable[[V], bool] | None) -> None:
        """``busy`` says whether something is under way; None: whoever is asked does not tell what happens."""
        self.request: Request[V] = request
        self.draw = draw
        self.busy: Callable[[V], bool] | None = busy


class _Asking(Generic[V]):
    """Asks the daemon when something happened, in a thread: one that does not answer keeps no key waiting."""

    def __init__(self, output: Output, picture: _Picture[V], first: V) -> None:
        self._output = output
        self._picture: _Picture[V] = picture
        self._busy: Callable[[V], bool] | None = picture.busy
        self._last = 0
        self.value: V = first
        self.complaint = ""
        self.answered, self._answers = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
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
                    self._wait(client)
                    self.value, self.complaint = client.call(self._picture.request).value, ""
            except (XpucachedError, OSError) as error:
                self.complaint = error.message if isinstance(error, XpucachedError) else str(error)
            try:
                os.write(self._answers, b".")
            except BlockingIOError:
                continue  # enough words wait there

    def _wait(self, client: Client) -> None:
        """Return when something happened since the last time, at the latest after a while.

        Of the progress of what is under way no event tells: meanwhile there is nothing to wait for.
        """
        if self._busy is None or self.complaint:
            return
        wait = _WAIT if self._last and not self._busy(self.value) else 0.0
        try:
            found = client.call(looking.ListEvents(since=self._last, wait=wait)).value
        except Denied:
            # An administrator hears of nobody's events.
            self._busy = None
            return
        # Whoever answers numbers them, and none can be asked for that is below 0.
        self._last = max(self._last, max((one.id for one in found), default=0))


def top(output: Output) -> int:
    """Show how the host stands until q is pressed, or once where nobody can press it; gives the exit status."""
    return _live(output, _Picture(looking.GetOverview(), picture.lines, lambda value: bool(value.under_way)))


def of_host(output: Output) -> int:
    """Show how all users of the host stand, as `top` does."""
    return _live(output, _Picture(host_requests.GetHostOverview(), host_usage.host_lines, None))


def _live(output: Output, shown: _Picture[V]) -> int:
    answer = output.client.call(shown.request)
    live = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    live = live and os.environ.get("TERM", "dumb") not in {"", "dumb"}
    if output.options.once or output.json or output.quiet or not live:
        output.tell(answer, lambda value, style: "\n".join(shown.draw(value, style, height=None)), _verdict)
        return 0
    asking = _Asking(output, shown, answer.value)
    try:
        with _terminal():
            _show(output, shown.draw, asking)
    finally:
        asking.end()
    return 0


def _verdict(value: Overview | HostOverview) -> str:
    return value.verdict


def _show(output: Output, draw: Callable[..., list[str]], asking: _Asking[V]) -> None:
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
        lines = draw(value, style, height=max(1, height), order=order, complaint=complaint)
        if lines != last or size != (width, height):
            body = "".join(f"\x1b[{row};1H\x1b[2K{line}" for row, line in enumerate(lines, 1))
            _write(f"{body}\x1b[J" if len(lines) < height else body)
            last, size = lines, (width, height)
        ready = polling.readable(keyboard, asking.answered, seconds=_TURN)
        if asking.answered in ready:
            os.read(asking.answered, 4096)
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
