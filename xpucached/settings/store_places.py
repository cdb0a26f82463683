"""Further stores, as people write them: paths, with the store's kind in front where it is said.  Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from xpucached.domain.names import KindName

_PLACE: Final = re.compile(r"(?:([a-z][a-z0-9-]{0,30}):)?(/[^\0]*)")

_MOST: Final = 1000


def checked(value: object) -> tuple[str, ...]:
    """Read where stores are: absolute paths, or such with their kind in front."""
    if not isinstance(value, list):
        message = "expected an array"
        raise ValueError(message)  # noqa: TRY004 - whoever reads values takes a ValueError for an answer
    for one in value:
        if not isinstance(one, str) or not _PLACE.fullmatch(one):
            message = "expected an absolute path (~ and variables are not expanded), or KIND:PATH"
            raise ValueError(message)
    if len(value) > _MOST:
        message = f"expected at most {_MOST} of them"
        raise ValueError(message)
    return tuple(value)


def parted(places: Iterable[str]) -> Mapping[Path, KindName | None]:
    """Return the paths in their order, and the kind of each if it is said."""
    matches = (match for match in map(_PLACE.fullmatch, places) if match)
    return {Path(os.path.normpath(match[2])): KindName(match[1]) if match[1] else None for match in matches}


def listed(text: str) -> list[str]:
    """Take a list from a variable, where colons part its items; one in front of a path may belong to its kind."""
    found: list[str] = []
    for part in text.split(":"):
        if part.startswith("/") and found and "/" not in found[-1]:
            found[-1] += f":{part}"
        elif part:
            found.append(part)
    return found
