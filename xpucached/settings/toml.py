"""Door: TOML files as text, with the line of every key.  Reads the files; trusts none of them."""

from __future__ import annotations

import functools
import os
import re
import stat
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from xpucached import reading
from xpucached.errors import SettingsError
from xpucached.printing import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_LONGEST: Final = 1 << 20
"""Bytes that a file may have: a hundred times what anybody writes, and read in a moment."""

_LOOKED_THROUGH: Final = 2 << 20
"""Characters that are parsed at most to find a line.  Only a value of thousands of lines needs more."""

_ENDS: Final = ("]", "}", '"""', "'''")
"""What the last line of a statement of several lines holds."""

_PARTS: Final = 16
"""So many parts a key has at most; what a key costs the library grows with their square."""

_WORD: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|\'[^\']*+\'?|[A-Za-z0-9_-]++|[ \t]++|(?P<other>.)')

_DEEPEST: Final = 8
"""So many keys lead to a value at most; what is nested deeper is found by the table around it."""

_PLACE: Final = re.compile(r" \(at (?:line (?P<line>\d+), column \d+|end of document)\)$")


@dataclass(frozen=True, slots=True)
class ConfigMistake:
    """Something that cannot stay as it is written: where, and what was expected."""

    where: str  #: ``FILE:LINE``, or a variable's name
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


TOLD: Final = 50
"""Mistakes that are told of one file: nobody reads more, and the nearest key of each takes time to find."""


def refuse(mistakes: Sequence[ConfigMistake], hint: str = "", *, untold: int = 0) -> SettingsError:
    """Make the refusal of a file with these mistakes, and with so many more that are not named."""
    untold += len(mistakes[TOLD:])
    more = [f"and {untold} more {'mistake' if untold == 1 else 'mistakes'}"] if untold else []
    return SettingsError("\n".join([*(str(one) for one in mistakes[:TOLD]), *more]), hint=hint)


def read(path: Path) -> str:
    """Read a file that tells us what to do.

    Raises `FileNotFoundError` if there is none, and `SettingsError` if it is no regular file, too long, not UTF-8, not
    readable, or if others than its owner (us, or root) may write to it.
    """
    try:
        # Not blocking, because opening a named pipe would wait for a writer.
        descriptor = reading.opened(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingsError(f"{path}: cannot be read: {reason}") from error
    try:
        _check(path, os.fstat(descriptor))
        with open(descriptor, "rb", closefd=False) as stream:
            data = stream.read(_LONGEST + 1)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if len(data) > _LONGEST:
        raise SettingsError(f"{path}: is too long: expected at most {_LONGEST} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise refuse([ConfigMistake(f"{path}:{line}", "expected UTF-8 text")]) from error


def others_write(status: os.stat_result) -> bool:
    """Return whether others than its owner may write to a file or a directory of ours.

    A user's own group is often his alone, so what it may write to is common and fine; what is root's is not, whoever
    reads it: it says what is run as whom.
    """
    group = status.st_mode & stat.S_IWGRP and status.st_uid == 0 and status.st_gid != 0
    return bool(status.st_mode & stat.S_IWOTH or group)


def _check(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise SettingsError(f"{path}: expected a regular file")
    ours = os.geteuid()
    if status.st_uid not in {0, ours}:
        raise SettingsError(
            f"{path}: belongs to another user (uid {status.st_uid}), who could make us do what he likes",
            hint="it must belong to root or to the user that xpucached runs as",
        )
    if others_write(status):
        raise SettingsError(f"{path}: others may write to it", hint=f"chmod go-w {quoted(str(path))}")


@dataclass(frozen=True)
class Toml:
    """A TOML file: its text, and what it says."""

    path: Path
    text: str
    values: Mapping[str, object]

    @classmethod
    def parse(cls, path: Path, text: str) -> Toml:
        """Read TOML.  Raises `SettingsError` with the line."""
        if text.startswith("\ufeff"):
            raise refuse([ConfigMistake(f"{path}:1", "it begins with a byte order mark; save it as UTF-8 without one")])
        for number, one in enumerate(text.split("\n"), start=1):
            if one.count(".") >= _PARTS and _parts(one) > _PARTS:
                raise refuse([ConfigMistake(f"{path}:{number}", f"a key has more than {_PARTS} parts")])
        try:
            return cls(path, text, tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            message = str(error)
            match = _PLACE.search(message)
            line = int(match["line"]) if match and match["line"] else max(1, len(text.splitlines()))
            what = message[: match.start()] if match else message
            raise refuse([ConfigMistake(f"{path}:{line}", f"not TOML: {what[:1].lower()}{what[1:]}")]) from error
        except RecursionError as error:
            raise SettingsError(f"{path}: not TOML: nested too deeply") from error
        except ValueError as error:
            raise SettingsError(f"{path}: not TOML: a number has too many digits") from error

    def mistake(self, place: Sequence[str | int], what: str) -> ConfigMistake:
        """Return what is wrong with the value at a place (the keys that lead to it)."""
        keys = [step for step in place if isinstance(step, str)]
        name = ".".join(keys)
        return ConfigMistake(f"{self.path}:{self.line(keys)}", f"{name}: {what}" if name else what)

    def line(self, keys: Sequence[str]) -> int:
        """Return the line on which a key, or the nearest table around it, is written; the first if none is."""
        ways = (tuple(keys[:depth]) for depth in range(min(len(keys), _DEEPEST), 0, -1))
        return next((self._lines[way] for way in ways if way in self._lines), 1)

    @functools.cached_property
    def _lines(self) -> Mapping[tuple[str, ...], int]:
        """The line on which each table and key is written first."""
        lines: dict[tuple[str, ...], int] = {}
        for line, place in _statements(self.text):
            for depth in range(1, min(len(place), _DEEPEST) + 1):
                lines.setdefault(place[:depth], line)
        return lines


def _parts(line: str) -> int:
    """Count the parts of the longest key of a line; in a text of several lines, words between dots count as well."""
    most = parts = 0
    between = True
    for word in _WORD.finditer(line):
        if word[0] == ".":
            between = True
        elif word["other"] is not None:
            parts = 0
        elif not word[0].isspace():
            parts, between = parts + 1 if between else 1, False
            most = max(most, parts)
    return most


def _statements(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield every place that a (valid) TOML text writes to, with the line where the statement begins."""
    table: tuple[str, ...] = ()
    chunk, begin, spent = "", 0, 0
    for number, line in enumerate(text.split("\n"), start=1):
        if not chunk:
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            begin = number
        chunk += line + "\n"
        if number > begin and not any(end in line for end in _ENDS):
            continue
        spent += len(chunk)
        if spent > _LOOKED_THROUGH:
            return
        try:
            # A statement is over at the first line with which it can be read by itself.
            value = tomllib.loads(chunk)
        except tomllib.TOMLDecodeError:
            continue
        if chunk.lstrip().startswith("["):
            table = max(_places(value), key=len)
            yield begin, table
        else:
            for place in _places(value):
                yield begin, (*table, *place)
        chunk = ""


def _places(value: object, depth: int = 0) -> Iterator[tuple[str, ...]]:
    """Yield the ways to all leaves of nested tables; arrays are leaves, unless they are the tables of a header."""
    if isinstance(value, list) and value and isinstance(value[0], dict) and not value[0]:
        value = value[0]
    if not isinstance(value, dict) or not value or depth == _DEEPEST:
        yield ()
        return
    for key, inner in value.items():
        for place in _places(inner, depth + 1):
            yield (str(key), *place)
