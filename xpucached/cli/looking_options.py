"""Door: what may be typed to look at it: usage, figures, the page.  Reads the command line only."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from xpucached.cli import option_values as values

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > _MOST:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to {_MOST}, found {text!r}")
    return int(text)


_MOST = 100
"""Of the dearest entries."""


def add_commands(verb: Callable[..., ArgumentParser]) -> None:
    """Add the commands that show what there is, and how it was."""
    one = verb("usage", "show who uses which bytes, what compiling takes, and what was saved")
    what = one.add_mutually_exclusive_group()
    what.add_argument("--days", action="store_true", help="what happened each day")
    what.add_argument("--warmth", action="store_true", help="when models came to stand otherwise, and why")
    one.add_argument("--top", type=_count, default=20, metavar="N", help="so many of the dearest entries (20)")
    one = verb("seen", "say that you have seen what became slower or faster: status shows it no more")
    one.add_argument("models", nargs="*", metavar="MODEL", help="only of these (default: of all)")
    one = verb("metrics", "print figures as Prometheus reads them")
    one.add_argument("--openmetrics", action="store_true", help="in OpenMetrics instead of the text format")
    one = verb("top", "show how the host stands, live in the terminal, until q")
    one.add_argument("--once", action="store_true", help="print it once and end, as where there is no terminal")
    one = verb("web", "serve the page to this host's browsers, read-only, until Ctrl-C")
    one.add_argument(
        "--for", dest="for_", type=values.duration, default=3600.0, metavar="T", help="at most so long (1h)"
    )
    one = verb("report", "write what there is to look at as one page for a browser")
    one.add_argument(
        "--html", type=values.path, default="xpucached.html", metavar="FILE", help="the file to write (xpucached.html)"
    )
    one.add_argument("--redact", action="store_true", help="without the names of host, models, programs and kernels")
