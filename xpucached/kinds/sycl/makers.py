"""Observe: which xpucached made something in a store, and whether it lives.

A process id says that on one host and in one container only, and there it is given again.  So what we make carries,
with our process id, when we began, the kernel's number of our process ids' namespace, and of this boot.
"""

from __future__ import annotations

import functools
import os
import re
import secrets
from pathlib import Path
from typing import Final

from msgspec import Struct

_TEXT: Final = re.compile(r"(\d{1,10})-(\d{1,20})-(\d{1,20})-([0-9a-f]{32})(?![0-9a-f])", re.ASCII)
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


class Maker(Struct, frozen=True):
    """An xpucached that made something, as it said itself."""

    pid: int
    began: int  #: in the kernel's ticks since the host booted
    space: int  #: the namespace of its process id
    boot: str  #: 32 digits; empty for one that did not say

    def __str__(self) -> str:
        """Return what `parse` reads."""
        return f"{self.pid}-{self.began}-{self.space}-{self.boot}"

    @property
    def gone(self) -> bool | None:
        """Whether it has ended; None for one of another host or container, of which nothing can be seen here.

        One daemon never scans and removes at once, so what is our own was left by what failed here.
        """
        us = ourselves()
        if (self.boot, self.space) != (us.boot, us.space):
            return None
        return self == us or _began(self.pid) != self.began


def ourselves() -> Maker:
    """Return this process."""
    return _ourselves(os.getpid())


@functools.lru_cache(maxsize=1)
def _ourselves(pid: int) -> Maker:
    try:
        boot = _BOOT.read_text("ascii").strip().replace("-", "")
        space = Path("/proc/self/ns/pid").stat().st_ino
    except (OSError, ValueError):
        boot, space = "", 0
    # Where the kernel does not say, nobody else is of here.
    return Maker(pid, _began(pid) or 0, space, boot if re.fullmatch("[0-9a-f]{32}", boot) else secrets.token_hex(16))


def _began(pid: int) -> int | None:
    """Return when a process began; None if there is none of that number."""
    try:
        # Its name may have blanks and brackets: what comes after the last one is plain.
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def parse(text: str) -> Maker | None:
    """Read the maker with which a text begins."""
    match = _TEXT.match(text)
    return Maker(int(match[1]), int(match[2]), int(match[3]), match[4]) if match is not None else None
