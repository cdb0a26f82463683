"""Door: `xpucachectl trace`: a program as it is, and what it compiled meanwhile."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import termios
import time
import tty
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, overload

from xpucached import codec
from xpucached.api.endpoints import VERSION
from xpucached.cli import launching
from xpucached.errors import RequestError
from xpucached.printing import plain
from xpucached.processes import polling
from xpucached.render.text import TextStyle
from xpucached.render.traces import trace
from xpucached.tracing import observer

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Mapping
    from types import FrameType

_GRACE: Final = 0.3
"""Seconds in which what a program wrote last is there, after its end; who has its stderr open then goes on."""
_PIECE: Final = 1 << 16
_PASSED_ON: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGQUIT)
_FROM_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT)


def run(options: Namespace) -> int:
    """Run the program, say what it compiled, and end as it ended.  Asks no daemon."""
    if not options.command:
        raise RequestError("the program stands behind --", hint="xpucachectl trace -- python3 app.py")
    # Before the program runs: it may take hours, and what it compiled is told once.
    into = _opened(options.output) if options.output else None
    environ = dict(os.environ)
    listener = observer.Listener(environ)
    began, at = datetime.now(UTC), time.monotonic()
    status, runs_on = _attend(options.command, observer.variables(environ), listener)
    told = observer.report(
        options.command,
        listener,
        environ,
        began=began,
        seconds=time.monotonic() - at,
        status=status,
        runs_on=runs_on,
    )
    if options.json:
        text = codec.dumps({"api": VERSION, "data": codec.to_json(told)}).decode("ascii")
    else:
        text = trace(told, TextStyle(datetime.now(UTC), None, colour=False))
    with contextlib.suppress(OSError):
        # Whoever read it may have had enough; the program has ended all the same.
        if into is None or not _kept(into, options.output, text):
            print(text, file=sys.stderr, flush=True)
    return _end_as(status)


def _kept(into: int, path: Path, text: str) -> bool:
    """Write what is told into its file; where that takes no more, say so."""
    try:
        with open(into, "w", encoding="utf-8") as file:
            file.write(f"{text}\n")
    except BrokenPipeError:
        raise
    except OSError as error:
        print(f"xpucachectl: {plain(os.fspath(path))} cannot be written: {error.strerror}", file=sys.stderr)
        return False
    return True


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}", hint="--output FILE") from error


def _attend(command: list[str], variables: Mapping[str, str], listener: observer.Listener) -> tuple[int, bool]:
    """Run it to its end; give its exit status (negative: the signal), and whether something of it goes on."""
    try:
        ours, theirs = _channel()
        program = launching.start(command, variables, theirs)
    except OSError as error:  # nothing more can be opened or started
        print(f"xpucachectl: {command[0]!r} cannot be started: {error.strerror}", file=sys.stderr)
        return launching.NOT_A_PROGRAM, False
    os.close(theirs)
    with _signals(program, ours):
        status: int | None = None
        until = 0.0
        while status is None or time.monotonic() < until:
            if polling.readable(ours, seconds=0.05) and not _pass_on(ours, listener):
                # All have closed it; the program itself may go on without.
                return _ended(program) if status is None else status, False
            if status is None and (status := _ended(program, os.WNOHANG)) is not None:
                until = time.monotonic() + _GRACE
        # Who reads what is passed on may have taken all that time.
        if polling.readable(ours, seconds=0) and not _pass_on(ours, listener):
            return status, False
    if launching.stay_behind():
        _serve_on(ours, listener)
    os.close(ours)
    return status, True


def _channel() -> tuple[int, int]:
    """Return both ends of what takes the program's stderr: a terminal where ours is one, and another can be had."""
    if not os.isatty(2):
        return os.pipe()
    try:
        ours, theirs = os.openpty()
    except OSError as error:
        print(f"xpucachectl: its stderr is no terminal, as no other can be had: {error.strerror}", file=sys.stderr)
        return os.pipe()
    tty.setraw(theirs)
    _same_size(ours)
    os.set_inheritable(ours, False)  # noqa: FBT003 - its only argument
    return ours, theirs


def _same_size(terminal: int) -> None:
    with contextlib.suppress(OSError, termios.error):
        termios.tcsetwinsize(terminal, termios.tcgetwinsize(2))


@overload
def _ended(program: int) -> int: ...
@overload
def _ended(program: int, how: int) -> int | None: ...
def _ended(program: int, how: int = 0) -> int | None:
    number, status = os.waitpid(program, how)
    return os.waitstatus_to_exitcode(status) if number else None


def _pass_on(ours: int, listener: observer.Listener) -> bool:
    """Pass on what was written; false at its end."""
    try:
        data = os.read(ours, _PIECE)
    except OSError:
        # The other end of a terminal is closed.
        data = b""
    _write(listener.take(data, time.monotonic()) if data else listener.finish())
    return bool(data)


def _write(data: bytes) -> None:
    while data:
        try:
            data = data[os.write(2, data) :]
        except BlockingIOError:
            polling.writable(2, seconds=None)
        except OSError:
            # Nobody reads it.
            return


def _serve_on(ours: int, listener: observer.Listener) -> None:
    """Pass on what is written by those that the program left, until they end; then end."""
    try:
        while _pass_on(ours, listener):
            pass
    finally:
        os._exit(0)


@contextlib.contextmanager
def _signals(program: int, terminal: int) -> Iterator[None]:
    """Hand the program what is sent to us, but for what its terminal sends to both."""

    def hand_on(number: int, _: FrameType | None) -> None:
        if number not in _FROM_TERMINAL or not _in_front():
            with contextlib.suppress(ProcessLookupError):
                os.kill(program, number)

    before = {number: signal.getsignal(number) for number in (*_PASSED_ON, signal.SIGWINCH)}
    try:
        for number in _PASSED_ON:
            if before[number] is not signal.SIG_IGN:
                signal.signal(number, hand_on)
        signal.signal(signal.SIGWINCH, lambda *_: _same_size(terminal))
        yield
    finally:
        for number, what in before.items():
            signal.signal(number, what)


def _in_front() -> bool:
    """Return whether the keys of our terminal send signals to us, and so to the program, too."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _end_as(status: int) -> int:
    """Return the exit status; or end by the signal that ended the program."""
    if status < 0:
        sys.stdout.flush()
        # The program has left its core already.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return 128 - status if status < 0 else status
