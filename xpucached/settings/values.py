"""Values as people write them, read as the types and the bounds of our fields say."""

from __future__ import annotations

import functools
import math
import os
import pwd
import re
import types
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, TypeVar, Union, get_args, get_origin

from msgspec import Struct
from msgspec.structs import FieldInfo, fields, replace

from xpucached import deadlines, mounts, quantities
from xpucached.domain.bounds import UNLIMITED, Duration, NamedBy, Percent, Size, Units, Whole, Window
from xpucached.domain.models import is_unit
from xpucached.domain.plans import Limits
from xpucached.errors import guess
from xpucached.settings.toml import TOLD

S = TypeVar("S", bound=Struct)

RENAMED: Final[Mapping[str, str]] = {"manners": "throttle", "opens": "loads", "patience": "max_wait"}
"""What keys were called before 0.1.0, and what they are called now."""

_ALWAYS: Final = "always"
_QUOTED: Final = 60
_USER: Final = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@-]{0,63}\$?", re.ASCII)
_BYTE: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LOOPBACK: Final = re.compile(rf"(?:127(?:\.{_BYTE}){{3}}|\[::1\]):(?P<port>[1-9][0-9]{{0,4}})", re.ASCII)
_WINDOW: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d) ?- ?([01]\d|2[0-3]):([0-5]\d)", re.ASCII)


class Unexpected(ValueError):
    """A value is not what was expected."""


class Wrong(ValueError):
    """What is wrong in a value: at which places in it, and what was expected there."""

    def __init__(self, *mistakes: tuple[tuple[str, ...], str]) -> None:
        super().__init__(*mistakes)
        self.mistakes = mistakes


def declared(*kinds: type[Struct]) -> dict[str, FieldInfo]:
    """Return what these values declare, by name."""
    return {one.name: one for kind in kinds for one in _fields(kind)}


_fields: Final = functools.cache(fields)
"""To find out what each value declares takes most of the time in which a configuration is read."""


def shape(kind: object) -> tuple[object, object]:
    """Return a field's type, without None, and what its value is bounded by."""
    bound: object = None
    if get_origin(kind) is Annotated:
        kind, bound, *_ = get_args(kind)
    if get_origin(kind) in {Union, types.UnionType}:
        kind = next(one for one in get_args(kind) if one is not types.NoneType)
    return kind, bound


def table(keys: Mapping[str, FieldInfo], value: object) -> dict[str, object]:
    """Read the keys that a table gives.  Raises `Wrong` with all that is wrong in it."""
    if not isinstance(value, dict):
        raise Wrong(((), _found("expected a table", value)))
    read: dict[str, object] = {}
    mistakes: list[tuple[tuple[str, ...], str]] = []
    for name, inner in value.items():
        try:
            if name not in keys:
                # To find the nearest key takes time, and nobody reads more of them.
                mistakes.append(((name,), unknown(name, keys) if len(mistakes) < TOLD else "unknown key"))
            else:
                read[name] = _value(keys[name].type, inner)
        except Wrong as error:
            mistakes += [((name, *place), what) for place, what in error.mistakes]
    if mistakes:
        raise Wrong(*mistakes)
    return read


def filled(kind: type[S], given: Mapping[str, object], **more: object) -> S:
    """Make a value of those of its fields that were read, and of some more."""
    return kind(**{name: given[name] for name in kind.__struct_fields__ if name in given} | more)


def unknown(name: str, known: Iterable[str]) -> str:
    """Say that there is no such key, and which may be meant."""
    known = list(known)
    if RENAMED.get(name) in known:
        return f"unknown key; it is called {RENAMED[name]} now"
    return f"unknown key; {guess(name, known) or 'expected one of ' + ', '.join(known)}"


def _found(expected: str, value: object) -> str:
    try:
        text = repr(value)
    except ValueError:
        # Python writes no number of more than some thousand digits; in hexadecimal it reads them.
        text = "a number of too many digits"
    return f"{expected}; found {text[:_QUOTED]}{'…' if len(text) > _QUOTED else ''}"


def _value(kind: object, value: object) -> object:
    kind, bound = shape(kind)
    try:
        return _bounded(bound, value) if bound is not None else _typed(kind, value)
    except Wrong:
        raise
    except OverflowError as error:
        raise Wrong(((), _found("expected a smaller number", value))) from error
    except ValueError as error:
        raise Wrong(((), _found(str(error), value))) from error


