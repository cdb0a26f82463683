"""What the runtime tells, as it runs, of all that it compiles: ``SYCL_CACHE_TRACE`` with what it keeps in memory, too.

From 2025.1 on a line says when a program is asked for, before it is looked for and compiled; those before tell only
what they put on disk and what they find there.
"""

from __future__ import annotations

import functools
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from xpucached import deadlines
from xpucached.domain.names import EntryKey
from xpucached.domain.stores import Store
from xpucached.domain.traces import RuntimeTrace, StoreTrace
from xpucached.kinds.sycl import targets, trace
from xpucached.kinds.sycl.entry_format import IR, IR_KEY, NUMBER, RTC

VARIABLES: Final[Mapping[str, str]] = {"SYCL_CACHE_TRACE": "7"}
"""Bit 1 is what it puts on disk, 2 what it keeps in memory, 4 what is compiled from source at run time."""

MARKS: Final = (
    b"[In-Memory Cache]",
    b"[Persistent Cache]: ",
    b"[kernel_compiler Persistent Cache]: ",
    b"*** Code caching: ",
)
"""How what it tells begins; it ends with the line."""

_ASKED: Final = "]: Program inserted."
_THREAD: Final = "[Thread Id:"
_OFF: Final = ("]: disabled", "*** Code caching: disabled", "Disable persistent cache")
_PATHS: Final = 16
"""Paths of one line, of which each device has one."""
_MOST: Final = 200_000
"""Entries that are told apart; what a program names beyond is counted as it comes."""
_MOST_WAITING: Final = 10_000
"""Threads whose program is awaited."""
_LONGEST_THREAD: Final = 64
_MOST_ROOTS: Final = 1000
"""Stores; of more, which only who invents them names, nothing is told."""
_LONGEST_PATH: Final = 4096
_PATIENCE: Final = 30.0
"""Seconds in which all stores together are looked at; of those that do not answer it is unknown what was kept."""


class SyclFollower:
    """Counts the programs of all processes that write to one stream, and measures how long they were compiled."""

    def __init__(self) -> None:
        """Begin with nothing told."""
        self._asked = 0
        self._answered = 0
        self._waiting: dict[str, float] = {}  # when a thread asked for the program that it has not got yet
        self._mixed = False  # several wait, or have, and not all of them have got their programs
        self._seconds: float | None = None
        self._unmeasured = 0
        self._off = False
        self._stores: set[Path] = set()
        self._found: dict[Path, int] = {}
        self._kept: dict[Path, int] = {}
        self._made: set[tuple[Path, EntryKey]] = set()

    def take(self, line: str, at: float) -> None:
        """Take one line, and when it was heard, in seconds of a clock that only goes on."""
        if _ASKED in line:
            self._asked += 1
            if len(self._waiting) < _MOST_WAITING:
                # A thread that asks for the next one has got the one before: if nothing told of it, it is kept nowhere.
                self._waiting[line.partition(_THREAD)[2].partition("]")[0][:_LONGEST_THREAD]] = at
            self._mixed = self._mixed or len(self._waiting) > 1
            return
        if any(text in line for text in _OFF):
            self._off = True
        for root in _roots(line):
            if root not in self._stores and len(self._stores) >= _MOST_ROOTS:
                continue
            self._stores.add(root)
            told = trace.read(Store(targets.NAME, root), [line], not_kept=False)
            if all(key.endswith(f"/{IR}") for key in told.used | told.created):
                # What is compiled from source is kept in two steps, and the first is no program yet.
                continue
            if told.used:
                self._found[root] = self._found.get(root, 0) + 1
            if told.created:
                self._kept[root] = self._kept.get(root, 0) + 1
                if len(self._made) < _MOST:
                    self._made.update((root, key) for key in told.created)
            if any(key.startswith(RTC) for key in told.used | told.created):
                # Nothing says when it is asked for.
                self._asked, self._answered = self._asked + 1, self._answered + 1
                self._unmeasured += bool(told.created)
            else:
                self._answer(at, compiled=bool(told.created))

    def _answer(self, at: float, *, compiled: bool) -> None:
        self._answered += 1
        # The line does not say of which thread it is: where only one has waited, it is that one's.
        began = self._waiting.popitem()[1] if self._waiting else None
        if not self._mixed and compiled and began is not None:
            self._seconds = (self._seconds or 0.0) + max(0.0, at - began)
        else:
            self._unmeasured += compiled
        if self._answered >= self._asked:
            self._mixed = False
            self._waiting.clear()

    def told(self) -> RuntimeTrace:
        """Return what was told so far; what is said to be kept is looked for on disk, which blocks for a while."""
        made: defaultdict[Path, list[EntryKey]] = defaultdict(list)
        for root, key in self._made:
            made[root].append(key)
        # Anything may stand in a line: all file systems together are waited for no longer than a few.
        until = time.monotonic() + _PATIENCE
        lost: dict[Path, int] = {}
        unknown: dict[Path, int] = {}
        for root, keys in made.items():
            try:
                left = min(deadlines.SECONDS, max(0.0, until - time.monotonic()))
                lost[root] = deadlines.ask(("trace", root), functools.partial(_missing, root, keys), left)
            except TimeoutError:
                unknown[root] = self._kept.get(root, 0)
        stores = tuple(
            StoreTrace(
                targets.NAME,
                root,
                max(0, self._kept.get(root, 0) - lost.get(root, 0) - unknown.get(root, 0)),
                self._found.get(root, 0),
                lost.get(root, 0),
                unknown.get(root, 0),
            )
            for root in sorted({*self._kept, *self._found})
        )
        # With more answers than questions, as of a program for several devices, some were missed.
        tells = self._asked >= max(1, self._answered)
        return RuntimeTrace(
            programs=self._asked if tells else None,
            nowhere=self._asked - self._answered + sum(lost.values()) if tells and not unknown else None,
            seconds=self._seconds,
            unmeasured=self._unmeasured,
            off=self._off,
            stores=stores,
        )


def _missing(root: Path, keys: Iterable[EntryKey]) -> int:
    """Count what is not there: runtimes say that they kept what they could not write."""
    paths = (f"{root}/{key}{'' if key.startswith(RTC) else '.bin'}" for key in keys)
    return sum(not os.path.exists(path) for path in paths)  # noqa: PTH110 - many of them


def follow() -> SyclFollower:
    """Return what takes the lines of one run; see `Tracer.follow`."""
    return SyclFollower()


def _roots(line: str) -> list[Path]:
    """Return the roots of the stores that a line names an entry of: what stands before the key."""
    found: dict[Path, None] = {}
    # A store's path may begin at the program's directory.
    mark = ": /" if ": /" in line else ": "
    start = line.rfind(mark)
    if start < 0:
        return []
    for part in line[start + 2 :].split(";", _PATHS)[:_PATHS]:
        path = part.strip().removesuffix(".bin")
        if not path.startswith(mark[2:]):
            continue
        pieces = path.split("/")
        for _ in range(trace.LEVELS):
            if not pieces or not (NUMBER.match(pieces[-1]) or pieces[-1] in {RTC, IR} or IR_KEY.match(pieces[-1])):
                break
            if pieces.pop() == RTC:
                break
        root = "/".join(pieces)
        if root and root != path and len(root) <= _LONGEST_PATH:
            found[Path(root)] = None
    return list(found)
