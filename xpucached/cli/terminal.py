"""Door: how text is written where it goes: in which width, and whether in colours.  Reads the environment."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from xpucached.render.text import TextStyle

if TYPE_CHECKING:
    from argparse import Namespace


def style(options: Namespace) -> TextStyle:
    """Return how a command line's answer is written to stdout."""
    terminal = sys.stdout.isatty()
    colour = terminal and not options.no_color and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return TextStyle(
        datetime.now(UTC), get_terminal_size().columns if terminal and not options.no_trunc else None, colour
    )