def _bounded(bound: object, value: object) -> object:
    match bound:
        case Whole(least, most):
            number = _typed(int, value)
            if not isinstance(number, int) or not least <= number <= most:
                raise Unexpected(f"expected a whole number from {least} to {most}")
            return number
        case Duration():
            return _duration(bound, value)
        case Size():
            return _size(bound, value)
        case Percent():
            return _percent(value)
        case Window():
            return _window(value)
        case Units():
            if not isinstance(value, list) or not all(isinstance(one, str) and is_unit(one) for one in value):
                raise Unexpected('expected an array of full names of units, such as ["app.service"]')
            return tuple(value)
        case NamedBy(name):
            return _limits(name, value)
        case _ if callable(bound):
            return bound(value)
    raise TypeError(bound)


def _typed(kind: object, value: object) -> object:
    if kind is bool or kind is str:
        if not isinstance(value, bool if kind is bool else str):
            raise Unexpected("expected true or false" if kind is bool else "expected a string")
        return value
    if kind is int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise Unexpected("expected a whole number")
        return value
    if kind is float:
        return float(_number(value, float, "expected a number"))
    if kind is Path:
        return absolute(value)
    if kind == tuple[Path, ...]:
        return tuple(absolute(one) for one in (value if isinstance(value, list) else [value]))
    if kind == tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise Unexpected('expected an array of strings, such as ["float16", "bfloat16"]')
        return tuple(value)
    if kind == Mapping[str, str]:
        return _variables(value)
    return _word(kind, value)


