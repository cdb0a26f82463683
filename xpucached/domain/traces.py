"""What one run of a program that is no model compiled, as far as it was told.  Pure."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from xpucached.domain.names import KindName


class StoreTrace(Struct, frozen=True):
    """What a program did with one store."""

    kind: KindName
    root: Path
    kept: int  #: programs that it compiled and put there, and that are there
    found: int  #: programs that it found there
    lost: int = 0  #: programs of which it said that they were put there, and that are not
    unknown: int = 0  #: of which it said so, where the file system does not answer


class RuntimeTrace(Struct, frozen=True):
    """What the runtimes that use one kind of cache told."""

    programs: int | None  #: that were built or found, in all processes; None: they do not tell
    nowhere: int | None  #: of these, those that were neither found nor kept
    seconds: float | None  #: of compilation, of those programs alone for which it could be measured; None: of none
    unmeasured: int  #: programs that were kept, and for which it could not be measured
    off: bool  #: whether a process said that its cache is off
    stores: tuple[StoreTrace, ...] = ()


class OtherCache(Struct, frozen=True):
    """A cache of which no line tells: what appeared there meanwhile, by whomever."""

    name: str
    root: Path
    files: int | None  #: new ones; None: it could not be looked at to its end


class TraceReport(Struct, frozen=True):
    """What one run of a program compiled."""

    command: tuple[str, ...]
    seconds: float  #: from its start to its end
    status: int  #: its exit status; negative: ended by that signal
    runs_on: bool  #: something that it started goes on, and what that compiles is not told here
    compiling: float | None  #: seconds; None: unknown
    at_least: bool  #: whether it compiled more than that, for a time that is unknown
    programs: int | None  #: None: unknown
    kept: int
    found: int
    nowhere: int | None
    traced: bool  #: whether any line told of a cache
    off: bool  #: whether a process said that its cache is off
    stores: tuple[StoreTrace, ...]
    others: tuple[OtherCache, ...]
    commands: tuple[str, ...]  #: what makes it warm, as it is typed; none where nothing is to be done
