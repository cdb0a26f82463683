"""Of whom entries are that workers of a cluster make: written beside them first, for a worker may be killed in between.

Who does its part again finds them there, and has nothing to tell of them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING, Final, Self, cast

from xpucached import codec, messages, state_files
from xpucached.domain.imports import EntriesCame

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PREFIX: Final = ".xpucached.came-"
_LARGEST: Final = 256 << 20
_LONGEST: Final = 1 << 20
"""Bytes of one line."""


class PartJournal(contextlib.AbstractContextManager["PartJournal"]):
    """What one run of a part puts into a store."""

    def __init__(self, into: Path) -> None:
        self.path = into / f"{_PREFIX}{secrets.token_hex(8)}"
        self._descriptor: int | None = None

    def note(self, one: EntriesCame) -> None:
        """Write down what is to come.  Raises OSError: then it must not come."""
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self.path, flags, 0o600)
        line = codec.dumps(codec.to_json(one)) + b"\n"
        while line:
            line = line[os.write(self._descriptor, line) :]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def left(into: Path) -> Iterator[tuple[Path, tuple[EntriesCame, ...]]]:
    """Yield the journals in a store, each with what stands in it: those that are ours, and can be read.

    A line that is cut short told of what never came.
    """
    try:
        with os.scandir(into) as found:
            names = sorted(one.name for one in found if one.name.startswith(_PREFIX))
    except FileNotFoundError:
        return
    for name in names:
        with contextlib.suppress(OSError):
            lines = state_files.read(into / name, _LARGEST).splitlines()
            yield into / name, tuple(one for line in lines if (one := _read(line)) is not None)


def _read(line: bytes) -> EntriesCame | None:
    with contextlib.suppress(messages.BadMessage, ValueError):
        return cast("EntriesCame", codec.convert(messages.parse(line, largest=_LONGEST), EntriesCame))
    return None