def _word(kind: object, value: object) -> object:
    """Read one of several words, without regard to its case."""
    words = list(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else get_args(kind)
    for word in words:
        if isinstance(value, str) and value.lower() == word:
            return word
    raise Unexpected(f"expected one of: {', '.join(words)}")


def _number(value: object, read: Callable[[str], float], expected: str) -> float:
    if isinstance(value, str):
        try:
            return read(value)
        except ValueError as error:
            raise Unexpected(expected) from error
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    raise Unexpected(expected)


def _duration(bound: Duration, value: object) -> object:
    word = bound.unlimited is not False
    if word and (value is None or value == UNLIMITED):
        return bound.unlimited
    expected = f"expected a duration such as 90s, 10m or 7d, from {spell(bound.least)} to {spell(bound.most)}"
    expected += f', or "{UNLIMITED}"' if word else ""
    seconds = _number(value, quantities.duration, expected)
    if not bound.least <= seconds <= bound.most:
        raise Unexpected(expected)
    return float(seconds)


def spell(seconds: float) -> str:
    """Write a duration as it may stand in the configuration."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"


def spell_size(number: int) -> str:
    """Write a size as it may stand in the configuration, in the largest unit of which it is a whole number."""
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if number and number % (1 << power) == 0:
            return f"{number >> power}{unit}"
    return str(number)


def _size(bound: Size, value: object) -> int | None:
    # To some runtimes 0 means no limit.  Here it could mean either, so it means nothing.
    expected = "expected a size above 0 such as 512MB or 10GiB"
    if bound.unlimited:
        expected += f', or "{UNLIMITED}"'
        if value == UNLIMITED:
            return bound.lifted
    number = 0 if isinstance(value, float) else int(_number(value, quantities.size, expected))
    if not 0 < number < 1 << 63:
        raise Unexpected(expected)
    return number


def _percent(value: object) -> int | None:
    expected = f'expected whole percent, such as 40 or "40%", from 1 to 100, or "{UNLIMITED}"'
    if value == UNLIMITED:
        return None
    number = _number(value, lambda text: float(text.removesuffix("%")), expected)
    if not 1 <= number <= 100:  # noqa: PLR2004 - the sentence says it
        raise Unexpected(expected)
    return round(number)


def _window(value: object) -> tuple[int, int] | None:
    if value == _ALWAYS:
        return None
    match = _WINDOW.fullmatch(value) if isinstance(value, str) else None
    if match is None or match.groups()[:2] == match.groups()[2:]:
        raise Unexpected(f'expected two different times of day, such as "22:00-06:00", or "{_ALWAYS}"')
    hour, minute, last_hour, last_minute = map(int, match.groups())
    return hour * 60 + minute, last_hour * 60 + last_minute


def spell_window(window: tuple[int, int] | None) -> str:
    """Write a window as it may stand in the configuration."""
    return "-".join(f"{one // 60:02}:{one % 60:02}" for one in window) if window else _ALWAYS


def absolute(value: object) -> Path:
    """Read an absolute path."""
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise Unexpected("expected an absolute path (~ and variables are not expanded)")
    return Path(value)


def mode(value: object) -> int:
    """Read permissions in octal digits, as ``chmod`` takes them."""
    text = value if isinstance(value, str) else ""
    if not (len(text) in {3, 4} and set(text) <= set("01234567")) or int(text, 8) & ~0o666 or not int(text, 8) & 0o600:
        raise Unexpected('expected permissions to read and write in octal digits as a string, such as "0660"')
    return int(text, 8)


def names(value: object) -> tuple[str, ...]:
    """Read users, by name or number."""
    if not isinstance(value, list) or not all(isinstance(one, str) and _USER.fullmatch(one) for one in value):
        raise Unexpected('expected an array of users, by name or number, such as ["llm", "1005"]')
    return tuple(value)


def folders(value: object) -> tuple[str, ...]:
    """Read folders: absolute paths, in which ``*`` stands for any name."""
    if not isinstance(value, list) or not all(
        isinstance(one, str) and one.startswith("/") and "\0" not in one and "**" not in one for one in value
    ):
        raise Unexpected('expected an array of absolute paths, in which * stands for a name, such as ["/mnt/next"]')
    return tuple(value)


def reference(value: object) -> str:
    """Read a place in a registry, or ``off``."""
    if not isinstance(value, str) or (value != "off" and not value.count("/")):
        raise Unexpected('expected "off", or a place in a registry, such as "registry.example.com/made/{user}:{host}"')
    return value


def references(value: object) -> tuple[str, ...]:
    """Read places in registries."""
    if not isinstance(value, list) or not all(isinstance(one, str) and one.count("/") for one in value):
        raise Unexpected('expected an array of places in registries, such as ["registry.example.com/caches/app:v1"]')
    return tuple(value)


def socket_address(value: object) -> str:
    """Read an address and a port at which nobody but this host can ask, or ``off``."""
    if value == "off":
        return "off"
    match = _LOOPBACK.fullmatch(value) if isinstance(value, str) else None
    if match is None or not 1 <= int(match["port"]) <= 65535:  # noqa: PLR2004 - the sentence says it
        raise Unexpected(
            'expected "off", or a loopback address (127.0.0.1 or [::1]; other hosts are never answered) with a port '
            'from 1 to 65535, such as "127.0.0.1:9845"'
        )
    return match[0]


def _variables(value: object) -> Mapping[str, str]:
    if not isinstance(value, dict):
        raise Unexpected('expected a table of variables, such as { LD_LIBRARY_PATH = "/opt/driver/lib" }')
    for name, text in value.items():
        if not name or "=" in name or "\0" in name:
            raise Unexpected(f"{name!r} cannot be the name of a variable")
        if not isinstance(text, str) or "\0" in text:
            raise Unexpected(f"{name}: expected a string")
        try:
            os.fsencode(name + text)
        except UnicodeEncodeError:
            # As JSON writes it, in one of our own variables.
            raise Unexpected(f"{name!r}: expected text, and not half of a character") from None
    return value


def _limits(name: str, value: object) -> tuple[Limits, ...]:
    """Read the limits of single stores or users, which their tables are named after."""
    keys = {key: one for key, one in declared(Limits).items() if key not in {"store", "user"}}
    if not isinstance(value, dict):
        raise Unexpected("expected a table")
    found: list[Limits] = []
    mistakes: list[tuple[tuple[str, ...], str]] = []
    for whose, inner in value.items():
        try:
            whole = Limits(_resolved(absolute(whose))) if name == "store" else Limits(user=uid(whose))
            found.append(replace(whole, **table(keys, inner)))
        except Wrong as error:
            mistakes += [((whose, *place), what) for place, what in error.mistakes]
        except ValueError as error:
            mistakes.append(((whose,), str(error)))
    if mistakes:
        raise Wrong(*mistakes)
    return tuple(found)


def _resolved(path: Path) -> Path:
    """Return a path with its links resolved; as it is written, where its file system does not answer."""
    try:
        return deadlines.ask(path, lambda: Path(mounts.real(path)))
    except TimeoutError:
        return Path(os.path.normpath(path))


class UnknownUser(Unexpected):
    """A user's name is none of this host's, now."""


def uid(name: str) -> int:
    """Return a user's number, whether it is written as one or as a name."""
    try:
        return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError as error:
        raise UnknownUser(f"there is no user {name!r} on this host") from error
