"""The words of the house: frozen values that every room exchanges.  Pure.

Conventions that hold for every field: times are aware and in UTC, sizes are bytes, durations are seconds, paths are
absolute.  Everything here can travel as JSON (see `api`), so no value holds a descriptor, a lock or a callable.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Final, NewType

KindName = NewType("KindName", str)
EntryKey = NewType("EntryKey", str)
EntryRef = NewType("EntryRef", str)
Fingerprint = NewType("Fingerprint", str)
Architecture = NewType("Architecture", str)
ModelName = NewType("ModelName", str)
JobId = NewType("JobId", str)


# -- what a compiled program is valid for -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class Environment:
    """What a compiled program is valid for, in the runtime's own four strings."""

    platform: str
    device: str
    version: str
    driver: str

    @property
    def identity(self) -> str:
        """The runtime's device id string, as it stands in a SYCL entry."""
        return f"{self.platform}/{self.device}/{self.version}/{self.driver}"

    @property
    def fingerprint(self) -> Fingerprint:
        """16 hex digits that stand for this environment everywhere."""
        digest = hashlib.blake2b(self.identity.encode("utf-8", "surrogatepass"), digest_size=8)
        return Fingerprint(digest.hexdigest())

    @property
    def lineage(self) -> tuple[str, str]:
        """What stays the same when only the driver changes: successive environments of one lineage are generations."""
        return (self.platform, self.device)


class Origin(StrEnum):
    """How we know an entry's environment."""

    DECLARED = "declared"  #: the entry itself says so
    OBSERVED = "observed"  #: the entry does not say; a neighbour in the store does


# -- stores and what is in them -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class Store:
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


@dataclass(frozen=True, slots=True)
class FoundStore:
    """A store, and how we came to know of it."""

    store: Store
    origin: StoreOrigin
    via: str  #: in words: ``managed``, ``default``, ``process 4711``, a configuration file's path


class EntryState(StrEnum):
    """Whether the runtime can use an entry."""

    OK = "ok"
    FLAWED = "flawed"  #: see `Entry.flaw`
    UNFINISHED = "unfinished"  #: a program is writing it now


class Effect(StrEnum):
    """What a flaw costs the programs that use the store."""

    HARMLESS = "harmless"  #: the runtime still uses the entry
    DEAD = "dead"  #: never read again, only takes space
    HIDDEN = "hidden"  #: whole, but not read until a lower slot is mended
    ONCE = "once"  #: compiled once more, then mended by the runtime itself
    GROWS = "grows"  #: compiled at every start, one more slot each time
    FAILS = "fails"  #: the program fails at every start
    HANGS = "hangs"  #: the program waits for ever


class Flaw(StrEnum):
    """Why an entry cannot be used as it is.  The names follow the file that is at fault."""

    BIN_EMPTY = "bin-empty"
    BIN_TRUNCATED = "bin-truncated"
    BIN_MISSING = "bin-missing"
    BIN_UNREADABLE = "bin-unreadable"
    BIN_NOT_A_FILE = "bin-not-a-file"
    BIN_LENGTH_ABSURD = "bin-length-absurd"
    BIN_COUNT_WRONG = "bin-count-wrong"
    BIN_PAYLOAD_DAMAGED = "bin-payload-damaged"
    BIN_CHANGED = "bin-changed"
    BIN_TRAILING = "bin-trailing"
    SRC_EMPTY = "src-empty"
    SRC_TRUNCATED = "src-truncated"
    SRC_MISSING = "src-missing"
    SRC_UNREADABLE = "src-unreadable"
    SRC_NOT_A_FILE = "src-not-a-file"
    SRC_FIFO = "src-fifo"
    SRC_LENGTH_ABSURD = "src-length-absurd"
    SRC_UNPARSABLE = "src-unparsable"
    SRC_TOO_LARGE = "src-too-large"
    SRC_TRAILING = "src-trailing"
    MISPLACED = "misplaced"
    STALE_LOCK = "stale-lock"
    LOCK_ONLY = "lock-only"
    INTERRUPTED = "interrupted"
    BEHIND_GAP = "behind-gap"
    DUPLICATE = "duplicate"
    SHADOWED = "shadowed"
    LINK = "link"
    DANGLING_LINK = "dangling-link"
    SKELETON = "skeleton"

    @property
    def effect(self) -> Effect:
        """What it costs."""
        return _EFFECTS[self]

    @property
    def words(self) -> str:
        """One sentence for people."""
        return _FLAW_WORDS[self]


