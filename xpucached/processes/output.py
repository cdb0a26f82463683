"""Act: what a model's child prints, read as it comes, in bounded time and memory.  Pure.

The trace is read, of the rest the end is kept.  A program that prints without end costs us next to nothing: what holds
no trace is not taken apart, and `endless` says when it has said more than any program has to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from xpucached.domain.stores import EntryId

_TAIL: Final = 16 << 10
"""So much of a child's output is kept: enough for a traceback."""
_COMPLAINT: Final = 4 << 10
_LAST: Final = 300
"""Characters of its last line that are shown."""
_LINE: Final = 64 << 10
"""A longer line is no trace; it is kept in pieces."""
_MOST: Final = 1 << 30
"""Bytes that a child may print in all."""
_MOST_TOLD: Final = 16 << 20
"""Bytes that it may write to the descriptor on which the model runner answers."""
_MOST_ENTRIES: Final = 200_000
"""Entries that it may name."""


def _nothing(_lines: Iterable[str]) -> tuple[frozenset[EntryId], frozenset[EntryId]]:
    return frozenset(), frozenset()


def _none(_lines: Iterable[str]) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Trace:
    """What a child tells of the entries that it uses."""

    marks: tuple[bytes, ...] = ()  #: each line of it holds one of these
    read: Callable[[Iterable[str]], tuple[frozenset[EntryId], frozenset[EntryId]]] = _nothing
    """Gives what such lines name: entries created, entries used."""
    unkept: Callable[[Iterable[str]], str] = _none
    """Gives what such lines tell of programs that none of these stores kept."""


@dataclass(slots=True)
class ChildOutput:
    """What one child prints."""

    trace: Trace
    complaining: int = -1  #: the descriptor of its stderr
    tail: bytearray = field(default_factory=bytearray)
    complaint: bytearray = field(default_factory=bytearray)
    partial: dict[int, bytes] = field(default_factory=dict)
    created: set[EntryId] = field(default_factory=set)
    used: set[EntryId] = field(default_factory=set)
    traced: bool = False
    unkept: str = ""
    size: int = 0
    told: int = 0  #: bytes that came on the descriptor for answers

    def feed(self, descriptor: int, data: bytes) -> None:
        """Take what was read from a descriptor."""
        self.size += len(data)
        lines, _, rest = (self.partial.pop(descriptor, b"") + data).rpartition(b"\n")
        if len(rest) > _LINE:
            lines, rest = lines + b"\n" + rest if lines else rest, b""
        self.partial[descriptor] = rest
        self._take(descriptor, lines)

    def finish(self) -> None:
        """Take what is left: there was no end of the line."""
        for descriptor, rest in self.partial.items():
            self._take(descriptor, rest)
        self.partial.clear()

    def _take(self, descriptor: int, data: bytes) -> None:
        if not data:
            return
        if any(mark in data for mark in self.trace.marks):
            lines = [(line, any(mark in line for mark in self.trace.marks)) for line in data.split(b"\n")]
            texts = [line.decode("utf-8", "surrogateescape") for line, is_trace in lines if is_trace]
            created, used = self.trace.read(texts)
            self.traced = self.traced or bool(created or used)
            self.created |= created
            self.used |= used
            self.unkept = self.unkept or self.trace.unkept(texts)
            data = b"\n".join(line for line, is_trace in lines if not is_trace)
            if not data:
                return
        _keep(self.tail, data, _TAIL)
        if descriptor == self.complaining:
            _keep(self.complaint, data, _COMPLAINT)

    @property
    def endless(self) -> str:
        """Return what is too much of it; empty if nothing is."""
        if self.size > _MOST:
            return f"it printed more than {_MOST >> 20} MiB, and was ended"
        if self.told > _MOST_TOLD:
            return f"it wrote more than {_MOST_TOLD >> 20} MiB to the descriptor for answers, and was ended"
        if len(self.created) + len(self.used) > _MOST_ENTRIES:
            return f"its trace names more than {_MOST_ENTRIES} entries, and it was ended"
        return ""

    @property
    def text(self) -> str:
        """The end of what it printed."""
        return _text(self.tail).strip()

    @property
    def text_and_complaint(self) -> str:
        """The same with the last line of its stderr at the end, once, for that says most often what was wrong."""
        lines, last = self.text.split("\n"), self.last_complaint
        said = (at for at in reversed(range(len(lines))) if " ".join(lines[at].split()).startswith(last))
        at = next(said, None)
        return "\n".join([*lines, last] if at is None else [*lines[:at], *lines[at + 1 :], lines[at]])

    @property
    def last_complaint(self) -> str:
        """The last line of its stderr that says anything."""
        lines = _text(self.complaint).split("\n")
        last = next((line for line in reversed([" ".join(line.split()) for line in lines]) if line), "")
        return last[:_LAST]


def _keep(end: bytearray, data: bytes, most: int) -> None:
    end += data[-most:] + b"\n"
    del end[:-most]


def _text(content: bytearray) -> str:
    return content.decode("utf-8", "backslashreplace").replace("\0", "\\x00")
