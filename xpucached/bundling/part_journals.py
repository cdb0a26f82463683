"""Of whom entries are that workers of a cluster make: written beside them first, for a worker may be killed in between.

Who does its part again finds them there, and has nothing to tell of them.  Who writes a journal holds it: others leave
it there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING, Final, Self, cast

from xpucached import codec, messages, state_files
from xpucached.bundle import writing
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
            self._descriptor = self._begun()
        line = codec.dumps(codec.to_json(one)) + b"\n"
        while line:
            line = line[os.write(self._descriptor, line) :]

    def _begun(self) -> int:
        while True:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
            # Until it is held, somebody may take it for left behind.
            if writing.hold(descriptor) is not False and os.path.lexists(self.path):
                return descriptor
            os.close(descriptor)
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def left(into: Path) -> Iterator[tuple[Path, tuple[EntriesCame, ...], bool]]:
    """Yield the journals in a store, each with what stands in it: those that are ours, and can be read.

    A line that is cut short told of what never came.  At last it is said whether somebody writes it still; else nobody
    does while it is looked at.
    """
    try:
        with os.scandir(into) as found:
            names = sorted(one.name for one in found if one.name.startswith(_PREFIX))
    except FileNotFoundError:
        return
    for name in names:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            # On a network file system only who may write it can hold it.
            descriptor = os.open(into / name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            written = writing.hold(descriptor) is False
            lines = state_files.read(into / name, _LARGEST).splitlines()
            yield into / name, tuple(one for line in lines if (one := _read(line)) is not None), written


def _read(line: bytes) -> EntriesCame | None:
    with contextlib.suppress(messages.BadMessage, ValueError):
        told = messages.parse(line, largest=_LONGEST, escaped_bytes=True)
        return cast("EntriesCame", codec.convert(told, EntriesCame))
    return None
