"""Lists the keys that `Settings` declares, with their variables and how values are shown.

New keys are declared in `settings.sections`.
"""

from __future__ import annotations

import contextlib
import json
import math
import pwd
from collections.abc import Mapping
from typing import Final

from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, asdict, fields

from xpucached.domain.bounds import UNLIMITED, NamedBy, Size, Whole, Window
from xpucached.domain.plans import Limits
from xpucached.settings import Settings, store_places
from xpucached.settings.values import Unexpected, declared, mode, shape, spell, spell_size, spell_window

PREFIX: Final = "XPUCACHED_"

SECTIONS: Final[Mapping[str, type[Struct]]] = {
    one.name: one.type for one in fields(Settings) if isinstance(one.type, type) and issubclass(one.type, Struct)
}
"""The tables of the configuration."""


class Key(Struct, frozen=True):
    """One key of the configuration."""

    section: str
    name: str
    kind: object  #: its type, with what it is bounded by
    default: object  #: None, too, if it depends on who we run as

    @property
    def variable(self) -> str:
        """The environment variable that overrides it."""
        return f"{PREFIX}{self.section}_{self.name}".upper()

    def from_text(self, text: str) -> object:
        """Turn a variable's text into what would stand in the file.

        Raises `ValueError` with a sentence that says what was expected.
        """
        kind, bound = shape(self.kind)
        if kind is bool:
            word = text.strip().lower()
            if word in {"1", "true", "yes", "on"}:
                return True
            if word in {"0", "false", "no", "off"}:
                return False
            raise Unexpected("expected true or false")
        if isinstance(bound, Whole):
            if text.strip().isdecimal() and len(text) < 20:  # noqa: PLR2004 - what fits into 64 bits
                return int(text)
            raise Unexpected("expected a whole number")
        if kind == Mapping[str, str] or isinstance(bound, NamedBy):
            try:
                value: object = json.loads(text)
            except (ValueError, RecursionError):
                value = None
            if not isinstance(value, dict):
                raise Unexpected('expected a JSON object, such as {"LD_LIBRARY_PATH": "/opt/driver/lib"}')
            return value
        return store_places.listed(text) if kind == tuple[str, ...] else text

    def spelled(self, value: object) -> str:
        """Write a value of this key for people."""
        _, bound = shape(self.kind)
        if bound is mode:
            return f"{value:04o}"
        if isinstance(bound, Size) and isinstance(value, int):
            return spell_size(value)
        return spell_window(value) if isinstance(bound, Window) else _spelled(value)  # type: ignore[arg-type]


def keys() -> tuple[Key, ...]:
    """Return every key there is, in the order of the documentation."""
    return tuple(
        Key(section, name, one.type, _default(one))
        for section, kind in SECTIONS.items()
        for name, one in declared(kind).items()
    )


def _default(one: FieldInfo) -> object:
    if one.default_factory is not NODEFAULT:
        return one.default_factory()
    return None if one.required else one.default


def _spelled(value: object) -> str:
    match value:
        case None:
            return UNLIMITED
        case bool():
            return "true" if value else "false"
        case float():
            return spell(value) if value < math.inf else UNLIMITED
        case tuple():
            limits = [_limits(one) for one in value if isinstance(one, Limits)]
            return " ".join(limits) or ":".join(map(str, value)) or "none"
        case Mapping():
            return " ".join(f"{name}={text}" for name, text in value.items()) or "none"
        case _:
            return str(value)


def _limits(one: Limits) -> str:
    whose: object = one.store
    if one.user is not None:
        whose = one.user
        # Numbers that nobody has may be limited, too.
        with contextlib.suppress(KeyError):
            whose = pwd.getpwuid(one.user).pw_name
    given = [(name, text) for name, text in asdict(one).items() if name not in {"store", "user"} and text is not None]
    return f"{whose}=({' '.join(f'{name}={_limit(name, text)}' for name, text in given)})"


def _limit(name: str, value: object) -> str:
    _, bound = shape(declared(Limits)[name].type)
    if not isinstance(bound, Size) or not isinstance(value, int):
        return _spelled(value)
    return UNLIMITED if value == bound.lifted else spell_size(value)