_EFFECTS: Mapping[Flaw, Effect] = {
    Flaw.BIN_EMPTY: Effect.GROWS,
    Flaw.BIN_TRUNCATED: Effect.GROWS,
    Flaw.BIN_MISSING: Effect.ONCE,
    Flaw.BIN_UNREADABLE: Effect.GROWS,
    Flaw.BIN_NOT_A_FILE: Effect.GROWS,
    Flaw.BIN_LENGTH_ABSURD: Effect.ONCE,
    Flaw.BIN_COUNT_WRONG: Effect.HARMLESS,
    Flaw.BIN_PAYLOAD_DAMAGED: Effect.FAILS,
    Flaw.BIN_CHANGED: Effect.FAILS,
    Flaw.BIN_TRAILING: Effect.HARMLESS,
    Flaw.SRC_EMPTY: Effect.DEAD,
    Flaw.SRC_TRUNCATED: Effect.DEAD,
    Flaw.SRC_MISSING: Effect.DEAD,
    Flaw.SRC_UNREADABLE: Effect.DEAD,
    Flaw.SRC_NOT_A_FILE: Effect.DEAD,
    Flaw.SRC_FIFO: Effect.HANGS,
    Flaw.SRC_LENGTH_ABSURD: Effect.FAILS,
    Flaw.SRC_UNPARSABLE: Effect.HARMLESS,
    Flaw.SRC_TOO_LARGE: Effect.HARMLESS,
    Flaw.SRC_TRAILING: Effect.HARMLESS,
    Flaw.MISPLACED: Effect.DEAD,
    Flaw.STALE_LOCK: Effect.DEAD,
    Flaw.LOCK_ONLY: Effect.GROWS,
    Flaw.INTERRUPTED: Effect.DEAD,
    Flaw.BEHIND_GAP: Effect.HIDDEN,
    Flaw.DUPLICATE: Effect.DEAD,
    Flaw.SHADOWED: Effect.HIDDEN,
    Flaw.LINK: Effect.HARMLESS,
    Flaw.DANGLING_LINK: Effect.GROWS,
    Flaw.SKELETON: Effect.DEAD,
}

_FLAW_WORDS: Mapping[Flaw, str] = {
    Flaw.BIN_EMPTY: "the binary is empty: compiled again at every start",
    Flaw.BIN_TRUNCATED: "the binary is cut short: compiled again at every start",
    Flaw.BIN_MISSING: "the binary is missing: compiled once more, then whole again",
    Flaw.BIN_UNREADABLE: "the binary cannot be read: compiled again at every start",
    Flaw.BIN_NOT_A_FILE: "the binary is not a regular file: compiled again at every start",
    Flaw.BIN_LENGTH_ABSURD: "the binary announces an impossible length: compiled once more into another slot",
    Flaw.BIN_COUNT_WRONG: "the binary counts other than one program: old runtimes skip it, new ones use it",
    Flaw.BIN_PAYLOAD_DAMAGED: "the compiled program is damaged: the application fails at every start",
    Flaw.BIN_CHANGED: "the compiled program changed after it was written: the application may fail",
    Flaw.BIN_TRAILING: "bytes follow the compiled program: the runtime ignores them",
    Flaw.SRC_EMPTY: "the source is empty: never read again",
    Flaw.SRC_TRUNCATED: "the source is cut short: never read again",
    Flaw.SRC_MISSING: "the source is missing: never read again",
    Flaw.SRC_UNREADABLE: "the source cannot be read: never read again",
    Flaw.SRC_NOT_A_FILE: "the source is not a regular file: never read again",
    Flaw.SRC_FIFO: "the source is a named pipe: the application hangs",
    Flaw.SRC_LENGTH_ABSURD: "the source announces an impossible length: the application fails at every start",
    Flaw.SRC_UNPARSABLE: "the source's device line is not platform/device/version/driver",
    Flaw.SRC_TOO_LARGE: "the source is larger than we read: only its head was looked at",
    Flaw.SRC_TRAILING: "bytes follow the source: the runtime ignores them",
    Flaw.MISPLACED: "the entry lies where no program looks for it",
    Flaw.STALE_LOCK: "a lock was left behind by a program that died: the slot is skipped",
    Flaw.LOCK_ONLY: "only a lock was left behind: compiled again at every start",
    Flaw.INTERRUPTED: "the program that wrote it died half-way: never read again",
    Flaw.BEHIND_GAP: "a lower slot is missing: not read until the gap is closed",
    Flaw.DUPLICATE: "a lower slot holds the same program: never read",
    Flaw.SHADOWED: "a lower slot with the same source is damaged and is tried first",
    Flaw.LINK: "a symbolic link, which we do not follow; the runtime does",
    Flaw.DANGLING_LINK: "a symbolic link to nothing: compiled again at every start",
    Flaw.SKELETON: "an empty shell that the runtime's own eviction left",
}


