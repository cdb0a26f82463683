"""Whose a client is, as far as two files of the host say: one person may have many uids, and counts once.

No user database is asked: it may not answer, and who watches waits for nobody.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST: Final = 1 << 22  # bytes of a file


@dataclass(frozen=True, slots=True)
class QuotaHolder:
    """Who holds what a client takes."""

    name: str
    known: bool  #: whether it is root or an account of /etc/passwd; of others there may be any number


@dataclass(slots=True)
class _UserFile:
    """A file of lines, read again when it was changed."""

    path: Path
    seen: tuple[int, int, int] | None = None
    lines: tuple[list[str], ...] = field(default=())

    def __iter__(self) -> Iterator[list[str]]:
        """Return the fields of each line; none where the file cannot be read."""
        with contextlib.suppress(OSError):
            status = self.path.stat()
            seen = (status.st_ino, status.st_size, status.st_mtime_ns)
            if seen != self.seen:
                with self.path.open("rb") as stream:
                    text = stream.read(_LONGEST).decode(errors="replace")
                self.seen, self.lines = seen, tuple(line.split(":") for line in text.splitlines())
            return iter(self.lines)
        return iter(())


class QuotaHolders:
    """Tells for a uid who holds what it takes."""

    def __init__(self, accounts: Path = Path("/etc/passwd"), ranges: Path = Path("/etc/subuid")) -> None:
        self._accounts = _UserFile(accounts)
        self._ranges = _UserFile(ranges)

    def holder(self, uid: int) -> QuotaHolder:
        """Tell it: the account, else the account to whom the uid was given for its containers, else the uid alone."""
        number = str(uid)
        if uid == 0 or any(number == fields[2] for fields in self._accounts if len(fields) > 2):  # noqa: PLR2004
            return QuotaHolder(number, known=True)
        for fields in self._ranges:
            match fields:
                case [owner, first, count] if first.isdecimal() and count.isdecimal():
                    if 0 <= uid - int(first) < int(count):
                        return QuotaHolder(f"subordinate uids of {owner}", known=False)
        return QuotaHolder(number, known=False)
