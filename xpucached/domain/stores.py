"""Stores, what is in them, and what can be wrong with it.  Pure."""

from __future__ import annotations

import functools
import hashlib
from enum import StrEnum
from pathlib import Path
from typing import Final

from msgspec import Struct

from xpucached.domain.defects import Defect, Effect, StoreFault
from xpucached.domain.names import AwareDatetime, EntryKey, EntryRef, KindName, ModelName
from xpucached.domain.targets import Target


class Store(Struct, frozen=True, order=True):
    """One directory of one kind on this host."""

    kind: KindName
    root: Path


class StoreOrigin(StrEnum):
    """Why we look at a store."""

    MANAGED = "managed"  #: ours to create
    CONFIGURED = "configured"  #: listed in the configuration
    FOUND = "found"  #: a runtime's default, a process's environment, or a runtime's configuration file names it


class StoreState(StrEnum):
    """What the last look at a store met."""

    OK = "ok"
    MISSING = "missing"  #: no such directory (yet)
    UNREADABLE = "unreadable"  #: we may not read it
    NOT_A_DIRECTORY = "not-a-directory"
    UNSEEN = "unseen"  #: not looked at yet


class FoundStore(Struct, frozen=True):
    """A store, and how we came to know of it."""

    store: Store
    origin: StoreOrigin
    via: str  #: in words: ``managed``, ``default``, ``process 4711``, a configuration file's path
    readers: frozenset[str] = frozenset()  #: the runtimes that read it, as far as known; empty: any may


class EntryState(StrEnum):
    """Whether the runtime can use an entry."""

    OK = "ok"
    DEFECTIVE = "defective"  #: see `Entry.defect`
    UNFINISHED = "unfinished"  #: a program is writing it now
    UNREAD = "unread"  #: it cannot be read just now, so what it holds is not known


UNSETTLED: Final = frozenset({EntryState.UNFINISHED, EntryState.UNREAD})
"""Nothing is decided about an entry that is in one of these states."""


class ImageFormat(StrEnum):
    """What the device image (or the binary) of an entry is."""

    SPIRV = "spirv"
    ELF = "elf"  #: native code, one device
    ARCHIVE = "ar"  #: native code for several devices
    BITCODE = "bitcode"  #: LLVM
    UNKNOWN = "unknown"


class Kernel(Struct, frozen=True):
    """A kernel that an entry holds: its mangled name, the name for people, and the library it belongs to."""

    name: str
    display: str
    library: str | None = None


class EntryId(Struct, frozen=True, order=True):
    """Where an entry is: a store and the POSIX path inside it, without a suffix (``D1/D2/D3/D4/0``)."""

    store: Store
    key: EntryKey

    @property
    def ref(self) -> EntryRef:
        """12 hex digits for command lines."""
        text = f"{self.store.kind}\0{self.store.root}\0{self.key}"
        return EntryRef(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest())


program_digest: Final = functools.partial(hashlib.blake2b, digest_size=16)
"""What a compiled program is known by: its ``hexdigest`` is `Entry.digest`."""


class Entry(Struct, frozen=True):
    """One compiled program in a store, as the last look saw it."""

    id: EntryId
    stamp: str  #: changes whenever any file of its leaf does
    size: int  #: sum of the file sizes
    allocated: int  #: blocks on disk, hard links counted once per entry
    created: AwareDatetime  #: when the runtime says it wrote it, else the file's birth, else its change
    accessed: AwareDatetime | None  #: newest access time that the file system knows; a hint, never a proof
    environment: Target | None = None
    options: str = ""
    constants: str = ""  #: specialization constants, hex
    image: ImageFormat | None = None
    image_size: int = 0
    binary: ImageFormat | None = None
    digest: str | None = None  #: BLAKE2b-128 of the compiled program
    kernels: tuple[Kernel, ...] = ()
    state: EntryState = EntryState.OK
    defect: Defect | None = None
    detail: str = ""  #: evidence for the defect
    place: int | None = None  #: changes whenever a directory that it lies in does; None while they are too young
    observed: bool = False  #: a neighbour in the store says what it is for, and not it itself
    source: str | None = None  #: which file its program was written with: changes whenever a runtime writes it anew
    input: str | None = None  #: SHA-256 of the SPIR-V that it was compiled from, by which kinds know the same program
    facts: tuple[tuple[str, str], ...] = ()  #: what else it says of itself, as its kind names it: names and values

    @property
    def effect(self) -> Effect | None:
        """What its defect costs the programs that read its store; None if it has none."""
        if self.defect is None:
            return None
        return Effect.HARMLESS if self.state is EntryState.OK else self.defect.effect

    @property
    def before(self) -> EntryKey | None:
        """The entry that programs try before it, if its defect is for that: the name at the end of its detail."""
        if self.defect is None or not (self.defect.covers or self.defect.uncovered):
            return None
        return EntryKey(self.id.key[: self.id.key.rfind("/") + 1] + self.detail.rpartition(" ")[2])