class ImageFormat(StrEnum):
    """What the device image (or the binary) of an entry is."""

    SPIRV = "spirv"
    ELF = "elf"  #: native code, one device
    ARCHIVE = "ar"  #: native code for several devices
    BITCODE = "bitcode"  #: LLVM
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that an entry holds: its mangled name, the name for people, and the library it belongs to."""

    name: str
    display: str
    library: str | None = None


@dataclass(frozen=True, slots=True, order=True)
class EntryId:
    """Where an entry is: a store and the POSIX path inside it, without a suffix (``D1/D2/D3/D4/0``)."""

    store: Store
    key: EntryKey

    @property
    def ref(self) -> EntryRef:
        """12 hex digits for command lines."""
        text = f"{self.store.kind}\0{self.store.root}\0{self.key}"
        return EntryRef(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest())


@dataclass(frozen=True, slots=True)
class Entry:
    """One compiled program in a store, as the last look saw it."""

    id: EntryId
    stamp: str  #: changes whenever any file of its leaf does
    size: int  #: sum of the file sizes
    allocated: int  #: blocks on disk, hard links counted once per entry
    created: datetime  #: when the runtime says it wrote it, else the file's birth, else its change
    accessed: datetime | None  #: newest access time that the file system knows; a hint, never a proof
    environment: Environment | None = None
    options: str = ""
    constants: str = ""  #: specialization constants, hex
    image: ImageFormat | None = None
    image_size: int = 0
    binary: ImageFormat | None = None
    digest: str | None = None  #: BLAKE2b-128 of the compiled program
    kernels: tuple[Kernel, ...] = ()
    state: EntryState = EntryState.OK
    flaw: Flaw | None = None
    detail: str = ""  #: evidence for the flaw


@dataclass(frozen=True, slots=True)
class Seen:
    """An entry that is unchanged since the look that gave its stamp."""

    key: EntryKey
    accessed: datetime | None


@dataclass(frozen=True, slots=True)
class Scan:
    """What one look at one store found, at one moment."""

    found: FoundStore
    at: datetime
    state: StoreState
    owner: int | None  #: uid of the root directory
    entries: tuple[Entry, ...] = ()  #: new and changed ones
    unchanged: tuple[Seen, ...] = ()
    foreign: int = 0  #: files and directories that belong to no entry; never touched
    notes: tuple[str, ...] = ()  #: hazards of the store as a whole (left locks, runtime eviction on)
    ours: tuple[EntryKey, ...] = ()  #: entries under a lock that a dead daemon of ours left


@dataclass(frozen=True, slots=True)
class Delta:
    """What a scan changed in the catalog."""

    added: int = 0
    changed: int = 0
    vanished: int = 0
    entries: int = 0  #: in the store now
    size: int = 0  #: allocated bytes in the store now


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """A store and what the last look at it said."""

    store: Store
    origin: StoreOrigin
    via: str
    state: StoreState
    owner: int | None
    entries: int
    flawed: int
    unfinished: int
    size: int
    allocated: int
    foreign: int
    scanned: datetime | None
    notes: tuple[str, ...] = ()


# -- the host -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU (or the CPU as an OpenCL device) and the environments it offers to programs now."""

    name: str
    architecture: Architecture
    pci_address: str | None = None  #: ``0000:03:00.0``
    pci_id: str | None = None  #: ``0xe20b``
    kernel_driver: str | None = None  #: ``xe``, ``i915``
    kernel_driver_version: str | None = None
    render_node: Path | None = None
    environments: tuple[Environment, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class DriverFile:
    """One file of the user-mode driver or its compiler."""

    path: Path
    target: Path  #: after symbolic links
    version: str | None
    size: int
    modified: datetime
    build_id: str | None
    package: str | None  #: ``name version``, where a package manager knows it


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is missing or wrong on this host: a stable code, what it costs, what to do."""

    code: str
    message: str
    hint: str = ""
    subject: str = ""  #: the file it is about, if it is about one


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What the installed drivers answered a fresh child."""

    environments: tuple[Environment, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Process:
    """A live process, as far as it tells where it keeps a cache."""

    pid: int
    uid: int
    started: datetime
    name: str
    directory: Path | None
    variables: Mapping[str, str]
    libraries: tuple[Path, ...] = ()  #: shared objects that it has mapped


@dataclass(frozen=True, slots=True)
class Host:
    """This machine now."""

    surveyed: datetime
    boot: str  #: the kernel's boot id
    kernel: str  #: kernel release
    stamp: str  #: digest of the driver files: another stamp means another driver
    devices: tuple[Device, ...] = ()
    driver: tuple[DriverFile, ...] = ()
    environments: tuple[Environment, ...] = ()  #: what programs on this host will use now
    problems: tuple[Problem, ...] = ()

    @property
    def signature(self) -> str:
        """16 hex digits of the present environments together."""
        text = "\n".join(sorted(one.identity for one in self.environments))
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class DriverChange:
    """One line of the host's history: which environments came and which went."""

    at: datetime
    stamp: str
    appeared: tuple[Environment, ...]
    vanished: tuple[Environment, ...]


@dataclass(frozen=True, slots=True)
class Presence:
    """When an environment was first and last what this host offered."""

    environment: Environment
    first: datetime | None
    last: datetime | None
    present: bool


# -- models and runs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Workload:
    """How to exercise a model: a command, where it runs and what it finds in its environment."""

    command: tuple[str, ...]
    directory: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 1800.0  #: seconds for one pass

    @property
    def digest(self) -> str:
        """16 hex digits that change whenever the workload does."""
        text = json.dumps([self.command, str(self.directory), sorted(self.variables.items())])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


_MODEL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+:-]{0,79}", re.ASCII)


def check_name(text: str) -> ModelName:
    """Take a model's name.  Raises `ValueError` with a sentence that says what was expected."""
    if _MODEL_NAME.fullmatch(text) is None:
        message = "expected a letter or digit, then up to 79 letters, digits or any of . _ @ + : -"
        raise ValueError(message)
    return ModelName(text)


@dataclass(frozen=True, slots=True)
class Model:
    """A registered neural network, and how to exercise it."""

    name: ModelName
    workload: Workload
    store: Path | None = None  #: where it caches; None is the managed store
    priority: int = 50  #: higher is warmed earlier
    pinned: bool = False  #: its entries in a present environment are never evicted
    source: str = "socket"  #: ``socket``, or the file that declares it


class Outcome(StrEnum):
    """How a run ended."""

    WARMED = "warmed"  #: and a second pass compiled nothing
    UNPROVEN = "unproven"  #: it ran, but the second pass compiled again
    FAILED = "failed"
    TIMED_OUT = "timed-out"
    CANCELLED = "cancelled"
    LOST = "lost"  #: the daemon died while it ran


class WarmReason(StrEnum):
    """Why a model is warmed."""

    NEVER = "never-run"
    CHANGED = "workload-changed"
    DRIVER = "driver-changed"
    LOST = "entries-lost"
    RETRY = "retry"
    MANUAL = "manual"


@dataclass(frozen=True, slots=True)
class Pass:
    """One execution of a model's workload inside a run."""

    seconds: float
    cpu_seconds: float
    peak_rss: int
    exit_status: int | None  #: negative: ended by that signal; None: never started
    created: int
    used: int


@dataclass(frozen=True, slots=True)
class Run:
    """One prewarming of one model: when, why, how it ended, and what it left."""

    id: int
    model: ModelName
    workload: str  #: `Workload.digest` at that time
    reason: WarmReason
    started: datetime
    finished: datetime | None
    outcome: Outcome | None  #: None while it runs
    host: str  #: `Host.signature` at that time
    passes: tuple[Pass, ...] = ()
    environments: tuple[Environment, ...] = ()  #: of the entries it created or used
    detail: str = ""  #: one sentence
    output: str = ""  #: the end of what it printed


@dataclass(frozen=True, slots=True)
class Attribution:
    """Which entries a run made and which it only touched."""

    created: frozenset[EntryId] = frozenset()
    used: frozenset[EntryId] = frozenset()


@dataclass(frozen=True, slots=True)
class Coverage:
    """Per model: its last runs, and how many of the last good run's entries are still there."""

    model: ModelName
    last: Run | None  #: the newest finished run
    good: Run | None  #: the newest run that warmed it
    failures: int  #: runs in a row that did not warm it
    entries: int  #: that the good run created or used
    remaining: int  #: of those, still there and whole


class Warmth(StrEnum):
    """How a model stands on this host now."""

    WARM = "warm"
    COLD = "cold"
    WARMING = "warming"
    FAILED = "failed"  #: its last runs failed; see the run


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """A model, how it stands, and its figures."""

    model: Model
    warmth: Warmth
    why: str  #: one sentence: why it is cold or failed, or what proves it warm
    reason: WarmReason | None
    entries: int
    allocated: int
    cold_seconds: float | None
    warm_seconds: float | None
    run: Run | None


# -- decisions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Policy:
    """What the administrator wants kept and tried."""

    keep_driver_generations: int = 1
    max_unused: float | None = 90 * 86400.0
    max_bytes: int | None = None
    grace: float = 600.0
    attempts: int = 3
    retry_after: float = 900.0  #: doubled after each further failure


@dataclass(frozen=True, slots=True)
class Warm:
    """Warm this model, for this reason."""

    model: Model
    reason: WarmReason
    detail: str


@dataclass(frozen=True, slots=True)
class Deferred:
    """A model that needs warming but not now."""

    model: ModelName
    why: str
    until: datetime | None


@dataclass(frozen=True, slots=True)
class PrewarmPlan:
    """What should be warmed, in order, and what waits."""

    warm: tuple[Warm, ...] = ()
    deferred: tuple[Deferred, ...] = ()
    covered: tuple[ModelName, ...] = ()


class EvictReason(StrEnum):
    """Why an entry may go."""

    FLAWED = "flawed"
    SUPERSEDED = "superseded-driver"
    GONE = "device-gone"
    UNUSED = "unused"
    BUDGET = "over-budget"
    ASKED = "asked"  #: somebody named it


@dataclass(frozen=True, slots=True)
class IndexedEntry:
    """An entry, and what only the catalog knows of it."""

    entry: Entry
    origin: Origin | None
    architecture: Architecture | None
    models: tuple[ModelName, ...]
    first_seen: datetime
    last_used: datetime
    last_used_by: str  #: how we know: ``run``, ``access-time`` or ``created``


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict this entry, for this reason."""

    entry: IndexedEntry
    reason: EvictReason
    detail: str


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """What may go, in order, and what that would free."""

    evict: tuple[Evict, ...] = ()
    frees: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class EvictionReport:
    """What was really evicted."""

    plan: EvictionPlan
    dry_run: bool
    removed: tuple[EntryRef, ...] = ()
    busy: tuple[EntryRef, ...] = ()
    freed: int = 0


class NoRecipe(StrEnum):
    """Why an entry cannot be rebuilt from itself."""

    NATIVE = "native-image"  #: it was compiled ahead of time, there is nothing to compile
    CONSTANTS = "specialization-constants"  #: their values are there, but not which is which
    SEVERAL = "several-images"  #: linked from several images by the runtime
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"  #: gone, changed or larger than we read
    FAILED = "failed-before"  #: the same compiler refused it, or crashed on it


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an entry was compiled from: all that a driver needs to compile it again."""

    entry: EntryId
    image: bytes  #: SPIR-V
    options: bytes
    constants: bytes
    file_mode: int
    directory_mode: int
    access_time: bool  #: its runtime keeps a birth time beside each entry


class ReplayReason(StrEnum):
    """Why an entry is worth rebuilding."""

    MODEL = "model"  #: a registered model uses it
    USED = "used"  #: somebody used it lately


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Rebuild this entry for that environment."""

    entry: IndexedEntry
    to: Environment
    reason: ReplayReason


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What should be rebuilt, in order, and what is left to a run of the models."""

    rebuild: tuple[Rebuild, ...] = ()
    skipped: Mapping[NoRecipe, int] = field(default_factory=dict)
    covered: int = 0  #: entries that are there for the present driver already


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What was really rebuilt."""

    plan: ReplayPlan
    dry_run: bool
    rebuilt: int = 0
    present: int = 0  #: a program had written them meanwhile
    failed: int = 0
    skipped: Mapping[NoRecipe, int] = field(default_factory=dict)
    seconds: float = 0.0
    compile_seconds: float = 0.0  #: of all compilers together
    failures: tuple[str, ...] = ()  #: the first few, in the compilers' own words


@dataclass(frozen=True, slots=True)
class ScanReport:
    """What a look at all stores changed."""

    stores: int
    added: int
    changed: int
    vanished: int
    entries: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PrewarmReport:
    """What prewarming really did."""

    runs: tuple[Run, ...] = ()
    covered: tuple[ModelName, ...] = ()
    deferred: tuple[Deferred, ...] = ()


# -- questions and the rest of the talk ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EntryQuery:
    """Which entries are asked for; every condition that is given must hold."""

    ref: str | None = None  #: the beginning of an `EntryRef`
    kind: KindName | None = None
    store: Path | None = None
    driver: str | None = None  #: exact, or the beginning followed by ``*``; ``current`` is what the host offers now
    architecture: str | None = None
    device: str | None = None  #: part of the device's name
    model: ModelName | None = None
    state: EntryState | None = None
    flaw: Flaw | None = None
    kernel: str | None = None  #: part of a kernel's name, mangled or not
    min_size: int | None = None
    max_size: int | None = None
    unused: float | None = None  #: not used for so many seconds
    limit: int | None = None
    after: str | None = None  #: continue behind this cursor


@dataclass(frozen=True, slots=True)
class EntryPage:
    """Some entries, and where the next ones begin."""

    entries: tuple[IndexedEntry, ...]
    total: int
    size: int  #: allocated bytes of all that match
    next: str | None = None


class JobState(StrEnum):
    """Where a job is."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is."""

    done: int = 0
    total: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something was not done: a stable code, a sentence, and what to do."""

    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """Something that takes longer than an answer may."""

    id: JobId
    verb: str
    state: JobState
    created: datetime
    started: datetime | None = None
    finished: datetime | None = None
    progress: Progress = field(default_factory=Progress)
    scan: ScanReport | None = None
    prewarm: PrewarmReport | None = None
    evict: EvictionReport | None = None
    replay: ReplayReport | None = None
    error: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something an administrator may want to see pass by."""

    id: int
    at: datetime
    topic: str  #: ``driver-changed``, ``run-finished``, ``evicted`` …
    message: str
    fields: Mapping[str, str] = field(default_factory=dict)


class Verdict(StrEnum):
    """The one sentence of `status`, as a word."""

    WARM = "warm"
    COLD = "cold"
    WARMING = "warming"
    FAILED = "failed"
    NO_MODELS = "no-models"
    NO_DEVICE = "no-device"
    STARTING = "starting"


@dataclass(frozen=True, slots=True)
class Status:
    """How this host stands."""

    version: str
    verdict: Verdict
    sentence: str
    pid: int
    started: datetime
    host: Host | None
    problems: tuple[Problem, ...]
    entries: int
    flawed: int
    allocated: int
    stale: int  #: entries for environments that this host no longer offers
    stores: tuple[StoreStatus, ...]
    models: tuple[ModelStatus, ...]
    jobs: tuple[Job, ...]
    changes: tuple[DriverChange, ...]


# -- wakes: hints that something may have changed ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Booted:
    """The daemon has just started."""


@dataclass(frozen=True, slots=True)
class DriverTouched:
    """A file of the driver may have changed."""


@dataclass(frozen=True, slots=True)
class StoreTouched:
    """Something happened in a store."""

    root: Path


@dataclass(frozen=True, slots=True)
class ModelsTouched:
    """A model file may have changed, or a model was registered."""


@dataclass(frozen=True, slots=True)
class Due:
    """The periodic look."""


Wake = Booted | DriverTouched | StoreTouched | ModelsTouched | Due
