"""Door: how what the daemon wrote is printed for where it goes, and for whom.  Quick to load."""

from __future__ import annotations

import os
import sys
import time

_BROKEN_PIPE = 141
_SCOPES = frozenset({"--user", "--system"})


def style(given: set[str]) -> str:
    """Return how text is to be written for where it goes."""
    terminal = sys.stdout.isatty()
    colour = (
        terminal and "--no-color" not in given and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    )
    style = "colour" if colour else "plain"
    if terminal and "--no-trunc" not in given:
        style += f", {int(os.environ.get('COLUMNS', '0')) or os.get_terminal_size(sys.stdout.fileno()).columns}"
    return style


def write(text: str, given: set[str], status: int) -> int | None:
    """Print a text as options ask for it, and return the exit status; None where the whole program has to."""
    text = _local(_aimed(text, given), given)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except UnicodeEncodeError:
        return None
    except BrokenPipeError:
        # Whoever read us has had enough.  Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except OSError:
        return None  # the program says what is wrong
    return status


def _aimed(text: str, given: set[str]) -> str:
    """Return a text whose commands are those that this person has to type."""
    if "--json" in given or "xpucachectl " not in text or not (_SCOPES & given or os.environ.get("SUDO_UID")):
        return text
    from xpucached.cli import hints  # noqa: PLC0415 - hardly anybody has to wait for it

    return hints.aimed(text, "".join(f"{one} " for one in _SCOPES & given), os.environ)


def _local(text: str, given: set[str]) -> str:
    """Return a text with the times of this place."""
    if " UTC" not in text or not given.isdisjoint({"--utc", "--json"}) or not (time.timezone or time.daylight):
        return text
    from xpucached.cli import local_times  # noqa: PLC0415 - only who reads a time has to wait for it

    return local_times.local(text)
