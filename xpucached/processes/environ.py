"""Observe: the variables of live processes, in bounds: their user decides how long they are, and how many there are.

The kernel gives whatever part of its memory a process says its variables are, terabytes of zeros too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST: Final = 6 << 20
"""Bytes of one process; the kernel starts none with more."""

IN_ALL: Final = 128 << 20
"""Bytes that are read in one look at all processes."""

_STEP: Final = 128 << 10
"""So much is read at a time; few processes have more."""


@dataclass(slots=True)
class Environments:
    """Reads the variables of one process after the other, until so much of them was read."""

    left: int = IN_ALL
    passed_over: int = 0  #: processes whose variables were too long

    def read(self, pid: int) -> bytes | None:
        """Return what the kernel tells, variables ended by null characters; None if it is too long.  Raises OSError."""
        data = bytearray()
        with Path(f"/proc/{pid}/environ").open("rb", buffering=0) as file:
            while len(data) <= LONGEST and self.left > 0:
                # It ends where nothing comes: the kernel gives less at a time than was asked for.
                part = file.read(min(_STEP, self.left))
                if not part:
                    return bytes(data)
                self.left -= len(part)
                data += part
        self.passed_over += 1
        return None


def variables(data: bytes, names: str) -> Iterator[tuple[str, str]]:
    """Yield those variables whose names match as a whole, in their order; a program uses the first of a name."""
    # An empty one ends them: what follows was overwritten, by a program that changes how it is listed.
    there = (b"\0" + data).partition(b"\0\0")[0] + b"\0"
    for match in re.finditer(rb"\0(" + names.encode("ascii") + rb")=([^\0]*)(?=\0)", there):
        yield match[1].decode("ascii"), match[2].decode("utf-8", "surrogateescape")
