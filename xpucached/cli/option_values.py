"""Door: the values of options, as people write them."""

from __future__ import annotations

import argparse
import os
import re
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from xpucached import quantities

if TYPE_CHECKING:
    from collections.abc import Callable

RENAMED: Final = {"--flaw": "--defect", "flawed": "defective"}
"""What was called otherwise before 0.1.0, and what it is called now."""


def wrap(read: Callable[[str], float]) -> Callable[[str], float]:
    """Return what reads a value for argparse as this does, which raises ValueError."""

    # argparse keeps the sentence only of its own kind of error.
    def convert(text: str) -> float:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


W = TypeVar("W", bound=StrEnum)


def one_of(words: type[W]) -> Callable[[str], W]:
    """Return what reads one of these words."""

    # argparse's own choices would be shown as Python writes them.
    def convert(text: str) -> W:
        try:
            return words(text)
        except ValueError:
            now = RENAMED.get(text)
            known = f"it is called {now} now" if now in set(words) else f"expected one of {', '.join(words)}"
            raise argparse.ArgumentTypeError(f"no {text!r}; {known}") from None

    return convert


ENTRY_KEYS: Final = ("size", "time", "used", "cost", "driver")
"""By what entries can be sorted: bytes, when they were first seen and last used, seconds of compiling, driver."""


def number(text: str) -> int:
    """Read a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a number: {text!r}") from None


def moment(text: str) -> int | timedelta:
    """Read the number of an event, or with a unit an age."""
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        return timedelta(seconds=min(quantities.duration(text), LONGEST))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not a number, and no age: {text!r}; {error}") from None


LONGEST: Final = 3_000_000_000.0
"""Seconds of a century: no age is greater, and no moment lies before the first one."""


def path(text: str) -> Path:
    """Read a path; what is not absolute is below here."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path")
    # Not resolved: a store is known by the name that programs use for it.
    return absolute(text)


def absolute(text: str) -> Path:
    """Return a path from here or from a home; ``~nobody`` of no user is a name like any other, as shells take it."""
    return Path(os.path.abspath(os.path.expanduser(text)))  # noqa: PTH100, PTH111 - not resolved; it raises nothing


_REF: Final = re.compile(r"[0-9a-f]{1,12}")


def name(text: str) -> str:
    """Read a name: none, as of a variable that is not set, would mean everybody and everything."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError("expected a name")
    return text


def ref(text: str) -> str:
    """Read what names an entry, or the beginning of it."""
    if not _REF.fullmatch(found := text.lower()):
        raise argparse.ArgumentTypeError(f"not a reference: {text!r}; expected up to 12 hex digits, as lists show them")
    return found


def positive(text: str) -> int:
    """Read a count of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a count: {text!r}; expected 1 or more")
    return int(text)


_BOUND: Final = re.compile(r"(?P<sign>[<>]=?)(?P<size>.*)")


def bound(text: str) -> tuple[int | None, int | None]:
    """Read ``>1MB`` as the smallest and the largest size that it lets through, in bytes."""
    match = _BOUND.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"not a bound: {text!r}; expected <, <=, > or >= and a size, such as '>1MB'")
    try:
        count = quantities.size(match["size"])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    match match["sign"]:
        case ">":
            return count + 1, None
        case ">=":
            return count, None
        case "<":
            return None, count - 1
        case _:
            return None, count


duration: Final = wrap(quantities.duration)
"""Read a time, in seconds."""
