"""How changes are noticed, and who was seen to cause them.  Pure."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from xpucached.domain.names import AwareDatetime, EntryKey


class WatchMode(StrEnum):
    """How changes in stores are noticed, the best first."""

    FANOTIFY = "fanotify"  #: every file, with the process that closed it
    CLASSIC = "fanotify-classic"  #: the same, without what is removed or renamed
    INOTIFY = "inotify"  #: new directories near the top of a store
    POLLING = "polling"  #: not at all for some directories: the periodic look finds it


class FileAct(StrEnum):
    """What happened to a file or a directory in a store."""

    WRITTEN = "w"  #: closed after writing
    READ = "r"  #: closed after reading
    GONE = "g"  #: removed or moved away
    COME = "c"  #: moved here


class FileEvent(Struct, frozen=True):
    """Something that a process did in a store."""

    store: Path
    path: str  #: below the store
    act: FileAct
    pid: int  #: 0 where it is not known
    at: float  #: seconds since boot when it was heard of


class Program(Struct, frozen=True):
    """A process that touched a store, as it was at its first touch."""

    pid: int
    started: AwareDatetime
    uid: int
    name: str
    command: str  #: its command line, cut
    unit: str = ""  #: the service or scope of systemd that it is in
    libraries: tuple[str, ...] = ()  #: names of those that it has mapped by which it may use a cache
    ours: bool = False  #: a child of a daemon: a model that is warmed

    @property
    def label(self) -> str:
        """Return its unit, if it is a service, or else its name."""
        return self.unit if self.serves else self.name

    @property
    def serves(self) -> bool:
        """Whether it is (in) a service of systemd, and not somebody's session."""
        return self.unit.endswith(".service") and not self.unit.startswith("user@")


class Load(Struct, frozen=True):
    """That programs were seen to load an entry."""

    store: Path
    key: EntryKey
    last: AwareDatetime
    hits: int
    program: str  #: the last one, by `Program.label`
    uid: int


class Compiling(Struct, frozen=True):
    """A program that wrote new entries although nobody had asked us to warm it: its users waited for each."""

    program: Program
    since: AwareDatetime
    last: AwareDatetime
    stores: tuple[Path, ...]
    entries: int


class Watching(Struct, frozen=True):
    """How changes are noticed now."""

    mode: WatchMode = WatchMode.POLLING
    reason: str = ""  #: why not better
    loads: bool = False  #: whether loads are seen, too
    compiled: int = 0  #: entries that programs were seen to write since the daemon began
    compiling: tuple[Compiling, ...] = ()


class WatchSpec(Struct, frozen=True):
    """Which files of a store are watched for what programs do."""

    files: str  #: a pattern that the whole name of a file of an entry fits
    depth: int  #: so many directories below the root hold them, at most
