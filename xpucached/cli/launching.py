"""Door: becoming another program.  Replaces this process, and is quick to load."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing takes long to load
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NOT_THERE = 127
_NOT_A_PROGRAM = 126
"""What shells give for a program that is not there, or that may not be run."""


def become(program: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a program in place of this one, with these variables besides its own; gives an exit status if that fails.

    The same process, so terminal, signals, working directory and exit status are the program's own.  Where both have
    a path of libraries, what was warmed with comes first.
    """
    import signal  # noqa: PLC0415 - only who starts something has to wait for it

    ours = dict(variables)
    theirs = os.environ.get("LD_LIBRARY_PATH")
    if theirs and "LD_LIBRARY_PATH" in ours:
        first = ours["LD_LIBRARY_PATH"].split(":")
        ours["LD_LIBRARY_PATH"] = ":".join([*first, *(one for one in theirs.split(":") if one not in first)])
    sys.stdout.flush()
    sys.stderr.flush()
    # Python ignores these two, and a program would begin so.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(program[0], list(program), {**os.environ, **ours})  # noqa: S606 - what was asked for
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        print(f"xpucachectl: {program[0]!r} cannot be started: {why}", file=sys.stderr)
        print("hint: name it as you would in this shell", file=sys.stderr)
        return _NOT_THERE if isinstance(error, FileNotFoundError) else _NOT_A_PROGRAM