class UnchangedEntry(Struct, frozen=True):
    """An entry that is unchanged since the look that gave its stamp."""

    key: EntryKey
    accessed: AwareDatetime | None
    place: int | None = None


class KnownEntry(Struct, frozen=True):
    """What an earlier look remembers of an entry: what a later one need not read again while it is the same."""

    key: EntryKey
    stamp: str | None = None  #: None: read it again
    place: int | None = None  #: None: look at its files again


class Lookups(Struct, frozen=True):
    """How often programs found an entry, and how often not, as their runtime counts it."""

    hits: int
    misses: int


class Scan(Struct, frozen=True):
    """What one look at one store found, or one part of it, at one moment."""

    found: FoundStore
    at: AwareDatetime
    state: StoreState
    owner: int | None  #: uid of the root directory
    entries: tuple[Entry, ...] = ()  #: new and changed ones
    unchanged: tuple[UnchangedEntry, ...] = ()
    foreign: int | None = 0  #: files and directories that belong to no entry, never touched; None: not counted
    notes: tuple[str, ...] = ()  #: what people should know of the store as a whole, its faults above all
    ours: tuple[EntryKey, ...] = ()  #: entries under a lock that a dead daemon of ours left
    shut_in: tuple[EntryKey, ...] = ()  #: known ones below directories that may not be read now
    vanished: tuple[EntryKey, ...] | None = None  #: None: the look was at everything, and what it does not name is gone
    thorough: bool = True  #: with this, every file of the store was looked at, not only the directories
    faults: tuple[StoreFault, ...] = ()  #: of the store as a whole; complete in the last part only
    lookups: Lookups | None = None  #: in the last part only; none counted where nobody counts, None: not asked
    shut: int = 0  #: directories that may not be read; in the last part only

    @property
    def told(self) -> int:
        """Of how many entries it says anything."""
        return len(self.entries) + len(self.unchanged) + len(self.shut_in) + len(self.vanished or ())

    @property
    def unread(self) -> int:
        """Of how many directories and entries nobody knows what is in them."""
        return self.shut + sum(one.state is EntryState.UNREAD for one in self.entries)


class Delta(Struct, frozen=True):
    """What a scan changed in the catalog."""

    added: int = 0
    changed: int = 0
    vanished: int = 0
    entries: int = 0  #: in the store now
    size: int = 0  #: allocated bytes in the store now
    unread: int = 0  #: see `Scan.unread`


class ModelCache(Struct, frozen=True):
    """A directory of a model's, where compilers cache that are no kind of ours: it is counted, and never read."""

    model: ModelName  #: whose it is; of one that is gone, what it was called
    path: Path
    named: str  #: what names it, ``--cache`` or a variable; empty: it is ours, and goes with the model
    ref: EntryRef  #: what it is called in the trash
    state: StoreState
    owner: int | None
    files: int
    allocated: int  #: bytes on disk
    used: AwareDatetime | None = None  #: when any of its files was last read or written
    note: str = ""  #: why there may be more than was counted
    registered: bool = True  #: whether there is that model still
    shared: tuple[ModelName, ...] = ()  #: other models that use it, or something above or below it
    stays: str = ""  #: in the answer to who removes the model: why it is kept

    @property
    def ours(self) -> bool:
        """Whether it goes with its model."""
        return not self.named and not self.shared


class StoreStatus(Struct, frozen=True):
    """A store and what the last look at it said."""

    kind: KindName
    store: Path  #: its root directory
    origin: StoreOrigin
    via: str
    state: StoreState
    owner: int | None
    entries: int
    defective: int
    unfinished: int
    size: int
    allocated: int
    foreign: int
    scanned: AwareDatetime | None
    notes: tuple[str, ...] = ()
    lookups: Lookups | None = None  #: since its runtime began to count; None: it does not
    cache: ModelCache | None = None  #: it is no store, but a directory of a model's

    @property
    def id(self) -> Store:
        """Which store it is."""
        return Store(self.kind, self.store)
