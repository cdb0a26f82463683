"""The one reader of JSON that somebody else wrote: bounded, and strict about what JSON leaves open.  Pure.

Sockets and pipes are read with it, of clients, workers, children and whoever answers in their place.  The standard
library only, and quick to load: the watcher uses it.  A caller says the bounds once, here, and the type and range of
each member where it takes it out (`text`, `whole`, …); everything that does not fit raises `BadMessage`.
"""

from __future__ import annotations

import json
import math
import re

TYPE_CHECKING = False  # typing takes long to load
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from typing import BinaryIO, Final

Json = bool | int | float | str | list["Json"] | dict[str, "Json"] | None

DEPTH: Final = 16
"""So deep may objects and lists lie in each other, unless a reader says otherwise."""

_DIGITS: Final = 20  # 2**64 has so many
_LONG_NUMBER: Final = re.compile(rb"[0-9]{%d}" % (_DIGITS + 1))
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_LONE: Final = re.compile("[\ud800-\udfff]")
_NO_BYTE: Final = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b'"[]{}'))
_NO_COUNTED: Final = bytes(set(range(256)) - set(b'",[{'))


class BadMessage(ValueError):
    """A message that cannot be what it should be; its text is a plain sentence that says why."""


class TooMuch(BadMessage):
    """A message that has more values in it than its reader takes."""


def parse(
    data: bytes, *, largest: int, depth: int = DEPTH, most: int | None = None, escaped_bytes: bool = False
) -> Json:
    """Read one value of JSON.

    Refused are: more than ``largest`` bytes, more than ``depth`` levels, more than ``most`` values, or objects and
    lists (each takes more memory than any other value, also if it holds one alone), what is no UTF-8, NaN and numbers
    that become infinite, whole numbers of more than 20 digits, a key that stands twice in one object, and text that is
    none (lone surrogates).  With ``escaped_bytes``, surrogates that stand for bytes of a file name that is no UTF-8 are
    let through.  Raise `BadMessage`, and nothing else.
    """
    if len(data) > largest:
        raise BadMessage(f"it has more than {largest} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise BadMessage("it is not UTF-8") from None
    _check_depth(data, depth)
    if most is not None and _has_more(data, most) and _has_more(_unquoted(data, _NO_COUNTED), most):
        raise TooMuch(f"it has more than {most} values")
    try:
        value: Json = json.loads(
            text,
            object_pairs_hook=_object,
            parse_float=_float,
            parse_constant=_constant,
            # Only where one may be too long, because to ask for each takes time.
            parse_int=_int if _LONG_NUMBER.search(data) else None,
        )
    except BadMessage:
        raise
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"it is not JSON: {error}") from None
    if _SURROGATE.search(data):
        refused = _NO_BYTE if escaped_bytes else _LONE
        if any(refused.search(one) for one in _texts(value)):
            raise BadMessage("it has text with half of a character in it")
    return value


def _check_depth(data: bytes, depth: int) -> None:
    """Refuse what is nested too deeply before anything follows it there."""
    # Only the brackets are left; each round takes away the innermost pairs.
    left = _unquoted(data, _NO_BRACKETS).translate(_BRACKETS)
    for _ in range(depth):
        if not left:
            return
        left = left.replace(b"[]", b"")
    if left:
        raise BadMessage(f"it is nested deeper than {depth} levels, or its brackets do not match")


def _has_more(data: bytes, most: int) -> bool:
    return data.count(b",") >= most or data.count(b"[") + data.count(b"{") > most


def _unquoted(data: bytes, without: bytes) -> bytes:
    """Return what stands outside quotes, ``without`` these bytes."""
    # By a regular expression, or if bytes were joined, it would take 50 times the memory of a text full of quotes.
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in data else data
    return "".join(plain.translate(None, without).decode("ascii").split('"')[::2]).encode("ascii")


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BadMessage(f"the key {key[:40]!r} stands twice in one object")
            seen.add(key)
    return found


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise BadMessage(f"the number {text[:40]} is too large")
    return value


def _int(text: str) -> int:
    if len(text.lstrip("-")) > _DIGITS:
        raise BadMessage(f"a number has more than {_DIGITS} digits")
    return int(text)


def _constant(text: str) -> float:
    raise BadMessage(f"{text} is no number of JSON")


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)


# -- members: the type and range of each, said once -----------------------------------------------------------------


def members(value: Json, known: Collection[str] | None = None) -> dict[str, Json]:
    """Take the value for an object; with ``known``, one that has no other keys.  Raise `BadMessage`."""
    if not isinstance(value, dict):
        raise BadMessage("it is not an object")
    if known is not None and not value.keys() <= set(known):
        raise BadMessage(f"it has an unknown key: {min(value.keys() - set(known))[:40]!r}")
    return value


def whole(message: Mapping[str, Json], key: str, *, least: int, most: int, default: int | None = None) -> int:
    """Return a whole number from ``least`` to ``most``; ``default`` if it is not there.  Raise `BadMessage`."""
    value = message.get(key, default)
    # True and False are numbers to Python.
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadMessage(f"{key} is not a whole number from {least} to {most}")
    return value


def number(message: Mapping[str, Json], key: str, *, least: float, most: float, default: float | None = None) -> float:
    """Return a number from ``least`` to ``most``; ``default`` if it is not there.  Raise `BadMessage`."""
    value = message.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise BadMessage(f"{key} is not a number from {least} to {most}")
    return float(value)


def flag(message: Mapping[str, Json], key: str, *, default: bool | None = None) -> bool:
    """Return true or false; ``default`` if it is not there.  Raise `BadMessage`."""
    value = message.get(key, default)
    if not isinstance(value, bool):
        raise BadMessage(f"{key} is neither true nor false")
    return value


def text(message: Mapping[str, Json], key: str, *, longest: int, default: str | None = None) -> str:
    """Return a text of at most ``longest`` characters; ``default`` if it is not there.  Raise `BadMessage`."""
    value = message.get(key, default)
    if not isinstance(value, str) or len(value) > longest:
        raise BadMessage(f"{key} is not a text of at most {longest} characters")
    return value


def items(message: Mapping[str, Json], key: str, *, most: int) -> list[Json]:
    """Return a list of at most ``most`` items; an empty one if it is not there.  Raise `BadMessage`."""
    value = message.get(key, [])
    if not isinstance(value, list) or len(value) > most:
        raise BadMessage(f"{key} is not a list of at most {most} items")
    return value


# -- lines: one message in each -------------------------------------------------------------------------------------


def line(stream: BinaryIO, *, largest: int) -> bytes | None:
    """Read the next line of a pipe or a file, without its end; None after the last.

    Raise `BadMessage` for a line of more than ``largest`` bytes, and for one that is cut short.
    """
    found = stream.readline(largest + 1)
    if not found:
        return None
    if found.endswith(b"\n"):
        return found[:-1]
    raise BadMessage(f"a line has more than {largest} bytes" if len(found) > largest else "the last line is cut short")
