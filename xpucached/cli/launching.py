"""Door: becoming another program, or its parent.  Quick to load."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing takes long to load
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NOT_THERE = 127
NOT_A_PROGRAM = 126
"""What shells give for a program that is not there, or that may not be run."""


def start(program: Sequence[str], variables: Mapping[str, str], stderr: int) -> int:
    """Start a program with these variables, whose stderr is that descriptor; give its number.

    It stays in this process's group, and keeps its terminal and all else.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    number = os.fork()
    if number:
        return number
    status = NOT_A_PROGRAM
    try:
        os.dup2(stderr, 2)
        status = become(program, variables, merged=False)
        sys.stderr.flush()
    finally:
        os._exit(status)


def stay_behind() -> bool:
    """Divide this process: true in the one that is left behind, which nobody waits for; false where it cannot be."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        return os.fork() == 0
    except OSError:  # no more can be started: what goes on writes to nobody
        return False


def become(program: Sequence[str], variables: Mapping[str, str], *, merged: bool = True) -> int:
    """Run a program in place of this one, with these variables besides its own; gives an exit status if that fails.

    The same process, so terminal, signals, working directory and exit status are the program's own.  Where both have
    a path of libraries, what was warmed with comes first, if they are to be ``merged``.
    """
    import signal  # noqa: PLC0415 - only who starts something has to wait for it

    ours = dict(variables)
    theirs = os.environ.get("LD_LIBRARY_PATH") if merged else None
    if theirs and "LD_LIBRARY_PATH" in ours:
        first = ours["LD_LIBRARY_PATH"].split(":")
        ours["LD_LIBRARY_PATH"] = ":".join([*first, *(one for one in theirs.split(":") if one not in first)])
    sys.stdout.flush()
    sys.stderr.flush()
    # Python ignores these two, and a program would begin so.
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGPIPE, signal.SIGXFSZ)}
    try:
        os.execvpe(program[0], list(program), {**os.environ, **ours})  # noqa: S606 - what was asked for
    except (OSError, ValueError) as error:
        for number, handler in before.items():
            signal.signal(number, handler)
        why = error.strerror if isinstance(error, OSError) else str(error)
        print(f"xpucachectl: {program[0]!r} cannot be started: {why}", file=sys.stderr)
        print("hint: name it as you would in this shell", file=sys.stderr)
        return _NOT_THERE if isinstance(error, FileNotFoundError) else NOT_A_PROGRAM
